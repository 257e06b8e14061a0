//! How many submitters a worker should own. Pure functions: all workers compute the same share from the same facts.

/// Input of `decide`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Facts {
    /// Busy submitters that this worker can sign for.
    pub(crate) busy: usize,
    /// Live workers with the same signers, this one included.
    pub(crate) workers: usize,
    /// Busy submitters this worker owns.
    pub(crate) owned: usize,
    /// Another live worker owns less than its share.
    pub(crate) peer_below_share: bool,
    /// Submitters this process may own at once.
    pub(crate) max_leases: usize,
}

/// How many submitters to claim and to shed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Decision {
    pub(crate) claim: usize,
    pub(crate) shed: usize,
}

pub(crate) fn fair_share(busy: usize, workers: usize) -> usize {
    busy.div_ceil(workers.max(1))
}

pub(crate) fn decide(facts: Facts) -> Decision {
    let share = fair_share(facts.busy, facts.workers).min(facts.max_leases);
    let claim = share.saturating_sub(facts.owned);
    let shed = if facts.peer_below_share { facts.owned.saturating_sub(share) } else { 0 };
    Decision { claim, shed }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(busy: usize, workers: usize, owned: usize) -> Facts {
        Facts { busy, workers, owned, peer_below_share: workers > 1, max_leases: 1_000 }
    }

    #[test]
    fn a_single_worker_claims_all() {
        assert_eq!(decide(facts(10, 1, 0)), Decision { claim: 10, shed: 0 });
    }

    #[test]
    fn half_is_shed_to_a_second_worker() {
        assert_eq!(decide(facts(10, 2, 10)), Decision { claim: 0, shed: 5 });
        assert_eq!(decide(facts(10, 2, 0)), Decision { claim: 5, shed: 0 });
    }

    #[test]
    fn an_odd_count_does_not_oscillate() {
        assert_eq!(decide(facts(3, 2, 2)), Decision { claim: 0, shed: 0 });
        assert_eq!(decide(facts(3, 2, 1)), Decision { claim: 1, shed: 0 });
    }

    #[test]
    fn nothing_is_shed_if_no_peer_is_below_its_share() {
        let full = Facts { peer_below_share: false, ..facts(10, 2, 10) };
        assert_eq!(decide(full).shed, 0);
    }

    #[test]
    fn max_leases_limits_claims() {
        assert_eq!(decide(Facts { max_leases: 4, ..facts(10, 1, 0) }).claim, 4);
    }
}
