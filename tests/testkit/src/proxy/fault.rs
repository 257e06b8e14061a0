//! Faults and the rules that select calls for them.

use std::time::Duration;

use ethers_core::types::transaction::eip2718::TypedTransaction;
use ethers_core::types::{Address, Bytes};
use ethers_core::utils::rlp::Rlp;
use serde_json::Value;

pub(super) const SEND: &str = "eth_sendRawTransaction";

/// The fault of a call.
#[derive(Clone, Debug)]
pub enum Fault {
    /// Forwarded; the response is delayed.
    Delay(Duration),
    /// Forwarded; the connection is closed before the response.
    DropAnswer,
    /// Forwarded; the connection is closed in the middle of the response.
    Truncate,
    /// Forwarded; bits of the response are flipped, so that it is not valid UTF-8.
    Corrupt,
    /// Forwarded; one digit of the result is changed, the format stays valid.
    Flip,
    /// Forwarded twice in succession; the second response is returned.
    Twice,
    /// Forwarded; the response has another id.
    WrongId,
    /// Forwarded; the response is replaced by this error.
    ErrorAfter { code: i64, message: String },
    /// Not forwarded; this error.
    Error { code: i64, message: String },
    /// Not forwarded; this result.
    Result(Value),
    /// Not forwarded; an HTTP status with a text.
    Status(u16, String),
    /// Not forwarded; status 200 and a text that is not JSON.
    Html(String),
    /// Not forwarded; status 200 and this text, in which `$id` is the id of the first call.
    Body(String),
    /// Not forwarded; a JSON text of this many bytes, with or without `content-length`.
    Flood { bytes: usize, announced: bool },
    /// Not forwarded; status 200 and these bytes with `content-encoding: gzip`.
    Gzip(Vec<u8>),
    /// Not forwarded; an endless body, one byte at a time.
    Drip,
    /// Not forwarded; a redirect to this URL.
    Redirect(String),
    /// Not forwarded; the connection is closed.
    Close,
    /// Not forwarded; no response, ever.
    Hang,
}

impl Fault {
    pub fn error(message: &str) -> Fault {
        Fault::Error { code: -32000, message: message.into() }
    }

    pub(super) fn is_passed_on(&self) -> bool {
        use Fault::*;
        matches!(
            self,
            Delay(_) | DropAnswer | Truncate | Corrupt | Flip | Twice | WrongId | ErrorAfter { .. }
        )
    }
}

/// Changes the last digit of a hex string; other values are unchanged.
pub(super) fn flip(result: &mut Value) {
    if let Value::String(text) = result
        && let Some(last) = text.pop()
    {
        text.push(if last == '0' { '1' } else { '0' });
    }
}

/// A transaction that was sent through the proxy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sent {
    pub raw: String,
    pub from: Address,
    pub nonce: u64,
}

impl Sent {
    /// `None`: not a signed transaction.
    pub(super) fn read(raw: &str) -> Option<Sent> {
        let bytes: Bytes = raw.parse().ok()?;
        let (signed, _) = TypedTransaction::decode_signed(&Rlp::new(&bytes)).ok()?;
        Some(Sent { raw: raw.to_owned(), from: *signed.from()?, nonce: signed.nonce()?.as_u64() })
    }
}

/// Selects sends of one address, for all nonces or one.
#[derive(Clone, Copy, Debug)]
pub struct SendsOf {
    pub from: Address,
    pub nonce: Option<u64>,
}

#[derive(Debug)]
pub(super) struct Rule {
    pub(super) method: String,
    /// `None`: all calls.
    pub(super) of: Option<SendsOf>,
    pub(super) fault: Fault,
    /// Remaining calls; `None`: unlimited.
    pub(super) left: Option<u32>,
}

impl Rule {
    pub(super) fn catches(&self, method: &str, sent: Option<&Sent>) -> bool {
        let is_meant = |of: SendsOf| {
            sent.is_some_and(|sent| sent.from == of.from && of.nonce.is_none_or(|nonce| nonce == sent.nonce))
        };
        (self.method == method || self.method == "*") && self.of.is_none_or(is_meant)
    }
}
