//! What to do about an intent that stays unmined. The port is one pure function; the default waits and alarms.

use std::time::Duration;

use serde::Deserialize;

/// What is known about it when it is called STUCK.
#[derive(Clone, Copy, Debug)]
pub struct StuckFacts {
    /// Since its nonce was given.
    pub age: Duration,
    /// Sends so far.
    pub sends: u32,
    /// Whether a node is known to have its bytes.
    pub taken: bool,
    /// Attempts with a higher price so far.
    pub replacements: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StuckAction {
    /// The alarm is all.
    #[default]
    Wait,
    /// The same bytes, now.
    Rebroadcast,
    /// A higher price, once.
    Bump,
    /// A placeholder competes for its nonce.
    Cancel,
    /// As `Wait`, with a log line that says a person is needed.
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

/// Asked once each time an intent becomes STUCK.
pub trait StuckPolicy: Send + Sync + std::fmt::Debug {
    fn decide(&self, facts: StuckFacts) -> StuckAction;
}

/// The same answer for all: `stuck.policy`.
#[derive(Clone, Copy, Debug)]
pub struct Always(pub StuckAction);

impl StuckPolicy for Always {
    fn decide(&self, _: StuckFacts) -> StuckAction {
        self.0
    }
}
