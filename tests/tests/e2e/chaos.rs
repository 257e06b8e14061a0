//! A short chaos run, a short upgrade run, and their negative controls with faulty workers.

use std::time::Duration;

use gapless_chaos::checker::Rule;
use gapless_chaos::reference_worker::FenceStrategy;
use gapless_chaos::{ConsumerCursor, Options, Outcome, Receiver, Upgrade, run};

const PROGRAM: &str = env!("CARGO_BIN_EXE_gapless-stack");
const OPENAPI: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../openapi.yaml");

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

/// This program under another name, as the previous release.
fn previous(dir: &tempfile::TempDir) -> Upgrade {
    let program = dir.path().join("previous-gapless-stack");
    std::os::unix::fs::symlink(PROGRAM, &program).unwrap();
    Upgrade::new(program, OPENAPI.into())
}

/// Scenario 121. `make test-upgrade` does it with the previous release.
#[tokio::test(flavor = "multi_thread")]
async fn a_roll_to_another_version_and_back_under_faults_breaks_no_promise() {
    let dir = tempfile::tempdir().unwrap();
    let mut options = Options::new(PROGRAM.into(), 7, Duration::from_secs(24));
    options.upgrade(previous(&dir));
    let outcome = run(options).await;
    assert!(outcome.is_sound(), "{}", story(&outcome));
    assert!(outcome.settled.is_some(), "{}", story(&outcome));
    assert_eq!(outcome.phases.iter().map(|phase| phase.rolled).sum::<usize>(), 15, "{}", story(&outcome));
}

/// Runs until the checker has found this violation. Usually one run is enough, unless the machine is very slow.
async fn found(strategy: FenceStrategy, rule: Rule) {
    found_by(|seed| Options::control(PROGRAM.into(), seed, strategy), rule).await;
}

async fn found_by(options: impl Fn(u64) -> Options, rule: Rule) {
    for seed in 7..10 {
        let outcome = run(options(seed)).await;
        if let Some(dir) = &outcome.artifacts {
            std::fs::remove_dir_all(dir).unwrap();
        }
        if outcome.broke(rule) {
            return;
        }
    }
    panic!("{:?}: the checker found no {rule:?} in three runs", options(7).crew);
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

/// A consumer of events whose cursor is the id of the outbox: it misses what commits later with a lower id.
#[tokio::test(flavor = "multi_thread")]
async fn the_checker_catches_a_consumer_whose_cursor_is_the_id_of_the_outbox() {
    let options = |seed: u64| {
        let mut options = Options::new(PROGRAM.into(), seed, Duration::from_secs(8));
        options.consumer = ConsumerCursor::OutboxId;
        options.varied = false;
        options
    };
    found_by(options, Rule::EventLoss).await;
}

/// A receiver of webhooks that forgets what it has acknowledged.
#[tokio::test(flavor = "multi_thread")]
async fn the_checker_catches_a_receiver_of_webhooks_that_forgets_events() {
    let options = |seed: u64| {
        let mut options = Options::new(PROGRAM.into(), seed, Duration::from_secs(8));
        options.receiver = Receiver::Forgetful;
        options.varied = false;
        options
    };
    found_by(options, Rule::EventLoss).await;
}

/// Scenario 121: a new version whose workers never check their lease.
#[tokio::test(flavor = "multi_thread")]
async fn an_upgrade_run_catches_a_new_version_that_breaks_a_promise() {
    let dir = tempfile::tempdir().unwrap();
    let upgrade = previous(&dir);
    let options = |seed: u64| {
        let mut options = Options::control(PROGRAM.into(), seed, FenceStrategy::Unchecked);
        options.upgrade(upgrade.clone());
        options
    };
    found_by(options, Rule::Duplicate).await;
}
