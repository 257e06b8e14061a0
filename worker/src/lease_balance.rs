//! How many submitters a worker should own. Pure: every worker computes the same share from the same facts.

/// What a worker knows when it decides.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Facts {
    /// Busy submitters that this worker can sign for.
    pub(crate) busy: usize,
    /// Live workers with the same signers, this one included.
    pub(crate) workers: usize,
    /// Busy submitters this worker owns.
    pub(crate) held: usize,
    /// Whether some other live worker owns less than its share.
    pub(crate) someone_has_room: bool,
    /// Submitters this process may own at once.
    pub(crate) max_leases: usize,
}

/// What to do about it.
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
    let claim = share.saturating_sub(facts.held);
    let shed = if facts.someone_has_room { facts.held.saturating_sub(share) } else { 0 };
    Decision { claim, shed }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(busy: usize, workers: usize, held: usize) -> Facts {
        Facts { busy, workers, held, someone_has_room: workers > 1, max_leases: 1_000 }
    }

    #[test]
    fn a_lone_worker_takes_everything() {
        assert_eq!(decide(facts(10, 1, 0)), Decision { claim: 10, shed: 0 });
    }

    #[test]
    fn a_joining_worker_gets_its_half_because_the_other_sheds_it() {
        assert_eq!(decide(facts(10, 2, 10)), Decision { claim: 0, shed: 5 });
        assert_eq!(decide(facts(10, 2, 0)), Decision { claim: 5, shed: 0 });
    }

    #[test]
    fn an_uneven_number_is_not_passed_to_and_fro() {
        assert_eq!(decide(facts(3, 2, 2)), Decision { claim: 0, shed: 0 });
        assert_eq!(decide(facts(3, 2, 1)), Decision { claim: 1, shed: 0 });
    }

    #[test]
    fn nothing_is_shed_when_nobody_would_take_it() {
        let full = Facts { someone_has_room: false, ..facts(10, 2, 10) };
        assert_eq!(decide(full).shed, 0);
    }

    #[test]
    fn the_limit_of_the_process_holds() {
        assert_eq!(decide(Facts { max_leases: 4, ..facts(10, 1, 0) }).claim, 4);
    }
}
