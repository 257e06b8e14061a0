//! Where a sequence stands, as the fence writes it: created, or compared and set.

use sqlx::Postgres;

use super::error::{StoreError, ensure_rows};
use super::fence::Tx;
use super::fenced::{CursorWrite, FencedWrite};
use super::lease::Fence;
use crate::domain::Nonce;

pub(super) async fn write_cursors(tx: &mut Tx, live: &[&FencedWrite]) -> Result<(), StoreError> {
    let cursors: Vec<(&Fence, &CursorWrite)> =
        live.iter().filter_map(|write| write.cursor.as_ref().map(|cursor| (&write.fence, cursor))).collect();
    let (new, moved): (Vec<_>, Vec<_>) =
        cursors.into_iter().partition(|(_, cursor)| cursor.expect_next.is_none());
    if !new.is_empty() {
        let done = bind_cursors(
            sqlx::query(
                "-- write_cursors: create
                INSERT INTO submitter_nonce_cursor
                    (chain_id, submitter, fencing_token, start_nonce, next_nonce, in_flight_tx_id, in_flight_nonce,
                     in_flight_state, protect_reason, max_in_flight, delegated, open_from)
                SELECT u.chain_id, u.submitter, u.token, u.start_nonce, u.next_nonce, u.tx_id, u.nonce,
                       u.state, u.reason, u.max_in_flight, u.delegated, u.open_from
                FROM unnest($1::BIGINT[], $2::TEXT[], $3::BIGINT[], $4::BIGINT[], $5::BIGINT[], $6::BIGINT[],
                            $7::UUID[], $8::BIGINT[], $9::TEXT[], $10::TEXT[], $11::INT[], $12::BOOLEAN[],
                            $13::BOOLEAN[], $14::BIGINT[])
                  AS u (chain_id, submitter, token, expect_next, start_nonce, next_nonce, tx_id, nonce, state, reason,
                        max_in_flight, expect_protected, delegated, open_from)
                ON CONFLICT (chain_id, submitter) DO NOTHING",
            ),
            &new,
        )
        .execute(&mut **tx)
        .await
        .map_err(StoreError::db("write_cursors"))?;
        ensure_rows("write_cursors: create", new.len(), done.rows_affected() as usize)?;
    }
    if !moved.is_empty() {
        let done = bind_cursors(
            sqlx::query(
                "-- write_cursors: move
                UPDATE submitter_nonce_cursor c
                SET fencing_token = u.token,
                    start_nonce = u.start_nonce,
                    next_nonce = u.next_nonce,
                    in_flight_tx_id = u.tx_id,
                    in_flight_nonce = u.nonce,
                    in_flight_state = u.state,
                    protect_reason = u.reason,
                    max_in_flight = u.max_in_flight,
                    delegated = u.delegated,
                    open_from = u.open_from,
                    updated_at = clock_timestamp()
                FROM unnest($1::BIGINT[], $2::TEXT[], $3::BIGINT[], $4::BIGINT[], $5::BIGINT[], $6::BIGINT[],
                            $7::UUID[], $8::BIGINT[], $9::TEXT[], $10::TEXT[], $11::INT[], $12::BOOLEAN[],
                            $13::BOOLEAN[], $14::BIGINT[])
                  AS u (chain_id, submitter, token, expect_next, start_nonce, next_nonce, tx_id, nonce, state, reason,
                        max_in_flight, expect_protected, delegated, open_from)
                WHERE c.chain_id = u.chain_id AND c.submitter = u.submitter AND c.next_nonce = u.expect_next
                  AND (c.in_flight_state = 'PROTECT') = u.expect_protected",
            ),
            &moved,
        )
        .execute(&mut **tx)
        .await
        .map_err(StoreError::db("write_cursors"))?;
        ensure_rows("write_cursors: move", moved.len(), done.rows_affected() as usize)?;
    }
    Ok(())
}

type Query<'q> = sqlx::query::Query<'q, Postgres, sqlx::postgres::PgArguments>;

fn bind_cursors<'q>(query: Query<'q>, cursors: &[(&Fence, &CursorWrite)]) -> Query<'q> {
    let column = |get: fn(&Fence, &CursorWrite) -> i64| -> Vec<i64> {
        cursors.iter().map(|(fence, cursor)| get(fence, cursor)).collect()
    };
    query
        .bind(column(|fence, _| fence.key.chain_id.as_i64()))
        .bind(cursors.iter().map(|(fence, _)| fence.key.address_text()).collect::<Vec<_>>())
        .bind(column(|fence, _| fence.token.as_i64()))
        .bind(cursors.iter().map(|(_, cursor)| cursor.expect_next.map(Nonce::as_i64)).collect::<Vec<_>>())
        .bind(column(|_, cursor| cursor.start.as_i64()))
        .bind(column(|_, cursor| cursor.next.as_i64()))
        .bind(
            cursors.iter().map(|(_, cursor)| cursor.in_flight.map(|(tx_id, _)| tx_id.0)).collect::<Vec<_>>(),
        )
        .bind(
            cursors
                .iter()
                .map(|(_, cursor)| cursor.in_flight.map(|(_, nonce)| nonce.as_i64()))
                .collect::<Vec<_>>(),
        )
        .bind(cursors.iter().map(|(_, cursor)| cursor_state(cursor).to_owned()).collect::<Vec<_>>())
        .bind(cursors.iter().map(|(_, cursor)| cursor.protect.clone()).collect::<Vec<_>>())
        .bind(
            cursors
                .iter()
                .map(|(_, cursor)| i32::try_from(cursor.max_in_flight).unwrap_or(i32::MAX))
                .collect::<Vec<_>>(),
        )
        .bind(cursors.iter().map(|(_, cursor)| cursor.expect_protected).collect::<Vec<_>>())
        .bind(cursors.iter().map(|(_, cursor)| cursor.delegated).collect::<Vec<_>>())
        .bind(column(|_, cursor| cursor.open_from.as_i64()))
}

fn cursor_state(cursor: &CursorWrite) -> &'static str {
    match (&cursor.protect, cursor.in_flight) {
        (Some(_), _) => "PROTECT",
        (None, Some(_)) => "IN_FLIGHT",
        (None, None) => "IDLE",
    }
}
