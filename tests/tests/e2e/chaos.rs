//! A short chaos run, and its negative controls with faulty workers.

use std::time::Duration;

use gapless_chaos::checker::Rule;
use gapless_chaos::reference_worker::FenceStrategy;
use gapless_chaos::{Options, Outcome, run};

const PROGRAM: &str = env!("CARGO_BIN_EXE_gapless-stack");

/// Diagnostics of a failed run.
fn story(outcome: &Outcome) -> String {
    format!(
        "{}\n{}\n{}\n{:?}",
        outcome.summary,
        outcome.table,
        outcome.describe_violations(),
        outcome.artifacts
    )
}

/// `make chaos` for a few seconds. A defect that a seed finds gets its own test here.
#[tokio::test(flavor = "multi_thread")]
async fn a_short_run_with_every_kind_of_fault_breaks_no_promise() {
    let outcome = run(Options::new(PROGRAM.into(), 7, Duration::from_secs(15))).await;
    assert!(outcome.is_sound(), "{}", story(&outcome));
    assert!(outcome.settled.is_some(), "{}", story(&outcome));
    assert!(outcome.faults.values().all(|count| *count > 0), "{}", story(&outcome));
    assert!(outcome.operations.values().sum::<usize>() > 0, "{}", story(&outcome));
    assert!(outcome.samples > 0, "no samples were taken: {}", story(&outcome));
    assert!(outcome.requests >= 16, "every client submitted a request: {}", story(&outcome));
}

/// The positive control: the reference worker with the correct fence violates no rule.
#[tokio::test(flavor = "multi_thread")]
async fn the_reference_worker_with_the_right_fence_breaks_no_promise_under_the_same_faults() {
    let outcome = run(Options::control(PROGRAM.into(), 7, FenceStrategy::LockThenWrite)).await;
    assert!(outcome.is_sound() && outcome.settled.is_some(), "{}", story(&outcome));
}

/// Runs until the checker has found this violation. Usually one run is enough, unless the machine is very slow.
async fn found(strategy: FenceStrategy, rule: Rule) {
    for seed in 7..10 {
        let outcome = run(Options::control(PROGRAM.into(), seed, strategy)).await;
        if let Some(dir) = &outcome.artifacts {
            std::fs::remove_dir_all(dir).unwrap();
        }
        if outcome.broke(rule) {
            return;
        }
    }
    panic!("{strategy:?}: the checker found no {rule:?} in three runs");
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
