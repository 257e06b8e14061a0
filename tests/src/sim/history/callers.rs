//! Callers that hold a nonce: they wait, answer in time or too late, give up, or are never heard of again.

use std::time::Duration;

use ethers_core::types::transaction::eip2718::TypedTransaction;
use ethers_core::types::{Eip1559TransactionRequest, Signature};
use gapless::domain::{Answer, Bytes, Nonce, Payload, ReservationState, TxId, U256, Via};
use gapless::store::{AnswerOutcome, NewReservation, ReservationOutcome, ReservationOwner};
use uuid::Uuid;

use super::History;
use super::clients::Intent;
use super::features::RECIPIENT;
use crate::sim::ledger::BASE_FEE;
use crate::sim::process::Process;

const MOST_CALLERS: usize = 3;
/// A caller that waits is believed in for so long.
const WANTED_FOR: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(in crate::sim) struct Caller {
    owner: ReservationOwner,
    /// It says nothing any more.
    is_gone: bool,
    /// What it said in time.
    pub(in crate::sim) said: Option<Said>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::sim) enum Said {
    /// What shall happen. It is bound to.
    Answered,
    GaveUp,
}

impl History<'_> {
    pub(super) async fn reserve(&mut self) {
        let callers = self.intents.iter().filter(|intent| intent.caller.is_some()).count();
        if callers >= MOST_CALLERS {
            return;
        }
        let value = self.new_value(false);
        let hold = Duration::from_secs(self.dice.pick(&[3, 20, 60]));
        let new = NewReservation {
            // From the seed: a history is the same every time.
            tx_id: TxId(Uuid::from_u64_pair(self.key.chain_id.0, value)),
            submitter: self.key,
            request_id: format!("h{value}"),
            via: Via::WithNonce,
            owner: ReservationOwner::new(),
            hold,
            wanted_for: WANTED_FOR,
        };
        match self.bench.store.request_reservation(&new, false).await.unwrap() {
            ReservationOutcome::Created => {}
            ReservationOutcome::Protected { .. } => return self.say("a caller is refused".to_owned()),
            other => panic!("{other:?}"),
        }
        self.say(format!("caller {value} asks for a nonce, for {hold:?}"));
        let caller = Caller { owner: new.owner, is_gone: false, said: None };
        self.intents.push(Intent { caller: Some(caller), ..Intent::new(new.tx_id, value) });
        if self.dice.one_in(2) {
            self.processes.iter_mut().for_each(Process::announce_work);
        }
    }

    /// One of those who have not said anything yet.
    pub(super) async fn hear_a_caller(&mut self) {
        let waiting = self.waiting_callers();
        if waiting.is_empty() {
            return;
        }
        let index = self.dice.pick(&waiting);
        if self.dice.one_in(6) {
            self.say(format!("caller {} is gone", self.intents[index].value));
            if let Some(caller) = &mut self.intents[index].caller {
                caller.is_gone = true;
            }
            return;
        }
        self.hear(index).await;
    }

    /// Whoever is still there goes on until it has said something.
    pub(super) async fn hear_all_callers(&mut self) {
        for index in self.waiting_callers() {
            self.hear(index).await;
        }
    }

    fn waiting_callers(&self) -> Vec<usize> {
        let waits = |intent: &Intent| {
            intent.caller.as_ref().is_some_and(|caller| !caller.is_gone && caller.said.is_none())
        };
        (0..self.intents.len()).filter(|index| waits(&self.intents[*index])).collect()
    }

    async fn hear(&mut self, index: usize) {
        let Intent { tx_id, value, caller: Some(Caller { owner, .. }), .. } = self.intents[index] else {
            return;
        };
        let view = self.bench.store.reservation(tx_id).await.unwrap().expect("nothing is pruned");
        let answer = match (view.state, view.nonce) {
            (ReservationState::Reserved, Some(nonce)) => self.answer(value, nonce),
            (ReservationState::Requested, _) if !view.tx_state.is_terminal() && !self.dice.one_in(8) => {
                self.say(format!("caller {value} waits"));
                return self.bench.store.keep_waiting(tx_id, owner, WANTED_FOR).await.unwrap();
            }
            (ReservationState::Requested, _) => Answer::GaveUp("it gave up".to_owned()),
            // It learns that it is too late, if it tries.
            (_, nonce) => self.answer(value, nonce.unwrap_or(Nonce(0))),
        };
        let said = if matches!(answer, Answer::GaveUp(_)) { Said::GaveUp } else { Said::Answered };
        let outcome = self.bench.store.answer_reservation(tx_id, owner, &answer).await.unwrap();
        self.say(format!("caller {value} says {answer:?}: {outcome:?}"));
        let Some(caller) = &mut self.intents[index].caller else { return };
        match outcome {
            AnswerOutcome::Taken => caller.said = Some(said),
            AnswerOutcome::TooLate(_) => caller.is_gone = true,
            other => panic!("{other:?}"),
        }
        self.processes.iter_mut().for_each(Process::announce_requests);
    }

    fn answer(&mut self, value: u64, nonce: Nonce) -> Answer {
        match self.dice.below(6) {
            0 => Answer::GaveUp("it gave up".to_owned()),
            1..=2 => Answer::Signed(self.signed(value, nonce)),
            _ => Answer::Unsigned(Box::new(Payload::transfer(RECIPIENT, U256::from(value)))),
        }
    }

    fn signed(&self, value: u64, nonce: Nonce) -> Bytes {
        let tx: TypedTransaction = Eip1559TransactionRequest::new()
            .chain_id(self.key.chain_id.0)
            .from(self.key.address)
            .to(RECIPIENT)
            .value(value)
            .nonce(nonce.0)
            .gas(21_000)
            .max_fee_per_gas(BASE_FEE * 30)
            .max_priority_fee_per_gas(BASE_FEE)
            .into();
        let signature = self.parts.wallet.sign_hash(tx.sighash()).expect("a key signs");
        tx.rlp_signed(&Signature { v: signature.v - 27, ..signature })
    }
}
