//! The submitter's rows in the lane's memory, including changes that are not committed yet.

use std::collections::VecDeque;
use std::time::Duration;

use gapless_domain::{Nonce, TxId};
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
    more_queued: bool,
    /// Steps change it through the methods below.
    pub(super) sequence: Option<Cursor>,
    /// `sequence` as stored.
    pub(super) stored_sequence: Option<Cursor>,
    /// The evidence about the key as stored.
    pub(super) stored_evidence: Evidence,
    pub(crate) paused: bool,
    /// The open intent last reported as waiting for a node.
    pub(super) reported_waiting: Option<TxId>,
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
            reported_waiting: None,
            own_window: rows.max_in_flight,
            actions: rows.actions,
            tx_requests: rows.tx_requests,
        }
    }

    pub(crate) fn may_have_more(&self) -> bool {
        self.more_queued
    }

    /// The database may have intents that were not read ahead.
    pub(crate) fn expect_more(&mut self) {
        self.more_queued = true;
    }

    /// The intents read ahead are out of date: the queue is read again.
    pub(crate) fn reread_queue(&mut self) {
        self.queue.clear();
        self.more_queued = true;
    }

    /// Adds intents to the queue. `more`: the database may have others after them.
    pub(crate) fn read_ahead(&mut self, intents: impl IntoIterator<Item = QueuedIntent>, more: bool) {
        self.queue.extend(intents);
        self.more_queued = more;
    }

    /// `None` before the first use of the key.
    pub(crate) fn sequence(&self) -> Option<&Cursor> {
        self.sequence.as_ref()
    }

    pub(crate) fn begin_sequence(&mut self, start: Nonce, window: u32) {
        self.sequence = Some(Cursor::starting_at(start, window));
    }

    /// A nonce was assigned: the next one, or a lower one that was vacant.
    pub(crate) fn assigned(&mut self, nonce: Nonce, window: u32) {
        // Unwrap safety: nonces are assigned after `protect::first_use` returned true, so the sequence exists.
        let sequence = self.sequence.as_mut().expect("a sequence");
        sequence.next = sequence.next.max(nonce.next());
        sequence.max_in_flight = window;
    }

    /// Skips the nonces below `next`. Returns the first of them, if there are any.
    pub(crate) fn skip_to(&mut self, next: Nonce) -> Option<Nonce> {
        let sequence = self.sequence.as_mut().filter(|sequence| sequence.next < next)?;
        Some(std::mem::replace(&mut sequence.next, next))
    }

    /// The sequence continues at the chain's count, or later if it has assigned more. Returns the next nonce.
    pub(crate) fn adopt(&mut self, count: Nonce, window: u32) -> Nonce {
        let sequence = self.sequence.get_or_insert(Cursor::starting_at(count, window));
        sequence.start = count;
        sequence.next = sequence.next.max(count);
        sequence.protect = None;
        sequence.next
    }

    pub(crate) fn enter_protect(&mut self, reason: String) {
        if let Some(sequence) = &mut self.sequence {
            sequence.protect = Some(reason);
        }
    }

    /// Returns the nonce at which the sequence continues; `None` if it was not in PROTECT.
    pub(crate) fn leave_protect(&mut self) -> Option<Nonce> {
        let sequence = self.sequence.as_mut()?;
        sequence.protect.take().map(|_| sequence.next)
    }

    /// Returns whether this is a change.
    pub(crate) fn set_delegated(&mut self, delegated: bool) -> bool {
        let sequence = self.sequence.as_mut().filter(|sequence| sequence.delegated != delegated);
        sequence.map(|sequence| sequence.delegated = delegated).is_some()
    }
}
