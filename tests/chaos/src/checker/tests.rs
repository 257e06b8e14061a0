//! Every rule finds its violation, and none finds anything in a correct history.

mod events;
mod operations;
mod stalls;
mod upgrade;

use super::*;
use crate::history::{Event, RequestTraits};

const OURS: &str = "0xaa";

fn submit(request: &str) -> Event {
    let (submitter, traits) = (OURS.into(), RequestTraits::default());
    Event::Submit { op: 0, request: request.into(), submitter, api: 0, traits }
}

fn answer(request: &str, status: u16, tx_id: &str) -> Event {
    let code = None;
    Event::Answer { op: 0, request: request.into(), status, tx_id: Some(tx_id.into()), code }
}

fn state_seen(request: &str, state: &str) -> Event {
    Event::StateSeen { request: request.into(), tx_id: format!("t-{request}"), state: state.into() }
}

/// Two consecutive requests, confirmed at nonces 0 and 1.
fn sound() -> Evidence {
    let mut evidence = Evidence { submitters: vec![OURS.into()], ..Evidence::default() };
    add_confirmed(&mut evidence, "first", 0);
    add_confirmed(&mut evidence, "second", 1);
    evidence
}

/// Adds a request that was confirmed at this nonce.
fn add_confirmed(evidence: &mut Evidence, request: &str, nonce: u64) {
    let (tx_id, hash) = (format!("t-{request}"), format!("h-{request}"));
    record(evidence, submit(request));
    record(evidence, answer(request, 202, &tx_id));
    evidence.intents.push(Intent {
        tx_id: tx_id.clone(),
        request: request.into(),
        submitter: OURS.into(),
        state: "CONFIRMED".into(),
        nonce: Some(nonce),
        sub_state: None,
        code: None,
        created_at: 10.0 * nonce as f64,
        finished_at: Some(10.0 * nonce as f64 + 3.0),
    });
    let (submitter, original, token, ordinal) = (OURS.to_owned(), true, 5 + nonce, 1);
    evidence.attempts.push(Attempt { tx_id, submitter, nonce, hash: hash.clone(), token, original, ordinal });
    evidence.sent.push(hash.clone());
    let (submitter, request) = (OURS.to_owned(), Some(request.to_owned()));
    evidence.mined.push(Mined { submitter, nonce, hash, block: 9 + nonce, succeeded: true, request });
}

/// The client of the request has cancelled it.
fn cancel(evidence: &mut Evidence, intent: usize) {
    let request = evidence.intents[intent].request.clone();
    record(evidence, Event::CancelRequested { request });
    evidence.intents[intent].state = "CANCELLED".into();
    evidence.intents[intent].code = Some("cancelled".into());
}

fn record(evidence: &mut Evidence, event: Event) {
    evidence.history.push(Entry { at_ms: 0, event });
}

/// The violations, as rule and text.
fn found(evidence: &Evidence) -> Vec<(Rule, String)> {
    check(evidence).into_iter().map(|violation| (violation.rule, violation.what)).collect()
}

fn rules(evidence: &Evidence) -> Vec<Rule> {
    let mut rules: Vec<Rule> = check(evidence).into_iter().map(|violation| violation.rule).collect();
    rules.dedup();
    rules
}

#[test]
fn nothing_is_found_in_a_correct_history() {
    let mut evidence = sound();
    record(&mut evidence, submit("first"));
    record(&mut evidence, answer("first", 200, "t-first"));
    record(&mut evidence, answer("second", 503, ""));
    record(&mut evidence, Event::NoAnswer { op: 0, request: "second".into(), error: "reset".into() });
    record(&mut evidence, Event::ReusedId { request: "second".into(), status: 409 });
    record(&mut evidence, state_seen("first", "SUBMITTED"));
    record(&mut evidence, state_seen("first", "CONFIRMED"));
    assert_eq!(found(&evidence), []);
    assert_eq!(longest_stall(&evidence), 3.0);
}

#[test]
fn two_effects_of_a_request_are_a_duplicate() {
    let mut evidence = sound();
    evidence.mined[1].request = Some("first".into());
    let findings = found(&evidence);
    assert_eq!(findings[0].0, Rule::Duplicate);
    assert!(
        findings[0].1.contains("nonce 0 in block 9") && findings[0].1.contains("nonce 1 in block 10"),
        "{findings:?}"
    );
    // And the second request has no effect.
    assert_eq!(findings[1].0, Rule::Loss);
    // A reverted transaction has no effect.
    evidence.mined[1].succeeded = false;
    assert_eq!(rules(&evidence), [Rule::Loss]);
}

#[test]
fn a_nonce_that_is_missing_on_chain_or_has_no_intent_is_a_gap() {
    let mut evidence = sound();
    evidence.mined.remove(0);
    assert!(rules(&evidence).contains(&Rule::Gap));
    let mut evidence = sound();
    evidence.mined.pop();
    assert_eq!(rules(&evidence), [Rule::Gap, Rule::Loss], "assigned, and never consumed");
    let mut evidence = sound();
    evidence.intents[1].nonce = None;
    assert_eq!(found(&evidence), [(Rule::Gap, "0xaa: nonce 1 is on chain and belongs to no intent".into())]);
}

#[test]
fn an_accepted_request_without_a_row_or_not_final_is_lost() {
    let mut evidence = sound();
    evidence.intents[1].state = "SUBMITTED".into();
    assert_eq!(
        found(&evidence),
        [(Rule::Loss, "second (t-second) is still SUBMITTED, nonce Some(1)".into())]
    );
    let mut evidence = sound();
    record(&mut evidence, submit("third"));
    record(&mut evidence, answer("third", 202, "t-third"));
    assert_eq!(found(&evidence), [(Rule::Loss, "third was accepted and has no row".into())]);
    let mut evidence = sound();
    record(&mut evidence, Event::NotFound { request: "second".into() });
    assert_eq!(found(&evidence), [(Rule::Loss, "second was accepted and answered with 404".into())]);
}

#[test]
fn a_cancelled_request_with_an_effect_is_a_false_end() {
    let mut evidence = sound();
    cancel(&mut evidence, 0);
    assert_eq!(rules(&evidence), [Rule::FalseEnd]);
}

#[test]
fn sent_or_mined_transactions_without_an_attempt_are_found() {
    let mut evidence = sound();
    evidence.attempts.remove(0);
    let findings = found(&evidence);
    assert_eq!(
        findings,
        [
            (Rule::Unrecorded, "0xaa: nonce 0 was consumed by h-first (first)".into()),
            (Rule::Unrecorded, "h-first was sent".into()),
        ]
    );
    let mut evidence = sound();
    evidence.sent.push("h-other".into());
    assert_eq!(found(&evidence), [(Rule::Unrecorded, "h-other was sent".into())]);
}

#[test]
fn one_nonce_of_two_intents_is_found_in_intents_and_attempts() {
    let mut evidence = sound();
    evidence.intents[1].nonce = Some(0);
    assert!(rules(&evidence).contains(&Rule::SharedNonce));
    let mut evidence = sound();
    let mut second = evidence.attempts[0].clone();
    second.tx_id = "t-second".into();
    second.token = 6;
    second.ordinal = 2;
    evidence.attempts.push(second);
    assert_eq!(rules(&evidence), [Rule::SharedNonce, Rule::SecondNonce]);
}

#[test]
fn a_decreasing_token_is_a_stale_writer() {
    let mut evidence = sound();
    evidence.attempts[1].token = 4;
    assert_eq!(found(&evidence).len(), 2, "by nonce, and in the order of writing");
    assert_eq!(rules(&evidence), [Rule::StaleWriter]);
    // A placeholder of a later owner at an earlier nonce is allowed; one of a former owner is not.
    let mut evidence = sound();
    let placeholder =
        Attempt { original: false, ordinal: 2, token: 7, hash: "h".into(), ..evidence.attempts[0].clone() };
    evidence.attempts.push(placeholder);
    assert_eq!(found(&evidence), []);
    evidence.attempts[2].token = 5;
    assert_eq!(rules(&evidence), [Rule::StaleWriter]);
}

#[test]
fn a_request_sent_after_another_was_accepted_must_have_the_larger_nonce() {
    let mut evidence = sound();
    for (row, nonce) in [(0, 1), (1, 0)] {
        evidence.intents[row].nonce = Some(nonce);
        evidence.attempts[row].tx_id = evidence.intents[1 - row].tx_id.clone();
    }
    assert_eq!(rules(&evidence), [Rule::Order]);
    // Sent concurrently: either may be first.
    evidence.history.swap(1, 2);
    assert_eq!(found(&evidence), []);
}

#[test]
fn two_tx_ids_of_a_request_or_a_rejection_are_found() {
    let mut evidence = sound();
    record(&mut evidence, answer("first", 200, "t-other"));
    assert_eq!(rules(&evidence), [Rule::Identity]);
    let mut evidence = sound();
    let (request, tx_id, state) = ("first".to_owned(), "t-other".to_owned(), "QUEUED".to_owned());
    record(&mut evidence, Event::StateSeen { request, tx_id, state });
    assert_eq!(rules(&evidence), [Rule::Identity], "found by requestId with another txId");
    let mut evidence = sound();
    record(&mut evidence, Event::ReusedId { request: "first".into(), status: 200 });
    assert_eq!(rules(&evidence), [Rule::Identity]);
    let mut evidence = sound();
    record(&mut evidence, answer("first", 409, "t-first"));
    assert_eq!(rules(&evidence), [Rule::Identity]);
}

#[test]
fn a_final_state_that_changes_is_retracted() {
    let mut evidence = sound();
    record(&mut evidence, state_seen("first", "CONFIRMED"));
    record(&mut evidence, state_seen("first", "SUBMITTED"));
    assert_eq!(rules(&evidence), [Rule::Retracted]);
    let mut evidence = sound();
    record(&mut evidence, state_seen("first", "FAILED"));
    assert_eq!(rules(&evidence), [Rule::Retracted], "the row has another state");
}

#[test]
fn a_transaction_without_a_request_is_unrequested() {
    let mut evidence = sound();
    evidence.mined[1].request = Some("third".into());
    assert!(rules(&evidence).contains(&Rule::Unrequested));
    // Placeholders need no request.
    let mut evidence = sound();
    evidence.mined[1].request = None;
    cancel(&mut evidence, 1);
    assert_eq!(found(&evidence), []);
}

/// The second request ended in this state with this code, and is not on chain.
fn ended(state: &str, code: Option<&str>, traits: RequestTraits) -> Evidence {
    let mut evidence = sound();
    evidence.mined[1].request = None;
    evidence.intents[1].state = state.into();
    evidence.intents[1].code = code.map(Into::into);
    record(
        &mut evidence,
        Event::Submit { op: 1, request: "second".into(), submitter: OURS.into(), api: 0, traits },
    );
    evidence
}

#[test]
fn an_end_is_justified_by_the_contract_the_client_or_the_policy() {
    let reverting = RequestTraits { reverting: true, ..RequestTraits::default() };
    for code in ["would_revert", "reverted", "out_of_gas"] {
        assert_eq!(found(&ended("FAILED", Some(code), reverting)), []);
    }
    let forbidden = RequestTraits { forbidden: true, ..RequestTraits::default() };
    assert_eq!(found(&ended("FAILED", Some("value_cap_exceeded"), forbidden)), []);
    let limited = RequestTraits { deadline: true, ..RequestTraits::default() };
    assert_eq!(found(&ended("CANCELLED", Some("deadline_passed"), limited)), []);
    let mut evidence = ended("CANCELLED", Some("cancelled"), RequestTraits::default());
    assert_eq!(rules(&evidence), [Rule::UnjustifiedEnd], "no cancellation was requested");
    record(&mut evidence, Event::CancelRequested { request: "second".into() });
    assert_eq!(found(&evidence), []);
}

#[test]
fn an_end_by_infrastructure_or_with_an_unknown_code_is_unjustified() {
    let reverting = RequestTraits { reverting: true, deadline: true, forbidden: true };
    for code in ["node_unavailable", "estimate_refused", "pool_full", "unmineable", "unknown_code"] {
        assert_eq!(rules(&ended("FAILED", Some(code), reverting)), [Rule::UnjustifiedEnd], "{code}");
        assert_eq!(rules(&ended("CANCELLED", Some(code), reverting)), [Rule::UnjustifiedEnd], "{code}");
    }
    assert_eq!(rules(&ended("FAILED", None, reverting)), [Rule::UnjustifiedEnd], "no code at all");
    let findings = found(&ended("FAILED", Some("would_revert"), RequestTraits::default()));
    assert_eq!(
        findings,
        [(Rule::UnjustifiedEnd, "second (t-second) is FAILED, code would_revert, sub-state none".into())],
        "its contract does not revert"
    );
    assert_eq!(
        rules(&ended("CANCELLED", Some("deadline_passed"), RequestTraits::default())),
        [Rule::UnjustifiedEnd],
        "it has no deadline"
    );
}

#[test]
fn attempts_are_numbered_without_gaps_in_the_order_of_tokens() {
    let mut evidence = sound();
    let again = |ordinal, token, first: &Attempt| Attempt {
        original: false,
        ordinal,
        token,
        hash: format!("h-{ordinal}"),
        ..first.clone()
    };
    evidence.attempts.push(again(2, 6, &evidence.attempts[0]));
    evidence.attempts.push(again(3, 6, &evidence.attempts[0]));
    assert_eq!(found(&evidence), []);
    evidence.attempts[3].ordinal = 4;
    assert_eq!(rules(&evidence), [Rule::AttemptOrder], "a gap");
    evidence.attempts[3].ordinal = 2;
    assert_eq!(rules(&evidence), [Rule::AttemptOrder], "a repeated number");
    // Written in the order of tokens, but numbered in the opposite order.
    (evidence.attempts[2].ordinal, evidence.attempts[2].token) = (3, 6);
    (evidence.attempts[3].ordinal, evidence.attempts[3].token) = (2, 7);
    assert_eq!(
        found(&evidence),
        [(Rule::AttemptOrder, "t-first: attempt 2 has token 7, attempt 3 token 6".into())]
    );
}

#[test]
fn a_panic_is_a_violation() {
    let mut evidence = sound();
    evidence.panics.push("worker-1: panicked at lane.rs".into());
    assert_eq!(rules(&evidence), [Rule::Panic]);
}

#[test]
fn a_stall_is_the_time_without_a_final_intent_while_there_is_work() {
    let mut evidence = sound();
    // The first ends late; the arrival of the second does not end the wait.
    evidence.intents[0].finished_at = Some(12.0);
    assert_eq!(longest_stall(&evidence), 12.0);
    evidence.intents[1].finished_at = Some(30.0);
    assert_eq!(longest_stall(&evidence), 18.0);
}
