//! Webhooks with their health.

use std::str::FromStr;

use chrono::{DateTime, Utc};
use gapless_domain::{ApiKeyId, ChainId, SubmitterKey, TxId, WebhookId};
use uuid::Uuid;

use crate::error::StoreError;
use crate::events::EventCursor;
use crate::pool::Store;
use crate::row::{self, Cell, StoredAddress};

/// Why a webhook gets no deliveries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DisabledReason {
    /// A user disabled it.
    Requested,
    /// The receiver answered 410.
    Gone,
    /// All deliveries failed for too long.
    Failing,
    /// Its API key was revoked or has expired.
    KeyRevoked,
}

impl DisabledReason {
    pub const ALL: [DisabledReason; 4] = [
        DisabledReason::Requested,
        DisabledReason::Gone,
        DisabledReason::Failing,
        DisabledReason::KeyRevoked,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            DisabledReason::Requested => "requested",
            DisabledReason::Gone => "gone",
            DisabledReason::Failing => "failing",
            DisabledReason::KeyRevoked => "key_revoked",
        }
    }
}

impl FromStr for DisabledReason {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        DisabledReason::ALL.into_iter().find(|reason| reason.as_str() == text).ok_or("is an unknown reason")
    }
}

/// Which events a webhook asks for: an event must match all conditions. What its key may see is not part of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WebhookFilter {
    pub chain_id: Option<ChainId>,
    pub submitter: Option<SubmitterKey>,
    pub tx_id: Option<TxId>,
    /// Any of these types.
    pub kinds: Option<Vec<String>>,
}

/// How far deliveries have come, and what is wrong with them.
#[derive(Clone, Debug, PartialEq)]
pub struct OutletHealth {
    /// All events up to here are delivered or exhausted, except those of `submitters_behind`.
    pub cursor: EventCursor,
    pub lag_events: i64,
    /// Age of the oldest event after the cursor; 0 if there is none.
    pub lag_seconds: f64,
    /// Submitters whose next event failed and is tried again later.
    pub submitters_behind: i64,
    /// The worker that delivers now.
    pub worker: Option<String>,
    pub failing_since: Option<DateTime<Utc>>,
    pub last_error: Option<String>,
    pub last_error_at: Option<DateTime<Utc>>,
    pub last_success_at: Option<DateTime<Utc>>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct WebhookView {
    pub id: WebhookId,
    /// The API key that created it; `None`: created without keys.
    pub owner: Option<ApiKeyId>,
    pub url: String,
    pub description: String,
    pub filter: WebhookFilter,
    pub disabled: Option<(DisabledReason, DateTime<Utc>)>,
    pub created_at: DateTime<Utc>,
    /// Until then deliveries are signed with two secrets.
    pub previous_secret_until: Option<DateTime<Utc>>,
    /// Whether events are recorded at all.
    pub recording: bool,
    pub health: OutletHealth,
}

/// A consumer that workers deliver to.
#[derive(Clone, Debug, PartialEq)]
pub struct OutletView {
    pub id: Uuid,
    /// `webhook`.
    pub kind: String,
    /// The URL. May contain a token of the receiver.
    pub target: String,
    pub disabled: Option<(DisabledReason, DateTime<Utc>)>,
    pub health: OutletHealth,
}

row::row_struct! {
    struct Row {
        webhook_id: Uuid,
        key_id: Option<String>,
        url: String,
        description: String,
        chain_id: Option<i64>,
        submitter: Option<StoredAddress>,
        tx_id: Option<Uuid>,
        kinds: Option<Vec<String>>,
        disabled_reason: Option<String>,
        disabled_at: Option<DateTime<Utc>>,
        created_at: DateTime<Utc>,
        previous_secret_until: Option<DateTime<Utc>>,
        recording: bool,
        epoch: String,
        position: i64,
        lag_events: i64,
        lag_seconds: f64,
        submitters_behind: i64,
        worker: Option<String>,
        failing_since: Option<DateTime<Utc>>,
        last_error: Option<String>,
        last_error_at: Option<DateTime<Utc>>,
        last_success_at: Option<DateTime<Utc>>,
    }
}

macro_rules! select_webhooks {
    ($name:literal, $rest:literal) => {
        concat!(
            "-- ",
            $name,
            "
            SELECT w.webhook_id, w.key_id, w.url, w.description, w.chain_id, w.submitter, w.tx_id, w.kinds,
                   w.disabled_reason, w.disabled_at, w.created_at, o.epoch, o.position,
                   CASE WHEN w.previous_secret_until > clock_timestamp() THEN w.previous_secret_until END AS previous_secret_until,
                   coalesce((SELECT enabled FROM event_recording), FALSE) AS recording,
                   greatest(gapless_event_position() - o.position, 0) AS lag_events,
                   coalesce((
                       SELECT extract(epoch FROM clock_timestamp() - l.created_at)
                       FROM event_log l
                       WHERE l.position > o.position
                       ORDER BY l.position
                       LIMIT 1), 0)::DOUBLE PRECISION AS lag_seconds,
                   (SELECT count(*) FROM outlet_submitter s WHERE s.outlet_id = o.outlet_id) AS submitters_behind,
                   CASE WHEN o.expires_at > clock_timestamp() THEN o.owner END AS worker,
                   o.failing_since, o.last_error, o.last_error_at, o.last_success_at
            FROM webhook w
            JOIN outlet o ON o.outlet_id = w.webhook_id
            ",
            $rest
        )
    };
}

impl Store {
    /// Ordered by creation. `owner`: only webhooks of this key.
    pub async fn webhooks(
        &self,
        owner: Option<&ApiKeyId>,
        after: Option<WebhookId>,
        limit: u32,
    ) -> Result<Vec<WebhookView>, StoreError> {
        let rows: Vec<Row> = sqlx::query_as(select_webhooks!(
            "webhooks",
            "WHERE ($1::TEXT IS NULL OR w.key_id = $1) AND ($2::UUID IS NULL OR w.webhook_id > $2)
            ORDER BY w.webhook_id
            LIMIT $3"
        ))
        .bind(owner.map(ApiKeyId::as_str))
        .bind(after.map(|id| id.0))
        .bind(i64::from(limit))
        .fetch_all(&self.pool)
        .await
        .map_err(StoreError::db("webhooks"))?;
        rows.into_iter().map(WebhookView::try_from).collect()
    }

    /// `None`: there is none with this id and owner.
    pub async fn webhook(
        &self,
        owner: Option<&ApiKeyId>,
        id: WebhookId,
    ) -> Result<Option<WebhookView>, StoreError> {
        let row: Option<Row> = sqlx::query_as(select_webhooks!(
            "webhook",
            "WHERE w.webhook_id = $1 AND ($2::TEXT IS NULL OR w.key_id = $2)"
        ))
        .bind(id.0)
        .bind(owner.map(ApiKeyId::as_str))
        .fetch_optional(&self.pool)
        .await
        .map_err(StoreError::db("webhook"))?;
        row.map(WebhookView::try_from).transpose()
    }

    /// All consumers that workers deliver to, for operators.
    pub async fn outlets(&self) -> Result<Vec<OutletView>, StoreError> {
        let rows: Vec<Row> = sqlx::query_as(select_webhooks!("outlets", "ORDER BY w.webhook_id"))
            .fetch_all(&self.pool)
            .await
            .map_err(StoreError::db("outlets"))?;
        rows.into_iter()
            .map(|row| {
                let WebhookView { id, url, disabled, health, .. } = row.try_into()?;
                Ok(OutletView { id: id.0, kind: "webhook".to_owned(), target: url, disabled, health })
            })
            .collect()
    }
}

impl TryFrom<Row> for WebhookView {
    type Error = StoreError;

    fn try_from(row: Row) -> Result<Self, StoreError> {
        let id = row.webhook_id;
        let cell = |column| Cell { table: "webhook", column, id: &id };
        let owner = row.key_id.as_deref().map(|text| cell("key_id").parse(text)).transpose()?;
        let reason =
            row.disabled_reason.as_deref().map(|text| cell("disabled_reason").parse(text)).transpose()?;
        Ok(WebhookView {
            id: WebhookId(id),
            owner,
            url: row.url,
            description: row.description,
            filter: filter(row.chain_id, row.submitter, row.tx_id, row.kinds)?,
            disabled: reason.zip(row.disabled_at),
            created_at: row.created_at,
            previous_secret_until: row.previous_secret_until,
            recording: row.recording,
            health: OutletHealth {
                cursor: EventCursor { epoch: row.epoch, position: row.position },
                lag_events: row.lag_events,
                lag_seconds: row.lag_seconds.max(0.0),
                submitters_behind: row.submitters_behind,
                worker: row.worker,
                failing_since: row.failing_since,
                last_error: row.last_error,
                last_error_at: row.last_error_at,
                last_success_at: row.last_success_at,
            },
        })
    }
}

/// From the columns of `webhook`.
pub(crate) fn filter(
    chain_id: Option<i64>,
    submitter: Option<StoredAddress>,
    tx_id: Option<Uuid>,
    kinds: Option<Vec<String>>,
) -> Result<WebhookFilter, StoreError> {
    let cell = Cell { table: "webhook", column: "chain_id", id: &"filter" };
    let chain_id = chain_id.map(|number| cell.unsigned(number).map(ChainId)).transpose()?;
    let submitter =
        chain_id.zip(submitter).map(|(chain_id, address)| SubmitterKey { chain_id, address: address.into() });
    Ok(WebhookFilter { chain_id, submitter, tx_id: tx_id.map(TxId), kinds })
}
