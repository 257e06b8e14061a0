//! Temporary ownership of submitters: claim, renew, release.
//!
//! Order of acquisition: free or expired (with the skew allowance) → taken with token + 1; own and live → renewed;
//! anything else → not ours. All times are the database's. Expiry is liveness; safety is the row lock of the fence.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;
use uuid::Uuid;

use super::error::StoreError;
use super::pool::Store;
use super::row;
use super::timeout_pool::PooledConnection;
use crate::config;
use crate::domain::{FencingToken, SubmitterKey, WorkerId};

/// What a lease was before a claim took it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acquired {
    /// Nobody ever owned the submitter.
    Insert,
    /// Its last owner gave it back.
    Free,
    /// It expired under its last owner.
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

/// Ownership of one submitter. Not `Clone`, private fields: it comes from a claim and ends in `release` or a drop.
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
    /// Others use the key as well.
    pub shared: bool,
    /// Its nonces are given by the low-level hook alone.
    pub low_level: bool,
}

/// What the renewal loop needs of a lease. It can prolong it, and nothing else.
#[derive(Clone, Debug)]
pub struct LeaseTag {
    key: SubmitterKey,
    token: FencingToken,
    lease_id: Uuid,
    deadline: Deadline,
}

/// The identity a fenced write carries. Made from a `&Lease` only.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fence {
    pub(super) key: SubmitterKey,
    pub(super) token: FencingToken,
    pub(super) lease_id: Uuid,
}

/// Monotonic time until which this process may send on behalf of a submitter.
#[derive(Clone, Debug)]
struct Deadline {
    base: Instant,
    micros: Arc<AtomicU64>,
}

impl Deadline {
    fn starting(asked_at: Instant, valid_for: Duration) -> Self {
        let deadline = Deadline { base: asked_at, micros: Arc::new(AtomicU64::new(0)) };
        deadline.prolong(asked_at, valid_for);
        deadline
    }

    fn prolong(&self, asked_at: Instant, valid_for: Duration) {
        let until = asked_at.saturating_duration_since(self.base) + valid_for;
        // Relaxed: the value stands alone; a reader that sees the older one merely stops earlier.
        self.micros.fetch_max(u64::try_from(until.as_micros()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    fn is_ahead(&self) -> bool {
        self.base.elapsed() < Duration::from_micros(self.micros.load(Ordering::Relaxed))
    }
}

/// A send started later than this before expiry could still be under way when the successor starts. It would be
/// harmless (the successor has the same bytes); the margin only keeps duplicate traffic rare.
fn send_window(lease: &config::Lease) -> Duration {
    lease.duration - lease.duration / 5
}

impl Lease {
    pub fn key(&self) -> SubmitterKey {
        self.key
    }

    pub fn token(&self) -> FencingToken {
        self.token
    }

    /// Whether the last renewal is recent enough, by this process's monotonic clock, to go on sending.
    pub fn may_send(&self) -> bool {
        self.deadline.is_ahead()
    }

    pub fn tag(&self) -> LeaseTag {
        let (key, token, lease_id) = (self.key, self.token, self.lease_id);
        LeaseTag { key, token, lease_id, deadline: self.deadline.clone() }
    }

    /// What it was before this process had it.
    pub fn acquired(&self) -> Acquired {
        self.acquired
    }

    pub(super) fn fence(&self) -> Fence {
        Fence { key: self.key, token: self.token, lease_id: self.lease_id }
    }
}

impl LeaseTag {
    /// Whether both name the same period of ownership.
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

type LeaseRow = (i64, String, i64, Uuid, bool);

impl Store {
    /// Takes those of `wanted` that are free or expired. Rows that someone else is taking or writing are skipped.
    pub async fn claim(
        &self,
        worker_id: &WorkerId,
        wanted: &[SubmitterKey],
        settings: &config::Lease,
    ) -> Result<Vec<Lease>, StoreError> {
        let (chains, submitters) = columns(wanted);
        let asked_at = Instant::now();
        let rows: Vec<LeaseRow> = sqlx::query_as(
            "-- claim
            WITH free AS (
                SELECT l.chain_id, l.submitter, l.owner_node IS NOT NULL AS expired
                FROM submitter_lease l
                JOIN unnest($1::BIGINT[], $2::TEXT[]) AS w (chain_id, submitter)
                  ON l.chain_id = w.chain_id AND l.submitter = w.submitter
                WHERE l.expires_at <= clock_timestamp() - make_interval(secs => $5)
                ORDER BY l.chain_id, l.submitter
                FOR UPDATE OF l SKIP LOCKED
            )
            UPDATE submitter_lease l
            SET owner_node = $3,
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
                    key: row::key("submitter_lease", chain_id, &submitter)?,
                    token: row::token(cell, token)?,
                    lease_id,
                    deadline: Deadline::starting(asked_at, send_window(settings)),
                    acquired: match (expired, token) {
                        (true, _) => Acquired::Takeover,
                        (false, 1) => Acquired::Insert,
                        (false, _) => Acquired::Free,
                    },
                })
            })
            .collect()
    }

    /// Prolongs all leases of a node in one statement. Returns those that are no longer ours.
    pub async fn renew(
        &self,
        tags: &[LeaseTag],
        settings: &config::Lease,
    ) -> Result<Vec<LeaseTag>, StoreError> {
        let (chains, submitters) = columns(&tags.iter().map(|tag| tag.key).collect::<Vec<_>>());
        let lease_ids: Vec<Uuid> = tags.iter().map(|tag| tag.lease_id).collect();
        let asked_at = Instant::now();
        // Locked in the writer's order first: an UPDATE alone would lock in any order and could deadlock with it.
        let renewed: Vec<(Uuid,)> = sqlx::query_as(
            "-- renew
            WITH mine AS (
                SELECT l.chain_id, l.submitter, l.lease_id
                FROM submitter_lease l
                JOIN unnest($1::BIGINT[], $2::TEXT[], $3::UUID[]) AS u (chain_id, submitter, lease_id)
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
        let (kept, lost): (Vec<_>, Vec<_>) = tags.iter().partition(|tag| renewed.contains(&tag.lease_id));
        for tag in kept {
            tag.deadline.prolong(asked_at, send_window(settings));
        }
        Ok(lost.into_iter().cloned().collect())
    }

    /// Gives leases back, so that the next owner need not wait for them to expire. Consumes them.
    /// A lease that was lost meanwhile is passed over: giving up what one no longer has is no fault.
    pub async fn release(&self, leases: Vec<Lease>) -> Result<usize, StoreError> {
        let (chains, submitters) = columns(&leases.iter().map(|lease| lease.key).collect::<Vec<_>>());
        let lease_ids: Vec<Uuid> = leases.iter().map(|lease| lease.lease_id).collect();
        let done = sqlx::query(
            "-- release
            WITH mine AS (
                SELECT l.chain_id, l.submitter, l.lease_id
                FROM submitter_lease l
                JOIN unnest($1::BIGINT[], $2::TEXT[], $3::UUID[]) AS u (chain_id, submitter, lease_id)
                  ON l.chain_id = u.chain_id AND l.submitter = u.submitter AND l.lease_id = u.lease_id
                ORDER BY l.chain_id, l.submitter
                FOR NO KEY UPDATE OF l
            )
            UPDATE submitter_lease l
            SET owner_node = NULL, lease_id = NULL, expires_at = '-infinity', wake_at = NULL, wake_pause_seconds = 0,
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

    /// Records what this worker can sign for, with a free lease for each submitter that is new. Answers those that became
    /// shared or strict by it. One that is in PROTECT and becomes shared is released: what stopped it is no alarm any more.
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
    let flipped: Vec<(i64, String, bool)> = sqlx::query_as(
        "-- announce: flipped
        SELECT s.chain_id, s.submitter, u.shared
        FROM submitter s
        JOIN unnest($1::BIGINT[], $2::TEXT[], $3::BOOLEAN[]) AS u (chain_id, submitter, shared)
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
        FROM unnest($1::BIGINT[], $2::TEXT[], $3::TEXT[], $4::BOOLEAN[], $5::BOOLEAN[])
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
    let now_shared: Vec<&(i64, String, bool)> = flipped.iter().filter(|(_, _, shared)| *shared).collect();
    if !now_shared.is_empty() {
        sqlx::query(
            "-- announce: release
            INSERT INTO audit_log (chain_id, submitter, action, reason, actor)
            SELECT c.chain_id, c.submitter, 'release', 'its key is shared now (nonce.strict.enabled = false)', 'worker'
            FROM unnest($1::BIGINT[], $2::TEXT[]) AS u (chain_id, submitter)
            JOIN submitter_nonce_cursor c ON c.chain_id = u.chain_id AND c.submitter = u.submitter
            WHERE c.in_flight_state = 'PROTECT'",
        )
        .bind(now_shared.iter().map(|(chain_id, ..)| *chain_id).collect::<Vec<_>>())
        .bind(now_shared.iter().map(|(_, submitter, _)| submitter.clone()).collect::<Vec<_>>())
        .execute(&mut *tx)
        .await
        .map_err(StoreError::db("announce"))?;
    }
    sqlx::query(
        "-- announce: leases
        INSERT INTO submitter_lease (chain_id, submitter)
        SELECT u.chain_id, u.submitter
        FROM unnest($1::BIGINT[], $2::TEXT[]) AS u (chain_id, submitter)
        ORDER BY u.chain_id, u.submitter
        ON CONFLICT (chain_id, submitter) DO NOTHING",
    )
    .bind(&chains)
    .bind(&addresses)
    .execute(&mut *tx)
    .await
    .map_err(StoreError::db("announce"))?;
    tx.commit().await.map_err(StoreError::db("announce"))?;
    let key = |(chain_id, submitter, shared): (i64, String, bool)| {
        Ok((row::key("submitter", chain_id, &submitter)?, shared))
    };
    flipped.into_iter().map(key).collect()
}

/// Keys as the two arrays every batched statement starts with.
pub(super) fn columns(keys: &[SubmitterKey]) -> (Vec<i64>, Vec<String>) {
    keys.iter().map(|key| (key.chain_id.as_i64(), key.address_text())).unzip()
}
