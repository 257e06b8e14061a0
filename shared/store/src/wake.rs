//! Blocked submitters whose lease was released: when they are claimed again.

use uuid::Uuid;

use super::error::StoreError;
use super::lease::{Lease, columns};
use super::pool::Store;
use super::row::{self, StoredAddress};
use gapless_domain::SubmitterKey;

impl Store {
    /// Releases leases of submitters whose queue is blocked. They are claimed again after a pause that doubles from 1
    /// s to 60 s, or as soon as something changes (`find_work`). Consumes the leases, like `release`.
    pub async fn release_blocked(&self, leases: Vec<Lease>) -> Result<usize, StoreError> {
        let (chains, submitters) = columns(&leases.iter().map(Lease::key).collect::<Vec<_>>());
        let lease_ids: Vec<Uuid> = leases.iter().map(|lease| lease.fence().lease_id).collect();
        let done = sqlx::query(
            "-- release_blocked
            WITH mine AS (
                SELECT l.chain_id, l.submitter, l.lease_id
                FROM submitter_lease l
                JOIN unnest($1::BIGINT[], $2::BYTEA[], $3::UUID[]) AS u (chain_id, submitter, lease_id)
                  ON l.chain_id = u.chain_id AND l.submitter = u.submitter AND l.lease_id = u.lease_id
                ORDER BY l.chain_id, l.submitter
                FOR NO KEY UPDATE OF l
            )
            UPDATE submitter_lease l
            SET owner = NULL, lease_id = NULL, expires_at = '-infinity',
                wake_pause_seconds = least(greatest(l.wake_pause_seconds * 2, 1), 60),
                wake_at = clock_timestamp() + make_interval(secs => least(greatest(l.wake_pause_seconds * 2, 1), 60)),
                blocked_at = clock_timestamp(),
                blocked_seq = (
                    SELECT t.seq FROM managed_tx t
                    WHERE t.chain_id = l.chain_id AND t.submitter = l.submitter AND t.queued
                    ORDER BY t.seq DESC LIMIT 1),
                updated_at = clock_timestamp()
            FROM mine m
            WHERE l.chain_id = m.chain_id AND l.submitter = m.submitter AND l.lease_id = m.lease_id",
        )
        .bind(chains)
        .bind(submitters)
        .bind(lease_ids)
        .execute(&self.pool)
        .await
        .map_err(StoreError::db("release_blocked"))?;
        Ok(usize::try_from(done.rows_affected()).unwrap_or(usize::MAX))
    }

    /// Submitters that are not claimed before `wake_at`, because the head of their queue waits for funds.
    pub async fn waiting_for_funds(&self) -> Result<Vec<SubmitterKey>, StoreError> {
        let rows: Vec<(i64, StoredAddress)> = sqlx::query_as(
            "-- waiting_for_funds
            SELECT DISTINCT l.chain_id, l.submitter
            FROM managed_tx t
            JOIN submitter_lease l ON l.chain_id = t.chain_id AND l.submitter = t.submitter
            WHERE t.queued AND t.blocked_since IS NOT NULL AND t.sub_state = 'waiting_funds'
              AND l.wake_at > clock_timestamp()
            ORDER BY l.chain_id, l.submitter",
        )
        .fetch_all(&self.pool)
        .await
        .map_err(StoreError::db("waiting_for_funds"))?;
        rows.into_iter()
            .map(|(chain_id, submitter)| row::key("submitter_lease", chain_id, submitter))
            .collect()
    }

    /// Lets submitters be claimed at once: their balance may be sufficient now.
    pub async fn wake_submitters(&self, keys: &[SubmitterKey]) -> Result<(), StoreError> {
        let (chains, submitters) = columns(keys);
        sqlx::query(
            "-- wake_submitters
            WITH asleep AS (
                SELECT l.chain_id, l.submitter
                FROM submitter_lease l
                JOIN unnest($1::BIGINT[], $2::BYTEA[]) AS u (chain_id, submitter)
                  ON l.chain_id = u.chain_id AND l.submitter = u.submitter
                WHERE l.wake_at IS NOT NULL
                ORDER BY l.chain_id, l.submitter
                FOR NO KEY UPDATE OF l
            )
            UPDATE submitter_lease l
            SET wake_at = NULL, wake_pause_seconds = 0, updated_at = clock_timestamp()
            FROM asleep a
            WHERE l.chain_id = a.chain_id AND l.submitter = a.submitter",
        )
        .bind(chains)
        .bind(submitters)
        .execute(&self.pool)
        .await
        .map_err(StoreError::db("wake_submitters"))?;
        Ok(())
    }
}
