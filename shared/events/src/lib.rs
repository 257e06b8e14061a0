//! The port for domain events. Nothing depends on an event being delivered: a lost event loses no transaction.

use gapless_config::EventsMode;
use gapless_domain::Event;

/// Publishes domain events. `publish` is called for every event, after its commit.
pub trait EventPublisher: Send + Sync + std::fmt::Debug {
    fn publish(&self, event: &Event);
    /// Whether events are published at all. If not, data that only an event needs is not computed.
    fn is_enabled(&self) -> bool {
        true
    }
    /// Whether events must also be written to the outbox, in the same commit.
    fn wants_outbox(&self) -> bool {
        false
    }
}

/// `events.mode = poll`: clients poll the API; no event is published.
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

/// The delivering modes: the outbox row is written in the commit of the state change, and a deliverer reads it there.
#[derive(Clone, Copy, Debug)]
pub struct Outbox;

impl EventPublisher for Outbox {
    fn publish(&self, _: &Event) {}
    fn wants_outbox(&self) -> bool {
        true
    }
}

pub fn publisher(mode: EventsMode) -> std::sync::Arc<dyn EventPublisher> {
    match mode {
        EventsMode::Poll => std::sync::Arc::new(NoEvents),
        EventsMode::Log => std::sync::Arc::new(LogLines),
        EventsMode::MqOutbox | EventsMode::Webhook => std::sync::Arc::new(Outbox),
    }
}
