//! The checker: compares the recorded history, the database and the chain.
//!
//! A pure function over plain data. It uses no product code, neither its types nor its audit, so that both cannot
//! have the same error. The effect of a request is identified by the `requestId` in the transaction data.

mod rules;
#[cfg(test)]
mod tests;

use std::fmt;

use super::history::Entry;
use super::v1_fields::CheckedAnswers;

/// A row of `managed_tx`.
#[derive(Clone, Debug)]
pub struct Intent {
    pub tx_id: String,
    pub request: String,
    pub submitter: String,
    pub state: String,
    pub nonce: Option<u64>,
    pub sub_state: Option<String>,
    /// Code of the last error.
    pub code: Option<String>,
    /// In seconds, by the database's clock.
    pub created_at: f64,
    pub finished_at: Option<f64>,
}

/// A row of `tx_attempt`.
#[derive(Clone, Debug)]
pub struct Attempt {
    pub tx_id: String,
    pub submitter: String,
    pub nonce: u64,
    pub hash: String,
    pub token: u64,
    /// The first attempt of its intent, which assigned the nonce.
    pub original: bool,
    /// Number within the attempts of its intent, from 1.
    pub ordinal: u64,
}

/// A mined transaction of one of our submitters.
#[derive(Clone, Debug)]
pub struct Mined {
    pub submitter: String,
    pub nonce: u64,
    pub hash: String,
    pub block: u64,
    pub succeeded: bool,
    /// The `requestId` in its data. `None`: a placeholder or an external transaction.
    pub request: Option<String>,
}

/// One sample of a submitter during the run.
#[derive(Clone, Debug)]
pub struct Sample {
    /// Seconds since the start of the run.
    pub at: f64,
    pub submitter: String,
    /// Number of intents that are not final.
    pub open: u64,
    /// Changes whenever the submitter makes progress.
    pub progress: String,
    /// The fencing token, i.e. the number of claims.
    pub token: u64,
    /// Reasons for waiting, from the API: submitter state, `blockedBy`, states and sub-states of its transactions.
    /// `None`: not fetched because of recent progress, or no API responded.
    pub reasons: Option<Vec<String>>,
    /// Active alarms of all workers. `None`: not fetched, or no worker responded.
    pub metrics: Option<Vec<String>>,
    /// Alarm events that no later event has cleared.
    pub events: Vec<String>,
}

/// What the rules of upgrade runs need besides the history.
#[derive(Clone, Debug, Default)]
pub struct UpgradeEvidence {
    /// Number of API and worker processes that run at the same time.
    pub processes: usize,
    /// Number of processes that were started, of the previous and of this version.
    pub started: (usize, usize),
    pub checked: CheckedAnswers,
}

/// An event of the log.
#[derive(Clone, Debug)]
pub struct LoggedEvent {
    pub position: i64,
    pub id: String,
    /// Absent for events of webhooks.
    pub submitter: Option<String>,
    pub tx_id: Option<String>,
    pub kind: String,
    /// In its data.
    pub tx_hash: Option<String>,
}

/// An event that a consumer received.
#[derive(Clone, Debug)]
pub struct ReceivedEvent {
    pub id: String,
    pub kind: String,
    pub sequence: i64,
    /// The whole event as text.
    pub content: String,
}

#[derive(Clone, Debug, Default)]
pub struct EventEvidence {
    /// By position.
    pub logged: Vec<LoggedEvent>,
    pub consumers: Vec<Consumer>,
    /// Events without a position at the end.
    pub left: u64,
}

/// What one consumer received.
#[derive(Clone, Debug)]
pub struct Consumer {
    /// The stream or the webhook.
    pub name: &'static str,
    /// In the order of arrival.
    pub received: Vec<ReceivedEvent>,
    /// How often it was notified that events are missing.
    pub resets: usize,
}

impl Consumer {
    pub fn new(name: &'static str) -> Consumer {
        Consumer { name, received: Vec::new(), resets: 0 }
    }
}

/// The input of the checker.
#[derive(Clone, Debug, Default)]
pub struct Evidence {
    pub submitters: Vec<String>,
    /// Submitters whose key a second sender uses.
    pub shared: Vec<String>,
    pub history: Vec<Entry>,
    pub intents: Vec<Intent>,
    /// In the order of writing.
    pub attempts: Vec<Attempt>,
    /// In chain order.
    pub mined: Vec<Mined>,
    /// Hashes of all transactions that a process sent.
    pub sent: Vec<String>,
    /// `requestId`s and transaction hashes that a node reported as invalid.
    pub called_invalid: Vec<String>,
    /// Number of lease claims: the sum of the fencing tokens.
    pub claims: u64,
    /// In chronological order.
    pub samples: Vec<Sample>,
    /// Submitters with a `submitter.protected` event.
    pub protected: Vec<String>,
    /// Log lines of panics.
    pub panics: Vec<String>,
    /// `None`: not an upgrade run.
    pub upgrade: Option<UpgradeEvidence>,
    /// `None`: programs take part that do not record events.
    pub events: Option<EventEvidence>,
}

/// The checked rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rule {
    /// A request has its effect on chain at most once.
    Duplicate,
    /// The nonces of a submitter on chain are 0, 1, 2, … and its intents have no others.
    Gap,
    /// An accepted request has a row and becomes final; a CONFIRMED one has its effect on chain.
    Loss,
    /// A FAILED or CANCELLED request has no effect on chain.
    FalseEnd,
    /// A FAILED or CANCELLED request is justified by the contract, the client, the operator or the policy.
    UnjustifiedEnd,
    /// A submitter with work and without progress reports it by a state, a metric and an event.
    SilentStall,
    /// The attempts of an intent are numbered 1, 2, …, and their fencing tokens never decrease.
    AttemptOrder,
    /// Every sent or mined transaction is in `tx_attempt`.
    Unrecorded,
    /// A nonce belongs to one intent.
    SharedNonce,
    /// An intent gets another nonce only if an external transaction consumed its previous one.
    SecondNonce,
    /// A request that the policy forbids has no effect.
    Forbidden,
    /// Fencing tokens never decrease, neither by nonce nor in the order of writing.
    StaleWriter,
    /// A request that was accepted before another was sent has the smaller nonce.
    Order,
    /// A `requestId` is one transaction, through every API and on every retry.
    Identity,
    /// A final state that a client has seen does not change.
    Retracted,
    /// Every transaction on chain was requested.
    Unrequested,
    /// A submitter enters PROTECT only if its key was used outside.
    FalseAlarm,
    /// No process panics.
    Panic,
    /// An upgrade run takes every step, and requests are accepted and become final in each of its phases.
    UpgradeStep,
    /// An answer of the v1 API has the fields that the previous release requires.
    V1Field,
    /// Every change has its events, an intent has one final event at its end, and a consumer receives all of them.
    EventLoss,
    /// A consumer receives the events of a submitter in the order of the log.
    EventOrder,
    /// An event happened, and an id always has the same content.
    EventUntrue,
}

impl Rule {
    pub const ALL: [Rule; 23] = [
        Rule::Duplicate,
        Rule::Gap,
        Rule::Loss,
        Rule::FalseEnd,
        Rule::UnjustifiedEnd,
        Rule::SilentStall,
        Rule::AttemptOrder,
        Rule::Unrecorded,
        Rule::SharedNonce,
        Rule::SecondNonce,
        Rule::Forbidden,
        Rule::StaleWriter,
        Rule::Order,
        Rule::Identity,
        Rule::Retracted,
        Rule::Unrequested,
        Rule::FalseAlarm,
        Rule::Panic,
        Rule::UpgradeStep,
        Rule::V1Field,
        Rule::EventLoss,
        Rule::EventOrder,
        Rule::EventUntrue,
    ];

    /// Label in the report.
    pub fn label(self) -> &'static str {
        match self {
            Rule::Duplicate => "duplicate: effect on chain twice",
            Rule::Gap => "gap: missing nonce",
            Rule::Loss => "loss: accepted, not final or without effect",
            Rule::FalseEnd => "false end: failed or cancelled, but on chain",
            Rule::UnjustifiedEnd => "unjustified end: failed by infrastructure",
            Rule::SilentStall => "silent stall: no progress, not reported",
            Rule::AttemptOrder => "attempt order",
            Rule::Unrecorded => "unrecorded: sent, not in tx_attempt",
            Rule::SharedNonce => "shared nonce: one nonce, two intents",
            Rule::SecondNonce => "second nonce without need",
            Rule::Forbidden => "forbidden by a policy, but on chain",
            Rule::StaleWriter => "stale writer: write of a former owner",
            Rule::Order => "order: accepted first, larger nonce",
            Rule::Identity => "identity: one requestId, two txIds",
            Rule::Retracted => "retracted: final state changed",
            Rule::Unrequested => "unrequested: on chain without a request",
            Rule::FalseAlarm => "false alarm: PROTECT without external use",
            Rule::Panic => "panic",
            Rule::UpgradeStep => "upgrade: a step or a phase without effect",
            Rule::V1Field => "v1 answer without a required field",
            Rule::EventLoss => "event loss: not recorded or not received",
            Rule::EventOrder => "event order: not that of the log",
            Rule::EventUntrue => "event untrue: did not happen",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    pub rule: Rule,
    /// Request, transaction and nonce.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.rule, self.what)
    }
}

/// All violations, by rule.
pub fn check(evidence: &Evidence) -> Vec<Violation> {
    let mut found = Vec::new();
    for rule in Rule::ALL {
        let broken = rules::broken(rule, evidence);
        found.extend(broken.into_iter().map(|what| Violation { rule, what }));
    }
    found
}

/// The longest time, in seconds, during which a submitter had open intents and none became final.
pub fn longest_stall(evidence: &Evidence) -> f64 {
    let mut longest: f64 = 0.0;
    for submitter in &evidence.submitters {
        let ours = evidence.intents.iter().filter(|intent| intent.submitter == *submitter);
        let mut steps: Vec<(f64, i64)> = Vec::new();
        for intent in ours {
            steps.push((intent.created_at, 1));
            steps.extend(intent.finished_at.map(|at| (at, -1)));
        }
        steps.sort_by(|a, b| a.0.total_cmp(&b.0));
        let (mut open, mut waiting_since) = (0, 0.0);
        for (at, step) in steps {
            if open > 0 && step < 0 {
                longest = longest.max(at - waiting_since);
            }
            // New work does not end a wait.
            if open == 0 || step < 0 {
                waiting_since = at;
            }
            open += step;
        }
    }
    longest
}
