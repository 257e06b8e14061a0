//! One function per rule. Each returns the violations, with request, nonce and hash.

mod ends;
mod events;
mod outside;
mod stalls;
mod upgrade;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use super::{Attempt, Evidence, Intent, Rule};
use crate::history::Event;

const FINAL: [&str; 3] = ["CONFIRMED", "FAILED", "CANCELLED"];

pub(super) fn broken(rule: Rule, evidence: &Evidence) -> Vec<String> {
    match rule {
        Rule::Duplicate => duplicates(evidence),
        Rule::Gap => gaps(evidence),
        Rule::Loss => losses(evidence),
        Rule::FalseEnd => false_ends(evidence),
        Rule::UnjustifiedEnd => ends::unjustified(evidence),
        Rule::SilentStall => stalls::silent(evidence),
        Rule::AttemptOrder => attempt_order(evidence),
        Rule::Unrecorded => unrecorded(evidence),
        Rule::SharedNonce => shared_nonces(evidence),
        Rule::SecondNonce => outside::second_nonces(evidence),
        Rule::Forbidden => ends::forbidden(evidence),
        Rule::StaleWriter => stale_writers(evidence),
        Rule::Order => out_of_order(evidence),
        Rule::Identity => identities(evidence),
        Rule::Retracted => retracted(evidence),
        Rule::Unrequested => unrequested(evidence),
        Rule::FalseAlarm => outside::false_alarms(evidence),
        Rule::Panic => evidence.panics.clone(),
        Rule::UpgradeStep => upgrade::missing_steps(evidence),
        Rule::V1Field => upgrade::missing_fields(evidence),
        Rule::EventLoss => events::missing(evidence),
        Rule::EventOrder => events::out_of_order(evidence),
        Rule::EventUntrue => events::untrue(evidence),
    }
}

/// Nonces and blocks at which a request had its effect.
fn effects(evidence: &Evidence) -> BTreeMap<&str, Vec<String>> {
    let mut effects: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for mined in evidence.mined.iter().filter(|mined| mined.succeeded) {
        if let Some(request) = &mined.request {
            let place = format!("nonce {} in block {} ({})", mined.nonce, mined.block, mined.hash);
            effects.entry(request).or_default().push(place);
        }
    }
    effects
}

fn duplicates(evidence: &Evidence) -> Vec<String> {
    let several = effects(evidence).into_iter().filter(|(_, places)| places.len() > 1);
    several.map(|(request, places)| format!("{request} is on chain at {}", places.join(" and at "))).collect()
}

fn gaps(evidence: &Evidence) -> Vec<String> {
    let mut found = Vec::new();
    for submitter in &evidence.submitters {
        let on_chain: Vec<u64> =
            evidence.mined.iter().filter(|mined| mined.submitter == *submitter).map(|m| m.nonce).collect();
        // The chain enforces this; it also checks how `evidence` reads the chain.
        if !on_chain.iter().copied().eq(0..on_chain.len() as u64) {
            found.push(format!("{submitter}: the chain has the nonces {on_chain:?}"));
        }
        let given: BTreeSet<u64> = evidence
            .intents
            .iter()
            .filter(|intent| intent.submitter == *submitter)
            .filter_map(|i| i.nonce)
            .collect();
        let theirs = outside::consumed(evidence, submitter);
        let is_explained = |nonce: &u64| given.contains(nonce) || theirs.contains(nonce);
        for nonce in (0..on_chain.len() as u64).filter(|nonce| !is_explained(nonce)) {
            found.push(format!("{submitter}: nonce {nonce} is on chain and belongs to no intent"));
        }
        for nonce in given.iter().filter(|nonce| **nonce >= on_chain.len() as u64) {
            found.push(format!("{submitter}: nonce {nonce} was assigned and is not on chain"));
        }
    }
    found
}

/// Requests with a 202 or 200 response, and reservations whose transaction was accepted, with all returned `txId`s.
fn promised(evidence: &Evidence) -> BTreeMap<&str, BTreeSet<&str>> {
    let mut promised: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for entry in &evidence.history {
        match &entry.event {
            Event::Answer { request, status: 200 | 202, tx_id, .. } => {
                promised.entry(request).or_default().extend(tx_id.as_deref());
            }
            Event::StateSeen { request, tx_id, .. } => {
                promised.entry(request).or_default().insert(tx_id);
            }
            Event::Reserved { request, bound: true, outcome } => {
                promised.entry(request).or_default().insert(outcome);
            }
            _ => {}
        }
    }
    promised
}

fn by_request(evidence: &Evidence) -> HashMap<&str, Vec<&Intent>> {
    let mut rows: HashMap<&str, Vec<&Intent>> = HashMap::new();
    for intent in &evidence.intents {
        rows.entry(&intent.request).or_default().push(intent);
    }
    rows
}

fn losses(evidence: &Evidence) -> Vec<String> {
    let (rows, effects) = (by_request(evidence), effects(evidence));
    let mut found = Vec::new();
    for request in promised(evidence).keys().filter(|request| !rows.contains_key(*request)) {
        found.push(format!("{request} was accepted and has no row"));
    }
    let unfound: BTreeSet<&str> = evidence
        .history
        .iter()
        .filter_map(|entry| match &entry.event {
            Event::NotFound { request } => Some(request.as_str()),
            _ => None,
        })
        .collect();
    found.extend(unfound.into_iter().map(|request| format!("{request} was accepted and answered with 404")));
    for intent in &evidence.intents {
        let request = intent.request.as_str();
        let (tx_id, state) = (&intent.tx_id, &intent.state);
        if !FINAL.contains(&state.as_str()) {
            found.push(format!("{request} ({tx_id}) is still {state}, nonce {:?}", intent.nonce));
        } else if state == "CONFIRMED" && !effects.contains_key(request) {
            found
                .push(format!("{request} ({tx_id}) is CONFIRMED and not on chain, nonce {:?}", intent.nonce));
        }
    }
    found
}

fn false_ends(evidence: &Evidence) -> Vec<String> {
    let effects = effects(evidence);
    let ended = evidence.intents.iter().filter(|i| matches!(i.state.as_str(), "FAILED" | "CANCELLED"));
    ended
        .filter_map(|intent| {
            let places = effects.get(intent.request.as_str())?;
            let (request, tx_id, state) = (&intent.request, &intent.tx_id, &intent.state);
            Some(format!("{request} ({tx_id}) is {state} and on chain at {}", places.join(" and at ")))
        })
        .collect()
}

fn unrecorded(evidence: &Evidence) -> Vec<String> {
    let recorded: HashSet<&str> = evidence.attempts.iter().map(|attempt| attempt.hash.as_str()).collect();
    let theirs = outside::hashes(evidence);
    let is_known = |hash: &str| recorded.contains(hash) || theirs.contains(hash);
    let mined = evidence.mined.iter().filter(|mined| !is_known(mined.hash.as_str()));
    let mut found: Vec<String> = mined
        .map(|m| {
            let request = m.request.as_deref().unwrap_or("a placeholder");
            format!("{}: nonce {} was consumed by {} ({request})", m.submitter, m.nonce, m.hash)
        })
        .collect();
    let sent: BTreeSet<&str> = evidence.sent.iter().map(String::as_str).collect();
    let unrecorded = sent.into_iter().filter(|hash| !recorded.contains(hash));
    found.extend(unrecorded.map(|hash| format!("{hash} was sent")));
    found
}

fn shared_nonces(evidence: &Evidence) -> Vec<String> {
    let mut owners: BTreeMap<(&str, u64), BTreeSet<&str>> = BTreeMap::new();
    for intent in &evidence.intents {
        if let Some(nonce) = intent.nonce {
            owners.entry((&intent.submitter, nonce)).or_default().insert(&intent.tx_id);
        }
    }
    for attempt in &evidence.attempts {
        owners.entry((&attempt.submitter, attempt.nonce)).or_default().insert(&attempt.tx_id);
    }
    let several = owners.into_iter().filter(|(_, owners)| owners.len() > 1);
    several
        .map(|((submitter, nonce), owners)| format!("{submitter}: nonce {nonce} was assigned to {owners:?}"))
        .collect()
}

fn stale_writers(evidence: &Evidence) -> Vec<String> {
    let mut found = Vec::new();
    for submitter in &evidence.submitters {
        let written: Vec<_> = evidence.attempts.iter().filter(|a| a.submitter == *submitter).collect();
        let by_nonce = given_in_order(evidence, submitter);
        for pair in written.windows(2).filter(|pair| pair[1].token < pair[0].token) {
            let (former, later) = (pair[1], pair[0]);
            found.push(format!(
                "{submitter}: token {} wrote {} after token {} had written",
                former.token, former.hash, later.token
            ));
        }
        for pair in by_nonce.windows(2).filter(|pair| pair[1].token < pair[0].token) {
            found.push(format!(
                "{submitter}: nonce {} has token {}, nonce {} token {}",
                pair[0].nonce, pair[0].token, pair[1].nonce, pair[1].token
            ));
        }
    }
    found
}

/// The first attempt at each nonce, by nonce. Empty for a shared key, where a nonce that became free is assigned late.
fn given_in_order<'a>(evidence: &'a Evidence, submitter: &str) -> Vec<&'a Attempt> {
    if evidence.shared.iter().any(|shared| shared == submitter) {
        return Vec::new();
    }
    let mut first: BTreeMap<u64, &Attempt> = BTreeMap::new();
    for attempt in evidence.attempts.iter().filter(|attempt| attempt.submitter == submitter) {
        let known = first.entry(attempt.nonce).or_insert(attempt);
        if attempt.tx_id == known.tx_id && attempt.ordinal < known.ordinal {
            *known = attempt;
        }
    }
    first.into_values().collect()
}

/// Attempts are ordered by ordinal and token, not by time.
fn attempt_order(evidence: &Evidence) -> Vec<String> {
    let mut of_intent: BTreeMap<&str, Vec<(u64, u64)>> = BTreeMap::new();
    for attempt in &evidence.attempts {
        of_intent.entry(&attempt.tx_id).or_default().push((attempt.ordinal, attempt.token));
    }
    let mut found = Vec::new();
    for (tx_id, mut attempts) in of_intent {
        attempts.sort_unstable();
        let ordinals: Vec<u64> = attempts.iter().map(|(ordinal, _)| *ordinal).collect();
        if !ordinals.iter().copied().eq(1..=ordinals.len() as u64) {
            found.push(format!("{tx_id}: its attempts are numbered {ordinals:?}"));
        }
        for pair in attempts.windows(2).filter(|pair| pair[1].1 < pair[0].1) {
            found.push(format!(
                "{tx_id}: attempt {} has token {}, attempt {} token {}",
                pair[0].0, pair[0].1, pair[1].0, pair[1].1
            ));
        }
    }
    found
}

/// If a request was sent after another of the same submitter had been accepted, its nonce must be larger. Compared is
/// the first nonce of each, because a lost nonce is replaced by a later one. Shared keys have no order guarantee.
fn out_of_order(evidence: &Evidence) -> Vec<String> {
    let mut nonce_of: HashMap<&str, u64> = HashMap::new();
    let mut submitter_of: HashMap<&str, &str> = HashMap::new();
    let strict = evidence.intents.iter().filter(|intent| !evidence.shared.contains(&intent.submitter));
    for intent in strict {
        let own = evidence.attempts.iter().filter(|attempt| attempt.tx_id == intent.tx_id);
        let first = own.min_by_key(|attempt| attempt.ordinal).map(|attempt| attempt.nonce);
        nonce_of.extend(first.or(intent.nonce).map(|nonce| (intent.request.as_str(), nonce)));
        submitter_of.insert(&intent.request, &intent.submitter);
    }
    // The largest nonce accepted so far, by submitter.
    let mut accepted: HashMap<&str, (u64, &str)> = HashMap::new();
    let mut sent: HashSet<&str> = HashSet::new();
    let mut found = Vec::new();
    for entry in &evidence.history {
        match &entry.event {
            Event::Submit { request, submitter, .. } | Event::Reserve { request, submitter, .. }
                if sent.insert(request) =>
            {
                if let Some((&nonce, (before, other))) =
                    nonce_of.get(request.as_str()).zip(accepted.get(submitter.as_str()))
                    && nonce < *before
                {
                    found.push(format!(
                        "{request} has nonce {nonce}; {other} was accepted before it was sent and has {before}"
                    ));
                }
            }
            Event::Answer { request, status: 200 | 202, .. }
            | Event::Reserved { request, bound: true, .. } => {
                let (Some(submitter), Some(nonce)) =
                    (submitter_of.get(request.as_str()), nonce_of.get(request.as_str()))
                else {
                    continue;
                };
                let best = accepted.entry(submitter).or_insert((*nonce, request));
                if *nonce > best.0 {
                    *best = (*nonce, request);
                }
            }
            _ => {}
        }
    }
    found
}

fn identities(evidence: &Evidence) -> Vec<String> {
    let mut found = Vec::new();
    let rows = by_request(evidence);
    for (request, mut ids) in promised(evidence) {
        ids.extend(rows.get(request).into_iter().flatten().map(|intent| intent.tx_id.as_str()));
        if ids.len() != 1 {
            found.push(format!("{request} is {ids:?}"));
        }
    }
    let several = rows.iter().filter(|(_, rows)| rows.len() > 1);
    found.extend(several.map(|(request, rows)| format!("{request} has {} rows", rows.len())));
    let mut submitter_of: HashMap<&str, &str> = HashMap::new();
    let mut used_outside: HashSet<&str> = HashSet::new();
    for entry in &evidence.history {
        match &entry.event {
            Event::Submit { request, submitter, .. } => {
                submitter_of.insert(request, submitter);
            }
            Event::Outside { submitter, .. } => {
                used_outside.insert(submitter);
            }
            // It is in PROTECT because its key was used outside.
            Event::Answer { request, status: 409, code: Some(code), .. }
                if code == "submitter_protected"
                    && submitter_of.get(request.as_str()).is_some_and(|one| used_outside.contains(one)) => {}
            // A 5xx response leaves the result open.
            Event::ReusedId { request, status } if *status != 409 && *status < 500 => {
                found.push(format!("another payload for {request} got status {status}"));
            }
            // Every request is valid and its `requestId` is unique, so it must be accepted.
            Event::Answer { request, status, code, .. } if !matches!(*status, 200 | 202) && *status < 500 => {
                found.push(format!("{request} got status {status} {}", code.as_deref().unwrap_or("")));
            }
            _ => {}
        }
    }
    found.sort();
    found
}

fn retracted(evidence: &Evidence) -> Vec<String> {
    let mut seen: HashMap<&str, &str> = HashMap::new();
    let mut found = Vec::new();
    for entry in &evidence.history {
        if let Event::StateSeen { request, state, .. } = &entry.event {
            if let Some(before) = seen.get(request.as_str()).filter(|before| *before != state) {
                found.push(format!("{request} was reported as {before}, and later as {state}"));
            }
            if FINAL.contains(&state.as_str()) {
                seen.insert(request, state);
            }
        }
    }
    let ended = evidence.intents.iter();
    found.extend(ended.filter_map(|intent| {
        let before = seen.get(intent.request.as_str()).filter(|before| **before != intent.state)?;
        Some(format!("{} was reported as {before}, and its row is {}", intent.request, intent.state))
    }));
    found
}

fn unrequested(evidence: &Evidence) -> Vec<String> {
    let mut requested: HashMap<&str, &str> = HashMap::new();
    for entry in &evidence.history {
        if let Event::Submit { request, submitter, .. } | Event::Reserve { request, submitter, .. } =
            &entry.event
        {
            requested.insert(request, submitter);
        }
    }
    let mined = evidence.mined.iter().filter_map(|mined| Some((mined, mined.request.as_deref()?)));
    mined
        .filter(|(mined, request)| requested.get(request) != Some(&mined.submitter.as_str()))
        .map(|(mined, request)| format!("{} mined {request} at nonce {}", mined.submitter, mined.nonce))
        .collect()
}
