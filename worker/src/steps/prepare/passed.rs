//! Heads of the queue that cannot be paid or priced for so long that the operator lets others overtake them
//! (`queue.blocked = "pass"`). They keep their place: whenever they may be affordable again they are tried first.

use std::collections::VecDeque;

use gapless::store::QueuedIntent;
use tokio::time::Instant;

use super::HOLD;

/// More are not overtaken at once: each is priced again every second.
const MOST: usize = 32;

#[derive(Debug, Default)]
pub(crate) struct Passed {
    /// In the order of the queue.
    intents: VecDeque<QueuedIntent>,
    /// When they are tried again.
    again_at: Option<Instant>,
}

impl Passed {
    pub(crate) fn is_empty(&self) -> bool {
        self.intents.is_empty()
    }

    pub(crate) fn next_time(&self) -> Option<Instant> {
        self.again_at.filter(|_| !self.is_empty())
    }

    pub(super) fn len(&self) -> usize {
        self.intents.len()
    }

    pub(super) fn is_full(&self) -> bool {
        self.len() >= MOST
    }

    pub(super) fn has(&self, intent: &QueuedIntent) -> bool {
        self.intents.iter().any(|passed| passed.tx_id == intent.tx_id)
    }

    pub(super) fn push(&mut self, intent: QueuedIntent) {
        self.intents.push_back(intent);
        self.again_at = Some(Instant::now() + HOLD);
    }

    /// Puts them back in front, if it is time.
    pub(super) fn give_back(&mut self, queue: &mut VecDeque<QueuedIntent>) {
        if self.again_at.is_some_and(|at| at <= Instant::now()) {
            self.again_at = None;
            self.intents.drain(..).rev().for_each(|intent| queue.push_front(intent));
        }
    }
}
