//! Reads of submitters for clients and operators.

use chrono::{DateTime, Utc};
use uuid::Uuid;

use super::error::StoreError;
use super::lease::columns;
use super::operator::SubmitterStatus;
use super::pool::Store;
use super::row::{self, Cell, StoredAddress};
use super::waiting::{FactsRow, LaterStart, waiting_columns, waiting_joins};
use gapless_domain::waiting::SubmitterFacts;
use gapless_domain::{BlockedReason, ChainId, Nonce, SubmitterKey, TxId};

/// Queues are counted up to this limit: an exact count of a long queue costs as much as reading it.
pub const QUEUE_DEPTH_CAP: u64 = 10_000;

#[derive(Clone, Debug, PartialEq)]
pub struct SubmitterView {
    pub key: SubmitterKey,
    pub signer: String,
    pub status: SubmitterStatus,
    pub status_reason: Option<String>,
    /// Set while the submitter is in PROTECT.
    pub protect_reason: Option<String>,
    /// Set while the submitter is SUSPECT: a consumed nonce is not attributed to a transaction.
    pub suspect_reason: Option<String>,
    pub suspect_since: Option<DateTime<Utc>>,
    /// Set while the first eligible intent of the queue waits for funds, a fee, a node or a signer.
    pub blocked: Option<BlockedView>,
    /// Why the head of its queue waits, with everything that stops the submitter.
    pub facts: SubmitterFacts,
    /// At most `QUEUE_DEPTH_CAP`, which means "this many or more".
    pub queue_depth: u64,
    pub oldest_queued_age_seconds: Option<f64>,
    pub in_flight: u64,
    pub max_in_flight: Option<u32>,
    /// Others also use the key.
    pub shared: bool,
    /// Its account had delegated code (EIP-7702) when its lane last checked.
    pub delegated: bool,
    /// Low-level mode: its nonces are assigned to `allocate` calls only.
    pub low_level: bool,
    /// For admins only. `None` before the first use.
    pub next_nonce: Option<Nonce>,
    pub created_at: DateTime<Utc>,
    pub updated_at: DateTime<Utc>,
}

/// Why a submitter's queue is blocked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockedView {
    pub tx_id: TxId,
    pub reason: BlockedReason,
    /// Error text of the intent.
    pub error: Option<String>,
    pub since: DateTime<Utc>,
}

row::row_struct! {
    struct SubmitterRow {
        chain_id: i64,
        submitter: StoredAddress,
        signer: String,
        status: String,
        status_reason: Option<String>,
        max_in_flight: Option<i32>,
        shared: bool,
        delegated: bool,
        low_level: bool,
        created_at: DateTime<Utc>,
        updated_at: DateTime<Utc>,
        protect_reason: Option<String>,
        suspect_reason: Option<String>,
        suspect_since: Option<DateTime<Utc>>,
        blocked_tx: Option<Uuid>,
        blocked_sub_state: Option<String>,
        blocked_error: Option<String>,
        blocked_since: Option<DateTime<Utc>>,
        next_nonce: Option<i64>,
        queue_depth: i64,
        oldest_age: Option<f64>,
        oldest_created_at: Option<DateTime<Utc>>,
        oldest_not_before: Option<DateTime<Utc>>,
        in_flight: i64,
    } + { facts: FactsRow }
}

macro_rules! select_submitter {
    ($name:literal, $rest:literal) => {
        concat!(
            "-- ",
            $name,
            "
            SELECT s.chain_id, s.submitter, s.signer, s.status, s.status_reason, s.max_in_flight, s.shared, s.low_level,
                   s.created_at, s.updated_at, coalesce(c.delegated, FALSE) AS delegated, c.protect_reason, c.next_nonce,
                   c.suspect_reason, c.suspect_since,
                   b.tx_id AS blocked_tx, b.sub_state AS blocked_sub_state, b.last_error AS blocked_error, b.blocked_since,
                   q.queue_depth, h.oldest_age, h.oldest_created_at, h.oldest_not_before, f.in_flight, ",
            waiting_columns!(),
            "
            FROM submitter s
            LEFT JOIN submitter_nonce_cursor c ON c.chain_id = s.chain_id AND c.submitter = s.submitter
            ",
            waiting_joins!(),
            "CROSS JOIN LATERAL (
                SELECT count(*) AS queue_depth
                FROM (
                    SELECT
                    FROM managed_tx t
                    WHERE t.chain_id = s.chain_id AND t.submitter = s.submitter AND t.queued
                    LIMIT $1) capped) q
            LEFT JOIN LATERAL (
                SELECT extract(epoch FROM clock_timestamp() - t.created_at)::FLOAT8 AS oldest_age,
                       t.created_at AS oldest_created_at,
                       CASE WHEN t.not_before > clock_timestamp() THEN t.not_before END AS oldest_not_before
                FROM managed_tx t
                WHERE t.chain_id = s.chain_id AND t.submitter = s.submitter AND t.queued
                ORDER BY t.seq
                LIMIT 1) h ON TRUE
            LEFT JOIN LATERAL (
                SELECT t.tx_id, t.sub_state, t.last_error, t.blocked_since
                FROM managed_tx t
                WHERE t.chain_id = s.chain_id AND t.submitter = s.submitter AND t.queued AND t.blocked_since IS NOT NULL
                ORDER BY t.seq
                LIMIT 1) b ON TRUE
            ",
            $rest
        )
    };
}

impl Store {
    pub async fn get_submitter(&self, key: SubmitterKey) -> Result<Option<SubmitterView>, StoreError> {
        let row: Option<SubmitterRow> =
            sqlx::query_as(select_submitter!("get_submitter", "WHERE s.chain_id = $2 AND s.submitter = $3"))
                .bind(cap())
                .bind(key.chain_id.as_i64())
                .bind(row::address(key))
                .fetch_optional(&self.pool)
                .await
                .map_err(StoreError::db("get_submitter"))?;
        row.map(SubmitterView::try_from).transpose()
    }

    /// Sorted by chain and address, starting after `after`; with `among`, only those submitters.
    pub async fn list_submitters(
        &self,
        chain_id: Option<ChainId>,
        among: Option<&[SubmitterKey]>,
        after: Option<SubmitterKey>,
        limit: u32,
    ) -> Result<Vec<SubmitterView>, StoreError> {
        let (chains, addresses) = among.map(columns).unzip();
        let rows: Vec<SubmitterRow> = sqlx::query_as(select_submitter!(
            "list_submitters",
            "WHERE ($2::BIGINT IS NULL OR s.chain_id = $2) AND (s.chain_id, s.submitter) > ($3, $4)
                AND ($6::BIGINT[] IS NULL
                     OR (s.chain_id, s.submitter) IN (SELECT * FROM unnest($6::BIGINT[], $7::BYTEA[])))
            ORDER BY s.chain_id, s.submitter
            LIMIT $5"
        ))
        .bind(cap())
        .bind(chain_id.map(ChainId::as_i64))
        .bind(after.map_or(0, |key| key.chain_id.as_i64()))
        .bind(after.map_or_else(Vec::new, |key| key.address.0.to_vec()))
        .bind(i64::from(limit))
        .bind(chains)
        .bind(addresses)
        .fetch_all(&self.pool)
        .await
        .map_err(StoreError::db("list_submitters"))?;
        rows.into_iter().map(SubmitterView::try_from).collect()
    }
}

fn cap() -> i64 {
    i64::try_from(QUEUE_DEPTH_CAP).expect("the cap is a small constant")
}

fn blocked(
    tx_id: Option<Uuid>,
    sub_state: Option<String>,
    error: Option<String>,
    since: Option<DateTime<Utc>>,
) -> Option<BlockedView> {
    let reason = BlockedReason::of_sub_state(row::sub_state(sub_state.as_deref())?)?;
    Some(BlockedView { tx_id: TxId(tx_id?), reason, error, since: since? })
}

impl TryFrom<SubmitterRow> for SubmitterView {
    type Error = StoreError;

    fn try_from(row: SubmitterRow) -> Result<Self, StoreError> {
        let cell = |column| Cell { table: "submitter", column, id: &row.submitter };
        let window =
            row.max_in_flight.map(|window| u32::try_from(window).map_err(|e| cell("max_in_flight").bad(e)));
        let later = row.oldest_created_at.zip(row.oldest_not_before);
        let later = later.map(|(created_at, not_before)| LaterStart { created_at, not_before });
        Ok(SubmitterView {
            facts: row.facts.read(later)?,
            key: row::key("submitter", row.chain_id, row.submitter)?,
            status: cell("status").parse(&row.status)?,
            queue_depth: cell("queue_depth").unsigned(row.queue_depth)?,
            in_flight: cell("in_flight").unsigned(row.in_flight)?,
            max_in_flight: window.transpose()?,
            next_nonce: row.next_nonce.map(|nonce| row::nonce(cell("next_nonce"), nonce)).transpose()?,
            shared: row.shared,
            delegated: row.delegated,
            signer: row.signer,
            low_level: row.low_level,
            status_reason: row.status_reason,
            protect_reason: row.protect_reason,
            suspect_reason: row.suspect_reason,
            suspect_since: row.suspect_since,
            blocked: blocked(row.blocked_tx, row.blocked_sub_state, row.blocked_error, row.blocked_since),
            oldest_queued_age_seconds: row.oldest_age,
            created_at: row.created_at,
            updated_at: row.updated_at,
        })
    }
}
