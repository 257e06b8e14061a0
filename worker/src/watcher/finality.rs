//! How far the chain itself calls its blocks `safe` or `finalized`, as last heard. Rises; falls only with a fork.

use std::sync::{Mutex, MutexGuard, PoisonError};

#[derive(Clone, Copy, Debug, Default)]
struct Heard {
    height: Option<u64>,
    /// The answer is of the present head.
    fresh: bool,
}

#[derive(Debug, Default)]
pub(super) struct FinalHeight(Mutex<Heard>);

impl FinalHeight {
    fn heard(&self) -> MutexGuard<'_, Heard> {
        // Nothing panics while holding it.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn get(&self) -> Option<u64> {
        self.heard().height
    }

    /// Whether the chain is to be asked: there is a new head, or it owes the answer for this one.
    pub(super) fn is_due(&self, new_head: bool) -> bool {
        let mut heard = self.heard();
        heard.fresh &= !new_head;
        !heard.fresh
    }

    /// A node that lags answers less than another one did before; that takes nothing back.
    pub(super) fn rise_to(&self, height: u64) {
        let mut heard = self.heard();
        heard.height = heard.height.max(Some(height));
        heard.fresh = true;
    }

    pub(super) fn nothing_yet(&self) {
        self.heard().fresh = true;
    }

    /// The chain is another one than before: what it said then counts no longer.
    pub(super) fn forget(&self) {
        *self.heard() = Heard::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_chain_is_asked_once_for_a_head_and_again_until_it_answers() {
        let height = FinalHeight::default();
        assert!(height.is_due(true) && height.is_due(false), "it has not answered yet");
        height.rise_to(5);
        assert!(!height.is_due(false));
        assert!(height.is_due(true));
        height.nothing_yet();
        assert!(!height.is_due(false));
    }

    #[test]
    fn a_lagging_node_takes_nothing_back_and_a_fork_does() {
        let height = FinalHeight::default();
        height.rise_to(5);
        height.rise_to(3);
        assert_eq!(height.get(), Some(5));
        height.forget();
        assert_eq!(height.get(), None);
        height.rise_to(3);
        assert_eq!(height.get(), Some(3));
    }
}
