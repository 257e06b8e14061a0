//! Events for consumers: their text and schemas, and the newest ones of the log in memory (`EventFeed`).
//!
//! Also the port for domain events inside a process. Nothing depends on it: a lost call loses no transaction, and no event
//! of the log, which is written in the commit of the state change (`gapless_store::events`).

mod envelope;
mod feed;
mod schema;

pub use envelope::{cloud_event, notice};
pub use feed::{EventFeed, FeedEvent, Next, Subscription};
pub use schema::{EVENT_TYPES, EventType, NOTICE_TYPES, WEBHOOK_MESSAGE, schemas};

use gapless_config::EventsMode;
use gapless_domain::Event;

/// Publishes domain events. `publish` is called for every event, after its commit.
pub trait EventPublisher: Send + Sync + std::fmt::Debug {
    fn publish(&self, event: &Event);
    /// Whether events are published at all. If not, data that only an event needs is not computed.
    fn is_enabled(&self) -> bool {
        true
    }
}

/// No event is published in the process. Those of the log are not affected.
#[derive(Clone, Copy, Debug)]
pub struct NoEvents;

impl EventPublisher for NoEvents {
    fn publish(&self, _: &Event) {}
    fn is_enabled(&self) -> bool {
        false
    }
}

/// `events.mode = log`: one log line per event.
#[derive(Clone, Copy, Debug)]
pub struct LogLines;

impl EventPublisher for LogLines {
    fn publish(&self, event: &Event) {
        tracing::info!(
            target: "gapless::events",
            event = event.kind.name(),
            chain.id = event.submitter.chain_id.0,
            submitter = %event.submitter.address_text(),
            tx.id = event.tx_id.map(|id| id.to_string()),
            data = %serde_json::to_string(&event.kind).unwrap_or_default(),
            "domain event"
        );
    }
}

pub fn publisher(mode: EventsMode) -> std::sync::Arc<dyn EventPublisher> {
    match mode {
        EventsMode::Poll | EventsMode::MqOutbox | EventsMode::Webhook => std::sync::Arc::new(NoEvents),
        EventsMode::Log => std::sync::Arc::new(LogLines),
    }
}
