//! Requests to deliver events again, and to deliver a test event. The worker that delivers executes them.

use chrono::{DateTime, Utc};
use gapless_domain::WebhookId;
use uuid::Uuid;

use super::locked::lock;
use crate::error::StoreError;
use crate::fence::Tx;
use crate::pool::Store;
use crate::timeout_pool::PooledConnection;

/// Which events are delivered again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplayRange {
    Events(Vec<Uuid>),
    /// Those of a time.
    Window {
        from: DateTime<Utc>,
        until: DateTime<Utc>,
        /// Only those whose last attempt failed.
        only_failed: bool,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replayed {
    /// This many events are delivered again.
    Requested(u64),
    /// More than the limit match. Nothing was requested.
    TooMany,
}

const REPLAY: &str = "replay_webhook";
const TEST: &str = "test_webhook";

impl Store {
    /// Requests the delivery of events that match the filter of the webhook and that its key may see. Events that are
    /// no longer in the log are not among them.
    pub async fn replay_webhook(
        &self,
        id: WebhookId,
        range: &ReplayRange,
        max: u32,
    ) -> Result<Replayed, StoreError> {
        let mut connection = self.pool.acquire().await.map_err(StoreError::db(REPLAY))?;
        let replayed = self.pool.wait_for(REPLAY, replay(&mut connection, id, range, max)).await;
        connection.release(&replayed);
        replayed
    }

    /// Requests the delivery of a test event, and returns the id of that event.
    pub async fn test_webhook(&self, id: WebhookId) -> Result<Uuid, StoreError> {
        let mut connection = self.pool.acquire().await.map_err(StoreError::db(TEST))?;
        let event_id = self.pool.wait_for(TEST, test(&mut connection, id)).await;
        connection.release(&event_id);
        event_id
    }
}

async fn replay(
    connection: &mut PooledConnection,
    id: WebhookId,
    range: &ReplayRange,
    max: u32,
) -> Result<Replayed, StoreError> {
    let mut tx = connection.begin().await.map_err(StoreError::db(REPLAY))?;
    if !lock(&mut tx, REPLAY, None, id).await? {
        return Ok(Replayed::Requested(0));
    }
    let (events, window, only_failed) = match range {
        ReplayRange::Events(ids) => (Some(ids), None, false),
        ReplayRange::Window { from, until, only_failed } => (None, Some((*from, *until)), *only_failed),
    };
    let (from, until) = window.unzip();
    let positions = match events {
        Some(ids) => delivered_positions(&mut tx, id, ids).await?,
        None => None,
    };
    let found: i64 = sqlx::query_scalar(
        "-- replay_webhook
        WITH matching AS (
            SELECT l.position, l.id, l.chain_id, l.submitter, l.tx_id, l.kind
            FROM webhook w
            LEFT JOIN api_key k ON k.key_id = w.key_id
            CROSS JOIN event_log l
            WHERE w.webhook_id = $1
              AND ($2::UUID[] IS NULL OR l.id = ANY($2))
              AND ($7::BIGINT[] IS NULL OR l.position = ANY($7))
              AND ($3::TIMESTAMPTZ IS NULL OR l.created_at >= $3 AND l.created_at < $4)
              AND (w.chain_id IS NULL OR l.chain_id = w.chain_id)
              AND (w.submitter IS NULL OR l.submitter = w.submitter)
              AND (w.tx_id IS NULL OR l.tx_id = w.tx_id)
              AND (w.kinds IS NULL OR l.kind = ANY(w.kinds))
              AND (k.submitters IS NULL OR l.chain_id || ':0x' || encode(l.submitter, 'hex') = ANY(k.submitters))
              AND (NOT $5 OR EXISTS (
                  SELECT 1
                  FROM webhook_delivery d
                  WHERE d.webhook_id = w.webhook_id AND d.event_id = l.id AND d.state = 'EXHAUSTED'))
            ORDER BY l.position
            LIMIT $6 + 1
        ), accepted AS (
            SELECT * FROM matching WHERE (SELECT count(*) FROM matching) <= $6
        ), requested AS (
            INSERT INTO webhook_replay (webhook_id, event_id, position, chain_id, submitter)
            SELECT $1, id, position, chain_id, submitter
            FROM accepted
            ORDER BY position
            -- Requested before: it begins again, with a new number.
            ON CONFLICT (webhook_id, event_id) DO UPDATE
            SET replay_no = DEFAULT, attempts = 0, next_attempt_at = clock_timestamp()
        ), listed AS (
            INSERT INTO webhook_delivery (webhook_id, event_id, position, chain_id, submitter, tx_id, kind, state)
            SELECT $1, id, position, chain_id, submitter, tx_id, kind, 'PENDING'
            FROM accepted
            ORDER BY position
            ON CONFLICT (webhook_id, event_id) DO UPDATE SET state = 'PENDING'
        )
        SELECT count(*) FROM matching",
    )
    .bind(id.0)
    .bind(events)
    .bind(from)
    .bind(until)
    .bind(only_failed)
    .bind(i64::from(max))
    .bind(positions)
    // Planned each time: which index is right depends on the range.
    .persistent(false)
    .fetch_one(&mut *tx)
    .await
    .map_err(StoreError::db(REPLAY))?;
    tx.commit().await.map_err(StoreError::db(REPLAY))?;
    Ok(if found > i64::from(max) { Replayed::TooMany } else { Replayed::Requested(found.unsigned_abs()) })
}

/// The positions of these events, if the list of deliveries has all of them. The log has no index on the id.
async fn delivered_positions(
    tx: &mut Tx<'_>,
    id: WebhookId,
    events: &[Uuid],
) -> Result<Option<Vec<i64>>, StoreError> {
    let positions: Vec<i64> = sqlx::query_scalar(
        "-- delivered_positions
        SELECT position
        FROM webhook_delivery
        WHERE webhook_id = $1 AND event_id = ANY($2) AND position IS NOT NULL",
    )
    .bind(id.0)
    .bind(events)
    .fetch_all(&mut **tx)
    .await
    .map_err(StoreError::db(REPLAY))?;
    Ok((positions.len() >= events.len()).then_some(positions))
}

async fn test(connection: &mut PooledConnection, id: WebhookId) -> Result<Uuid, StoreError> {
    let event_id = Uuid::now_v7();
    let mut tx = connection.begin().await.map_err(StoreError::db(TEST))?;
    lock(&mut tx, TEST, None, id).await?;
    sqlx::query(
        "-- test_webhook
        WITH requested AS (
            INSERT INTO webhook_replay (webhook_id, event_id)
            SELECT webhook_id, $2
            FROM webhook
            WHERE webhook_id = $1
            RETURNING webhook_id
        )
        INSERT INTO webhook_delivery (webhook_id, event_id, kind, state)
        SELECT webhook_id, $2, 'webhook.test', 'PENDING'
        FROM requested",
    )
    .bind(id.0)
    .bind(event_id)
    .execute(&mut *tx)
    .await
    .map_err(StoreError::db(TEST))?;
    tx.commit().await.map_err(StoreError::db(TEST))?;
    Ok(event_id)
}
