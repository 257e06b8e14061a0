//! `gapless status`: one transaction as it is now, and with `--attempts` how it came to be so.

use std::process::ExitCode;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::api::Api;
use crate::args::Status;
use crate::output;

pub async fn run(api: &Api, args: &Status, json: bool) -> Result<ExitCode> {
    let mut answer = match (&args.tx_id, &args.request_id) {
        (Some(tx_id), _) => api.transaction(tx_id).await?,
        (None, request_id) => {
            let submitter = args.from.as_deref().context("--from is needed with --request-id")?;
            let request_id = request_id.as_deref().context("a txId or --request-id is needed")?;
            api.transaction_by_request(submitter, request_id, args.chain).await?
        }
    };
    let history = match args.attempts {
        true => {
            let tx_id = answer["txId"].as_str().context("the answer has no txId")?;
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

/// Every field the API gives, in its order; nested ones as they are.
fn show(answer: &Value) {
    let Some(fields) = answer.as_object() else { return output::json(answer) };
    let width = fields.keys().map(String::len).max().unwrap_or(0);
    for (name, value) in fields.iter().filter(|(_, value)| !value.is_null()) {
        output::line(format!("{name:width$}  {}", output::cell(value)));
    }
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
    // What was mined needs no other word; the node's words say more than their class.
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
