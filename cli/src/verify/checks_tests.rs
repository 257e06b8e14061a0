//! Tests that each check finds the violations it is for.

use super::super::facts::{InBlock, IntentFacts, Mined, ReservationFacts};
use super::*;

fn attempt(tx_id: &str, nonce: u64) -> AttemptFacts {
    AttemptFacts {
        tx_id: tx_id.into(),
        ordinal: 1,
        nonce,
        placeholder: false,
        tx_hash: format!("0x{tx_id}{nonce}"),
        fencing_token: 1,
        displaced: false,
    }
}

/// Three intents confirmed at 0, 1, 2 and one queued.
fn sound() -> SubmitterFacts {
    let attempts = vec![attempt("a", 0), attempt("b", 1), attempt("c", 2)];
    let confirmed = |(tx_id, nonce): (&str, u64)| IntentFacts {
        tx_id: tx_id.into(),
        state: TxState::Confirmed,
        nonce: Some(nonce),
    };
    let mut intents: Vec<IntentFacts> = [("a", 0), ("b", 1), ("c", 2)].map(confirmed).to_vec();
    intents.push(IntentFacts { tx_id: "d".into(), state: TxState::Queued, nonce: None });
    SubmitterFacts {
        address: "0x1".into(),
        cursor: Some(CursorFacts { start: 0, next: 3, open_from: 3, protect: None }),
        shared: false,
        external: Vec::new(),
        intents,
        mined: attempts.iter().map(|attempt| (attempt.tx_hash.clone(), Mined { succeeded: true })).collect(),
        in_blocks: Some(attempts.iter().map(|attempt| in_block(&attempt.tx_hash, attempt.nonce)).collect()),
        attempts,
        reservations: Vec::new(),
        counts: Vec::new(),
        chain_count: 3,
    }
}

/// With a cap of 100.
fn count(tx_id: &str, day: u32, value: u64, total: u64) -> CountFacts {
    CountFacts {
        tx_id: tx_id.into(),
        day: format!("2026-01-{day:02}"),
        value: value.into(),
        limit: Some(100.into()),
        day_total: Some(total.into()),
        fencing_token: 1,
    }
}

fn reservation(tx_id: &str, nonce: u64, state: ReservationState) -> ReservationFacts {
    ReservationFacts { tx_id: tx_id.into(), nonce, state }
}

fn in_block(tx_hash: &str, nonce: u64) -> InBlock {
    InBlock { tx_hash: tx_hash.into(), nonce, block: nonce + 1 }
}

fn broken(facts: &SubmitterFacts, rules: Rules) -> Vec<&'static str> {
    CHECKS.iter().filter(|(_, check)| !check(facts, rules).is_empty()).map(|(name, _)| *name).collect()
}

#[track_caller]
fn breaks(change: impl FnOnce(&mut SubmitterFacts), expected: &str) {
    let mut facts = sound();
    change(&mut facts);
    let broken = broken(&facts, Rules::default());
    assert!(broken.iter().any(|name| name.contains(expected)), "{expected}: {broken:?}");
}

#[test]
fn a_sound_submitter_and_an_idle_one_pass() {
    assert!(broken(&sound(), Rules::default()).is_empty());
    let mut idle = sound();
    (idle.cursor, idle.chain_count) = (None, 7);
    idle.attempts.clear();
    idle.mined.clear();
    idle.intents.retain(|intent| intent.state == TxState::Queued);
    assert!(broken(&idle, Rules::default()).is_empty());
}

#[test]
fn each_kind_of_violation_is_found() {
    breaks(|f| f.chain_count = 4, "contiguous");
    breaks(|f| assert!(f.mined.remove("0xb1").is_some()), "contiguous");
    breaks(|f| assert!(f.mined.remove("0xc2").is_some()), "final states");
    breaks(|f| f.in_blocks.as_mut().unwrap().push(in_block("0xexternal", 3)), "is recorded");
    breaks(|f| drop(f.attempts.remove(2)), "is recorded");
    breaks(|f| f.cursor.as_mut().unwrap().next = 4, "signed transaction");
    breaks(|f| f.cursor.as_mut().unwrap().next = 2, "signed transaction");
    breaks(|f| f.attempts.push(attempt("d", 2)), "two intents");
    breaks(|f| f.attempts.push(attempt("d", 3)), "in progress");
    breaks(|f| f.mined.get_mut("0xa0").unwrap().succeeded = false, "final states");
    breaks(|f| f.intents[0].state = TxState::Failed, "final states");
    breaks(|f| f.attempts[0].fencing_token = 2, "tokens");
    breaks(|f| f.attempts[0].ordinal = 2, "numbered");
    breaks(
        |f| {
            let earlier_owner = AttemptFacts { ordinal: 2, fencing_token: 0, ..attempt("a", 0) };
            f.attempts.push(earlier_owner);
        },
        "numbered",
    );
    breaks(|f| f.intents[3].state = TxState::Submitted, "in progress");
    breaks(|f| f.intents[2].state = TxState::Tracking, "in progress");
    breaks(
        |f| {
            let again = AttemptFacts { displaced: true, ..attempt("a", 1) };
            f.mined.insert(again.tx_hash.clone(), Mined { succeeded: true });
            f.attempts.push(again);
        },
        "two effects",
    );
}

#[test]
fn daily_totals_must_add_up_within_their_caps() {
    let counted = || SubmitterFacts {
        counts: vec![count("a", 1, 30, 30), count("b", 1, 40, 70), count("c", 2, 90, 90)],
        ..sound()
    };
    assert!(broken(&counted(), Rules::default()).is_empty());
    let changes: [fn(&mut Vec<CountFacts>); 10] = [
        |counts| counts[1].day_total = Some(69.into()),
        |counts| counts[0].value = 31.into(),
        |counts| drop(counts.remove(0)),
        |counts| counts[1].limit = Some(69.into()),
        |counts| counts[1].limit = None,
        |counts| counts[2].day_total = None,
        |counts| counts.push(count("c", 2, 1, 91)),
        |counts| counts[0].fencing_token = 2,
        |counts| counts.push(count("d", 3, 1, 1)),
        |counts| counts.push(count("nobody", 3, 1, 1)),
    ];
    for (number, change) in changes.into_iter().enumerate() {
        let mut facts = counted();
        change(&mut facts.counts);
        let broken = broken(&facts, Rules::default());
        assert!(broken.len() == 1 && broken[0].starts_with("daily totals"), "change {number}: {broken:?}");
    }
    let mut facts = counted();
    facts.counts.push(count("pruned", 3, 1, 1));
    assert!(broken(&facts, Rules { pruned: true, ..Rules::default() }).is_empty());
    // Midnight passed between two commits, and the database's clock stepped back before the third.
    facts.counts = vec![count("a", 1, 90, 90), count("b", 2, 100, 100), count("c", 1, 10, 100)];
    assert!(broken(&facts, Rules::default()).is_empty());
}

#[test]
fn a_reserved_nonce_needs_a_placeholder_and_a_used_one_its_transaction() {
    let placeholder = AttemptFacts { placeholder: true, tx_hash: "0xp".into(), ..attempt("a", 0) };
    let mut facts = sound();
    facts.reservations.push(reservation("a", 0, ReservationState::Used));
    facts.attempts.push(placeholder.clone());
    assert!(broken(&facts, Rules::default()).is_empty(), "an unused placeholder is not mined");
    breaks(|f| f.reservations.push(reservation("a", 0, ReservationState::Used)), "has a placeholder");
    breaks(|f| f.reservations.push(reservation("b", 1, ReservationState::Reserved)), "has a placeholder");
    breaks(
        |f| {
            f.reservations.push(reservation("a", 0, ReservationState::Used));
            f.attempts[0].placeholder = true;
        },
        "has a placeholder",
    );
    breaks(
        |f| {
            f.reservations.push(reservation("a", 0, ReservationState::Reserved));
            f.attempts.push(placeholder.clone());
            f.intents[0].nonce = None;
        },
        "has a placeholder",
    );
}

#[test]
fn an_external_transaction_is_accepted_only_in_protect() {
    let mut facts = sound();
    facts.chain_count = 4;
    facts.in_blocks.as_mut().unwrap().push(in_block("0xexternal", 3));
    assert!(!broken(&facts, Rules::default()).is_empty());
    facts.cursor.as_mut().unwrap().protect = Some("nonce 3 was used by an external transaction".into());
    assert!(broken(&facts, Rules::default()).is_empty());
}

/// An external transaction at nonce 3, a recorded one at 4.
fn interleaved() -> SubmitterFacts {
    let mut facts = sound();
    let recorded = attempt("d", 4);
    facts.in_blocks.as_mut().unwrap().extend([in_block("0xexternal", 3), in_block(&recorded.tx_hash, 4)]);
    facts.mined.insert(recorded.tx_hash.clone(), Mined { succeeded: true });
    facts.attempts.push(recorded);
    facts.intents[3] = IntentFacts { tx_id: "d".into(), state: TxState::Confirmed, nonce: Some(4) };
    (facts.cursor.as_mut().unwrap().next, facts.chain_count) = (5, 5);
    facts
}

#[test]
fn external_nonces_of_a_shared_key_are_accepted_only_where_recorded() {
    let mut facts = interleaved();
    assert!(!broken(&facts, Rules::default()).is_empty(), "a strict submitter skipped a nonce");
    facts.shared = true;
    let unrecorded = broken(&facts, Rules::default());
    assert!(unrecorded.iter().any(|name| name.contains("signed transaction")), "{unrecorded:?}");
    facts.external = vec![(3, 3)];
    assert!(broken(&facts, Rules::default()).is_empty());
    facts.shared = false;
    assert!(broken(&facts, Rules::default()).is_empty(), "recorded external nonces stay valid");
    facts.external = vec![(2, 2)];
    assert!(!broken(&facts, Rules::default()).is_empty());
}

#[test]
fn a_shared_key_may_be_ahead_of_its_lane() {
    let mut facts = interleaved();
    (facts.shared, facts.external) = (true, vec![(3, 3)]);
    facts.chain_count = 6;
    facts.in_blocks.as_mut().unwrap().push(in_block("0xlater", 5));
    assert!(broken(&facts, Rules::default()).is_empty());
    assert!(facts.mined.remove("0xb1").is_some());
    assert!(broken(&facts, Rules::default()).iter().any(|name| name.contains("contiguous")));
}

#[test]
fn an_adopted_sequence_is_checked_from_its_new_start() {
    let mut facts = sound();
    facts.cursor = Some(CursorFacts { start: 5, next: 6, open_from: 6, protect: None });
    facts.chain_count = 6;
    facts.in_blocks.as_mut().unwrap().extend([in_block("0xexternal", 3), in_block("0xexternal", 4)]);
    let fresh = attempt("e", 5);
    facts.mined.insert(fresh.tx_hash.clone(), Mined { succeeded: true });
    facts.attempts.push(fresh);
    facts.intents.push(IntentFacts { tx_id: "e".into(), state: TxState::Confirmed, nonce: Some(5) });
    assert!(broken(&facts, Rules::default()).is_empty());
}

#[test]
fn pruned_rows_are_missed_only_without_pruning() {
    let mut facts = sound();
    facts.attempts.remove(0);
    facts.intents.remove(0);
    facts.mined.remove("0xa0");
    assert!(!broken(&facts, Rules::default()).is_empty());
    assert!(broken(&facts, Rules { pruned: true, all_final: false }).is_empty());
}

#[test]
fn a_filled_nonce_and_a_reverted_call_are_sound() {
    let mut facts = sound();
    facts.intents[1].state = TxState::Cancelled;
    facts.mined.remove("0xb1");
    let filler = AttemptFacts { placeholder: true, tx_hash: "0xfill".into(), ..attempt("b", 1) };
    facts.mined.insert(filler.tx_hash.clone(), Mined { succeeded: true });
    facts.attempts.push(filler);
    facts.intents[2].state = TxState::Failed;
    facts.mined.get_mut("0xc2").unwrap().succeeded = false;
    assert!(broken(&facts, Rules::default()).is_empty());
}

#[test]
fn unfinished_transactions_are_violations_only_with_all_final() {
    assert!(!broken(&sound(), Rules { all_final: true, pruned: false }).is_empty());
}
