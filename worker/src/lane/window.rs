//! The in-flight window of a lane: its size, its use, and the next nonce.

use gapless_domain::Nonce;

use super::Lane;

impl Lane {
    /// The effective window of this submitter. Nodes accept one pending transaction of a delegated account.
    pub(crate) fn window(&self) -> u32 {
        let delegated = self.rows.sequence.as_ref().is_some_and(|sequence| sequence.delegated);
        if delegated { 1 } else { self.configured_window() }
    }

    /// The window as configured, ignoring delegation.
    pub(crate) fn configured_window(&self) -> u32 {
        self.rows.own_window.unwrap_or(self.chain.config.nonce.max_in_flight)
    }

    /// Nonces from the oldest that occupies the window up to the next, as the database counts them. For a shared key,
    /// only this submitter's own intents count.
    pub(crate) fn in_window(&self) -> u64 {
        let release_at = self.chain.config.nonce.release_at;
        let mut holding = self.rows.open.iter().filter(|tx| tx.holds_window(release_at));
        if self.sharing.enabled {
            return holding.count() as u64;
        }
        match (&self.rows.sequence, holding.next()) {
            (Some(sequence), Some(oldest)) => sequence.next.0.saturating_sub(oldest.intent.nonce.0),
            _ => 0,
        }
    }

    /// Whether another nonce may be assigned. A vacant nonce that blocks later ones may always be.
    pub(crate) fn window_has_room(&self) -> bool {
        self.in_window() < u64::from(self.window()) || self.sharing.free_nonce().is_some()
    }

    /// The nonce that is assigned next.
    pub(crate) fn next_nonce(&self) -> Nonce {
        let next = self.rows.sequence.as_ref().map_or(Nonce(0), |sequence| sequence.next);
        self.sharing.free_nonce().unwrap_or(next)
    }

    /// Updates the sequence from the open intents: the oldest nonce that occupies the window, and the oldest open one.
    pub(crate) fn update_in_flight(&mut self) {
        let release_at = self.chain.config.nonce.release_at;
        let Some(sequence) = &mut self.rows.sequence else { return };
        let holding = self.rows.open.iter().find(|tx| tx.holds_window(release_at));
        sequence.in_flight = holding.map(|tx| (tx.intent.tx_id, tx.intent.nonce));
        let oldest = self.rows.open.iter().find(|tx| tx.state().is_open());
        sequence.open_from = oldest.map_or(sequence.next, |tx| tx.intent.nonce);
    }
}
