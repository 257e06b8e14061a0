//! `gapless watch`: polls a transaction until it is final and prints each change.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use gapless_domain::TxState;
use serde_json::Value;

use super::{revert, waiting};
use crate::api::{Api, is_refusal};
use crate::output;

const POLL: Duration = Duration::from_millis(400);

pub async fn run(api: &Api, tx_id: &str, json: bool) -> Result<ExitCode> {
    let begun = Instant::now();
    let last = follow(api, tx_id, |answer| {
        if json {
            output::json(answer);
        } else {
            output::line(format!("{:7.1}s  {}", begun.elapsed().as_secs_f64(), describe(answer)));
            revert::lines(&answer["error"]["revert"]).iter().for_each(output::line);
            deployed(answer).iter().for_each(output::line);
        }
    })
    .await?;
    Ok(if last == TxState::Confirmed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Calls `changed` with the first response and with each one that differs from the previous, until the state is final.
/// Retries while the API is unreachable, because the transaction continues without it.
pub async fn follow(api: &Api, tx_id: &str, mut changed: impl FnMut(&Value)) -> Result<TxState> {
    let mut shown = String::new();
    let mut away = false;
    loop {
        match api.transaction(tx_id).await {
            Ok(answer) => {
                away = false;
                let state =
                    answer["state"].as_str().context("the response has no state")?.parse::<TxState>()?;
                let now = describe(&answer);
                if now != shown {
                    changed(&answer);
                    shown = now;
                }
                if state.is_terminal() {
                    return Ok(state);
                }
            }
            Err(error) if is_refusal(&error) => return Err(error),
            Err(error) => {
                if !std::mem::replace(&mut away, true) {
                    output::say(&format!("{error:#}; retrying"));
                }
            }
        }
        tokio::time::sleep(POLL).await;
    }
}

/// The address of a deployed contract, once the deployment is final. A reverted one has no contract.
fn deployed(answer: &Value) -> Option<String> {
    let receipt = &answer["receipt"];
    let address = receipt["contractAddress"].as_str()?;
    (answer["state"] == "CONFIRMED" && receipt["succeeded"] == true).then(|| format!("contract  {address}"))
}

/// `TRACKING  2/3 confirmations  0xhash`, and the reason if it waits for something that is not the normal course.
pub fn describe(answer: &Value) -> String {
    let mut parts = vec![output::cell(&answer["state"])];
    if let Some(sub_state) = answer["subState"].as_str() {
        parts.push(format!("({sub_state})"));
    }
    match (answer["confirmations"].as_u64(), answer["confirmationsRequired"].as_u64()) {
        // Confirmations may exceed the required number.
        (Some(have), Some(need)) => parts.push(format!("{}/{need} confirmations", have.min(need))),
        (Some(have), None) => parts.push(format!("{have} confirmations")),
        (None, _) => {}
    }
    parts.extend(answer["txHash"].as_str().map(str::to_owned));
    let problem = waiting::problem(&answer["waiting"]);
    // The problem usually contains the error.
    let error = answer["lastError"].as_str();
    let error = error.filter(|error| !problem.as_ref().is_some_and(|problem| problem.contains(error)));
    parts.extend(error.map(str::to_owned));
    parts.extend(problem.map(|problem| format!("waiting: {problem}")));
    parts.extend(waiting::pending(&answer["pendingRequests"]).map(|pending| format!("pending: {pending}")));
    parts.join("  ")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn progress_reads_as_one_line() {
        let answer =
            json!({ "state": "TRACKING", "confirmations": 2, "confirmationsRequired": 3, "txHash": "0xab" });
        assert_eq!(describe(&answer), "TRACKING  2/3 confirmations  0xab");
        let answer =
            json!({ "state": "TRACKING", "confirmations": 2, "finalityTag": "safe", "txHash": "0xab" });
        assert_eq!(describe(&answer), "TRACKING  2 confirmations  0xab");
        let answer = json!({ "state": "QUEUED", "subState": "waiting_funds", "txHash": null });
        assert_eq!(describe(&answer), "QUEUED  (waiting_funds)");
        let waiting =
            json!({ "reason": "paused", "since": "t", "message": "The submitter is paused (audit)." });
        let answer = json!({ "state": "QUEUED", "waiting": waiting, "lastError": "audit",
            "pendingRequests": [{ "kind": "cancel", "since": "t1" }] });
        assert_eq!(
            describe(&answer),
            "QUEUED  waiting: paused: The submitter is paused (audit).  pending: cancel since t1"
        );
        let waiting = json!({ "reason": "block", "since": "t", "message": "It was sent." });
        assert_eq!(describe(&json!({ "state": "SUBMITTED", "waiting": waiting })), "SUBMITTED");
    }

    #[test]
    fn the_address_of_a_contract_is_shown_once_it_is_final() {
        let answer = |state: &str, succeeded: bool| {
            let receipt = json!({ "contractAddress": "0xcc", "succeeded": succeeded });
            json!({ "state": state, "receipt": receipt })
        };
        assert_eq!(deployed(&answer("CONFIRMED", true)).as_deref(), Some("contract  0xcc"));
        assert_eq!(deployed(&answer("TRACKING", true)), None);
        assert_eq!(deployed(&answer("FAILED", false)), None);
        assert_eq!(deployed(&json!({ "state": "CONFIRMED", "receipt": { "succeeded": true } })), None);
    }
}
