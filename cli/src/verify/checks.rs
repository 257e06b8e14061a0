//! The invariants. Each is a pure function of the facts about one submitter: no database, node or clock.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use gapless_domain::{ReservationState, TxState, U256};

use super::facts::{AttemptFacts, CountFacts, CursorFacts, SubmitterFacts};

/// Options of the audit.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rules {
    /// Every transaction must be final.
    pub(super) all_final: bool,
    /// Retention removes old rows in this deployment, so the sequence is checked from the oldest row on.
    pub(super) pruned: bool,
}

pub(super) type Check = fn(&SubmitterFacts, Rules) -> Vec<String>;

/// The only check that needs a block scan; without one it reports nothing.
pub(super) const NEEDS_SCAN: &str = "every transaction in the blocks is recorded";

/// In output order. Each returns descriptions of the violations it found.
pub(super) const CHECKS: [(&str, Check); 11] = [
    ("nonces on chain are contiguous and recorded", contiguous_on_chain),
    (NEEDS_SCAN, blocks_are_recorded),
    ("every assigned nonce has a signed transaction", assigned_nonces_are_signed),
    ("every reserved nonce has a placeholder", reserved_nonces_have_placeholders),
    ("no nonce is used by two intents", one_intent_per_nonce),
    ("no intent has two effects", one_effect_per_intent),
    ("final states agree with the chain", final_states_agree),
    ("every request is final or in progress", nothing_is_lost),
    ("fencing tokens do not decrease with the nonce", tokens_never_decrease),
    ("attempts of an intent are numbered in order of their fencing tokens", attempts_are_in_order),
    ("daily totals of policies are complete and within their caps", daily_totals_hold),
];

fn live(facts: &SubmitterFacts) -> impl Iterator<Item = &AttemptFacts> {
    facts.attempts.iter().filter(|attempt| !attempt.displaced)
}

fn is_mined(facts: &SubmitterFacts, attempt: &AttemptFacts) -> bool {
    facts.mined.contains_key(&attempt.tx_hash)
}

/// The first nonce whose attempts the database should still contain.
fn first_retained(facts: &SubmitterFacts, start: u64, rules: Rules) -> u64 {
    let oldest = live(facts).map(|attempt| attempt.nonce).filter(|nonce| *nonce >= start).min();
    match (rules.pruned, oldest, &facts.cursor) {
        (false, ..) => start,
        (true, Some(oldest), _) => oldest,
        (true, None, Some(cursor)) => cursor.next,
        (true, None, None) => start,
    }
}

/// Whether an external transaction may have consumed the nonce: the submitter is in PROTECT, the nonce is recorded as
/// external, or the key is shared and its lane has not processed the nonce yet.
fn may_be_external(facts: &SubmitterFacts, cursor: &CursorFacts, nonce: u64) -> bool {
    let open = || facts.intents.iter().any(|i| i.nonce == Some(nonce) && !i.state.is_terminal());
    cursor.protect.is_some() || facts.is_external(nonce) || (facts.shared && (nonce >= cursor.next || open()))
}

/// Exactly one recorded attempt consumed each nonce below the chain's transaction count, except where external
/// transactions are possible.
fn contiguous_on_chain(facts: &SubmitterFacts, rules: Rules) -> Vec<String> {
    let Some(cursor) = &facts.cursor else {
        let mined = facts.attempts.iter().filter(|attempt| is_mined(facts, attempt)).count();
        return (mined > 0).then(|| format!("{mined} mined attempts, but no cursor")).into_iter().collect();
    };
    let mut recorded: HashMap<u64, usize> = HashMap::new();
    for attempt in facts.attempts.iter().filter(|attempt| is_mined(facts, attempt)) {
        *recorded.entry(attempt.nonce).or_default() += 1;
    }
    let mut violations = Vec::new();
    for nonce in first_retained(facts, cursor.start, rules)..facts.chain_count {
        match recorded.get(&nonce) {
            Some(1) => {}
            Some(several) => violations.push(format!("nonce {nonce}: {several} recorded attempts are mined")),
            None if may_be_external(facts, cursor, nonce) => {}
            None => violations.push(format!("nonce {nonce}: consumed on chain by an unrecorded transaction")),
        }
    }
    violations
}

/// Every transaction of this address in the blocks is a recorded attempt, except before the start of the sequence and
/// where external transactions are possible.
fn blocks_are_recorded(facts: &SubmitterFacts, rules: Rules) -> Vec<String> {
    let (Some(in_blocks), Some(cursor)) = (&facts.in_blocks, &facts.cursor) else { return Vec::new() };
    let recorded: HashSet<&str> = facts.attempts.iter().map(|attempt| attempt.tx_hash.as_str()).collect();
    let first = first_retained(facts, cursor.start, rules);
    let external = in_blocks.iter().filter(|found| {
        found.nonce >= first
            && !may_be_external(facts, cursor, found.nonce)
            && !recorded.contains(found.tx_hash.as_str())
    });
    external
        .map(|found| {
            format!("block {}: {} at nonce {} is not recorded", found.block, found.tx_hash, found.nonce)
        })
        .collect()
}

fn assigned_nonces_are_signed(facts: &SubmitterFacts, rules: Rules) -> Vec<String> {
    let have: BTreeSet<u64> = live(facts).map(|attempt| attempt.nonce).collect();
    let mut violations: Vec<String> = Vec::new();
    if let Some(cursor) = &facts.cursor {
        let first = first_retained(facts, cursor.start, rules);
        let missing =
            (first..cursor.next).filter(|nonce| !have.contains(nonce) && !facts.is_external(*nonce));
        violations.extend(missing.map(|nonce| format!("nonce {nonce}: assigned, but not signed")));
        let beyond = have.range(cursor.next..);
        violations.extend(
            beyond.map(|nonce| format!("nonce {nonce}: is signed, but the cursor is at {}", cursor.next)),
        );
    }
    violations
}

/// Every nonce granted to a reserving client has a signed placeholder, and a used one also has the client's
/// transaction.
fn reserved_nonces_have_placeholders(facts: &SubmitterFacts, _: Rules) -> Vec<String> {
    let kinds: HashSet<(&str, u64, bool)> = facts
        .attempts
        .iter()
        .map(|attempt| (attempt.tx_id.as_str(), attempt.nonce, attempt.placeholder))
        .collect();
    let mut violations = Vec::new();
    for reservation in &facts.reservations {
        let (tx_id, nonce, state) = (reservation.tx_id.as_str(), reservation.nonce, reservation.state);
        if !kinds.contains(&(tx_id, nonce, true)) {
            violations.push(format!("nonce {nonce}: {state} for {tx_id}, but has no placeholder"));
        }
        if state == ReservationState::Used && !kinds.contains(&(tx_id, nonce, false)) {
            violations.push(format!("nonce {nonce}: {state} for {tx_id}, but has no transaction"));
        }
        let assigned =
            facts.intents.iter().find(|intent| intent.tx_id == tx_id).and_then(|intent| intent.nonce);
        if state == ReservationState::Reserved && assigned != Some(nonce) {
            violations.push(format!("nonce {nonce}: {state} for {tx_id}, which has another nonce or none"));
        }
    }
    violations
}

fn one_intent_per_nonce(facts: &SubmitterFacts, _: Rules) -> Vec<String> {
    let mut users: BTreeMap<u64, BTreeSet<&str>> = BTreeMap::new();
    for attempt in live(facts) {
        users.entry(attempt.nonce).or_default().insert(&attempt.tx_id);
    }
    for intent in &facts.intents {
        if let Some(nonce) = intent.nonce {
            users.entry(nonce).or_default().insert(&intent.tx_id);
        }
    }
    let several = users.into_iter().filter(|(_, intents)| intents.len() > 1);
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
                Some("is FAILED or CANCELLED, but took effect on chain")
            }
            (TxState::Failed | TxState::Cancelled, None) if intent.nonce.is_some() && mined.is_empty() => {
                Some("is final, but its nonce is not consumed")
            }
            (TxState::Queued, Some(_)) => Some("is QUEUED, but on chain"),
            _ => None,
        };
        violations.extend(disagrees.map(|what| format!("{} {what}", intent.tx_id)));
    }
    violations
}

fn nothing_is_lost(facts: &SubmitterFacts, rules: Rules) -> Vec<String> {
    let signed: BTreeSet<(&str, u64)> =
        live(facts).map(|attempt| (attempt.tx_id.as_str(), attempt.nonce)).collect();
    let signed_intents: BTreeSet<&str> = live(facts).map(|attempt| attempt.tx_id.as_str()).collect();
    let open_from = facts.cursor.as_ref().map_or(0, |cursor| cursor.open_from);
    let mut violations = Vec::new();
    for intent in &facts.intents {
        let (tx_id, state) = (intent.tx_id.as_str(), intent.state);
        let problem = match intent.nonce {
            Some(nonce) if state.is_open() && nonce < open_from => Some(format!(
                "is {state} at nonce {nonce}, but the cursor has no open intents below {open_from}"
            )),
            Some(nonce) if !signed.contains(&(tx_id, nonce)) => {
                Some(format!("has nonce {nonce}, but no signed transaction"))
            }
            None if state == TxState::Queued && signed_intents.contains(tx_id) => {
                Some("is QUEUED, but has a live attempt".into())
            }
            None if state.is_open() => Some(format!("is {state} without a nonce")),
            _ if rules.all_final && !state.is_terminal() => Some(format!("is still {state}")),
            _ => None,
        };
        violations.extend(problem.map(|problem| format!("{tx_id} {problem}")));
    }
    violations
}

/// The first attempt at a later nonce has the same or a higher fencing token. Later attempts (placeholders,
/// replacements) and external nonces are not compared.
fn tokens_never_decrease(facts: &SubmitterFacts, _: Rules) -> Vec<String> {
    let mut first: BTreeMap<u64, u64> = BTreeMap::new();
    for attempt in live(facts).filter(|attempt| !facts.is_external(attempt.nonce)) {
        let token = first.entry(attempt.nonce).or_insert(attempt.fencing_token);
        *token = attempt.fencing_token.min(*token);
    }
    let pairs = first.iter().zip(first.iter().skip(1));
    let decreasing = pairs.filter(|((_, token), (_, next))| next < token);
    decreasing
        .map(|((nonce, token), (later, next))| {
            format!("nonce {nonce} has token {token}, nonce {later} has {next}")
        })
        .collect()
}

/// Ordinals are 1, 2, … for each intent, and a later attempt has the same or a higher fencing token.
fn attempts_are_in_order(facts: &SubmitterFacts, _: Rules) -> Vec<String> {
    let mut attempts: BTreeMap<&str, BTreeMap<u32, u64>> = BTreeMap::new();
    for attempt in &facts.attempts {
        attempts.entry(&attempt.tx_id).or_default().insert(attempt.ordinal, attempt.fencing_token);
    }
    let mut violations = Vec::new();
    for (tx_id, tokens) in attempts {
        if !tokens.keys().copied().eq((1..).take(tokens.len())) {
            violations
                .push(format!("{tx_id}: its attempts have the ordinals {:?}", Vec::from_iter(tokens.keys())));
        }
        if !tokens.values().is_sorted() {
            violations
                .push(format!("{tx_id}: its attempts have the tokens {:?}", Vec::from_iter(tokens.values())));
        }
    }
    violations
}

/// The counts of a day add up, each total is within the cap recorded with it, and each counted intent has a transaction
/// or was pruned. Fencing tokens never decrease. The cap in today's configuration is not compared: it may have changed.
fn daily_totals_hold(facts: &SubmitterFacts, rules: Rules) -> Vec<String> {
    let intents: HashSet<&str> = facts.intents.iter().map(|intent| intent.tx_id.as_str()).collect();
    let signed: HashSet<&str> =
        facts.attempts.iter().filter(|a| !a.placeholder).map(|a| a.tx_id.as_str()).collect();
    let mut violations = Vec::new();
    let (mut totals, mut counted, mut token) = (HashMap::new(), HashSet::new(), 0);
    for count in &facts.counts {
        let CountFacts { tx_id, day, value, .. } = count;
        let total = totals.entry(day.as_str()).or_insert_with(U256::zero);
        let expected = total.saturating_add(*value);
        let stated = count.day_total.unwrap_or_default();
        if stated != expected {
            violations.push(format!("{day}: the total with {tx_id} is {stated}, but should be {expected}"));
        }
        if count.limit.is_none_or(|limit| stated > limit) {
            violations.push(format!("{day}: the total with {tx_id} is {stated}, which is above its cap"));
        }
        *total = stated;
        if !counted.insert((day.as_str(), tx_id.as_str())) {
            violations.push(format!("{day}: {tx_id} is counted twice"));
        }
        if count.fencing_token < token {
            violations.push(format!("{day}: {tx_id} has token {}, after {token}", count.fencing_token));
        }
        token = token.max(count.fencing_token);
        match (intents.contains(tx_id.as_str()), signed.contains(tx_id.as_str())) {
            (true, false) => violations.push(format!("{day}: {tx_id} is counted, but was never signed")),
            (false, _) if !rules.pruned => {
                violations.push(format!("{day}: {tx_id} is counted, but does not exist"));
            }
            _ => {}
        }
    }
    violations
}

#[cfg(test)]
#[path = "checks_tests.rs"]
mod tests;
