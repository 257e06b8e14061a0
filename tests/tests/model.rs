//! Exhaustive model checking of lease, fence and send. See `tests/model`.
//!
//! Variants with defects are the negative controls of the model checker. Their histories are printed;
//! `cargo test -p gapless-tests --test model -- --nocapture` shows them.
#![allow(clippy::unwrap_used)]

use gapless_model::{
    Explored, Fence, Model, NO_STALE_WRITE, ONE_EFFECT, OUTSIDE_WITNESSES, RECORDED_BEFORE_SENT,
    REPLACED_WITNESSES, WITNESSES,
};

#[test]
fn lock_then_write_and_record_before_send_hold_in_every_interleaving() {
    let explored = exhaust("the product", Model::product());
    assert_seen(&explored, WITNESSES);
}

/// Whichever attempt at the nonce is mined first wins, regardless of its signer.
#[test]
fn replacements_and_placeholders_hold_in_every_interleaving() {
    let model = Model { replaces: true, intents: 1, window: 1, ..Model::product() };
    assert_seen(&exhaust("the product with replacements", model), REPLACED_WITNESSES);
}

#[test]
fn a_replacement_with_a_nonce_of_its_own_is_found_out() {
    let model = Model { replaces: true, renonces: true, intents: 1, window: 1, ..Model::product() };
    caught("a replacement at another nonce", model, ONE_EFFECT);
}

/// An external transaction consumes a nonce. The displaced intent still has its effect exactly once.
#[test]
fn use_of_the_key_elsewhere_holds_in_every_interleaving() {
    let model = Model { outside: 1, window: 1, ..Model::product() };
    assert_seen(&exhaust("the product beside another user of the key", model), OUTSIDE_WITNESSES);
}

/// A node that does not show our own transaction is not enough to displace an intent.
#[test]
fn silence_that_is_taken_for_use_elsewhere_is_found_to_give_an_intent_two_effects() {
    let model = Model { believes_silence: true, intents: 1, window: 1, ..Model::product() };
    caught("silence is believed", model, ONE_EFFECT);
}

#[test]
fn the_fence_needs_no_second_line_of_defence() {
    exhaust("the product without guards", Model { guards: false, ..Model::product() });
}

#[test]
fn the_second_line_of_defence_holds_where_an_answer_is_not_waited_for() {
    exhaust("the product without the wait", Model { waits: false, ..Model::product() });
}

#[test]
fn a_lost_answer_that_nobody_waits_for_is_found_to_give_an_intent_two_effects() {
    let model = Model { waits: false, guards: false, ..Model::product() };
    caught("neither wait nor guards", model, ONE_EFFECT);
}

#[test]
fn three_owners_are_as_safe_as_two() {
    let model = Model { workers: 3, tokens: 3, intents: 2, window: 1, reorgs: 0, ..Model::product() };
    exhaust("the product with three owners", model);
}

#[test]
fn the_exists_fence_is_found_to_give_an_intent_two_effects() {
    let model = Model { fence: Fence::Exists, guards: false, ..Model::product() };
    caught("the EXISTS fence", model, ONE_EFFECT);
}

#[test]
fn the_exists_fence_lets_stale_writes_through_whatever_stands_behind_it() {
    let model = Model { fence: Fence::Exists, ..Model::product() };
    caught("the EXISTS fence with guards", model, NO_STALE_WRITE);
}

#[test]
fn a_lease_that_is_never_checked_is_found_to_give_an_intent_two_effects() {
    let model = Model { fence: Fence::Unchecked, guards: false, ..Model::product() };
    caught("no fence", model, ONE_EFFECT);
}

#[test]
fn sending_before_the_commit_is_found_out() {
    let model = Model { sends_drafts: true, ..Model::product() };
    caught("send before commit", model, RECORDED_BEFORE_SENT);
    caught("send before commit", model, ONE_EFFECT);
}

fn assert_seen(explored: &Explored, witnesses: &[&str]) {
    for witness in witnesses {
        assert!(explored.history(witness).is_some(), "the model is too small: not reachable: {witness}");
    }
}

/// No safety property is violated in any reachable state.
fn exhaust(what: &str, model: Model) -> Explored {
    let explored = model.explore();
    eprintln!("{what}: {} states, {} steps deep", explored.states, explored.depth);
    for property in explored.broken() {
        eprintln!("{what}: violated: {property}\n{}", explored.history(property).unwrap());
    }
    assert_eq!(explored.broken(), Vec::<&str>::new());
    explored
}

/// The defect must be found as a violation of this property.
fn caught(what: &str, model: Model, property: &'static str) {
    let explored = model.search(property).unwrap_or_else(|| panic!("{what} was not found"));
    let history = explored.history(property).unwrap();
    eprintln!("{what}: violated: {property}; found after {} states\n{history}", explored.states);
}
