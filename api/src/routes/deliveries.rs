//! `/api/v1/webhooks/{webhookId}/test|deliveries|replay`: what was delivered to a webhook, and requests to deliver.

use std::time::Duration;

use chrono::{DateTime, Utc};
use gapless_domain::WebhookId;
use gapless_domain::intent::check_time;
use gapless_store::webhooks::{self as store, DeliveryView, ReplayRange};
use poem::web::Data;
use poem_openapi::param::{Path, Query};
use poem_openapi::payload::Json;
use poem_openapi::{ApiResponse, OpenApi};
use tokio::time::Instant;
use uuid::Uuid;

use super::Tag;
use super::list::page_size;
use super::webhooks::{own_webhook, parse_id};
use crate::app::{App, SharedApp};
use crate::auth::{Caller, Read, Write};
use crate::error::{ApiError, Failure, OnRead, OnReplay, OnWebhookTest};
use crate::wire::{Body, Delivery, DeliveryPage, DeliveryState, Replay, Replayed};

/// Of one request. Each event becomes a row.
const MAX_REPLAYED: u32 = 10_000;
const POLL_INTERVAL: Duration = Duration::from_millis(100);

#[derive(ApiResponse)]
pub(crate) enum ReplayResponse {
    /// Recorded. Workers deliver them, in the order of each submitter.
    #[oai(status = 202)]
    Requested(Json<Replayed>),
}

#[derive(Debug)]
pub(crate) struct Deliveries;

#[OpenApi(tag = "Tag::Webhooks")]
impl Deliveries {
    /// Test a webhook
    ///
    /// A worker delivers an event of the type `webhook.test`. Responds after the first attempt, or after
    /// `events.webhook.timeout` and 5 seconds; then the state is `pending`.
    #[oai(path = "/api/v1/webhooks/:webhookId/test", method = "post", operation_id = "testWebhook")]
    async fn test(
        &self,
        app: Data<&SharedApp>,
        caller: Caller<Write>,
        #[oai(name = "webhookId")] webhook_id: Path<String>,
    ) -> Result<Json<Delivery>, Failure<OnWebhookTest>> {
        let id = parse_id(&webhook_id.0)?;
        if own_webhook(&app, &caller, id).await?.disabled.is_some() {
            return Err(ApiError::WebhookDisabled.into());
        }
        let event_id = app.store.test_webhook(id).await?;
        let delivery = first_attempt(&app, id, event_id).await?;
        caller.recheck(&app.authenticator).await?;
        Ok(Json(delivery.into()))
    }

    /// List the deliveries of a webhook
    ///
    /// Newest first. Successful ones are listed for `events.webhook.delivered_retention` (24 hours by default), others as
    /// long as their event is in the log.
    #[oai(path = "/api/v1/webhooks/:webhookId/deliveries", method = "get", operation_id = "listDeliveries")]
    async fn list(
        &self,
        app: Data<&SharedApp>,
        caller: Caller<Read>,
        #[oai(name = "webhookId")] webhook_id: Path<String>,
        /// Only deliveries in this state.
        state: Query<Option<DeliveryState>>,
        /// Page size, 1 to 200. Default: 50.
        limit: Query<Option<u32>>,
        /// `nextCursor` of the previous page.
        cursor: Query<Option<String>>,
    ) -> Result<Json<DeliveryPage>, Failure<OnRead>> {
        let id = parse_id(&webhook_id.0)?;
        let limit = page_size(limit.0)?;
        let before = cursor.0.map(|text| parse_cursor(&text)).transpose()?;
        own_webhook(&app, &caller, id).await?;
        let state = state.0.map(store::DeliveryState::from);
        // One more row than requested shows whether there is another page.
        let mut views = app.store.webhook_deliveries(id, state, before, limit + 1).await?;
        let more = views.len() > limit as usize;
        views.truncate(limit as usize);
        let next_cursor = views.last().filter(|_| more).map(|last| last.no.to_string());
        Ok(Json(DeliveryPage { items: views.into_iter().map(Delivery::from).collect(), next_cursor }))
    }

    /// Deliver events again
    ///
    /// Either `eventIds`, or `from` and `until`. Events that are no longer in the log, or that the webhook's filter and key do
    /// not allow, are left out. At most 10,000 events. The receiver gets them with the same ids as before.
    #[oai(path = "/api/v1/webhooks/:webhookId/replay", method = "post", operation_id = "replayWebhook")]
    async fn replay(
        &self,
        app: Data<&SharedApp>,
        caller: Caller<Write>,
        #[oai(name = "webhookId")] webhook_id: Path<String>,
        body: Body<Replay>,
    ) -> Result<ReplayResponse, Failure<OnReplay>> {
        let id = parse_id(&webhook_id.0)?;
        let range = range(body.0)?;
        own_webhook(&app, &caller, id).await?;
        match app.store.replay_webhook(id, &range, MAX_REPLAYED).await? {
            store::Replayed::Requested(requested) => {
                tracing::info!(webhook.id = %id, events = requested, actor = caller.actor(), "webhook replay requested");
                Ok(ReplayResponse::Requested(Json(Replayed { requested })))
            }
            store::Replayed::TooMany => Err(ApiError::TooManyEvents { limit: MAX_REPLAYED }.into()),
        }
    }
}

/// The delivery after its first attempt, or as it is when the time is over.
async fn first_attempt(app: &App, id: WebhookId, event_id: Uuid) -> Result<DeliveryView, ApiError> {
    let until = Instant::now() + app.webhooks.test_wait;
    loop {
        // It was written with the request: without it, the webhook was deleted.
        let delivery = app.store.webhook_delivery(id, event_id).await?.ok_or(ApiError::WebhookNotFound)?;
        let is_tried = delivery.state != store::DeliveryState::Pending;
        if is_tried || Instant::now() >= until || app.shutdown.is_cancelled() {
            return Ok(delivery);
        }
        let _ = tokio::time::timeout(POLL_INTERVAL, app.shutdown.cancelled()).await;
    }
}

fn range(body: Replay) -> Result<ReplayRange, ApiError> {
    let Replay { event_ids, from, until, only_failed } = body;
    let Some(event_ids) = event_ids else {
        let from = time("from", from)?;
        let until = time("until", until)?;
        if from >= until {
            return Err(ApiError::invalid("until", "must be later than from"));
        }
        return Ok(ReplayRange::Window { from, until, only_failed: only_failed.unwrap_or(false) });
    };
    if from.is_some() || until.is_some() || only_failed.is_some() {
        return Err(ApiError::invalid("eventIds", "cannot be combined with from, until and onlyFailed"));
    }
    if event_ids.is_empty() {
        return Err(ApiError::invalid("eventIds", "must not be empty"));
    }
    if event_ids.len() > MAX_REPLAYED as usize {
        return Err(ApiError::TooManyEvents { limit: MAX_REPLAYED });
    }
    let parsed = event_ids.iter().enumerate().map(|(index, text)| {
        Uuid::try_parse(text).map_err(|_| ApiError::invalid(&format!("eventIds[{index}]"), "must be a UUID"))
    });
    Ok(ReplayRange::Events(parsed.collect::<Result<_, _>>()?))
}

fn time(field: &str, at: Option<DateTime<Utc>>) -> Result<DateTime<Utc>, ApiError> {
    check_time(field, at).map_err(ApiError::InvalidRequest)?;
    at.ok_or_else(|| ApiError::invalid(field, "is required, or eventIds"))
}

/// A cursor is the number of the last delivery of the page. 18 digits fit into its type.
fn parse_cursor(text: &str) -> Result<i64, ApiError> {
    let is_number = (1..=18).contains(&text.len()) && text.bytes().all(|digit| digit.is_ascii_digit());
    let number = if is_number { text.parse().ok() } else { None };
    number.ok_or_else(|| ApiError::invalid("cursor", "must be the nextCursor of a page"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replay_is_by_ids_or_by_time() {
        let at = |seconds| DateTime::from_timestamp(seconds, 0);
        let id = Uuid::from_u128(7);
        let ids = |ids: &[&str]| Some(ids.iter().map(|id| (*id).to_owned()).collect());
        let by_id = Replay { event_ids: ids(&[&id.to_string()]), ..Replay::default() };
        assert!(matches!(range(by_id.clone()), Ok(ReplayRange::Events(ids)) if ids == [id]));
        let by_time = Replay { from: at(1), until: at(2), ..Replay::default() };
        assert!(matches!(range(by_time.clone()), Ok(ReplayRange::Window { only_failed: false, .. })));
        for (wrong, field) in [
            (Replay::default(), "from"),
            (Replay { from: at(1), ..Replay::default() }, "until"),
            (Replay { until: at(1), ..by_time.clone() }, "until"),
            (Replay { from: at(-99_999_999_999), ..by_time.clone() }, "from"),
            (Replay { from: at(1), ..by_id.clone() }, "eventIds"),
            (Replay { only_failed: Some(false), ..by_id }, "eventIds"),
            (Replay { event_ids: ids(&[]), ..Replay::default() }, "eventIds"),
            (Replay { event_ids: ids(&["7"]), ..Replay::default() }, "eventIds[0]"),
        ] {
            assert_eq!(range(wrong).unwrap_err().problem().field.as_deref(), Some(field));
        }
        let many = Replay { event_ids: Some(vec![id.to_string(); 10_001]), ..Replay::default() };
        assert_eq!(range(many).unwrap_err().code(), "too_many_events");
    }

    #[test]
    fn a_cursor_is_a_number() {
        assert_eq!(parse_cursor("42").unwrap(), 42);
        for bad in ["", "-1", "+1", "x", "1234567890123456789"] {
            assert!(parse_cursor(bad).is_err(), "{bad}");
        }
    }
}
