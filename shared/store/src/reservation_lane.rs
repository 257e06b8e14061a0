//! Reservations, lane side: read with the lane's rows, written behind the fence. `reservation` is the client's side.

use std::time::Duration;

use tokio::time::Instant;
use uuid::Uuid;

use super::error::{StoreError, ensure_rows};
use super::fence::Tx;
use super::fenced::FencedWrite;
use super::lease::Fence;
use super::load::seconds;
use super::row::{self, Cell};
use gapless_domain::{Answer, Nonce, Payload, ReservationState, TxId};

/// Extra time after expiry, so that an answer that is being committed is still read.
const GRACE_SECONDS: f64 = 0.5;

/// The reservation of an open intent.
#[derive(Clone, Debug)]
pub struct ReservedNonce {
    pub state: ReservationState,
    /// When the reservation expires, by this process's clock: the lane then reads its rows again.
    pub expires: Instant,
    /// It has expired by the database's clock: no answer can be stored any more.
    pub over: bool,
    pub answer: Option<Answer>,
    /// When the deadline of the answered transaction passes.
    pub answer_expires: Option<Instant>,
    /// The answer is marked as seen (`noted_at`).
    pub noted: bool,
}

impl ReservedNonce {
    pub fn is_reserved(&self) -> bool {
        self.state == ReservationState::Reserved
    }
}

row::row_struct! {
    /// The columns of `nonce_reservation` read with an open intent; NULL if it has no reservation.
    pub(super) struct ReservedRow {
        reservation_state: Option<String>,
        reservation_left: Option<f64>,
        answer_payload: Option<serde_json::Value>,
        answer_raw: Option<Vec<u8>>,
        gave_up: Option<String>,
        answer_expires_in: Option<f64>,
        noted: Option<bool>,
    }
}

impl ReservedRow {
    pub(super) fn into_reserved(
        self,
        id: &str,
        read_at: Instant,
    ) -> Result<Option<ReservedNonce>, StoreError> {
        let cell = |column| Cell { table: "nonce_reservation", column, id: &id };
        let Some(state) = self.reservation_state else { return Ok(None) };
        let left = self.reservation_left.unwrap_or(0.0) + GRACE_SECONDS;
        let payload: Option<Payload> =
            self.answer_payload.map(|payload| cell("answer_payload").json(payload)).transpose()?;
        let answer = match (payload, self.answer_raw, self.gave_up) {
            (Some(payload), ..) => Some(Answer::Unsigned(Box::new(payload))),
            (None, Some(raw), _) => Some(Answer::Signed(raw.into())),
            (None, None, gave_up) => gave_up.map(Answer::GaveUp),
        };
        Ok(Some(ReservedNonce {
            state: cell("state").parse(&state)?,
            expires: read_at + seconds(Some(left)),
            over: left <= 0.0,
            answer,
            answer_expires: self.answer_expires_in.map(|left| read_at + seconds(Some(left))),
            noted: self.noted.unwrap_or(false),
        }))
    }
}

/// The reservation of a queued intent: a client waits for its nonce.
#[derive(Clone, Debug)]
pub struct WaitingReservation {
    /// How long the nonce shall stay reserved.
    pub reserve_for: Duration,
    /// The request expires then, unless the client renews it.
    pub wanted_until: Instant,
    /// When the row was read.
    pub read_at: Instant,
    /// The reason, if the client stopped waiting.
    pub gave_up: Option<String>,
}

row::row_struct! {
    pub(super) struct WaitingRow {
        reserve_seconds: Option<f64>,
        wanted_for: Option<f64>,
        gave_up: Option<String>,
    }
}

impl WaitingRow {
    pub(super) fn into_reservation(self, read_at: Instant) -> Option<WaitingReservation> {
        let reserve_for = seconds(Some(self.reserve_seconds?));
        let wanted_until = read_at + seconds(self.wanted_for);
        Some(WaitingReservation { reserve_for, wanted_until, read_at, gave_up: self.gave_up })
    }
}

#[derive(Debug)]
pub(super) struct ReservationWrite {
    pub(super) tx_id: TxId,
    pub(super) change: ReservationChange,
}

#[derive(Debug)]
pub(super) enum ReservationChange {
    Reserve { nonce: Nonce, reserve_for: Duration },
    Note,
    Use { payload: Box<Payload> },
    Recycle { unanswered: bool },
}

impl ReservationChange {
    fn states(&self) -> (&'static str, &'static str) {
        match self {
            ReservationChange::Reserve { .. } => ("REQUESTED", "RESERVED"),
            ReservationChange::Note => ("RESERVED", "RESERVED"),
            ReservationChange::Use { .. } => ("RESERVED", "USED"),
            ReservationChange::Recycle { .. } => ("RESERVED", "RECYCLABLE"),
        }
    }
}

/// Must run after the attempts are inserted: a trigger refuses a reserved nonce without its placeholder.
pub(super) async fn write_reservations(tx: &mut Tx<'_>, live: &[&FencedWrite]) -> Result<(), StoreError> {
    let writes: Vec<(&Fence, &ReservationWrite)> = live
        .iter()
        .flat_map(|write| write.reservations.iter().map(|reservation| (&write.fence, reservation)))
        .collect();
    if writes.is_empty() {
        return Ok(());
    }
    let reserved = |write: &ReservationWrite| match write.change {
        ReservationChange::Reserve { nonce, reserve_for } => Some((nonce, reserve_for)),
        _ => None,
    };
    let done = sqlx::query(
        "-- write_reservations
        UPDATE nonce_reservation r
        SET state = u.to_state,
            nonce = coalesce(u.nonce, r.nonce),
            expires_at = CASE
                WHEN u.reserve_for IS NULL THEN r.expires_at
                ELSE clock_timestamp() + make_interval(secs => u.reserve_for) END,
            -- The lane has not read an answer that was stored before the nonce was assigned: noted_at stays unset.
            noted_at = CASE
                WHEN r.answered_at IS NULL OR u.from_state = 'REQUESTED' THEN r.noted_at
                ELSE coalesce(r.noted_at, clock_timestamp()) END,
            settled_at = CASE WHEN u.to_state IN ('USED', 'RECYCLABLE') THEN clock_timestamp() END,
            fencing_token = u.token
        FROM unnest($1::UUID[], $2::BYTEA[], $3::BIGINT[], $4::TEXT[], $5::TEXT[], $6::BIGINT[], $7::FLOAT8[], $8::BOOLEAN[])
          AS u (tx_id, submitter, token, from_state, to_state, nonce, reserve_for, unanswered)
        WHERE r.tx_id = u.tx_id AND r.submitter = u.submitter AND r.state = u.from_state
          AND (NOT u.unanswered OR r.answered_at IS NULL)",
    )
    .bind(writes.iter().map(|(_, write)| write.tx_id.0).collect::<Vec<Uuid>>())
    .bind(writes.iter().map(|(fence, _)| row::address(fence.key)).collect::<Vec<_>>())
    .bind(writes.iter().map(|(fence, _)| fence.token.as_i64()).collect::<Vec<_>>())
    .bind(writes.iter().map(|(_, write)| write.change.states().0).collect::<Vec<_>>())
    .bind(writes.iter().map(|(_, write)| write.change.states().1).collect::<Vec<_>>())
    .bind(
        writes
            .iter()
            .map(|(_, write)| reserved(write).map(|(nonce, _)| nonce.as_i64()))
            .collect::<Vec<_>>(),
    )
    .bind(
        writes
            .iter()
            .map(|(_, write)| reserved(write).map(|(_, reserve_for)| reserve_for.as_secs_f64()))
            .collect::<Vec<_>>(),
    )
    .bind(
        writes
            .iter()
            .map(|(_, write)| matches!(write.change, ReservationChange::Recycle { unanswered: true }))
            .collect::<Vec<_>>(),
    )
    .execute(&mut **tx)
    .await
    .map_err(StoreError::db("write_reservations"))?;
    ensure_rows("write_reservations", writes.len(), done.rows_affected() as usize)?;
    write_answers(tx, &writes).await
}

/// Replaces the zero-value transfer in the intent's row with the payload of the answer.
async fn write_answers(tx: &mut Tx<'_>, writes: &[(&Fence, &ReservationWrite)]) -> Result<(), StoreError> {
    let answers: Vec<(TxId, &Fence, &Payload)> = writes
        .iter()
        .filter_map(|(fence, write)| match &write.change {
            ReservationChange::Use { payload } => Some((write.tx_id, *fence, payload.as_ref())),
            _ => None,
        })
        .collect();
    if answers.is_empty() {
        return Ok(());
    }
    let done = sqlx::query(
        "-- write_answers
        UPDATE managed_tx t
        SET payload = u.payload,
            deadline = u.deadline
        FROM unnest($1::UUID[], $2::BIGINT[], $3::JSONB[], $4::TIMESTAMPTZ[]) AS u (tx_id, token, payload, deadline)
        WHERE t.tx_id = u.tx_id AND t.fencing_token = u.token AND t.finished_at IS NULL",
    )
    .bind(answers.iter().map(|(tx_id, ..)| tx_id.0).collect::<Vec<Uuid>>())
    .bind(answers.iter().map(|(_, fence, _)| fence.token.as_i64()).collect::<Vec<_>>())
    .bind(answers.iter().map(|(.., payload)| sqlx::types::Json(*payload)).collect::<Vec<_>>())
    .bind(answers.iter().map(|(.., payload)| payload.deadline).collect::<Vec<_>>())
    .execute(&mut **tx)
    .await
    .map_err(StoreError::db("write_answers"))?;
    ensure_rows("write_answers", answers.len(), done.rows_affected() as usize)
}
