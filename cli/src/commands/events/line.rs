//! An event as one line: text in columns, or JSON.

use std::io;

use serde_json::{Map, Value};

use crate::output::{self, cell};

/// Members of `data` with a column, or known from the rest of the line.
const SHOWN_ELSEWHERE: [&str; 4] = ["chainId", "submitter", "txId", "requestId"];

/// An error if nobody reads the output any more.
pub(super) fn print(event: &Value, json: bool) -> io::Result<()> {
    output::try_line(if json { event.to_string() } else { text(event) })
}

/// Time, type, submitter, transaction, and what happened.
fn text(event: &Value) -> String {
    let data = &event["data"];
    // Events of webhooks have none.
    let submitter = match data["submitter"].as_str() {
        Some(address) => format!("{}:{}", cell(&data["chainId"]), short(address)),
        None => "-".to_owned(),
    };
    let columns = [
        format!("{:24}", cell(&event["time"])),
        format!("{:19}", cell(&event["type"])),
        // Wide enough for chain ids of five digits.
        format!("{submitter:17}"),
        format!("{:36}", cell(&event["subject"])),
        details(event).join("  "),
    ];
    let text = columns.join("  ");
    // Reasons contain texts of nodes and contracts: they must not break the line or control the terminal.
    text.trim_end().chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// `0x7c17…3196`.
fn short(address: &str) -> String {
    match (address.get(..6), address.get(address.len().saturating_sub(4)..)) {
        (Some(head), Some(tail)) if address.len() == 42 => format!("{head}…{tail}"),
        _ => address.to_owned(),
    }
}

/// `block 7`, `3 confirmations`, `newFork`, … Members that this version does not know come last.
fn details(event: &Value) -> Vec<String> {
    let mut members: Map<String, Value> = event["data"].as_object().cloned().unwrap_or_default();
    let mut parts = Vec::new();
    if event["type"] == "tx.accepted" {
        parts.extend(members.get("requestId").map(|id| format!("request {}", cell(id))));
    }
    for name in SHOWN_ELSEWHERE {
        members.remove(name);
    }
    let blocks = members.remove("blocks");
    match (members.remove("blockNumber"), blocks) {
        (Some(number), _) => parts.push(format!("block {}", cell(&number))),
        (None, Some(blocks)) => parts.push(range(&blocks)),
        (None, None) => {}
    }
    let mut take = |name: &str, show: &dyn Fn(&Value) -> Option<String>| {
        parts.extend(members.remove(name).as_ref().and_then(show));
    };
    take("succeeded", &|value| Some(if *value == true { "succeeded" } else { "reverted" }.to_owned()));
    take("confirmations", &|value| Some(format!("{} confirmations", cell(value))));
    take("newFork", &|value| (*value == true).then(|| "newFork".to_owned()));
    take("waitsFor", &|value| Some(format!("waits for {}", cell(value))));
    take("how", &|value| Some(cell(value)));
    take("count", &|value| Some(format!("{} transactions", cell(value))));
    take("code", &|value| Some(cell(value)));
    take("reason", &|value| Some(cell(value)));
    take("txHash", &|value| Some(cell(value)));
    parts.extend(members.iter().map(|(name, value)| format!("{name} {}", cell(value))));
    parts
}

/// `blocks 7-9`.
fn range(blocks: &Value) -> String {
    let numbers: Vec<u64> =
        blocks.as_array().into_iter().flatten().filter_map(|block| block["number"].as_u64()).collect();
    match (numbers.first(), numbers.last()) {
        (Some(first), Some(last)) if first != last => format!("blocks {first}-{last}"),
        (Some(only), _) => format!("block {only}"),
        (None, _) => "no block".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn event(kind: &str, data: Value) -> Value {
        let mut event = json!({
            "id": "00000000-0000-0000-0000-000000000001",
            "type": kind,
            "time": "2026-11-17T22:13:20.123Z",
            "sequence": "0000000000000000042",
            "data": { "chainId": 31337, "submitter": format!("0x7c17{}3196", "ab".repeat(16)) },
        });
        if kind.starts_with("tx.") {
            event["subject"] = "0190a5c2-0000-7000-8000-000000000000".into();
            event["data"]["txId"] = event["subject"].clone();
            event["data"]["requestId"] = "order-17".into();
        }
        event["data"].as_object_mut().unwrap().extend(data.as_object().unwrap().clone());
        event
    }

    #[test]
    fn an_event_is_one_line_in_columns() {
        let lines = [
            event("tx.accepted", json!({})),
            event("tx.submitted", json!({ "txHash": "0xab" })),
            event("tx.reorged", json!({ "txHash": "0xab", "blockNumber": 7, "newFork": true })),
            event("submitter.unblocked", json!({ "reason": "funded" })),
            json!({
                "type": "webhook.disabled",
                "time": "2026-11-17T22:13:20.123Z",
                "data": { "webhookId": "0190a5c2", "reason": "gone", "lastError": "HTTP 410" },
            }),
        ];
        let expected = "\
2026-11-17T22:13:20.123Z  tx.accepted          31337:0x7c17…3196  0190a5c2-0000-7000-8000-000000000000  request order-17
2026-11-17T22:13:20.123Z  tx.submitted         31337:0x7c17…3196  0190a5c2-0000-7000-8000-000000000000  0xab
2026-11-17T22:13:20.123Z  tx.reorged           31337:0x7c17…3196  0190a5c2-0000-7000-8000-000000000000  block 7  newFork  0xab
2026-11-17T22:13:20.123Z  submitter.unblocked  31337:0x7c17…3196  -                                     funded
2026-11-17T22:13:20.123Z  webhook.disabled     -                  -                                     gone  lastError HTTP 410  webhookId 0190a5c2";
        assert_eq!(lines.each_ref().map(text).join("\n"), expected);
    }

    #[test]
    fn the_details_are_those_of_the_type() {
        let shown = |kind: &str, data: Value| details(&event(kind, data)).join("  ");
        let blocks = json!([{ "number": 7, "hash": "0x1" }, { "number": 8, "hash": "0x2" }]);
        assert_eq!(
            shown("tx.receipt_updated", json!({ "txHash": "0xab", "blockNumber": 7, "succeeded": false })),
            "block 7  reverted  0xab"
        );
        assert_eq!(shown("tx.confirmations", json!({ "blocks": blocks, "newFork": false })), "blocks 7-8");
        assert_eq!(shown("tx.confirmations", json!({ "blocks": [], "newFork": true })), "no block  newFork");
        let confirmed = json!({ "txHash": "0xab", "blockNumber": 7, "confirmations": 2, "blocks": blocks, "newFork": true });
        assert_eq!(shown("tx.confirmed", confirmed), "block 7  2 confirmations  newFork  0xab");
        assert_eq!(
            shown(
                "submitter.blocked",
                json!({ "waitsFor": "funds", "code": "funds", "reason": "too little" })
            ),
            "waits for funds  funds  too little"
        );
        assert_eq!(
            shown("nonce.external", json!({ "how": "displaced", "count": 2 })),
            "displaced  2 transactions"
        );
        assert_eq!(shown("tx.of_a_later_version", json!({ "extra": [1] })), "extra [1]");
    }

    #[test]
    fn a_text_of_a_node_does_not_break_the_line() {
        let line = text(&event("tx.failed", json!({ "code": "reverted", "reason": "a\nb\u{1b}[2Jc" })));
        assert!(line.ends_with("reverted  a b [2Jc"), "{line}");
        assert_eq!(text(&Value::Null).lines().count(), 1);
    }
}
