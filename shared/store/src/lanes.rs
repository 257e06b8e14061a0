//! The statement that nearly every fenced write needs: cursor, state changes of intents, and new attempts. One
//! statement for all three, because each round trip delays a lane with a window of one.
//!
//! The parts write to different tables and do not depend on each other. The AFTER triggers check the rows when all
//! parts are written.

use sqlx::Row;

use super::confirmed::{confirmation_hashes, confirmations_json};
use super::cursor::{FencedCursor, Query, bind_cursors, cursors};
use super::error::{StoreError, ensure_rows};
use super::fence::Tx;
use super::fenced::{FencedWrite, Move, NewAttempt};
use super::lease::Fence;
use super::receipt::receipt_json;
use super::row::{self, StoredHash};
use gapless_domain::{H256, Nonce, Receipt, TxError};

type Moved<'a> = (&'a Fence, &'a Move);
type Recorded<'a> = (&'a Fence, &'a NewAttempt);

pub(super) async fn write_lanes(tx: &mut Tx<'_>, live: &[&FencedWrite]) -> Result<(), StoreError> {
    let cursors: Vec<FencedCursor<'_>> = cursors(live, true);
    let moves: Vec<Moved<'_>> =
        live.iter().flat_map(|write| write.moves.iter().map(|change| (&write.fence, change))).collect();
    let attempts: Vec<Recorded<'_>> =
        live.iter().flat_map(|write| write.attempts.iter().map(|attempt| (&write.fence, attempt))).collect();
    if cursors.is_empty() && moves.is_empty() && attempts.is_empty() {
        return Ok(());
    }
    let statement = sqlx::query(
        "-- write_lanes
        WITH cursors AS (
            UPDATE submitter_nonce_cursor c
            SET fencing_token = u.token,
                start_nonce = u.start_nonce,
                next_nonce = u.next_nonce,
                in_flight_tx_id = u.tx_id,
                in_flight_nonce = u.nonce,
                in_flight_state = u.state,
                protect_reason = u.reason,
                protect_since = CASE WHEN u.reason IS NOT NULL
                    THEN CASE WHEN u.expect_protected THEN coalesce(c.protect_since, c.updated_at) ELSE clock_timestamp() END END,
                max_in_flight = u.max_in_flight,
                delegated = u.delegated,
                open_from = u.open_from,
                updated_at = clock_timestamp()
            FROM unnest($1::BIGINT[], $2::BYTEA[], $3::BIGINT[], $4::BIGINT[], $5::BIGINT[], $6::BIGINT[],
                        $7::UUID[], $8::BIGINT[], $9::TEXT[], $10::TEXT[], $11::INT[], $12::BOOLEAN[],
                        $13::BOOLEAN[], $14::BIGINT[])
              AS u (chain_id, submitter, token, expect_next, start_nonce, next_nonce, tx_id, nonce, state, reason,
                    max_in_flight, expect_protected, delegated, open_from)
            WHERE c.chain_id = u.chain_id AND c.submitter = u.submitter AND c.next_nonce = u.expect_next
              AND (c.in_flight_state = 'PROTECT') = u.expect_protected
            RETURNING 1
        ), moves AS (
            UPDATE managed_tx t
            SET state = u.to_state,
                sub_state = u.sub_state,
                nonce = u.nonce,
                tx_hash = u.tx_hash,
                last_error = u.last_error,
                error = u.error,
                receipt = u.receipt,
                confirmations = u.confirmations,
                confirmation_hashes = u.confirmation_hashes,
                mined_send_class = u.mined_send_class,
                mined_send_at = clock_timestamp() - make_interval(secs => u.mined_send_ago),
                -- Regular states have columns of eight bytes each; all other changes are appended to history.
                submitted_at = CASE
                    WHEN u.from_state = 'IN_FLIGHT' AND u.to_state = 'SUBMITTED' AND t.history IS NULL THEN clock_timestamp()
                    ELSE t.submitted_at END,
                tracking_at = CASE
                    WHEN u.from_state <> 'TRACKING' AND u.to_state = 'TRACKING' AND t.history IS NULL
                    THEN coalesce(t.tracking_at, clock_timestamp())
                    ELSE t.tracking_at END,
                history = CASE
                    WHEN u.to_state IN (u.from_state, 'CONFIRMED', 'FAILED', 'CANCELLED') THEN t.history
                    WHEN t.history IS NULL AND (u.to_state = 'IN_FLIGHT'
                        OR (u.from_state = 'IN_FLIGHT' AND u.to_state = 'SUBMITTED')
                        OR (u.to_state = 'TRACKING' AND t.tracking_at IS NULL)) THEN NULL
                    ELSE CASE WHEN jsonb_array_length(t.history) >= 64 THEN t.history - 0 ELSE coalesce(t.history, '[]') END
                         || jsonb_build_array(jsonb_build_array(u.to_state, clock_timestamp())) END,
                replaced_by_hash = u.replaced_by,
                ending = u.ending,
                ending_reason = u.ending_reason,
                ending_code = u.ending_code,
                last_mempool_diag = CASE WHEN u.to_state <> 'QUEUED' THEN t.last_mempool_diag END,
                -- The four reasons of domain::BlockedReason. Waiting for funds or fees is timed separately from waiting
                -- for a node or a signer: queue.blocked_after applies to the former only.
                blocked_since = CASE
                    WHEN u.to_state = 'QUEUED' AND u.sub_state IN ('waiting_funds', 'waiting_fee')
                    THEN CASE WHEN t.sub_state IN ('waiting_funds', 'waiting_fee') THEN coalesce(t.blocked_since, clock_timestamp())
                         ELSE clock_timestamp() END
                    WHEN u.to_state = 'QUEUED' AND u.sub_state IN ('waiting_node', 'waiting_signer')
                    THEN CASE WHEN t.sub_state IN ('waiting_node', 'waiting_signer') THEN coalesce(t.blocked_since, clock_timestamp())
                         ELSE clock_timestamp() END
                    END,
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
            FROM unnest($15::UUID[], $16::BYTEA[], $17::BIGINT[], $18::TEXT[], $19::TEXT[], $20::TEXT[], $21::BIGINT[], $22::BYTEA[],
                        $23::TEXT[], $24::JSONB[], $25::BIGINT[], $26::BYTEA[], $27::INT[], $28::FLOAT8[],
                        $29::BYTEA[], $30::TEXT[], $31::TEXT[], $32::JSONB[], $33::TEXT[], $34::JSONB[],
                        $35::TEXT[], $36::FLOAT8[], $37::BYTEA[])
              AS u (tx_id, submitter, token, from_state, to_state, sub_state, nonce, tx_hash,
                    last_error, receipt, block_number, block_hash, sends, resubmit_in,
                    replaced_by, ending, ending_reason, error, ending_code, confirmations,
                    mined_send_class, mined_send_ago, confirmation_hashes)
            WHERE t.tx_id = u.tx_id AND t.submitter = u.submitter AND t.state = u.from_state
              -- The first nonce is the expected one, and is assigned in time.
              AND (u.from_state <> 'QUEUED' OR u.nonce IS NULL OR t.history IS NOT NULL
                   OR ((t.expected_nonce IS NULL OR t.expected_nonce = u.nonce)
                       AND (t.start_by IS NULL OR t.start_by > clock_timestamp())))
            RETURNING 1
        ), attempts AS (
            INSERT INTO tx_attempt
                (attempt_id, tx_id, ordinal, chain_id, submitter, nonce, kind, raw_tx, tx_hash, gas_params, fencing_token)
            SELECT u.attempt_id, u.tx_id,
                   -- The lease row is locked: no other commit can add an attempt meanwhile. The ordinal defines the
                   -- order, not a timestamp.
                   coalesce((SELECT max(a.ordinal) FROM tx_attempt a WHERE a.tx_id = u.tx_id), 0) + 1,
                   u.chain_id, u.submitter, u.nonce, u.kind, u.raw_tx, u.tx_hash, u.gas_params, u.token
            FROM unnest($38::UUID[], $39::UUID[], $40::BIGINT[], $41::BYTEA[], $42::BIGINT[], $43::TEXT[], $44::BYTEA[], $45::BYTEA[],
                        $46::JSONB[], $47::BIGINT[])
              AS u (attempt_id, tx_id, chain_id, submitter, nonce, kind, raw_tx, tx_hash, gas_params, token)
            RETURNING 1
        )
        SELECT (SELECT count(*) FROM cursors), (SELECT count(*) FROM moves), (SELECT count(*) FROM attempts)",
    );
    let statement = bind_attempts(bind_moves(bind_cursors(statement, &cursors), &moves), &attempts);
    let row = statement.fetch_one(&mut **tx).await.map_err(StoreError::db("write_lanes"))?;
    let written = |part: usize| -> Result<usize, StoreError> {
        let count: i64 = row.try_get(part).map_err(StoreError::db("write_lanes"))?;
        Ok(usize::try_from(count).unwrap_or_default())
    };
    ensure_rows("write_lanes: cursors", cursors.len(), written(0)?)?;
    ensure_rows("write_lanes: moves", moves.len(), written(1)?)?;
    ensure_rows("write_lanes: attempts", attempts.len(), written(2)?)
}

/// Binds the 23 columns of the moves.
fn bind_moves<'q>(query: Query<'q>, moves: &[Moved<'_>]) -> Query<'q> {
    let text = |get: fn(&Move) -> Option<String>| -> Vec<Option<String>> {
        moves.iter().map(|(_, change)| get(change)).collect()
    };
    let hash = |get: fn(&Move) -> Option<H256>| -> Vec<Option<StoredHash>> {
        moves.iter().map(|(_, change)| get(change).map(StoredHash::from)).collect()
    };
    query
        .bind(moves.iter().map(|(_, change)| change.tx_id.0).collect::<Vec<_>>())
        .bind(moves.iter().map(|(fence, _)| row::address(fence.key)).collect::<Vec<_>>())
        .bind(moves.iter().map(|(fence, _)| fence.token.as_i64()).collect::<Vec<_>>())
        .bind(moves.iter().map(|(_, change)| change.from.as_str()).collect::<Vec<_>>())
        .bind(moves.iter().map(|(_, change)| change.to.as_str()).collect::<Vec<_>>())
        .bind(text(|change| change.sub_state.map(|sub_state| sub_state.as_str().to_owned())))
        .bind(moves.iter().map(|(_, change)| change.nonce.map(Nonce::as_i64)).collect::<Vec<_>>())
        .bind(hash(|change| change.tx_hash))
        .bind(text(|change| change.last_error.as_ref().map(|error| error.message.clone())))
        .bind(moves.iter().map(|(_, change)| receipt_json(change)).collect::<Vec<_>>())
        .bind(moves.iter().map(|(_, change)| change.receipt.as_ref().map(block_number)).collect::<Vec<_>>())
        .bind(hash(|change| change.receipt.as_ref().map(|receipt| receipt.block_hash)))
        .bind(
            moves
                .iter()
                .map(|(_, change)| i32::try_from(change.sends).unwrap_or(i32::MAX))
                .collect::<Vec<_>>(),
        )
        .bind(
            moves
                .iter()
                .map(|(_, change)| change.resubmit_in.map(|wait| wait.as_secs_f64()))
                .collect::<Vec<_>>(),
        )
        .bind(hash(|change| change.replaced_by))
        .bind(text(|change| change.ending.as_ref().map(|ending| ending.state.as_str().to_owned())))
        .bind(text(|change| change.ending.as_ref().map(|ending| ending.reason.clone())))
        .bind(
            moves
                .iter()
                .map(|(_, change)| change.last_error.as_ref().map(TxError::detail))
                .collect::<Vec<_>>(),
        )
        .bind(text(|change| change.ending.as_ref().map(|ending| ending.code.to_string())))
        .bind(moves.iter().map(|(_, change)| confirmations_json(change)).collect::<Vec<_>>())
        .bind(text(|change| change.mined_send.map(|send| send.class.to_owned())))
        .bind(
            moves
                .iter()
                .map(|(_, change)| change.mined_send.map(|send| send.at.elapsed().as_secs_f64()))
                .collect::<Vec<_>>(),
        )
        .bind(moves.iter().map(|(_, change)| confirmation_hashes(change)).collect::<Vec<_>>())
}

fn block_number(receipt: &Receipt) -> i64 {
    i64::try_from(receipt.block_number).unwrap_or(i64::MAX)
}

/// Binds the 10 columns of the attempts.
fn bind_attempts<'q>(query: Query<'q>, attempts: &[Recorded<'_>]) -> Query<'q> {
    query
        .bind(attempts.iter().map(|(_, new)| new.id.0).collect::<Vec<_>>())
        .bind(attempts.iter().map(|(_, new)| new.tx_id.0).collect::<Vec<_>>())
        .bind(attempts.iter().map(|(fence, _)| fence.key.chain_id.as_i64()).collect::<Vec<_>>())
        .bind(attempts.iter().map(|(fence, _)| row::address(fence.key)).collect::<Vec<_>>())
        .bind(attempts.iter().map(|(_, new)| new.draft.nonce.as_i64()).collect::<Vec<_>>())
        .bind(attempts.iter().map(|(_, new)| new.kind.as_str()).collect::<Vec<_>>())
        .bind(attempts.iter().map(|(_, new)| new.draft.raw.to_vec()).collect::<Vec<_>>())
        .bind(attempts.iter().map(|(_, new)| StoredHash::from(new.draft.tx_hash)).collect::<Vec<_>>())
        .bind(attempts.iter().map(|(_, new)| new.draft.gas_params()).collect::<Vec<_>>())
        .bind(attempts.iter().map(|(fence, _)| fence.token.as_i64()).collect::<Vec<_>>())
}
