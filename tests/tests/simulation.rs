//! Thousands of short histories of the product's lanes on real SQL and a simulated chain. See `tests/sim`.
//!
//! `GAPLESS_SIM_SEED=17` runs only that seed and prints its history on failure; `GAPLESS_SIM_HISTORIES=100000` runs
//! that many, starting at seed `GAPLESS_SIM_FROM`.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use gapless_sim::{Ran, Sabotage, Simulation};

/// Number of histories of `make test`. On a busy machine the time limit ends the run earlier, but not below `FEWEST`.
const HISTORIES: u64 = 2_000;
const FEWEST: u64 = 200;
const LONGEST: Duration = Duration::from_secs(75);
/// PostgreSQL is the bottleneck: more threads do not help on a small machine.
const THREADS: usize = 4;
/// Within this many histories each intentional defect must be found and each of `MARKS` must occur.
const ENOUGH: u64 = 500;

#[test]
fn every_history_ends_with_each_intent_having_its_effect_once() {
    let simulation = Simulation::start(Sabotage::Nothing);
    if let Some(seed) = number("GAPLESS_SIM_SEED") {
        let failure = simulation.run(seed..seed + 1, 1, Duration::MAX).failure;
        assert!(failure.is_none(), "{}", failure.unwrap());
        return;
    }
    let (histories, limit) = match number("GAPLESS_SIM_HISTORIES") {
        Some(histories) => (histories, Duration::MAX),
        None => (HISTORIES, LONGEST),
    };
    let first = number("GAPLESS_SIM_FROM").unwrap_or(0);
    let Ran { histories: ran, failure, marks } = simulation.run(first..first + histories, THREADS, limit);
    assert!(failure.is_none(), "{}", failure.unwrap());
    eprintln!("{ran} of {histories} histories passed; {marks:#?}");
    assert!(ran >= FEWEST.min(histories), "only {ran} histories in {limit:?}");
    let missing: Vec<_> = marks.iter().filter(|(_, found)| **found == 0).collect();
    assert!(missing.is_empty() || ran < ENOUGH, "not covered in {ran} histories: {missing:?}");
}

/// Scenario 63: ten simulated minutes, for every kind of call that a lane depends on.
#[test]
fn ten_minutes_of_node_errors_fail_nothing_and_everything_says_that_it_waits() {
    let simulation = Simulation::start(Sabotage::Nothing);
    for (seed, question) in
        ["estimate", "fee history", "balance", "broadcast", "block", "*"].into_iter().enumerate()
    {
        let problems = simulation.ten_minutes_of_outage(seed as u64, question);
        assert!(problems.is_empty(), "outage with `{question}`: {problems:#?}");
    }
}

/// Final transactions at later nonces must not hide where an earlier nonce was consumed.
#[test]
fn a_nonce_that_was_taken_before_later_ones_of_ours_became_final_is_found() {
    let problems = Simulation::start(Sabotage::Nothing).first_of_a_window_is_taken();
    assert!(problems.is_empty(), "{problems:#?}");
}

/// Found by a seed: no one filled the nonce below our first one, and everything behind it waited forever.
#[test]
fn a_nonce_that_a_reorg_took_from_others_before_the_first_use_of_a_shared_key_is_filled() {
    let problems = Simulation::start(Sabotage::Nothing).others_are_reorged_away_before_the_first_use();
    assert!(problems.is_empty(), "{problems:#?}");
}

/// The mailbox of a lane is bounded; the lane learns missed events from its rows and its node.
#[test]
fn a_lane_whose_mailbox_is_full_misses_neither_a_block_nor_a_reorg() {
    let problems = Simulation::start(Sabotage::Nothing).a_flooded_mailbox();
    assert!(problems.is_empty(), "{problems:#?}");
}

#[test]
fn a_seed_is_the_same_history_every_time() {
    let (one, other) = (Simulation::start(Sabotage::Nothing), Simulation::start(Sabotage::Nothing));
    for seed in 0..25 {
        assert_eq!(one.log_of(seed), other.log_of(seed), "seed {seed}");
    }
}

#[test]
fn bytes_that_are_sent_before_they_are_recorded_are_found_out() {
    caught(Sabotage::SendBeforeCommit, &["was sent and is not recorded"]);
}

#[test]
fn a_fence_that_lets_the_last_owner_through_is_found_out() {
    caught(Sabotage::NoFence, &["tokens decrease by nonce", "are out of order (number, token)"]);
}

#[test]
fn a_lost_answer_of_a_reserving_client_is_found_out() {
    caught(Sabotage::LostAnswers, &["is FAILED (handler_failed)"]);
}

#[test]
fn nonces_of_others_that_are_not_recorded_are_found_out() {
    caught(Sabotage::UnrecordedExternal, &["is not recorded as external"]);
}

#[test]
fn a_policy_that_is_not_kept_is_found_out() {
    caught(Sabotage::NoPolicy, &["its policy forbids it", "the policy allows"]);
}

#[test]
fn an_end_for_a_revert_that_is_none_is_found_out() {
    caught(Sabotage::FalseReverts, &["is FAILED (would_revert)"]);
}

#[test]
fn an_adoption_on_a_forged_proof_is_found_out() {
    caught(Sabotage::ForgedExternal, &["which no external transaction has", "it was mined more than once"]);
}

#[test]
fn a_fork_below_what_counts_as_final_is_found_out() {
    let ended =
        ["is in a block that was replaced", "its state contradicts the chain", "the end is not justified"];
    caught(Sabotage::DeepFork, &ended);
}

/// One of these problems must be found, in the first failing history or a later one.
fn caught(sabotage: Sabotage, problems: &[&str]) {
    let simulation = Simulation::start(sabotage);
    let is_named = |found: &String| problems.iter().any(|problem| found.contains(problem));
    let mut first = 0;
    loop {
        let failure = simulation.run(first..ENOUGH, THREADS, LONGEST).failure;
        let failure = failure.unwrap_or_else(|| panic!("{sabotage:?} was not found as any of {problems:?}"));
        if failure.problems.iter().any(is_named) {
            return eprintln!("{sabotage:?} was found by seed {}: {:?}", failure.seed, failure.problems);
        }
        first = failure.seed + 1;
    }
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{variable}={text}")))
}
