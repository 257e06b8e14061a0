//! FAILED and CANCELLED ends without justification, and forbidden effects.

use std::collections::{HashMap, HashSet};

use super::super::{Evidence, Intent};
use super::outside;
use crate::history::{Event, RequestTraits};

/// Codes of reverts; justified only for calls of the reverting contract.
const BY_CONTRACT: [&str; 3] = ["would_revert", "reverted", "out_of_gas"];
/// Codes of policy violations.
const BY_POLICY: [&str; 4] =
    ["call_not_allowed", "deploy_not_allowed", "value_cap_exceeded", "day_cap_exceeded"];

/// Every end needs a listed code, and the history must contain the cause. Codes that are not listed justify nothing.
pub(super) fn unjustified(evidence: &Evidence) -> Vec<String> {
    let mut traits: HashMap<&str, RequestTraits> = HashMap::new();
    let mut cancelled: HashSet<&str> = HashSet::new();
    // Requests of reserving clients; `true`: the transaction was accepted.
    let mut reservations: HashMap<&str, bool> = HashMap::new();
    for entry in &evidence.history {
        match &entry.event {
            Event::Submit { request, traits: what, .. } => {
                traits.insert(request, *what);
            }
            Event::CancelRequested { request } => {
                cancelled.insert(request);
            }
            Event::Reserve { request, .. } => {
                reservations.entry(request).or_default();
            }
            Event::Reserved { request, bound, .. } => {
                *reservations.entry(request).or_default() |= *bound;
            }
            _ => {}
        }
    }
    let called_invalid: HashSet<&str> = evidence.called_invalid.iter().map(String::as_str).collect();
    let mut bytes_called_invalid: HashSet<&str> = HashSet::new();
    for attempt in evidence.attempts.iter().filter(|one| called_invalid.contains(one.hash.as_str())) {
        bytes_called_invalid.insert(&attempt.tx_id);
    }
    let is_explained = |intent: &Intent| {
        let request = intent.request.as_str();
        let what = traits.get(request).copied().unwrap_or_default();
        match (intent.state.as_str(), intent.code.as_deref()) {
            ("FAILED", Some("invalid")) => called_invalid.contains(request),
            ("FAILED", Some("unmineable")) => bytes_called_invalid.contains(intent.tx_id.as_str()),
            // Some `fatal` messages of nodes read like a revert.
            ("FAILED", Some(code)) if BY_CONTRACT.contains(&code) => {
                what.reverting || called_invalid.contains(request)
            }
            // The client built its transaction for the reserved nonce, and an external transaction consumed that.
            ("FAILED", Some("nonce_taken")) => {
                let theirs = outside::consumed(evidence, &intent.submitter);
                let mut own = evidence.attempts.iter().filter(|attempt| attempt.tx_id == intent.tx_id);
                reservations.contains_key(request) && own.any(|attempt| theirs.contains(&attempt.nonce))
            }
            ("FAILED", Some("handler_failed")) => reservations.get(request) == Some(&false),
            ("FAILED", Some(code)) => BY_POLICY.contains(&code) && what.forbidden,
            ("CANCELLED", Some("cancelled")) => {
                cancelled.contains(request) || reservations.get(request) == Some(&false)
            }
            ("CANCELLED", Some("deadline_passed")) => what.deadline,
            _ => false,
        }
    };
    let ended = evidence.intents.iter().filter(|i| matches!(i.state.as_str(), "FAILED" | "CANCELLED"));
    ended
        .filter(|intent| !is_explained(intent))
        .map(|intent| {
            let (request, tx_id, state) = (&intent.request, &intent.tx_id, &intent.state);
            let (code, sub_state) = (intent.code.as_deref(), intent.sub_state.as_deref());
            format!(
                "{request} ({tx_id}) is {state}, code {}, sub-state {}",
                code.unwrap_or("none"),
                sub_state.unwrap_or("none")
            )
        })
        .collect()
}

/// Mined requests that the policy forbids.
pub(super) fn forbidden(evidence: &Evidence) -> Vec<String> {
    let mut found = Vec::new();
    let mut forbidden: HashSet<&str> = HashSet::new();
    for entry in &evidence.history {
        if let Event::Submit { request, traits: RequestTraits { forbidden: true, .. }, .. } = &entry.event {
            forbidden.insert(request);
        }
    }
    for mined in &evidence.mined {
        if let Some(request) = mined.request.as_deref().filter(|request| forbidden.contains(request)) {
            found.push(format!("{request} is not allowed, and was mined at nonce {}", mined.nonce));
        }
    }
    found
}
