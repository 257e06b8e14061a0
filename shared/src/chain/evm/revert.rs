//! How an execution failed: from a node's error to the bytes it returned, wherever the node put them.

use serde_json::Value;

use super::wire::{ErrorObject, storable};
use crate::chain::classify::{ErrorPatterns, SubmitClass, classify};
use crate::domain::{Failure, RevertData};

/// The failure of an execution, or `None` when the error is about something else than execution.
pub(super) fn failure(error: &ErrorObject) -> Option<Failure> {
    // Geth's code for a revert, and the code of nodes that follow Parity. zkSync gives it to every error: where nothing was
    // returned, words that are known for something else are about that.
    let is_known =
        || classify(error.code, &error.message, None, &ErrorPatterns::default()) != SubmitClass::Unknown;
    let by_code = matches!(error.code, 3 | -32015) && (has_bytes(error) || !is_known());
    if !by_code && !is_execution_failure(&error.message) {
        return None;
    }
    let (revert, text) = (revert(error), lower(error));
    // A contract that reverts may say anything, these words too.
    let out_of_gas = revert.is_none() && (text.contains("out of gas") || text.contains("outofgas"));
    Some(Failure { revert, message: storable(&error.message), out_of_gas })
}

fn has_bytes(error: &ErrorObject) -> bool {
    let returned = error.data.as_ref().and_then(|data| returned_bytes(data, 0));
    returned.or_else(|| bytes_in_text(&error.message)).is_some_and(|bytes| !bytes.is_empty())
}

/// `None` if it did not revert but broke off: then it returned nothing.
fn revert(error: &ErrorObject) -> Option<RevertData> {
    let returned = error.data.as_ref().and_then(|data| returned_bytes(data, 0));
    match returned.or_else(|| bytes_in_text(&error.message)) {
        Some(bytes) if !bytes.is_empty() => Some(RevertData::new(&bytes)),
        _ if error.code == 3 || lower(error).contains("revert") => {
            Some(RevertData::of_words(reason_in_text(&error.message)))
        }
        _ => None,
    }
}

/// All that the node said.
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

/// Nodes put the returned bytes into `data` as hex, after a word (`Reverted 0x…`), or a level or two deeper.
fn returned_bytes(data: &Value, depth: usize) -> Option<Vec<u8>> {
    match data {
        Value::String(text) => leading_hex(&text[text.rfind("0x")?..]),
        Value::Object(members) if depth < 3 => {
            let named = ["data", "originalError", "result", "output", "return", "error", "cause"];
            let inside = |inner: &Value| returned_bytes(inner, depth + 1);
            // Older Ganache names the member by the hash of the transaction.
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

/// Where a node only tells of the bytes in its message. Other hex there is an address or a hash.
fn bytes_in_text(message: &str) -> Option<Vec<u8>> {
    let announced = [
        "return data: 0x",
        "custom error 0x",
        "custom error: 0x",
        "reverted 0x",
        "reverted: 0x",
        "revert 0x",
        "output: 0x",
    ];
    let text = message.to_lowercase();
    announced.iter().find_map(|words| leading_hex(&text[text.find(words)? + words.len() - 2..]))
}

/// The bytes of `0x…` up to the first character that is no hex digit.
fn leading_hex(text: &str) -> Option<Vec<u8>> {
    let digits = text.strip_prefix("0x")?;
    let end = digits.find(|c: char| !c.is_ascii_hexdigit()).unwrap_or(digits.len());
    hex::decode(&digits[..end]).ok()
}

/// The reason as a node words it that shows no bytes.
fn reason_in_text(message: &str) -> Option<String> {
    let quoted = message.split_once("reason string '").and_then(|(_, rest)| rest.rsplit_once('\''));
    let plain = || {
        ["execution reverted: ", "Execution reverted: ", "transaction: revert ", "revert: ", "Reverted: "]
            .iter()
            .find_map(|words| message.split_once(words))
            .map(|(_, rest)| rest)
    };
    let reason = quoted.map(|(reason, _)| reason).or_else(plain)?.trim();
    (!reason.is_empty()).then(|| storable(reason))
}

#[cfg(test)]
#[path = "revert_tests.rs"]
mod tests;
