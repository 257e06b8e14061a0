//! Direct SQL access of tests to the tables, without product code.

use ethers_core::types::H256;
use gapless_domain::{TxId, TxState};
use sqlx::PgPool;
use uuid::Uuid;

use crate::submitter::Submitter;

#[derive(Clone, Debug)]
pub struct TxRow {
    pub tx_id: TxId,
    pub state: TxState,
    pub sub_state: Option<String>,
    pub nonce: Option<u64>,
    pub tx_hash: Option<H256>,
    pub submit_attempts: u32,
    pub last_error: Option<String>,
    pub block_number: Option<u64>,
    pub fencing_token: Option<u64>,
}

#[derive(Clone, Debug)]
pub struct AttemptRow {
    pub nonce: u64,
    pub kind: String,
    pub tx_hash: H256,
    pub fencing_token: u64,
    pub sent: bool,
    pub displaced: bool,
    /// Class of the node's last response to sending it.
    pub last_outcome: Option<String>,
}

#[derive(Clone, Debug)]
pub struct LeaseRow {
    pub owner: Option<String>,
    pub fencing_token: u64,
    /// Not expired, by the database's clock.
    pub live: bool,
}

#[derive(Clone, Debug)]
pub struct CursorRow {
    pub start: u64,
    pub next: u64,
    /// IDLE, IN_FLIGHT or PROTECT.
    pub state: String,
    pub protect_reason: Option<String>,
}

/// Defines a struct that is read from the columns with the names of its fields. Like the derive macro of sqlx, for which
/// sqlx would be compiled twice.
#[macro_export]
macro_rules! row_struct {
    (
        $(#[$meta:meta])*
        $vis:vis struct $name:ident { $($(#[$doc:meta])* $column_vis:vis $column:ident: $type:ty,)* }
    ) => {
        $(#[$meta])*
        $vis struct $name {
            $($(#[$doc])* $column_vis $column: $type,)*
        }

        impl sqlx::FromRow<'_, sqlx::postgres::PgRow> for $name {
            fn from_row(row: &sqlx::postgres::PgRow) -> sqlx::Result<Self> {
                Ok($name { $($column: sqlx::Row::try_get(row, stringify!($column))?,)* })
            }
        }
    };
}

crate::row_struct! {
    struct RawTx {
        tx_id: Uuid,
        state: String,
        sub_state: Option<String>,
        nonce: Option<i64>,
        tx_hash: Option<Vec<u8>>,
        submit_attempts: i32,
        last_error: Option<String>,
        block_number: Option<i64>,
        fencing_token: Option<i64>,
    }
}

fn number(value: i64) -> u64 {
    u64::try_from(value).expect("these columns are never negative")
}

fn hash(bytes: Vec<u8>) -> H256 {
    H256(bytes.try_into().expect("32 bytes"))
}

impl From<RawTx> for TxRow {
    fn from(raw: RawTx) -> TxRow {
        TxRow {
            tx_id: TxId(raw.tx_id),
            state: raw.state.parse().expect("a known state"),
            sub_state: raw.sub_state,
            nonce: raw.nonce.map(number),
            tx_hash: raw.tx_hash.map(hash),
            submit_attempts: raw.submit_attempts.unsigned_abs(),
            last_error: raw.last_error,
            block_number: raw.block_number.map(number),
            fencing_token: raw.fencing_token.map(number),
        }
    }
}

/// Returns errors instead of panicking, because some tests stop the database.
pub(crate) async fn transaction(db: &PgPool, tx_id: TxId) -> Result<TxRow, sqlx::Error> {
    let raw: RawTx = sqlx::query_as(
        "SELECT tx_id, state, sub_state, nonce, tx_hash, submit_attempts, last_error, block_number, fencing_token
         FROM managed_tx
         WHERE tx_id = $1",
    )
    .bind(tx_id.0)
    .fetch_one(db)
    .await?;
    Ok(raw.into())
}

/// In the order of acceptance.
pub(crate) async fn transactions(db: &PgPool, submitter: &Submitter) -> Result<Vec<TxRow>, sqlx::Error> {
    let raw: Vec<RawTx> = sqlx::query_as(
        "SELECT tx_id, state, sub_state, nonce, tx_hash, submit_attempts, last_error, block_number, fencing_token
         FROM managed_tx
         WHERE submitter = $1
         ORDER BY seq",
    )
    .bind(submitter.bytes())
    .fetch_all(db)
    .await?;
    Ok(raw.into_iter().map(TxRow::from).collect())
}

pub(crate) async fn unfinished(db: &PgPool) -> Result<Vec<(Uuid, String)>, sqlx::Error> {
    sqlx::query_as("SELECT tx_id, state FROM managed_tx WHERE finished_at IS NULL ORDER BY seq")
        .fetch_all(db)
        .await
}

pub(crate) async fn missing(db: &PgPool, tx_ids: &[TxId]) -> Result<Vec<Uuid>, sqlx::Error> {
    let asked: Vec<Uuid> = tx_ids.iter().map(|tx_id| tx_id.0).collect();
    sqlx::query_scalar(
        "SELECT u.tx_id FROM unnest($1::UUID[]) AS u (tx_id) LEFT JOIN managed_tx t USING (tx_id) WHERE t.seq IS NULL",
    )
    .bind(asked)
    .fetch_all(db)
    .await
}

type RawAttempt = (i64, String, Vec<u8>, i64, bool, bool, Option<String>);

/// In the order of creation.
pub(crate) async fn attempts(db: &PgPool, tx_id: TxId) -> Result<Vec<AttemptRow>, sqlx::Error> {
    let raw: Vec<RawAttempt> = sqlx::query_as(
        "SELECT nonce, kind, tx_hash, fencing_token, last_outcome IS NOT NULL, displaced_at IS NOT NULL,
                last_outcome
         FROM tx_attempt
         WHERE tx_id = $1
         ORDER BY ordinal",
    )
    .bind(tx_id.0)
    .fetch_all(db)
    .await?;
    let row = |(nonce, kind, tx_hash, token, sent, displaced, last_outcome): RawAttempt| AttemptRow {
        nonce: number(nonce),
        kind,
        tx_hash: hash(tx_hash),
        fencing_token: number(token),
        sent,
        displaced,
        last_outcome,
    };
    Ok(raw.into_iter().map(row).collect())
}

pub(crate) async fn lease(db: &PgPool, submitter: &Submitter) -> Result<Option<LeaseRow>, sqlx::Error> {
    let raw: Option<(Option<String>, i64, bool)> = sqlx::query_as(
        "SELECT owner, fencing_token, expires_at > clock_timestamp() FROM submitter_lease WHERE submitter = $1",
    )
    .bind(submitter.bytes())
    .fetch_optional(db)
    .await?;
    Ok(raw.map(|(owner, token, live)| LeaseRow { owner, fencing_token: number(token), live }))
}

pub(crate) async fn cursor(db: &PgPool, submitter: &Submitter) -> Result<Option<CursorRow>, sqlx::Error> {
    let raw: Option<(i64, i64, String, Option<String>)> = sqlx::query_as(
        "SELECT start_nonce, next_nonce, in_flight_state, protect_reason
         FROM submitter_nonce_cursor
         WHERE submitter = $1",
    )
    .bind(submitter.bytes())
    .fetch_optional(db)
    .await?;
    Ok(raw.map(|(start, next, state, protect_reason)| CursorRow {
        start: number(start),
        next: number(next),
        state,
        protect_reason,
    }))
}
