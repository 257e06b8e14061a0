//! Rules about events: the log, and what the consumers of stream and webhook received.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::super::{Consumer, EventEvidence, Evidence, LoggedEvent};

const FINAL: [(&str, &str); 3] =
    [("CONFIRMED", "tx.confirmed"), ("FAILED", "tx.failed"), ("CANCELLED", "tx.cancelled")];

fn is_final(kind: &str) -> bool {
    FINAL.iter().any(|(_, known)| *known == kind)
}

/// Changes without their event, and events that a consumer did not receive.
pub(super) fn missing(evidence: &Evidence) -> Vec<String> {
    let Some(events) = &evidence.events else { return Vec::new() };
    let mut found = Vec::new();
    if events.left > 0 {
        found.push(format!("{} events have no position", events.left));
    }
    let of_tx = by_tx(events);
    for intent in &evidence.intents {
        let own: Vec<&str> =
            of_tx.get(intent.tx_id.as_str()).into_iter().flatten().map(|e| e.kind.as_str()).collect();
        let what = format!("{} ({}, {}): {own:?}", intent.request, intent.tx_id, intent.state);
        if own.first() != Some(&"tx.accepted")
            || own.iter().filter(|kind| **kind == "tx.accepted").count() != 1
        {
            found.push(format!("not accepted once, and first: {what}"));
        }
        let wanted = FINAL.iter().find(|(state, _)| *state == intent.state).map(|(_, kind)| *kind);
        let finals: Vec<&&str> = own.iter().filter(|kind| is_final(kind)).collect();
        if let Some(wanted) = wanted
            && finals != [&wanted]
        {
            found.push(format!("not one final event: {what}"));
        }
        if !finals.is_empty() && !own.last().is_some_and(|kind| is_final(kind)) {
            found.push(format!("an event after the final one: {what}"));
        }
    }
    for Consumer { name, received, resets } in &events.consumers {
        if *resets > 0 {
            found.push(format!("{name}: was reset {resets} times, but nothing was lost"));
        }
        let received: HashSet<&str> = received.iter().map(|event| event.id.as_str()).collect();
        for event in events.logged.iter().filter(|event| !received.contains(event.id.as_str())) {
            let LoggedEvent { position, kind, tx_id, .. } = event;
            found.push(format!("{name}: not received: position {position} {kind} of {tx_id:?}"));
        }
    }
    found
}

/// Events of a submitter that a consumer received in another order than that of the log.
pub(super) fn out_of_order(evidence: &Evidence) -> Vec<String> {
    let Some(events) = &evidence.events else { return Vec::new() };
    let submitter: HashMap<&str, &str> = events
        .logged
        .iter()
        .filter_map(|event| Some((event.id.as_str(), event.submitter.as_deref()?)))
        .collect();
    let mut found = Vec::new();
    for consumer in &events.consumers {
        let (mut seen, mut last): (HashSet<&str>, BTreeMap<&str, i64>) = (HashSet::new(), BTreeMap::new());
        for event in &consumer.received {
            // Repetitions are allowed.
            if !seen.insert(&event.id) {
                continue;
            }
            let Some(submitter) = submitter.get(event.id.as_str()) else { continue };
            let before = last.insert(submitter, event.sequence);
            if before.is_some_and(|before| before >= event.sequence) {
                let (name, kind, sequence) = (consumer.name, &event.kind, event.sequence);
                found.push(format!("{name}: {submitter}: {kind} at {sequence} after {before:?}"));
            }
        }
    }
    found
}

/// Events that did not happen, and ids whose content changed.
pub(super) fn untrue(evidence: &Evidence) -> Vec<String> {
    let Some(events) = &evidence.events else { return Vec::new() };
    let mut found = Vec::new();
    let mut contents: HashMap<&str, &str> = HashMap::new();
    let logged: HashMap<&str, &LoggedEvent> =
        events.logged.iter().map(|event| (event.id.as_str(), event)).collect();
    if logged.len() != events.logged.len() {
        found.push("an id is in the log twice".to_owned());
    }
    for event in events.consumers.iter().flat_map(|consumer| &consumer.received) {
        match logged.get(event.id.as_str()) {
            Some(known) if known.kind == event.kind && known.position == event.sequence => {}
            _ => found.push(format!("received, but not in the log like this: {event:?}")),
        }
        if contents.insert(&event.id, &event.content).is_some_and(|before| before != event.content) {
            found.push(format!("{} has two contents", event.id));
        }
    }
    let attempts: HashSet<(&str, &str)> =
        evidence.attempts.iter().map(|attempt| (attempt.tx_id.as_str(), attempt.hash.as_str())).collect();
    let mined: HashSet<&str> =
        evidence.mined.iter().filter(|mined| mined.succeeded).map(|mined| mined.hash.as_str()).collect();
    for event in &events.logged {
        let (Some(tx_id), Some(hash)) = (&event.tx_id, &event.tx_hash) else { continue };
        if event.kind.starts_with("tx.") && !attempts.contains(&(tx_id.as_str(), hash.as_str())) {
            found.push(format!("{} of {tx_id} names {hash}, which was never signed for it", event.kind));
        }
        if event.kind == "tx.confirmed" && !mined.contains(hash.as_str()) {
            found.push(format!("{tx_id} is announced as confirmed by {hash}, which is not on chain"));
        }
    }
    found
}

/// The log of each transaction, in order.
fn by_tx(events: &EventEvidence) -> HashMap<&str, Vec<&LoggedEvent>> {
    let mut of_tx: HashMap<&str, Vec<&LoggedEvent>> = HashMap::new();
    for event in &events.logged {
        if let Some(tx_id) = &event.tx_id {
            of_tx.entry(tx_id).or_default().push(event);
        }
    }
    of_tx
}
