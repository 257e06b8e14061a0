//! Events published about intents and submitters. They never contain a nonce.

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
    /// The confirming blocks: the full list if `new_fork` (replace), otherwise only the new ones (append).
    #[serde(rename = "tx.confirmations")]
    Confirmations { blocks: Vec<Confirmation>, new_fork: bool },
    /// Final. `confirmations` is the number of blocks counted; `blocks` is the full list, so `new_fork` is always true
    /// (replace).
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
    /// The key was used outside Gapless. `tx_hash`: the transaction that consumed one of our nonces, if any.
    #[serde(rename = "submitter.protected")]
    Protected {
        reason: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        tx_hash: Option<H256>,
    },
    /// A nonce was consumed and no node shows by which transaction. No new nonces are assigned until it is found.
    #[serde(rename = "submitter.suspect")]
    Suspect { reason: String },
    /// The consuming transaction was found.
    #[serde(rename = "submitter.suspect_cleared")]
    SuspectCleared { reason: String },
    /// The head of the queue cannot get a nonce. `waits_for`: funds, fee, node or signer.
    #[serde(rename = "submitter.blocked")]
    Blocked { waits_for: &'static str, code: ErrorCode, reason: String },
    /// The blocked head got its nonce or ended.
    #[serde(rename = "submitter.unblocked")]
    Unblocked { reason: String },
    #[serde(rename = "submitter.released")]
    Released { reason: String },
    /// External transactions on a shared key. `how`: `stepped_over`, or `displaced` if they consumed an intent's
    /// nonce.
    #[serde(rename = "nonce.external")]
    External { how: &'static str, count: u64 },
}

impl EventKind {
    /// An intent ended without being executed successfully.
    pub fn ended(state: TxState, error: &TxError) -> EventKind {
        let (code, reason) = (error.code, error.message.clone());
        match state {
            TxState::Cancelled => EventKind::Cancelled { code, reason },
            _ => EventKind::Failed { code, reason },
        }
    }

    /// The last event of its intent.
    pub fn is_final(&self) -> bool {
        matches!(self, EventKind::Confirmed { .. } | EventKind::Failed { .. } | EventKind::Cancelled { .. })
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
    /// Merges a later `Confirmations` event into this unpublished one. Returns false if either is of another kind;
    /// then both remain separate events.
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

    fn confirmations(numbers: &[u64], new_fork: bool) -> EventKind {
        let block = |number: &u64| Confirmation { number: *number, hash: H256::from_low_u64_be(*number) };
        EventKind::Confirmations { blocks: numbers.iter().map(block).collect(), new_fork }
    }

    #[test]
    fn unpublished_confirmations_are_merged() {
        let mut first = confirmations(&[1, 2], true);
        assert!(first.absorb(&confirmations(&[3], false)));
        assert_eq!(first, confirmations(&[1, 2, 3], true));
        let mut growth = confirmations(&[3], false);
        assert!(growth.absorb(&confirmations(&[4], false)));
        assert_eq!(growth, confirmations(&[3, 4], false));
        assert!(growth.absorb(&confirmations(&[2, 3], true)));
        assert_eq!(growth, confirmations(&[2, 3], true));
        assert!(!growth.absorb(&EventKind::Accepted));
    }

    #[test]
    fn an_end_event_has_the_error_code() {
        let error = TxError::new(ErrorCode::DeadlinePassed, "too late");
        let json = serde_json::to_value(EventKind::ended(TxState::Cancelled, &error)).unwrap();
        assert_eq!(
            json,
            serde_json::json!({ "type": "tx.cancelled", "code": "deadline_passed", "reason": "too late" })
        );
        assert_eq!(EventKind::ended(TxState::Failed, &error).name(), "tx.failed");
    }

    #[test]
    fn confirmations_have_the_documented_json() {
        let json = serde_json::to_value(confirmations(&[1], true)).unwrap();
        let hash = format!("{:#x}", H256::from_low_u64_be(1));
        let blocks = serde_json::json!([{ "number": 1, "hash": hash }]);
        assert_eq!(
            json,
            serde_json::json!({ "type": "tx.confirmations", "blocks": blocks, "newFork": true })
        );
    }
}
