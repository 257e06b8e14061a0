//! What the proxy is told to do to calls, and to which.

use std::time::Duration;

use ethers_core::types::transaction::eip2718::TypedTransaction;
use ethers_core::types::{Address, Bytes};
use ethers_core::utils::rlp::Rlp;
use serde_json::Value;

pub(super) const SEND: &str = "eth_sendRawTransaction";

/// What happens to a call.
#[derive(Clone, Debug)]
pub enum Fault {
    /// Passed on; the answer comes so much later.
    Delay(Duration),
    /// Passed on; the connection breaks before the answer.
    DropAnswer,
    /// Passed on; the connection breaks in the middle of the answer.
    Truncate,
    /// Passed on; bytes of the answer are flipped, so that it is no text any more.
    Corrupt,
    /// Passed on; one digit of the result is another one, which no format forbids.
    Flip,
    /// Passed on twice, one after the other; answered as the second was.
    Twice,
    /// Passed on; the answer is to another question.
    WrongId,
    /// Passed on; answered with this error all the same.
    ErrorAfter { code: i64, message: String },
    /// Not passed on; answered with this error.
    Error { code: i64, message: String },
    /// Not passed on; answered with this result.
    Result(Value),
    /// Not passed on; an HTTP status with a text.
    Status(u16, String),
    /// Not passed on; 200 and something that is no JSON.
    Html(String),
    /// Not passed on; 200 and this text, in which `$id` is the id of the first call.
    Said(String),
    /// Not passed on; so many bytes of a JSON text that goes on and on, their number said beforehand or not.
    Flood { bytes: usize, announced: bool },
    /// Not passed on; 200 and these bytes, said to be compressed.
    Gzip(Vec<u8>),
    /// Not passed on; a byte now and then, without end.
    Drip,
    /// Not passed on; sent elsewhere, with everything.
    Redirect(String),
    /// Not passed on; the connection breaks.
    Close,
    /// Not passed on; no answer, ever.
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

/// Another digit at the end of a result that is hex text. Anything else stays as it is.
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
    /// `None`: it is no signed transaction.
    pub(super) fn read(raw: &str) -> Option<Sent> {
        let bytes: Bytes = raw.parse().ok()?;
        let (signed, _) = TypedTransaction::decode_signed(&Rlp::new(&bytes)).ok()?;
        Some(Sent { raw: raw.to_owned(), from: *signed.from()?, nonce: signed.nonce()?.as_u64() })
    }
}

/// Sends of one address; all of its nonces, or one.
#[derive(Clone, Copy, Debug)]
pub struct SendsOf {
    pub from: Address,
    pub nonce: Option<u64>,
}

#[derive(Debug)]
pub(super) struct Rule {
    pub(super) method: String,
    /// `None`: whoever asks.
    pub(super) of: Option<SendsOf>,
    pub(super) fault: Fault,
    /// `None`: for ever.
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
