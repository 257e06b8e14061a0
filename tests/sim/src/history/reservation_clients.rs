//! Clients that reserve nonces: they wait, answer in time or too late, give up, or disappear.

use std::time::Duration;

use ethers_core::types::transaction::eip2718::TypedTransaction;
use ethers_core::types::{Eip1559TransactionRequest, Signature};
use gapless_domain::{Answer, Bytes, Nonce, Payload, ReservationState, TxId, U256, Via};
use gapless_store::{AnswerOutcome, NewReservation, ReservationOutcome, ReservationOwner};
use uuid::Uuid;

use super::History;
use super::clients::Intent;
use super::features::RECIPIENT;
use crate::ledger::BASE_FEE;
use crate::process::Process;

const MAX_RESERVATIONS: usize = 3;
/// How long a waiting client's request stays valid without a renewal.
const WANTED_FOR: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(crate) struct ReservationClient {
    owner: ReservationOwner,
    /// It has disappeared.
    is_gone: bool,
    /// Its answer, if it came in time.
    pub(crate) answer_kind: Option<AnswerKind>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AnswerKind {
    /// A transaction, which must be sent.
    Answered,
    GaveUp,
}

impl History<'_> {
    pub(super) async fn reserve(&mut self) {
        let clients = self.intents.iter().filter(|intent| intent.client.is_some()).count();
        if clients >= MAX_RESERVATIONS {
            return;
        }
        let value = self.new_value(false);
        let reserve_for = Duration::from_secs(self.rng.pick(&[3, 20, 60]));
        let new = NewReservation {
            // Derived from the seed, for determinism.
            tx_id: TxId(Uuid::from_u64_pair(self.key.chain_id.0, value)),
            submitter: self.key,
            request_id: format!("h{value}"),
            via: Via::WithNonce,
            owner: ReservationOwner::new(),
            reserve_for,
            wanted_for: WANTED_FOR,
        };
        match self.context.store.request_reservation(&new).await.unwrap() {
            ReservationOutcome::Created => {}
            ReservationOutcome::Protected { .. } => return self.log_event("a client is refused".to_owned()),
            other => panic!("{other:?}"),
        }
        self.log_event(format!("client {value} requests a nonce for {reserve_for:?}"));
        let client = ReservationClient { owner: new.owner, is_gone: false, answer_kind: None };
        self.intents.push(Intent { client: Some(client), ..Intent::new(new.tx_id, value) });
        if self.rng.one_in(2) {
            self.processes.iter_mut().for_each(Process::announce_work);
        }
    }

    /// Polls one client that has not answered yet.
    pub(super) async fn poll_a_reservation_client(&mut self) {
        let waiting = self.waiting_clients();
        if waiting.is_empty() {
            return;
        }
        let index = self.rng.pick(&waiting);
        if self.rng.one_in(6) {
            self.log_event(format!("client {} is gone", self.intents[index].value));
            if let Some(client) = &mut self.intents[index].client {
                client.is_gone = true;
            }
            return;
        }
        self.poll_client(index).await;
    }

    /// Polls all clients that have not answered and not disappeared.
    pub(super) async fn poll_all_reservation_clients(&mut self) {
        for index in self.waiting_clients() {
            self.poll_client(index).await;
        }
    }

    fn waiting_clients(&self) -> Vec<usize> {
        let waits = |intent: &Intent| {
            intent.client.as_ref().is_some_and(|client| !client.is_gone && client.answer_kind.is_none())
        };
        (0..self.intents.len()).filter(|index| waits(&self.intents[*index])).collect()
    }

    async fn poll_client(&mut self, index: usize) {
        let Intent { tx_id, value, client: Some(ReservationClient { owner, .. }), .. } = self.intents[index]
        else {
            return;
        };
        let view = self.context.store.reservation(tx_id).await.unwrap().expect("nothing is pruned");
        let answer = match (view.state, view.nonce) {
            (ReservationState::Reserved, Some(nonce)) => self.answer(value, nonce),
            (ReservationState::Requested, _) if !view.tx_state.is_terminal() && !self.rng.one_in(8) => {
                self.log_event(format!("client {value} waits"));
                return self.context.store.keep_waiting(tx_id, owner, WANTED_FOR).await.unwrap();
            }
            (ReservationState::Requested, _) => Answer::GaveUp("it gave up".to_owned()),
            // Too late; the store must reject the answer.
            (_, nonce) => self.answer(value, nonce.unwrap_or(Nonce(0))),
        };
        let gave_up = matches!(answer, Answer::GaveUp(_));
        let answer_kind = if gave_up { AnswerKind::GaveUp } else { AnswerKind::Answered };
        let outcome = self.context.store.answer_reservation(tx_id, owner, &answer).await.unwrap();
        self.log_event(format!("client {value} answers {answer:?}: {outcome:?}"));
        let Some(client) = &mut self.intents[index].client else { return };
        match outcome {
            AnswerOutcome::Taken => client.answer_kind = Some(answer_kind),
            AnswerOutcome::TooLate(_) => client.is_gone = true,
            other => panic!("{other:?}"),
        }
        self.processes.iter_mut().for_each(Process::announce_requests);
    }

    fn answer(&mut self, value: u64, nonce: Nonce) -> Answer {
        match self.rng.below(6) {
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
