//! What clients and operators ask for.

use std::time::Duration;

use gapless::domain::{Address, Payload, U256};
use gapless::store::{IntakeOutcome, NewIntent, OperatorAction, OperatorOutcome, OperatorRequest, TxAction};

use super::History;
use crate::sim::clock;
use crate::sim::process::Process;

const MOST_INTENTS: usize = 4;

impl History<'_> {
    pub(super) async fn submit(&mut self) {
        if self.intents.len() >= MOST_INTENTS {
            return;
        }
        let value = 10 * (1 + self.dice.below(5)) + self.intents.len() as u64;
        let mut payload = Payload::transfer(Address::repeat_byte(0x77), U256::from(value));
        if self.limited && self.dice.one_in(6) {
            let limit = Duration::from_secs(self.dice.pick(&[1, 10, 100]));
            payload.deadline = Some(clock::now(&self.bench.db).await + limit);
        }
        let is_limited = payload.deadline.is_some();
        let intent = NewIntent::new(self.key, format!("r{value}"), payload, None);
        match &self.bench.store.insert_group(&[intent], false).await.unwrap()[..] {
            [IntakeOutcome::Created(tx_id)] => {
                self.intents.push((*tx_id, value));
                if is_limited {
                    self.may_be_cancelled.insert(*tx_id);
                }
            }
            // A false alarm that has not ended yet.
            [IntakeOutcome::Protected { .. }] => return self.say("a request is refused".to_owned()),
            other => panic!("{other:?}"),
        }
        let heard = self.dice.one_in(2);
        let limited = if is_limited { ", with a deadline" } else { "" };
        self.say(format!("intent {value} is queued{limited}{}", if heard { ", and said so" } else { "" }));
        if heard {
            self.processes.iter_mut().for_each(Process::tell_of_work);
        }
    }

    pub(super) async fn ask(&mut self, action: TxAction) {
        if self.intents.is_empty() {
            return;
        }
        let (tx_id, value) = self.intents[self.dice.below(self.intents.len() as u64) as usize];
        self.say(format!("{action:?} of intent {value} is asked for"));
        let request = OperatorRequest { actor: "simulation", reason: "the seed says so" };
        if action == TxAction::Cancel {
            self.may_be_cancelled.insert(tx_id);
        }
        self.bench.store.ask_about_tx(tx_id, action, request).await.unwrap();
        self.processes.iter_mut().for_each(Process::tell_of_requests);
    }

    /// Only about a key that was used outside: everything else must come right without anybody.
    pub(super) async fn operate(&mut self, action: OperatorAction) {
        if !self.ledger().was_used_outside() {
            return;
        }
        let request = OperatorRequest { actor: "simulation", reason: "the seed says so" };
        let asked = self.bench.store.request_action(self.key, action, request, None).await.unwrap();
        if let OperatorOutcome::Recorded(_) = asked {
            self.say(format!("an operator asks for {action:?}"));
            self.processes.iter_mut().for_each(Process::tell_of_requests);
        }
    }
}
