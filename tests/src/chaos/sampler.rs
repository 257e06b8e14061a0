//! Looks at every submitter all the while, as somebody who operates this would: what moves, and what shows that it does not. States are
//! asked of the APIs, alarms of the workers' metrics; only events and movement are read from rows.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use futures::future::join_all;
use serde_json::Value;

use super::checker::Sample;
use super::supervisor::{Crew, Supervised};
use super::{Arena, evidence};

const EVERY: Duration = Duration::from_secs(1);
/// A look at the rows that takes longer is none.
const PATIENCE: Duration = Duration::from_secs(2);
/// An API or a worker that takes longer does not answer.
const ANSWER_WITHIN: Duration = Duration::from_millis(800);
/// Whoever moved within this time is not asked why it stands still.
const STANDS_STILL_S: f64 = 4.0;
/// Gauges that are alarms when they are not zero, and the label that counts.
const ALARMS: [(&str, Option<&str>); 4] = [
    ("gapless_protected_submitters", None),
    ("gapless_suspect_submitters", None),
    ("gapless_stuck_transactions", None),
    ("gapless_lane_blocked_seconds", Some("reason")),
];
/// The gauge that is an alarm when it is zero.
const HEALTHY: &str = "gapless_rpc_node_healthy";
const FINAL: [&str; 3] = ["CONFIRMED", "FAILED", "CANCELLED"];

#[derive(Debug, Default)]
pub(super) struct Sampler(Mutex<Vec<Sample>>);

impl Sampler {
    pub(super) fn samples(&self) -> Vec<Sample> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// For ever. Workers of the harness's own promise nothing about what they show.
pub(super) async fn watch(arena: &Arena) {
    let http = reqwest::Client::builder().timeout(ANSWER_WITHIN).build().expect("a client");
    // How far each submitter was, and since when.
    let mut moved: HashMap<String, (String, f64)> = HashMap::new();
    loop {
        tokio::time::sleep(EVERY).await;
        if !matches!(arena.options.crew, Crew::Product) {
            continue;
        }
        let look = tokio::time::timeout(PATIENCE, evidence::visible(arena.stack.db())).await;
        // The database is away: there is nothing to see.
        let Ok(Ok(rows)) = look else { continue };
        let at = arena.begun.elapsed().as_secs_f64();
        let mut still = BTreeSet::new();
        for row in rows.iter().filter(|row| row.open > 0) {
            let known = moved.entry(row.submitter.clone()).or_insert_with(|| (row.progress.clone(), at));
            if known.0 != row.progress {
                *known = (row.progress.clone(), at);
            }
            if at - known.1 >= STANDS_STILL_S {
                still.insert(row.submitter.clone());
            }
        }
        let metrics = if still.is_empty() { None } else { alarms(arena, &http).await };
        let mut reasons: HashMap<String, Vec<String>> = HashMap::new();
        for submitter in still {
            if let Some(found) = reasons_of(arena, &http, &submitter).await {
                reasons.insert(submitter, found);
            }
        }
        let samples = rows.into_iter().map(|row| Sample {
            at,
            reasons: reasons.remove(&row.submitter),
            submitter: row.submitter,
            open: row.open.unsigned_abs(),
            progress: row.progress,
            token: row.token.unsigned_abs(),
            metrics: metrics.clone(),
            events: row.events,
        });
        arena.sampler.0.lock().unwrap_or_else(PoisonError::into_inner).extend(samples);
    }
}

/// As the first API that answers says it.
async fn reasons_of(arena: &Arena, http: &reqwest::Client, submitter: &str) -> Option<Vec<String>> {
    for api in &arena.apis {
        let get = async |path: String| -> Option<Value> {
            let answer = http.get(format!("{}{path}", api.url())).send().await.ok()?;
            answer.error_for_status().ok()?.json().await.ok()
        };
        let Some(shown) = get(format!("/api/v1/submitters/{submitter}")).await else { continue };
        let Some(page) = get(format!("/api/v1/tx?submitter={submitter}")).await else { continue };
        return Some(reasons(&shown, &page));
    }
    None
}

fn reasons(submitter: &Value, transactions: &Value) -> Vec<String> {
    let mut found = BTreeSet::new();
    match submitter["state"].as_str() {
        None | Some("ACTIVE") => {}
        Some("BLOCKED") => {
            found.insert(format!("BLOCKED {}", submitter["blockedBy"].as_str().unwrap_or_default()));
        }
        Some(state) => {
            found.insert(state.to_owned());
        }
    }
    for transaction in transactions["items"].as_array().into_iter().flatten() {
        let state = transaction["state"].as_str().unwrap_or_default();
        if FINAL.contains(&state) {
            continue;
        }
        if matches!(state, "STUCK" | "PROTECT") {
            found.insert(state.to_owned());
        }
        if let Some(sub_state) = transaction["subState"].as_str() {
            found.insert(format!("{state} {sub_state}"));
        }
    }
    found.into_iter().collect()
}

/// Of all workers together. `None`: none of them answers.
async fn alarms(arena: &Arena, http: &reqwest::Client) -> Option<Vec<String>> {
    let scrape = async |worker: &Supervised| -> Option<String> {
        let url = format!("{}/metrics", worker.metrics_url()?);
        http.get(url).send().await.ok()?.text().await.ok()
    };
    let pages: Vec<String> = join_all(arena.workers.iter().map(scrape)).await.into_iter().flatten().collect();
    if pages.is_empty() {
        return None;
    }
    Some(
        pages
            .iter()
            .flat_map(|page| page.lines().filter_map(alarm))
            .collect::<BTreeSet<_>>()
            .into_iter()
            .collect(),
    )
}

/// `lane_blocked_seconds{chain="1",reason="node"} 3` is `lane_blocked_seconds node`.
fn alarm(line: &str) -> Option<String> {
    let (key, value) = line.rsplit_once(' ')?;
    let value: f64 = value.parse().ok()?;
    let name = key.split('{').next()?;
    if name == HEALTHY {
        return (value == 0.0).then(|| name.to_owned());
    }
    let (_, label) = ALARMS.iter().find(|(one, _)| *one == name).filter(|_| value > 0.0)?;
    let label = label.and_then(|label| key.split(&format!("{label}=\"")).nth(1)?.split('"').next());
    Some(label.map_or_else(|| name.to_owned(), |label| format!("{name} {label}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_gauge_is_an_alarm_by_its_value() {
        let blocked = r#"gapless_lane_blocked_seconds{chain="1",reason="node"}"#;
        assert_eq!(alarm(&format!("{blocked} 3.5")), Some("gapless_lane_blocked_seconds node".into()));
        assert_eq!(alarm(&format!("{blocked} 0")), None);
        assert_eq!(
            alarm(r#"gapless_rpc_node_healthy{chain="1",node="a"} 0"#),
            Some("gapless_rpc_node_healthy".into())
        );
        assert_eq!(alarm(r#"gapless_rpc_node_healthy{chain="1",node="a"} 1"#), None);
        assert_eq!(alarm(r#"queue_depth{chain="1"} 9"#), None);
        assert_eq!(alarm("# HELP gapless_stuck_transactions words"), None);
    }

    #[test]
    fn reasons_are_those_of_the_submitter_and_of_what_is_not_final() {
        let page = json!({ "items": [
            { "state": "FAILED", "subState": "reverted" }, { "state": "STUCK", "subState": "unmined" },
            { "state": "TRACKING", "subState": null }, { "state": "QUEUED", "subState": "waiting_node" } ] });
        let found = reasons(&json!({ "state": "BLOCKED", "blockedBy": "node" }), &page);
        assert_eq!(found, ["BLOCKED node", "QUEUED waiting_node", "STUCK", "STUCK unmined"]);
        assert!(reasons(&json!({ "state": "ACTIVE" }), &json!({ "items": [] })).is_empty());
    }
}
