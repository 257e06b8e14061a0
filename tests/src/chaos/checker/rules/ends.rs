//! Ends that nobody but the infrastructure explains.

use std::collections::{HashMap, HashSet};

use super::super::{Evidence, Intent};
use crate::chaos::history::{Asked, Event};

/// The contract refused it: only what calls one that refuses.
const BY_CONTRACT: [&str; 3] = ["would_revert", "reverted", "out_of_gas"];
/// What a policy forbids.
const BY_POLICY: [&str; 4] =
    ["call_not_allowed", "deploy_not_allowed", "value_cap_exceeded", "day_cap_exceeded"];

/// Every end has a code that is known here, and whoever it speaks of did it. A code that is not known explains nothing.
pub(super) fn unjustified(evidence: &Evidence) -> Vec<String> {
    let mut asked: HashMap<&str, Asked> = HashMap::new();
    let mut cancelled: HashSet<&str> = HashSet::new();
    for entry in &evidence.history {
        match &entry.event {
            Event::Submit { request, asked: what, .. } => {
                asked.insert(request, *what);
            }
            Event::CancelAsked { request } => {
                cancelled.insert(request);
            }
            _ => {}
        }
    }
    let is_explained = |intent: &Intent| {
        let request = intent.request.as_str();
        let what = asked.get(request).copied().unwrap_or_default();
        match (intent.state.as_str(), intent.code.as_deref()) {
            ("FAILED", Some(code)) if BY_CONTRACT.contains(&code) => what.doomed,
            ("FAILED", Some(code)) => BY_POLICY.contains(&code),
            ("CANCELLED", Some("cancelled")) => cancelled.contains(request),
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
