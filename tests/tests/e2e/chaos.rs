//! The nemesis, briefly, and its negative controls: the same run with workers that are wrong on purpose.

use std::time::Duration;

use gapless_tests::chaos::checker::Rule;
use gapless_tests::chaos::{Options, Outcome, run};
use gapless_tests::reference_worker::FenceStrategy;

const PROGRAM: &str = env!("CARGO_BIN_EXE_gapless-stack");

/// Everything that a person wants to see of a run that did not end as it should.
fn story(outcome: &Outcome) -> String {
    format!("{}\n{}\n{}\n{:?}", outcome.verdict, outcome.table, outcome.complaints(), outcome.kept)
}

/// `make chaos`, for a few seconds. Whatever a seed of that finds becomes a test beside this one.
#[tokio::test(flavor = "multi_thread")]
async fn a_short_storm_of_every_kind_of_fault_breaks_no_promise() {
    let outcome = run(Options::new(PROGRAM.into(), 7, Duration::from_secs(15))).await;
    assert!(outcome.is_sound(), "{}", story(&outcome));
    assert!(outcome.settled.is_some(), "{}", story(&outcome));
    assert!(outcome.faults.values().all(|count| *count > 0), "{}", story(&outcome));
    assert!(outcome.operations.values().sum::<usize>() > 0, "{}", story(&outcome));
    assert!(outcome.looks > 0, "nobody looked while it ran: {}", story(&outcome));
    assert!(outcome.requests >= 16, "each client got something in: {}", story(&outcome));
}

/// The control of the controls: nothing is wrong with the harness's own worker but what it is told to do wrong.
#[tokio::test(flavor = "multi_thread")]
async fn the_plain_worker_with_the_right_fence_breaks_no_promise_in_the_same_storm() {
    let outcome = run(Options::control(PROGRAM.into(), 7, FenceStrategy::LockThenWrite)).await;
    assert!(outcome.is_sound() && outcome.settled.is_some(), "{}", story(&outcome));
}

/// Until the checker has found what it must. One storm is enough, unless the machine is so slow that hardly anything happens.
async fn found(strategy: FenceStrategy, rule: Rule) {
    for seed in 7..10 {
        let outcome = run(Options::control(PROGRAM.into(), seed, strategy)).await;
        if let Some(dir) = &outcome.kept {
            std::fs::remove_dir_all(dir).unwrap();
        }
        if outcome.broke(rule) {
            return;
        }
    }
    panic!("{strategy:?}: the checker found no {rule:?} in three storms");
}

/// Scenario 18.
#[tokio::test(flavor = "multi_thread")]
async fn the_checker_catches_an_exists_condition_that_is_taken_for_a_fence() {
    found(FenceStrategy::Exists, Rule::SharedNonce).await;
}

/// Scenario 18.
#[tokio::test(flavor = "multi_thread")]
async fn the_checker_catches_bytes_that_are_sent_before_they_are_committed() {
    found(FenceStrategy::SendFirst, Rule::Unrecorded).await;
}

/// Scenario 18.
#[tokio::test(flavor = "multi_thread")]
async fn the_checker_catches_a_lease_that_is_never_checked() {
    found(FenceStrategy::Unchecked, Rule::Duplicate).await;
}
