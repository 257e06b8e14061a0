//! Revert data: stored as raw bytes, decoded when it is read (docs/adr/0015).

use ethers_core::types::{Bytes, U256};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::abi::{Argument, decode_error};
use super::sanitize::storable;

/// More than any hand-written error needs; a contract may return far more.
pub const MAX_STORED_BYTES: usize = 1024;

/// `require` and `revert` with a text, in every Solidity version.
const ERROR: &str = "Error(string text)";
const ERROR_SELECTOR: [u8; 4] = [0x08, 0xc3, 0x79, 0xa0];
/// A check inserted by the compiler.
const PANIC: &str = "Panic(uint256 code)";

/// The stored part of the returned bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RevertData {
    /// At most `MAX_STORED_BYTES`.
    pub data: Bytes,
    /// Number of bytes returned, before truncation.
    pub size: usize,
    /// The reason from the node's message, if the node returned no bytes.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub words: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RevertKind {
    /// `Error(string)`.
    Error,
    /// `Panic(uint256)`.
    Panic,
    /// One of the custom errors given with the request.
    Custom,
    /// No bytes.
    Empty,
    /// Unrecognised bytes.
    Unknown,
}

/// Decoded revert data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Revert {
    pub kind: RevertKind,
    /// The text of an `Error`, or the description of a `Panic` code.
    pub reason: Option<String>,
    pub panic_code: Option<U256>,
    pub name: Option<String>,
    pub signature: Option<String>,
    pub arguments: Vec<Argument>,
}

/// A failed execution as a node reported it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Revert data. Absent if execution was aborted instead of reverted: invalid opcode, out of gas.
    pub revert: Option<RevertData>,
    /// The node's error message.
    pub message: String,
    pub out_of_gas: bool,
}

impl Failure {
    /// One line of text. `errors`: the contract's error signatures from the request.
    pub fn describe(&self, errors: &[String]) -> String {
        let description = self.revert.as_ref().and_then(|revert| revert.describe(errors));
        description.unwrap_or_else(|| self.message.clone())
    }
}

impl RevertData {
    pub fn new(returned: &[u8]) -> RevertData {
        let stored = &returned[..returned.len().min(MAX_STORED_BYTES)];
        RevertData { data: stored.to_vec().into(), size: returned.len(), words: None }
    }

    /// A revert for which a node reported the reason as text, without the bytes.
    pub fn from_reason(reason: Option<String>) -> RevertData {
        RevertData { words: reason, ..RevertData::default() }
    }

    pub fn is_cut(&self) -> bool {
        self.size > self.data.len()
    }

    /// `errors`: the contract's error signatures from the request.
    pub fn decode(&self, errors: &[String]) -> Revert {
        if self.data.is_empty() {
            let kind = if self.words.is_some() { RevertKind::Error } else { RevertKind::Empty };
            return Revert { reason: self.words.clone(), ..Revert::of(kind) };
        }
        self.error()
            .or_else(|| self.panic())
            .or_else(|| self.custom(errors))
            .unwrap_or_else(|| Revert::of(RevertKind::Unknown))
    }

    fn error(&self) -> Option<Revert> {
        let text = match decode_error(&[ERROR.to_owned()], &self.data) {
            Some(found) => found.arguments.first()?.value.as_str()?.to_owned(),
            None if self.is_cut() => self.truncated_text()?,
            None => return None,
        };
        Some(Revert { reason: Some(storable(&text)), ..Revert::of(RevertKind::Error) })
    }

    /// The stored beginning of an `Error(string)` text that was truncated.
    fn truncated_text(&self) -> Option<String> {
        // Selector, offset and length; the offset of the only argument is 32.
        let (head, text) = self.data.split_at_checked(4 + 64)?;
        let is_error = head.starts_with(&ERROR_SELECTOR) && U256::from_big_endian(&head[4..36]) == 32.into();
        is_error.then(|| format!("{}…", String::from_utf8_lossy(text).trim_end_matches('\u{fffd}')))
    }

    fn panic(&self) -> Option<Revert> {
        let found = decode_error(&[PANIC.to_owned()], &self.data)?;
        let code = U256::from_dec_str(found.arguments.first()?.value.as_str()?).ok()?;
        let reason = Some(panic_name(code).to_owned());
        Some(Revert { reason, panic_code: Some(code), ..Revert::of(RevertKind::Panic) })
    }

    fn custom(&self, errors: &[String]) -> Option<Revert> {
        let found = decode_error(errors, &self.data)?;
        Some(Revert {
            name: Some(found.name),
            signature: Some(found.signature),
            arguments: found.arguments,
            ..Revert::of(RevertKind::Custom)
        })
    }

    /// One line of text; `None` if there are neither bytes nor a reason.
    fn describe(&self, errors: &[String]) -> Option<String> {
        let revert = self.decode(errors);
        let text = match (revert.kind, revert.panic_code) {
            (RevertKind::Empty, _) => return None,
            (RevertKind::Panic, Some(code)) => format!("panic: {} ({code:#x})", panic_name(code)),
            (RevertKind::Custom, _) => revert.as_call(),
            (RevertKind::Unknown, _) => {
                let cut = if self.is_cut() { "…" } else { "" };
                format!("unrecognised revert data 0x{}{cut}", hex::encode(&self.data))
            }
            (RevertKind::Error | RevertKind::Panic, _) => revert.reason.unwrap_or_default(),
        };
        Some(storable(&text))
    }
}

impl RevertKind {
    pub fn as_str(self) -> &'static str {
        match self {
            RevertKind::Error => "error",
            RevertKind::Panic => "panic",
            RevertKind::Custom => "custom",
            RevertKind::Empty => "empty",
            RevertKind::Unknown => "unknown",
        }
    }
}

impl Revert {
    fn of(kind: RevertKind) -> Revert {
        Revert { kind, reason: None, panic_code: None, name: None, signature: None, arguments: Vec::new() }
    }

    /// `InsufficientBalance(available: 7, required: 9)`
    fn as_call(&self) -> String {
        let one = |argument: &Argument| {
            let value = match &argument.value {
                // Numbers, addresses and bytes need no quotes; an unquoted string could look like several arguments.
                Value::String(text) if argument.kind != "string" => text.clone(),
                other => other.to_string(),
            };
            if argument.name.is_empty() { value } else { format!("{}: {value}", argument.name) }
        };
        let arguments: Vec<String> = self.arguments.iter().map(one).collect();
        format!("{}({})", self.name.as_deref().unwrap_or_default(), arguments.join(", "))
    }
}

/// Solidity's panic codes.
fn panic_name(code: U256) -> &'static str {
    match u8::try_from(code).unwrap_or(u8::MAX) {
        0x00 => "generic compiler panic",
        0x01 => "assertion failed",
        0x11 => "arithmetic overflow",
        0x12 => "division by zero",
        0x21 => "invalid enum value",
        0x22 => "incorrectly encoded storage byte array",
        0x31 => "pop from an empty array",
        0x32 => "array index out of bounds",
        0x41 => "memory allocation too large",
        0x51 => "call of an uninitialised function pointer",
        _ => "unknown panic code",
    }
}

#[cfg(test)]
#[path = "revert_tests.rs"]
mod tests;
