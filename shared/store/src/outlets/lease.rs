//! Leases of outlets: one worker delivers to an outlet at a time.

use std::time::Duration;

use tokio::time::Instant;
use uuid::Uuid;

use crate::error::StoreError;
use crate::lease::{Deadline, send_window};
use crate::pool::Store;
use crate::row;
use gapless_config as config;
use gapless_domain::WorkerId;

/// Ownership of one outlet. Not `Clone`, private fields: only a claim makes one.
#[derive(Debug)]
pub struct OutletLease {
    outlet_id: Uuid,
    lease_id: Uuid,
    deadline: Deadline,
}

/// Handle of the renewal loop. It can only renew and release.
#[derive(Clone, Debug)]
pub struct OutletTag {
    outlet_id: Uuid,
    lease_id: Uuid,
    deadline: Deadline,
}

impl OutletLease {
    pub fn outlet_id(&self) -> Uuid {
        self.outlet_id
    }

    /// Whether the last renewal is recent enough, by this process's monotonic clock, to send.
    pub fn may_send(&self) -> bool {
        self.deadline.is_in_future()
    }

    pub fn tag(&self) -> OutletTag {
        let OutletLease { outlet_id, lease_id, deadline } = self;
        OutletTag { outlet_id: *outlet_id, lease_id: *lease_id, deadline: deadline.clone() }
    }

    pub(super) fn lease_id(&self) -> Uuid {
        self.lease_id
    }
}

impl OutletTag {
    pub fn outlet_id(&self) -> Uuid {
        self.outlet_id
    }
}

row::row_struct! {
    /// What the owner of a webhook compares with what it has loaded.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct OutletState {
        pub outlet_id: Uuid,
        pub revision: i64,
        pub is_enabled: bool,
        /// Its API key is neither revoked nor expired.
        pub key_usable: bool,
        /// The newest request for a replay; 0: there is none.
        pub replay_no: i64,
    }
}

impl Store {
    /// Claims enabled outlets without an owner: this worker's share at once, others if nobody claimed them for two more
    /// lease durations (not every worker delivers). `except`: those that this worker cannot deliver.
    pub async fn claim_outlets(
        &self,
        worker_id: &WorkerId,
        owned: usize,
        except: &[Uuid],
        settings: &config::Lease,
    ) -> Result<Vec<OutletLease>, StoreError> {
        let queried_at = Instant::now();
        let rows: Vec<(Uuid, Uuid)> = sqlx::query_as(
            "-- claim_outlets
            WITH enabled AS (
                SELECT o.outlet_id
                FROM outlet o
                JOIN webhook w ON w.webhook_id = o.outlet_id
                WHERE w.disabled_reason IS NULL AND o.outlet_id <> ALL($5)
            ), share AS (
                SELECT greatest(ceil((SELECT count(*) FROM enabled)::FLOAT8 / greatest((
                    SELECT count(*) FROM worker WHERE seen_at > clock_timestamp() - make_interval(secs => $3 * 2)), 1)) - $2, 0)::BIGINT AS free
            ), picked AS (
                SELECT o.outlet_id
                FROM outlet o
                JOIN enabled e ON e.outlet_id = o.outlet_id
                WHERE o.owner IS NULL OR o.expires_at <= clock_timestamp() - make_interval(secs => $4)
                ORDER BY o.expires_at
                LIMIT (SELECT free FROM share)
                FOR UPDATE OF o SKIP LOCKED
            ), left_over AS (
                SELECT o.outlet_id
                FROM outlet o
                JOIN enabled e ON e.outlet_id = o.outlet_id
                WHERE o.expires_at <= clock_timestamp() - make_interval(secs => $4 + $3 * 2)
                ORDER BY o.expires_at
                FOR UPDATE OF o SKIP LOCKED
            )
            UPDATE outlet o
            SET owner = $1, lease_id = gen_random_uuid(), expires_at = clock_timestamp() + make_interval(secs => $3)
            WHERE o.outlet_id IN (SELECT outlet_id FROM picked UNION SELECT outlet_id FROM left_over)
            RETURNING o.outlet_id, o.lease_id",
        )
        .bind(&worker_id.0)
        .bind(i64::try_from(owned).unwrap_or(i64::MAX))
        .bind(settings.duration.as_secs_f64())
        .bind(settings.clock_skew.as_secs_f64())
        .bind(except)
        .fetch_all(&self.pool)
        .await
        .map_err(StoreError::db("claim_outlets"))?;
        let deadline = || Deadline::starting(queried_at, send_window(settings));
        let leases = rows.into_iter().map(|(outlet_id, lease_id)| OutletLease {
            outlet_id,
            lease_id,
            deadline: deadline(),
        });
        Ok(leases.collect())
    }

    /// Renews leases of this worker. Those that it no longer owns are not extended; `outlet_states` does not have them.
    pub async fn renew_outlets(
        &self,
        tags: &[OutletTag],
        settings: &config::Lease,
    ) -> Result<(), StoreError> {
        let queried_at = Instant::now();
        let renewed: Vec<Uuid> = sqlx::query_scalar(
            "-- renew_outlets
            UPDATE outlet o
            SET expires_at = clock_timestamp() + make_interval(secs => $3)
            FROM unnest($1::UUID[], $2::UUID[]) AS u (outlet_id, lease_id)
            WHERE o.outlet_id = u.outlet_id AND o.lease_id = u.lease_id
            RETURNING o.outlet_id",
        )
        .bind(tags.iter().map(|tag| tag.outlet_id).collect::<Vec<_>>())
        .bind(tags.iter().map(|tag| tag.lease_id).collect::<Vec<_>>())
        .bind(settings.duration.as_secs_f64())
        .fetch_all(&self.pool)
        .await
        .map_err(StoreError::db("renew_outlets"))?;
        for tag in tags.iter().filter(|tag| renewed.contains(&tag.outlet_id)) {
            tag.deadline.extend(queried_at, send_window(settings));
        }
        Ok(())
    }

    /// The state of those webhooks that this worker still owns.
    pub async fn outlet_states(&self, tags: &[OutletTag]) -> Result<Vec<OutletState>, StoreError> {
        sqlx::query_as(
            "-- outlet_states
            SELECT o.outlet_id, w.revision, w.disabled_reason IS NULL AS is_enabled,
                   w.key_id IS NULL OR EXISTS (
                       SELECT 1
                       FROM api_key k
                       WHERE k.key_id = w.key_id AND k.revoked_at IS NULL
                         AND (k.expires_at IS NULL OR k.expires_at > clock_timestamp())) AS key_usable,
                   coalesce((SELECT max(p.replay_no) FROM webhook_replay p WHERE p.webhook_id = o.outlet_id), 0) AS replay_no
            FROM outlet o
            JOIN unnest($1::UUID[], $2::UUID[]) AS u (outlet_id, lease_id)
              ON o.outlet_id = u.outlet_id AND o.lease_id = u.lease_id
            JOIN webhook w ON w.webhook_id = o.outlet_id",
        )
        .bind(tags.iter().map(|tag| tag.outlet_id).collect::<Vec<_>>())
        .bind(tags.iter().map(|tag| tag.lease_id).collect::<Vec<_>>())
        .fetch_all(&self.pool)
        .await
        .map_err(StoreError::db("outlet_states"))
    }

    /// Gives leases back, so that another worker claims them at once.
    pub async fn release_outlets(&self, tags: &[OutletTag]) -> Result<(), StoreError> {
        sqlx::query(
            "-- release_outlets
            UPDATE outlet o
            SET owner = NULL, lease_id = NULL, expires_at = clock_timestamp()
            FROM unnest($1::UUID[], $2::UUID[]) AS u (outlet_id, lease_id)
            WHERE o.outlet_id = u.outlet_id AND o.lease_id = u.lease_id",
        )
        .bind(tags.iter().map(|tag| tag.outlet_id).collect::<Vec<_>>())
        .bind(tags.iter().map(|tag| tag.lease_id).collect::<Vec<_>>())
        .execute(&self.pool)
        .await
        .map_err(StoreError::db("release_outlets"))?;
        Ok(())
    }

    /// How long the oldest enabled outlet has had no owner. `None`: all have one.
    pub async fn longest_without_owner(&self) -> Result<Option<Duration>, StoreError> {
        let seconds: Option<f64> = sqlx::query_scalar(
            "-- longest_without_owner
            SELECT extract(epoch FROM clock_timestamp() - min(o.expires_at))::DOUBLE PRECISION
            FROM outlet o
            JOIN webhook w ON w.webhook_id = o.outlet_id
            WHERE w.disabled_reason IS NULL AND o.expires_at <= clock_timestamp()",
        )
        .fetch_one(&self.pool)
        .await
        .map_err(StoreError::db("longest_without_owner"))?;
        Ok(seconds.map(|seconds| Duration::from_secs_f64(seconds.max(0.0))))
    }
}
