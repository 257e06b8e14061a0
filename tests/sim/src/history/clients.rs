//! Requests of clients and operators.

use std::time::Duration;

use gapless_domain::{H256, Payload, TxId, U256};
use gapless_store::{
    IntakeOutcome, NewIntent, OperatorAction, OperatorOutcome, OperatorRequest, TakenBy, TxAction,
};

use super::History;
use super::features::{FORBIDDEN_RECIPIENT, FORBIDDEN_VALUE, RECIPIENT};
use super::reservation_clients::ReservationClient;
use crate::clock;
use crate::ledger::Fate;
use crate::process::Process;

const MOST_INTENTS: usize = 4;
/// The last digit of a value identifies the intent.
const MOST_VALUES: usize = 10;

/// A request and the expectations of its client.
#[derive(Debug)]
pub(crate) struct Intent {
    pub(crate) tx_id: TxId,
    /// Identifies it on chain. For a reservation: the value of the client's answer.
    pub(crate) value: u64,
    /// A cancellation was requested, or it has a deadline.
    pub(crate) may_be_cancelled: bool,
    /// The policy forbids its recipient.
    pub(crate) to_forbidden: bool,
    pub(crate) client: Option<ReservationClient>,
}

impl Intent {
    pub(super) fn new(tx_id: TxId, value: u64) -> Intent {
        Intent { tx_id, value, may_be_cancelled: false, to_forbidden: false, client: None }
    }

    /// Whether the policy forbids it independently of the daily limit.
    pub(crate) fn is_forbidden(&self) -> bool {
        self.to_forbidden || self.value >= FORBIDDEN_VALUE
    }
}

/// The transaction that an operator gives as the nonce consumer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pointer {
    Right,
    WrongBlock,
    OurOwn,
    NoTransaction,
}

impl History<'_> {
    pub(super) async fn submit(&mut self) {
        if self.intents.iter().filter(|intent| intent.client.is_none()).count() < MOST_INTENTS {
            let value = self.new_value(true);
            self.submit_value(value).await;
        }
    }

    /// In the final phase: on a shared key the next request fills a nonce that became free.
    pub(super) async fn submit_another(&mut self) {
        if self.intents.len() < MOST_VALUES {
            self.submit_value(10 + self.intents.len() as u64).await;
        }
    }

    /// Its tens digit determines its fate.
    pub(super) fn new_value(&mut self, may_need: bool) -> u64 {
        let mut tens = vec![1, 2, 3, 4, 5];
        if self.features.has_contract {
            tens.push(6);
            tens.extend(may_need.then_some([7; 3]).into_iter().flatten());
        }
        if self.features.has_policy {
            tens.push(FORBIDDEN_VALUE / 10);
        }
        10 * self.rng.pick(&tens) + self.intents.len() as u64
    }

    async fn submit_value(&mut self, value: u64) {
        let mut payload = Payload::transfer(RECIPIENT, U256::from(value));
        if self.features.is_varied && self.rng.one_in(6) {
            let limit = Duration::from_secs(self.rng.pick(&[1, 10, 100]));
            payload.deadline = Some(clock::now(&self.context.db).await + limit);
        }
        if self.features.has_contract && self.rng.one_in(6) {
            // With a gas limit there is no estimate: it reverts when it is mined.
            payload.gas_limit = Some(U256::from(50_000));
        }
        if self.features.has_policy && self.rng.one_in(6) {
            payload.to = Some(FORBIDDEN_RECIPIENT);
        }
        let (is_limited, to_forbidden) = (payload.deadline.is_some(), payload.to != Some(RECIPIENT));
        let intent = NewIntent::new(self.key, format!("r{value}"), payload, None);
        match &self.context.store.insert_group(&[intent]).await.unwrap()[..] {
            [IntakeOutcome::Created(tx_id)] => {
                self.need_the_last_one(value);
                let intent = Intent::new(*tx_id, value);
                self.intents.push(Intent { may_be_cancelled: is_limited, to_forbidden, ..intent });
            }
            // PROTECT that has not been released yet.
            [IntakeOutcome::Protected { .. }] => return self.log_event("a request is rejected".to_owned()),
            other => panic!("{other:?}"),
        }
        let notified = self.rng.one_in(2);
        let limited = if is_limited { ", with a deadline" } else { "" };
        let notice = if notified { ", with a notification" } else { "" };
        self.log_event(format!("intent {value} is queued{limited}{notice}"));
        if notified {
            self.processes.iter_mut().for_each(Process::announce_work);
        }
    }

    fn need_the_last_one(&mut self, value: u64) {
        let before = self.intents.iter().rev().find(|intent| intent.client.is_none());
        if let (Fate::Needs, Some(before)) = (Fate::of(value), before) {
            self.ledger().needs.insert(value, before.value);
        }
    }

    pub(super) async fn tx_action(&mut self, action: TxAction) {
        if self.intents.is_empty() {
            return;
        }
        let index = self.rng.below(self.intents.len() as u64) as usize;
        let Intent { tx_id, value, .. } = self.intents[index];
        self.log_event(format!("{action:?} of intent {value} is requested"));
        let request = OperatorRequest { actor: "simulation", reason: "random" };
        self.intents[index].may_be_cancelled |= action == TxAction::Cancel;
        self.context.store.request_tx_action(tx_id, action, request).await.unwrap();
        self.processes.iter_mut().for_each(Process::announce_requests);
    }

    pub(super) async fn operator_action(&mut self, action: OperatorAction, pointer: Option<Pointer>) {
        let taken_by = pointer.map(|pointer| self.taken_by(pointer));
        let reason = pointer.map_or("no transaction".to_owned(), |pointer| format!("{pointer:?}"));
        let request = OperatorRequest { actor: "simulation", reason: &reason };
        let outcome = self.context.store.request_action(self.key, action, request, taken_by).await.unwrap();
        if let OperatorOutcome::Recorded(_) = outcome {
            self.log_event(format!("an operator requests {action:?} with {reason}"));
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
