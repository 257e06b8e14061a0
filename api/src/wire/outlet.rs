//! What workers deliver events to, and how well.

use chrono::{DateTime, Utc};
use gapless_store::webhooks::{OutletHealth as StoredHealth, OutletView};
use gapless_webhook::TargetUrl;
use poem_openapi::Object;
use poem_openapi::types::Example;
use uuid::Uuid;

use super::tx::example_time;
use super::webhook::{DisabledReason, EXAMPLE_WEBHOOK, WebhookStatus, status};

/// How far deliveries are, and whether they succeed.
#[derive(Clone, Debug, Object)]
#[oai(rename_all = "camelCase", skip_serializing_if_is_none)]
pub(crate) struct OutletHealth {
    /// Everything up to here is delivered or exhausted, except the events of submitters that are behind.
    pub(crate) cursor: String,
    /// Events of the log after the cursor, whether the filter matches them or not.
    pub(crate) lag_events: u64,
    /// Age of the oldest of them.
    pub(crate) lag_seconds: f64,
    /// Submitters whose next event failed and is tried again. Others do not wait for them.
    pub(crate) submitters_behind: u64,
    /// Since when every delivery fails. Absent if the last one succeeded.
    pub(crate) failing_since: Option<DateTime<Utc>>,
    /// Why a delivery last failed. The text may change.
    pub(crate) last_error: Option<String>,
    pub(crate) last_error_at: Option<DateTime<Utc>>,
    pub(crate) last_success_at: Option<DateTime<Utc>>,
}

/// A consumer that workers deliver events to.
#[derive(Clone, Debug, Object)]
#[oai(rename_all = "camelCase", skip_serializing_if_is_none)]
pub(crate) struct Outlet {
    /// Of a webhook: the `webhookId`.
    pub(crate) outlet_id: Uuid,
    /// `webhook`. Later versions may add kinds.
    pub(crate) kind: String,
    /// Scheme, host and port.
    pub(crate) target: String,
    pub(crate) status: WebhookStatus,
    pub(crate) disabled_reason: Option<DisabledReason>,
    pub(crate) disabled_at: Option<DateTime<Utc>>,
    /// The worker that delivers. Absent if none does.
    pub(crate) worker: Option<String>,
    pub(crate) health: OutletHealth,
}

/// All outlets.
#[derive(Clone, Debug, Object)]
#[oai(rename_all = "camelCase", example)]
pub(crate) struct OutletList {
    pub(crate) items: Vec<Outlet>,
}

impl From<StoredHealth> for OutletHealth {
    fn from(health: StoredHealth) -> Self {
        OutletHealth {
            cursor: health.cursor.to_string(),
            lag_events: u64::try_from(health.lag_events).unwrap_or(0),
            lag_seconds: health.lag_seconds.max(0.0),
            submitters_behind: u64::try_from(health.submitters_behind).unwrap_or(0),
            failing_since: health.failing_since,
            last_error: health.last_error,
            last_error_at: health.last_error_at,
            last_success_at: health.last_success_at,
        }
    }
}

impl From<OutletView> for Outlet {
    fn from(view: OutletView) -> Self {
        let (status, disabled_reason, disabled_at) = status(view.disabled);
        // The path may contain a token of the receiver.
        let target =
            TargetUrl::parse(&view.target).map_or_else(|_| "invalid".to_owned(), |url| url.to_string());
        Outlet {
            outlet_id: view.id,
            kind: view.kind,
            target,
            status,
            disabled_reason,
            disabled_at,
            worker: view.health.worker.clone(),
            health: view.health.into(),
        }
    }
}

impl Example for OutletHealth {
    fn example() -> Self {
        OutletHealth {
            cursor: "5f3a9c21.42".into(),
            lag_events: 0,
            lag_seconds: 0.0,
            submitters_behind: 0,
            failing_since: None,
            last_error: Some("503 Service Unavailable".into()),
            last_error_at: Some(example_time(20)),
            last_success_at: Some(example_time(25)),
        }
    }
}

impl Example for OutletList {
    fn example() -> Self {
        let outlet = Outlet {
            outlet_id: EXAMPLE_WEBHOOK,
            kind: "webhook".into(),
            target: "https://example.com".into(),
            status: WebhookStatus::Active,
            disabled_reason: None,
            disabled_at: None,
            worker: Some("worker-1".into()),
            health: OutletHealth::example(),
        };
        OutletList { items: vec![outlet] }
    }
}
