//! The schedule of faults and operations; a pure function of the seed.

use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde::Serialize;

/// Kinds of faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    KillWorker,
    KillApi,
    StopWorker,
    RollWorkers,
    MoveClock,
    TerminateSessions,
    RestartPostgres,
    CutDatabase,
    SlowDatabase,
    CutNode,
    SlowNode,
    DropAnswers,
    Reorg,
    EmptyMempool,
    WrongAnswers,
    HideTransactions,
    LaggingNode,
    PrunedNode,
    DisagreeingNodes,
    FatalAnswers,
}

impl Kind {
    pub const ALL: [Kind; 20] = [
        Kind::KillWorker,
        Kind::KillApi,
        Kind::StopWorker,
        Kind::RollWorkers,
        Kind::MoveClock,
        Kind::TerminateSessions,
        Kind::RestartPostgres,
        Kind::CutDatabase,
        Kind::SlowDatabase,
        Kind::CutNode,
        Kind::SlowNode,
        Kind::DropAnswers,
        Kind::Reorg,
        Kind::EmptyMempool,
        Kind::WrongAnswers,
        Kind::HideTransactions,
        Kind::LaggingNode,
        Kind::PrunedNode,
        Kind::DisagreeingNodes,
        Kind::FatalAnswers,
    ];

    /// Label in the report.
    pub fn label(self) -> &'static str {
        match self {
            Kind::KillWorker => "worker killed (-9)",
            Kind::KillApi => "API killed (-9)",
            Kind::StopWorker => "worker stopped beyond its lease",
            Kind::RollWorkers => "rolling restart of all workers",
            Kind::MoveClock => "clock of a process moved",
            Kind::TerminateSessions => "database sessions terminated",
            Kind::RestartPostgres => "PostgreSQL restarted (immediate)",
            Kind::CutDatabase => "connections to the database cut or muted",
            Kind::SlowDatabase => "connections to the database slowed",
            Kind::CutNode => "connections to the node cut or muted",
            Kind::SlowNode => "answers of the node slowed",
            Kind::DropAnswers => "answer dropped after the node accepted",
            Kind::Reorg => "chain reorganised",
            Kind::EmptyMempool => "mempool emptied",
            Kind::WrongAnswers => "one method answered with an error",
            Kind::HideTransactions => "mined transactions hidden",
            Kind::LaggingNode => "node 1 to 3 blocks behind",
            Kind::PrunedNode => "node without old states",
            Kind::DisagreeingNodes => "two backends that disagree by 1 to 3 blocks",
            Kind::FatalAnswers => "a valid transaction called invalid",
        }
    }
}

/// Kinds of operations besides requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Operation {
    UseKeyOutside,
    UseSharedKey,
    ReserveNonce,
    EmptyAccount,
    RaiseBaseFee,
}

impl Operation {
    pub const ALL: [Operation; 5] = [
        Operation::UseKeyOutside,
        Operation::UseSharedKey,
        Operation::ReserveNonce,
        Operation::EmptyAccount,
        Operation::RaiseBaseFee,
    ];

    /// Label in the report.
    pub fn label(self) -> &'static str {
        match self {
            Operation::UseKeyOutside => "key used outside",
            Operation::UseSharedKey => "shared key used by its second sender",
            Operation::ReserveNonce => "nonce reserved by a client",
            Operation::EmptyAccount => "account emptied and refilled",
            Operation::RaiseBaseFee => "base fee raised and lowered",
        }
    }
}

/// The number of each kind in its random series: faults from 0, operations from 1,000.
pub(crate) trait Series: Copy {
    fn number(self) -> u64;
}

impl Series for Kind {
    fn number(self) -> u64 {
        Kind::ALL.iter().position(|one| *one == self).expect("all of them are listed") as u64
    }
}

impl Series for Operation {
    fn number(self) -> u64 {
        1_000 + Operation::ALL.iter().position(|one| *one == self).expect("all of them are listed") as u64
    }
}

/// One planned fault or operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Planned<K> {
    pub at: Duration,
    pub kind: K,
    /// Seeds the rest: target, variant and duration.
    pub seed: u64,
}

/// Of each kind. The goal is 200; the margin allows for faults that a slow machine delays.
pub const PER_HOUR: u64 = 216;
/// Minimum per kind, for short runs.
const AT_LEAST: u64 = 2;
/// Fraction of the run in which faults start, so that the last ones end in time.
const QUIET_END: f64 = 0.95;

/// The plan of one kind, in order: one per equal part of the run, at a random time within it.
pub(crate) fn plan<K: Series>(seed: u64, length: Duration, per_hour: u64, kind: K) -> Vec<Planned<K>> {
    let count = (length.as_secs() * per_hour).div_ceil(3600).max(AT_LEAST);
    let mut rng = StdRng::seed_from_u64(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(kind.number()));
    let part = length.as_secs_f64() * QUIET_END / count as f64;
    let at = |number: u64, within: f64| Duration::from_secs_f64(part * (number as f64 + within));
    (0..count).map(|number| Planned { at: at(number, rng.random()), kind, seed: rng.random() }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_determines_the_schedule() {
        let length = Duration::from_secs(300);
        for kind in Kind::ALL {
            assert_eq!(plan(7, length, PER_HOUR, kind), plan(7, length, PER_HOUR, kind));
            assert_ne!(plan(7, length, PER_HOUR, kind), plan(8, length, PER_HOUR, kind));
        }
        assert_ne!(
            plan(7, length, PER_HOUR, Kind::Reorg)[0].seed,
            plan(7, length, PER_HOUR, Kind::CutNode)[0].seed
        );
        for operation in Operation::ALL {
            assert_eq!(plan(7, length, PER_HOUR, operation), plan(7, length, PER_HOUR, operation));
            assert_ne!(
                plan(7, length, PER_HOUR, operation)[0].seed,
                plan(7, length, PER_HOUR, Kind::ALL[0])[0].seed
            );
        }
    }

    #[test]
    fn there_are_two_hundred_of_each_kind_in_an_hour_and_two_in_the_shortest_run() {
        for kind in Kind::ALL {
            for seconds in [60, 300, 3600] {
                let planned = plan(1, Duration::from_secs(seconds), PER_HOUR, kind);
                assert!(planned.len() as u64 * 3600 >= 200 * seconds, "{kind:?}: {}", planned.len());
                assert!(planned.is_sorted_by_key(|planned| planned.at));
                assert!(planned.last().unwrap().at < Duration::from_secs(seconds));
            }
            assert_eq!(plan(1, Duration::from_secs(5), PER_HOUR, kind).len(), 2);
        }
    }
}
