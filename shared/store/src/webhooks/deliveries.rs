//! The list of deliveries.

use std::str::FromStr;
use std::time::Duration;

use chrono::{DateTime, Utc};
use gapless_domain::{SubmitterKey, TxId, WebhookId};
use uuid::Uuid;

use crate::error::StoreError;
use crate::pool::Store;
use crate::row::{self, Cell, StoredAddress};

/// State of one delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeliveryState {
    /// Asked for by a user, not tried yet.
    Pending,
    /// Failed; there will be another attempt.
    Retrying,
    Delivered,
    /// The last attempt failed.
    Exhausted,
}

impl DeliveryState {
    pub const ALL: [DeliveryState; 4] =
        [DeliveryState::Pending, DeliveryState::Retrying, DeliveryState::Delivered, DeliveryState::Exhausted];

    pub fn as_str(self) -> &'static str {
        match self {
            DeliveryState::Pending => "pending",
            DeliveryState::Retrying => "retrying",
            DeliveryState::Delivered => "delivered",
            DeliveryState::Exhausted => "exhausted",
        }
    }

    pub(crate) fn stored(self) -> &'static str {
        match self {
            DeliveryState::Pending => "PENDING",
            DeliveryState::Retrying => "RETRYING",
            DeliveryState::Delivered => "DELIVERED",
            DeliveryState::Exhausted => "EXHAUSTED",
        }
    }
}

impl FromStr for DeliveryState {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        DeliveryState::ALL.into_iter().find(|state| state.as_str() == text).ok_or("is an unknown state")
    }
}

/// The attempts to deliver one event to one webhook.
#[derive(Clone, Debug, PartialEq)]
pub struct DeliveryView {
    /// Place in the list.
    pub no: i64,
    pub event_id: Uuid,
    pub kind: String,
    pub submitter: Option<SubmitterKey>,
    pub tx_id: Option<TxId>,
    pub state: DeliveryState,
    pub attempts: u32,
    pub first_at: DateTime<Utc>,
    pub last_at: DateTime<Utc>,
    pub next_at: Option<DateTime<Utc>>,
    /// Of the last answer; `None` if there was none.
    pub status_code: Option<u16>,
    /// Why the last attempt failed.
    pub error: Option<String>,
    /// Of the last attempt.
    pub duration: Duration,
}

row::row_struct! {
    struct Row {
        delivery_no: i64,
        event_id: Uuid,
        kind: String,
        chain_id: Option<i64>,
        submitter: Option<StoredAddress>,
        tx_id: Option<Uuid>,
        state: String,
        attempts: i32,
        first_at: DateTime<Utc>,
        last_at: DateTime<Utc>,
        next_at: Option<DateTime<Utc>>,
        status_code: Option<i32>,
        error: Option<String>,
        duration_ms: i32,
    }
}

macro_rules! select_deliveries {
    ($name:literal, $rest:literal) => {
        concat!(
            "-- ",
            $name,
            "
            SELECT delivery_no, event_id, kind, chain_id, submitter, tx_id, state, attempts, first_at, last_at, next_at,
                   status_code, error, duration_ms
            FROM webhook_delivery
            ",
            $rest
        )
    };
}

impl Store {
    /// Newest first, those before `before`.
    pub async fn webhook_deliveries(
        &self,
        id: WebhookId,
        state: Option<DeliveryState>,
        before: Option<i64>,
        limit: u32,
    ) -> Result<Vec<DeliveryView>, StoreError> {
        let rows: Vec<Row> = sqlx::query_as(select_deliveries!(
            "webhook_deliveries",
            "WHERE webhook_id = $1 AND ($2::TEXT IS NULL OR state = $2) AND ($3::BIGINT IS NULL OR delivery_no < $3)
            ORDER BY delivery_no DESC
            LIMIT $4"
        ))
        .bind(id.0)
        .bind(state.map(DeliveryState::stored))
        .bind(before)
        .bind(i64::from(limit))
        .fetch_all(&self.pool)
        .await
        .map_err(StoreError::db("webhook_deliveries"))?;
        rows.into_iter().map(DeliveryView::try_from).collect()
    }

    pub async fn webhook_delivery(
        &self,
        id: WebhookId,
        event_id: Uuid,
    ) -> Result<Option<DeliveryView>, StoreError> {
        let row: Option<Row> =
            sqlx::query_as(select_deliveries!("webhook_delivery", "WHERE webhook_id = $1 AND event_id = $2"))
                .bind(id.0)
                .bind(event_id)
                .fetch_optional(&self.pool)
                .await
                .map_err(StoreError::db("webhook_delivery"))?;
        row.map(DeliveryView::try_from).transpose()
    }

    /// Deletes rows of the list that are older: successful deliveries, and others that have ended, at most `limit` of
    /// each. Returns whether there may be more. What is still to be delivered is kept.
    pub async fn prune_webhook_deliveries(
        &self,
        delivered: Duration,
        others: Duration,
        limit: u32,
    ) -> Result<bool, StoreError> {
        let of_delivered = "-- prune_webhook_deliveries: delivered
            DELETE FROM webhook_delivery
            WHERE (webhook_id, event_id) IN (
                SELECT webhook_id, event_id
                FROM webhook_delivery
                WHERE state = 'DELIVERED' AND last_at < clock_timestamp() - make_interval(secs => $1)
                ORDER BY last_at
                LIMIT $2)";
        let of_others = "-- prune_webhook_deliveries: others
            DELETE FROM webhook_delivery
            WHERE (webhook_id, event_id) IN (
                SELECT webhook_id, event_id
                FROM webhook_delivery d
                WHERE state <> 'DELIVERED' AND last_at < clock_timestamp() - make_interval(secs => $1)
                  AND (state = 'EXHAUSTED' OR NOT EXISTS (SELECT 1 FROM webhook w WHERE w.webhook_id = d.webhook_id))
                ORDER BY last_at
                LIMIT $2)";
        let mut is_more = false;
        for (statement, age) in [(of_delivered, delivered), (of_others, others)] {
            let done = sqlx::query(statement)
                .bind(age.as_secs_f64())
                .bind(i64::from(limit))
                .execute(&self.pool)
                .await
                .map_err(StoreError::db("prune_webhook_deliveries"))?;
            is_more |= done.rows_affected() >= u64::from(limit);
        }
        Ok(is_more)
    }
}

impl TryFrom<Row> for DeliveryView {
    type Error = StoreError;

    fn try_from(row: Row) -> Result<Self, StoreError> {
        let id = row.delivery_no;
        let cell = |column| Cell { table: "webhook_delivery", column, id: &id };
        let submitter = row.chain_id.zip(row.submitter);
        let state = DeliveryState::ALL.into_iter().find(|state| state.stored() == row.state);
        let status_code =
            row.status_code.map(|code| u16::try_from(code).map_err(|e| cell("status_code").bad(e)));
        Ok(DeliveryView {
            no: row.delivery_no,
            event_id: row.event_id,
            kind: row.kind,
            submitter: submitter
                .map(|(chain_id, address)| row::key("webhook_delivery", chain_id, address))
                .transpose()?,
            tx_id: row.tx_id.map(TxId),
            state: state.ok_or_else(|| cell("state").bad("is an unknown state"))?,
            attempts: row.attempts.unsigned_abs(),
            first_at: row.first_at,
            last_at: row.last_at,
            next_at: row.next_at,
            status_code: status_code.transpose()?,
            error: row.error,
            duration: Duration::from_millis(u64::from(row.duration_ms.unsigned_abs())),
        })
    }
}
