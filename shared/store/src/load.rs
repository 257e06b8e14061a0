//! Loads the rows that a lane starts from.
//!
//! Reads need no fence: they follow the claim, and a claim waits for every write of the previous owner. A lane that
//! reloads because it does not know whether its own write was committed passes the fence first, which waits for that
//! write.

use std::collections::HashMap;
use std::time::Duration;

use ethers_core::types::{H256, U256};
use tokio::time::Instant;
use uuid::Uuid;

use super::attempt::Attempt;
use super::cursor::Cursor;
use super::error::StoreError;
use super::evidence::{Evidence, EvidenceRow};
use super::external_nonce::ExternalNonces;
use super::lease::columns;
use super::pending::{PendingAction, PendingTxRequest};
use super::pool::Store;
use super::receipt::{Mined, read_receipt};
use super::reservation_lane::{ReservedNonce, ReservedRow};
use super::row::{self, Cell, StoredAddress, StoredHash};
use gapless_domain::{
    AttemptId, Ending, ErrorCode, Fees, Nonce, Payload, Receipt, SubState, SubmitterKey, TxError, TxId,
    TxState,
};

/// An intent that has a nonce and is not final, with all its attempts.
#[derive(Clone, Debug)]
pub struct OpenIntent {
    pub tx_id: TxId,
    pub payload: Payload,
    pub state: TxState,
    pub sub_state: Option<SubState>,
    pub nonce: Nonce,
    pub tx_hash: H256,
    pub last_error: Option<TxError>,
    pub gas_params: Option<serde_json::Value>,
    /// Maximum cost in wei over all attempts.
    pub max_cost: U256,
    pub receipt: Option<Receipt>,
    /// Time until the same bytes are sent again; zero when overdue.
    pub resubmit_in: Duration,
    /// Time since the nonce was assigned.
    pub age: Duration,
    /// Sends claimed so far.
    pub sends: u32,
    /// Time since the last attempt was committed.
    pub last_attempt_age: Duration,
    /// A node response to a send of the last attempt is recorded.
    pub last_attempt_sent: bool,
    /// When its deadline passes: computed with the database's clock at the read, converted to this process's
    /// monotonic one.
    pub expires: Option<Instant>,
    /// How it ends if a placeholder consumes its nonce. `None`: it is still wanted.
    pub ending: Option<Ending>,
    pub trace_context: Option<String>,
    /// Set if the nonce was reserved for a client.
    pub reservation: Option<ReservedNonce>,
    /// In commit order; never empty.
    pub attempts: Vec<Attempt>,
}

/// Everything a lane starts from.
#[derive(Clone, Debug, Default)]
pub struct LaneRows {
    pub paused: bool,
    /// Others also use the key.
    pub shared: bool,
    /// The submitter's own window, if it has one.
    pub max_in_flight: Option<u32>,
    pub cursor: Option<Cursor>,
    /// What is known about the use of the key.
    pub evidence: Evidence,
    /// For a shared submitter: nonces left to external senders, newest first.
    pub external: Vec<ExternalNonces>,
    /// In nonce order.
    pub open: Vec<OpenIntent>,
    pub actions: Vec<PendingAction>,
    pub tx_requests: Vec<PendingTxRequest>,
}

row::row_struct! {
    struct OpenRow {
        chain_id: i64,
        submitter: StoredAddress,
        tx_id: Uuid,
        payload: serde_json::Value,
        state: String,
        sub_state: Option<String>,
        nonce: i64,
        tx_hash: StoredHash,
        last_error: Option<String>,
        error: Option<serde_json::Value>,
        receipt: Option<serde_json::Value>,
        block_number: Option<i64>,
        block_hash: Option<StoredHash>,
        submit_attempts: i32,
        resubmit_in: Option<f64>,
        age: Option<f64>,
        expires_in: Option<f64>,
        ending: Option<String>,
        ending_reason: Option<String>,
        ending_code: Option<String>,
        trace_context: Option<String>,
    } + { reservation: ReservedRow }
}

row::row_struct! {
    struct AttemptRow {
        attempt_id: Uuid,
        tx_id: Uuid,
        nonce: i64,
        kind: String,
        raw_tx: Vec<u8>,
        tx_hash: StoredHash,
        gas_params: serde_json::Value,
        age: Option<f64>,
        sent: bool,
        last_outcome: Option<String>,
    }
}

row::row_struct! {
    struct SubmitterRow {
        chain_id: i64,
        submitter: StoredAddress,
        status: String,
        shared: bool,
        max_in_flight: Option<i32>,
        start_nonce: Option<i64>,
        next_nonce: Option<i64>,
        open_from: Option<i64>,
        in_flight_state: Option<String>,
        protect_reason: Option<String>,
        cursor_window: Option<i32>,
        delegated: Option<bool>,
    } + { evidence: EvidenceRow }
}

impl TryFrom<AttemptRow> for Attempt {
    type Error = StoreError;
    fn try_from(row: AttemptRow) -> Result<Self, StoreError> {
        let id = row.attempt_id.to_string();
        let cell = |column| Cell { table: "tx_attempt", column, id: &id };
        let fees: Fees = cell("gas_params")
            .json(row.gas_params.get("fees").cloned().unwrap_or(serde_json::Value::Null))?;
        Ok(Attempt {
            id: AttemptId(row.attempt_id),
            tx_id: TxId(row.tx_id),
            nonce: row::nonce(cell("nonce"), row.nonce)?,
            kind: cell("kind").parse(&row.kind)?,
            raw: row.raw_tx.into(),
            tx_hash: row.tx_hash.into(),
            fees,
            last_outcome: row.last_outcome,
        })
    }
}

/// Data of the newest attempt, and the maximum cost over all attempts.
#[derive(Clone, Debug, Default)]
struct LastAttempt {
    age: Duration,
    sent: bool,
    gas_params: Option<serde_json::Value>,
    max_cost: U256,
}

impl OpenRow {
    fn into_intent(self, attempts: Vec<Attempt>, last: LastAttempt) -> Result<OpenIntent, StoreError> {
        let id = self.tx_id.to_string();
        let cell = |column| Cell { table: "managed_tx", column, id: &id };
        if attempts.is_empty() {
            return Err(cell("nonce").bad("has a nonce but no attempt"));
        }
        let ending = ending(&id, self.ending, self.ending_reason, self.ending_code)?;
        let state = cell("state").parse(&self.state)?;
        let sub_state = row::sub_state(self.sub_state.as_deref());
        let reservation = self.reservation.into_reserved(&id, Instant::now())?;
        let mined = Mined {
            tx_hash: Some(self.tx_hash),
            block_number: self.block_number,
            block_hash: self.block_hash,
        };
        let receipt =
            self.receipt.map(|receipt| read_receipt(cell("receipt"), receipt, mined)).transpose()?;
        Ok(OpenIntent {
            tx_id: TxId(self.tx_id),
            payload: cell("payload").json(self.payload)?,
            state,
            last_error: TxError::from_row(self.last_error, self.error, state, sub_state),
            sub_state,
            nonce: row::nonce(cell("nonce"), self.nonce)?,
            tx_hash: self.tx_hash.into(),
            max_cost: last.max_cost,
            gas_params: last.gas_params,
            receipt,
            resubmit_in: seconds(self.resubmit_in),
            age: seconds(self.age),
            sends: self.submit_attempts.max(0).unsigned_abs(),
            last_attempt_age: last.age,
            last_attempt_sent: last.sent,
            expires: self.expires_in.map(|left| Instant::now() + seconds(Some(left))),
            ending,
            trace_context: self.trace_context,
            reservation,
            attempts,
        })
    }
}

pub(super) fn ending(
    id: &str,
    state: Option<String>,
    reason: Option<String>,
    code: Option<String>,
) -> Result<Option<Ending>, StoreError> {
    let Some(state) = state else { return Ok(None) };
    let state = Cell { table: "managed_tx", column: "ending", id: &id }.parse(&state)?;
    // Missing or unknown in rows of other releases; must not stop a lane.
    let code = code.and_then(|code| code.parse().ok()).or(ErrorCode::of_ending(state));
    Ok(Some(Ending { state, code: code.unwrap_or(ErrorCode::Unknown), reason: reason.unwrap_or_default() }))
}

/// Seconds computed by the database; negative or NULL when overdue, which becomes zero.
pub(super) fn seconds(value: Option<f64>) -> Duration {
    Duration::try_from_secs_f64(value.unwrap_or(0.0).max(0.0)).unwrap_or(Duration::MAX)
}

impl Store {
    /// The rows of several submitters, in the order of `keys`.
    pub async fn load_lanes(&self, keys: &[SubmitterKey]) -> Result<Vec<LaneRows>, StoreError> {
        let mut lanes: HashMap<SubmitterKey, LaneRows> = HashMap::new();
        self.load_submitters(keys, &mut lanes).await?;
        self.load_open(keys, &mut lanes).await?;
        self.load_external(&mut lanes).await?;
        self.load_actions(keys, &mut lanes).await?;
        self.load_tx_requests(keys, &mut lanes).await?;
        // Cloned: a dropped lane and its successor may be in the same batch.
        let rows = |key: &SubmitterKey| {
            let cell = Cell { table: "submitter", column: "submitter", id: key };
            lanes.get(key).cloned().ok_or_else(|| cell.bad("no row for this submitter"))
        };
        keys.iter().map(rows).collect()
    }

    async fn load_submitters(
        &self,
        keys: &[SubmitterKey],
        lanes: &mut HashMap<SubmitterKey, LaneRows>,
    ) -> Result<(), StoreError> {
        let (chains, submitters) = columns(keys);
        let rows: Vec<SubmitterRow> = sqlx::query_as(
            "-- load_submitters
            SELECT s.chain_id, s.submitter, s.status, s.shared, s.max_in_flight, c.start_nonce, c.next_nonce, c.open_from,
                   c.in_flight_state, c.protect_reason, c.max_in_flight AS cursor_window, c.delegated,
                   c.suspect_reason, c.below_block, c.below_hash, c.above_block, c.above_hash, c.above_count,
                   p.block_number AS last_final_block
            FROM unnest($1::BIGINT[], $2::BYTEA[]) AS u (chain_id, submitter)
            JOIN submitter s ON s.chain_id = u.chain_id AND s.submitter = u.submitter
            LEFT JOIN submitter_nonce_cursor c ON c.chain_id = u.chain_id AND c.submitter = u.submitter
            LEFT JOIN LATERAL (
                SELECT t.block_number
                FROM managed_tx t
                WHERE t.chain_id = c.chain_id AND t.submitter = c.submitter AND t.nonce = c.open_from - 1
            ) p ON TRUE",
        )
        .bind(chains)
        .bind(submitters)
        .fetch_all(&self.pool)
        .await
        .map_err(StoreError::db("load_submitters"))?;
        for found in rows {
            let key = row::key("submitter", found.chain_id, found.submitter)?;
            let cell = |column| Cell { table: "submitter_nonce_cursor", column, id: &found.submitter };
            let cursor = match (found.start_nonce, found.next_nonce, found.open_from) {
                (Some(start), Some(next), Some(open_from)) => Some(Cursor {
                    start: row::nonce(cell("start_nonce"), start)?,
                    next: row::nonce(cell("next_nonce"), next)?,
                    open_from: row::nonce(cell("open_from"), open_from)?,
                    protect: match found.in_flight_state.as_deref() {
                        Some("PROTECT") => Some(found.protect_reason.unwrap_or_default()),
                        _ => None,
                    },
                    max_in_flight: found
                        .cursor_window
                        .and_then(|window| u32::try_from(window).ok())
                        .unwrap_or(1),
                    delegated: found.delegated.unwrap_or(false),
                    in_flight: None,
                }),
                _ => None,
            };
            let lane = lanes.entry(key).or_default();
            lane.paused = found.status == "PAUSED";
            lane.shared = found.shared;
            lane.max_in_flight = found.max_in_flight.and_then(|window| u32::try_from(window).ok());
            lane.cursor = cursor;
            lane.evidence = found.evidence.into_evidence(found.submitter)?;
        }
        Ok(())
    }

    async fn load_open(
        &self,
        keys: &[SubmitterKey],
        lanes: &mut HashMap<SubmitterKey, LaneRows>,
    ) -> Result<(), StoreError> {
        let (chains, submitters) = columns(keys);
        let rows: Vec<OpenRow> = sqlx::query_as(
            "-- load_open
            SELECT t.chain_id, t.submitter, t.tx_id, t.payload, t.state, t.sub_state, t.nonce, t.tx_hash, t.last_error,
                   t.receipt, t.block_number, t.block_hash, t.trace_context, t.submit_attempts, t.ending, t.ending_reason,
                   t.ending_code, t.error,
                   extract(epoch FROM t.deadline - clock_timestamp())::FLOAT8 AS expires_in,
                   extract(epoch FROM t.next_resubmit_at - clock_timestamp())::FLOAT8 AS resubmit_in,
                   extract(epoch FROM clock_timestamp() - t.prepared_at)::FLOAT8 AS age,
                   r.state AS reservation_state,
                   extract(epoch FROM r.expires_at - clock_timestamp())::FLOAT8 AS reservation_left,
                   r.answer_payload, r.answer_raw, r.gave_up, r.noted_at IS NOT NULL AS noted,
                   extract(epoch FROM (r.answer_payload ->> 'deadline')::TIMESTAMPTZ - clock_timestamp())::FLOAT8
                       AS answer_expires_in
            FROM unnest($1::BIGINT[], $2::BYTEA[]) AS u (chain_id, submitter)
            JOIN submitter_nonce_cursor c ON c.chain_id = u.chain_id AND c.submitter = u.submitter AND c.has_open
            -- ORDER BY and LIMIT force the index, whatever selectivity the planner estimates for the range.
            CROSS JOIN LATERAL (
                SELECT t.*
                FROM managed_tx t
                WHERE t.chain_id = c.chain_id AND t.submitter = c.submitter AND t.nonce >= c.open_from
                  AND t.finished_at IS NULL
                ORDER BY t.nonce
                LIMIT c.next_nonce - c.open_from
            ) t
            LEFT JOIN nonce_reservation r ON r.tx_id = t.tx_id
            ORDER BY t.chain_id, t.submitter, t.nonce",
        )
        .bind(chains)
        .bind(submitters)
        .fetch_all(&self.pool)
        .await
        .map_err(StoreError::db("load_open"))?;
        if rows.is_empty() {
            return Ok(());
        }
        let tx_ids: Vec<Uuid> = rows.iter().map(|open| open.tx_id).collect();
        let attempt_rows: Vec<AttemptRow> = sqlx::query_as(
            "-- load_attempts
            SELECT attempt_id, tx_id, nonce, kind, raw_tx, tx_hash, gas_params,
                   extract(epoch FROM clock_timestamp() - created_at)::FLOAT8 AS age,
                   last_outcome IS NOT NULL AS sent, last_outcome
            FROM tx_attempt
            WHERE tx_id = ANY($1) AND displaced_at IS NULL
            ORDER BY tx_id, ordinal",
        )
        .bind(tx_ids)
        .fetch_all(&self.pool)
        .await
        .map_err(StoreError::db("load_attempts"))?;
        let mut attempts: HashMap<Uuid, (Vec<Attempt>, LastAttempt)> = HashMap::new();
        for found in attempt_rows {
            let (own, last) = attempts.entry(found.tx_id).or_default();
            let cost = found.gas_params.get("maxCost").cloned();
            // Absent in attempts that no lane wrote.
            let cost = cost.and_then(|cost| serde_json::from_value(cost).ok()).unwrap_or_default();
            *last = LastAttempt {
                age: seconds(found.age),
                sent: found.sent,
                gas_params: Some(found.gas_params.clone()),
                max_cost: last.max_cost.max(cost),
            };
            own.push(found.try_into()?);
        }
        for open in rows {
            let key = row::key("managed_tx", open.chain_id, open.submitter)?;
            let (own, last) = attempts.remove(&open.tx_id).unwrap_or_default();
            lanes.entry(key).or_default().open.push(open.into_intent(own, last)?);
        }
        Ok(())
    }
}
