//! Upgrade runs that show nothing, and answers that clients of the previous release cannot read.

use super::*;
use crate::history::Direction;
use crate::supervisor::Signal;
use crate::upgrade::phases::Phase;
use crate::v1_fields::CheckedAnswers;

const OPERATIONS: [&str; 3] = ["POST /api/v1/tx", "GET /api/v1/tx/{txId}", "GET /api/v1/tx/by-request"];

/// An upgrade of one process, with a request of its own in each phase.
fn upgraded() -> Evidence {
    let mut evidence = Evidence { submitters: vec![OURS.into()], ..Evidence::default() };
    for (nonce, phase) in Phase::ALL.into_iter().enumerate() {
        let request = format!("in-{nonce}");
        if phase == Phase::Migrated {
            record(&mut evidence, Event::Migrated { added: 1, tries: 1, lasted_ms: 5 });
        }
        record(&mut evidence, Event::Phase { phase });
        add_confirmed(&mut evidence, &request, nonce as u64);
        record(&mut evidence, state_seen(&request, "CONFIRMED"));
        if let Some(direction) = phase.direction() {
            record(&mut evidence, rolled(direction));
        }
    }
    let answers = OPERATIONS.map(|operation| (operation.to_owned(), 8)).into();
    let checked = CheckedAnswers { answers, ..CheckedAnswers::default() };
    evidence.upgrade = Some(UpgradeEvidence { processes: 1, started: (2, 2), checked });
    evidence
}

fn rolled(direction: Direction) -> Event {
    let (process, signal) = ("API 0".to_owned(), Signal::Term);
    Event::Rolled { process, direction, signal, started: true, lasted_ms: 5 }
}

fn upgrade(evidence: &mut Evidence) -> &mut UpgradeEvidence {
    evidence.upgrade.as_mut().unwrap()
}

/// Removes these events.
fn without(is_meant: fn(&Event) -> bool) -> Evidence {
    let mut evidence = upgraded();
    evidence.history.retain(|entry| !is_meant(&entry.event));
    evidence
}

#[test]
fn nothing_is_found_in_a_complete_upgrade() {
    assert_eq!(found(&upgraded()), []);
}

#[test]
fn a_phase_without_an_accepted_or_a_finished_request_is_found() {
    let nothing_finished =
        without(|event| matches!(event, Event::StateSeen { request, .. } if request == "in-2"));
    assert_eq!(
        found(&nothing_finished),
        [(Rule::UpgradeStep, "phase \"both, rolling forward\": 1 requests accepted, 0 finished".to_owned())]
    );
    // A repetition is accepted again, and a final state is seen again: neither is new.
    let mut nothing_new = upgraded();
    for entry in &mut nothing_new.history {
        match &mut entry.event {
            Event::Submit { request, .. }
            | Event::Answer { request, .. }
            | Event::StateSeen { request, .. }
                if request == "in-5" =>
            {
                *request = "in-4".to_owned();
            }
            _ => {}
        }
        if let Event::Answer { tx_id, request, .. } = &mut entry.event {
            *tx_id = Some(format!("t-{request}"));
        }
    }
    let steps: Vec<String> = found(&nothing_new)
        .into_iter()
        .filter(|(rule, _)| *rule == Rule::UpgradeStep)
        .map(|(_, what)| what)
        .collect();
    assert_eq!(steps, ["phase \"previous version again\": 0 requests accepted, 0 finished"]);
}

#[test]
fn a_step_that_was_not_taken_is_found() {
    let unmigrated = without(|event| matches!(event, Event::Migrated { .. }));
    assert_eq!(found(&unmigrated), [(Rule::UpgradeStep, "the schema was not migrated".to_owned())]);
    let not_back = without(|event| matches!(event, Event::Rolled { direction: Direction::Back, .. }));
    assert_eq!(found(&not_back), [(Rule::UpgradeStep, "0 of 1 processes were rolled back".to_owned())]);
    let ended_early = without(|event| matches!(event, Event::Phase { phase: Phase::PresentAgain }));
    assert_eq!(
        found(&ended_early),
        [(Rule::UpgradeStep, "there was no phase \"this version again\"".to_owned())]
    );
    let mut one_version = upgraded();
    upgrade(&mut one_version).started = (0, 4);
    assert_eq!(rules(&one_version), [Rule::UpgradeStep]);
}

#[test]
fn an_answer_without_a_field_or_without_a_check_is_found() {
    let mut evidence = upgraded();
    upgrade(&mut evidence).checked.missing.insert("GET /api/v1/tx/{txId} 200: .state is missing".into());
    assert_eq!(
        found(&evidence),
        [(Rule::V1Field, "GET /api/v1/tx/{txId} 200: .state is missing".to_owned())]
    );
    let mut unchecked = upgraded();
    upgrade(&mut unchecked).checked.answers.remove(OPERATIONS[2]);
    assert_eq!(
        found(&unchecked),
        [(Rule::V1Field, "no answer of GET /api/v1/tx/by-request was checked".to_owned())]
    );
}
