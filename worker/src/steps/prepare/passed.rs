//! Blocked queue heads that later intents may overtake (`queue.blocked = "pass"`): they lacked funds or a sufficient
//! fee cap for `queue.blocked_after`. They keep their place and are retried first, every second.

use std::collections::VecDeque;

use gapless_domain::TxId;
use gapless_store::QueuedIntent;
use tokio::time::Instant;

use super::RETRY_INTERVAL;

/// Limit, because each of them is priced again every second.
const MAX_PASSED: usize = 32;

#[derive(Debug, Default)]
pub(crate) struct Passed {
    /// In queue order.
    intents: VecDeque<QueuedIntent>,
    retry_at: Option<Instant>,
}

impl Passed {
    pub(crate) fn is_empty(&self) -> bool {
        self.intents.is_empty()
    }

    pub(crate) fn next_time(&self) -> Option<Instant> {
        self.retry_at.filter(|_| !self.is_empty())
    }

    pub(super) fn len(&self) -> usize {
        self.intents.len()
    }

    pub(super) fn is_full(&self) -> bool {
        self.len() >= MAX_PASSED
    }

    pub(super) fn contains(&self, intent: &QueuedIntent) -> bool {
        self.intents.iter().any(|passed| passed.tx_id == intent.tx_id)
    }

    pub(super) fn push(&mut self, intent: QueuedIntent) {
        self.intents.push_back(intent);
        self.retry_at = Some(Instant::now() + RETRY_INTERVAL);
    }

    pub(in crate::steps) fn remove(&mut self, tx_id: TxId) {
        self.intents.retain(|intent| intent.tx_id != tx_id);
    }

    /// Puts them back at the head of the queue when their retry is due.
    pub(super) fn requeue_due(&mut self, queue: &mut VecDeque<QueuedIntent>) {
        if self.retry_at.is_some_and(|at| at <= Instant::now()) {
            self.retry_at = None;
            self.intents.drain(..).rev().for_each(|intent| queue.push_front(intent));
        }
    }
}
