//! The fence: commits many `FencedWrite`s in one transaction.
//!
//! The first statement locks the lease rows and tells who still owns what; the rest, with fresh snapshots, are a few
//! `unnest` statements. A write whose lease is lost is left out; any row that is not as its writer believed
//! fails the whole transaction, and the caller bisects. Why this and not EXISTS: docs/adr/0002.

use std::collections::HashSet;

use sqlx::{Postgres, Transaction};
use uuid::Uuid;

use super::cursor::write_cursors;
use super::diagnosis::note_diagnoses;
use super::error::{StoreError, ensure_rows};
use super::fenced::{Applied, AskedBy, DoneAction, FencedWrite, Move, NewAttempt, SentNote};
use super::foreign::note_foreign;
use super::hold;
use super::lease::Fence;
use super::pool::Store;
use super::receipt::receipt_json;
use super::row::hash_text;
use crate::domain::{Event, Nonce, Receipt, SubmitterKey, TxError};

impl Store {
    /// Commits the writes of all lanes that still own their submitter. The answers are in the order of the batch.
    ///
    /// An error means that nothing was written, or, if the connection broke at COMMIT, that it is unknown: either way
    /// the lanes read their rows again and go on from what they find.
    pub async fn apply(&self, batch: &[FencedWrite]) -> Result<Vec<Applied>, StoreError> {
        let mut tx = self.pool.begin().await.map_err(StoreError::db("fence"))?;
        let owned = lock_leases(&mut tx, batch).await?;
        let live: Vec<&FencedWrite> =
            batch.iter().filter(|write| owned.contains(&write.fence.lease_id)).collect();
        if !live.is_empty() {
            write_cursors(&mut tx, &live).await?;
            displace_attempts(&mut tx, &live).await?;
            note_foreign(&mut tx, &live).await?;
            write_moves(&mut tx, &live).await?;
            insert_attempts(&mut tx, &live).await?;
            note_sent(&mut tx, &live).await?;
            note_diagnoses(&mut tx, &live).await?;
            hold::write_holds(&mut tx, &live).await?;
            finish_actions(&mut tx, &live).await?;
            insert_events(&mut tx, &live).await?;
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
}

pub(super) type Tx = Transaction<'static, Postgres>;

/// Statement 1. Holds each lease row, until commit, in a mode that conflicts with changing it; a takeover that came
/// first makes the row's newest version fail the comparison, and it is not returned.
async fn lock_leases(tx: &mut Tx, batch: &[FencedWrite]) -> Result<HashSet<Uuid>, StoreError> {
    let keys: Vec<SubmitterKey> = batch.iter().map(|write| write.fence.key).collect();
    let (chains, submitters) = super::lease::columns(&keys);
    let lease_ids: Vec<Uuid> = batch.iter().map(|write| write.fence.lease_id).collect();
    let rows: Vec<(Uuid,)> = sqlx::query_as(
        "-- fence
        SELECT l.lease_id
        FROM submitter_lease l
        JOIN unnest($1::BIGINT[], $2::TEXT[], $3::UUID[]) AS u (chain_id, submitter, lease_id)
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
    Ok(rows.into_iter().map(|(id,)| id).collect())
}

async fn write_moves(tx: &mut Tx, live: &[&FencedWrite]) -> Result<(), StoreError> {
    let moves: Vec<(&Fence, &Move)> =
        live.iter().flat_map(|write| write.moves.iter().map(|change| (&write.fence, change))).collect();
    if moves.is_empty() {
        return Ok(());
    }
    let text = |get: fn(&Move) -> Option<String>| -> Vec<Option<String>> {
        moves.iter().map(|(_, change)| get(change)).collect()
    };
    let done = sqlx::query(
        "-- write_moves
        UPDATE managed_tx t
        SET state = u.to_state,
            sub_state = u.sub_state,
            nonce = u.nonce,
            tx_hash = u.tx_hash,
            last_error = u.last_error,
            error = u.error,
            receipt = u.receipt,
            replaced_by_hash = u.replaced_by,
            ending = u.ending,
            ending_reason = u.ending_reason,
            ending_code = u.ending_code,
            last_mempool_diag = CASE WHEN u.to_state <> 'QUEUED' THEN t.last_mempool_diag END,
            block_number = u.block_number,
            block_hash = u.block_hash,
            submit_attempts = t.submit_attempts + u.sends,
            last_submit_at = CASE WHEN u.sends > 0 THEN clock_timestamp() ELSE t.last_submit_at END,
            next_resubmit_at = CASE
                WHEN u.to_state IN ('QUEUED', 'CONFIRMED', 'FAILED', 'CANCELLED') THEN NULL
                WHEN u.resubmit_in IS NULL THEN t.next_resubmit_at
                ELSE clock_timestamp() + make_interval(secs => u.resubmit_in) END,
            prepared_at = CASE
                WHEN u.to_state = 'QUEUED' THEN NULL
                WHEN u.from_state = 'QUEUED' AND u.to_state = 'IN_FLIGHT' THEN clock_timestamp()
                ELSE t.prepared_at END,
            confirmed_at = CASE WHEN u.to_state = 'CONFIRMED' THEN clock_timestamp() END,
            finished_at = CASE WHEN u.to_state IN ('CONFIRMED', 'FAILED', 'CANCELLED') THEN clock_timestamp() END,
            fencing_token = u.token,
            updated_at = clock_timestamp()
        FROM unnest($1::UUID[], $2::TEXT[], $3::BIGINT[], $4::TEXT[], $5::TEXT[], $6::TEXT[], $7::BIGINT[], $8::TEXT[],
                    $9::TEXT[], $10::JSONB[], $11::BIGINT[], $12::TEXT[], $13::INT[], $14::FLOAT8[],
                    $15::TEXT[], $16::TEXT[], $17::TEXT[], $18::JSONB[], $19::TEXT[])
          AS u (tx_id, submitter, token, from_state, to_state, sub_state, nonce, tx_hash,
                last_error, receipt, block_number, block_hash, sends, resubmit_in,
                replaced_by, ending, ending_reason, error, ending_code)
        WHERE t.tx_id = u.tx_id AND t.submitter = u.submitter AND t.state = u.from_state",
    )
    .bind(moves.iter().map(|(_, change)| change.tx_id.0).collect::<Vec<_>>())
    .bind(moves.iter().map(|(fence, _)| fence.key.address_text()).collect::<Vec<_>>())
    .bind(moves.iter().map(|(fence, _)| fence.token.as_i64()).collect::<Vec<_>>())
    .bind(moves.iter().map(|(_, change)| change.from.as_str()).collect::<Vec<_>>())
    .bind(moves.iter().map(|(_, change)| change.to.as_str()).collect::<Vec<_>>())
    .bind(text(|change| change.sub_state.clone()))
    .bind(moves.iter().map(|(_, change)| change.nonce.map(Nonce::as_i64)).collect::<Vec<_>>())
    .bind(text(|change| change.tx_hash.map(hash_text)))
    .bind(text(|change| change.last_error.as_ref().map(|error| error.message.clone())))
    .bind(moves.iter().map(|(_, change)| receipt_json(change)).collect::<Vec<_>>())
    .bind(moves.iter().map(|(_, change)| change.receipt.as_ref().map(block_number)).collect::<Vec<_>>())
    .bind(text(|change| change.receipt.as_ref().map(|receipt| hash_text(receipt.block_hash))))
    .bind(moves.iter().map(|(_, change)| i32::try_from(change.sends).unwrap_or(i32::MAX)).collect::<Vec<_>>())
    .bind(moves.iter().map(|(_, change)| change.resubmit_in.map(|wait| wait.as_secs_f64())).collect::<Vec<_>>())
    .bind(text(|change| change.replaced_by.map(hash_text)))
    .bind(text(|change| change.ending.as_ref().map(|ending| ending.state.as_str().to_owned())))
    .bind(text(|change| change.ending.as_ref().map(|ending| ending.reason.clone())))
    .bind(moves.iter().map(|(_, change)| change.last_error.as_ref().map(TxError::detail)).collect::<Vec<_>>())
    .bind(text(|change| change.ending.as_ref().map(|ending| ending.code.to_string())))
    .execute(&mut **tx)
    .await
    .map_err(StoreError::db("write_moves"))?;
    ensure_rows("write_moves", moves.len(), done.rows_affected() as usize)
}

fn block_number(receipt: &Receipt) -> i64 {
    i64::try_from(receipt.block_number).unwrap_or(i64::MAX)
}

async fn insert_attempts(tx: &mut Tx, live: &[&FencedWrite]) -> Result<(), StoreError> {
    let attempts: Vec<(&Fence, &NewAttempt)> =
        live.iter().flat_map(|write| write.attempts.iter().map(|attempt| (&write.fence, attempt))).collect();
    if attempts.is_empty() {
        return Ok(());
    }
    let done = sqlx::query(
        "-- insert_attempts
        INSERT INTO tx_attempt
            (attempt_id, tx_id, chain_id, submitter, nonce, kind, raw_tx, tx_hash, gas_params, fencing_token)
        SELECT *
        FROM unnest($1::UUID[], $2::UUID[], $3::BIGINT[], $4::TEXT[], $5::BIGINT[], $6::TEXT[], $7::BYTEA[], $8::TEXT[],
                    $9::JSONB[], $10::BIGINT[])",
    )
    .bind(attempts.iter().map(|(_, new)| new.id.0).collect::<Vec<_>>())
    .bind(attempts.iter().map(|(_, new)| new.tx_id.0).collect::<Vec<_>>())
    .bind(attempts.iter().map(|(fence, _)| fence.key.chain_id.as_i64()).collect::<Vec<_>>())
    .bind(attempts.iter().map(|(fence, _)| fence.key.address_text()).collect::<Vec<_>>())
    .bind(attempts.iter().map(|(_, new)| new.draft.nonce.as_i64()).collect::<Vec<_>>())
    .bind(attempts.iter().map(|(_, new)| new.kind.as_str()).collect::<Vec<_>>())
    .bind(attempts.iter().map(|(_, new)| new.draft.raw.to_vec()).collect::<Vec<_>>())
    .bind(attempts.iter().map(|(_, new)| hash_text(new.draft.tx_hash)).collect::<Vec<_>>())
    .bind(attempts.iter().map(|(_, new)| new.draft.gas_params()).collect::<Vec<_>>())
    .bind(attempts.iter().map(|(fence, _)| fence.token.as_i64()).collect::<Vec<_>>())
    .execute(&mut **tx)
    .await
    .map_err(StoreError::db("insert_attempts"))?;
    ensure_rows("insert_attempts", attempts.len(), done.rows_affected() as usize)
}

async fn note_sent(tx: &mut Tx, live: &[&FencedWrite]) -> Result<(), StoreError> {
    let notes: Vec<&SentNote> = live.iter().flat_map(|write| &write.sent).collect();
    if notes.is_empty() {
        return Ok(());
    }
    let done = sqlx::query(
        "-- note_sent
        UPDATE tx_attempt a
        SET first_sent_at = coalesce(a.first_sent_at, clock_timestamp()),
            last_sent_at = clock_timestamp(),
            last_outcome = u.outcome
        FROM unnest($1::UUID[], $2::UUID[], $3::TEXT[]) AS u (tx_id, attempt_id, outcome)
        WHERE a.tx_id = u.tx_id AND a.attempt_id = u.attempt_id",
    )
    .bind(notes.iter().map(|note| note.tx_id.0).collect::<Vec<_>>())
    .bind(notes.iter().map(|note| note.attempt_id.0).collect::<Vec<_>>())
    .bind(notes.iter().map(|note| note.outcome).collect::<Vec<_>>())
    .execute(&mut **tx)
    .await
    .map_err(StoreError::db("note_sent"))?;
    ensure_rows("note_sent", notes.len(), done.rows_affected() as usize)
}

async fn displace_attempts(tx: &mut Tx, live: &[&FencedWrite]) -> Result<(), StoreError> {
    let displaced: Vec<Uuid> =
        live.iter().flat_map(|write| write.displaced.iter().map(|tx_id| tx_id.0)).collect();
    if displaced.is_empty() {
        return Ok(());
    }
    // No row count: an intent has as many attempts as it was given, and all of them are dead.
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

async fn finish_actions(tx: &mut Tx, live: &[&FencedWrite]) -> Result<(), StoreError> {
    let of = |pick: fn(AskedBy) -> Option<i64>| -> Vec<(&Fence, i64, &DoneAction)> {
        let all =
            live.iter().flat_map(|write| write.done_actions.iter().map(|action| (&write.fence, action)));
        all.filter_map(|(fence, action)| pick(action.asked_by).map(|id| (fence, id, action))).collect()
    };
    let by_operators = of(|asked| match asked {
        AskedBy::Audit(id) => Some(id),
        AskedBy::TxRequest(_) => None,
    });
    let by_clients = of(|asked| match asked {
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
    tx: &mut Tx,
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

async fn insert_events(tx: &mut Tx, live: &[&FencedWrite]) -> Result<(), StoreError> {
    let events: Vec<&Event> = live.iter().flat_map(|write| &write.events).collect();
    if events.is_empty() {
        return Ok(());
    }
    let done = sqlx::query(
        "-- insert_events
        INSERT INTO outbox_event (chain_id, submitter, tx_id, kind, data)
        SELECT *
        FROM unnest($1::BIGINT[], $2::TEXT[], $3::UUID[], $4::TEXT[], $5::JSONB[])",
    )
    .bind(events.iter().map(|event| event.submitter.chain_id.as_i64()).collect::<Vec<_>>())
    .bind(events.iter().map(|event| event.submitter.address_text()).collect::<Vec<_>>())
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
