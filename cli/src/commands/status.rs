//! `gapless status`: shows one transaction, and with `--attempts` its attempts and state changes.

use std::process::ExitCode;

use anyhow::{Context, Result};
use chrono::Utc;
use serde_json::{Map, Value};

use super::waiting;
use crate::api::Api;
use crate::args::Status;
use crate::output;

/// State, why it waits or failed, hash, block and confirmations, identifiers, times, payload.
const FIELD_ORDER: [&str; 26] = [
    "state",
    "waiting",
    "pendingRequests",
    "subState",
    "error",
    "lastError",
    "mempool",
    "txHash",
    "replacedByHash",
    "receipt",
    "confirmations",
    "confirmationsRequired",
    "finalityTag",
    "confirmationBlocks",
    "newFork",
    "txId",
    "requestId",
    "chainId",
    "submitter",
    "createdAt",
    "updatedAt",
    "lastSubmitAt",
    "submitAttempts",
    "confirmedAt",
    "finishedAt",
    "payload",
];

pub async fn run(api: &Api, args: &Status, json: bool) -> Result<ExitCode> {
    let mut answer = match (&args.tx_id, &args.request_id) {
        (Some(tx_id), _) => api.transaction(tx_id).await?,
        (None, request_id) => {
            let submitter = args.from.as_deref().context("--from is required with --request-id")?;
            let request_id = request_id.as_deref().context("a TX_ID or --request-id is required")?;
            api.transaction_by_request(submitter, request_id, args.chain).await?
        }
    };
    let history = match args.attempts {
        true => {
            let tx_id = answer["txId"].as_str().context("the response has no txId")?;
            Some(api.attempts(tx_id).await?)
        }
        false => None,
    };
    if json {
        for name in ["attempts", "stateChanges"] {
            history.iter().for_each(|history| answer[name] = history[name].clone());
        }
        output::json(&answer);
    } else {
        show(&answer);
        history.iter().for_each(show_history);
    }
    Ok(ExitCode::SUCCESS)
}

fn show(answer: &Value) {
    match answer.as_object() {
        Some(fields) => output::fields(&FIELD_ORDER, &readable(fields)),
        None => output::json(answer),
    }
}

/// With the reason to wait, and pending requests, as one line each.
fn readable(fields: &Map<String, Value>) -> Map<String, Value> {
    let mut fields = fields.clone();
    let lines = [
        ("waiting", fields.get("waiting").and_then(|waiting| waiting::line(waiting, Utc::now()))),
        ("pendingRequests", fields.get("pendingRequests").and_then(waiting::pending)),
    ];
    fields.extend(lines.into_iter().filter_map(|(name, line)| Some((name.to_owned(), line?.into()))));
    fields
}

fn show_history(history: &Value) {
    output::line("");
    output::table(
        &[
            "#",
            "KIND",
            "HASH",
            "NONCE",
            "FEE",
            "COMMITTED",
            "FIRST SENT",
            "LAST SENT",
            "SENDS",
            "LAST ANSWER",
        ],
        &rows(&history["attempts"], attempt_cells),
    );
    output::line("");
    output::table(
        &["AT", "STATE"],
        &rows(&history["stateChanges"], |change| {
            ["at", "state"].map(|name| output::cell(&change[name])).into()
        }),
    );
}

fn rows(list: &Value, cells: impl Fn(&Value) -> Vec<String>) -> Vec<Vec<String>> {
    list.as_array().into_iter().flatten().map(cells).collect()
}

fn attempt_cells(attempt: &Value) -> Vec<String> {
    let cell = |name: &str| output::cell(&attempt[name]);
    let fee = match attempt["gasPrice"].as_str() {
        Some(price) => price.to_owned(),
        None => format!("{}/{}", cell("maxFeePerGas"), cell("maxPriorityFeePerGas")),
    };
    let mut answer = vec![cell("lastAnswerClass")];
    answer.extend(attempt["lastAnswer"].as_str().map(str::to_owned));
    answer.extend((attempt["mined"] == true).then(|| "(mined)".to_owned()));
    answer.extend(attempt["displacedAt"].as_str().map(|at| format!("(displaced {at})")));
    let mut cells: Vec<String> = ["ordinal", "kind", "txHash", "nonce"].map(cell).into();
    cells.push(fee);
    cells.extend(["committedAt", "firstSentAt", "lastSentAt", "sends"].map(cell));
    cells.push(answer.join(" "));
    cells
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_attempt_is_one_line() {
        let attempt = json!({
            "ordinal": 2, "kind": "REPLACEMENT", "txHash": "0xab", "maxFeePerGas": "9", "maxPriorityFeePerGas": "2",
            "committedAt": "t1", "firstSentAt": "t2", "lastSentAt": "t3", "sends": 4,
            "lastAnswerClass": "underpriced", "lastAnswer": "too cheap", "mined": true
        });
        assert_eq!(
            attempt_cells(&attempt),
            ["2", "REPLACEMENT", "0xab", "-", "9/2", "t1", "t2", "t3", "4", "underpriced too cheap (mined)"]
        );
    }
}
