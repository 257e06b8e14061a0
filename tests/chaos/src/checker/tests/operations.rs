//! Which ends and nonces operations justify, and which not.

use super::*;
use crate::history::ReservationPlan;

/// An external transaction is mined at this nonce instead of ours.
fn consumed_outside(evidence: &mut Evidence, nonce: usize) {
    let hash = format!("h-outside-{nonce}");
    record(evidence, Event::Outside { submitter: OURS.into(), nonce: nonce as u64, hash: hash.clone() });
    evidence.mined[nonce].hash = hash;
    evidence.mined[nonce].request = None;
}

/// The second request lost nonce 1 to an external transaction, was queued again and was mined at nonce 2.
fn displaced() -> Evidence {
    let mut evidence = sound();
    consumed_outside(&mut evidence, 1);
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
fn an_intent_that_lost_its_nonce_and_was_mined_at_another_is_valid() {
    assert_eq!(found(&displaced()), []);
}

#[test]
fn a_second_nonce_without_external_use_is_found() {
    let mut evidence = displaced();
    evidence.history.retain(|entry| !matches!(entry.event, Event::Outside { .. }));
    let findings = found(&evidence);
    let second = "t-second had nonce 1, which no external transaction consumed, and got nonce 2";
    assert!(findings.contains(&(Rule::SecondNonce, second.into())), "{findings:?}");
    // Used outside, but the first attempt was mined nevertheless.
    let mut evidence = displaced();
    evidence.mined[1].hash = "h-second".into();
    evidence.mined[1].request = Some("second".into());
    let rules = rules(&evidence);
    assert!(rules.contains(&Rule::SecondNonce) && rules.contains(&Rule::Duplicate), "{rules:?}");
}

#[test]
fn an_intent_that_lost_its_nonce_and_was_never_mined_is_lost() {
    let mut evidence = sound();
    consumed_outside(&mut evidence, 1);
    assert_eq!(rules(&evidence), [Rule::Loss]);
    evidence.intents[1].state = "QUEUED".into();
    assert_eq!(rules(&evidence), [Rule::Loss]);
    evidence.intents[1].state = "FAILED".into();
    evidence.intents[1].code = Some("nonce_taken".into());
    assert_eq!(rules(&evidence), [Rule::UnjustifiedEnd], "external use of the key is no reason to fail it");
}

#[test]
fn an_unrecorded_transaction_at_our_nonce_is_found() {
    let mut evidence = sound();
    evidence.mined[1].hash = "h-unknown".into();
    assert!(rules(&evidence).contains(&Rule::Unrecorded));
}

#[test]
fn a_submitter_protected_response_needs_external_use_of_that_key() {
    let refusal = |op| Event::Answer {
        op,
        request: "second".into(),
        status: 409,
        tx_id: None,
        code: Some("submitter_protected".into()),
    };
    let mut evidence = sound();
    record(&mut evidence, refusal(7));
    assert_eq!(rules(&evidence), [Rule::Identity]);
    let mut evidence = sound();
    let outside = Event::Outside { submitter: OURS.into(), nonce: 5, hash: "h-dropped".into() };
    record(&mut evidence, outside);
    record(&mut evidence, refusal(7));
    assert_eq!(found(&evidence), []);
    let mut evidence = sound();
    record(&mut evidence, Event::Outside { submitter: "0xbb".into(), nonce: 5, hash: "h".into() });
    record(&mut evidence, refusal(7));
    assert_eq!(rules(&evidence), [Rule::Identity], "another key");
}

/// The second request is one of a reserving client.
fn reserved(plan: ReservationPlan, bound: bool) -> Evidence {
    let mut evidence = sound();
    evidence.history.retain(|entry| match &entry.event {
        Event::Submit { request, .. } | Event::Answer { request, .. } => request != "second",
        _ => true,
    });
    record(&mut evidence, Event::Reserve { request: "second".into(), submitter: OURS.into(), plan });
    let outcome = if bound { "t-second" } else { "the call was dropped" };
    record(&mut evidence, Event::Reserved { request: "second".into(), bound, outcome: outcome.into() });
    evidence
}

fn fail_reserved(evidence: &mut Evidence) {
    evidence.intents[1].state = "FAILED".into();
    evidence.intents[1].code = Some("handler_failed".into());
    evidence.mined[1].request = None;
}

#[test]
fn an_accepted_reservation_must_not_fail_and_an_abandoned_one_may() {
    assert_eq!(found(&reserved(ReservationPlan::Answer, true)), []);
    let mut refused = reserved(ReservationPlan::Refuse, false);
    fail_reserved(&mut refused);
    assert_eq!(found(&refused), []);
    let mut bound = reserved(ReservationPlan::Answer, true);
    fail_reserved(&mut bound);
    assert_eq!(rules(&bound), [Rule::UnjustifiedEnd]);
    // Without a reservation.
    let mut evidence = sound();
    fail_reserved(&mut evidence);
    assert_eq!(rules(&evidence), [Rule::UnjustifiedEnd]);
    let mut open = reserved(ReservationPlan::Hang, false);
    open.intents[1].state = "IN_FLIGHT".into();
    assert_eq!(rules(&open), [Rule::Loss], "a reserved nonce must become final, too");
}

#[test]
fn a_reservation_whose_nonce_was_consumed_outside_may_fail() {
    let fail = |evidence: &mut Evidence| {
        evidence.intents[1].state = "FAILED".into();
        evidence.intents[1].code = Some("nonce_taken".into());
    };
    let mut lost = reserved(ReservationPlan::Answer, true);
    fail(&mut lost);
    consumed_outside(&mut lost, 1);
    assert_eq!(found(&lost), []);
    let mut untouched = reserved(ReservationPlan::Answer, true);
    fail(&mut untouched);
    untouched.mined[1].request = None;
    assert_eq!(rules(&untouched), [Rule::UnjustifiedEnd], "its nonce was not consumed outside");
}

#[test]
fn a_forbidden_effect_is_found_and_a_policy_code_needs_a_forbidden_request() {
    let forbidden = RequestTraits { forbidden: true, ..RequestTraits::default() };
    let mut evidence = ended("CONFIRMED", None, forbidden);
    evidence.mined[1].request = Some("second".into());
    assert_eq!(rules(&evidence), [Rule::Forbidden]);
    let allowed = ended("FAILED", Some("value_cap_exceeded"), RequestTraits::default());
    assert_eq!(rules(&allowed), [Rule::UnjustifiedEnd]);
}

#[test]
fn on_a_shared_key_a_later_request_may_use_an_earlier_free_nonce() {
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
fn an_end_as_invalid_needs_a_node_that_reported_this_transaction_as_invalid() {
    let mut evidence = ended("FAILED", Some("unmineable"), RequestTraits::default());
    assert_eq!(rules(&evidence), [Rule::UnjustifiedEnd]);
    evidence.called_invalid = vec!["h-first".into(), "second".into()];
    assert_eq!(
        rules(&evidence),
        [Rule::UnjustifiedEnd],
        "another transaction, and an estimate is not a send"
    );
    evidence.called_invalid = vec!["h-second".into()];
    assert_eq!(found(&evidence), []);
    let mut evidence = ended("FAILED", Some("invalid"), RequestTraits::default());
    evidence.called_invalid = vec!["first".into()];
    assert_eq!(rules(&evidence), [Rule::UnjustifiedEnd]);
    evidence.called_invalid = vec!["second".into()];
    assert_eq!(found(&evidence), []);
}

#[test]
fn protect_without_external_use_is_a_false_alarm() {
    let mut evidence = sound();
    evidence.protected = vec![OURS.into()];
    assert_eq!(rules(&evidence), [Rule::FalseAlarm]);
    record(&mut evidence, Event::Outside { submitter: OURS.into(), nonce: 5, hash: "h-dropped".into() });
    assert_eq!(found(&evidence), []);
}
