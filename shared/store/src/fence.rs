//! The fence: commits many `FencedWrite`s in one transaction.
//!
//! The first statement locks the lease rows and returns those that are still owned; the others, with fresh snapshots,
//! are a few `unnest` statements. A write whose lease is lost is skipped. If any row differs from what its writer
//! expects, the whole transaction fails, and the caller bisects the batch. Why not EXISTS: docs/adr/0002.

use std::collections::HashSet;

use sqlx::{Postgres, Transaction};
use uuid::Uuid;

use super::cursor::create_cursors;
use super::diagnosis::note_diagnoses;
use super::error::{StoreError, ensure_rows};
use super::evidence::note_evidence;
use super::external_nonce::note_external;
use super::fenced::{Applied, AskedBy, DoneAction, FencedWrite, SentNote};
use super::lanes::write_lanes;
use super::lease::Fence;
use super::policy_audit::note_policy;
use super::pool::Store;
use super::reservation_lane;
use super::row;
use super::timeout_pool::PooledConnection;
use gapless_domain::{Event, SubmitterKey};

impl Store {
    /// Commits the writes of all lanes that still own their submitter. Returns results in the order of the batch.
    ///
    /// After an error nothing was written, or, if the connection broke at COMMIT, the result is unknown: in both
    /// cases the lanes reload their rows and continue from there.
    pub async fn apply(&self, batch: &[FencedWrite]) -> Result<Vec<Applied>, StoreError> {
        let mut connection = self.pool.acquire().await.map_err(StoreError::db("fence"))?;
        let applied = self.pool.wait_for("fence", apply(&mut connection, batch)).await;
        connection.release(&applied);
        applied
    }
}

async fn apply(connection: &mut PooledConnection, batch: &[FencedWrite]) -> Result<Vec<Applied>, StoreError> {
    let mut tx = connection.begin().await.map_err(StoreError::db("fence"))?;
    let Locked { owned, recording } = lock_leases(&mut tx, batch).await?;
    let live: Vec<&FencedWrite> =
        batch.iter().filter(|write| owned.contains(&write.fence.lease_id)).collect();
    if !live.is_empty() {
        displace_attempts(&mut tx, &live).await?;
        note_external(&mut tx, &live).await?;
        create_cursors(&mut tx, &live).await?;
        note_policy(&mut tx, &live).await?;
        write_lanes(&mut tx, &live).await?;
        note_evidence(&mut tx, &live).await?;
        note_sent(&mut tx, &live).await?;
        note_diagnoses(&mut tx, &live).await?;
        reservation_lane::write_reservations(&mut tx, &live).await?;
        note_requests(&mut tx, &live).await?;
        finish_actions(&mut tx, &live).await?;
        if recording {
            insert_events(&mut tx, &live).await?;
        }
    }
    tx.commit().await.map_err(StoreError::db("commit"))?;
    Ok(batch
        .iter()
        .map(|write| match owned.contains(&write.fence.lease_id) {
            true => Applied::Yes(write.committed_attempts()),
            false => Applied::LeaseLost,
        })
        .collect())
}

pub(super) type Tx<'c> = Transaction<'c, Postgres>;

/// Result of statement 1.
struct Locked {
    /// Ids of the leases that are still owned.
    owned: HashSet<Uuid>,
    /// Whether events are recorded.
    recording: bool,
}

/// Statement 1. Locks each lease row until the commit, in a mode that conflicts with updates. If a takeover committed
/// first, the newest version of the row does not match the lease id and is not returned.
///
/// It also reads whether events are recorded: in the transaction of the change, so that every commit after the switch
/// follows it, whatever this process last knew.
async fn lock_leases(tx: &mut Tx<'_>, batch: &[FencedWrite]) -> Result<Locked, StoreError> {
    let keys: Vec<SubmitterKey> = batch.iter().map(|write| write.fence.key).collect();
    let (chains, submitters) = super::lease::columns(&keys);
    let lease_ids: Vec<Uuid> = batch.iter().map(|write| write.fence.lease_id).collect();
    let rows: Vec<(Uuid, bool)> = sqlx::query_as(
        "-- fence
        SELECT l.lease_id, coalesce((SELECT enabled FROM event_recording), FALSE)
        FROM submitter_lease l
        JOIN unnest($1::BIGINT[], $2::BYTEA[], $3::UUID[]) AS u (chain_id, submitter, lease_id)
          ON l.chain_id = u.chain_id AND l.submitter = u.submitter AND l.lease_id = u.lease_id
        ORDER BY l.chain_id, l.submitter
        FOR NO KEY UPDATE OF l",
    )
    .bind(chains)
    .bind(submitters)
    .bind(lease_ids)
    .fetch_all(&mut **tx)
    .await
    .map_err(StoreError::db("fence"))?;
    let recording = rows.iter().any(|(_, recording)| *recording);
    Ok(Locked { owned: rows.into_iter().map(|(id, _)| id).collect(), recording })
}

async fn note_sent(tx: &mut Tx<'_>, live: &[&FencedWrite]) -> Result<(), StoreError> {
    let notes: Vec<&SentNote> = live.iter().flat_map(|write| &write.sent).collect();
    if notes.is_empty() {
        return Ok(());
    }
    let done = sqlx::query(
        "-- note_sent
        UPDATE tx_attempt a
        SET first_sent_at = coalesce(a.first_sent_at, clock_timestamp() - make_interval(secs => u.ago)),
            last_sent_at = clock_timestamp() - make_interval(secs => u.ago),
            sends = coalesce(a.sends, 0) + u.sends,
            last_outcome = coalesce(u.outcome, a.last_outcome),
            last_answer = CASE WHEN u.outcome IS NULL THEN a.last_answer ELSE u.answer END
        FROM unnest($1::UUID[], $2::UUID[], $3::TEXT[], $4::TEXT[], $5::FLOAT8[], $6::INT[])
          AS u (tx_id, attempt_id, outcome, answer, ago, sends)
        WHERE a.tx_id = u.tx_id AND a.attempt_id = u.attempt_id",
    )
    .bind(notes.iter().map(|note| note.tx_id.0).collect::<Vec<_>>())
    .bind(notes.iter().map(|note| note.attempt_id.0).collect::<Vec<_>>())
    .bind(notes.iter().map(|note| note.outcome).collect::<Vec<_>>())
    .bind(notes.iter().map(|note| note.answer.clone()).collect::<Vec<_>>())
    .bind(notes.iter().map(|note| note.at.elapsed().as_secs_f64()).collect::<Vec<_>>())
    .bind(notes.iter().map(|note| i32::try_from(note.sends).unwrap_or(i32::MAX)).collect::<Vec<_>>())
    .execute(&mut **tx)
    .await
    .map_err(StoreError::db("note_sent"))?;
    ensure_rows("note_sent", notes.len(), done.rows_affected() as usize)
}

async fn displace_attempts(tx: &mut Tx<'_>, live: &[&FencedWrite]) -> Result<(), StoreError> {
    let displaced: Vec<Uuid> =
        live.iter().flat_map(|write| write.displaced.iter().map(|tx_id| tx_id.0)).collect();
    if displaced.is_empty() {
        return Ok(());
    }
    // No row count: an intent may have any number of attempts, and all of them are displaced.
    sqlx::query(
        "-- displace_attempts
        UPDATE tx_attempt
        SET displaced_at = clock_timestamp()
        WHERE tx_id = ANY($1) AND displaced_at IS NULL",
    )
    .bind(displaced)
    .execute(&mut **tx)
    .await
    .map_err(StoreError::db("displace_attempts"))?;
    Ok(())
}

async fn note_requests(tx: &mut Tx<'_>, live: &[&FencedWrite]) -> Result<(), StoreError> {
    let seen: Vec<(i64, i64)> = live
        .iter()
        .flat_map(|write| write.seen_requests.iter().map(|no| (*no, write.fence.token.as_i64())))
        .collect();
    if seen.is_empty() {
        return Ok(());
    }
    let done = sqlx::query(
        "-- note_requests
        UPDATE tx_request r
        SET fencing_token = u.token
        FROM unnest($1::BIGINT[], $2::BIGINT[]) AS u (id, token)
        WHERE r.request_no = u.id AND r.applied_at IS NULL",
    )
    .bind(seen.iter().map(|(id, _)| *id).collect::<Vec<_>>())
    .bind(seen.iter().map(|(_, token)| *token).collect::<Vec<_>>())
    .execute(&mut **tx)
    .await
    .map_err(StoreError::db("note_requests"))?;
    ensure_rows("note_requests", seen.len(), done.rows_affected() as usize)
}

async fn finish_actions(tx: &mut Tx<'_>, live: &[&FencedWrite]) -> Result<(), StoreError> {
    let of = |pick: fn(AskedBy) -> Option<i64>| -> Vec<(&Fence, i64, &DoneAction)> {
        let all =
            live.iter().flat_map(|write| write.done_actions.iter().map(|action| (&write.fence, action)));
        all.filter_map(|(fence, action)| pick(action.asked_by).map(|id| (fence, id, action))).collect()
    };
    let by_operators = of(|request| match request {
        AskedBy::Audit(id) => Some(id),
        AskedBy::TxRequest(_) => None,
    });
    let by_clients = of(|request| match request {
        AskedBy::TxRequest(id) => Some(id),
        AskedBy::Audit(_) => None,
    });
    finish(
        tx,
        "-- finish_actions
        UPDATE audit_log a
        SET applied_at = clock_timestamp(), fencing_token = u.token, outcome = u.outcome, refused = u.refused
        FROM unnest($1::BIGINT[], $2::BIGINT[], $3::TEXT[], $4::BOOLEAN[]) AS u (id, token, outcome, refused)
        WHERE a.audit_id = u.id AND a.applied_at IS NULL",
        &by_operators,
    )
    .await?;
    finish(
        tx,
        "-- finish_tx_requests
        UPDATE tx_request r
        SET applied_at = clock_timestamp(), fencing_token = u.token, outcome = u.outcome, refused = u.refused
        FROM unnest($1::BIGINT[], $2::BIGINT[], $3::TEXT[], $4::BOOLEAN[]) AS u (id, token, outcome, refused)
        WHERE r.request_no = u.id AND r.applied_at IS NULL",
        &by_clients,
    )
    .await
}

async fn finish(
    tx: &mut Tx<'_>,
    statement: &'static str,
    done: &[(&Fence, i64, &DoneAction)],
) -> Result<(), StoreError> {
    if done.is_empty() {
        return Ok(());
    }
    let text = |outcome: &Result<String, String>| match outcome {
        Ok(text) | Err(text) => text.clone(),
    };
    let result = sqlx::query(statement)
        .bind(done.iter().map(|(_, id, _)| *id).collect::<Vec<_>>())
        .bind(done.iter().map(|(fence, _, _)| fence.token.as_i64()).collect::<Vec<_>>())
        .bind(done.iter().map(|(_, _, action)| text(&action.outcome)).collect::<Vec<_>>())
        .bind(done.iter().map(|(_, _, action)| action.outcome.is_err()).collect::<Vec<_>>())
        .execute(&mut **tx)
        .await
        .map_err(StoreError::db("finish_actions"))?;
    ensure_rows("finish_actions", done.len(), result.rows_affected() as usize)
}

async fn insert_events(tx: &mut Tx<'_>, live: &[&FencedWrite]) -> Result<(), StoreError> {
    let events: Vec<&Event> = live.iter().flat_map(|write| &write.events).collect();
    if events.is_empty() {
        return Ok(());
    }
    let done = sqlx::query(
        "-- insert_events
        INSERT INTO outbox_event (id, chain_id, submitter, tx_id, kind, data)
        SELECT *
        FROM unnest($1::UUID[], $2::BIGINT[], $3::BYTEA[], $4::UUID[], $5::TEXT[], $6::JSONB[])",
    )
    // Not by the database, which asks the kernel for each.
    .bind(events.iter().map(|_| Uuid::new_v4()).collect::<Vec<_>>())
    .bind(events.iter().map(|event| event.submitter.chain_id.as_i64()).collect::<Vec<_>>())
    .bind(events.iter().map(|event| row::address(event.submitter)).collect::<Vec<_>>())
    .bind(events.iter().map(|event| event.tx_id.map(|tx_id| tx_id.0)).collect::<Vec<_>>())
    .bind(events.iter().map(|event| event.kind.name()).collect::<Vec<_>>())
    // Unwrap safety: plain data with string keys.
    .bind(
        events
            .iter()
            .map(|event| serde_json::to_value(&event.kind).expect("an event serialises"))
            .collect::<Vec<_>>(),
    )
    .execute(&mut **tx)
    .await
    .map_err(StoreError::db("insert_events"))?;
    ensure_rows("insert_events", events.len(), done.rows_affected() as usize)
}
