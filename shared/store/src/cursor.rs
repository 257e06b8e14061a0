//! The nonce cursor of a submitter, and its writes behind the fence: created here; updated by compare-and-set together
//! with the intents (`lanes`).

use sqlx::Postgres;
use sqlx::postgres::PgArguments;

use super::error::{StoreError, ensure_rows};
use super::fence::Tx;
use super::fenced::FencedWrite;
use super::lease::Fence;
use super::row;
use gapless_domain::{Nonce, TxId};

/// The nonce sequence of a submitter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cursor {
    pub start: Nonce,
    pub next: Nonce,
    /// Lowest nonce that may be open; equals `next` if none is.
    pub open_from: Nonce,
    /// The oldest intent that occupies the window. Not read: it follows from the open intents.
    pub in_flight: Option<(TxId, Nonce)>,
    /// The reason, if it is in PROTECT.
    pub protect: Option<String>,
    pub max_in_flight: u32,
    /// The account had delegated code (EIP-7702) when a lane last checked: nodes accept one pending transaction.
    pub delegated: bool,
}

impl Cursor {
    /// No nonce was assigned yet.
    pub fn starting_at(start: Nonce, max_in_flight: u32) -> Cursor {
        Cursor {
            start,
            next: start,
            open_from: start,
            in_flight: None,
            protect: None,
            max_in_flight,
            delegated: false,
        }
    }
}

/// Compare-and-set of a submitter's cursor.
#[derive(Clone, Debug)]
pub struct CursorWrite {
    /// The stored one: its nonce and whether it is in PROTECT are compared. `None`: there is none, and it is created.
    pub before: Option<Cursor>,
    pub after: Cursor,
}

impl CursorWrite {
    /// Whether the stored cursor must be in PROTECT.
    pub(super) fn was_protected(&self) -> bool {
        self.before.as_ref().is_some_and(|before| before.protect.is_some())
    }
}

pub(super) type FencedCursor<'a> = (&'a Fence, &'a CursorWrite);

/// The cursor writes for existing cursors, or for new ones.
pub(super) fn cursors<'a>(live: &[&'a FencedWrite], exist: bool) -> Vec<FencedCursor<'a>> {
    let all = live.iter().filter_map(|write| write.cursor.as_ref().map(|cursor| (&write.fence, cursor)));
    all.filter(|(_, cursor)| cursor.before.is_some() == exist).collect()
}

/// Creates the cursors of submitters that have none, possibly with their first nonces assigned.
pub(super) async fn create_cursors(tx: &mut Tx<'_>, live: &[&FencedWrite]) -> Result<(), StoreError> {
    let new = cursors(live, false);
    if new.is_empty() {
        return Ok(());
    }
    let done = bind_cursors(
        sqlx::query(
            "-- create_cursors
            INSERT INTO submitter_nonce_cursor
                (chain_id, submitter, fencing_token, start_nonce, next_nonce, in_flight_tx_id, in_flight_nonce,
                 in_flight_state, protect_reason, max_in_flight, delegated, open_from, protect_since)
            SELECT u.chain_id, u.submitter, u.token, u.start_nonce, u.next_nonce, u.tx_id, u.nonce,
                   u.state, u.reason, u.max_in_flight, u.delegated, u.open_from,
                   CASE WHEN u.reason IS NOT NULL THEN clock_timestamp() END
            FROM unnest($1::BIGINT[], $2::BYTEA[], $3::BIGINT[], $4::BIGINT[], $5::BIGINT[], $6::BIGINT[],
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
    .map_err(StoreError::db("create_cursors"))?;
    ensure_rows("create_cursors", new.len(), done.rows_affected() as usize)
}

pub(super) type Query<'q> = sqlx::query::Query<'q, Postgres, PgArguments>;

/// Binds the 14 columns of the cursors, in the order of both statements.
pub(super) fn bind_cursors<'q>(query: Query<'q>, cursors: &[FencedCursor<'_>]) -> Query<'q> {
    let column = |get: fn(&Fence, &CursorWrite) -> i64| -> Vec<i64> {
        cursors.iter().map(|(fence, cursor)| get(fence, cursor)).collect()
    };
    query
        .bind(column(|fence, _| fence.key.chain_id.as_i64()))
        .bind(cursors.iter().map(|(fence, _)| row::address(fence.key)).collect::<Vec<_>>())
        .bind(column(|fence, _| fence.token.as_i64()))
        .bind(
            cursors
                .iter()
                .map(|(_, cursor)| cursor.before.as_ref().map(|before| before.next.as_i64()))
                .collect::<Vec<_>>(),
        )
        .bind(column(|_, cursor| cursor.after.start.as_i64()))
        .bind(column(|_, cursor| cursor.after.next.as_i64()))
        .bind(
            cursors
                .iter()
                .map(|(_, cursor)| cursor.after.in_flight.map(|(tx_id, _)| tx_id.0))
                .collect::<Vec<_>>(),
        )
        .bind(
            cursors
                .iter()
                .map(|(_, cursor)| cursor.after.in_flight.map(|(_, nonce)| nonce.as_i64()))
                .collect::<Vec<_>>(),
        )
        .bind(cursors.iter().map(|(_, cursor)| cursor_state(&cursor.after).to_owned()).collect::<Vec<_>>())
        .bind(cursors.iter().map(|(_, cursor)| cursor.after.protect.clone()).collect::<Vec<_>>())
        .bind(
            cursors
                .iter()
                .map(|(_, cursor)| i32::try_from(cursor.after.max_in_flight).unwrap_or(i32::MAX))
                .collect::<Vec<_>>(),
        )
        .bind(cursors.iter().map(|(_, cursor)| cursor.was_protected()).collect::<Vec<_>>())
        .bind(cursors.iter().map(|(_, cursor)| cursor.after.delegated).collect::<Vec<_>>())
        .bind(column(|_, cursor| cursor.after.open_from.as_i64()))
}

fn cursor_state(cursor: &Cursor) -> &'static str {
    match (&cursor.protect, cursor.in_flight) {
        (Some(_), _) => "PROTECT",
        (None, Some(_)) => "IN_FLIGHT",
        (None, None) => "IDLE",
    }
}
