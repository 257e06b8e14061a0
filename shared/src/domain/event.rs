//! What happened to an intent, told to the outside in terms that never mention a nonce.

use ethers_core::types::H256;
use serde::Serialize;

use super::finality::Confirmation;
use super::ids::{SubmitterKey, TxId};
use super::state::TxState;
use super::tx_error::{ErrorCode, TxError};

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "type", rename_all_fields = "camelCase")]
pub enum EventKind {
    #[serde(rename = "tx.accepted")]
    Accepted,
    #[serde(rename = "tx.submitted")]
    Submitted { tx_hash: H256 },
    #[serde(rename = "tx.receipt_updated")]
    ReceiptUpdated { tx_hash: H256, block_number: u64, succeeded: bool },
    #[serde(rename = "tx.reorged")]
    Reorged { tx_hash: H256, block_number: u64, new_fork: bool },
    /// The blocks that confirm it: all of them if `new_fork` (replace what you have), else those that came on top (append).
    #[serde(rename = "tx.confirmations")]
    Confirmations { blocks: Vec<Confirmation>, new_fork: bool },
    /// Final. `confirmations` blocks were counted; `blocks` lists them from the first on, whole, so that `new_fork` is true
    /// (replace what you have).
    #[serde(rename = "tx.confirmed")]
    Confirmed {
        tx_hash: H256,
        block_number: u64,
        confirmations: u64,
        blocks: Vec<Confirmation>,
        new_fork: bool,
    },
    #[serde(rename = "tx.failed")]
    Failed { code: ErrorCode, reason: String },
    #[serde(rename = "tx.cancelled")]
    Cancelled { code: ErrorCode, reason: String },
    #[serde(rename = "tx.stuck")]
    Stuck { code: ErrorCode, reason: String },
    /// The key was used elsewhere. `tx_hash` names the transaction that took one of our nonces, where it was one of those.
    #[serde(rename = "submitter.protected")]
    Protected {
        reason: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        tx_hash: Option<H256>,
    },
    /// A nonce is consumed, and no node shows by what. No new nonces until that is explained.
    #[serde(rename = "submitter.suspect")]
    Suspect { reason: String },
    /// It is explained.
    #[serde(rename = "submitter.suspect_cleared")]
    SuspectCleared { reason: String },
    /// The head of the queue gets no nonce. `waits_for`: funds, fee, node or signer.
    #[serde(rename = "submitter.blocked")]
    Blocked { waits_for: &'static str, code: ErrorCode, reason: String },
    /// The head that was blocked has its nonce, or has ended.
    #[serde(rename = "submitter.unblocked")]
    Unblocked { reason: String },
    #[serde(rename = "submitter.released")]
    Released { reason: String },
    /// Transactions of others on a shared key: `stepped_over`, or `displaced` if an intent had to make way for it.
    #[serde(rename = "nonce.external")]
    External { how: &'static str, count: u64 },
}

impl EventKind {
    /// An intent ended without its effect.
    pub fn ended(state: TxState, error: &TxError) -> EventKind {
        let (code, reason) = (error.code, error.message.clone());
        match state {
            TxState::Cancelled => EventKind::Cancelled { code, reason },
            _ => EventKind::Failed { code, reason },
        }
    }

    pub fn name(&self) -> &'static str {
        match self {
            EventKind::Accepted => "tx.accepted",
            EventKind::Submitted { .. } => "tx.submitted",
            EventKind::ReceiptUpdated { .. } => "tx.receipt_updated",
            EventKind::Reorged { .. } => "tx.reorged",
            EventKind::Confirmations { .. } => "tx.confirmations",
            EventKind::Confirmed { .. } => "tx.confirmed",
            EventKind::Failed { .. } => "tx.failed",
            EventKind::Cancelled { .. } => "tx.cancelled",
            EventKind::Stuck { .. } => "tx.stuck",
            EventKind::Protected { .. } => "submitter.protected",
            EventKind::Suspect { .. } => "submitter.suspect",
            EventKind::SuspectCleared { .. } => "submitter.suspect_cleared",
            EventKind::Blocked { .. } => "submitter.blocked",
            EventKind::Unblocked { .. } => "submitter.unblocked",
            EventKind::Released { .. } => "submitter.released",
            EventKind::External { .. } => "nonce.external",
        }
    }
}

impl EventKind {
    /// Puts later news of confirmations into earlier ones that nobody was told yet: one event instead of two. False: it is
    /// not of that kind, and stays an event of its own.
    pub fn absorb(&mut self, later: &EventKind) -> bool {
        let (
            EventKind::Confirmations { blocks, new_fork },
            EventKind::Confirmations { blocks: later, new_fork: replaces },
        ) = (self, later)
        else {
            return false;
        };
        if *replaces {
            blocks.clear();
            *new_fork = true;
        }
        blocks.extend(later);
        true
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    pub submitter: SubmitterKey,
    /// Absent for events of a submitter as a whole.
    pub tx_id: Option<TxId>,
    pub kind: EventKind,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn news(numbers: &[u64], new_fork: bool) -> EventKind {
        let block = |number: &u64| Confirmation { number: *number, hash: H256::from_low_u64_be(*number) };
        EventKind::Confirmations { blocks: numbers.iter().map(block).collect(), new_fork }
    }

    #[test]
    fn untold_confirmations_are_told_together() {
        let mut first = news(&[1, 2], true);
        assert!(first.absorb(&news(&[3], false)));
        assert_eq!(first, news(&[1, 2, 3], true));
        let mut growth = news(&[3], false);
        assert!(growth.absorb(&news(&[4], false)));
        assert_eq!(growth, news(&[3, 4], false));
        assert!(growth.absorb(&news(&[2, 3], true)));
        assert_eq!(growth, news(&[2, 3], true));
        assert!(!growth.absorb(&EventKind::Accepted));
    }

    #[test]
    fn an_end_is_told_with_its_code() {
        let error = TxError::new(ErrorCode::DeadlinePassed, "too late");
        let json = serde_json::to_value(EventKind::ended(TxState::Cancelled, &error)).unwrap();
        assert_eq!(
            json,
            serde_json::json!({ "type": "tx.cancelled", "code": "deadline_passed", "reason": "too late" })
        );
        assert_eq!(EventKind::ended(TxState::Failed, &error).name(), "tx.failed");
    }

    #[test]
    fn confirmations_have_the_shape_that_is_documented() {
        let json = serde_json::to_value(news(&[1], true)).unwrap();
        let hash = format!("{:#x}", H256::from_low_u64_be(1));
        let blocks = serde_json::json!([{ "number": 1, "hash": hash }]);
        assert_eq!(
            json,
            serde_json::json!({ "type": "tx.confirmations", "blocks": blocks, "newFork": true })
        );
    }
}
