//! Thousands of short histories of the product's lanes on real SQL and a simulated chain. See `tests/src/sim`.
//!
//! `GAPLESS_SIM_SEED=17` runs that seed alone and prints its history; `GAPLESS_SIM_HISTORIES=100000` runs more than usual, from
//! the seed `GAPLESS_SIM_FROM` on.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use gapless_tests::sim::{Ran, Sabotage, Simulation};

/// What `make test` runs, unless the machine is so busy that it takes too long: then as many as it can, and no fewer than
/// would show anything.
const HISTORIES: u64 = 2_000;
const FEWEST: u64 = 200;
const LONGEST: Duration = Duration::from_secs(75);
/// Most of the time is PostgreSQL's: more threads than this do not help on a small machine.
const THREADS: usize = 4;
/// What is broken on purpose must be found in so many, and everything that may happen must happen in them.
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
    eprintln!("{ran} histories of {histories} ended well; {marks:#?}");
    assert!(ran >= FEWEST.min(histories), "only {ran} histories in {limit:?}");
    let missing: Vec<_> = marks.iter().filter(|(_, found)| **found == 0).collect();
    assert!(missing.is_empty() || ran < ENOUGH, "in {ran} histories there was never {missing:?}");
}

/// Scenario 63: ten minutes of the simulation's time, for every kind of question that a lane cannot do without.
#[test]
fn ten_minutes_of_a_node_s_trouble_fail_nothing_and_everything_says_that_it_waits() {
    let simulation = Simulation::start(Sabotage::Nothing);
    for (seed, question) in
        ["estimate", "fee history", "balance", "broadcast", "block", "*"].into_iter().enumerate()
    {
        let problems = simulation.ten_minutes_of_trouble(seed as u64, question);
        assert!(problems.is_empty(), "trouble with `{question}`: {problems:#?}");
    }
}

/// Transactions of ours that are final say nothing of where an earlier nonce was consumed.
#[test]
fn a_nonce_that_was_taken_before_later_ones_of_ours_became_final_is_found() {
    let problems = Simulation::start(Sabotage::Nothing).first_of_a_window_is_taken();
    assert!(problems.is_empty(), "{problems:#?}");
}

/// Found by a seed: the nonce below the first of ours was nobody's, and what was behind it waited for ever.
#[test]
fn a_nonce_that_a_reorg_took_from_others_before_the_first_use_of_a_shared_key_is_filled() {
    let problems = Simulation::start(Sabotage::Nothing).others_are_reorged_away_before_the_first_use();
    assert!(problems.is_empty(), "{problems:#?}");
}

/// A lane that is flooded keeps a bounded number of news, and learns from its rows and its node what it did not hear.
#[test]
fn a_lane_whose_mailbox_is_full_misses_neither_a_block_nor_a_reorg() {
    let problems = Simulation::start(Sabotage::Nothing).a_flooded_mailbox();
    assert!(problems.is_empty(), "{problems:#?}");
}

#[test]
fn a_seed_is_the_same_history_every_time() {
    let (one, other) = (Simulation::start(Sabotage::Nothing), Simulation::start(Sabotage::Nothing));
    for seed in 0..25 {
        assert_eq!(one.tell(seed), other.tell(seed), "seed {seed}");
    }
}

#[test]
fn bytes_that_are_sent_before_they_are_recorded_are_found_out() {
    caught(Sabotage::SendBeforeCommit, &["was sent and is not recorded"]);
}

#[test]
fn a_fence_that_lets_the_last_owner_through_is_found_out() {
    caught(Sabotage::NoFence, &["tokens fall along the nonces", "are out of order (number, token)"]);
}

#[test]
fn an_answer_of_a_caller_that_is_lost_is_found_out() {
    caught(Sabotage::LostAnswers, &["is FAILED (handler_failed)"]);
}

#[test]
fn nonces_of_others_that_are_not_recorded_are_found_out() {
    caught(Sabotage::UnrecordedStrangers, &["is not on record as somebody else's"]);
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
    caught(Sabotage::ForgedTaker, &["which nobody else has", "it happened more than once"]);
}

#[test]
fn a_fork_below_what_counts_as_final_is_found_out() {
    let ended = ["is in a block that was replaced", "the chain says otherwise", "nothing explains that"];
    caught(Sabotage::DeepFork, &ended);
}

/// One of these is said, if not of the first history that ends badly then of a later one.
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
