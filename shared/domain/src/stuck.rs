//! The policy for STUCK intents. The port is one pure function; the default waits and raises the alarm.

use std::time::Duration;

use serde::Deserialize;

/// What is known about the intent when it becomes STUCK.
#[derive(Clone, Copy, Debug)]
pub struct StuckFacts {
    /// Since its nonce was assigned.
    pub age: Duration,
    /// Sends so far.
    pub sends: u32,
    /// Whether a node accepted its bytes.
    pub taken: bool,
    /// Attempts with a higher price so far.
    pub replacements: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StuckAction {
    /// Only the alarm.
    #[default]
    Wait,
    /// Sends the same bytes again.
    Rebroadcast,
    /// Replaces it once at a higher price.
    Bump,
    /// Sends a placeholder for its nonce.
    Cancel,
    /// As `Wait`, with a log line that asks for an operator.
    Escalate,
}

impl StuckAction {
    pub fn as_str(self) -> &'static str {
        match self {
            StuckAction::Wait => "wait",
            StuckAction::Rebroadcast => "rebroadcast",
            StuckAction::Bump => "bump",
            StuckAction::Cancel => "cancel",
            StuckAction::Escalate => "escalate",
        }
    }
}

/// Called once each time an intent becomes STUCK.
pub trait StuckPolicy: Send + Sync + std::fmt::Debug {
    fn decide(&self, facts: StuckFacts) -> StuckAction;
}

/// The same action for every intent, from `stuck.policy`.
#[derive(Clone, Copy, Debug)]
pub struct Always(pub StuckAction);

impl StuckPolicy for Always {
    fn decide(&self, _: StuckFacts) -> StuckAction {
        self.0
    }
}
