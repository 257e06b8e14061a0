//! The last known height of the `safe` or `finalized` block. It rises, and falls only with a reorg.

use parking_lot::{Mutex, MutexGuard};

#[derive(Clone, Copy, Debug, Default)]
struct State {
    height: Option<u64>,
    /// Read for the current head.
    fresh: bool,
}

#[derive(Debug, Default)]
pub(super) struct FinalHeight(Mutex<State>);

impl FinalHeight {
    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing panics while holding it.
        self.0.lock()
    }

    pub(super) fn get(&self) -> Option<u64> {
        self.state().height
    }

    /// Whether to read it: there is a new head, or the last read failed.
    pub(super) fn is_due(&self, new_head: bool) -> bool {
        let mut state = self.state();
        state.fresh &= !new_head;
        !state.fresh
    }

    /// A lower height from a lagging node is ignored.
    pub(super) fn rise_to(&self, height: u64) {
        let mut state = self.state();
        state.height = state.height.max(Some(height));
        state.fresh = true;
    }

    pub(super) fn nothing_yet(&self) {
        self.state().fresh = true;
    }

    /// After a reorg or restart: the known height is no longer valid.
    pub(super) fn forget(&self) {
        *self.state() = State::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_is_due_once_per_head_and_until_it_succeeds() {
        let height = FinalHeight::default();
        assert!(height.is_due(true) && height.is_due(false), "not read yet");
        height.rise_to(5);
        assert!(!height.is_due(false));
        assert!(height.is_due(true));
        height.nothing_yet();
        assert!(!height.is_due(false));
    }

    #[test]
    fn only_forget_lowers_the_height() {
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
