//! Every rule fires on what breaks it, and none on a history in which all is well.

mod operations;
mod stalls;

use super::*;
use crate::chaos::history::{Asked, Event};

const OURS: &str = "0xaa";

fn submit(request: &str) -> Event {
    Event::Submit { op: 0, request: request.into(), submitter: OURS.into(), api: 0, asked: Asked::default() }
}

fn answer(request: &str, status: u16, tx_id: &str) -> Event {
    let code = None;
    Event::Answer { op: 0, request: request.into(), status, tx_id: Some(tx_id.into()), code }
}

fn told(request: &str, state: &str) -> Event {
    Event::Told { request: request.into(), tx_id: format!("t-{request}"), state: state.into() }
}

/// Two requests, one after the other, confirmed at the nonces 0 and 1.
fn sound() -> Evidence {
    let mut evidence = Evidence { submitters: vec![OURS.into()], ..Evidence::default() };
    for (nonce, request) in ["first", "second"].into_iter().enumerate() {
        let (nonce, tx_id, hash) = (nonce as u64, format!("t-{request}"), format!("h-{request}"));
        note(&mut evidence, submit(request));
        note(&mut evidence, answer(request, 202, &tx_id));
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
        evidence.attempts.push(Attempt {
            tx_id,
            submitter,
            nonce,
            hash: hash.clone(),
            token,
            original,
            ordinal,
        });
        evidence.sent.push(hash.clone());
        let (submitter, request) = (OURS.to_owned(), Some(request.to_owned()));
        evidence.mined.push(Mined { submitter, nonce, hash, block: 9 + nonce, succeeded: true, request });
    }
    evidence
}

/// Its client cancelled it.
fn cancel(evidence: &mut Evidence, intent: usize) {
    let request = evidence.intents[intent].request.clone();
    note(evidence, Event::CancelAsked { request });
    evidence.intents[intent].state = "CANCELLED".into();
    evidence.intents[intent].code = Some("cancelled".into());
}

fn note(evidence: &mut Evidence, event: Event) {
    evidence.history.push(Entry { at_ms: 0, event });
}

/// The rules that find something, and what they say.
fn found(evidence: &Evidence) -> Vec<(Rule, String)> {
    judge(evidence).into_iter().map(|violation| (violation.rule, violation.what)).collect()
}

fn rules(evidence: &Evidence) -> Vec<Rule> {
    let mut rules: Vec<Rule> = judge(evidence).into_iter().map(|violation| violation.rule).collect();
    rules.dedup();
    rules
}

#[test]
fn nothing_is_found_where_all_is_well() {
    let mut evidence = sound();
    note(&mut evidence, submit("first"));
    note(&mut evidence, answer("first", 200, "t-first"));
    note(&mut evidence, answer("second", 503, ""));
    note(&mut evidence, Event::NoAnswer { op: 0, request: "second".into(), error: "reset".into() });
    note(&mut evidence, Event::Impostor { request: "second".into(), status: 409 });
    note(&mut evidence, told("first", "SUBMITTED"));
    note(&mut evidence, told("first", "CONFIRMED"));
    assert_eq!(found(&evidence), []);
    assert_eq!(longest_stall(&evidence), 3.0);
}

#[test]
fn an_effect_that_happened_twice_is_a_duplicate() {
    let mut evidence = sound();
    evidence.mined[1].request = Some("first".into());
    let said = found(&evidence);
    assert_eq!(said[0].0, Rule::Duplicate);
    assert!(
        said[0].1.contains("nonce 0 in block 9") && said[0].1.contains("nonce 1 in block 10"),
        "{said:?}"
    );
    // And the second has none.
    assert_eq!(said[1].0, Rule::Loss);
    // What was reverted has no effect.
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
    assert_eq!(rules(&evidence), [Rule::Gap, Rule::Loss], "given, and never consumed");
    let mut evidence = sound();
    evidence.intents[1].nonce = None;
    assert_eq!(found(&evidence), [(Rule::Gap, "0xaa: nonce 1 is on chain and belongs to no intent".into())]);
}

#[test]
fn what_was_accepted_and_is_not_there_or_not_final_is_lost() {
    let mut evidence = sound();
    evidence.intents[1].state = "SUBMITTED".into();
    assert_eq!(
        found(&evidence),
        [(Rule::Loss, "second (t-second) is still SUBMITTED, nonce Some(1)".into())]
    );
    let mut evidence = sound();
    note(&mut evidence, submit("third"));
    note(&mut evidence, answer("third", 202, "t-third"));
    assert_eq!(found(&evidence), [(Rule::Loss, "third was accepted and has no row".into())]);
}

#[test]
fn what_is_called_failed_and_happened_is_a_false_end() {
    let mut evidence = sound();
    cancel(&mut evidence, 0);
    assert_eq!(rules(&evidence), [Rule::FalseEnd]);
}

#[test]
fn bytes_on_chain_or_on_their_way_that_nobody_recorded_are_found() {
    let mut evidence = sound();
    evidence.attempts.remove(0);
    let said = found(&evidence);
    assert_eq!(
        said,
        [
            (Rule::Unrecorded, "0xaa: nonce 0 was consumed by h-first (first)".into()),
            (Rule::Unrecorded, "h-first left a process".into()),
        ]
    );
    let mut evidence = sound();
    evidence.sent.push("h-other".into());
    assert_eq!(found(&evidence), [(Rule::Unrecorded, "h-other left a process".into())]);
}

#[test]
fn a_nonce_of_two_intents_is_found_in_the_rows_and_in_the_attempts() {
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
fn a_token_that_falls_is_a_former_owner_at_work() {
    let mut evidence = sound();
    evidence.attempts[1].token = 4;
    assert_eq!(found(&evidence).len(), 2, "along the nonces, and in the order of writing");
    assert_eq!(rules(&evidence), [Rule::StaleWriter]);
    // A placeholder of a later owner at an earlier nonce is in order; one of a former owner is not.
    let mut evidence = sound();
    let placeholder =
        Attempt { original: false, ordinal: 2, token: 7, hash: "h".into(), ..evidence.attempts[0].clone() };
    evidence.attempts.push(placeholder);
    assert_eq!(found(&evidence), []);
    evidence.attempts[2].token = 5;
    assert_eq!(rules(&evidence), [Rule::StaleWriter]);
}

#[test]
fn what_was_sent_after_another_was_accepted_and_has_the_smaller_nonce_has_overtaken_it() {
    let mut evidence = sound();
    for (row, nonce) in [(0, 1), (1, 0)] {
        evidence.intents[row].nonce = Some(nonce);
        evidence.attempts[row].tx_id = evidence.intents[1 - row].tx_id.clone();
    }
    assert_eq!(rules(&evidence), [Rule::Order]);
    // Sent at the same time: either may be first.
    evidence.history.swap(1, 2);
    assert_eq!(found(&evidence), []);
}

#[test]
fn a_request_with_two_ids_or_a_refusal_is_found() {
    let mut evidence = sound();
    note(&mut evidence, answer("first", 200, "t-other"));
    assert_eq!(rules(&evidence), [Rule::Identity]);
    let mut evidence = sound();
    note(&mut evidence, Event::Impostor { request: "first".into(), status: 200 });
    assert_eq!(rules(&evidence), [Rule::Identity]);
    let mut evidence = sound();
    note(&mut evidence, answer("first", 409, "t-first"));
    assert_eq!(rules(&evidence), [Rule::Identity]);
}

#[test]
fn a_final_state_that_changes_is_taken_back() {
    let mut evidence = sound();
    note(&mut evidence, told("first", "CONFIRMED"));
    note(&mut evidence, told("first", "SUBMITTED"));
    assert_eq!(rules(&evidence), [Rule::Retracted]);
    let mut evidence = sound();
    note(&mut evidence, told("first", "FAILED"));
    assert_eq!(rules(&evidence), [Rule::Retracted], "the row says something else");
}

#[test]
fn what_nobody_asked_for_is_a_stranger() {
    let mut evidence = sound();
    evidence.mined[1].request = Some("third".into());
    assert!(rules(&evidence).contains(&Rule::Stranger));
    // Placeholders are nobody's wish, and no strangers.
    let mut evidence = sound();
    evidence.mined[1].request = None;
    cancel(&mut evidence, 1);
    assert_eq!(found(&evidence), []);
}

/// Ended in this state with this code, and not on chain.
fn ended(state: &str, code: Option<&str>, asked: Asked) -> Evidence {
    let mut evidence = sound();
    evidence.mined[1].request = None;
    evidence.intents[1].state = state.into();
    evidence.intents[1].code = code.map(Into::into);
    note(
        &mut evidence,
        Event::Submit { op: 1, request: "second".into(), submitter: OURS.into(), api: 0, asked },
    );
    evidence
}

#[test]
fn an_end_is_justified_by_the_contract_the_client_or_the_policy() {
    let doomed = Asked { doomed: true, ..Asked::default() };
    for code in ["would_revert", "reverted", "out_of_gas"] {
        assert_eq!(found(&ended("FAILED", Some(code), doomed)), []);
    }
    let forbidden = Asked { forbidden: true, ..Asked::default() };
    assert_eq!(found(&ended("FAILED", Some("value_cap_exceeded"), forbidden)), []);
    let limited = Asked { deadline: true, ..Asked::default() };
    assert_eq!(found(&ended("CANCELLED", Some("deadline_passed"), limited)), []);
    let mut evidence = ended("CANCELLED", Some("cancelled"), Asked::default());
    assert_eq!(rules(&evidence), [Rule::UnjustifiedEnd], "nobody asked for it");
    note(&mut evidence, Event::CancelAsked { request: "second".into() });
    assert_eq!(found(&evidence), []);
}

#[test]
fn an_end_by_infrastructure_or_for_no_known_reason_is_unjustified() {
    let doomed = Asked { doomed: true, deadline: true, forbidden: true };
    for code in ["node_unavailable", "estimate_refused", "pool_full", "unmineable", "never_heard_of"] {
        assert_eq!(rules(&ended("FAILED", Some(code), doomed)), [Rule::UnjustifiedEnd], "{code}");
        assert_eq!(rules(&ended("CANCELLED", Some(code), doomed)), [Rule::UnjustifiedEnd], "{code}");
    }
    assert_eq!(rules(&ended("FAILED", None, doomed)), [Rule::UnjustifiedEnd], "no code at all");
    let said = found(&ended("FAILED", Some("would_revert"), Asked::default()));
    assert_eq!(
        said,
        [(Rule::UnjustifiedEnd, "second (t-second) is FAILED, code would_revert, sub-state none".into())],
        "its contract refuses nothing"
    );
    assert_eq!(
        rules(&ended("CANCELLED", Some("deadline_passed"), Asked::default())),
        [Rule::UnjustifiedEnd],
        "it has no deadline"
    );
}

#[test]
fn attempts_are_numbered_without_holes_and_never_by_a_former_owner() {
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
    assert_eq!(rules(&evidence), [Rule::AttemptOrder], "a hole");
    evidence.attempts[3].ordinal = 2;
    assert_eq!(rules(&evidence), [Rule::AttemptOrder], "twice the same number");
    // Written in the order of tokens, and numbered against it.
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
fn a_stall_is_the_time_without_an_end_while_there_is_work() {
    let mut evidence = sound();
    // The first ends late; the second arrives meanwhile, which ends no wait.
    evidence.intents[0].finished_at = Some(12.0);
    assert_eq!(longest_stall(&evidence), 12.0);
    evidence.intents[1].finished_at = Some(30.0);
    assert_eq!(longest_stall(&evidence), 18.0);
}
