//! The invariants, each a function of the facts about one submitter. No database, no node, no clock.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use gapless::domain::{ReservationState, TxState};

use super::facts::{AttemptFacts, SubmitterFacts};

/// What the audit insists on beyond the invariants, or lets pass.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rules {
    /// Nothing may be left unfinished.
    pub(super) all_final: bool,
    /// Old finished rows are removed in this deployment: the sequence is checked from the oldest that is left.
    pub(super) pruned: bool,
}

pub(super) type Check = fn(&SubmitterFacts, Rules) -> Vec<String>;

/// The one check that reads blocks; without them it says nothing.
pub(super) const NEEDS_SCAN: &str = "every transaction in the blocks is recorded";

/// In the order they are printed. Each answers the violations it found, in words.
pub(super) const CHECKS: [(&str, Check); 9] = [
    ("nonces on chain are contiguous and all ours", contiguous_on_chain),
    (NEEDS_SCAN, blocks_are_recorded),
    ("every nonce given has its bytes", given_nonces_have_bytes),
    ("every nonce shown to a caller has its placeholder", shown_nonces_have_placeholders),
    ("no nonce carries two intents", one_intent_per_nonce),
    ("no intent has two effects", one_effect_per_intent),
    ("final states agree with the chain", final_states_agree),
    ("every request is final or being worked on", nothing_is_lost),
    ("fencing tokens never fall along the nonces", tokens_never_fall),
];

fn live(facts: &SubmitterFacts) -> impl Iterator<Item = &AttemptFacts> {
    facts.attempts.iter().filter(|attempt| !attempt.displaced)
}

fn is_mined(facts: &SubmitterFacts, attempt: &AttemptFacts) -> bool {
    facts.mined.contains_key(&attempt.tx_hash)
}

/// The first nonce whose attempts the database should still have.
fn first_kept(facts: &SubmitterFacts, start: u64, rules: Rules) -> u64 {
    let oldest = live(facts).map(|attempt| attempt.nonce).filter(|nonce| *nonce >= start).min();
    match (rules.pruned, oldest, &facts.cursor) {
        (false, ..) => start,
        (true, Some(oldest), _) => oldest,
        (true, None, Some(cursor)) => cursor.next,
        (true, None, None) => start,
    }
}

/// Each nonce the chain has counted was consumed by exactly one of our attempts: so none is missing, and nothing
/// from our keys is unknown to us. A submitter in PROTECT has noticed a stranger and stopped, as it should.
fn contiguous_on_chain(facts: &SubmitterFacts, rules: Rules) -> Vec<String> {
    let Some(cursor) = &facts.cursor else {
        let mined = facts.attempts.iter().filter(|attempt| is_mined(facts, attempt)).count();
        return (mined > 0).then(|| format!("{mined} mined attempts, but no cursor")).into_iter().collect();
    };
    let mut ours: HashMap<u64, usize> = HashMap::new();
    for attempt in facts.attempts.iter().filter(|attempt| is_mined(facts, attempt)) {
        *ours.entry(attempt.nonce).or_default() += 1;
    }
    let mut violations = Vec::new();
    for nonce in first_kept(facts, cursor.start, rules)..facts.chain_count {
        match ours.get(&nonce) {
            Some(1) => {}
            Some(several) => violations.push(format!("nonce {nonce}: {several} of our attempts are mined")),
            None if cursor.protect.is_some() => {}
            None => violations.push(format!("nonce {nonce}: consumed on chain, and not by us")),
        }
    }
    violations
}

/// The same from the other side: whatever the blocks hold from this address is one of our attempts. Strangers are
/// excused before the sequence began, and where the submitter has stopped because of them.
fn blocks_are_recorded(facts: &SubmitterFacts, rules: Rules) -> Vec<String> {
    let (Some(in_blocks), Some(cursor)) = (&facts.in_blocks, &facts.cursor) else { return Vec::new() };
    let recorded: HashSet<&str> = facts.attempts.iter().map(|attempt| attempt.tx_hash.as_str()).collect();
    let first = first_kept(facts, cursor.start, rules);
    let strangers = in_blocks.iter().filter(|found| {
        found.nonce >= first && cursor.protect.is_none() && !recorded.contains(found.tx_hash.as_str())
    });
    strangers
        .map(|found| format!("block {}: {} at nonce {} is unknown", found.block, found.tx_hash, found.nonce))
        .collect()
}

fn given_nonces_have_bytes(facts: &SubmitterFacts, rules: Rules) -> Vec<String> {
    let have: BTreeSet<u64> = live(facts).map(|attempt| attempt.nonce).collect();
    let mut violations: Vec<String> = Vec::new();
    if let Some(cursor) = &facts.cursor {
        let first = first_kept(facts, cursor.start, rules);
        let missing = (first..cursor.next).filter(|nonce| !have.contains(nonce));
        violations.extend(missing.map(|nonce| format!("nonce {nonce}: given, but without bytes")));
        let beyond = have.range(cursor.next..);
        violations.extend(
            beyond.map(|nonce| format!("nonce {nonce}: has bytes, but the cursor is at {}", cursor.next)),
        );
    }
    violations
}

/// A nonce that code outside has seen was recorded together with the bytes that consume it without that code, and one
/// that is used has the caller's transaction beside them.
fn shown_nonces_have_placeholders(facts: &SubmitterFacts, _: Rules) -> Vec<String> {
    let kinds: HashSet<(&str, u64, bool)> = facts
        .attempts
        .iter()
        .map(|attempt| (attempt.tx_id.as_str(), attempt.nonce, attempt.placeholder))
        .collect();
    let mut violations = Vec::new();
    for reservation in &facts.reservations {
        let (tx_id, nonce, state) = (reservation.tx_id.as_str(), reservation.nonce, reservation.state);
        if !kinds.contains(&(tx_id, nonce, true)) {
            violations.push(format!("nonce {nonce}: {state} for {tx_id}, but without a placeholder"));
        }
        if state == ReservationState::Used && !kinds.contains(&(tx_id, nonce, false)) {
            violations.push(format!("nonce {nonce}: {state} for {tx_id}, but without its transaction"));
        }
        let carried =
            facts.intents.iter().find(|intent| intent.tx_id == tx_id).and_then(|intent| intent.nonce);
        if state == ReservationState::Reserved && carried != Some(nonce) {
            violations.push(format!("nonce {nonce}: {state} for {tx_id}, which does not have it"));
        }
    }
    violations
}

fn one_intent_per_nonce(facts: &SubmitterFacts, _: Rules) -> Vec<String> {
    let mut carried: BTreeMap<u64, BTreeSet<&str>> = BTreeMap::new();
    for attempt in live(facts) {
        carried.entry(attempt.nonce).or_default().insert(&attempt.tx_id);
    }
    for intent in &facts.intents {
        if let Some(nonce) = intent.nonce {
            carried.entry(nonce).or_default().insert(&intent.tx_id);
        }
    }
    let several = carried.into_iter().filter(|(_, intents)| intents.len() > 1);
    several.map(|(nonce, intents)| format!("nonce {nonce}: {}", Vec::from_iter(intents).join(", "))).collect()
}

fn one_effect_per_intent(facts: &SubmitterFacts, _: Rules) -> Vec<String> {
    let mut effects: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    let mined = facts.attempts.iter().filter(|attempt| !attempt.placeholder && is_mined(facts, attempt));
    for attempt in mined {
        effects.entry(&attempt.tx_id).or_default().push(&attempt.tx_hash);
    }
    let several = effects.into_iter().filter(|(_, hashes)| hashes.len() > 1);
    several.map(|(tx_id, hashes)| format!("{tx_id}: {}", hashes.join(", "))).collect()
}

fn final_states_agree(facts: &SubmitterFacts, _: Rules) -> Vec<String> {
    let mut mined: HashMap<&str, Vec<(&AttemptFacts, bool)>> = HashMap::new();
    for attempt in &facts.attempts {
        if let Some(receipt) = facts.mined.get(&attempt.tx_hash) {
            mined.entry(&attempt.tx_id).or_default().push((attempt, receipt.succeeded));
        }
    }
    let mut violations = Vec::new();
    for intent in &facts.intents {
        let mined = mined.get(intent.tx_id.as_str()).map_or(&[][..], Vec::as_slice);
        let effect = mined.iter().find(|(attempt, _)| !attempt.placeholder);
        let disagrees = match (intent.state, effect) {
            (TxState::Confirmed, Some((_, true))) => None,
            (TxState::Confirmed, Some((_, false))) => Some("is CONFIRMED, but reverted on chain"),
            (TxState::Confirmed, None) => Some("is CONFIRMED, but not on chain"),
            (TxState::Failed | TxState::Cancelled, Some((_, true))) => {
                Some("is called off, but took effect on chain")
            }
            (TxState::Failed | TxState::Cancelled, None) if intent.nonce.is_some() && mined.is_empty() => {
                Some("is final, but nothing consumed its nonce")
            }
            (TxState::Queued, Some(_)) => Some("is QUEUED, but on chain"),
            _ => None,
        };
        violations.extend(disagrees.map(|what| format!("{} {what}", intent.tx_id)));
    }
    violations
}

fn nothing_is_lost(facts: &SubmitterFacts, rules: Rules) -> Vec<String> {
    let with_bytes: BTreeSet<(&str, u64)> =
        live(facts).map(|attempt| (attempt.tx_id.as_str(), attempt.nonce)).collect();
    let queued_with_bytes: BTreeSet<&str> = live(facts).map(|attempt| attempt.tx_id.as_str()).collect();
    let mut violations = Vec::new();
    for intent in &facts.intents {
        let (tx_id, state) = (intent.tx_id.as_str(), intent.state);
        let problem = match intent.nonce {
            Some(nonce) if !with_bytes.contains(&(tx_id, nonce)) => {
                Some(format!("has nonce {nonce} without bytes"))
            }
            None if state == TxState::Queued && queued_with_bytes.contains(tx_id) => {
                Some("is QUEUED with live bytes".into())
            }
            None if state.is_open() => Some(format!("is {state} without a nonce")),
            _ if rules.all_final && !state.is_terminal() => Some(format!("is still {state}")),
            _ => None,
        };
        violations.extend(problem.map(|problem| format!("{tx_id} {problem}")));
    }
    violations
}

/// A later nonce was signed by the same owner or a later one. Fillers and replacements come when they come.
fn tokens_never_fall(facts: &SubmitterFacts, _: Rules) -> Vec<String> {
    let mut first: BTreeMap<u64, u64> = BTreeMap::new();
    for attempt in live(facts) {
        let token = first.entry(attempt.nonce).or_insert(attempt.fencing_token);
        *token = attempt.fencing_token.min(*token);
    }
    let pairs = first.iter().zip(first.iter().skip(1));
    let falling = pairs.filter(|((_, token), (_, next))| next < token);
    falling
        .map(|((nonce, token), (later, next))| {
            format!("nonce {nonce} has token {token}, nonce {later} has {next}")
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::facts::{CursorFacts, InBlock, IntentFacts, Mined, ReservationFacts};
    use super::*;

    fn attempt(tx_id: &str, nonce: u64) -> AttemptFacts {
        AttemptFacts {
            tx_id: tx_id.into(),
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
            cursor: Some(CursorFacts { start: 0, next: 3, protect: None }),
            intents,
            mined: attempts
                .iter()
                .map(|attempt| (attempt.tx_hash.clone(), Mined { succeeded: true }))
                .collect(),
            in_blocks: Some(
                attempts.iter().map(|attempt| in_block(&attempt.tx_hash, attempt.nonce)).collect(),
            ),
            attempts,
            reservations: Vec::new(),
            chain_count: 3,
        }
    }

    fn held(tx_id: &str, nonce: u64, state: ReservationState) -> ReservationFacts {
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
    fn a_sound_submitter_passes_and_one_that_never_worked_too() {
        assert!(broken(&sound(), Rules::default()).is_empty());
        let mut idle = sound();
        (idle.cursor, idle.chain_count) = (None, 7);
        idle.attempts.clear();
        idle.mined.clear();
        idle.intents.retain(|intent| intent.state == TxState::Queued);
        assert!(broken(&idle, Rules::default()).is_empty());
    }

    #[test]
    fn each_kind_of_damage_is_found() {
        breaks(|f| f.chain_count = 4, "contiguous");
        breaks(|f| assert!(f.mined.remove("0xb1").is_some()), "contiguous");
        breaks(|f| assert!(f.mined.remove("0xc2").is_some()), "final states");
        breaks(|f| f.in_blocks.as_mut().unwrap().push(in_block("0xstranger", 3)), "is recorded");
        breaks(|f| drop(f.attempts.remove(2)), "is recorded");
        breaks(|f| f.cursor.as_mut().unwrap().next = 4, "has its bytes");
        breaks(|f| f.cursor.as_mut().unwrap().next = 2, "has its bytes");
        breaks(|f| f.attempts.push(attempt("d", 2)), "two intents");
        breaks(|f| f.attempts.push(attempt("d", 3)), "worked on");
        breaks(|f| f.mined.get_mut("0xa0").unwrap().succeeded = false, "final states");
        breaks(|f| f.intents[0].state = TxState::Failed, "final states");
        breaks(|f| f.attempts[0].fencing_token = 2, "tokens");
        breaks(|f| f.intents[3].state = TxState::Submitted, "worked on");
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
    fn a_nonce_that_was_shown_has_its_placeholder_and_a_used_one_its_transaction() {
        let placeholder = AttemptFacts { placeholder: true, tx_hash: "0xp".into(), ..attempt("a", 0) };
        let mut facts = sound();
        facts.reservations.push(held("a", 0, ReservationState::Used));
        facts.attempts.push(placeholder.clone());
        assert!(
            broken(&facts, Rules::default()).is_empty(),
            "the placeholder was not needed, and is not mined"
        );
        breaks(|f| f.reservations.push(held("a", 0, ReservationState::Used)), "has its placeholder");
        breaks(|f| f.reservations.push(held("b", 1, ReservationState::Reserved)), "has its placeholder");
        breaks(
            |f| {
                f.reservations.push(held("a", 0, ReservationState::Used));
                f.attempts[0].placeholder = true;
            },
            "has its placeholder",
        );
        breaks(
            |f| {
                f.reservations.push(held("a", 0, ReservationState::Reserved));
                f.attempts.push(placeholder.clone());
                f.intents[0].nonce = None;
            },
            "has its placeholder",
        );
    }

    #[test]
    fn a_stranger_is_excused_only_where_the_submitter_has_stopped() {
        let mut facts = sound();
        facts.chain_count = 4;
        facts.in_blocks.as_mut().unwrap().push(in_block("0xstranger", 3));
        assert!(!broken(&facts, Rules::default()).is_empty());
        facts.cursor.as_mut().unwrap().protect = Some("nonce 3 was used by somebody else".into());
        assert!(broken(&facts, Rules::default()).is_empty());
    }

    #[test]
    fn an_adopted_sequence_is_checked_from_its_new_start() {
        let mut facts = sound();
        facts.cursor = Some(CursorFacts { start: 5, next: 6, protect: None });
        facts.chain_count = 6;
        facts.in_blocks.as_mut().unwrap().extend([in_block("0xstranger", 3), in_block("0xstranger", 4)]);
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
    fn unfinished_work_is_a_violation_only_when_asked() {
        assert!(!broken(&sound(), Rules { all_final: true, pruned: false }).is_empty());
    }
}
