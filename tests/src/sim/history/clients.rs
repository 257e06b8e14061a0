//! What clients and operators ask for.

use std::time::Duration;

use gapless::domain::{H256, Payload, TxId, U256};
use gapless::store::{
    IntakeOutcome, NewIntent, OperatorAction, OperatorOutcome, OperatorRequest, TakenBy, TxAction,
};

use super::History;
use super::callers::Caller;
use super::features::{FORBIDDEN_RECIPIENT, FORBIDDEN_VALUE, RECIPIENT};
use crate::sim::clock;
use crate::sim::ledger::Fate;
use crate::sim::process::Process;

const MOST_INTENTS: usize = 4;
/// The last digit of a value tells which intent it is.
const MOST_VALUES: usize = 10;

/// What was asked for, and what its client knows of it.
#[derive(Debug)]
pub(in crate::sim) struct Intent {
    pub(in crate::sim) tx_id: TxId,
    /// Tells it on chain. Of a held nonce: what its caller asks for when it answers.
    pub(in crate::sim) value: u64,
    /// Somebody asked for its end, by request or by deadline.
    pub(in crate::sim) may_be_cancelled: bool,
    /// Its recipient is not one that the policy allows.
    pub(in crate::sim) to_forbidden: bool,
    pub(in crate::sim) caller: Option<Caller>,
}

impl Intent {
    pub(super) fn new(tx_id: TxId, value: u64) -> Intent {
        Intent { tx_id, value, may_be_cancelled: false, to_forbidden: false, caller: None }
    }

    /// Whether the policy of the history refuses it whatever the day has counted.
    pub(in crate::sim) fn is_forbidden(&self) -> bool {
        self.to_forbidden || self.value >= FORBIDDEN_VALUE
    }
}

/// The transaction that an operator says has taken a nonce.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pointer {
    Right,
    WrongBlock,
    OurOwn,
    NoTransaction,
}

impl History<'_> {
    pub(super) async fn submit(&mut self) {
        if self.intents.iter().filter(|intent| intent.caller.is_none()).count() < MOST_INTENTS {
            let value = self.new_value(true);
            self.submit_value(value).await;
        }
    }

    /// On the way to the end: a nonce that others left is filled by the next request.
    pub(super) async fn submit_another(&mut self) {
        if self.intents.len() < MOST_VALUES {
            self.submit_value(10 + self.intents.len() as u64).await;
        }
    }

    /// Its tens say what becomes of it.
    pub(super) fn new_value(&mut self, may_need: bool) -> u64 {
        let mut tens = vec![1, 2, 3, 4, 5];
        if self.features.has_contract {
            tens.push(6);
            tens.extend(may_need.then_some([7; 3]).into_iter().flatten());
        }
        if self.features.has_policy {
            tens.push(FORBIDDEN_VALUE / 10);
        }
        10 * self.dice.pick(&tens) + self.intents.len() as u64
    }

    async fn submit_value(&mut self, value: u64) {
        let mut payload = Payload::transfer(RECIPIENT, U256::from(value));
        if self.features.is_varied && self.dice.one_in(6) {
            let limit = Duration::from_secs(self.dice.pick(&[1, 10, 100]));
            payload.deadline = Some(clock::now(&self.bench.db).await + limit);
        }
        if self.features.has_contract && self.dice.one_in(6) {
            // Nothing is estimated: it reverts when it is mined.
            payload.gas_limit = Some(U256::from(50_000));
        }
        if self.features.has_policy && self.dice.one_in(6) {
            payload.to = Some(FORBIDDEN_RECIPIENT);
        }
        let (is_limited, to_forbidden) = (payload.deadline.is_some(), payload.to != Some(RECIPIENT));
        let intent = NewIntent::new(self.key, format!("r{value}"), payload, None);
        match &self.bench.store.insert_group(&[intent], false).await.unwrap()[..] {
            [IntakeOutcome::Created(tx_id)] => {
                self.need_the_last_one(value);
                let intent = Intent::new(*tx_id, value);
                self.intents.push(Intent { may_be_cancelled: is_limited, to_forbidden, ..intent });
            }
            // A false alarm that has not ended yet.
            [IntakeOutcome::Protected { .. }] => return self.say("a request is refused".to_owned()),
            other => panic!("{other:?}"),
        }
        let heard = self.dice.one_in(2);
        let limited = if is_limited { ", with a deadline" } else { "" };
        self.say(format!("intent {value} is queued{limited}{}", if heard { ", and said so" } else { "" }));
        if heard {
            self.processes.iter_mut().for_each(Process::announce_work);
        }
    }

    fn need_the_last_one(&mut self, value: u64) {
        let before = self.intents.iter().rev().find(|intent| intent.caller.is_none());
        if let (Fate::Needs, Some(before)) = (Fate::of(value), before) {
            self.ledger().needs.insert(value, before.value);
        }
    }

    pub(super) async fn ask(&mut self, action: TxAction) {
        if self.intents.is_empty() {
            return;
        }
        let index = self.dice.below(self.intents.len() as u64) as usize;
        let Intent { tx_id, value, .. } = self.intents[index];
        self.say(format!("{action:?} of intent {value} is asked for"));
        let request = OperatorRequest { actor: "simulation", reason: "the seed says so" };
        self.intents[index].may_be_cancelled |= action == TxAction::Cancel;
        self.bench.store.request_tx_action(tx_id, action, request).await.unwrap();
        self.processes.iter_mut().for_each(Process::announce_requests);
    }

    pub(super) async fn operate(&mut self, action: OperatorAction, pointer: Option<Pointer>) {
        let taken_by = pointer.map(|pointer| self.taken_by(pointer));
        let reason = pointer.map_or("no transaction".to_owned(), |pointer| format!("{pointer:?}"));
        let request = OperatorRequest { actor: "simulation", reason: &reason };
        let asked = self.bench.store.request_action(self.key, action, request, taken_by).await.unwrap();
        if let OperatorOutcome::Recorded(_) = asked {
            self.say(format!("an operator asks for {action:?} with {reason}"));
            self.processes.iter_mut().for_each(Process::announce_requests);
        }
    }

    fn taken_by(&self, pointer: Pointer) -> TakenBy {
        let ledger = self.ledger();
        let (tx_hash, block) = ledger.newest_external().unwrap_or((H256::repeat_byte(9), 1));
        match pointer {
            Pointer::Right => TakenBy { tx_hash, block },
            Pointer::WrongBlock => TakenBy { tx_hash, block: block.saturating_sub(1) },
            Pointer::OurOwn => {
                let ours = ledger.chain().into_iter().rev().find(|tx| !ledger.is_external(tx));
                let hash = ours.map_or(tx_hash, |tx| tx.hash);
                TakenBy { tx_hash: hash, block: ledger.block_of(hash).unwrap_or(block) }
            }
            Pointer::NoTransaction => TakenBy { tx_hash: H256::repeat_byte(9), block },
        }
    }
}
