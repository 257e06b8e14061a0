//! Operations: what they explain, and what they do not.

use super::*;
use crate::chaos::history::HoldPlan;

/// Somebody else uses the key at this nonce, and it is mined there instead of ours.
fn taken_outside(evidence: &mut Evidence, nonce: usize) {
    let hash = format!("h-outside-{nonce}");
    note(evidence, Event::Outside { submitter: OURS.into(), nonce: nonce as u64, hash: hash.clone() });
    evidence.mined[nonce].hash = hash;
    evidence.mined[nonce].request = None;
}

/// The second request lost nonce 1 to somebody else, was queued again and has happened at nonce 2.
fn displaced() -> Evidence {
    let mut evidence = sound();
    taken_outside(&mut evidence, 1);
    evidence.intents[1].nonce = Some(2);
    let again =
        Attempt { nonce: 2, hash: "h-again".into(), ordinal: 2, token: 6, ..evidence.attempts[1].clone() };
    evidence.attempts.push(again);
    evidence.sent.push("h-again".into());
    evidence.mined.push(Mined {
        submitter: OURS.into(),
        nonce: 2,
        hash: "h-again".into(),
        block: 20,
        succeeded: true,
        request: Some("second".into()),
    });
    evidence
}

#[test]
fn an_intent_that_lost_its_nonce_to_others_and_happened_once_at_another_is_in_order() {
    assert_eq!(found(&displaced()), []);
}

#[test]
fn an_intent_that_is_given_another_nonce_without_having_lost_the_first_is_found() {
    let mut evidence = displaced();
    evidence.history.retain(|entry| !matches!(entry.event, Event::Outside { .. }));
    let said = found(&evidence);
    let second = "t-second had nonce 1, which nobody else consumed, and was given nonce 2";
    assert!(said.contains(&(Rule::SecondNonce, second.into())), "{said:?}");
    // Used outside, but the bytes at the first nonce were mined after all.
    let mut evidence = displaced();
    evidence.mined[1].hash = "h-second".into();
    evidence.mined[1].request = Some("second".into());
    let rules = rules(&evidence);
    assert!(rules.contains(&Rule::SecondNonce) && rules.contains(&Rule::Duplicate), "{rules:?}");
}

#[test]
fn an_intent_that_lost_its_nonce_and_never_happened_again_is_lost() {
    let mut evidence = sound();
    taken_outside(&mut evidence, 1);
    assert_eq!(rules(&evidence), [Rule::Loss]);
    evidence.intents[1].state = "QUEUED".into();
    assert_eq!(rules(&evidence), [Rule::Loss]);
    evidence.intents[1].state = "FAILED".into();
    evidence.intents[1].code = Some("nonce_taken".into());
    assert_eq!(rules(&evidence), [Rule::UnjustifiedEnd], "that others used the key is no reason to fail it");
}

#[test]
fn a_transaction_at_our_nonce_that_nobody_noted_is_found() {
    let mut evidence = sound();
    evidence.mined[1].hash = "h-unknown".into();
    assert!(rules(&evidence).contains(&Rule::Unrecorded));
}

#[test]
fn a_refusal_because_of_protection_needs_a_use_of_that_key() {
    let refusal = |op| Event::Answer {
        op,
        request: "second".into(),
        status: 409,
        tx_id: None,
        code: Some("submitter_protected".into()),
    };
    let mut evidence = sound();
    note(&mut evidence, refusal(7));
    assert_eq!(rules(&evidence), [Rule::Identity]);
    let mut evidence = sound();
    let outside = Event::Outside { submitter: OURS.into(), nonce: 5, hash: "h-dropped".into() };
    note(&mut evidence, outside);
    note(&mut evidence, refusal(7));
    assert_eq!(found(&evidence), []);
    let mut evidence = sound();
    note(&mut evidence, Event::Outside { submitter: "0xbb".into(), nonce: 5, hash: "h".into() });
    note(&mut evidence, refusal(7));
    assert_eq!(rules(&evidence), [Rule::Identity], "of another key");
}

/// The second request is that of a caller who held its nonce.
fn held(plan: HoldPlan, bound: bool) -> Evidence {
    let mut evidence = sound();
    evidence.history.retain(|entry| match &entry.event {
        Event::Submit { request, .. } | Event::Answer { request, .. } => request != "second",
        _ => true,
    });
    note(&mut evidence, Event::Reserve { request: "second".into(), submitter: OURS.into(), plan });
    let outcome = if bound { "t-second" } else { "the call was dropped" };
    note(&mut evidence, Event::Reserved { request: "second".into(), bound, outcome: outcome.into() });
    evidence
}

fn fail_held(evidence: &mut Evidence) {
    evidence.intents[1].state = "FAILED".into();
    evidence.intents[1].code = Some("handler_failed".into());
    evidence.mined[1].request = None;
}

#[test]
fn a_caller_whose_answer_was_taken_is_not_failed_and_one_that_gave_up_may_be() {
    assert_eq!(found(&held(HoldPlan::Answer, true)), []);
    let mut refused = held(HoldPlan::Refuse, false);
    fail_held(&mut refused);
    assert_eq!(found(&refused), []);
    let mut bound = held(HoldPlan::Answer, true);
    fail_held(&mut bound);
    assert_eq!(rules(&bound), [Rule::UnjustifiedEnd]);
    // Nobody held a nonce.
    let mut evidence = sound();
    fail_held(&mut evidence);
    assert_eq!(rules(&evidence), [Rule::UnjustifiedEnd]);
    let mut open = held(HoldPlan::Hang, false);
    open.intents[1].state = "IN_FLIGHT".into();
    assert_eq!(rules(&open), [Rule::Loss], "a nonce that is held ends, too");
}

#[test]
fn a_caller_whose_nonce_somebody_else_took_may_be_failed_and_nobody_else() {
    let fail = |evidence: &mut Evidence| {
        evidence.intents[1].state = "FAILED".into();
        evidence.intents[1].code = Some("nonce_taken".into());
    };
    let mut lost = held(HoldPlan::Answer, true);
    fail(&mut lost);
    taken_outside(&mut lost, 1);
    assert_eq!(found(&lost), []);
    let mut kept = held(HoldPlan::Answer, true);
    fail(&mut kept);
    kept.mined[1].request = None;
    assert_eq!(rules(&kept), [Rule::UnjustifiedEnd], "nobody took its nonce");
}

#[test]
fn what_a_policy_forbids_and_happens_is_found_and_what_it_allows_is_not_failed_by_it() {
    let forbidden = Asked { forbidden: true, ..Asked::default() };
    let mut evidence = ended("CONFIRMED", None, forbidden);
    evidence.mined[1].request = Some("second".into());
    assert_eq!(rules(&evidence), [Rule::Forbidden]);
    let allowed = ended("FAILED", Some("value_cap_exceeded"), Asked::default());
    assert_eq!(rules(&allowed), [Rule::UnjustifiedEnd]);
}

#[test]
fn on_a_shared_key_a_later_request_may_fill_a_nonce_that_others_left() {
    let mut evidence = sound();
    evidence.intents.swap(0, 1);
    for (row, nonce) in [(0, 0), (1, 1)] {
        evidence.intents[row].nonce = Some(nonce);
    }
    evidence.attempts[0].nonce = 1;
    evidence.attempts[1].nonce = 0;
    let strict = rules(&evidence);
    assert!(strict.contains(&Rule::Order) && strict.contains(&Rule::StaleWriter), "{strict:?}");
    evidence.shared = vec![OURS.into()];
    assert_eq!(found(&evidence), []);
}

#[test]
fn an_end_as_invalid_needs_a_node_that_called_this_transaction_so() {
    let mut evidence = ended("FAILED", Some("unmineable"), Asked::default());
    assert_eq!(rules(&evidence), [Rule::UnjustifiedEnd]);
    evidence.called_invalid = vec!["h-first".into(), "second".into()];
    assert_eq!(rules(&evidence), [Rule::UnjustifiedEnd], "other bytes, and an estimate is no send");
    evidence.called_invalid = vec!["h-second".into()];
    assert_eq!(found(&evidence), []);
    let mut evidence = ended("FAILED", Some("invalid"), Asked::default());
    evidence.called_invalid = vec!["first".into()];
    assert_eq!(rules(&evidence), [Rule::UnjustifiedEnd]);
    evidence.called_invalid = vec!["second".into()];
    assert_eq!(found(&evidence), []);
}

#[test]
fn a_submitter_that_stops_without_a_use_of_its_key_is_a_false_alarm() {
    let mut evidence = sound();
    evidence.protected = vec![OURS.into()];
    assert_eq!(rules(&evidence), [Rule::FalseAlarm]);
    note(&mut evidence, Event::Outside { submitter: OURS.into(), nonce: 5, hash: "h-dropped".into() });
    assert_eq!(found(&evidence), []);
}
