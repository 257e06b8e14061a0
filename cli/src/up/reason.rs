//! Collects reasons why a transaction makes no progress, from the API and the worker.

use std::time::{Duration, Instant};

use anyhow::Result;
use gapless_http_client::client_builder;
use serde_json::Value;

use super::stall::Stall;
use crate::api::Api;
use crate::output::{cell, say};

/// A process that does not respond within this time is reported as the reason.
const TIMEOUT: Duration = Duration::from_secs(2);
const POLL: Duration = Duration::from_millis(500);

#[derive(Clone, Debug)]
pub(super) struct Reasons {
    http: reqwest::Client,
    worker: String,
    api: Api,
}

impl Reasons {
    pub(super) fn new(api: &Api, worker_url: &str) -> Result<Reasons> {
        let http = client_builder().timeout(TIMEOUT).build()?;
        Ok(Reasons { http, worker: worker_url.to_owned(), api: api.clone() })
    }

    /// Problems from the worker's `/readyz`; empty if it is ready.
    pub(super) async fn worker_problems(&self) -> Vec<String> {
        match self.readyz().await {
            Ok(answer) => problems(&answer),
            Err(error) => vec![format!("the worker does not respond ({})", error.without_url())],
        }
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
    pub(super) async fn of_transaction(&self, tx_id: &str, submitter: &str) -> String {
        let mut parts = Vec::new();
        match tokio::time::timeout(TIMEOUT, self.api.transaction(tx_id)).await {
            Ok(Ok(answer)) => parts.push(format!("the transaction is {}", state_of(&answer))),
            Ok(Err(error)) => parts.push(format!("{error:#}")),
            Err(_) => parts.push("the API does not respond".to_owned()),
        }
        parts.extend(self.submitter(submitter).await.as_ref().and_then(submitter_reason));
        let problems = self.worker_problems().await;
        match problems.is_empty() {
            true => parts.push("the worker reports no problem".to_owned()),
            false => parts.push(format!("the worker reports: {}", problems.join(", "))),
        }
        parts.join("; ")
    }
}

/// The problem lists of the worker's `/readyz`.
fn problems(answer: &Value) -> Vec<String> {
    let lists = ["missing", "signerProblems"].into_iter().filter_map(|name| answer[name].as_array());
    lists.flatten().map(cell).collect()
}

/// `QUEUED (waiting_node), node_unreachable: connection refused`
fn state_of(answer: &Value) -> String {
    let mut text = cell(&answer["state"]);
    if let Some(sub_state) = answer["subState"].as_str() {
        text += &format!(" ({sub_state})");
    }
    let code = answer["error"]["code"].as_str();
    match (code, answer["lastError"].as_str()) {
        (Some(code), Some(message)) => text += &format!(", {code}: {message}"),
        (None, Some(only)) | (Some(only), None) => text += &format!(", {only}"),
        (None, None) => {}
    }
    text
}

/// Why the submitter may delay the transaction.
fn submitter_reason(item: &Value) -> Option<String> {
    let state = cell(&item["state"]);
    if state != "ACTIVE" {
        let fields = ["protectReason", "suspectReason", "blockedReason", "pausedReason"];
        let why = fields.into_iter().find_map(|field| item[field].as_str());
        return Some(format!("its submitter is {state}: {}", why.unwrap_or("no reason recorded")));
    }
    let (queued, in_flight) = (item["queueDepth"].as_u64()?, item["inFlight"].as_u64()?);
    (queued + in_flight > 1)
        .then(|| format!("its submitter has {queued} transactions queued and {in_flight} in flight"))
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
    fn a_transaction_shows_state_and_error() {
        assert_eq!(state_of(&json!({ "state": "QUEUED", "subState": null })), "QUEUED");
        let answer = json!({ "state": "QUEUED", "subState": "waiting_node", "lastError": "refused",
            "error": { "code": "node_unreachable", "message": "refused" } });
        assert_eq!(state_of(&answer), "QUEUED (waiting_node), node_unreachable: refused");
    }

    #[test]
    fn a_submitter_is_named_only_when_it_is_the_reason() {
        let item = |state: &str, queued: u64| json!({ "state": state, "queueDepth": queued, "inFlight": 1, "protectReason": "used" });
        assert_eq!(submitter_reason(&item("ACTIVE", 0)), None);
        assert!(submitter_reason(&item("ACTIVE", 2)).unwrap().contains("2 transactions queued and 1 in"));
        assert_eq!(submitter_reason(&item("PROTECT", 0)).unwrap(), "its submitter is PROTECT: used");
    }

    #[test]
    fn both_lists_of_the_worker_are_reported() {
        let answer =
            json!({ "ready": false, "missing": ["chain local: reset"], "signerProblems": ["keys: closed"] });
        assert_eq!(problems(&answer), ["chain local: reset", "keys: closed"]);
        assert!(problems(&json!({ "ready": true, "missing": [], "signerProblems": [] })).is_empty());
    }
}
