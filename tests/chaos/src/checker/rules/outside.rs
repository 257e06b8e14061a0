//! Rules about keys that were used outside of Gapless.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use super::super::{Attempt, Evidence};
use crate::history::Event;

/// Hashes of external transactions.
pub(super) fn hashes(evidence: &Evidence) -> HashSet<&str> {
    let outside = evidence.history.iter().filter_map(|entry| match &entry.event {
        Event::Outside { hash, .. } => Some(hash.as_str()),
        _ => None,
    });
    outside.collect()
}

/// Nonces of a submitter that external transactions consumed.
pub(super) fn consumed(evidence: &Evidence, submitter: &str) -> BTreeSet<u64> {
    let theirs = hashes(evidence);
    let mined = evidence.mined.iter().filter(|mined| mined.submitter == submitter);
    mined.filter(|mined| theirs.contains(mined.hash.as_str())).map(|mined| mined.nonce).collect()
}

/// Every earlier nonce of an intent must be consumed by an external transaction; otherwise the earlier attempt can
/// still be mined.
pub(super) fn second_nonces(evidence: &Evidence) -> Vec<String> {
    let mut of_intent: BTreeMap<&str, Vec<&Attempt>> = BTreeMap::new();
    for attempt in &evidence.attempts {
        of_intent.entry(&attempt.tx_id).or_default().push(attempt);
    }
    let mut found = Vec::new();
    for (tx_id, mut attempts) in of_intent {
        attempts.sort_by_key(|attempt| attempt.ordinal);
        let Some(last) = attempts.last() else { continue };
        let theirs = consumed(evidence, &last.submitter);
        let former: BTreeSet<u64> =
            attempts.iter().map(|attempt| attempt.nonce).filter(|nonce| *nonce != last.nonce).collect();
        for nonce in former.into_iter().filter(|nonce| !theirs.contains(nonce)) {
            found.push(format!(
                "{tx_id} had nonce {nonce}, which no external transaction consumed, and got nonce {}",
                last.nonce
            ));
        }
    }
    found
}

/// PROTECT without external use of the key.
pub(super) fn false_alarms(evidence: &Evidence) -> Vec<String> {
    let used: HashSet<&str> = evidence
        .history
        .iter()
        .filter_map(|entry| match &entry.event {
            Event::Outside { submitter, .. } => Some(submitter.as_str()),
            _ => None,
        })
        .collect();
    let stopped: BTreeSet<&str> = evidence.protected.iter().map(String::as_str).collect();
    let mut found = Vec::new();
    for submitter in stopped.into_iter().filter(|submitter| !used.contains(submitter)) {
        found.push(format!("{submitter} entered PROTECT without external use of its key"));
    }
    found
}
