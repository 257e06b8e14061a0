//! The submitter's rows in the lane's memory, including changes that are not committed yet.

use std::collections::VecDeque;
use std::time::Duration;

use gapless_store::{Cursor, Evidence, LaneRows, PendingAction, PendingTxRequest, QueuedIntent};
use tokio::time::Instant;

use super::open::OpenTx;

/// Replaced as a whole when the rows are read again.
#[derive(Debug, Default)]
pub(crate) struct Rows {
    /// In nonce order.
    pub(crate) open: VecDeque<OpenTx>,
    /// First intents of the queue, read ahead.
    pub(crate) queue: VecDeque<QueuedIntent>,
    /// Whether the database may have more eligible intents than `queue`.
    pub(crate) more_queued: bool,
    pub(crate) sequence: Option<Cursor>,
    /// `sequence` as stored.
    pub(super) stored_sequence: Option<Cursor>,
    /// The evidence about the key as stored.
    pub(super) stored_evidence: Evidence,
    pub(crate) paused: bool,
    /// The submitter's own limit of open nonces.
    pub(super) own_window: Option<u32>,
    pub(crate) actions: Vec<PendingAction>,
    pub(crate) tx_requests: Vec<PendingTxRequest>,
}

impl Rows {
    /// From the database. The stored time schedules a send, but a clock that was set back must not delay it beyond
    /// `resubmit_interval`.
    pub(super) fn loaded(rows: LaneRows, resubmit_interval: Duration, now: Instant) -> Rows {
        let mut open: VecDeque<OpenTx> =
            rows.open.into_iter().map(|intent| OpenTx::loaded(intent, now)).collect();
        for tx in &mut open {
            tx.sending.due = tx.sending.due.min(now + resubmit_interval);
            tx.note_answer();
        }
        Rows {
            open,
            queue: VecDeque::new(),
            more_queued: true,
            stored_sequence: rows.cursor.clone(),
            sequence: rows.cursor,
            stored_evidence: rows.evidence,
            paused: rows.paused,
            own_window: rows.max_in_flight,
            actions: rows.actions,
            tx_requests: rows.tx_requests,
        }
    }
}
