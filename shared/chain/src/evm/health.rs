//! Health of one node: which chain it serves, how far behind it is, how often its requests fail.
//!
//! Any response about a transaction, including a rejection, counts as success. Only unanswered requests, errors about
//! the node itself (rate limit, syncing) and a lagging head reduce its health.

use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};

/// Weight of the old rate in the exponential moving average: about the last three requests count.
const SMOOTHING: f64 = 0.7;

/// The failure rate halves in this time, so that an unused node is tried again.
const HALF_LIFE: Duration = Duration::from_secs(30);

/// From this failure rate on, other nodes are preferred. One failure reaches it; one success afterwards clears it.
const DEGRADED_RATE: f64 = 0.25;

/// From this failure rate on, the node gets no copies of sends. Four failures in a row reach it.
const UNRESPONSIVE_RATE: f64 = 0.75;

/// Which chain a node serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Identity {
    Unchecked,
    Ours,
    /// Another chain, with a description. Not used until it serves ours again.
    WrongChain(String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HealthChange {
    Degraded,
    Recovered,
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
    /// Failure rate from 0 to 1, weighted to recent requests, at the time `rated`.
    rate: f64,
    rated: Instant,
    was_healthy: bool,
}

impl State {
    fn rate(&self, now: Instant) -> f64 {
        let age = now.saturating_duration_since(self.rated).as_secs_f64();
        self.rate * 0.5_f64.powf(age / HALF_LIFE.as_secs_f64())
    }
}

/// Order among the nodes: smaller is preferred.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Rank {
    /// A lagging node is last, even after one that often fails: its data is stale.
    lags: bool,
    /// Failure rate in tenths; 0 below `DEGRADED_RATE`.
    failures: u8,
}

impl Health {
    pub(super) fn new(max_lag: u64) -> Health {
        let state = State {
            identity: Identity::Unchecked,
            lag: 0,
            rate: 0.0,
            rated: Instant::now(),
            was_healthy: true,
        };
        Health { state: Mutex::new(state), max_lag }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Records a finished request.
    pub(super) fn record_request(&self, answered: bool, now: Instant) -> Option<HealthChange> {
        let mut state = self.state();
        let failed = if answered { 0.0 } else { 1.0 };
        state.rate = state.rate(now) * SMOOTHING + failed * (1.0 - SMOOTHING);
        state.rated = now;
        self.change(&mut state, now)
    }

    /// Records how many blocks its head is behind the best node.
    pub(super) fn record_lag(&self, blocks: u64, now: Instant) -> Option<HealthChange> {
        let mut state = self.state();
        state.lag = blocks;
        self.change(&mut state, now)
    }

    /// Sets the identity; returns the previous one.
    pub(super) fn set_identity(&self, identity: Identity, now: Instant) -> (Identity, Option<HealthChange>) {
        let mut state = self.state();
        let before = std::mem::replace(&mut state.identity, identity);
        (before, self.change(&mut state, now))
    }

    fn change(&self, state: &mut State, now: Instant) -> Option<HealthChange> {
        let healthy = self.is_state_healthy(state, now);
        match (std::mem::replace(&mut state.was_healthy, healthy), healthy) {
            (true, false) => Some(HealthChange::Degraded),
            (false, true) => Some(HealthChange::Recovered),
            _ => None,
        }
    }

    fn is_state_healthy(&self, state: &State, now: Instant) -> bool {
        !matches!(state.identity, Identity::WrongChain(_))
            && state.lag <= self.max_lag
            && state.rate(now) < DEGRADED_RATE
    }

    pub(super) fn is_healthy(&self, now: Instant) -> bool {
        self.is_state_healthy(&self.state(), now)
    }

    pub(super) fn identity(&self) -> Identity {
        self.state().identity.clone()
    }

    pub(super) fn lag(&self) -> u64 {
        self.state().lag
    }

    pub(super) fn is_lagging(&self) -> bool {
        self.state().lag > self.max_lag
    }

    /// Whether the node should get copies of sends.
    pub(super) fn is_responsive(&self, now: Instant) -> bool {
        self.state().rate(now) < UNRESPONSIVE_RATE
    }

    pub(super) fn rank(&self, now: Instant) -> Rank {
        let state = self.state();
        let rate = state.rate(now);
        let failures = if rate < DEGRADED_RATE { 0 } else { (rate * 10.0) as u8 };
        Rank { lags: state.lag > self.max_lag, failures }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrong_chain() -> Identity {
        Identity::WrongChain("the node serves chain 99".into())
    }

    #[test]
    fn one_failure_degrades_a_node_and_one_success_restores_it() {
        let (health, now) = (Health::new(5), Instant::now());
        let fresh = health.rank(now);
        assert_eq!(health.record_request(false, now), Some(HealthChange::Degraded));
        assert!(health.rank(now) > fresh && health.is_responsive(now));
        assert_eq!(health.record_request(true, now), Some(HealthChange::Recovered));
        assert_eq!(health.rank(now), fresh);
    }

    #[test]
    fn an_unresponsive_node_gets_no_copies_and_needs_several_answers_to_recover() {
        let (health, now) = (Health::new(5), Instant::now());
        for _ in 0..4 {
            health.record_request(false, now);
        }
        assert!(!health.is_responsive(now));
        assert_eq!(health.record_request(true, now), None, "one answer after four failures");
        assert!(health.is_responsive(now) && !health.is_healthy(now));
        for _ in 0..3 {
            health.record_request(true, now);
        }
        assert!(health.is_healthy(now));
    }

    #[test]
    fn failures_decay_with_time() {
        let (health, now) = (Health::new(5), Instant::now());
        for _ in 0..20 {
            health.record_request(false, now);
        }
        assert!(!health.is_healthy(now + HALF_LIFE));
        assert!(health.is_healthy(now + 3 * HALF_LIFE));
    }

    #[test]
    fn a_node_that_fails_every_third_time_ranks_after_a_healthy_one() {
        let (flapping, healthy, now) = (Health::new(5), Health::new(5), Instant::now());
        for _ in 0..20 {
            flapping.record_request(false, now);
            assert!(flapping.rank(now) > healthy.rank(now));
            flapping.record_request(true, now);
            flapping.record_request(true, now);
        }
    }

    #[test]
    fn a_lag_above_the_limit_outweighs_failures() {
        let (lagging, failing, now) = (Health::new(5), Health::new(5), Instant::now());
        assert_eq!(lagging.record_lag(5, now), None);
        assert_eq!(lagging.record_lag(6, now), Some(HealthChange::Degraded));
        failing.record_request(false, now);
        assert!(failing.rank(now) < lagging.rank(now), "its data is stale");
        assert!(lagging.is_responsive(now), "it can forward a transaction");
        assert_eq!(lagging.record_lag(0, now), Some(HealthChange::Recovered));
    }

    #[test]
    fn a_node_of_the_wrong_chain_is_unhealthy_even_if_it_answers() {
        let (health, now) = (Health::new(5), Instant::now());
        let (before, change) = health.set_identity(wrong_chain(), now);
        assert_eq!((before, change), (Identity::Unchecked, Some(HealthChange::Degraded)));
        assert_eq!(health.record_request(true, now), None);
        assert_eq!(health.set_identity(Identity::Ours, now), (wrong_chain(), Some(HealthChange::Recovered)));
    }
}
