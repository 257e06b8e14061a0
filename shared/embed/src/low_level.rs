//! The low-level API: `allocate` a nonce, then `mark_used` or `mark_recyclable`. Off unless
//! `nonce.low_level.enabled`.
//!
//! States: RESERVED until the reservation ends, USED once the client's signed bytes are recorded, RECYCLABLE once it
//! is given up or expired. Sequences are strict: the placeholder consumes a recyclable nonce, the smallest first. A
//! nonce is never granted twice, because the client may have signed something for it.

use std::time::{Duration, Instant};

use uuid::Uuid;

use super::Gapless;
use super::error::EmbedError;
use super::reservation::{
    PendingReservation, RequestOutcome, ReservationRequest, submit_answer, truncate_reason,
};
use gapless_domain::{Answer, Bytes, Nonce, ReservationState, SubmitterKey, TxId, Via};
use gapless_signer::read_signed;
use gapless_store::{ReservationOwner, StoreError};

/// How long to retry while the database is unreachable: enough for a reconnect. The reservation runs out meanwhile.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// A reserved nonce. Only `allocate` makes one; it carries the owner id that answers need.
#[derive(Debug)]
pub struct Allocation {
    tx_id: TxId,
    owner: ReservationOwner,
    submitter: SubmitterKey,
    nonce: Nonce,
    ends: Instant,
}

impl Allocation {
    /// The intent that has the nonce; track it like any other.
    pub fn tx_id(&self) -> TxId {
        self.tx_id
    }

    pub fn submitter(&self) -> SubmitterKey {
        self.submitter
    }

    pub fn nonce(&self) -> Nonce {
        self.nonce
    }

    /// Time until the reservation ends. After that the nonce is RECYCLABLE.
    pub fn time_left(&self) -> Duration {
        self.ends.saturating_duration_since(Instant::now())
    }
}

impl Gapless {
    /// Reserves the submitter's next nonce for `reserve_for`. Waits in the queue, at most for `wait`. Dropping the
    /// allocation does not give it up; it expires.
    pub async fn allocate(
        &self,
        submitter: SubmitterKey,
        reserve_for: Duration,
        wait: Duration,
    ) -> Result<Allocation, EmbedError> {
        let request_id = format!("allocation-{}", Uuid::new_v4());
        let request = ReservationRequest { submitter, request_id, via: Via::LowLevel, reserve_for, wait };
        let mut reservation = match PendingReservation::request(self, &request).await? {
            RequestOutcome::New(reservation) => reservation,
            // Practically impossible: the request id is random.
            RequestOutcome::Known(tx_id) => return Err(EmbedError::RequestIdConflict { tx_id }),
        };
        let granted = reservation.nonce(wait).await?;
        let (tx_id, owner) = (reservation.tx_id, reservation.owner);
        reservation.detach();
        Ok(Allocation { tx_id, owner, submitter, nonce: granted.nonce, ends: granted.ends })
    }

    /// Uses the nonce for these signed bytes; the worker checks, records and sends them. Takes the bytes and not
    /// their hash, because only recorded bytes may be sent. Invalid bytes are refused, and the nonce stays reserved.
    pub async fn mark_used(&self, allocation: &Allocation, raw: Bytes) -> Result<TxId, EmbedError> {
        let Allocation { tx_id, owner, submitter, nonce, .. } = *allocation;
        read_signed(submitter.chain_id, submitter.address, nonce, &raw).map_err(EmbedError::BadBytes)?;
        submit_answer(self, tx_id, owner, &Answer::Signed(raw), ANSWER_TIMEOUT).await?;
        Ok(tx_id)
    }

    /// Gives the nonce up: the placeholder consumes it.
    pub async fn mark_recyclable(&self, allocation: &Allocation, reason: &str) -> Result<(), EmbedError> {
        let answer = Answer::GaveUp(truncate_reason(reason));
        submit_answer(self, allocation.tx_id, allocation.owner, &answer, ANSWER_TIMEOUT).await
    }

    /// The state of the reservation; `None`: its rows were pruned.
    pub async fn allocation_state(
        &self,
        allocation: &Allocation,
    ) -> Result<Option<ReservationState>, StoreError> {
        Ok(self.store.reservation(allocation.tx_id).await?.map(|view| view.state))
    }
}
