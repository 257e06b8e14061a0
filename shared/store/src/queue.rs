//! Queue heads: intents that wait for a nonce. Reading needs no lease; assigning a nonce does.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;
use uuid::Uuid;

use super::error::StoreError;
use super::lease::columns;
use super::load::{ending, seconds};
use super::pool::Store;
use super::reservation_lane::{WaitingReservation, WaitingRow};
use super::row::{self, Cell, StoredAddress};
use gapless_domain::{Ending, Nonce, Payload, SubState, SubmitterKey, TxError, TxId, TxState};

/// An intent that waits for a nonce.
#[derive(Clone, Debug)]
pub struct QueuedIntent {
    pub tx_id: TxId,
    pub payload: Payload,
    pub sub_state: Option<SubState>,
    pub last_error: Option<TxError>,
    /// Set if it was blocked when it was read.
    pub blocked: Option<BlockedFor>,
    /// When its deadline passes: computed with the database's clock at the read, converted to this process's
    /// monotonic one.
    pub expires: Option<Instant>,
    /// No nonce is assigned after this time. As `expires`; absent if it had a nonce.
    pub start_by: Option<Instant>,
    /// It must not get another nonce. Absent if it had one.
    pub expected_nonce: Option<Nonce>,
    /// It was cancelled or failed before it lost its nonce: it must not be sent again, only ended.
    pub ending: Option<Ending>,
    pub trace_context: Option<String>,
    /// Set if a client waits for the nonce.
    pub reservation: Option<WaitingReservation>,
}

/// How long an intent had been blocked, by the database's clock, when it was read.
#[derive(Clone, Copy, Debug)]
pub struct BlockedFor {
    age: Duration,
    read_at: Instant,
}

impl BlockedFor {
    pub fn starting_now() -> BlockedFor {
        BlockedFor { age: Duration::ZERO, read_at: Instant::now() }
    }

    pub fn elapsed(&self) -> Duration {
        self.age + self.read_at.elapsed()
    }
}

row::row_struct! {
    struct QueuedRow {
        chain_id: i64,
        submitter: StoredAddress,
        tx_id: Uuid,
        payload: serde_json::Value,
        sub_state: Option<String>,
        last_error: Option<String>,
        error: Option<serde_json::Value>,
        expires_in: Option<f64>,
        start_in: Option<f64>,
        expected_nonce: Option<i64>,
        blocked_for: Option<f64>,
        ending: Option<String>,
        ending_reason: Option<String>,
        ending_code: Option<String>,
        trace_context: Option<String>,
    } + { reservation: WaitingRow }
}

impl Store {
    /// The first eligible intents of several queues; none for a paused submitter.
    pub async fn queue_heads(
        &self,
        wanted: &[(SubmitterKey, u32)],
    ) -> Result<HashMap<SubmitterKey, Vec<QueuedIntent>>, StoreError> {
        let (chains, submitters) = columns(&wanted.iter().map(|(key, _)| *key).collect::<Vec<_>>());
        let read_at = Instant::now();
        let limits: Vec<i64> = wanted.iter().map(|(_, limit)| i64::from(*limit)).collect();
        let rows: Vec<QueuedRow> = sqlx::query_as(
            "-- queue_heads
            SELECT q.chain_id, q.submitter, q.tx_id, q.payload, q.sub_state, q.last_error, q.expires_in, q.start_in, q.expected_nonce, q.ending, q.ending_reason,
                   q.ending_code, q.error, q.trace_context, q.blocked_for, q.reserve_seconds, q.wanted_for, q.gave_up
            FROM unnest($1::BIGINT[], $2::BYTEA[], $3::BIGINT[]) AS u (chain_id, submitter, wanted)
            -- The status is checked here because a lane may not have read the pause yet. LATERAL with LIMIT forces one
            -- index look-up per submitter: right after thousands were resumed, stale statistics say that none is active,
            -- and the planner would compare each of them with the whole list.
            CROSS JOIN LATERAL (
                SELECT FROM submitter s
                WHERE s.chain_id = u.chain_id AND s.submitter = u.submitter AND s.status = 'ACTIVE'
                LIMIT 1
            ) active
            CROSS JOIN LATERAL (
                SELECT t.chain_id, t.submitter, t.seq, t.tx_id, t.payload, t.sub_state, t.last_error, t.trace_context,
                       t.ending, t.ending_reason, t.ending_code, t.error, r.reserve_seconds, r.gave_up,
                       extract(epoch FROM r.wanted_until - clock_timestamp())::FLOAT8 AS wanted_for,
                       extract(epoch FROM t.deadline - clock_timestamp())::FLOAT8 AS expires_in,
                       -- An intent that had a nonce has a history.
                       CASE WHEN t.history IS NULL THEN extract(epoch FROM t.start_by - clock_timestamp())::FLOAT8 END AS start_in,
                       CASE WHEN t.history IS NULL THEN t.expected_nonce END AS expected_nonce,
                       extract(epoch FROM clock_timestamp() - t.blocked_since)::FLOAT8 AS blocked_for
                FROM managed_tx t
                LEFT JOIN nonce_reservation r ON r.tx_id = t.tx_id AND r.state = 'REQUESTED'
                WHERE t.chain_id = u.chain_id AND t.submitter = u.submitter AND t.queued
                  AND (t.not_before IS NULL OR t.not_before <= clock_timestamp())
                ORDER BY t.seq
                LIMIT u.wanted
            ) q
            ORDER BY q.chain_id, q.submitter, q.seq",
        )
        .bind(chains)
        .bind(submitters)
        .bind(limits)
        .fetch_all(&self.pool)
        .await
        .map_err(StoreError::db("queue_heads"))?;
        let mut heads: HashMap<SubmitterKey, Vec<QueuedIntent>> = HashMap::new();
        for queued in rows {
            let key = row::key("managed_tx", queued.chain_id, queued.submitter)?;
            let id = queued.tx_id.to_string();
            let cell = |column| Cell { table: "managed_tx", column, id: &id };
            let payload = cell("payload").json(queued.payload)?;
            let expected = queued.expected_nonce.map(|nonce| row::nonce(cell("expected_nonce"), nonce));
            let sub_state = row::sub_state(queued.sub_state.as_deref());
            heads.entry(key).or_default().push(QueuedIntent {
                tx_id: TxId(queued.tx_id),
                payload,
                last_error: TxError::from_row(queued.last_error, queued.error, TxState::Queued, sub_state),
                sub_state,
                expires: queued.expires_in.map(|left| read_at + seconds(Some(left))),
                start_by: queued.start_in.map(|left| read_at + seconds(Some(left))),
                expected_nonce: expected.transpose()?,
                blocked: queued.blocked_for.map(|age| BlockedFor { age: seconds(Some(age)), read_at }),
                ending: ending(&id, queued.ending, queued.ending_reason, queued.ending_code)?,
                trace_context: queued.trace_context,
                reservation: queued.reservation.into_reservation(read_at),
            });
        }
        Ok(heads)
    }
}
