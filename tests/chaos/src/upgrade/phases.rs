//! The phases of an upgrade run, and what the history says about each.

use std::collections::BTreeSet;

use serde::Serialize;

use crate::history::{Direction, Entry, Event};

const FINAL: [&str; 3] = ["CONFIRMED", "FAILED", "CANCELLED"];

/// Which versions run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// The previous version on its own schema.
    Previous,
    /// The previous version on the schema of this version.
    Migrated,
    Forward,
    Present,
    Back,
    PreviousAgain,
    ForwardAgain,
    PresentAgain,
}

impl Phase {
    pub const ALL: [Phase; 8] = [
        Phase::Previous,
        Phase::Migrated,
        Phase::Forward,
        Phase::Present,
        Phase::Back,
        Phase::PreviousAgain,
        Phase::ForwardAgain,
        Phase::PresentAgain,
    ];

    /// Label in the report.
    pub fn label(self) -> &'static str {
        match self {
            Phase::Previous => "previous version, its schema",
            Phase::Migrated => "previous version, schema migrated",
            Phase::Forward => "both, rolling forward",
            Phase::Present => "this version",
            Phase::Back => "both, rolling back",
            Phase::PreviousAgain => "previous version again",
            Phase::ForwardAgain => "both, rolling forward again",
            Phase::PresentAgain => "this version again",
        }
    }

    /// Its planned begin, as a fraction of the run. Phases with both versions are the longest.
    pub(crate) fn begin(self) -> f64 {
        match self {
            Phase::Previous => 0.0,
            Phase::Migrated => 0.1,
            Phase::Forward => 0.2,
            Phase::Present => 0.4,
            Phase::Back => 0.5,
            Phase::PreviousAgain => 0.7,
            Phase::ForwardAgain => 0.78,
            Phase::PresentAgain => 0.92,
        }
    }

    /// Of the processes that are replaced in it.
    pub(crate) fn direction(self) -> Option<Direction> {
        match self {
            Phase::Forward | Phase::ForwardAgain => Some(Direction::Forward),
            Phase::Back => Some(Direction::Back),
            Phase::Previous
            | Phase::Migrated
            | Phase::Present
            | Phase::PreviousAgain
            | Phase::PresentAgain => None,
        }
    }
}

/// What happened in a phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PhaseCount {
    pub phase: Phase,
    /// Requests whose first acceptance was answered in it.
    pub accepted: usize,
    /// Requests whose final state a client first saw in it.
    pub finished: usize,
    /// Replaced processes.
    pub rolled: usize,
    pub faults: usize,
}

impl PhaseCount {
    pub(crate) fn is_busy(&self) -> bool {
        self.accepted > 0 && self.finished > 0
    }
}

/// The phases of this history, in order.
pub(crate) fn count(history: &[Entry]) -> Vec<PhaseCount> {
    let mut found: Vec<PhaseCount> = Vec::new();
    let (mut accepted, mut finished) = (BTreeSet::new(), BTreeSet::new());
    for entry in history {
        if let Event::Phase { phase } = entry.event {
            found.push(PhaseCount { phase, accepted: 0, finished: 0, rolled: 0, faults: 0 });
        }
        let Some(now) = found.last_mut() else { continue };
        match &entry.event {
            Event::Answer { request, status: 200 | 202, .. } => {
                now.accepted += usize::from(accepted.insert(request));
            }
            Event::StateSeen { request, state, .. } if FINAL.contains(&state.as_str()) => {
                now.finished += usize::from(finished.insert(request));
            }
            Event::Rolled { .. } => now.rolled += 1,
            Event::Fault { .. } => now.faults += 1,
            _ => {}
        }
    }
    found
}

/// Number of processes that were replaced in this direction.
pub(crate) fn rolled(history: &[Entry], wanted: Direction) -> usize {
    let is_wanted =
        |entry: &&Entry| matches!(entry.event, Event::Rolled { direction, .. } if direction == wanted);
    history.iter().filter(is_wanted).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_begin_in_order_and_the_last_one_before_the_end() {
        let begins = Phase::ALL.map(Phase::begin);
        assert_eq!(begins[0], 0.0);
        assert!(begins.is_sorted_by(|one, next| one < next) && begins[Phase::ALL.len() - 1] < 1.0);
    }
}
