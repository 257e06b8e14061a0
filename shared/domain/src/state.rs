//! The states of an intent and the transitions between them.
//!
//! The transitions are defined here, in the database (`managed_tx_move_allowed`) and in docs/reference/state-machine.md. A test
//! compares all three.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::tx_error::{ErrorCode, TxError};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum TxState {
    /// Accepted; has no nonce and no signed bytes.
    Queued,
    /// Has a nonce and committed bytes; no node has accepted them yet.
    InFlight,
    /// A node accepted the bytes.
    Submitted,
    /// Mined, waiting for finality.
    Tracking,
    /// Unmined for too long: an alarm. Processing continues.
    Stuck,
    /// An external transaction consumed the nonce. Waits for an operator.
    Protect,
    Confirmed,
    Failed,
    Cancelled,
}

impl TxState {
    pub const ALL: [TxState; 9] = [
        TxState::Queued,
        TxState::InFlight,
        TxState::Submitted,
        TxState::Tracking,
        TxState::Stuck,
        TxState::Protect,
        TxState::Confirmed,
        TxState::Failed,
        TxState::Cancelled,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            TxState::Queued => "QUEUED",
            TxState::InFlight => "IN_FLIGHT",
            TxState::Submitted => "SUBMITTED",
            TxState::Tracking => "TRACKING",
            TxState::Stuck => "STUCK",
            TxState::Protect => "PROTECT",
            TxState::Confirmed => "CONFIRMED",
            TxState::Failed => "FAILED",
            TxState::Cancelled => "CANCELLED",
        }
    }

    pub fn is_terminal(self) -> bool {
        matches!(self, TxState::Confirmed | TxState::Failed | TxState::Cancelled)
    }

    /// Whether an intent in this state has a nonce that is not yet final.
    pub fn is_open(self) -> bool {
        !self.is_terminal() && self != TxState::Queued
    }

    /// Whether the transition is allowed. Staying in a state always is.
    pub fn may_become(self, next: TxState) -> bool {
        use TxState::*;
        self == next
            || matches!(
                (self, next),
                (Queued, InFlight | Failed | Cancelled)
                    | (InFlight, Submitted | Tracking | Stuck | Protect | Confirmed | Failed | Cancelled)
                    | (Submitted, Tracking | Stuck | Protect | Confirmed | Failed | Cancelled)
                    | (Tracking, Submitted | Stuck | Protect | Confirmed | Failed | Cancelled)
                    | (Stuck, Submitted | Tracking | Protect | Confirmed | Failed | Cancelled)
                    // Released by an operator: back to its former state, or displaced to the head of the queue.
                    | (Protect, Submitted | Tracking | Queued)
            )
    }
}

/// How an intent ends if a placeholder consumes its nonce.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ending {
    /// CANCELLED or FAILED.
    pub state: TxState,
    pub code: ErrorCode,
    pub reason: String,
}

impl Ending {
    /// The error of an intent with this ending.
    pub fn error(&self) -> TxError {
        TxError::new(self.code, self.reason.clone())
    }
}

impl fmt::Display for TxState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("`{0}` is not a transaction state")]
pub struct UnknownState(pub String);

impl FromStr for TxState {
    type Err = UnknownState;
    fn from_str(s: &str) -> Result<Self, Self::Err> {
        TxState::ALL.into_iter().find(|state| state.as_str() == s).ok_or_else(|| UnknownState(s.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_state_is_never_left() {
        for from in TxState::ALL.into_iter().filter(|s| s.is_terminal()) {
            for to in TxState::ALL {
                assert_eq!(from.may_become(to), from == to, "{from} -> {to}");
            }
        }
    }

    #[test]
    fn every_state_round_trips() {
        for state in TxState::ALL {
            assert_eq!(state.as_str().parse(), Ok(state));
        }
    }
}
