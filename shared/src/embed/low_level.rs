//! The low-level hook: take a nonce, and say later what became of it. Off unless `nonce.low_level.enabled`.
//!
//! States as everywhere: RESERVED while it is held, USED once the caller's signed bytes are recorded, RECYCLABLE once it is
//! given up. Sequences are strict, so a recyclable nonce is consumed by its placeholder, the smallest first; nobody gets it
//! again, because whoever held it may have signed something for it.

use std::time::{Duration, Instant};

use uuid::Uuid;

use super::Gapless;
use super::error::EmbedError;
use super::reservation::{Ask, Asked, PendingReservation, answer_as, shortened};
use crate::domain::{Answer, Bytes, Nonce, ReservationState, SubmitterKey, TxId, Via};
use crate::signer::read_signed;
use crate::store::{ReservationOwner, StoreError};

/// Longer than a lost connection takes to come back, and no longer: the caller has its own hold to think of.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// A nonce that this process holds. Its owner is inside, and nobody else can make one: it cannot be used by mistake.
#[derive(Debug)]
pub struct Allocation {
    tx_id: TxId,
    owner: ReservationOwner,
    submitter: SubmitterKey,
    nonce: Nonce,
    ends: Instant,
}

impl Allocation {
    /// The intent that carries the nonce; follow it like any other.
    pub fn tx_id(&self) -> TxId {
        self.tx_id
    }

    pub fn submitter(&self) -> SubmitterKey {
        self.submitter
    }

    pub fn nonce(&self) -> Nonce {
        self.nonce
    }

    /// What is left of the hold. After it the nonce is RECYCLABLE.
    pub fn time_left(&self) -> Duration {
        self.ends.saturating_duration_since(Instant::now())
    }
}

impl Gapless {
    /// Takes the submitter's next nonce for `hold`. Waits for its turn, at most `wait`. An allocation that is dropped is not
    /// given up before its hold ends.
    pub async fn allocate(
        &self,
        submitter: SubmitterKey,
        hold: Duration,
        wait: Duration,
    ) -> Result<Allocation, EmbedError> {
        let request_id = format!("allocation-{}", Uuid::new_v4());
        let ask = Ask { submitter, request_id, via: Via::LowLevel, hold, wait };
        let mut reservation = match PendingReservation::ask(self, &ask).await? {
            Asked::New(reservation) => reservation,
            // A random request id that somebody else had: not in the life of a universe.
            Asked::Known(tx_id) => return Err(EmbedError::RequestIdConflict { tx_id }),
        };
        let given = reservation.nonce(wait).await?;
        let (tx_id, owner) = (reservation.tx_id, reservation.owner);
        reservation.keep();
        Ok(Allocation { tx_id, owner, submitter, nonce: given.nonce, ends: given.ends })
    }

    /// The nonce is used by these bytes; the worker checks, records and sends them. They are wanted, and not their hash: only
    /// what is on disk may be sent. Bytes that do not count are refused, and the hold goes on.
    pub async fn mark_used(&self, allocation: &Allocation, raw: Bytes) -> Result<TxId, EmbedError> {
        let Allocation { tx_id, owner, submitter, nonce, .. } = *allocation;
        read_signed(submitter.chain_id, submitter.address, nonce, &raw).map_err(EmbedError::BadBytes)?;
        answer_as(self, tx_id, owner, &Answer::Signed(raw), ANSWER_WITHIN).await?;
        Ok(tx_id)
    }

    /// The nonce is not wanted: the placeholder consumes it.
    pub async fn mark_recyclable(&self, allocation: &Allocation, reason: &str) -> Result<(), EmbedError> {
        let answer = Answer::GaveUp(shortened(reason));
        answer_as(self, allocation.tx_id, allocation.owner, &answer, ANSWER_WITHIN).await
    }

    /// Where it stands; `None`: its rows were pruned.
    pub async fn allocation_state(
        &self,
        allocation: &Allocation,
    ) -> Result<Option<ReservationState>, StoreError> {
        Ok(self.store.reservation(allocation.tx_id).await?.map(|view| view.state))
    }
}
