//! Samples every submitter during the run: its progress, and what reports a stall. States come from the API, alarms
//! from the workers' metrics; only events and progress are read from the database.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use futures::future::join_all;
use parking_lot::Mutex;
use serde_json::Value;

use super::checker::Sample;
use super::supervisor::{Crew, ProcessSlot};
use super::{ChaosRun, evidence};

const EVERY: Duration = Duration::from_secs(1);
/// Timeout of the query for a sample; a sample that takes longer is skipped.
const TIMEOUT: Duration = Duration::from_secs(2);
/// HTTP timeout for APIs and metrics.
const ANSWER_WITHIN: Duration = Duration::from_millis(800);
/// Reasons are fetched only for submitters without progress for this long.
const STALLED_AFTER_S: f64 = 4.0;
/// Gauges that are alarms if non-zero, and the label that is part of the alarm.
const ALARMS: [(&str, Option<&str>); 4] = [
    ("gapless_protected_submitters", None),
    ("gapless_suspect_submitters", None),
    ("gapless_stuck_transactions", None),
    ("gapless_lane_blocked_seconds", Some("reason")),
];
/// The gauge that is an alarm if zero.
const HEALTHY: &str = "gapless_rpc_node_healthy";
const FINAL: [&str; 3] = ["CONFIRMED", "FAILED", "CANCELLED"];

#[derive(Debug, Default)]
pub(crate) struct Sampler(Mutex<Vec<Sample>>);

impl Sampler {
    pub(crate) fn samples(&self) -> Vec<Sample> {
        self.0.lock().clone()
    }
}

/// Takes samples forever. The reference worker has no states, metrics or events, so its runs are not sampled.
pub(crate) async fn watch(run: &ChaosRun) {
    let http = gapless_http_client::client_builder().timeout(ANSWER_WITHIN).build().expect("a client");
    // Last progress of each submitter, and when it was first seen.
    let mut moved: HashMap<String, (String, f64)> = HashMap::new();
    loop {
        tokio::time::sleep(EVERY).await;
        if !matches!(run.options.crew, Crew::Product) {
            continue;
        }
        let look = tokio::time::timeout(TIMEOUT, evidence::visible(run.stack.db())).await;
        // The database is unreachable.
        let Ok(Ok(rows)) = look else { continue };
        let at = run.begun.elapsed().as_secs_f64();
        let mut still = BTreeSet::new();
        for row in rows.iter().filter(|row| row.open > 0) {
            let known = moved.entry(row.submitter.clone()).or_insert_with(|| (row.progress.clone(), at));
            if known.0 != row.progress {
                *known = (row.progress.clone(), at);
            }
            if at - known.1 >= STALLED_AFTER_S {
                still.insert(row.submitter.clone());
            }
        }
        let metrics = if still.is_empty() { None } else { alarms(run, &http).await };
        let mut reasons: HashMap<String, Vec<String>> = HashMap::new();
        for submitter in still {
            if let Some(found) = reasons_of(run, &http, &submitter).await {
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
        run.sampler.0.lock().extend(samples);
    }
}

/// From the first API that responds.
async fn reasons_of(run: &ChaosRun, http: &reqwest::Client, submitter: &str) -> Option<Vec<String>> {
    for api in &run.apis {
        let get = async |path: String| -> Option<Value> {
            let answer = http.get(format!("{}{path}", api.url())).send().await.ok()?;
            answer.error_for_status().ok()?.json().await.ok()
        };
        let Some(shown) = get(format!("/api/v1/submitters/{submitter}")).await else { continue };
        if let Some(transactions) = list_all(&get, submitter).await {
            return Some(reasons(&shown, &transactions));
        }
    }
    None
}

/// All pages: the list is ordered by `txId`, which contains the clock of the API process that made it. With a moved clock, an
/// open transaction may be on any page.
async fn list_all(get: &impl AsyncFn(String) -> Option<Value>, submitter: &str) -> Option<Vec<Value>> {
    let (mut found, mut cursor) = (Vec::new(), String::new());
    loop {
        let mut page = get(format!("/api/v1/tx?submitter={submitter}&limit=200{cursor}")).await?;
        found.extend(page["items"].as_array_mut().map(std::mem::take).unwrap_or_default());
        match page["nextCursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => return Some(found),
        }
    }
}

fn reasons(submitter: &Value, transactions: &[Value]) -> Vec<String> {
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
    for transaction in transactions {
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

/// Alarms of all workers. `None`: no worker responded.
async fn alarms(run: &ChaosRun, http: &reqwest::Client) -> Option<Vec<String>> {
    let scrape = async |worker: &ProcessSlot| -> Option<String> {
        let url = format!("{}/metrics", worker.metrics_url()?);
        http.get(url).send().await.ok()?.text().await.ok()
    };
    let pages: Vec<String> = join_all(run.workers.iter().map(scrape)).await.into_iter().flatten().collect();
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

/// `gapless_lane_blocked_seconds{chain="1",reason="node"} 3` becomes `gapless_lane_blocked_seconds node`.
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
    fn a_gauge_is_an_alarm_depending_on_its_value() {
        let blocked = r#"gapless_lane_blocked_seconds{chain="1",reason="node"}"#;
        assert_eq!(alarm(&format!("{blocked} 3.5")), Some("gapless_lane_blocked_seconds node".into()));
        assert_eq!(alarm(&format!("{blocked} 0")), None);
        assert_eq!(
            alarm(r#"gapless_rpc_node_healthy{chain="1",node="a"} 0"#),
            Some("gapless_rpc_node_healthy".into())
        );
        assert_eq!(alarm(r#"gapless_rpc_node_healthy{chain="1",node="a"} 1"#), None);
        assert_eq!(alarm(r#"gapless_queue_depth{chain="1"} 9"#), None);
        assert_eq!(alarm("# HELP gapless_stuck_transactions words"), None);
    }

    #[test]
    fn reasons_come_from_the_submitter_and_from_its_open_transactions() {
        let transactions = [
            json!({ "state": "FAILED", "subState": "reverted" }),
            json!({ "state": "STUCK", "subState": "unmined" }),
            json!({ "state": "TRACKING", "subState": null }),
            json!({ "state": "QUEUED", "subState": "waiting_node" }),
        ];
        let found = reasons(&json!({ "state": "BLOCKED", "blockedBy": "node" }), &transactions);
        assert_eq!(found, ["BLOCKED node", "QUEUED waiting_node", "STUCK", "STUCK unmined"]);
        assert!(reasons(&json!({ "state": "ACTIVE" }), &[]).is_empty());
    }
}
