//! What the owner of a webhook reads when it starts, and after a change.

use std::time::Duration;

use gapless_domain::{TxId, WebhookId};
use uuid::Uuid;

use super::lease::OutletLease;
use super::{Sequence, read_sequence};
use crate::api_key;
use crate::error::StoreError;
use crate::events::{EventCursor, EventFilter, ResetReason};
use crate::pool::Store;
use crate::row::{self, Cell, StoredAddress};
use crate::webhooks::SealedSecret;

/// Where a webhook is delivered to, which events, and how they are signed.
#[derive(Clone, Debug)]
pub struct WebhookSettings {
    pub id: WebhookId,
    pub url: String,
    /// Of the webhook and of its key.
    pub filter: EventFilter,
    pub secret: SealedSecret,
    /// The secret before the last rotation, and how long it still signs.
    pub previous_secret: Option<(SealedSecret, Duration)>,
    pub revision: i64,
}

/// A submitter with a cursor of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BehindRow {
    pub sequence: Sequence,
    /// Events up to here are delivered or exhausted.
    pub position: i64,
    /// Failed attempts at the next one.
    pub attempts: u32,
    /// Until the next attempt; zero if it is due.
    pub due_in: Duration,
}

/// An event to deliver again, or a test event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replay {
    /// Number of the request.
    pub no: i64,
    pub event_id: Uuid,
    /// `None`: a test event.
    pub position: Option<i64>,
    pub sequence: Sequence,
    pub attempts: u32,
    pub due_in: Duration,
}

/// An outlet as it was left by its last owner.
#[derive(Clone, Debug)]
pub struct LoadedOutlet {
    pub settings: WebhookSettings,
    pub cursor: EventCursor,
    /// A notice that is not delivered yet.
    pub reset: Option<(Uuid, ResetReason)>,
    /// How long all deliveries have failed.
    pub failing_for: Option<Duration>,
    /// Its API key is neither revoked nor expired. Otherwise nothing may be sent.
    pub key_usable: bool,
    pub behind: Vec<BehindRow>,
}

row::row_struct! {
    struct Row {
        webhook_id: Uuid,
        url: String,
        chain_id: Option<i64>,
        submitter: Option<StoredAddress>,
        tx_id: Option<Uuid>,
        kinds: Option<Vec<String>>,
        key_submitters: Option<Vec<String>>,
        secret_key_id: String,
        secret: Vec<u8>,
        previous_secret_key_id: Option<String>,
        previous_secret: Option<Vec<u8>>,
        previous_secret_seconds: Option<f64>,
        revision: i64,
        epoch: String,
        position: i64,
        reset_id: Option<Uuid>,
        reset_reason: Option<String>,
        failing_seconds: Option<f64>,
        key_usable: bool,
    }
}

row::row_struct! {
    struct BehindColumns {
        chain_id: i64,
        submitter: Vec<u8>,
        position: i64,
        attempts: i32,
        due_seconds: f64,
    }
}

row::row_struct! {
    struct ReplayColumns {
        replay_no: i64,
        event_id: Uuid,
        position: Option<i64>,
        chain_id: Option<i64>,
        submitter: Option<StoredAddress>,
        attempts: i32,
        due_seconds: f64,
    }
}

impl Store {
    /// `None`: the lease is lost, or the webhook was deleted.
    pub async fn load_outlet(&self, lease: &OutletLease) -> Result<Option<LoadedOutlet>, StoreError> {
        let row: Option<Row> = sqlx::query_as(
            "-- load_outlet
            SELECT w.webhook_id, w.url, w.chain_id, w.submitter, w.tx_id, w.kinds, k.submitters AS key_submitters,
                   w.secret_key_id, w.secret, w.previous_secret_key_id, w.previous_secret,
                   extract(epoch FROM w.previous_secret_until - clock_timestamp())::DOUBLE PRECISION AS previous_secret_seconds,
                   w.revision, o.epoch, o.position, o.reset_id, o.reset_reason,
                   extract(epoch FROM clock_timestamp() - o.failing_since)::DOUBLE PRECISION AS failing_seconds,
                   w.key_id IS NULL OR k.key_id IS NOT NULL AND k.revoked_at IS NULL
                       AND (k.expires_at IS NULL OR k.expires_at > clock_timestamp()) AS key_usable
            FROM outlet o
            JOIN webhook w ON w.webhook_id = o.outlet_id
            LEFT JOIN api_key k ON k.key_id = w.key_id
            WHERE o.outlet_id = $1 AND o.lease_id = $2
            -- Waits for a write of this process whose answer was lost: the rows below must fit the cursor.
            FOR NO KEY UPDATE OF o",
        )
        .bind(lease.outlet_id())
        .bind(lease.lease_id())
        .fetch_optional(&self.pool)
        .await
        .map_err(StoreError::db("load_outlet"))?;
        let Some(row) = row else { return Ok(None) };
        let behind: Vec<BehindColumns> = sqlx::query_as(
            "-- load_outlet: behind
            SELECT chain_id, submitter, position, attempts,
                   extract(epoch FROM next_attempt_at - clock_timestamp())::DOUBLE PRECISION AS due_seconds
            FROM outlet_submitter
            WHERE outlet_id = $1",
        )
        .bind(lease.outlet_id())
        .fetch_all(&self.pool)
        .await
        .map_err(StoreError::db("load_outlet"))?;
        let behind = behind
            .into_iter()
            .map(|row| {
                Ok(BehindRow {
                    sequence: read_sequence("outlet_submitter", row.chain_id, &row.submitter)?,
                    position: row.position,
                    attempts: row.attempts.unsigned_abs(),
                    due_in: seconds(row.due_seconds),
                })
            })
            .collect::<Result<_, StoreError>>()?;
        row.loaded(behind).map(Some)
    }

    /// Requested replays and tests, those that are due first.
    pub async fn load_replays(&self, lease: &OutletLease, limit: u32) -> Result<Vec<Replay>, StoreError> {
        let rows: Vec<ReplayColumns> = sqlx::query_as(
            "-- load_replays
            SELECT replay_no, event_id, position, chain_id, submitter, attempts,
                   extract(epoch FROM next_attempt_at - clock_timestamp())::DOUBLE PRECISION AS due_seconds
            FROM webhook_replay
            WHERE webhook_id = $1
            ORDER BY next_attempt_at, replay_no
            LIMIT $2",
        )
        .bind(lease.outlet_id())
        .bind(i64::from(limit))
        .fetch_all(&self.pool)
        .await
        .map_err(StoreError::db("load_replays"))?;
        rows.into_iter()
            .map(|row| {
                let sequence = row.chain_id.zip(row.submitter);
                Ok(Replay {
                    no: row.replay_no,
                    event_id: row.event_id,
                    position: row.position,
                    sequence: sequence
                        .map(|(chain_id, address)| row::key("webhook_replay", chain_id, address))
                        .transpose()?,
                    attempts: row.attempts.unsigned_abs(),
                    due_in: seconds(row.due_seconds),
                })
            })
            .collect()
    }
}

impl Row {
    fn loaded(self, behind: Vec<BehindRow>) -> Result<LoadedOutlet, StoreError> {
        let id = self.webhook_id;
        let cell = |table, column| Cell { table, column, id: &id };
        let asked = crate::webhooks::filter(self.chain_id, self.submitter, self.tx_id, self.kinds)?;
        let among = self.key_submitters.map(|own| {
            own.iter().map(|text| api_key::submitter(cell("api_key", "submitters"), text)).collect()
        });
        let filter = EventFilter {
            chain_id: asked.chain_id,
            submitter: asked.submitter,
            among: among.transpose()?,
            tx_id: asked.tx_id.map(|tx_id: TxId| tx_id),
            kinds: asked.kinds,
            only_without_submitter: false,
        };
        let previous = SealedSecret::read(self.previous_secret_key_id, self.previous_secret)
            .zip(self.previous_secret_seconds.filter(|left| *left > 0.0).map(seconds));
        let reason = self.reset_reason.as_deref().map(|text| {
            let known = ResetReason::ALL.into_iter().find(|reason| reason.as_str() == text);
            known.ok_or_else(|| cell("outlet", "reset_reason").bad("is an unknown reason"))
        });
        Ok(LoadedOutlet {
            settings: WebhookSettings {
                id: WebhookId(id),
                url: self.url,
                filter,
                secret: SealedSecret { key_id: self.secret_key_id, sealed: self.secret },
                previous_secret: previous,
                revision: self.revision,
            },
            cursor: EventCursor { epoch: self.epoch, position: self.position },
            reset: self.reset_id.zip(reason.transpose()?),
            failing_for: self.failing_seconds.map(seconds),
            key_usable: self.key_usable,
            behind,
        })
    }
}

/// Negative values are zero, and the database's largest intervals have a limit.
fn seconds(value: f64) -> Duration {
    const YEAR: f64 = 366.0 * 24.0 * 3600.0;
    Duration::from_secs_f64(value.clamp(0.0, YEAR))
}
