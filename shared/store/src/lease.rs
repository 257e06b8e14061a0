//! Leases: temporary ownership of submitters. Claim, renew, release.
//!
//! A free or expired lease (plus the clock skew allowance) is claimed with token + 1; an own, live lease is renewed;
//! any other lease belongs to another worker. All times are the database's. Expiry is for liveness only; safety comes
//! from the fence's row lock.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;
use uuid::Uuid;

use super::error::StoreError;
use super::pool::Store;
use super::row::{self, StoredAddress};
use super::timeout_pool::PooledConnection;
use gapless_config as config;
use gapless_domain::{FencingToken, SubmitterKey, WorkerId};

/// State of a lease before it was claimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acquired {
    /// It never had an owner.
    Insert,
    /// Its last owner released it.
    Free,
    /// It expired.
    Takeover,
}

impl Acquired {
    pub fn as_str(self) -> &'static str {
        match self {
            Acquired::Insert => "insert",
            Acquired::Free => "free",
            Acquired::Takeover => "takeover",
        }
    }
}

/// Ownership of one submitter. Not `Clone`, private fields: only a claim makes one; `release` or a drop ends it.
#[derive(Debug)]
pub struct Lease {
    key: SubmitterKey,
    token: FencingToken,
    lease_id: Uuid,
    deadline: Deadline,
    acquired: Acquired,
}

/// A submitter that a worker can sign for.
#[derive(Clone, Copy, Debug)]
pub struct Announced<'a> {
    pub key: SubmitterKey,
    /// Kind of its signer.
    pub signer: &'a str,
    /// Others also use the key.
    pub shared: bool,
    /// Low-level mode: its nonces are assigned to `allocate` calls only.
    pub low_level: bool,
}

/// Handle of the renewal loop. It can only renew the lease.
#[derive(Clone, Debug)]
pub struct LeaseTag {
    key: SubmitterKey,
    token: FencingToken,
    lease_id: Uuid,
    deadline: Deadline,
}

/// The lease identity in a fenced write. Made from a `&Lease` only.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fence {
    pub(super) key: SubmitterKey,
    pub(super) token: FencingToken,
    pub(super) lease_id: Uuid,
}

/// Monotonic time until which this process may send for a submitter.
#[derive(Clone, Debug)]
pub(super) struct Deadline {
    base: Instant,
    micros: Arc<AtomicU64>,
}

impl Deadline {
    pub(super) fn starting(queried_at: Instant, valid_for: Duration) -> Self {
        let deadline = Deadline { base: queried_at, micros: Arc::new(AtomicU64::new(0)) };
        deadline.extend(queried_at, valid_for);
        deadline
    }

    pub(super) fn extend(&self, queried_at: Instant, valid_for: Duration) {
        let until = queried_at.saturating_duration_since(self.base) + valid_for;
        // Relaxed: no other data depends on it; a reader that sees the older value stops sending earlier.
        self.micros.fetch_max(u64::try_from(until.as_micros()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    pub(super) fn is_in_future(&self) -> bool {
        self.base.elapsed() < Duration::from_micros(self.micros.load(Ordering::Relaxed))
    }
}

/// Sending stops at 4/5 of the lease duration: a later send could still be running when the next owner starts. That
/// would be harmless (the next owner has the same bytes); the margin only avoids duplicate traffic.
pub(super) fn send_window(lease: &config::Lease) -> Duration {
    lease.duration - lease.duration / 5
}

impl Lease {
    pub fn key(&self) -> SubmitterKey {
        self.key
    }

    pub fn token(&self) -> FencingToken {
        self.token
    }

    /// Whether the last renewal is recent enough, by this process's monotonic clock, to send.
    pub fn may_send(&self) -> bool {
        self.deadline.is_in_future()
    }

    pub fn tag(&self) -> LeaseTag {
        let (key, token, lease_id) = (self.key, self.token, self.lease_id);
        LeaseTag { key, token, lease_id, deadline: self.deadline.clone() }
    }

    /// Its state before this process claimed it.
    pub fn acquired(&self) -> Acquired {
        self.acquired
    }

    pub(super) fn fence(&self) -> Fence {
        Fence { key: self.key, token: self.token, lease_id: self.lease_id }
    }
}

impl LeaseTag {
    /// Whether both refer to the same claim.
    pub fn same_lease(&self, other: &LeaseTag) -> bool {
        self.lease_id == other.lease_id
    }

    pub fn key(&self) -> SubmitterKey {
        self.key
    }

    pub fn token(&self) -> FencingToken {
        self.token
    }
}

type LeaseRow = (i64, StoredAddress, i64, Uuid, bool);

impl Store {
    /// Claims those of `wanted` that are free or expired. Rows that are locked by another transaction are skipped.
    pub async fn claim(
        &self,
        worker_id: &WorkerId,
        wanted: &[SubmitterKey],
        settings: &config::Lease,
    ) -> Result<Vec<Lease>, StoreError> {
        let (chains, submitters) = columns(wanted);
        let queried_at = Instant::now();
        let rows: Vec<LeaseRow> = sqlx::query_as(
            "-- claim
            WITH free AS (
                SELECT l.chain_id, l.submitter, l.owner IS NOT NULL AS expired
                FROM submitter_lease l
                JOIN unnest($1::BIGINT[], $2::BYTEA[]) AS w (chain_id, submitter)
                  ON l.chain_id = w.chain_id AND l.submitter = w.submitter
                WHERE l.expires_at <= clock_timestamp() - make_interval(secs => $5)
                ORDER BY l.chain_id, l.submitter
                FOR UPDATE OF l SKIP LOCKED
            )
            UPDATE submitter_lease l
            SET owner = $3,
                fencing_token = l.fencing_token + 1,
                lease_id = gen_random_uuid(),
                expires_at = clock_timestamp() + make_interval(secs => $4),
                wake_at = NULL,
                updated_at = clock_timestamp()
            FROM free f
            WHERE l.chain_id = f.chain_id AND l.submitter = f.submitter
            RETURNING l.chain_id, l.submitter, l.fencing_token, l.lease_id, f.expired",
        )
        .bind(chains)
        .bind(submitters)
        .bind(&worker_id.0)
        .bind(settings.duration.as_secs_f64())
        .bind(settings.clock_skew.as_secs_f64())
        .fetch_all(&self.pool)
        .await
        .map_err(StoreError::db("claim"))?;
        rows.into_iter()
            .map(|(chain_id, submitter, token, lease_id, expired)| {
                let cell = row::Cell { table: "submitter_lease", column: "fencing_token", id: &submitter };
                Ok(Lease {
                    key: row::key("submitter_lease", chain_id, submitter)?,
                    token: row::token(cell, token)?,
                    lease_id,
                    deadline: Deadline::starting(queried_at, send_window(settings)),
                    acquired: match (expired, token) {
                        (true, _) => Acquired::Takeover,
                        (false, 1) => Acquired::Insert,
                        (false, _) => Acquired::Free,
                    },
                })
            })
            .collect()
    }

    /// Renews all leases of a worker in one statement. Returns those that it no longer owns.
    pub async fn renew(
        &self,
        tags: &[LeaseTag],
        settings: &config::Lease,
    ) -> Result<Vec<LeaseTag>, StoreError> {
        let (chains, submitters) = columns(&tags.iter().map(|tag| tag.key).collect::<Vec<_>>());
        let lease_ids: Vec<Uuid> = tags.iter().map(|tag| tag.lease_id).collect();
        let queried_at = Instant::now();
        // Locked in the same order as by the fence: an UPDATE alone locks in any order and could deadlock.
        let renewed: Vec<(Uuid,)> = sqlx::query_as(
            "-- renew
            WITH mine AS (
                SELECT l.chain_id, l.submitter, l.lease_id
                FROM submitter_lease l
                JOIN unnest($1::BIGINT[], $2::BYTEA[], $3::UUID[]) AS u (chain_id, submitter, lease_id)
                  ON l.chain_id = u.chain_id AND l.submitter = u.submitter AND l.lease_id = u.lease_id
                WHERE l.expires_at > clock_timestamp() - make_interval(secs => $5)
                ORDER BY l.chain_id, l.submitter
                FOR NO KEY UPDATE OF l
            )
            UPDATE submitter_lease l
            SET expires_at = clock_timestamp() + make_interval(secs => $4), updated_at = clock_timestamp()
            FROM mine m
            WHERE l.chain_id = m.chain_id AND l.submitter = m.submitter AND l.lease_id = m.lease_id
            RETURNING l.lease_id",
        )
        .bind(chains)
        .bind(submitters)
        .bind(lease_ids)
        .bind(settings.duration.as_secs_f64())
        .bind(settings.clock_skew.as_secs_f64())
        .fetch_all(&self.pool)
        .await
        .map_err(StoreError::db("renew"))?;
        let renewed: std::collections::HashSet<Uuid> = renewed.into_iter().map(|(id,)| id).collect();
        let (owned, lost): (Vec<_>, Vec<_>) = tags.iter().partition(|tag| renewed.contains(&tag.lease_id));
        for tag in owned {
            tag.deadline.extend(queried_at, send_window(settings));
        }
        Ok(lost.into_iter().cloned().collect())
    }

    /// Releases leases, so that the next owner need not wait for them to expire. Consumes them. Leases that were lost
    /// meanwhile are skipped.
    pub async fn release(&self, leases: Vec<Lease>) -> Result<usize, StoreError> {
        let (chains, submitters) = columns(&leases.iter().map(|lease| lease.key).collect::<Vec<_>>());
        let lease_ids: Vec<Uuid> = leases.iter().map(|lease| lease.lease_id).collect();
        let done = sqlx::query(
            "-- release
            WITH mine AS (
                SELECT l.chain_id, l.submitter, l.lease_id
                FROM submitter_lease l
                JOIN unnest($1::BIGINT[], $2::BYTEA[], $3::UUID[]) AS u (chain_id, submitter, lease_id)
                  ON l.chain_id = u.chain_id AND l.submitter = u.submitter AND l.lease_id = u.lease_id
                ORDER BY l.chain_id, l.submitter
                FOR NO KEY UPDATE OF l
            )
            UPDATE submitter_lease l
            SET owner = NULL, lease_id = NULL, expires_at = '-infinity', wake_at = NULL, wake_pause_seconds = 0,
                updated_at = clock_timestamp()
            FROM mine m
            WHERE l.chain_id = m.chain_id AND l.submitter = m.submitter AND l.lease_id = m.lease_id",
        )
        .bind(chains)
        .bind(submitters)
        .bind(lease_ids)
        .execute(&self.pool)
        .await
        .map_err(StoreError::db("release"))?;
        Ok(usize::try_from(done.rows_affected()).unwrap_or(usize::MAX))
    }

    /// Records the submitters that this worker can sign for, with a free lease for each new one. Returns those that
    /// changed between shared and strict. One in PROTECT that becomes shared is released: external use of its key is
    /// now expected.
    pub async fn announce(
        &self,
        submitters: &[Announced<'_>],
    ) -> Result<Vec<(SubmitterKey, bool)>, StoreError> {
        let mut connection = self.pool.acquire().await.map_err(StoreError::db("announce"))?;
        let announced = self.pool.wait_for("announce", announce(&mut connection, submitters)).await;
        connection.release(&announced);
        announced
    }
}

async fn announce(
    connection: &mut PooledConnection,
    submitters: &[Announced<'_>],
) -> Result<Vec<(SubmitterKey, bool)>, StoreError> {
    let (chains, addresses) = columns(&submitters.iter().map(|one| one.key).collect::<Vec<_>>());
    let signers: Vec<String> = submitters.iter().map(|one| one.signer.to_owned()).collect();
    let shared: Vec<bool> = submitters.iter().map(|one| one.shared).collect();
    let low_level: Vec<bool> = submitters.iter().map(|one| one.low_level).collect();
    let mut tx = connection.begin().await.map_err(StoreError::db("announce"))?;
    let flipped: Vec<(i64, StoredAddress, bool)> = sqlx::query_as(
        "-- announce: flipped
        SELECT s.chain_id, s.submitter, u.shared
        FROM submitter s
        JOIN unnest($1::BIGINT[], $2::BYTEA[], $3::BOOLEAN[]) AS u (chain_id, submitter, shared)
          ON s.chain_id = u.chain_id AND s.submitter = u.submitter
        WHERE s.shared <> u.shared
        ORDER BY s.chain_id, s.submitter
        FOR NO KEY UPDATE OF s",
    )
    .bind(&chains)
    .bind(&addresses)
    .bind(&shared)
    .fetch_all(&mut *tx)
    .await
    .map_err(StoreError::db("announce"))?;
    sqlx::query(
        "-- announce: submitters
        INSERT INTO submitter (chain_id, submitter, signer, shared, low_level)
        SELECT u.chain_id, u.submitter, u.signer, u.shared, u.low_level
        FROM unnest($1::BIGINT[], $2::BYTEA[], $3::TEXT[], $4::BOOLEAN[], $5::BOOLEAN[])
            AS u (chain_id, submitter, signer, shared, low_level)
        ORDER BY u.chain_id, u.submitter
        ON CONFLICT (chain_id, submitter) DO UPDATE
        SET signer = EXCLUDED.signer, shared = EXCLUDED.shared, low_level = EXCLUDED.low_level,
            updated_at = clock_timestamp()
        WHERE (submitter.signer, submitter.shared, submitter.low_level)
              <> (EXCLUDED.signer, EXCLUDED.shared, EXCLUDED.low_level)",
    )
    .bind(&chains)
    .bind(&addresses)
    .bind(signers)
    .bind(&shared)
    .bind(low_level)
    .execute(&mut *tx)
    .await
    .map_err(StoreError::db("announce"))?;
    let now_shared: Vec<&(i64, StoredAddress, bool)> =
        flipped.iter().filter(|(_, _, shared)| *shared).collect();
    if !now_shared.is_empty() {
        sqlx::query(
            "-- announce: release
            INSERT INTO audit_log (chain_id, submitter, action, reason, actor)
            SELECT c.chain_id, c.submitter, 'release', 'its key is shared now (nonce.strict.enabled = false)', 'worker'
            FROM unnest($1::BIGINT[], $2::BYTEA[]) AS u (chain_id, submitter)
            JOIN submitter_nonce_cursor c ON c.chain_id = u.chain_id AND c.submitter = u.submitter
            WHERE c.in_flight_state = 'PROTECT'",
        )
        .bind(now_shared.iter().map(|(chain_id, ..)| *chain_id).collect::<Vec<_>>())
        .bind(now_shared.iter().map(|(_, submitter, _)| *submitter).collect::<Vec<_>>())
        .execute(&mut *tx)
        .await
        .map_err(StoreError::db("announce"))?;
    }
    sqlx::query(
        "-- announce: leases
        INSERT INTO submitter_lease (chain_id, submitter)
        SELECT u.chain_id, u.submitter
        FROM unnest($1::BIGINT[], $2::BYTEA[]) AS u (chain_id, submitter)
        ORDER BY u.chain_id, u.submitter
        ON CONFLICT (chain_id, submitter) DO NOTHING",
    )
    .bind(&chains)
    .bind(&addresses)
    .execute(&mut *tx)
    .await
    .map_err(StoreError::db("announce"))?;
    tx.commit().await.map_err(StoreError::db("announce"))?;
    let key = |(chain_id, submitter, shared): (i64, StoredAddress, bool)| {
        Ok((row::key("submitter", chain_id, submitter)?, shared))
    };
    flipped.into_iter().map(key).collect()
}

/// Splits keys into the two arrays that batched statements take.
pub(super) fn columns(keys: &[SubmitterKey]) -> (Vec<i64>, Vec<StoredAddress>) {
    keys.iter().map(|key| (key.chain_id.as_i64(), row::address(*key))).unzip()
}
