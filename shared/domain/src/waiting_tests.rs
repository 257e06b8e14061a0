//! Tests of `waiting`.

use super::*;

fn at(second: i64) -> DateTime<Utc> {
    DateTime::from_timestamp(second, 0).unwrap()
}

fn tx(state: TxState, sub_state: Option<&str>) -> TxFacts {
    TxFacts {
        state,
        sub_state: sub_state.map(|text| SubState::read(text).expect("a known sub-state")),
        error: sub_state.map(|_| "why".to_owned()),
        created_at: at(100),
        updated_at: at(101),
        blocked_since: sub_state.map(|_| at(102)),
        prepared_at: (state != TxState::Queued).then(|| at(103)),
        entered_at: None,
        not_before: None,
        ending: false,
    }
}

fn healthy() -> SubmitterFacts {
    SubmitterFacts {
        chain_id: ChainId(7),
        protect: None,
        paused: None,
        suspect: None,
        workers: Workers::Serve,
        halted: None,
        untaken: false,
        served_at: at(90),
        in_flight: 0,
        window_full: false,
        head: None,
        oldest_open: None,
        next_start: None,
    }
}

fn condition(since: i64) -> Option<Condition> {
    Some(Condition { since: at(since), text: Some("told.".into()) })
}

#[test]
fn every_reason_has_its_own_word() {
    let words: std::collections::HashSet<_> = WaitReason::ALL.iter().map(|reason| reason.as_str()).collect();
    assert_eq!(words.len(), WaitReason::ALL.len());
    assert!(words.iter().all(|word| word.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_')));
}

#[test]
fn every_state_that_is_not_final_has_a_reason() {
    let reason = |state| healthy().waiting(&tx(state, None), 0).reason;
    assert_eq!(reason(TxState::Queued), WaitReason::NextStep);
    assert_eq!(reason(TxState::InFlight), WaitReason::NextStep);
    assert_eq!(reason(TxState::Submitted), WaitReason::Block);
    assert_eq!(reason(TxState::Stuck), WaitReason::Block);
    assert_eq!(reason(TxState::Tracking), WaitReason::Confirmations);
    assert_eq!(reason(TxState::Protect), WaitReason::Protect);
}

#[test]
fn the_recorded_reason_of_a_transaction_is_told_with_its_text() {
    for (sub_state, reason) in [
        ("waiting_funds", WaitReason::Funds),
        ("waiting_fee", WaitReason::Fee),
        ("waiting_node", WaitReason::Node),
        ("waiting_signer", WaitReason::Signer),
    ] {
        let waiting = healthy().waiting(&tx(TxState::Queued, Some(sub_state)), 0);
        assert_eq!((waiting.reason, waiting.since), (reason, at(102)), "{waiting:?}");
        assert!(waiting.message.contains("(why). "), "{waiting:?}");
        let waiting = healthy().waiting(&tx(TxState::Submitted, Some(sub_state)), 0);
        assert_eq!((waiting.reason, waiting.since), (reason, at(103)), "{waiting:?}");
    }
    for (sub_state, reason) in [
        ("waiting_caller", WaitReason::Client),
        ("waiting_earlier", WaitReason::EarlierTransactions),
        ("checking_revert", WaitReason::RevertCheck),
        ("displaced", WaitReason::NextStep),
    ] {
        let waiting = healthy().waiting(&tx(TxState::Queued, Some(sub_state)), 0);
        assert_eq!((waiting.reason, waiting.since), (reason, at(101)), "{waiting:?}");
    }
    for (sub_state, reason) in [
        ("reserved", WaitReason::Client),
        ("lower_nonce_missing", WaitReason::EarlierTransactions),
        ("delegated_limit", WaitReason::EarlierTransactions),
        ("rejected", WaitReason::Rejected),
        ("nonce_used", WaitReason::Suspect),
        ("not_replaced", WaitReason::Block),
        ("unmined", WaitReason::Block),
    ] {
        assert_eq!(healthy().waiting(&tx(TxState::Stuck, Some(sub_state)), 0).reason, reason, "{sub_state}");
    }
    let tracked = healthy().waiting(&tx(TxState::Tracking, Some("waiting_node")), 0);
    assert_eq!(tracked.reason, WaitReason::Node);
    let cancelled = TxFacts { ending: true, ..tx(TxState::Submitted, None) };
    assert!(healthy().waiting(&cancelled, 0).message.contains("whichever is mined first"));
}

#[test]
fn a_condition_of_the_submitter_or_chain_comes_first_and_an_older_one_counts_from_the_request() {
    let queued = tx(TxState::Queued, Some("waiting_funds"));
    let mut facts = healthy();
    let mut shown = Vec::new();
    facts.suspect = condition(130);
    shown.push(facts.waiting(&queued, 0));
    facts.halted = condition(120);
    shown.push(facts.waiting(&queued, 0));
    facts.workers = Workers::ServeOthers;
    shown.push(facts.waiting(&queued, 0));
    facts.paused = condition(50);
    shown.push(facts.waiting(&queued, 0));
    facts.protect = condition(140);
    shown.push(facts.waiting(&queued, 0));
    let reasons: Vec<(WaitReason, DateTime<Utc>)> = shown.iter().map(|one| (one.reason, one.since)).collect();
    let expected = [
        (WaitReason::Suspect, at(130)),
        (WaitReason::ChainHalted, at(120)),
        (WaitReason::NoWorker, at(100)),
        (WaitReason::Paused, at(100)),
        (WaitReason::Protect, at(140)),
    ];
    assert_eq!(reasons, expected);
    assert!(shown[1].message.contains("chain 7 (told). "), "{shown:?}");
    assert_eq!(facts.head_waiting().unwrap().since, at(140), "of the submitter itself");
}

#[test]
fn sent_transactions_are_not_held_up_by_a_pause_or_a_suspicion() {
    let facts = SubmitterFacts { paused: condition(50), suspect: condition(50), ..healthy() };
    assert_eq!(facts.waiting(&tx(TxState::Submitted, None), 0).reason, WaitReason::Block);
    let facts = SubmitterFacts { protect: condition(50), ..healthy() };
    assert_eq!(facts.waiting(&tx(TxState::Submitted, None), 0).reason, WaitReason::Protect);
    assert_eq!(facts.waiting(&tx(TxState::Tracking, None), 0).reason, WaitReason::Confirmations);
}

#[test]
fn what_no_worker_states_is_no_evidence() {
    let queued = tx(TxState::Queued, None);
    let facts = |workers| SubmitterFacts { workers, ..healthy() };
    assert_eq!(facts(Workers::NotStated).waiting(&queued, 0).reason, WaitReason::NextStep);
    assert_eq!(facts(Workers::NotStated).head_waiting(), None);
    for workers in [Workers::None, Workers::ServeOthers] {
        assert_eq!(facts(workers).waiting(&queued, 0).reason, WaitReason::NoWorker);
        assert_eq!(facts(workers).head_waiting().unwrap().since, at(90));
        assert!(facts(workers).is_unserved());
    }
    let untaken = SubmitterFacts { untaken: true, ..healthy() };
    assert_eq!(untaken.waiting(&queued, 0).reason, WaitReason::NoWorker);
    assert!(untaken.waiting(&queued, 0).message.contains("its key"));
    assert!(SubmitterFacts { head: Some(queued), ..untaken.clone() }.is_unserved());
    let blocked = Some(tx(TxState::Queued, Some("waiting_funds")));
    assert!(!SubmitterFacts { head: blocked, ..untaken.clone() }.is_unserved());
    assert_eq!(untaken.waiting(&tx(TxState::Submitted, None), 0).reason, WaitReason::NoWorker);
}

#[test]
fn those_behind_tell_the_reason_of_the_first_or_how_many_there_are() {
    let queued = tx(TxState::Queued, None);
    let mut facts = SubmitterFacts { head: Some(tx(TxState::Queued, Some("waiting_funds"))), ..healthy() };
    let behind = facts.waiting(&queued, 3);
    assert_eq!(behind.reason, WaitReason::Funds);
    assert!(behind.message.starts_with("The first transaction in the queue waits for funds: "), "{behind:?}");
    facts.head = Some(tx(TxState::Queued, None));
    assert_eq!(facts.waiting(&queued, 1).message, "1 transaction is before it in the queue.");
    assert!(facts.waiting(&queued, AHEAD_CAP).message.starts_with("1000 transactions or more"));
    (facts.in_flight, facts.window_full) = (2, true);
    assert_eq!(facts.waiting(&queued, 5).message, "5 transactions are before it in the queue, and 2 sent.");
    let head = facts.waiting(&queued, 0);
    assert_eq!(head.reason, WaitReason::EarlierTransactions);
    assert_eq!(head.message, "2 earlier transactions are sent, and no more may be at once.");
}

#[test]
fn a_later_start_is_the_reason_until_then() {
    let later = TxFacts { not_before: Some(at(999)), ..tx(TxState::Queued, None) };
    let facts = SubmitterFacts { paused: condition(50), next_start: Some(later.clone()), ..healthy() };
    let waiting = facts.waiting(&later, 0);
    assert_eq!((waiting.reason, waiting.since), (WaitReason::NotBefore, at(100)));
    assert!(waiting.message.contains("1970-01-01T00:16:39"), "{waiting:?}");
    assert_eq!(facts.head_waiting().unwrap().reason, WaitReason::Paused);
    let facts = SubmitterFacts { paused: None, ..facts };
    assert_eq!(facts.head_waiting().unwrap().reason, WaitReason::NotBefore);
}
