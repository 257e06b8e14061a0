//! The verdict: what was recorded, what the database holds and what the chain holds are held against one another.
//!
//! A pure function over plain data. It uses nothing of the product, neither its types nor its audit: an error that both
//! had would not be found. The effect of a request is known by the id of the request, which is the data of its transaction.

mod rules;
#[cfg(test)]
mod tests;

use std::fmt;

use super::history::Entry;

/// A row of `managed_tx`.
#[derive(Clone, Debug)]
pub struct Intent {
    pub tx_id: String,
    pub request: String,
    pub submitter: String,
    pub state: String,
    pub nonce: Option<u64>,
    pub sub_state: Option<String>,
    /// The code of its last error.
    pub code: Option<String>,
    /// Seconds of the database's clock.
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
    /// The first bytes of its intent, which gave it the nonce.
    pub original: bool,
    /// Its number among the attempts of its intent.
    pub ordinal: u64,
}

/// A transaction in a block, of one of our senders.
#[derive(Clone, Debug)]
pub struct Mined {
    pub submitter: String,
    pub nonce: u64,
    pub hash: String,
    pub block: u64,
    pub succeeded: bool,
    /// The request whose effect it is. `None`: it only consumes its nonce.
    pub request: Option<String>,
}

/// What could be seen of a submitter at one moment of the run.
#[derive(Clone, Debug)]
pub struct Sample {
    /// Seconds since the beginning of the run.
    pub at: f64,
    pub submitter: String,
    /// Intents that are not final.
    pub open: u64,
    /// Everything that changes when something of it moves.
    pub progress: String,
    /// The fencing token: how often it was claimed.
    pub token: u64,
    /// Why it waits, as the API says it: states, what blocks it, states and sub-states of its transactions. `None`: nobody asked,
    /// because it had moved a moment before, or no API answered.
    pub reasons: Option<Vec<String>>,
    /// Alarms of any worker that are not zero. `None`: nobody asked, or no worker answered.
    pub metrics: Option<Vec<String>>,
    /// Alarms that were told as events and not called off.
    pub events: Vec<String>,
}

/// All there is to judge by.
#[derive(Clone, Debug, Default)]
pub struct Evidence {
    pub submitters: Vec<String>,
    /// Those of them whose key a second sender uses.
    pub shared: Vec<String>,
    pub history: Vec<Entry>,
    pub intents: Vec<Intent>,
    /// In the order in which they were written.
    pub attempts: Vec<Attempt>,
    /// In the order of the chain.
    pub mined: Vec<Mined>,
    /// Hashes of all signed bytes that left a process.
    pub sent: Vec<String>,
    /// What a node called invalid: ids of requests, and hashes of bytes.
    pub called_invalid: Vec<String>,
    /// How often a submitter was claimed: by how much the tokens grew.
    pub claims: u64,
    /// In the order of time.
    pub samples: Vec<Sample>,
    /// Submitters that an event said were stopped because their key was used outside.
    pub protected: Vec<String>,
    /// Lines of logs in which a process panicked.
    pub panics: Vec<String>,
}

/// What must hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rule {
    /// A request has its effect on chain at most once.
    Duplicate,
    /// The nonces of a submitter on chain are 0, 1, 2, … and its intents have no others.
    Gap,
    /// What was accepted is there, becomes final, and has its effect if it is called confirmed.
    Loss,
    /// What is called failed or cancelled has no effect on chain.
    FalseEnd,
    /// What is called failed or cancelled is explained by the contract, the client, the operator or the policy.
    UnjustifiedEnd,
    /// Whoever has work and does not move shows it while it lasts: by a state, by a metric and by an event.
    SilentStall,
    /// The attempts of an intent are numbered 1, 2, …, and their fencing tokens never fall.
    AttemptOrder,
    /// Bytes that were sent or mined stand in `tx_attempt`.
    Unrecorded,
    /// A nonce belongs to one intent.
    SharedNonce,
    /// An intent gets another nonce only if a transaction from outside consumed the one it had.
    SecondNonce,
    /// What a policy does not allow has no effect.
    Forbidden,
    /// Along the nonces, and in the order of writing, the fencing tokens never fall.
    StaleWriter,
    /// What was accepted before another was sent has the smaller nonce.
    Order,
    /// A request is one transaction, whoever is asked and however often.
    Identity,
    /// A final state that a client was told stays.
    Retracted,
    /// Nothing is on chain that nobody asked for.
    Stranger,
    /// A submitter stops only if somebody else used its key.
    FalseAlarm,
    /// No process panics.
    Panic,
}

impl Rule {
    pub const ALL: [Rule; 18] = [
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
        Rule::Stranger,
        Rule::FalseAlarm,
        Rule::Panic,
    ];

    /// As the report says it.
    pub fn words(self) -> &'static str {
        match self {
            Rule::Duplicate => "duplicates: effects that happened twice",
            Rule::Gap => "gaps: nonces that are missing",
            Rule::Loss => "losses: accepted, and not final or without effect",
            Rule::FalseEnd => "called failed or cancelled, and happened",
            Rule::UnjustifiedEnd => "failed or cancelled by infrastructure",
            Rule::SilentStall => "stood still and did not show it",
            Rule::AttemptOrder => "attempts out of order",
            Rule::Unrecorded => "bytes that are not in tx_attempt",
            Rule::SharedNonce => "nonces of two intents",
            Rule::SecondNonce => "given another nonce without need",
            Rule::Forbidden => "forbidden by a policy, and happened",
            Rule::StaleWriter => "writes of a former owner",
            Rule::Order => "overtaken: accepted first, later nonce",
            Rule::Identity => "requests with two ids",
            Rule::Retracted => "final states that were taken back",
            Rule::Stranger => "on chain, and nobody asked",
            Rule::FalseAlarm => "stopped, and nobody had used the key",
            Rule::Panic => "panics",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    pub rule: Rule,
    /// Which request, which transaction, which nonce.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.rule, self.what)
    }
}

/// Everything that is wrong, by rule.
pub fn judge(evidence: &Evidence) -> Vec<Violation> {
    let mut found = Vec::new();
    for rule in Rule::ALL {
        let broken = rules::broken(rule, evidence);
        found.extend(broken.into_iter().map(|what| Violation { rule, what }));
    }
    found
}

/// The longest time, in seconds, for which a submitter had something to do and nothing of it became final.
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
            // Work that arrives while there is some does not end the wait.
            if open == 0 || step < 0 {
                waiting_since = at;
            }
            open += step;
        }
    }
    longest
}
