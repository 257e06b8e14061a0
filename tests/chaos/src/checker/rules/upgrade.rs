//! Upgrade runs: whether the run shows anything, and whether clients of the previous release can read every answer.

use crate::checker::Evidence;
use crate::history::{Direction, Event};
use crate::upgrade::phases::{Phase, count, rolled};

/// Operations whose answers must have been checked.
const MUST_BE_CHECKED: [&str; 3] = ["POST /api/v1/tx", "GET /api/v1/tx/{txId}", "GET /api/v1/tx/by-request"];

pub(super) fn missing_steps(evidence: &Evidence) -> Vec<String> {
    let Some(upgrade) = &evidence.upgrade else { return Vec::new() };
    let mut found = Vec::new();
    let phases = count(&evidence.history);
    for phase in Phase::ALL {
        match phases.iter().find(|one| one.phase == phase) {
            None => found.push(format!("there was no phase \"{}\"", phase.label())),
            Some(one) if !one.is_busy() => found.push(format!(
                "phase \"{}\": {} requests accepted, {} finished",
                phase.label(),
                one.accepted,
                one.finished
            )),
            Some(_) => {}
        }
    }
    if !evidence.history.iter().any(|entry| matches!(entry.event, Event::Migrated { .. })) {
        found.push("the schema was not migrated".to_owned());
    }
    for (direction, rolls) in [(Direction::Forward, 2), (Direction::Back, 1)] {
        let (done, planned) = (rolled(&evidence.history, direction), rolls * upgrade.processes);
        if done != planned {
            found.push(format!("{done} of {planned} processes were rolled {}", direction.name()));
        }
    }
    let (previous, present) = upgrade.started;
    if previous < 2 * upgrade.processes || present < 2 * upgrade.processes {
        found
            .push(format!("{previous} processes of the previous and {present} of this version were started"));
    }
    found
}

pub(super) fn missing_fields(evidence: &Evidence) -> Vec<String> {
    let Some(upgrade) = &evidence.upgrade else { return Vec::new() };
    let unchecked = MUST_BE_CHECKED.into_iter().filter(|one| !upgrade.checked.answers.contains_key(*one));
    let unchecked = unchecked.map(|one| format!("no answer of {one} was checked"));
    unchecked.chain(upgrade.checked.missing.iter().cloned()).collect()
}
