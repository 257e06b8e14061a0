//! Reservations, from the caller's side: ask for a nonce, look whether it is there, answer, give up.
//!
//! None of this is behind the fence, and none of it needs to be: a caller inserts a request and fills in its answer.
//! Nonces, states and intents are moved by the lane alone.

use std::time::Duration;

use sqlx::types::Json;
use uuid::Uuid;

use super::error::StoreError;
use super::intake::is_deadlock;
use super::pool::Store;
use super::row::{self, Cell};
use crate::domain::reservation::reservation_hash;
use crate::domain::{
    Answer, EventKind, Nonce, Payload, ReservationState, SubmitterKey, TxId, TxKind, TxState, U256, Via,
};

/// Names one call: whoever knows it owns the reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReservationOwner(Uuid);

impl ReservationOwner {
    #[allow(clippy::new_without_default)] // a default owner would be a surprise
    pub fn new() -> Self {
        ReservationOwner(Uuid::new_v4())
    }
}

/// A request for a nonce.
#[derive(Clone, Debug)]
pub struct NewReservation {
    /// Given by us, so that a lost answer to the insert can be told from somebody else's row.
    pub tx_id: TxId,
    pub submitter: SubmitterKey,
    pub request_id: String,
    pub via: Via,
    pub owner: ReservationOwner,
    pub hold: Duration,
    /// How long the request counts without a word from the caller.
    pub wanted_for: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReservationOutcome {
    Created,
    /// The same request was made before.
    Existing(TxId),
    /// The request id was used for an ordinary request.
    Conflict(TxId),
    UnknownSubmitter,
    Protected {
        reason: String,
    },
    /// The submitter is in the other mode: low-level or not.
    WrongMode,
}

/// A reservation and its intent, as a caller sees them.
#[derive(Clone, Debug)]
pub struct ReservationView {
    pub state: ReservationState,
    pub nonce: Option<Nonce>,
    /// What is left of the hold; zero when it is over.
    pub left: Duration,
    /// The state of the intent, and the words that go with it.
    pub tx_state: TxState,
    pub last_error: Option<String>,
}

/// What became of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AnswerOutcome {
    /// In time: the lane is bound by it.
    Taken,
    /// The hold is over, or the nonce is used or given up.
    TooLate(ReservationState),
    /// It was answered before, in other words.
    AnsweredBefore,
    /// There is no such reservation, or it is somebody else's.
    NotYours,
}

#[derive(sqlx::FromRow)]
struct ViewRow {
    state: String,
    nonce: Option<i64>,
    left_seconds: Option<f64>,
    tx_state: String,
    last_error: Option<String>,
}

impl Store {
    /// Queues the intent that will carry the nonce, with the reservation. Until it is answered, what it does is nothing:
    /// a transfer of nothing to the submitter itself.
    pub async fn request_reservation(
        &self,
        new: &NewReservation,
        outbox: bool,
    ) -> Result<ReservationOutcome, StoreError> {
        loop {
            match self.insert_reservation(new, outbox).await {
                Err(StoreError::Db { source, .. }) if is_deadlock(&source) => {}
                Err(error) => return Err(error),
                Ok(true) => return Ok(ReservationOutcome::Created),
                Ok(false) => {
                    if let Some(outcome) = self.explain_reservation(new).await? {
                        return Ok(outcome);
                    }
                }
            }
        }
    }

    async fn insert_reservation(&self, new: &NewReservation, outbox: bool) -> Result<bool, StoreError> {
        let accepted = EventKind::Accepted;
        // Legacy: every chain takes it, and the placeholder has to be mined wherever the caller's transaction could be.
        let nothing =
            Payload { kind: TxKind::Legacy, ..Payload::transfer(new.submitter.address, U256::zero()) };
        let inserted: Option<Uuid> = sqlx::query_scalar(
            "-- request_reservation
            WITH accepted AS (
                INSERT INTO managed_tx (tx_id, chain_id, submitter, request_id, payload, payload_hash)
                SELECT $1, s.chain_id, s.submitter, $4, $5, $6
                FROM submitter s
                LEFT JOIN submitter_nonce_cursor c ON c.chain_id = s.chain_id AND c.submitter = s.submitter
                WHERE s.chain_id = $2 AND s.submitter = $3 AND c.in_flight_state IS DISTINCT FROM 'PROTECT'
                  AND s.low_level = ($7 = 'low_level')
                ON CONFLICT (chain_id, submitter, request_id) DO NOTHING
                RETURNING tx_id, chain_id, submitter),
            told AS (
                INSERT INTO outbox_event (chain_id, submitter, tx_id, kind, data)
                SELECT chain_id, submitter, tx_id, $12, $13
                FROM accepted
                WHERE $11)
            INSERT INTO nonce_reservation (tx_id, chain_id, submitter, via, owner, hold_seconds, wanted_until)
            SELECT tx_id, chain_id, submitter, $7, $8, $9, clock_timestamp() + make_interval(secs => $10)
            FROM accepted
            RETURNING tx_id",
        )
        .bind(new.tx_id.0)
        .bind(new.submitter.chain_id.as_i64())
        .bind(new.submitter.address_text())
        .bind(&new.request_id)
        .bind(Json(&nothing))
        .bind(reservation_hash().as_bytes().to_vec())
        .bind(new.via.as_str())
        .bind(new.owner.0)
        .bind(new.hold.as_secs_f64())
        .bind(new.wanted_for.as_secs_f64())
        .bind(outbox)
        .bind(accepted.name())
        .bind(Json(&accepted))
        .fetch_optional(&self.pool)
        .await
        .map_err(StoreError::db("request_reservation"))?;
        Ok(inserted.is_some())
    }

    /// Why nothing was inserted; `None`: the obstacle is gone.
    async fn explain_reservation(
        &self,
        new: &NewReservation,
    ) -> Result<Option<ReservationOutcome>, StoreError> {
        type Row = (Option<Uuid>, Option<Vec<u8>>, Option<bool>, Option<String>);
        let (tx_id, hash, low_level, protect_reason): Row = sqlx::query_as(
            "-- explain_reservation
            SELECT t.tx_id, t.payload_hash, s.low_level, c.protect_reason
            FROM (SELECT $1::BIGINT AS chain_id, $2::TEXT AS submitter, $3::TEXT AS request_id) u
            LEFT JOIN managed_tx t
                ON t.chain_id = u.chain_id AND t.submitter = u.submitter AND t.request_id = u.request_id
            LEFT JOIN submitter s ON s.chain_id = u.chain_id AND s.submitter = u.submitter
            LEFT JOIN submitter_nonce_cursor c ON c.chain_id = u.chain_id AND c.submitter = u.submitter",
        )
        .bind(new.submitter.chain_id.as_i64())
        .bind(new.submitter.address_text())
        .bind(&new.request_id)
        .fetch_one(&self.pool)
        .await
        .map_err(StoreError::db("explain_reservation"))?;
        if let Some(tx_id) = tx_id.map(TxId) {
            return Ok(Some(if tx_id == new.tx_id {
                // An earlier try of ours committed although its answer was lost.
                ReservationOutcome::Created
            } else if hash.as_deref() == Some(reservation_hash().as_bytes()) {
                ReservationOutcome::Existing(tx_id)
            } else {
                ReservationOutcome::Conflict(tx_id)
            }));
        }
        Ok(match (low_level, protect_reason) {
            (None, _) => Some(ReservationOutcome::UnknownSubmitter),
            (Some(low_level), _) if low_level != (new.via == Via::LowLevel) => {
                Some(ReservationOutcome::WrongMode)
            }
            (Some(_), reason) => reason.map(|reason| ReservationOutcome::Protected { reason }),
        })
    }

    /// Where it stands; `None`: there is none, or it was pruned.
    pub async fn reservation(&self, tx_id: TxId) -> Result<Option<ReservationView>, StoreError> {
        let row: Option<ViewRow> = sqlx::query_as(
            "-- reservation
            SELECT r.state, r.nonce, extract(epoch FROM r.expires_at - clock_timestamp())::FLOAT8 AS left_seconds,
                   t.state AS tx_state, t.last_error
            FROM nonce_reservation r
            JOIN managed_tx t ON t.tx_id = r.tx_id
            WHERE r.tx_id = $1",
        )
        .bind(tx_id.0)
        .fetch_optional(&self.pool)
        .await
        .map_err(StoreError::db("reservation"))?;
        let Some(row) = row else { return Ok(None) };
        let id = tx_id.to_string();
        let cell = |table, column| Cell { table, column, id: &id };
        Ok(Some(ReservationView {
            state: cell("nonce_reservation", "state").parse(&row.state)?,
            nonce: row
                .nonce
                .map(|nonce| row::nonce(cell("nonce_reservation", "nonce"), nonce))
                .transpose()?,
            left: super::load::seconds(row.left_seconds),
            tx_state: cell("managed_tx", "state").parse(&row.tx_state)?,
            last_error: row.last_error,
        }))
    }

    /// The caller is still there and waits.
    pub async fn keep_waiting(
        &self,
        tx_id: TxId,
        owner: ReservationOwner,
        wanted_for: Duration,
    ) -> Result<(), StoreError> {
        // No row count: a nonce may have been given, or the intent ended, a moment ago. The next look shows it.
        sqlx::query(
            "-- keep_waiting
            UPDATE nonce_reservation
            SET wanted_until = clock_timestamp() + make_interval(secs => $3)
            WHERE tx_id = $1 AND owner = $2 AND state = 'REQUESTED' AND answered_at IS NULL",
        )
        .bind(tx_id.0)
        .bind(owner.0)
        .bind(wanted_for.as_secs_f64())
        .execute(&self.pool)
        .await
        .map_err(StoreError::db("keep_waiting"))?;
        Ok(())
    }

    /// Writes the caller's answer, if it owns the reservation and the hold is not over. Once: repeating the same answer
    /// is harmless. Giving up is possible before there is a nonce, too.
    pub async fn answer_reservation(
        &self,
        tx_id: TxId,
        owner: ReservationOwner,
        answer: &Answer,
    ) -> Result<AnswerOutcome, StoreError> {
        let (payload, raw, gave_up) = columns_of(answer);
        let done = sqlx::query(
            "-- answer_reservation
            UPDATE nonce_reservation
            SET answer_payload = $3, answer_raw = $4, gave_up = $5, answered_at = clock_timestamp()
            WHERE tx_id = $1 AND owner = $2 AND answered_at IS NULL
              AND ((state = 'RESERVED' AND expires_at > clock_timestamp())
                   OR (state = 'REQUESTED' AND $5::TEXT IS NOT NULL))",
        )
        .bind(tx_id.0)
        .bind(owner.0)
        .bind(&payload)
        .bind(&raw)
        .bind(&gave_up)
        .execute(&self.pool)
        .await
        .map_err(StoreError::db("answer_reservation"))?;
        if done.rows_affected() == 1 {
            return Ok(AnswerOutcome::Taken);
        }
        let found: Option<(String, bool, bool)> = sqlx::query_as(
            "-- explain_answer
            SELECT state, answered_at IS NOT NULL,
                   answer_payload IS NOT DISTINCT FROM $3 AND answer_raw IS NOT DISTINCT FROM $4
                       AND gave_up IS NOT DISTINCT FROM $5
            FROM nonce_reservation
            WHERE tx_id = $1 AND owner = $2",
        )
        .bind(tx_id.0)
        .bind(owner.0)
        .bind(&payload)
        .bind(&raw)
        .bind(&gave_up)
        .fetch_optional(&self.pool)
        .await
        .map_err(StoreError::db("explain_answer"))?;
        let id = tx_id.to_string();
        Ok(match found {
            None => AnswerOutcome::NotYours,
            Some((_, true, true)) => AnswerOutcome::Taken,
            Some((_, true, false)) => AnswerOutcome::AnsweredBefore,
            Some((state, ..)) => AnswerOutcome::TooLate(
                Cell { table: "nonce_reservation", column: "state", id: &id }.parse(&state)?,
            ),
        })
    }
}

type AnswerColumns = (Option<serde_json::Value>, Option<Vec<u8>>, Option<String>);

fn columns_of(answer: &Answer) -> AnswerColumns {
    match answer {
        // Unwrap safety: every field of a payload serialises.
        Answer::Unsigned(payload) => {
            (Some(serde_json::to_value(payload).expect("a payload serialises")), None, None)
        }
        Answer::Signed(raw) => (None, Some(raw.to_vec()), None),
        Answer::GaveUp(reason) => (None, None, Some(reason.clone())),
    }
}
