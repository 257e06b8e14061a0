//! How far a lane may go: its window, what is in it, and which nonce comes next.

use gapless::domain::Nonce;

use super::Lane;

impl Lane {
    /// The window in force for this submitter. Nodes take one transaction of a delegated account at a time.
    pub(crate) fn window(&self) -> u32 {
        let delegated = self.sequence.as_ref().is_some_and(|sequence| sequence.delegated);
        if delegated { 1 } else { self.set_window() }
    }

    /// The window as it was set, whatever the account is.
    pub(crate) fn set_window(&self) -> u32 {
        self.own_window.unwrap_or(self.chain.config.nonce.max_in_flight)
    }

    /// Nonces from the oldest that holds the window up to the next: what the database counts, too. Of a shared key only
    /// our own count.
    pub(crate) fn in_window(&self) -> u64 {
        let release_at = self.chain.config.nonce.release_at;
        let mut holding = self.open.iter().filter(|tx| tx.holds_window(release_at));
        if self.sharing.enabled {
            return holding.count() as u64;
        }
        match (&self.sequence, holding.next()) {
            (Some(sequence), Some(oldest)) => sequence.next.0.saturating_sub(oldest.intent.nonce.0),
            _ => 0,
        }
    }

    /// Whether another nonce may be given. One that everything else waits for may always be.
    pub(crate) fn has_room(&self) -> bool {
        self.in_window() < u64::from(self.window()) || self.sharing.free.is_some()
    }

    /// The nonce that is given next.
    pub(crate) fn next_nonce(&self) -> Nonce {
        let next = self.sequence.as_ref().map_or(Nonce(0), |sequence| sequence.next);
        self.sharing.free.unwrap_or(next)
    }

    /// Makes the sequence agree with what is open: the oldest nonce that holds the window, and the oldest of all.
    pub(crate) fn settle_in_flight(&mut self) {
        let release_at = self.chain.config.nonce.release_at;
        let Some(sequence) = &mut self.sequence else { return };
        let holding = self.open.iter().find(|tx| tx.holds_window(release_at));
        sequence.in_flight = holding.map(|tx| (tx.intent.tx_id, tx.intent.nonce));
        let oldest = self.open.iter().find(|tx| tx.state().is_open());
        sequence.open_from = oldest.map_or(sequence.next, |tx| tx.intent.nonce);
    }
}
