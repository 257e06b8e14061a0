//! The invariants, each a function of the facts about one submitter. No database, no node, no clock.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use gapless::domain::{ReservationState, TxState};

use super::facts::{AttemptFacts, CursorFacts, SubmitterFacts};

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
pub(super) const CHECKS: [(&str, Check); 10] = [
    ("nonces on chain are contiguous and all ours", contiguous_on_chain),
    (NEEDS_SCAN, blocks_are_recorded),
    ("every nonce given has its bytes", given_nonces_have_bytes),
    ("every nonce shown to a caller has its placeholder", shown_nonces_have_placeholders),
    ("no nonce carries two intents", one_intent_per_nonce),
    ("no intent has two effects", one_effect_per_intent),
    ("final states agree with the chain", final_states_agree),
    ("every request is final or being worked on", nothing_is_lost),
    ("fencing tokens never fall along the nonces", tokens_never_fall),
    ("attempts of an intent are numbered as their owners followed each other", attempts_are_in_order),
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

/// Whether a nonce may have been consumed by others: the submitter has noticed and stopped, or it was left to them while the
/// key was shared, or the key is shared and its lane had no occasion to notice: it has not got that far, or is at it.
fn may_be_others(facts: &SubmitterFacts, cursor: &CursorFacts, nonce: u64) -> bool {
    let unsettled = || facts.intents.iter().any(|i| i.nonce == Some(nonce) && !i.state.is_terminal());
    cursor.protect.is_some()
        || facts.is_external(nonce)
        || (facts.shared && (nonce >= cursor.next || unsettled()))
}

/// Each nonce the chain has counted was consumed by exactly one of our attempts: so none is missing, and nothing
/// from our keys is unknown to us. Others are excused where they may be.
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
            None if may_be_others(facts, cursor, nonce) => {}
            None => violations.push(format!("nonce {nonce}: consumed on chain, and not by us")),
        }
    }
    violations
}

/// The same from the other side: whatever the blocks hold from this address is one of our attempts. Strangers are
/// excused before the sequence began, and where they may be.
fn blocks_are_recorded(facts: &SubmitterFacts, rules: Rules) -> Vec<String> {
    let (Some(in_blocks), Some(cursor)) = (&facts.in_blocks, &facts.cursor) else { return Vec::new() };
    let recorded: HashSet<&str> = facts.attempts.iter().map(|attempt| attempt.tx_hash.as_str()).collect();
    let first = first_kept(facts, cursor.start, rules);
    let strangers = in_blocks.iter().filter(|found| {
        found.nonce >= first
            && !may_be_others(facts, cursor, found.nonce)
            && !recorded.contains(found.tx_hash.as_str())
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
        let missing =
            (first..cursor.next).filter(|nonce| !have.contains(nonce) && !facts.is_external(*nonce));
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
    let open_from = facts.cursor.as_ref().map_or(0, |cursor| cursor.open_from);
    let mut violations = Vec::new();
    for intent in &facts.intents {
        let (tx_id, state) = (intent.tx_id.as_str(), intent.state);
        let problem = match intent.nonce {
            Some(nonce) if state.is_open() && nonce < open_from => Some(format!(
                "is {state} at nonce {nonce}, but its cursor says that nothing below {open_from} is open"
            )),
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

/// A later nonce was signed by the same owner or a later one. Fillers and replacements come when they come, and so does what
/// fills a nonce that others vacated.
fn tokens_never_fall(facts: &SubmitterFacts, _: Rules) -> Vec<String> {
    let mut first: BTreeMap<u64, u64> = BTreeMap::new();
    for attempt in live(facts).filter(|attempt| !facts.is_external(attempt.nonce)) {
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

/// 1, 2, … for each intent, without a gap, and a later attempt was signed by the same owner or a later one.
fn attempts_are_in_order(facts: &SubmitterFacts, _: Rules) -> Vec<String> {
    let mut made: BTreeMap<&str, BTreeMap<u32, u64>> = BTreeMap::new();
    for attempt in &facts.attempts {
        made.entry(&attempt.tx_id).or_default().insert(attempt.ordinal, attempt.fencing_token);
    }
    let mut violations = Vec::new();
    for (tx_id, tokens) in made {
        if !tokens.keys().copied().eq((1..).take(tokens.len())) {
            violations
                .push(format!("{tx_id}: its attempts have the numbers {:?}", Vec::from_iter(tokens.keys())));
        }
        if !tokens.values().is_sorted() {
            violations
                .push(format!("{tx_id}: its attempts have the tokens {:?}", Vec::from_iter(tokens.values())));
        }
    }
    violations
}

#[cfg(test)]
#[path = "checks_tests.rs"]
mod tests;
