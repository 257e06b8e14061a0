//! What a failed execution returned: bytes, kept as they are, and what they mean, worked out when they are read
//! (docs/adr/0015).

use ethers_core::types::{Bytes, U256};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::abi::{Argument, decode_error};
use super::sanitize::storable;

/// Enough for any error that people wrote; a contract may return a block full.
pub const MAX_KEPT_BYTES: usize = 1024;

/// `require` and `revert` with a text; what every compiler knows.
const ERROR: &str = "Error(string text)";
const ERROR_SELECTOR: [u8; 4] = [0x08, 0xc3, 0x79, 0xa0];
/// A check that the compiler put in.
const PANIC: &str = "Panic(uint256 code)";

/// The bytes of a revert, as far as they are kept.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RevertData {
    /// At most `MAX_KEPT_BYTES`.
    pub data: Bytes,
    /// How many there were.
    pub size: usize,
    /// The reason in the words of a node that showed no bytes.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub words: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RevertKind {
    /// A text.
    Error,
    /// A check of the compiler.
    Panic,
    /// One of the errors that came with the request.
    Custom,
    /// No bytes.
    Empty,
    /// Bytes that are none of these.
    Unknown,
}

/// What the bytes mean.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Revert {
    pub kind: RevertKind,
    /// The text of an error, the meaning of a panic.
    pub reason: Option<String>,
    pub panic_code: Option<U256>,
    pub name: Option<String>,
    pub signature: Option<String>,
    pub arguments: Vec<Argument>,
}

/// An execution that failed, as a node told it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// What it returned. Absent if it did not revert but broke off: a bad instruction, no gas left.
    pub revert: Option<RevertData>,
    /// The node's words.
    pub message: String,
    pub out_of_gas: bool,
}

impl Failure {
    /// In one line. `errors`: those of the contract, as the request gave them.
    pub fn in_words(&self, errors: &[String]) -> String {
        let words = self.revert.as_ref().and_then(|revert| revert.in_words(errors));
        words.unwrap_or_else(|| self.message.clone())
    }
}

impl RevertData {
    pub fn new(returned: &[u8]) -> RevertData {
        let kept = &returned[..returned.len().min(MAX_KEPT_BYTES)];
        RevertData { data: kept.to_vec().into(), size: returned.len(), words: None }
    }

    /// A revert of which a node told the reason and not the bytes.
    pub fn of_words(words: Option<String>) -> RevertData {
        RevertData { words, ..RevertData::default() }
    }

    pub fn is_cut(&self) -> bool {
        self.size > self.data.len()
    }

    /// `errors`: those of the contract, as the request gave them.
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
            None if self.is_cut() => self.beginning_of_text()?,
            None => return None,
        };
        Some(Revert { reason: Some(storable(&text)), ..Revert::of(RevertKind::Error) })
    }

    /// The text of an error that was too long to keep, as far as it was kept.
    fn beginning_of_text(&self) -> Option<String> {
        // Selector, offset and length; the offset of the one argument is 32.
        let (head, text) = self.data.split_at_checked(4 + 64)?;
        let usual = head.starts_with(&ERROR_SELECTOR) && U256::from_big_endian(&head[4..36]) == 32.into();
        usual.then(|| format!("{}…", String::from_utf8_lossy(text).trim_end_matches('\u{fffd}')))
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

    /// In one line; `None` if there are neither bytes nor words.
    fn in_words(&self, errors: &[String]) -> Option<String> {
        let revert = self.decode(errors);
        let words = match (revert.kind, revert.panic_code) {
            (RevertKind::Empty, _) => return None,
            (RevertKind::Panic, Some(code)) => format!("panic: {} ({code:#x})", panic_name(code)),
            (RevertKind::Custom, _) => revert.as_call(),
            (RevertKind::Unknown, _) => {
                let cut = if self.is_cut() { "…" } else { "" };
                format!("unknown error 0x{}{cut}", hex::encode(&self.data))
            }
            (RevertKind::Error | RevertKind::Panic, _) => revert.reason.unwrap_or_default(),
        };
        Some(storable(&words))
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
                // Numbers, addresses and bytes need no quotes; a text might pretend to be more than one argument.
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
        0x00 => "generic panic of the compiler",
        0x01 => "assertion failed",
        0x11 => "arithmetic overflow",
        0x12 => "division by zero",
        0x21 => "invalid enum value",
        0x22 => "badly encoded storage",
        0x31 => "pop from an empty array",
        0x32 => "index out of bounds",
        0x41 => "too much memory",
        0x51 => "call of an empty function",
        _ => "unknown code",
    }
}

#[cfg(test)]
#[path = "revert_tests.rs"]
mod tests;
