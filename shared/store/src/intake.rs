//! Inserts accepted requests as QUEUED rows: many per statement, with one outcome per request.
//!
//! The statement takes no lock that a worker needs and joins instead of using foreign keys. It sends no NOTIFY:
//! inside the transaction that would cost more than the rest of it.

use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::time::Duration;

use chrono::{DateTime, Utc};
use ethers_core::types::H256;
use serde_json::value::RawValue;
use sqlx::types::Json;
use uuid::Uuid;

use super::error::{StoreError, ensure_rows};
use super::pool::Store;
use super::row::{self, Cell};
use gapless_domain::{EventKind, Nonce, Payload, SubmitterKey, TxId};

/// If a submitter is released or a row is pruned between the insert and the look-up, the request is inserted again.
/// More than three rounds indicate a defect and not a race.
const MAX_ROUNDS: usize = 3;
/// Two processes that insert the same requests in opposite order can deadlock; the one that was aborted retries.
const MAX_DEADLOCKS: usize = 5;

/// Inserts the rows of a group that may be queued. Used by two statements: without events it is cheaper. Each inserts
/// nothing if it is not the one that the stored switch asks for: a request is never accepted without its event.
macro_rules! insert_rows {
    () => {
        "INSERT INTO managed_tx
            (tx_id, chain_id, submitter, request_id, payload, payload_hash, not_before, deadline, trace_context, start_by,
             expected_nonce)
        SELECT u.tx_id, u.chain_id, u.submitter, u.request_id, u.payload, u.payload_hash, u.not_before, u.deadline,
               u.trace_context, clock_timestamp() + make_interval(secs => u.start_within), u.expected_nonce
        FROM unnest($1::UUID[], $2::BIGINT[], $3::BYTEA[], $4::TEXT[], $5::JSONB[], $6::BYTEA[], $7::TIMESTAMPTZ[],
                    $8::TIMESTAMPTZ[], $9::TEXT[], $10::FLOAT8[], $11::BIGINT[]) WITH ORDINALITY
            AS u (tx_id, chain_id, submitter, request_id, payload, payload_hash, not_before, deadline, trace_context,
                  start_within, expected_nonce, ord)
        JOIN submitter s ON s.chain_id = u.chain_id AND s.submitter = u.submitter
        LEFT JOIN submitter_nonce_cursor c ON c.chain_id = u.chain_id AND c.submitter = u.submitter
        WHERE c.in_flight_state IS DISTINCT FROM 'PROTECT' AND NOT s.low_level AND coalesce((SELECT enabled FROM event_recording), FALSE) = $12
        -- seq is assigned in this order: the queue has the order of the requests
        ORDER BY u.ord
        ON CONFLICT (chain_id, submitter, request_id) DO NOTHING"
    };
}

const INSERT: &str = concat!("-- insert_group\n", insert_rows!(), "\nRETURNING tx_id");

const INSERT_WITH_EVENTS: &str = concat!(
    "-- insert_group: with events
    WITH accepted AS (",
    insert_rows!(),
    " RETURNING tx_id, chain_id, submitter, seq),
    told AS (
        INSERT INTO outbox_event (chain_id, submitter, tx_id, kind, data)
        SELECT chain_id, submitter, tx_id, $13, $14
        FROM accepted
        ORDER BY seq)
    SELECT tx_id
    FROM accepted"
);

/// A validated request, ready to be stored.
#[derive(Clone, Debug)]
pub struct NewIntent {
    /// Generated here, so that after a lost response to the insert our own row can be recognised.
    pub tx_id: TxId,
    pub submitter: SubmitterKey,
    pub request_id: String,
    pub payload: Payload,
    pub payload_hash: H256,
    pub trace_context: Option<String>,
    /// No nonce is assigned later than this after the insert, by the database's clock. Not part of the request: the same
    /// request may have another limit.
    pub start_within: Option<Duration>,
    /// It fails rather than get another nonce. Not part of the request either.
    pub expected_nonce: Option<Nonce>,
    /// The payload as it is stored.
    payload_text: Box<RawValue>,
}

impl NewIntent {
    pub fn new(
        submitter: SubmitterKey,
        request_id: String,
        payload: Payload,
        trace_context: Option<String>,
    ) -> NewIntent {
        let (payload_text, payload_hash) = payload.canonical();
        NewIntent {
            tx_id: TxId::new(),
            submitter,
            request_id,
            payload,
            payload_hash,
            trace_context,
            start_within: None,
            expected_nonce: None,
            payload_text,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IntakeOutcome {
    Created(TxId),
    /// The same request was accepted before.
    Existing(TxId),
    /// The request id was used for another payload.
    Conflict(TxId),
    UnknownSubmitter,
    /// The submitter is in PROTECT and accepts no requests until an operator acts.
    Protected {
        reason: String,
    },
    /// The submitter is in low-level mode and accepts no requests.
    LowLevel,
}

row::row_struct! {
    struct Refused {
        ord: i64,
        tx_id: Option<Uuid>,
        payload_hash: Option<Vec<u8>>,
        known: bool,
        low_level: bool,
        protect_reason: Option<String>,
    }
}

impl Store {
    /// Returns outcomes in the order of `group`; rows of one submitter are queued in that order. While events are
    /// recorded, the event of each new row is written in the same commit.
    pub async fn insert_group(&self, group: &[NewIntent]) -> Result<Vec<IntakeOutcome>, StoreError> {
        let mut outcomes: Vec<Option<IntakeOutcome>> = vec![None; group.len()];
        for _ in 0..MAX_ROUNDS {
            let open: Vec<usize> = (0..group.len()).filter(|index| outcomes[*index].is_none()).collect();
            if open.is_empty() {
                break;
            }
            let created = self.insert_new(group, &open).await?;
            let mut refused = Vec::new();
            for index in open {
                match created.contains(&group[index].tx_id.0) {
                    true => outcomes[index] = Some(IntakeOutcome::Created(group[index].tx_id)),
                    false => refused.push(index),
                }
            }
            for (index, outcome) in self.explain_refused(group, &refused).await? {
                outcomes[index] = outcome;
            }
            // Refused without a reason: events may have been switched on or off.
            if refused.iter().any(|index| outcomes[*index].is_none()) {
                let recording = self.event_recording().await?.enabled;
                self.recording.store(recording, Ordering::Relaxed);
            }
        }
        let found = outcomes.iter().flatten().count();
        let complete: Option<Vec<IntakeOutcome>> = outcomes.into_iter().collect();
        complete.ok_or(StoreError::RowsAffected { operation: "insert_group", expected: group.len(), found })
    }

    /// Outcomes of requests without inserting them, for a full queue: accepted before, or refused for another reason.
    /// `None`: an insert would accept it. In the order of `group`.
    pub async fn known_outcomes(
        &self,
        group: &[NewIntent],
    ) -> Result<Vec<Option<IntakeOutcome>>, StoreError> {
        let all: Vec<usize> = (0..group.len()).collect();
        let mut outcomes = vec![None; group.len()];
        for (index, outcome) in self.explain_refused(group, &all).await? {
            outcomes[index] = outcome;
        }
        Ok(outcomes)
    }

    /// Queue length of each submitter, in the order of `limits`; counted up to the limit, because an exact count of a
    /// longer queue costs as much as reading it.
    pub async fn queue_depths(&self, limits: &[(SubmitterKey, u64)]) -> Result<Vec<u64>, StoreError> {
        let depths: Vec<i64> = sqlx::query_scalar(
            "-- queue_depths
            SELECT q.depth
            FROM unnest($1::BIGINT[], $2::BYTEA[], $3::BIGINT[]) WITH ORDINALITY AS u (chain_id, submitter, at_most, ord)
            CROSS JOIN LATERAL (
                SELECT count(*) AS depth
                FROM (
                    SELECT
                    FROM managed_tx t
                    WHERE t.chain_id = u.chain_id AND t.submitter = u.submitter AND t.queued
                    -- index order; otherwise the planner may choose a sequential scan
                    ORDER BY t.seq
                    LIMIT u.at_most) capped) q
            ORDER BY u.ord",
        )
        .bind(limits.iter().map(|(key, _)| key.chain_id.as_i64()).collect::<Vec<i64>>())
        .bind(limits.iter().map(|(key, _)| row::address(*key)).collect::<Vec<_>>())
        .bind(limits.iter().map(|(_, limit)| i64::try_from(*limit).unwrap_or(i64::MAX)).collect::<Vec<i64>>())
        .fetch_all(&self.pool)
        .await
        .map_err(StoreError::db("queue_depths"))?;
        ensure_rows("queue_depths", limits.len(), depths.len())?;
        Ok(depths.into_iter().map(i64::unsigned_abs).collect())
    }

    /// The ids of the rows this call inserted.
    async fn insert_new(&self, group: &[NewIntent], open: &[usize]) -> Result<HashSet<Uuid>, StoreError> {
        let accepted = EventKind::Accepted;
        let recording = self.recording.load(Ordering::Relaxed);
        let mut deadlocks = 0;
        loop {
            let rows = || open.iter().map(|index| &group[*index]);
            let query = sqlx::query_scalar(if recording { INSERT_WITH_EVENTS } else { INSERT })
                .bind(rows().map(|row| row.tx_id.0).collect::<Vec<Uuid>>())
                .bind(rows().map(|row| row.submitter.chain_id.as_i64()).collect::<Vec<i64>>())
                .bind(rows().map(|new| row::address(new.submitter)).collect::<Vec<_>>())
                .bind(rows().map(|row| row.request_id.as_str()).collect::<Vec<&str>>())
                .bind(rows().map(|row| Json(&*row.payload_text)).collect::<Vec<Json<&RawValue>>>())
                .bind(rows().map(|row| row.payload_hash.as_bytes()).collect::<Vec<&[u8]>>())
                .bind(rows().map(|row| row.payload.not_before).collect::<Vec<Option<DateTime<Utc>>>>())
                .bind(rows().map(|row| row.payload.deadline).collect::<Vec<Option<DateTime<Utc>>>>())
                .bind(rows().map(|row| row.trace_context.as_deref()).collect::<Vec<Option<&str>>>())
                .bind(rows().map(|row| row.start_within.map(|time| time.as_secs_f64())).collect::<Vec<_>>())
                .bind(rows().map(|row| row.expected_nonce.map(Nonce::as_i64)).collect::<Vec<_>>())
                .bind(recording);
            let query = if recording { query.bind(accepted.name()).bind(Json(&accepted)) } else { query };
            let inserted: Result<Vec<Uuid>, sqlx::Error> = query.fetch_all(&self.pool).await;
            match inserted {
                Err(error) if is_deadlock(&error) && deadlocks < MAX_DEADLOCKS => deadlocks += 1,
                Err(error) => return Err(StoreError::db("insert_group")(error)),
                Ok(ids) => return Ok(ids.into_iter().collect()),
            }
        }
    }

    /// Why rows were not inserted. A separate statement: its snapshot sees the conflicting rows.
    async fn explain_refused(
        &self,
        group: &[NewIntent],
        refused: &[usize],
    ) -> Result<Vec<(usize, Option<IntakeOutcome>)>, StoreError> {
        if refused.is_empty() {
            return Ok(Vec::new());
        }
        let rows = || refused.iter().map(|index| &group[*index]);
        let found: Vec<Refused> = sqlx::query_as(
            "-- explain_refused
            SELECT u.ord, t.tx_id, t.payload_hash, s.submitter IS NOT NULL AS known, coalesce(s.low_level, FALSE) AS low_level,
                   c.protect_reason
            FROM unnest($1::BIGINT[], $2::BYTEA[], $3::TEXT[]) WITH ORDINALITY
                AS u (chain_id, submitter, request_id, ord)
            LEFT JOIN managed_tx t
                ON t.chain_id = u.chain_id AND t.submitter = u.submitter AND t.request_id = u.request_id
            LEFT JOIN submitter s ON s.chain_id = u.chain_id AND s.submitter = u.submitter
            LEFT JOIN submitter_nonce_cursor c ON c.chain_id = u.chain_id AND c.submitter = u.submitter",
        )
        .bind(rows().map(|row| row.submitter.chain_id.as_i64()).collect::<Vec<i64>>())
        .bind(rows().map(|new| row::address(new.submitter)).collect::<Vec<_>>())
        .bind(rows().map(|row| row.request_id.as_str()).collect::<Vec<&str>>())
        .fetch_all(&self.pool)
        .await
        .map_err(StoreError::db("explain_refused"))?;
        found
            .into_iter()
            .map(|row| {
                let index =
                    usize::try_from(row.ord - 1).ok().and_then(|ord| refused.get(ord)).copied().ok_or(
                        StoreError::RowsAffected {
                            operation: "explain_refused",
                            expected: refused.len(),
                            found: 0,
                        },
                    )?;
                Ok((index, row.outcome(&group[index])?))
            })
            .collect()
    }
}

impl Refused {
    /// An existing row decides, whatever state the submitter is in now. `None`: the reason no longer exists; insert
    /// again.
    fn outcome(self, wanted: &NewIntent) -> Result<Option<IntakeOutcome>, StoreError> {
        if let Some(tx_id) = self.tx_id.map(TxId) {
            let id = tx_id.to_string();
            let cell = Cell { table: "managed_tx", column: "payload_hash", id: &id };
            let hash = self.payload_hash.ok_or_else(|| cell.bad("is null"))?;
            return Ok(Some(if tx_id == wanted.tx_id {
                // An earlier try of this call committed, but its response was lost.
                IntakeOutcome::Created(tx_id)
            } else if hash == wanted.payload_hash.as_bytes() {
                IntakeOutcome::Existing(tx_id)
            } else {
                IntakeOutcome::Conflict(tx_id)
            }));
        }
        if !self.known {
            return Ok(Some(IntakeOutcome::UnknownSubmitter));
        }
        if self.low_level {
            return Ok(Some(IntakeOutcome::LowLevel));
        }
        Ok(self.protect_reason.map(|reason| IntakeOutcome::Protected { reason }))
    }
}

/// 40P01: deadlock. 40001: serialisation failure, possible if the default isolation level was raised.
pub(super) fn is_deadlock(error: &sqlx::Error) -> bool {
    matches!(error, sqlx::Error::Database(db) if matches!(db.code().as_deref(), Some("40P01" | "40001")))
}
