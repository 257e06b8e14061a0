//! Collects reasons why a transaction makes no progress, from the API and the worker.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Result;
use gapless_http_client::client_builder;
use serde_json::Value;

use super::stall::Stall;
use crate::api::Api;
use crate::commands::waiting;
use crate::output::{cell, say};

/// A process that does not respond within this time is reported as the reason.
const TIMEOUT: Duration = Duration::from_secs(2);
const POLL: Duration = Duration::from_millis(500);

#[derive(Clone, Debug)]
pub(super) struct Reasons {
    http: reqwest::Client,
    worker: String,
    /// The worker's log, for the details of what it reports.
    log: PathBuf,
    api: Api,
}

impl Reasons {
    pub(super) fn new(api: &Api, worker_url: &str, log: PathBuf) -> Result<Reasons> {
        let http = client_builder().timeout(TIMEOUT).build()?;
        Ok(Reasons { http, worker: worker_url.to_owned(), log, api: api.clone() })
    }

    /// Problems from the worker's `/readyz`; empty if it is ready.
    pub(super) async fn worker_problems(&self) -> Vec<String> {
        match self.readyz().await {
            Ok(answer) => problems(&answer, &self.log),
            Err(error) => vec![format!("the worker does not respond ({})", error.without_url())],
        }
    }

    /// The same, and what stops the submitters according to the API.
    pub(super) async fn all_problems(&self) -> Vec<String> {
        let mut problems = self.worker_problems().await;
        let submitters = tokio::time::timeout(TIMEOUT, self.api.submitters()).await;
        for item in submitters.ok().and_then(Result::ok).unwrap_or_default() {
            let problem = waiting::problem(&item["waiting"]);
            problems.extend(problem.filter(|problem| !problems.contains(problem)));
        }
        problems
    }

    async fn readyz(&self) -> reqwest::Result<Value> {
        self.http.get(format!("{}/readyz", self.worker)).send().await?.json().await
    }

    /// The submitter as the API returns it; `None`: unknown, or the API does not respond.
    async fn submitter(&self, address: &str) -> Option<Value> {
        let all = tokio::time::timeout(TIMEOUT, self.api.submitters()).await.ok()?.ok()?;
        all.into_iter().find(|item| cell(&item["address"]).eq_ignore_ascii_case(address))
    }

    /// Why the submitter is in PROTECT, if it is.
    pub(super) async fn protected(&self, address: &str) -> Option<String> {
        let item = self.submitter(address).await?;
        item["protectReason"].as_str().map(str::to_owned)
    }

    /// One line about a transaction without progress.
    pub(super) async fn of_transaction(&self, tx_id: &str) -> String {
        let mut parts = Vec::new();
        match tokio::time::timeout(TIMEOUT, self.api.transaction(tx_id)).await {
            Ok(Ok(answer)) => {
                parts.push(format!("the transaction is {}", state_of(&answer)));
                // Without the age: it would make every line a new one.
                let waiting = &answer["waiting"];
                let reason = waiting["reason"].as_str();
                parts.extend(
                    reason.map(|reason| format!("it waits for {reason}: {}", cell(&waiting["message"]))),
                );
            }
            Ok(Err(error)) => parts.push(format!("{error:#}")),
            Err(_) => parts.push("the API does not respond".to_owned()),
        }
        let problems = self.worker_problems().await;
        match problems.is_empty() {
            true => parts.push("the worker reports no problem".to_owned()),
            false => parts.push(format!("the worker reports: {}", problems.join(", "))),
        }
        parts.join("; ")
    }
}

/// The reasons in the worker's `/readyz`, which has counts only: `node (1), signer (2), see …/worker.log`.
fn problems(answer: &Value, log: &Path) -> Vec<String> {
    let reasons = answer["reasons"].as_object().into_iter().flatten();
    let mut problems: Vec<String> = reasons.map(|(reason, count)| format!("{reason} ({count})")).collect();
    if let Some(last) = problems.last_mut() {
        last.push_str(&format!(", see {}", log.display()));
    }
    problems
}

/// `QUEUED (waiting_node)`
fn state_of(answer: &Value) -> String {
    let mut text = cell(&answer["state"]);
    if let Some(sub_state) = answer["subState"].as_str() {
        text += &format!(" ({sub_state})");
    }
    text
}

/// Runs `work` and prints a message if it takes long.
pub(super) async fn with_progress<T>(what: &str, work: impl Future<Output = T>) -> T {
    let mut stall = Stall::new(Instant::now());
    let progress = async {
        loop {
            tokio::time::sleep(POLL).await;
            if let Some(seconds) = stall.due(Instant::now(), what) {
                say(&format!("{what}, for {seconds} s now"));
            }
        }
    };
    tokio::select! {
        done = work => done,
        () = progress => unreachable!("infinite loop"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_transaction_shows_its_state() {
        assert_eq!(state_of(&json!({ "state": "QUEUED", "subState": null })), "QUEUED");
        assert_eq!(
            state_of(&json!({ "state": "QUEUED", "subState": "waiting_node" })),
            "QUEUED (waiting_node)"
        );
    }

    #[test]
    fn the_counts_of_the_worker_are_reported_with_its_log() {
        let log = Path::new("logs/worker.log");
        let answer = json!({ "ready": false, "reasons": { "chain_halted": 1, "signer": 2 } });
        assert_eq!(problems(&answer, log), ["chain_halted (1)", "signer (2), see logs/worker.log"]);
        assert!(problems(&json!({ "ready": true, "reasons": {} }), log).is_empty());
    }
}
