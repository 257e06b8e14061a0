//! A nonce that is held for code outside of the worker, and what that code may answer.

use std::fmt;
use std::str::FromStr;

use ethers_core::types::{Bytes, H256};
use sha2::{Digest, Sha256};

use super::payload::{InvalidIntent, Payload};

/// Where a reservation stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReservationState {
    /// Waits for its nonce, or ended without one.
    Requested,
    /// Held: the caller may answer. Its placeholder is recorded and has not been sent.
    Reserved,
    /// The caller's transaction is recorded, and is sent.
    Used,
    /// Given up: the placeholder consumes the nonce. Nobody gets it again.
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
            other => Err(format!("`{other}` is not a state of a reservation")),
        }
    }
}

/// Who asks for nonces: code that has the rest done for it, or code that does it by itself.
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

/// What a caller says about the nonce it holds.
#[derive(Clone, PartialEq, Eq)]
pub enum Answer {
    /// This shall happen at the nonce; the worker prices and signs it.
    Unsigned(Box<Payload>),
    /// The same, signed by the caller. Checked before it counts.
    Signed(Bytes),
    /// Nothing shall happen: the reason.
    GaveUp(String),
}

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // Neither payloads nor signed bytes belong into a log.
            Answer::Unsigned(_) => f.write_str("Unsigned"),
            Answer::Signed(_) => f.write_str("Signed"),
            Answer::GaveUp(reason) => f.debug_tuple("GaveUp").field(reason).finish(),
        }
    }
}

/// Stands where the hash of a payload stands: whoever asks for a reservation does not know the payload yet. A repeated
/// `requestId` is the same reservation; that of an ordinary request is a conflict.
pub fn reservation_hash() -> H256 {
    H256::from_slice(&Sha256::digest("gapless: a nonce was reserved"))
}

/// What is asked for at a nonce that is given already cannot wait for a time of its own.
pub fn check_answer(payload: &Payload) -> Result<(), InvalidIntent> {
    match payload.not_before {
        Some(_) => Err(InvalidIntent::new("payload.notBefore", "the nonce is given: it cannot wait")),
        None => Ok(()),
    }
}
