//! Reserved nonces: a nonce reserved for a client outside the worker, and how that client may use it.

use std::fmt;
use std::str::FromStr;

use ethers_core::types::{Bytes, H256};
use sha2::{Digest, Sha256};

use super::payload::{InvalidIntent, Payload};

/// The state of a reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReservationState {
    /// Waits for its nonce, or ended without one.
    Requested,
    /// Granted: the reserving client may answer. The placeholder is recorded and not sent.
    Reserved,
    /// The reserving client's transaction is recorded and is being sent.
    Used,
    /// Released: the placeholder consumes the nonce. It is not granted again.
    Recyclable,
}

impl ReservationState {
    pub fn as_str(self) -> &'static str {
        match self {
            ReservationState::Requested => "REQUESTED",
            ReservationState::Reserved => "RESERVED",
            ReservationState::Used => "USED",
            ReservationState::Recyclable => "RECYCLABLE",
        }
    }
}

impl fmt::Display for ReservationState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for ReservationState {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "REQUESTED" => Ok(ReservationState::Requested),
            "RESERVED" => Ok(ReservationState::Reserved),
            "USED" => Ok(ReservationState::Used),
            "RECYCLABLE" => Ok(ReservationState::Recyclable),
            other => Err(format!("`{other}` is not a reservation state")),
        }
    }
}

/// How the nonce was reserved: with `with_nonce`, which handles the whole reservation, or with the low-level calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Via {
    WithNonce,
    LowLevel,
}

impl Via {
    pub fn as_str(self) -> &'static str {
        match self {
            Via::WithNonce => "with_nonce",
            Via::LowLevel => "low_level",
        }
    }
}

/// The reserving client's answer for its nonce.
#[derive(Clone, PartialEq, Eq)]
pub enum Answer {
    /// A transaction for the nonce; the worker prices and signs it.
    Unsigned(Box<Payload>),
    /// A transaction signed by the reserving client. Validated before it is recorded.
    Signed(Bytes),
    /// Release the nonce, with the reason.
    GaveUp(String),
}

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // Payloads and signed bytes must not be logged.
            Answer::Unsigned(_) => f.write_str("Unsigned"),
            Answer::Signed(_) => f.write_str("Signed"),
            Answer::GaveUp(reason) => f.debug_tuple("GaveUp").field(reason).finish(),
        }
    }
}

/// Stored instead of a payload hash, because a reservation has no payload yet. A repeated `requestId` returns the same
/// reservation; the `requestId` of an ordinary request is a conflict.
pub fn reservation_hash() -> H256 {
    H256::from_slice(&Sha256::digest("gapless: a nonce was reserved"))
}

/// A transaction for a granted nonce cannot be delayed.
pub fn check_answer(payload: &Payload) -> Result<(), InvalidIntent> {
    match payload.not_before {
        Some(_) => Err(InvalidIntent::new("payload.notBefore", "cannot be set for a reserved nonce")),
        None => Ok(()),
    }
}
