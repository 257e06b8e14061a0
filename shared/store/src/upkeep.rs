//! Queries of the cron duties: pruning, auditing idle sequences, backlog metrics.

use std::time::Duration;

use super::error::StoreError;
use super::pool::Store;
use super::row::{self, Cell, StoredAddress};
use gapless_domain::{BlockedReason, ChainId, Nonce, SubmitterKey};

/// The backlog of one chain.
#[derive(Clone, Copy, Debug)]
pub struct Backlog {
    pub chain_id: ChainId,
    pub queued: u64,
    /// Age of the oldest queued intent in seconds.
    pub oldest_age: f64,
    pub protected: u64,
    pub suspect: u64,
    pub stuck: u64,
    pub shared: u64,
    pub unmined: Open,
    pub tracking: Open,
}

/// Intents that have a nonce and are not final.
#[derive(Clone, Copy, Debug, Default)]
pub struct Open {
    pub count: u64,
    /// Seconds since the oldest got its nonce.
    pub oldest_age: f64,
}

/// A sequence without a lane.
#[derive(Clone, Copy, Debug)]
pub struct IdleSequence {
    pub key: SubmitterKey,
    pub next: Nonce,
    /// PROTECT or SUSPECT.
    pub stopped: bool,
}

/// Result of one pruning step.
#[derive(Clone, Copy, Debug)]
pub struct Pruned {
    pub removed: u64,
    /// The last submitter of this step; `None`: none were left.
    pub upto: Option<SubmitterKey>,
}

/// Deletes the intents selected by the CTE `$old` with their attempts, requests and reservations, then runs `$answer`.
macro_rules! delete_old {
    ($name:literal, $old:literal, $answer:literal) => {
        concat!(
            "-- ",
            $name,
            "
            WITH ",
            $old,
            ", attempts AS (
                DELETE FROM tx_attempt a USING old WHERE a.tx_id = old.tx_id
            ), requests AS (
                DELETE FROM tx_request r USING old WHERE r.tx_id = old.tx_id
            ), reservations AS (
                DELETE FROM nonce_reservation r USING old WHERE r.tx_id = old.tx_id
            ), intents AS (
                DELETE FROM managed_tx t USING old WHERE t.tx_id = old.tx_id
                RETURNING 1
            )
            ",
            $answer
        )
    };
}

impl Store {
    /// Deletes the oldest intents of up to 50 submitters, starting after `after`, that finished before the retention
    /// period, with their attempts. Works in nonce order and stops at the first intent that is retained, so that the
    /// rest of a sequence has no gaps.
    pub async fn prune_sequences(
        &self,
        retention: Duration,
        after: Option<SubmitterKey>,
    ) -> Result<Pruned, StoreError> {
        let (removed, chain_id, submitter): (i64, Option<i64>, Option<StoredAddress>) = sqlx::query_as(delete_old!(
            "prune_sequences",
            "page AS (
                SELECT chain_id, submitter, open_from
                FROM submitter_nonce_cursor
                WHERE (chain_id, submitter) > ($2, $3)
                ORDER BY chain_id, submitter
                LIMIT 50
            ), old AS (
                SELECT o.tx_id
                FROM page p
                CROSS JOIN LATERAL (
                    SELECT h.tx_id, bool_and(h.is_old) OVER (ORDER BY h.nonce) AS is_old
                    FROM (
                        SELECT t.tx_id, t.nonce,
                               coalesce(t.finished_at < clock_timestamp() - make_interval(secs => $1), FALSE) AS is_old
                        FROM managed_tx t
                        WHERE t.chain_id = p.chain_id AND t.submitter = p.submitter AND t.nonce < p.open_from
                        ORDER BY t.nonce
                        LIMIT 100
                    ) h
                ) o
                WHERE o.is_old
            )",
            "SELECT (SELECT count(*) FROM intents), p.chain_id, p.submitter
            FROM (SELECT 1) one
            LEFT JOIN (SELECT chain_id, submitter FROM page ORDER BY chain_id DESC, submitter DESC LIMIT 1) p ON TRUE"
        ))
        .bind(retention.as_secs_f64())
        .bind(after.map_or(0, |key| key.chain_id.as_i64()))
        .bind(after.map_or_else(Vec::new, |key| key.address.0.to_vec()))
        .fetch_one(&self.pool)
        .await
        .map_err(StoreError::db("prune_sequences"))?;
        let upto = chain_id.zip(submitter);
        let upto = upto.map(|(chain, submitter)| row::key("submitter_nonce_cursor", chain, submitter));
        Ok(Pruned { removed: removed.unsigned_abs(), upto: upto.transpose()? })
    }

    /// Deletes up to 1000 intents that ended without a nonce before the retention period. Returns zero if none are
    /// left. Ids start with their creation time by an API's clock (UUIDv7), so ids bound the scan; one hour allows
    /// for clock skew.
    pub async fn prune_unsent(&self, retention: Duration) -> Result<u64, StoreError> {
        let removed: i64 = sqlx::query_scalar(delete_old!(
            "prune_unsent",
            "old AS (
                SELECT tx_id
                FROM managed_tx
                WHERE nonce IS NULL AND finished_at < clock_timestamp() - make_interval(secs => $1)
                  AND tx_id < (lpad(to_hex(floor(1000 * (extract(epoch FROM clock_timestamp()) + 3600 - $1))::BIGINT), 12, '0')
                               || repeat('0', 20))::UUID
                ORDER BY tx_id
                LIMIT 1000
            )",
            "SELECT count(*) FROM intents"
        ))
        .bind(retention.as_secs_f64())
        .fetch_one(&self.pool)
        .await
        .map_err(StoreError::db("prune_unsent"))?;
        Ok(removed.unsigned_abs())
    }

    /// Deletes old records of external nonces if the submitter has no older intent: the audit starts at the oldest
    /// retained intent.
    pub async fn prune_external(&self, retention: Duration) -> Result<u64, StoreError> {
        let removed = sqlx::query(
            "-- prune_external
            DELETE FROM external_nonce e
            WHERE e.noted_at < clock_timestamp() - make_interval(secs => $1)
              AND NOT EXISTS (
                  SELECT 1 FROM managed_tx t
                  WHERE t.chain_id = e.chain_id AND t.submitter = e.submitter AND t.nonce < e.first_nonce)",
        )
        .bind(retention.as_secs_f64())
        .execute(&self.pool)
        .await
        .map_err(StoreError::db("prune_external"))?;
        Ok(removed.rows_affected())
    }

    /// Strict sequences without an owner. Shared ones are left out: they may lag behind the chain.
    pub async fn idle_sequences(&self) -> Result<Vec<IdleSequence>, StoreError> {
        let rows: Vec<(i64, StoredAddress, i64, bool)> = sqlx::query_as(
            "-- idle_sequences
            SELECT c.chain_id, c.submitter, c.next_nonce, c.in_flight_state = 'PROTECT' OR c.suspect_reason IS NOT NULL
            FROM submitter_nonce_cursor c
            JOIN submitter_lease l ON l.chain_id = c.chain_id AND l.submitter = c.submitter
            JOIN submitter s ON s.chain_id = c.chain_id AND s.submitter = c.submitter AND NOT s.shared
            WHERE l.expires_at <= clock_timestamp()
            ORDER BY c.chain_id, c.submitter",
        )
        .fetch_all(&self.pool)
        .await
        .map_err(StoreError::db("idle_sequences"))?;
        rows.into_iter()
            .map(|(chain_id, submitter, next, stopped)| {
                let cell = Cell { table: "submitter_nonce_cursor", column: "next_nonce", id: &submitter };
                Ok(IdleSequence {
                    key: row::key("submitter_nonce_cursor", chain_id, submitter)?,
                    next: row::nonce(cell, next)?,
                    stopped,
                })
            })
            .collect()
    }

    pub async fn submitters_of(&self, chain: ChainId) -> Result<Vec<SubmitterKey>, StoreError> {
        let rows: Vec<(i64, StoredAddress)> = sqlx::query_as(
            "-- submitters_of
            SELECT chain_id, submitter
            FROM submitter
            WHERE chain_id = $1
            ORDER BY submitter",
        )
        .bind(chain.as_i64())
        .fetch_all(&self.pool)
        .await
        .map_err(StoreError::db("submitters_of"))?;
        rows.into_iter().map(|(chain_id, submitter)| row::key("submitter", chain_id, submitter)).collect()
    }

    /// The longest time that the head of a queue has been blocked, in seconds, per chain and sub-state.
    pub async fn longest_blocked(&self) -> Result<Vec<(ChainId, BlockedReason, f64)>, StoreError> {
        let rows: Vec<(i64, Option<String>, f64)> = sqlx::query_as(
            "-- longest_blocked
            SELECT t.chain_id, t.sub_state, extract(epoch FROM clock_timestamp() - min(t.blocked_since))::FLOAT8
            FROM managed_tx t
            JOIN submitter s ON s.chain_id = t.chain_id AND s.submitter = t.submitter AND s.status = 'ACTIVE'
            WHERE t.queued AND t.blocked_since IS NOT NULL
            GROUP BY t.chain_id, t.sub_state",
        )
        .fetch_all(&self.pool)
        .await
        .map_err(StoreError::db("longest_blocked"))?;
        let mut blocked = Vec::new();
        for (chain_id, sub_state, age) in rows {
            let cell = Cell { table: "managed_tx", column: "chain_id", id: &"longest_blocked" };
            let Some(reason) = row::sub_state(sub_state.as_deref()).and_then(BlockedReason::of_sub_state)
            else {
                continue;
            };
            blocked.push((ChainId(cell.unsigned(chain_id)?), reason, age.max(0.0)));
        }
        Ok(blocked)
    }

    /// The backlog of each chain.
    pub async fn backlog(&self) -> Result<Vec<Backlog>, StoreError> {
        type Row = (i64, i64, f64, i64, i64, i64, i64, i64, f64, i64, f64);
        let rows: Vec<Row> = sqlx::query_as(
            "-- backlog
            SELECT s.chain_id,
                   coalesce(q.queued, 0),
                   coalesce(extract(epoch FROM clock_timestamp() - q.oldest), 0)::FLOAT8,
                   coalesce(p.protected, 0),
                   coalesce(p.suspect, 0),
                   coalesce(o.stuck, 0),
                   s.shared,
                   coalesce(o.unmined, 0),
                   coalesce(extract(epoch FROM clock_timestamp() - o.unmined_from), 0)::FLOAT8,
                   coalesce(o.tracking, 0),
                   coalesce(extract(epoch FROM clock_timestamp() - o.tracking_from), 0)::FLOAT8
            FROM (SELECT chain_id, count(*) FILTER (WHERE shared) AS shared FROM submitter GROUP BY chain_id) s
            -- Index-only scan of the queue; only the row of the oldest intent is read.
            LEFT JOIN (
                SELECT c.chain_id, c.queued, o.created_at AS oldest
                FROM (
                    SELECT chain_id, count(*) AS queued, min(seq) AS first
                    FROM managed_tx
                    WHERE queued
                    GROUP BY chain_id
                ) c
                LEFT JOIN LATERAL (
                    SELECT t.created_at
                    FROM managed_tx t
                    WHERE t.queued AND t.chain_id = c.chain_id AND t.seq = c.first
                    LIMIT 1
                ) o ON TRUE
            ) q ON q.chain_id = s.chain_id
            LEFT JOIN (
                SELECT chain_id, count(*) FILTER (WHERE in_flight_state = 'PROTECT') AS protected,
                       count(*) FILTER (WHERE suspect_reason IS NOT NULL) AS suspect
                FROM submitter_nonce_cursor
                WHERE in_flight_state = 'PROTECT' OR suspect_reason IS NOT NULL
                GROUP BY chain_id
            ) p ON p.chain_id = s.chain_id
            LEFT JOIN (
                SELECT c.chain_id,
                       count(*) FILTER (WHERE t.state = 'STUCK') AS stuck,
                       count(*) FILTER (WHERE t.state IN ('IN_FLIGHT', 'SUBMITTED', 'STUCK')) AS unmined,
                       min(t.prepared_at) FILTER (WHERE t.state IN ('IN_FLIGHT', 'SUBMITTED', 'STUCK')) AS unmined_from,
                       count(*) FILTER (WHERE t.state = 'TRACKING') AS tracking,
                       min(t.prepared_at) FILTER (WHERE t.state = 'TRACKING') AS tracking_from
                FROM submitter_nonce_cursor c
                CROSS JOIN LATERAL (
                    SELECT t.state, t.prepared_at
                    FROM managed_tx t
                    WHERE t.chain_id = c.chain_id AND t.submitter = c.submitter AND t.nonce >= c.open_from
                    ORDER BY t.nonce
                    LIMIT c.next_nonce - c.open_from) t
                WHERE c.has_open
                GROUP BY c.chain_id
            ) o ON o.chain_id = s.chain_id",
        )
        .fetch_all(&self.pool)
        .await
        .map_err(StoreError::db("backlog"))?;
        rows.into_iter()
            .map(|row| {
                let (chain_id, queued, oldest_age, protected, suspect, stuck, shared, ..) = row;
                let (.., unmined, unmined_age, tracking, tracking_age) = row;
                let chain =
                    Cell { table: "submitter", column: "chain_id", id: &"backlog" }.unsigned(chain_id)?;
                Ok(Backlog {
                    chain_id: ChainId(chain),
                    queued: queued.unsigned_abs(),
                    oldest_age,
                    protected: protected.unsigned_abs(),
                    suspect: suspect.unsigned_abs(),
                    stuck: stuck.unsigned_abs(),
                    shared: shared.unsigned_abs(),
                    unmined: Open { count: unmined.unsigned_abs(), oldest_age: unmined_age.max(0.0) },
                    tracking: Open { count: tracking.unsigned_abs(), oldest_age: tracking_age.max(0.0) },
                })
            })
            .collect()
    }
}
