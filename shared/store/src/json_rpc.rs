//! Reads for the JSON-RPC endpoint of the API.

use std::time::Duration;

use ethers_core::types::{H256, U256};
use serde::Deserialize;
use uuid::Uuid;

use super::attempt::AttemptKind;
use super::error::StoreError;
use super::lease::columns;
use super::pool::Store;
use super::row::{self, Cell, StoredHash};
use gapless_domain::{ChainId, Fees, Nonce, SubmitterKey, TxId, TxState};

/// Waiting intents of one submitter are counted up to this number.
const MAX_COUNTED: i64 = 1_000;

/// An attempt, without its signed bytes.
#[derive(Clone, Debug)]
pub struct AttemptByHash {
    pub tx_id: TxId,
    pub kind: AttemptKind,
    pub nonce: Nonce,
    pub gas_limit: U256,
    pub fees: Fees,
    /// Its nonce was consumed by another transaction.
    pub displaced: bool,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct GasParams {
    gas_limit: U256,
    fees: Fees,
}

/// Whether one more intent would get its nonce soon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartOutlook {
    /// The window has room for it, or nothing is known to the contrary.
    Soon,
    /// The window is full, and at the pace of its oldest transaction it would have to wait longer than the limit.
    Late { waiting: u64, window: u32 },
}

impl Store {
    /// The attempt with this hash, whatever became of it.
    pub async fn attempt_by_hash(
        &self,
        chain_id: ChainId,
        tx_hash: H256,
    ) -> Result<Option<AttemptByHash>, StoreError> {
        type Row = (Uuid, String, i64, serde_json::Value, bool);
        let found: Option<Row> = sqlx::query_as(
            "-- attempt_by_hash
            SELECT tx_id, kind, nonce, gas_params, displaced_at IS NOT NULL
            FROM tx_attempt
            WHERE chain_id = $1 AND tx_hash = $2",
        )
        .bind(chain_id.as_i64())
        .bind(StoredHash::from(tx_hash))
        .fetch_optional(&self.pool)
        .await
        .map_err(StoreError::db("attempt_by_hash"))?;
        let Some((tx_id, kind, nonce, gas_params, displaced)) = found else { return Ok(None) };
        let id = tx_id.to_string();
        let cell = |column| Cell { table: "tx_attempt", column, id: &id };
        let GasParams { gas_limit, fees } = cell("gas_params").json(gas_params)?;
        Ok(Some(AttemptByHash {
            tx_id: TxId(tx_id),
            kind: cell("kind").parse(&kind)?,
            nonce: row::nonce(cell("nonce"), nonce)?,
            gas_limit,
            fees,
            displaced,
        }))
    }

    /// The state of an intent and the hash that its client gets: that of its first attempt, also after a replacement or a
    /// cancellation. `None`: there is no such intent.
    pub async fn first_hash(&self, tx_id: TxId) -> Result<Option<(TxState, Option<H256>)>, StoreError> {
        let found: Option<(String, Option<StoredHash>)> = sqlx::query_as(
            "-- first_hash
            SELECT t.state, (
                SELECT a.tx_hash FROM tx_attempt a
                WHERE a.tx_id = t.tx_id AND a.kind <> 'PLACEHOLDER' AND a.displaced_at IS NULL
                ORDER BY a.ordinal LIMIT 1)
            FROM managed_tx t
            WHERE t.tx_id = $1",
        )
        .bind(tx_id.0)
        .fetch_optional(&self.pool)
        .await
        .map_err(StoreError::db("first_hash"))?;
        let Some((state, hash)) = found else { return Ok(None) };
        let state = Cell { table: "managed_tx", column: "state", id: &tx_id }.parse(&state)?;
        Ok(Some((state, hash.map(H256::from))))
    }

    /// `None` before the first use of the key.
    pub async fn next_nonce(&self, key: SubmitterKey) -> Result<Option<Nonce>, StoreError> {
        let next: Option<i64> = sqlx::query_scalar(
            "-- next_nonce
            SELECT next_nonce FROM submitter_nonce_cursor WHERE chain_id = $1 AND submitter = $2",
        )
        .bind(key.chain_id.as_i64())
        .bind(row::address(key))
        .fetch_optional(&self.pool)
        .await
        .map_err(StoreError::db("next_nonce"))?;
        let cell = Cell { table: "submitter_nonce_cursor", column: "next_nonce", id: &key };
        next.map(|next| row::nonce(cell, next)).transpose()
    }

    /// Those of these intents that have a hash, with it, or that are final or deleted. As `first_hash`.
    pub async fn started(&self, tx_ids: &[TxId]) -> Result<Vec<(TxId, Option<H256>)>, StoreError> {
        let found: Vec<(Uuid, Option<StoredHash>)> = sqlx::query_as(
            "-- started
            SELECT u.tx_id, CASE WHEN t.finished_at IS NULL THEN a.tx_hash END
            FROM unnest($1::UUID[]) AS u (tx_id)
            LEFT JOIN managed_tx t ON t.tx_id = u.tx_id
            LEFT JOIN LATERAL (
                SELECT a.tx_hash FROM tx_attempt a
                WHERE a.tx_id = t.tx_id AND NOT t.queued AND a.kind <> 'PLACEHOLDER' AND a.displaced_at IS NULL
                ORDER BY a.ordinal LIMIT 1) a ON TRUE
            WHERE t.tx_id IS NULL OR a.tx_hash IS NOT NULL OR t.finished_at IS NOT NULL",
        )
        .bind(tx_ids.iter().map(|tx_id| tx_id.0).collect::<Vec<Uuid>>())
        .fetch_all(&self.pool)
        .await
        .map_err(StoreError::db("started"))?;
        Ok(found.into_iter().map(|(tx_id, hash)| (TxId(tx_id), hash.map(H256::from))).collect())
    }

    /// Whether another intent of each submitter would probably get its nonce within `limit`, in the order of `keys`. While
    /// the window is full, an intent waits for `ahead` others to leave it. If the oldest one is there for a time t, the window
    /// of w nonces needs about t for w of them, and `ahead` times t / w for the others.
    pub async fn start_outlooks(
        &self,
        keys: &[SubmitterKey],
        limit: Duration,
    ) -> Result<Vec<StartOutlook>, StoreError> {
        let (chains, submitters) = columns(keys);
        let found: Vec<(i64, i32, i64)> = sqlx::query_as(
            "-- start_outlooks
            SELECT u.ord, c.max_in_flight, q.waiting
            FROM unnest($1::BIGINT[], $2::BYTEA[]) WITH ORDINALITY AS u (chain_id, submitter, ord)
            JOIN submitter_nonce_cursor c ON c.chain_id = u.chain_id AND c.submitter = u.submitter
            CROSS JOIN LATERAL (
                SELECT extract(epoch FROM clock_timestamp() - t.prepared_at)::FLOAT8 AS age
                FROM managed_tx t
                WHERE t.chain_id = c.chain_id AND t.submitter = c.submitter AND t.nonce = c.in_flight_nonce
            ) oldest
            CROSS JOIN LATERAL (
                SELECT count(*) AS waiting
                FROM (
                    SELECT FROM managed_tx t
                    WHERE t.chain_id = c.chain_id AND t.submitter = c.submitter AND t.queued
                    -- index order; otherwise the planner may choose a sequential scan
                    ORDER BY t.seq
                    LIMIT $3) capped
            ) q
            WHERE c.next_nonce - c.in_flight_nonce >= c.max_in_flight
              AND oldest.age * (q.waiting + 1) / greatest(c.max_in_flight, 1) > $4",
        )
        .bind(chains)
        .bind(submitters)
        .bind(MAX_COUNTED)
        .bind(limit.as_secs_f64())
        .fetch_all(&self.pool)
        .await
        .map_err(StoreError::db("start_outlooks"))?;
        let mut outlooks = vec![StartOutlook::Soon; keys.len()];
        for (ord, window, waiting) in found {
            if let Some(outlook) = usize::try_from(ord - 1).ok().and_then(|index| outlooks.get_mut(index)) {
                *outlook =
                    StartOutlook::Late { waiting: waiting.unsigned_abs(), window: window.unsigned_abs() };
            }
        }
        Ok(outlooks)
    }
}
