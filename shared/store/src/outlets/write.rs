//! The fenced write of an outlet: cursor, submitters that are behind, deliveries, replays and health in one commit.

use std::time::Duration;

use gapless_domain::TxId;
use uuid::Uuid;

use super::lease::OutletLease;
use super::{Sequence, sequence_columns};
use crate::error::StoreError;
use crate::events::{EventCursor, ResetReason};
use crate::fence::Tx;
use crate::pool::Store;
use crate::row;
use crate::timeout_pool::PooledConnection;
use crate::webhooks::{DeliveryState, DisabledReason};

/// The cursor of a submitter that is behind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BehindWrite {
    pub sequence: Sequence,
    pub position: i64,
    pub attempts: u32,
    pub due_in: Duration,
}

/// The attempts at one event since the last write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeliveryWrite {
    pub event_id: Uuid,
    pub position: Option<i64>,
    pub sequence: Sequence,
    pub tx_id: Option<TxId>,
    pub kind: String,
    pub state: DeliveryState,
    pub attempts: u32,
    /// Before now, of the last attempt.
    pub ago: Duration,
    pub next_in: Option<Duration>,
    pub status_code: Option<u16>,
    pub error: Option<String>,
    pub duration: Duration,
}

/// What became of a replay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplayWrite {
    Done { no: i64 },
    Retry { no: i64, attempts: u32, due_in: Duration },
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HealthWrite {
    /// Whether the last attempt succeeded; `None`: there was none.
    pub succeeded: Option<bool>,
    /// At least one attempt succeeded.
    pub any_success: bool,
    pub error: Option<String>,
}

#[derive(Clone, Debug, Default)]
pub struct OutletWrite {
    /// All events up to here are delivered or exhausted, except those of submitters that are behind.
    pub cursor: Option<EventCursor>,
    pub behind: Vec<BehindWrite>,
    pub caught_up: Vec<Sequence>,
    pub deliveries: Vec<DeliveryWrite>,
    pub replays: Vec<ReplayWrite>,
    pub health: HealthWrite,
    pub reset: Option<OutletReset>,
    /// The notice of this reset was delivered, or given up.
    pub reset_done: bool,
    /// With the revision of the webhook that was delivered to: one that was changed meanwhile is not disabled.
    pub disabled: Option<(DisabledReason, i64)>,
}

/// A cursor, the common one or that of a submitter, had no place in the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutletReset {
    /// Id of the notice.
    pub id: Uuid,
    pub reason: ResetReason,
    /// The oldest place that there is: submitters that were behind it begin there.
    pub start: EventCursor,
}

/// Result of a fenced write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    Yes,
    /// Another worker owns the outlet, or it was deleted. Nothing was written.
    LeaseLost,
}

impl Store {
    pub async fn write_outlet(
        &self,
        lease: &OutletLease,
        write: &OutletWrite,
    ) -> Result<Written, StoreError> {
        let mut connection = self.pool.acquire().await.map_err(StoreError::db("write_outlet"))?;
        let written = self.pool.wait_for("write_outlet", apply(&mut connection, lease, write)).await;
        connection.release(&written);
        written
    }
}

async fn apply(
    connection: &mut PooledConnection,
    lease: &OutletLease,
    write: &OutletWrite,
) -> Result<Written, StoreError> {
    let mut tx = connection.begin().await.map_err(StoreError::db("write_outlet"))?;
    // The fence: the row stays locked until the commit, in a mode that conflicts with a takeover.
    let owned: Option<i32> = sqlx::query_scalar(
        "-- write_outlet: fence
        SELECT 1
        FROM outlet
        WHERE outlet_id = $1 AND lease_id = $2
        FOR NO KEY UPDATE",
    )
    .bind(lease.outlet_id())
    .bind(lease.lease_id())
    .fetch_optional(&mut *tx)
    .await
    .map_err(StoreError::db("write_outlet"))?;
    if owned.is_none() {
        return Ok(Written::LeaseLost);
    }
    let outlet_id = lease.outlet_id();
    write_head(&mut tx, outlet_id, write).await?;
    write_behind(&mut tx, outlet_id, &write.behind).await?;
    delete_behind(&mut tx, outlet_id, &write.caught_up).await?;
    if let Some(reset) = &write.reset {
        reset_behind(&mut tx, outlet_id, reset).await?;
    }
    write_deliveries(&mut tx, outlet_id, &write.deliveries).await?;
    write_replays(&mut tx, outlet_id, &write.replays).await?;
    if let Some((reason, revision)) = write.disabled {
        disable(&mut tx, outlet_id, reason, revision).await?;
    }
    tx.commit().await.map_err(StoreError::db("write_outlet"))?;
    Ok(Written::Yes)
}

async fn write_head(tx: &mut Tx<'_>, outlet_id: Uuid, write: &OutletWrite) -> Result<(), StoreError> {
    let HealthWrite { succeeded, any_success, error } = &write.health;
    let reset = write.reset.as_ref();
    sqlx::query(
        "-- write_outlet: head
        UPDATE outlet
        SET epoch = coalesce($2, epoch),
            position = coalesce($3, position),
            failing_since = CASE $4 WHEN TRUE THEN NULL
                                    WHEN FALSE THEN CASE WHEN $5 THEN clock_timestamp()
                                                         ELSE coalesce(failing_since, clock_timestamp()) END
                                    ELSE failing_since END,
            last_success_at = CASE WHEN $5 THEN clock_timestamp() ELSE last_success_at END,
            last_error = coalesce($6, last_error),
            last_error_at = CASE WHEN $6 IS NULL THEN last_error_at ELSE clock_timestamp() END,
            reset_id = CASE WHEN $7::UUID IS NOT NULL THEN $7 WHEN $9 THEN NULL ELSE reset_id END,
            reset_reason = CASE WHEN $7 IS NOT NULL THEN $8 WHEN $9 THEN NULL ELSE reset_reason END
        WHERE outlet_id = $1",
    )
    .bind(outlet_id)
    .bind(write.cursor.as_ref().map(|cursor| &cursor.epoch))
    .bind(write.cursor.as_ref().map(|cursor| cursor.position))
    .bind(succeeded)
    .bind(any_success)
    .bind(error)
    .bind(reset.map(|reset| reset.id))
    .bind(reset.map(|reset| reset.reason.as_str()))
    .bind(write.reset_done)
    .execute(&mut **tx)
    .await
    .map_err(StoreError::db("write_outlet"))?;
    Ok(())
}

async fn reset_behind(tx: &mut Tx<'_>, outlet_id: Uuid, reset: &OutletReset) -> Result<(), StoreError> {
    // Positions of another epoch mean nothing: all begin at the common cursor.
    let statement = match reset.reason {
        ResetReason::Epoch => {
            "-- write_outlet: new epoch
            DELETE FROM outlet_submitter WHERE outlet_id = $1 AND $2 IS NOT NULL"
        }
        ResetReason::Retention => {
            "-- write_outlet: retention
            UPDATE outlet_submitter SET position = $2, attempts = 0 WHERE outlet_id = $1 AND position < $2"
        }
    };
    sqlx::query(statement)
        .bind(outlet_id)
        .bind(reset.start.position)
        .execute(&mut **tx)
        .await
        .map_err(StoreError::db("write_outlet"))?;
    Ok(())
}

async fn write_behind(tx: &mut Tx<'_>, outlet_id: Uuid, behind: &[BehindWrite]) -> Result<(), StoreError> {
    if behind.is_empty() {
        return Ok(());
    }
    let (chains, submitters): (Vec<_>, Vec<_>) =
        behind.iter().map(|row| sequence_columns(row.sequence)).unzip();
    sqlx::query(
        "-- write_outlet: behind
        INSERT INTO outlet_submitter (outlet_id, chain_id, submitter, position, attempts, next_attempt_at)
        SELECT $1, u.chain_id, u.submitter, u.position, u.attempts, clock_timestamp() + make_interval(secs => u.due_in)
        FROM unnest($2::BIGINT[], $3::BYTEA[], $4::BIGINT[], $5::INT[], $6::FLOAT8[])
          AS u (chain_id, submitter, position, attempts, due_in)
        ON CONFLICT (outlet_id, chain_id, submitter) DO UPDATE
        SET position = EXCLUDED.position, attempts = EXCLUDED.attempts, next_attempt_at = EXCLUDED.next_attempt_at",
    )
    .bind(outlet_id)
    .bind(chains)
    .bind(submitters)
    .bind(behind.iter().map(|row| row.position).collect::<Vec<_>>())
    .bind(behind.iter().map(|row| count(row.attempts)).collect::<Vec<_>>())
    .bind(behind.iter().map(|row| row.due_in.as_secs_f64()).collect::<Vec<_>>())
    .execute(&mut **tx)
    .await
    .map_err(StoreError::db("write_outlet"))?;
    Ok(())
}

async fn delete_behind(tx: &mut Tx<'_>, outlet_id: Uuid, caught_up: &[Sequence]) -> Result<(), StoreError> {
    if caught_up.is_empty() {
        return Ok(());
    }
    let (chains, submitters): (Vec<_>, Vec<_>) =
        caught_up.iter().map(|sequence| sequence_columns(*sequence)).unzip();
    sqlx::query(
        "-- write_outlet: caught up
        DELETE FROM outlet_submitter s
        USING unnest($2::BIGINT[], $3::BYTEA[]) AS u (chain_id, submitter)
        WHERE s.outlet_id = $1 AND s.chain_id = u.chain_id AND s.submitter = u.submitter",
    )
    .bind(outlet_id)
    .bind(chains)
    .bind(submitters)
    .execute(&mut **tx)
    .await
    .map_err(StoreError::db("write_outlet"))?;
    Ok(())
}

async fn write_deliveries(
    tx: &mut Tx<'_>,
    outlet_id: Uuid,
    deliveries: &[DeliveryWrite],
) -> Result<(), StoreError> {
    if deliveries.is_empty() {
        return Ok(());
    }
    sqlx::query(
        "-- write_outlet: deliveries
        INSERT INTO webhook_delivery AS d (webhook_id, event_id, position, chain_id, submitter, tx_id, kind, state, attempts,
                                           first_at, last_at, next_at, status_code, error, duration_ms)
        SELECT $1, u.event_id, u.position, u.chain_id, u.submitter, u.tx_id, u.kind, u.state, u.attempts,
               clock_timestamp() - make_interval(secs => u.ago), clock_timestamp() - make_interval(secs => u.ago),
               clock_timestamp() + make_interval(secs => u.next_in), u.status_code, u.error, u.duration_ms
        FROM unnest($2::UUID[], $3::BIGINT[], $4::BIGINT[], $5::BYTEA[], $6::UUID[], $7::TEXT[], $8::TEXT[], $9::INT[],
                    $10::FLOAT8[], $11::FLOAT8[], $12::INT[], $13::TEXT[], $14::INT[])
          AS u (event_id, position, chain_id, submitter, tx_id, kind, state, attempts, ago, next_in, status_code, error, duration_ms)
        ON CONFLICT (webhook_id, event_id) DO UPDATE
        SET position = coalesce(EXCLUDED.position, d.position), state = EXCLUDED.state, attempts = d.attempts + EXCLUDED.attempts,
            first_at = CASE WHEN d.attempts = 0 THEN EXCLUDED.first_at ELSE d.first_at END,
            last_at = EXCLUDED.last_at, next_at = EXCLUDED.next_at,
            status_code = EXCLUDED.status_code, error = EXCLUDED.error, duration_ms = EXCLUDED.duration_ms",
    )
    .bind(outlet_id)
    .bind(column(deliveries, |row| row.event_id))
    .bind(column(deliveries, |row| row.position))
    .bind(column(deliveries, |row| row.sequence.map(|key| key.chain_id.as_i64())))
    .bind(column(deliveries, |row| row.sequence.map(row::address)))
    .bind(column(deliveries, |row| row.tx_id.map(|tx_id| tx_id.0)))
    .bind(column(deliveries, |row| row.kind.clone()))
    .bind(column(deliveries, |row| row.state.stored()))
    .bind(column(deliveries, |row| count(row.attempts)))
    .bind(column(deliveries, |row| row.ago.as_secs_f64()))
    .bind(column(deliveries, |row| row.next_in.map(|wait| wait.as_secs_f64())))
    .bind(column(deliveries, |row| row.status_code.map(i32::from)))
    .bind(column(deliveries, |row| row.error.clone()))
    .bind(column(deliveries, |row| i32::try_from(row.duration.as_millis()).unwrap_or(i32::MAX)))
    .execute(&mut **tx)
    .await
    .map_err(StoreError::db("write_outlet"))?;
    Ok(())
}

async fn write_replays(tx: &mut Tx<'_>, outlet_id: Uuid, replays: &[ReplayWrite]) -> Result<(), StoreError> {
    let done: Vec<i64> = replays
        .iter()
        .filter_map(|replay| match replay {
            ReplayWrite::Done { no } => Some(*no),
            ReplayWrite::Retry { .. } => None,
        })
        .collect();
    let retried: Vec<(i64, u32, Duration)> = replays
        .iter()
        .filter_map(|replay| match replay {
            ReplayWrite::Retry { no, attempts, due_in } => Some((*no, *attempts, *due_in)),
            ReplayWrite::Done { .. } => None,
        })
        .collect();
    if !done.is_empty() {
        sqlx::query(
            "-- write_outlet: replays done
            -- One that was requested again meanwhile has another number.
            DELETE FROM webhook_replay WHERE webhook_id = $1 AND replay_no = ANY($2)",
        )
        .bind(outlet_id)
        .bind(done)
        .execute(&mut **tx)
        .await
        .map_err(StoreError::db("write_outlet"))?;
    }
    if !retried.is_empty() {
        sqlx::query(
            "-- write_outlet: replays
            UPDATE webhook_replay r
            SET attempts = u.attempts, next_attempt_at = clock_timestamp() + make_interval(secs => u.due_in)
            FROM unnest($2::BIGINT[], $3::INT[], $4::FLOAT8[]) AS u (replay_no, attempts, due_in)
            WHERE r.webhook_id = $1 AND r.replay_no = u.replay_no",
        )
        .bind(outlet_id)
        .bind(column(&retried, |row| row.0))
        .bind(column(&retried, |row| count(row.1)))
        .bind(column(&retried, |row| row.2.as_secs_f64()))
        .execute(&mut **tx)
        .await
        .map_err(StoreError::db("write_outlet"))?;
    }
    Ok(())
}

/// Disables the webhook, and records the event in the same commit.
async fn disable(
    tx: &mut Tx<'_>,
    outlet_id: Uuid,
    reason: DisabledReason,
    revision: i64,
) -> Result<(), StoreError> {
    let disabled: Option<(Option<String>,)> = sqlx::query_as(
        "-- write_outlet: disable
        UPDATE webhook w
        SET disabled_reason = $2, disabled_at = clock_timestamp(), revision = w.revision + 1
        FROM outlet o
        WHERE w.webhook_id = $1 AND w.revision = $3 AND w.disabled_reason IS NULL AND o.outlet_id = w.webhook_id
        RETURNING o.last_error",
    )
    .bind(outlet_id)
    .bind(reason.as_str())
    .bind(revision)
    .fetch_optional(&mut **tx)
    .await
    .map_err(StoreError::db("write_outlet"))?;
    // A user was faster.
    let Some((last_error,)) = disabled else { return Ok(()) };
    let mut data = serde_json::json!({
        "type": "webhook.disabled", "webhookId": outlet_id, "reason": reason.as_str(),
    });
    // With a revoked key the receiver is not the cause.
    if let Some(error) = last_error.filter(|_| reason != DisabledReason::KeyRevoked) {
        data["lastError"] = error.into();
    }
    sqlx::query(
        "-- write_outlet: disabled event
        INSERT INTO outbox_event (kind, data)
        SELECT 'webhook.disabled', $1
        WHERE (SELECT enabled FROM event_recording)",
    )
    .bind(data)
    .execute(&mut **tx)
    .await
    .map_err(StoreError::db("write_outlet"))?;
    Ok(())
}

fn column<T, C>(rows: &[T], value: impl Fn(&T) -> C) -> Vec<C> {
    rows.iter().map(value).collect()
}

fn count(number: u32) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}
