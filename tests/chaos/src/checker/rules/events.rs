//! Rules about events: the log, and what a consumer of the stream received.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::super::{EventEvidence, Evidence, LoggedEvent};

const FINAL: [(&str, &str); 3] =
    [("CONFIRMED", "tx.confirmed"), ("FAILED", "tx.failed"), ("CANCELLED", "tx.cancelled")];

fn is_final(kind: &str) -> bool {
    FINAL.iter().any(|(_, known)| *known == kind)
}

/// Changes without their event, and events that the consumer did not receive.
pub(super) fn missing(evidence: &Evidence) -> Vec<String> {
    let Some(events) = &evidence.events else { return Vec::new() };
    let mut found = Vec::new();
    if events.left > 0 {
        found.push(format!("{} events have no position", events.left));
    }
    if events.resets > 0 {
        found.push(format!("the consumer was reset {} times, but nothing was lost", events.resets));
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
    let received: HashSet<&str> = events.received.iter().map(|event| event.id.as_str()).collect();
    for event in events.logged.iter().filter(|event| !received.contains(event.id.as_str())) {
        found.push(format!("not received: position {} {} of {:?}", event.position, event.kind, event.tx_id));
    }
    found
}

/// Events of a submitter that the consumer received in another order than that of the log.
pub(super) fn out_of_order(evidence: &Evidence) -> Vec<String> {
    let Some(events) = &evidence.events else { return Vec::new() };
    let submitter: HashMap<&str, &str> =
        events.logged.iter().map(|event| (event.id.as_str(), event.submitter.as_str())).collect();
    let (mut seen, mut last): (HashSet<&str>, BTreeMap<&str, i64>) = (HashSet::new(), BTreeMap::new());
    let mut found = Vec::new();
    for event in &events.received {
        // Repetitions are allowed.
        if !seen.insert(&event.id) {
            continue;
        }
        let Some(submitter) = submitter.get(event.id.as_str()) else { continue };
        let before = last.insert(submitter, event.sequence);
        if before.is_some_and(|before| before >= event.sequence) {
            found.push(format!("{submitter}: {} at {} after {before:?}", event.kind, event.sequence));
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
    for event in &events.received {
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
