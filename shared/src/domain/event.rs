//! What happened to an intent, told to the outside in terms that never mention a nonce.

use ethers_core::types::H256;
use serde::Serialize;

use super::ids::{SubmitterKey, TxId};

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
    #[serde(rename = "tx.confirmed")]
    Confirmed { tx_hash: H256, block_number: u64, confirmations: u64 },
    #[serde(rename = "tx.failed")]
    Failed { reason: String },
    #[serde(rename = "tx.cancelled")]
    Cancelled { reason: String },
    #[serde(rename = "tx.stuck")]
    Stuck { reason: String },
    #[serde(rename = "submitter.protected")]
    Protected { reason: String },
    #[serde(rename = "submitter.released")]
    Released { reason: String },
}

impl EventKind {
    pub fn name(&self) -> &'static str {
        match self {
            EventKind::Accepted => "tx.accepted",
            EventKind::Submitted { .. } => "tx.submitted",
            EventKind::ReceiptUpdated { .. } => "tx.receipt_updated",
            EventKind::Reorged { .. } => "tx.reorged",
            EventKind::Confirmed { .. } => "tx.confirmed",
            EventKind::Failed { .. } => "tx.failed",
            EventKind::Cancelled { .. } => "tx.cancelled",
            EventKind::Stuck { .. } => "tx.stuck",
            EventKind::Protected { .. } => "submitter.protected",
            EventKind::Released { .. } => "submitter.released",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    pub submitter: SubmitterKey,
    /// Absent for events of a submitter as a whole.
    pub tx_id: Option<TxId>,
    pub kind: EventKind,
}
