//! Why something that was asked for does not happen yet, in the words of whoever knows it.

use std::time::{Duration, Instant};

use anyhow::Result;
use serde_json::Value;

use super::stall::Stall;
use crate::api::Api;
use crate::output::{cell, say};

/// A process that does not answer for so long is a reason of its own.
const TIMEOUT: Duration = Duration::from_secs(2);
const POLL: Duration = Duration::from_millis(500);

/// Whom to ask.
#[derive(Clone, Debug)]
pub(super) struct Reasons {
    http: reqwest::Client,
    worker: String,
    api: Api,
}

impl Reasons {
    pub(super) fn new(api: &Api, worker_url: &str) -> Result<Reasons> {
        let http = reqwest::Client::builder().timeout(TIMEOUT).build()?;
        Ok(Reasons { http, worker: worker_url.to_owned(), api: api.clone() })
    }

    /// What the worker says it lacks; empty when it lacks nothing.
    pub(super) async fn worker_lacks(&self) -> Vec<String> {
        match self.readyz().await {
            Ok(answer) => lacks(&answer),
            Err(error) => vec![format!("the worker does not answer ({})", error.without_url())],
        }
    }

    async fn readyz(&self) -> reqwest::Result<Value> {
        self.http.get(format!("{}/readyz", self.worker)).send().await?.json().await
    }

    /// As the API shows it; `None`: it does not.
    async fn submitter(&self, address: &str) -> Option<Value> {
        let all = tokio::time::timeout(TIMEOUT, self.api.submitters()).await.ok()?.ok()?;
        all.into_iter().find(|item| cell(&item["address"]).eq_ignore_ascii_case(address))
    }

    /// Why the submitter is in PROTECT, if it is.
    pub(super) async fn protected(&self, address: &str) -> Option<String> {
        let item = self.submitter(address).await?;
        item["protectReason"].as_str().map(str::to_owned)
    }

    /// One line about a transaction that stands still.
    pub(super) async fn of_transaction(&self, tx_id: &str, submitter: &str) -> String {
        let mut parts = Vec::new();
        match tokio::time::timeout(TIMEOUT, self.api.transaction(tx_id)).await {
            Ok(Ok(answer)) => parts.push(format!("the transaction is {}", state_of(&answer))),
            Ok(Err(error)) => parts.push(format!("{error:#}")),
            Err(_) => parts.push("the API does not answer".to_owned()),
        }
        parts.extend(self.submitter(submitter).await.as_ref().and_then(submitter_waits));
        let lacks = self.worker_lacks().await;
        match lacks.is_empty() {
            true => parts.push("the worker reports no problem".to_owned()),
            false => parts.push(format!("the worker reports: {}", lacks.join(", "))),
        }
        parts.join("; ")
    }
}

/// The lists of the worker's `/readyz`.
fn lacks(answer: &Value) -> Vec<String> {
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

/// What of its submitter may keep a transaction waiting.
fn submitter_waits(item: &Value) -> Option<String> {
    let state = cell(&item["state"]);
    if state != "ACTIVE" {
        let why = ["protectReason", "pausedReason"].into_iter().find_map(|field| item[field].as_str());
        return Some(format!("its submitter is {state}: {}", why.unwrap_or("no reason was given")));
    }
    let (queued, in_flight) = (item["queueDepth"].as_u64()?, item["inFlight"].as_u64()?);
    (queued + in_flight > 1)
        .then(|| format!("its submitter has {queued} transactions queued and {in_flight} on their way"))
}

/// Does `work` and says so when it takes long.
pub(super) async fn saying<T>(what: &str, work: impl Future<Output = T>) -> T {
    let mut stall = Stall::new(Instant::now());
    let security_warnings = async {
        loop {
            tokio::time::sleep(POLL).await;
            if let Some(seconds) = stall.due(Instant::now(), what) {
                say(&format!("{what}, for {seconds} s now"));
            }
        }
    };
    tokio::select! {
        done = work => done,
        () = security_warnings => unreachable!("it never ends"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_transaction_tells_state_and_error() {
        assert_eq!(state_of(&json!({ "state": "QUEUED", "subState": null })), "QUEUED");
        let answer = json!({ "state": "QUEUED", "subState": "waiting_node", "lastError": "refused",
            "error": { "code": "node_unreachable", "message": "refused" } });
        assert_eq!(state_of(&answer), "QUEUED (waiting_node), node_unreachable: refused");
    }

    #[test]
    fn a_submitter_is_named_only_when_it_is_the_reason() {
        let item = |state: &str, queued: u64| json!({ "state": state, "queueDepth": queued, "inFlight": 1, "protectReason": "used" });
        assert_eq!(submitter_waits(&item("ACTIVE", 0)), None);
        assert!(submitter_waits(&item("ACTIVE", 2)).unwrap().contains("2 transactions queued and 1 on"));
        assert_eq!(submitter_waits(&item("PROTECT", 0)).unwrap(), "its submitter is PROTECT: used");
    }

    #[test]
    fn both_lists_of_the_worker_are_told() {
        let answer =
            json!({ "ready": false, "missing": ["chain local: reset"], "signerProblems": ["keys: closed"] });
        assert_eq!(lacks(&answer), ["chain local: reset", "keys: closed"]);
        assert!(lacks(&json!({ "ready": true, "missing": [], "signerProblems": [] })).is_empty());
    }
}
