//! Which ends are explained: by the contract, the client, the operator or the policy. Trouble of a node explains none.

use std::collections::BTreeSet;

use super::AttemptRow;
use crate::sim::history::{History, Intent, Said, VALUE_OF_A_DAY};
use crate::sim::ledger::{Fate, Tx};

/// What is known when everything has ended.
pub(super) struct Facts<'a> {
    pub(super) history: &'a History<'a>,
    pub(super) attempts: &'a [AttemptRow],
    /// The transactions of the chain, in order.
    pub(super) chain: &'a [Tx],
    /// The nonces that somebody else consumed.
    pub(super) foreign: &'a BTreeSet<u64>,
    /// It began and ended on one day of the database.
    pub(super) is_one_day: bool,
}

impl Facts<'_> {
    pub(super) fn mined(&self, intent: &Intent) -> Vec<Tx> {
        self.chain.iter().filter(|tx| tx.value == intent.value).copied().collect()
    }

    fn attempts_of(&self, intent: &Intent) -> impl Iterator<Item = &AttemptRow> {
        self.attempts.iter().filter(move |attempt| attempt.tx_id == intent.tx_id.0)
    }

    fn is_forbidden(&self, intent: &Intent) -> bool {
        self.history.features.has_policy && intent.is_forbidden()
    }
}

/// Why an intent must not have ended like this; `None`: its end is explained.
pub(super) fn unexplained(
    facts: &Facts<'_>,
    intent: &Intent,
    state: &str,
    code: &str,
    mined: &[Tx],
) -> Option<String> {
    // What nobody holds a nonce for is asked for from the beginning.
    let was_asked_for = intent.caller.as_ref().is_none_or(|caller| caller.said == Some(Said::Answered));
    match mined {
        [] => not_mined(facts, intent, state, code, was_asked_for),
        [_] if facts.is_forbidden(intent) => Some("its policy forbids it".to_owned()),
        [_] if !was_asked_for => Some("its caller did not ask for it in time".to_owned()),
        [tx] => match (state, facts.history.ledger().succeeded(tx)) {
            ("CONFIRMED", true) | ("FAILED", false) => None,
            _ => Some("the chain says otherwise".to_owned()),
        },
        _ => Some("it happened more than once".to_owned()),
    }
}

fn not_mined(
    facts: &Facts<'_>,
    intent: &Intent,
    state: &str,
    code: &str,
    was_asked_for: bool,
) -> Option<String> {
    let explained = match (state, code) {
        ("CANCELLED", _) => intent.may_be_cancelled || !was_asked_for,
        ("FAILED", "would_revert") => would_revert(facts, intent),
        ("FAILED", "call_not_allowed" | "value_cap_exceeded") => facts.is_forbidden(intent),
        ("FAILED", "day_cap_exceeded") => would_exceed_the_day(facts, intent),
        ("FAILED", "handler_failed") => !was_asked_for,
        // Its caller made it for the nonce that it saw.
        ("FAILED", "nonce_taken") => intent.caller.is_some() && lost_its_nonce(facts, intent),
        _ => false,
    };
    (!explained).then(|| "nothing explains that".to_owned())
}

/// On the chain as it is in the end: what it needs comes before it in the queue.
fn would_revert(facts: &Facts<'_>, intent: &Intent) -> bool {
    match Fate::of(intent.value) {
        Fate::Succeeds | Fate::RevertsLate => false,
        Fate::Reverts => true,
        Fate::Needs => {
            let needed = facts.history.ledger().needs.get(&intent.value).copied();
            needed.is_some_and(|needed| facts.chain.iter().all(|tx| tx.value != needed))
        }
    }
}

fn lost_its_nonce(facts: &Facts<'_>, intent: &Intent) -> bool {
    facts.attempts_of(intent).any(|attempt| facts.foreign.contains(&attempt.nonce.unsigned_abs()))
}

/// Whatever had bytes may have counted.
fn would_exceed_the_day(facts: &Facts<'_>, intent: &Intent) -> bool {
    let others = facts.history.intents.iter().filter(|other| other.tx_id != intent.tx_id);
    let counted = others.filter(|other| facts.attempts_of(other).next().is_some());
    let spent: u64 = counted.map(|other| other.value).sum();
    facts.history.features.has_policy && (spent + intent.value > VALUE_OF_A_DAY || !facts.is_one_day)
}

/// What the policy lets pass in one day was exceeded.
pub(super) fn beyond_the_day(facts: &Facts<'_>) -> Option<String> {
    let spent: u64 = facts.chain.iter().map(|tx| tx.value).sum();
    let exceeded = facts.history.features.has_policy && facts.is_one_day && spent > VALUE_OF_A_DAY;
    exceeded.then(|| format!("{spent} were spent on one day, the policy allows {VALUE_OF_A_DAY}"))
}
