//! Coordination between workers: finding work, heartbeats and peers, duty leases.

use std::time::Duration;

use super::error::StoreError;
use super::load::seconds;
use super::pool::Store;
use super::row::{self, StoredAddress};
use gapless_config as config;
use gapless_domain::{ChainId, SubmitterKey, WorkerId};

/// A submitter that has work.
#[derive(Clone, Debug)]
pub struct Work {
    pub key: SubmitterKey,
    /// Its lease is free or expired.
    pub claimable: bool,
    /// Time until the lease expires if it is not renewed.
    pub free_in: Option<Duration>,
    /// Eligible intents wait for a nonce, and it is not paused.
    pub queued: bool,
    /// Intents with a nonce are open.
    pub open: bool,
    /// A request of an operator or a client is pending, or a reserving client has answered.
    pub action: bool,
    /// A queued intent can no longer start.
    pub late: bool,
    pub paused: bool,
    /// Its lease was released because its queue was blocked (`release_blocked`), nothing has changed since, and
    /// `wake_at` is in the future.
    pub asleep: bool,
    /// Its lease was last released because its queue was blocked.
    pub was_blocked: bool,
    /// Others also use the key.
    pub shared: bool,
    /// Time until the next queued intent of any submitter can no longer start.
    pub next_start_by: Option<Duration>,
}

/// A worker process according to its last heartbeat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    pub worker_id: WorkerId,
    pub lanes: u32,
    /// Submitters it may own at once.
    pub max_leases: u32,
    /// Time until it counts as gone without another heartbeat.
    pub lapses_in: Duration,
}

/// What a heartbeat states.
#[derive(Clone, Copy, Debug)]
pub struct Beat<'a> {
    /// Identifies the chains and addresses it serves.
    pub signer_set: &'a str,
    pub chains: &'a [ChainId],
    pub lanes: usize,
    pub max_leases: usize,
    /// It counts as gone after this time without another heartbeat.
    pub alive_for: Duration,
}

impl Store {
    /// Submitters with open or eligible intents, or with a pending request. A loose index scan: the cost grows with
    /// the number of busy submitters, not with queue lengths or finished intents.
    pub async fn find_work(&self, settings: &config::Lease) -> Result<Vec<Work>, StoreError> {
        type Row = (
            i64,
            StoredAddress,
            bool,
            Option<f64>,
            bool,
            bool,
            bool,
            bool,
            bool,
            bool,
            bool,
            bool,
            Option<f64>,
        );
        let rows: Vec<Row> = sqlx::query_as(
            "-- find_work
            WITH RECURSIVE queued AS (
                (SELECT chain_id, submitter FROM managed_tx
                 WHERE queued
                 ORDER BY chain_id, submitter LIMIT 1)
                UNION ALL
                SELECT n.chain_id, n.submitter
                FROM queued q
                CROSS JOIN LATERAL (
                    SELECT t.chain_id, t.submitter FROM managed_tx t
                    WHERE t.queued AND (t.chain_id, t.submitter) > (q.chain_id, q.submitter)
                    ORDER BY t.chain_id, t.submitter LIMIT 1
                ) n
            ), busy AS (
                SELECT b.chain_id, b.submitter, bool_or(b.queued) AS queued, bool_or(b.open) AS open,
                       bool_or(b.action) AS action, bool_or(b.late) AS late
                FROM (
                    SELECT chain_id, submitter, TRUE AS queued, FALSE AS open, FALSE AS action, FALSE AS late FROM queued
                    UNION ALL
                    SELECT chain_id, submitter, FALSE, TRUE, FALSE, FALSE FROM submitter_nonce_cursor WHERE has_open
                    UNION ALL
                    SELECT chain_id, submitter, FALSE, FALSE, TRUE, FALSE FROM audit_log WHERE applied_at IS NULL
                    UNION ALL
                    SELECT chain_id, submitter, FALSE, FALSE, TRUE, FALSE FROM tx_request
                    -- With a token: the owner has seen it and is working on it; the intent is reported as open.
                    WHERE applied_at IS NULL AND fencing_token IS NULL
                    UNION ALL
                    SELECT chain_id, submitter, FALSE, FALSE, TRUE, FALSE FROM nonce_reservation
                    WHERE state = 'RESERVED' AND answered_at IS NOT NULL AND noted_at IS NULL
                    UNION ALL
                    -- A stable time, because the index is not used with a volatile one.
                    SELECT chain_id, submitter, FALSE, FALSE, FALSE, TRUE FROM managed_tx
                    WHERE queued AND start_by <= statement_timestamp() AND history IS NULL
                ) b
                GROUP BY b.chain_id, b.submitter
            )
            SELECT b.chain_id, b.submitter,
                   l.expires_at <= clock_timestamp() - make_interval(secs => $1) AS claimable,
                   CASE WHEN isfinite(l.expires_at)
                        THEN extract(epoch FROM l.expires_at - clock_timestamp())::FLOAT8 + $1 END AS free_in,
                   -- ORDER BY forces the index: while one queue is long, the planner expects any row to match and would
                   -- answer a plain EXISTS with a sequential scan.
                   b.queued AND s.status = 'ACTIVE' AND (
                       SELECT t.seq FROM managed_tx t
                       WHERE t.chain_id = b.chain_id AND t.submitter = b.submitter AND t.queued
                         AND (t.not_before IS NULL OR t.not_before <= clock_timestamp())
                       ORDER BY t.seq LIMIT 1) IS NOT NULL AS queued,
                   b.open, b.action, b.late,
                   s.status = 'PAUSED' AS paused, s.shared,
                   CASE WHEN l.wake_at > clock_timestamp() AND NOT b.open AND NOT b.action AND NOT b.late AND s.updated_at <= l.blocked_at
                        THEN coalesce((
                            SELECT t.seq FROM managed_tx t
                            WHERE t.chain_id = b.chain_id AND t.submitter = b.submitter AND t.queued
                            ORDER BY t.seq DESC LIMIT 1) <= l.blocked_seq, FALSE)
                        ELSE FALSE END AS asleep,
                   l.wake_pause_seconds > 0 AS was_blocked,
                   (SELECT extract(epoch FROM min(start_by) - statement_timestamp())::FLOAT8
                    FROM managed_tx WHERE queued AND start_by > statement_timestamp()) AS next_start_by
            FROM busy b
            JOIN submitter_lease l ON l.chain_id = b.chain_id AND l.submitter = b.submitter
            JOIN submitter s ON s.chain_id = b.chain_id AND s.submitter = b.submitter",
        )
        .bind(settings.clock_skew.as_secs_f64())
        .fetch_all(&self.pool)
        .await
        .map_err(StoreError::db("find_work"))?;
        rows.into_iter()
            .map(
                |(
                    chain_id,
                    submitter,
                    claimable,
                    free_in,
                    queued,
                    open,
                    action,
                    late,
                    paused,
                    shared,
                    asleep,
                    was_blocked,
                    next_start_by,
                )| {
                    let key = row::key("submitter", chain_id, submitter)?;
                    let free_in = free_in.filter(|_| !claimable).map(|left| seconds(Some(left)));
                    Ok(Work {
                        key,
                        claimable,
                        free_in,
                        queued,
                        open,
                        action,
                        late,
                        paused,
                        asleep,
                        was_blocked,
                        shared,
                        next_start_by: next_start_by.map(|left| seconds(Some(left))),
                    })
                },
            )
            .collect()
    }

    /// Writes this worker's heartbeat.
    pub async fn heartbeat(&self, worker_id: &WorkerId, beat: &Beat<'_>) -> Result<(), StoreError> {
        sqlx::query(
            // Asynchronous commit: a heartbeat lost in a crash is followed by another.
            "-- heartbeat
            WITH lightly AS (SELECT set_config('synchronous_commit', 'off', TRUE))
            INSERT INTO worker (worker_id, signer_set, lanes, max_leases, chains, expires_at)
            SELECT $1, $2, $3, $4, $5, clock_timestamp() + make_interval(secs => $6) FROM lightly
            ON CONFLICT (worker_id) DO UPDATE
            SET signer_set = EXCLUDED.signer_set, lanes = EXCLUDED.lanes, max_leases = EXCLUDED.max_leases,
                chains = EXCLUDED.chains, seen_at = clock_timestamp(),
                expires_at = clock_timestamp() + make_interval(secs => $6)",
        )
        .bind(&worker_id.0)
        .bind(beat.signer_set)
        .bind(i32::try_from(beat.lanes).unwrap_or(i32::MAX))
        .bind(i32::try_from(beat.max_leases).unwrap_or(i32::MAX))
        .bind(beat.chains.iter().map(|chain_id| chain_id.as_i64()).collect::<Vec<_>>())
        .bind(beat.alive_for.as_secs_f64())
        .execute(&self.pool)
        .await
        .map_err(StoreError::db("heartbeat"))?;
        Ok(())
    }

    /// Replaces this worker's halted chains. A halt that other live workers have found before began with theirs.
    pub async fn note_halts(
        &self,
        worker_id: &WorkerId,
        halts: &[(ChainId, String)],
    ) -> Result<(), StoreError> {
        let (chains, reasons): (Vec<i64>, Vec<&str>) =
            halts.iter().map(|(chain_id, reason)| (chain_id.as_i64(), reason.as_str())).unzip();
        sqlx::query(
            "-- note_halts
            WITH over AS (
                DELETE FROM chain_halt WHERE worker_id = $1 AND chain_id <> ALL ($2::BIGINT[])
            )
            INSERT INTO chain_halt (chain_id, worker_id, reason, since)
            SELECT u.chain_id, $1, u.reason, coalesce((
                       SELECT min(h.since)
                       FROM chain_halt h
                       JOIN worker w ON w.worker_id = h.worker_id
                       WHERE h.chain_id = u.chain_id AND w.expires_at > clock_timestamp()), clock_timestamp())
            FROM unnest($2::BIGINT[], $3::TEXT[]) AS u (chain_id, reason)
            ON CONFLICT (chain_id, worker_id) DO UPDATE
            SET reason = EXCLUDED.reason
            WHERE chain_halt.reason <> EXCLUDED.reason",
        )
        .bind(&worker_id.0)
        .bind(chains)
        .bind(reasons)
        .execute(&self.pool)
        .await
        .map_err(StoreError::db("note_halts"))?;
        Ok(())
    }

    /// Workers with the same signer set and a recent heartbeat.
    pub async fn peers(&self, signer_set: &str, alive_within: Duration) -> Result<Vec<Peer>, StoreError> {
        let rows: Vec<(String, i32, i32, f64)> = sqlx::query_as(
            "-- peers
            SELECT worker_id, lanes, max_leases,
                   extract(epoch FROM seen_at - clock_timestamp())::FLOAT8 + $2 AS lapses_in
            FROM worker
            WHERE signer_set = $1 AND seen_at > clock_timestamp() - make_interval(secs => $2)
            ORDER BY worker_id",
        )
        .bind(signer_set)
        .bind(alive_within.as_secs_f64())
        .fetch_all(&self.pool)
        .await
        .map_err(StoreError::db("peers"))?;
        let count = |number: i32| number.max(0).unsigned_abs();
        let peer = |(worker_id, lanes, max, lapses_in): (String, i32, i32, f64)| Peer {
            worker_id: WorkerId(worker_id),
            lanes: count(lanes),
            max_leases: count(max),
            lapses_in: seconds(Some(lapses_in)),
        };
        Ok(rows.into_iter().map(peer).collect())
    }

    /// Removes this worker's heartbeat row, and rows without a heartbeat for a day, with their halted chains.
    pub async fn deregister(&self, worker_id: &WorkerId) -> Result<(), StoreError> {
        sqlx::query(
            "-- deregister
            WITH gone AS (
                DELETE FROM worker
                WHERE worker_id = $1 OR seen_at < clock_timestamp() - INTERVAL '1 day'
                RETURNING worker_id
            )
            DELETE FROM chain_halt WHERE worker_id IN (SELECT worker_id FROM gone)",
        )
        .bind(&worker_id.0)
        .execute(&self.pool)
        .await
        .map_err(StoreError::db("deregister"))?;
        Ok(())
    }

    /// Acquires or renews a duty lease. True: this process owns it for `duration`.
    pub async fn hold_duty(
        &self,
        duty: &str,
        worker_id: &WorkerId,
        duration: Duration,
    ) -> Result<bool, StoreError> {
        let owner: Option<(String,)> = sqlx::query_as(
            "-- hold_duty
            INSERT INTO duty_lease AS d (duty, owner, expires_at)
            VALUES ($1, $2, clock_timestamp() + make_interval(secs => $3))
            ON CONFLICT (duty) DO UPDATE
            SET owner = EXCLUDED.owner, expires_at = EXCLUDED.expires_at
            WHERE d.owner = EXCLUDED.owner OR d.expires_at <= clock_timestamp()
            RETURNING owner",
        )
        .bind(duty)
        .bind(&worker_id.0)
        .bind(duration.as_secs_f64())
        .fetch_optional(&self.pool)
        .await
        .map_err(StoreError::db("hold_duty"))?;
        Ok(owner.is_some())
    }

    /// Claims one scheduled run of a duty. True for exactly one process per scheduled time.
    pub async fn take_run(
        &self,
        duty: &str,
        worker_id: &WorkerId,
        scheduled: chrono::DateTime<chrono::Utc>,
    ) -> Result<bool, StoreError> {
        let taken = sqlx::query(
            "-- take_run
            UPDATE duty_lease
            SET last_run = $3
            WHERE duty = $1 AND owner = $2 AND expires_at > clock_timestamp() AND last_run < $3",
        )
        .bind(duty)
        .bind(&worker_id.0)
        .bind(scheduled)
        .execute(&self.pool)
        .await
        .map_err(StoreError::db("take_run"))?;
        Ok(taken.rows_affected() == 1)
    }

    /// Releases all duty leases of a process.
    pub async fn drop_duties(&self, worker_id: &WorkerId) -> Result<(), StoreError> {
        sqlx::query("-- drop_duties\nUPDATE duty_lease SET expires_at = '-infinity' WHERE owner = $1")
            .bind(&worker_id.0)
            .execute(&self.pool)
            .await
            .map_err(StoreError::db("drop_duties"))?;
        Ok(())
    }

    /// The database's clock; duties are scheduled by it.
    pub async fn now(&self) -> Result<chrono::DateTime<chrono::Utc>, StoreError> {
        sqlx::query_scalar("SELECT clock_timestamp()")
            .fetch_one(&self.pool)
            .await
            .map_err(StoreError::db("now"))
    }
}
