//! Extracts execution failures and revert data from a node's error, in all formats that nodes use.

use serde_json::Value;

use super::wire::{ErrorObject, storable};
use crate::classify::{ErrorPatterns, SubmitClass, classify};
use gapless_domain::{Failure, RevertData};

/// The failure of an execution, or `None` if the error is not about execution.
pub(super) fn failure(error: &ErrorObject) -> Option<Failure> {
    // 3 is geth's code for a revert, -32015 that of Parity and its successors. zkSync uses 3 for every error, so
    // without returned bytes a message with another known class is not a revert.
    let is_known =
        || classify(error.code, &error.message, None, &ErrorPatterns::default()) != SubmitClass::Unknown;
    let by_code = matches!(error.code, 3 | -32015) && (has_bytes(error) || !is_known());
    if !by_code && !is_execution_failure(&error.message) {
        return None;
    }
    let (revert, text) = (revert(error), lower(error));
    // A revert reason may contain the same text.
    let out_of_gas = revert.is_none() && (text.contains("out of gas") || text.contains("outofgas"));
    Some(Failure { revert, message: storable(&error.message), out_of_gas })
}

fn has_bytes(error: &ErrorObject) -> bool {
    let returned = error.data.as_ref().and_then(|data| returned_bytes(data, 0));
    returned.or_else(|| bytes_in_text(&error.message)).is_some_and(|bytes| !bytes.is_empty())
}

/// `None` if execution was aborted instead of reverted: then there is no revert data.
fn revert(error: &ErrorObject) -> Option<RevertData> {
    let returned = error.data.as_ref().and_then(|data| returned_bytes(data, 0));
    match returned.or_else(|| bytes_in_text(&error.message)) {
        Some(bytes) if !bytes.is_empty() => Some(RevertData::new(&bytes)),
        _ if error.code == 3 || lower(error).contains("revert") => {
            Some(RevertData::from_reason(reason_in_text(&error.message)))
        }
        _ => None,
    }
}

/// Message and data in lower case.
fn lower(error: &ErrorObject) -> String {
    format!("{} {}", error.message, error.data_text().unwrap_or_default()).to_lowercase()
}

fn is_execution_failure(message: &str) -> bool {
    let text = message.to_lowercase();
    [
        "revert",
        "vm execution error",
        "evm error",
        "invalid opcode",
        "out of gas",
        "stack underflow",
        "stack limit reached",
        "bad jump",
        "invalid jump destination",
        "max code size exceeded",
        "invalid code: must not begin with",
        "contract address collision",
        "write protection",
        "return data out of bounds",
        "max call depth exceeded",
    ]
    .iter()
    .any(|wording| text.contains(wording))
}

/// Nodes put the returned bytes into `data` as hex, after a word (`Reverted 0x…`), or in nested objects.
fn returned_bytes(data: &Value, depth: usize) -> Option<Vec<u8>> {
    match data {
        Value::String(text) => leading_hex(&text[text.rfind("0x")?..]),
        Value::Object(members) if depth < 3 => {
            let named = ["data", "originalError", "result", "output", "return", "error", "cause"];
            let inside = |inner: &Value| returned_bytes(inner, depth + 1);
            // Older Ganache uses the transaction hash as the member name.
            let by_hash = || members.iter().find(|(name, _)| name.starts_with("0x")).map(|(_, inner)| inner);
            named
                .iter()
                .filter_map(|name| members.get(*name))
                .find_map(inside)
                .or_else(|| by_hash().and_then(inside))
        }
        _ => None,
    }
}

/// Bytes that are only in the message. Other hex in the message is an address or a hash.
fn bytes_in_text(message: &str) -> Option<Vec<u8>> {
    let prefixes = [
        "return data: 0x",
        "custom error 0x",
        "custom error: 0x",
        "reverted 0x",
        "reverted: 0x",
        "revert 0x",
        "output: 0x",
    ];
    let text = message.to_lowercase();
    prefixes.iter().find_map(|prefix| leading_hex(&text[text.find(prefix)? + prefix.len() - 2..]))
}

/// The bytes of `0x…` up to the first character that is not a hex digit.
fn leading_hex(text: &str) -> Option<Vec<u8>> {
    let digits = text.strip_prefix("0x")?;
    let end = digits.find(|c: char| !c.is_ascii_hexdigit()).unwrap_or(digits.len());
    hex::decode(&digits[..end]).ok()
}

/// The reason from the message of a node that returns no bytes.
fn reason_in_text(message: &str) -> Option<String> {
    let quoted = message.split_once("reason string '").and_then(|(_, rest)| rest.rsplit_once('\''));
    let plain = || {
        ["execution reverted: ", "Execution reverted: ", "transaction: revert ", "revert: ", "Reverted: "]
            .iter()
            .find_map(|prefix| message.split_once(prefix))
            .map(|(_, rest)| rest)
    };
    let reason = quoted.map(|(reason, _)| reason).or_else(plain)?.trim();
    (!reason.is_empty()).then(|| storable(reason))
}

#[cfg(test)]
#[path = "revert_tests.rs"]
mod tests;
