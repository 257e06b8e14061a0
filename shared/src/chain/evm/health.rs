//! What is known of one node: whose chain it serves, how far behind it is, how often it could not be asked.
//!
//! Judges nodes, never transactions. An answer, whatever it says about a transaction, is the mark of a good node; only
//! a request that brought none, one that it answers with its own trouble, and a head that is behind, speak against it.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How much of the rate is the past when a request ends: about the last three requests count.
const PAST: f64 = 0.7;

/// In this time half of a rate is forgotten, so that a node nobody asks is tried again.
const HALF_LIFE: Duration = Duration::from_secs(30);

/// One failure is enough to be asked after the others, and one good answer afterwards makes up for it.
const TROUBLED: f64 = 0.25;

/// Four failures in a row: not even a copy of a send is worth the request.
const SILENT: f64 = 0.75;

/// Whose chain a node serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Identity {
    Unchecked,
    Ours,
    /// Another chain, and which. Not used for anything until it is ours again.
    External(String),
}

/// What changed, for the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    Sick,
    Well,
}

#[derive(Debug)]
pub(super) struct Health {
    state: Mutex<State>,
    max_lag: u64,
}

#[derive(Debug)]
struct State {
    identity: Identity,
    lag: u64,
    /// Share of requests without an answer, recent ones first, as of `rated`.
    rate: f64,
    rated: Instant,
    was_well: bool,
}

impl State {
    fn rate(&self, now: Instant) -> f64 {
        let age = now.saturating_duration_since(self.rated).as_secs_f64();
        self.rate * 0.5_f64.powf(age / HALF_LIFE.as_secs_f64())
    }
}

/// Where a node stands among the others: smaller is asked earlier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Rank {
    /// Last, even after one that often fails: what it says is old.
    lags: bool,
    /// Tenths of the rate; 0 while it is not worth a mention.
    trouble: u8,
}

impl Health {
    pub(super) fn new(max_lag: u64) -> Health {
        let state =
            State { identity: Identity::Unchecked, lag: 0, rate: 0.0, rated: Instant::now(), was_well: true };
        Health { state: Mutex::new(state), max_lag }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A request ended: was there an answer?
    pub(super) fn asked(&self, answered: bool, now: Instant) -> Option<Turn> {
        let mut state = self.state();
        let failed = if answered { 0.0 } else { 1.0 };
        state.rate = state.rate(now) * PAST + failed * (1.0 - PAST);
        state.rated = now;
        self.turn(&mut state, now)
    }

    /// Its head is this far behind the best one of the chain.
    pub(super) fn lags(&self, blocks: u64, now: Instant) -> Option<Turn> {
        let mut state = self.state();
        state.lag = blocks;
        self.turn(&mut state, now)
    }

    /// Says who it is; answers who it was before.
    pub(super) fn identified(&self, identity: Identity, now: Instant) -> (Identity, Option<Turn>) {
        let mut state = self.state();
        let before = std::mem::replace(&mut state.identity, identity);
        (before, self.turn(&mut state, now))
    }

    fn turn(&self, state: &mut State, now: Instant) -> Option<Turn> {
        let well = self.is_well(state, now);
        match (std::mem::replace(&mut state.was_well, well), well) {
            (true, false) => Some(Turn::Sick),
            (false, true) => Some(Turn::Well),
            _ => None,
        }
    }

    fn is_well(&self, state: &State, now: Instant) -> bool {
        !matches!(state.identity, Identity::External(_))
            && state.lag <= self.max_lag
            && state.rate(now) < TROUBLED
    }

    pub(super) fn well(&self, now: Instant) -> bool {
        self.is_well(&self.state(), now)
    }

    pub(super) fn identity(&self) -> Identity {
        self.state().identity.clone()
    }

    pub(super) fn lag(&self) -> u64 {
        self.state().lag
    }

    pub(super) fn lags_behind(&self) -> bool {
        self.state().lag > self.max_lag
    }

    /// Whether a copy of a send is worth a request.
    pub(super) fn answers_at_times(&self, now: Instant) -> bool {
        self.state().rate(now) < SILENT
    }

    pub(super) fn rank(&self, now: Instant) -> Rank {
        let state = self.state();
        let rate = state.rate(now);
        let trouble = if rate < TROUBLED { 0 } else { (rate * 10.0) as u8 };
        Rank { lags: state.lag > self.max_lag, trouble }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn foreign() -> Identity {
        Identity::External("the node serves chain 99".into())
    }

    #[test]
    fn one_failure_moves_a_node_back_and_one_answer_makes_up_for_it() {
        let (health, now) = (Health::new(5), Instant::now());
        let fresh = health.rank(now);
        assert_eq!(health.asked(false, now), Some(Turn::Sick));
        assert!(health.rank(now) > fresh && health.answers_at_times(now));
        assert_eq!(health.asked(true, now), Some(Turn::Well));
        assert_eq!(health.rank(now), fresh);
    }

    #[test]
    fn a_silent_node_gets_no_copies_and_needs_several_answers_to_come_back() {
        let (health, now) = (Health::new(5), Instant::now());
        for _ in 0..4 {
            health.asked(false, now);
        }
        assert!(!health.answers_at_times(now));
        assert_eq!(health.asked(true, now), None, "one answer after four failures");
        assert!(health.answers_at_times(now) && !health.well(now));
        for _ in 0..3 {
            health.asked(true, now);
        }
        assert!(health.well(now));
    }

    #[test]
    fn failures_are_forgotten_with_time() {
        let (health, now) = (Health::new(5), Instant::now());
        for _ in 0..20 {
            health.asked(false, now);
        }
        assert!(!health.well(now + HALF_LIFE));
        assert!(health.well(now + 3 * HALF_LIFE));
    }

    #[test]
    fn a_node_that_fails_every_third_time_stays_behind_a_sound_one() {
        let (flapping, sound, now) = (Health::new(5), Health::new(5), Instant::now());
        for _ in 0..20 {
            flapping.asked(false, now);
            assert!(flapping.rank(now) > sound.rank(now));
            flapping.asked(true, now);
            flapping.asked(true, now);
        }
    }

    #[test]
    fn a_lag_counts_from_the_limit_on_and_outweighs_trouble() {
        let (lagging, failing, now) = (Health::new(5), Health::new(5), Instant::now());
        assert_eq!(lagging.lags(5, now), None);
        assert_eq!(lagging.lags(6, now), Some(Turn::Sick));
        failing.asked(false, now);
        assert!(failing.rank(now) < lagging.rank(now), "what it says is old");
        assert!(lagging.answers_at_times(now), "it can pass a transaction on");
        assert_eq!(lagging.lags(0, now), Some(Turn::Well));
    }

    #[test]
    fn a_node_of_another_chain_is_sick_however_well_it_answers() {
        let (health, now) = (Health::new(5), Instant::now());
        assert_eq!(health.identified(foreign(), now), (Identity::Unchecked, Some(Turn::Sick)));
        assert_eq!(health.asked(true, now), None);
        assert_eq!(health.identified(Identity::Ours, now), (foreign(), Some(Turn::Well)));
    }
}
