//! Held nonces, from the lane's side: what it reads of them with its rows, and what it writes behind the fence.

use std::time::Duration;

use tokio::time::Instant;
use uuid::Uuid;

use super::error::{StoreError, ensure_rows};
use super::fence::Tx;
use super::fenced::FencedWrite;
use super::lease::Fence;
use super::load::seconds;
use super::row::Cell;
use crate::domain::{Answer, Nonce, Payload, ReservationState, TxId};

/// An answer that was on its way when the hold ended has this long to arrive.
const GRACE_SECONDS: f64 = 0.5;

/// What a lane knows of the nonce that an intent was given for a caller outside.
#[derive(Clone, Debug)]
pub struct ReservedNonce {
    pub state: ReservationState,
    /// When the hold ends, by this process's clock: then the rows are read again.
    pub expires: Instant,
    /// The database says that it has ended, and that no answer can come any more.
    pub over: bool,
    pub answer: Option<Answer>,
    /// When the deadline of the answered transaction passes.
    pub answer_expires: Option<Instant>,
    /// The answer was written down as seen.
    pub noted: bool,
}

impl ReservedNonce {
    pub fn is_reserved(&self) -> bool {
        self.state == ReservationState::Reserved
    }
}

/// The columns of `nonce_reservation` that come with an open intent; absent for one that has none.
#[derive(sqlx::FromRow)]
pub(super) struct ReservedRow {
    hold_state: Option<String>,
    hold_left: Option<f64>,
    answer_payload: Option<serde_json::Value>,
    answer_raw: Option<Vec<u8>>,
    gave_up: Option<String>,
    answer_expires_in: Option<f64>,
    noted: Option<bool>,
}

impl ReservedRow {
    pub(super) fn into_reserved(
        self,
        id: &str,
        read_at: Instant,
    ) -> Result<Option<ReservedNonce>, StoreError> {
        let cell = |column| Cell { table: "nonce_reservation", column, id };
        let Some(state) = self.hold_state else { return Ok(None) };
        let left = self.hold_left.unwrap_or(0.0) + GRACE_SECONDS;
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

/// Somebody outside who waits for the nonce of a queued intent.
#[derive(Clone, Debug)]
pub struct WaitingReservation {
    /// How long it wants to hold the nonce.
    pub hold: Duration,
    /// It has not been heard of since, if it does not say so again.
    pub wanted_until: Instant,
    /// When this was true.
    pub read_at: Instant,
    /// It waits no more: why.
    pub gave_up: Option<String>,
}

#[derive(sqlx::FromRow)]
pub(super) struct WaitingRow {
    hold_seconds: Option<f64>,
    wanted_for: Option<f64>,
    gave_up: Option<String>,
}

impl WaitingRow {
    pub(super) fn into_reservation(self, read_at: Instant) -> Option<WaitingReservation> {
        let hold = seconds(Some(self.hold_seconds?));
        let wanted_until = read_at + seconds(self.wanted_for);
        Some(WaitingReservation { hold, wanted_until, read_at, gave_up: self.gave_up })
    }
}

#[derive(Debug)]
pub(super) struct ReservationWrite {
    pub(super) tx_id: TxId,
    pub(super) change: ReservationChange,
}

#[derive(Debug)]
pub(super) enum ReservationChange {
    Reserve { nonce: Nonce, hold: Duration },
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

/// After the attempts: the database refuses a held nonce without its placeholder.
pub(super) async fn write_reservations(tx: &mut Tx<'_>, live: &[&FencedWrite]) -> Result<(), StoreError> {
    let holds: Vec<(&Fence, &ReservationWrite)> =
        live.iter().flat_map(|write| write.holds.iter().map(|hold| (&write.fence, hold))).collect();
    if holds.is_empty() {
        return Ok(());
    }
    let reserved = |hold: &ReservationWrite| match hold.change {
        ReservationChange::Reserve { nonce, hold } => Some((nonce, hold)),
        _ => None,
    };
    let done = sqlx::query(
        "-- write_holds
        UPDATE nonce_reservation r
        SET state = u.to_state,
            nonce = coalesce(u.nonce, r.nonce),
            expires_at = CASE
                WHEN u.hold IS NULL THEN r.expires_at
                ELSE clock_timestamp() + make_interval(secs => u.hold) END,
            -- An answer from before the nonce was given is not known to the lane: it is still to be noted.
            noted_at = CASE
                WHEN r.answered_at IS NULL OR u.from_state = 'REQUESTED' THEN r.noted_at
                ELSE coalesce(r.noted_at, clock_timestamp()) END,
            settled_at = CASE WHEN u.to_state IN ('USED', 'RECYCLABLE') THEN clock_timestamp() END,
            fencing_token = u.token
        FROM unnest($1::UUID[], $2::TEXT[], $3::BIGINT[], $4::TEXT[], $5::TEXT[], $6::BIGINT[], $7::FLOAT8[], $8::BOOLEAN[])
          AS u (tx_id, submitter, token, from_state, to_state, nonce, hold, unanswered)
        WHERE r.tx_id = u.tx_id AND r.submitter = u.submitter AND r.state = u.from_state
          AND (NOT u.unanswered OR r.answered_at IS NULL)",
    )
    .bind(holds.iter().map(|(_, hold)| hold.tx_id.0).collect::<Vec<Uuid>>())
    .bind(holds.iter().map(|(fence, _)| fence.key.address_text()).collect::<Vec<_>>())
    .bind(holds.iter().map(|(fence, _)| fence.token.as_i64()).collect::<Vec<_>>())
    .bind(holds.iter().map(|(_, hold)| hold.change.states().0).collect::<Vec<_>>())
    .bind(holds.iter().map(|(_, hold)| hold.change.states().1).collect::<Vec<_>>())
    .bind(holds.iter().map(|(_, hold)| reserved(hold).map(|(nonce, _)| nonce.as_i64())).collect::<Vec<_>>())
    .bind(holds.iter().map(|(_, hold)| reserved(hold).map(|(_, hold)| hold.as_secs_f64())).collect::<Vec<_>>())
    .bind(
        holds
            .iter()
            .map(|(_, hold)| matches!(hold.change, ReservationChange::Recycle { unanswered: true }))
            .collect::<Vec<_>>(),
    )
    .execute(&mut **tx)
    .await
    .map_err(StoreError::db("write_holds"))?;
    ensure_rows("write_holds", holds.len(), done.rows_affected() as usize)?;
    write_answers(tx, &holds).await
}

/// What an intent does is known only now: its row says so from here on.
async fn write_answers(tx: &mut Tx<'_>, holds: &[(&Fence, &ReservationWrite)]) -> Result<(), StoreError> {
    let answers: Vec<(TxId, &Fence, &Payload)> = holds
        .iter()
        .filter_map(|(fence, hold)| match &hold.change {
            ReservationChange::Use { payload } => Some((hold.tx_id, *fence, payload.as_ref())),
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
