//! Which ends are justified: by the contract, the client, the operator or the policy, never by node errors.

use std::collections::BTreeSet;

use super::AttemptRow;
use crate::history::{AnswerKind, DAILY_LIMIT, History, Intent, ReservationClient};
use crate::ledger::{Fate, Tx};

/// The data of a finished history.
pub(super) struct Facts<'a> {
    pub(super) history: &'a History<'a>,
    pub(super) attempts: &'a [AttemptRow],
    /// The transactions of the chain, in order.
    pub(super) chain: &'a [Tx],
    /// Nonces that external transactions consumed.
    pub(super) external: &'a BTreeSet<u64>,
    /// It started and ended on the same date of the database.
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

/// Why the end of an intent is wrong; `None`: it is justified.
pub(super) fn unexplained(
    facts: &Facts<'_>,
    intent: &Intent,
    state: &str,
    code: &str,
    mined: &[Tx],
) -> Option<String> {
    // Without a reservation the transaction is requested from the start.
    let has_answered = |client: &ReservationClient| client.answer_kind == Some(AnswerKind::Answered);
    let was_requested = intent.client.as_ref().is_none_or(has_answered);
    match mined {
        [] => not_mined(facts, intent, state, code, was_requested),
        [_] if facts.is_forbidden(intent) => Some("its policy forbids it".to_owned()),
        [_] if !was_requested => Some("its client did not answer in time".to_owned()),
        [tx] => match (state, facts.history.ledger().succeeded(tx)) {
            ("CONFIRMED", true) | ("FAILED", false) => None,
            _ => Some("its state contradicts the chain".to_owned()),
        },
        _ => Some("it was mined more than once".to_owned()),
    }
}

fn not_mined(
    facts: &Facts<'_>,
    intent: &Intent,
    state: &str,
    code: &str,
    was_requested: bool,
) -> Option<String> {
    let explained = match (state, code) {
        ("CANCELLED", _) => intent.may_be_cancelled || !was_requested,
        ("FAILED", "would_revert") => would_revert(facts, intent),
        ("FAILED", "call_not_allowed" | "value_cap_exceeded") => facts.is_forbidden(intent),
        ("FAILED", "day_cap_exceeded") => would_exceed_daily_limit(facts, intent),
        ("FAILED", "handler_failed") => !was_requested,
        // Its client built the transaction for the reserved nonce.
        ("FAILED", "nonce_taken") => intent.client.is_some() && lost_its_nonce(facts, intent),
        _ => false,
    };
    (!explained).then(|| "the end is not justified".to_owned())
}

/// On the final chain: the transaction it depends on comes before it in the queue.
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
    facts.attempts_of(intent).any(|attempt| facts.external.contains(&attempt.nonce.unsigned_abs()))
}

/// Every intent with an attempt may have been counted.
fn would_exceed_daily_limit(facts: &Facts<'_>, intent: &Intent) -> bool {
    let others = facts.history.intents.iter().filter(|other| other.tx_id != intent.tx_id);
    let counted = others.filter(|other| facts.attempts_of(other).next().is_some());
    let spent: u64 = counted.map(|other| other.value).sum();
    facts.history.features.has_policy && (spent + intent.value > DAILY_LIMIT || !facts.is_one_day)
}

/// Reports a day on which more than `DAILY_LIMIT` was spent.
pub(super) fn exceeds_daily_limit(facts: &Facts<'_>) -> Option<String> {
    let spent: u64 = facts.chain.iter().map(|tx| tx.value).sum();
    let exceeded = facts.history.features.has_policy && facts.is_one_day && spent > DAILY_LIMIT;
    exceeded.then(|| format!("{spent} were spent on one day, the policy allows {DAILY_LIMIT}"))
}
