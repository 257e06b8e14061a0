//! The port through which domain events leave. Publishing never decides anything: a lost event loses no transaction.

use crate::config::EventsMode;
use crate::domain::Event;

/// Told of every event after the commit that made it true.
pub trait EventPublisher: Send + Sync + std::fmt::Debug {
    fn publish(&self, event: &Event);
    /// Whether anybody hears of events at all: what exists only to be told is not worked out for nobody.
    fn is_heard(&self) -> bool {
        true
    }
    /// Whether events must also be written to the outbox, in the commit itself.
    fn wants_outbox(&self) -> bool {
        false
    }
}

/// `events.mode = poll`: clients ask; nothing is written.
#[derive(Clone, Copy, Debug)]
pub struct Silent;

impl EventPublisher for Silent {
    fn publish(&self, _: &Event) {}
    fn is_heard(&self) -> bool {
        false
    }
}

/// `events.mode = log`: each event is a log line.
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

/// The delivering modes: the outbox row is written with the state change; a deliverer reads it from there.
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
        EventsMode::Poll => std::sync::Arc::new(Silent),
        EventsMode::Log => std::sync::Arc::new(LogLines),
        EventsMode::MqOutbox | EventsMode::Webhook => std::sync::Arc::new(Outbox),
    }
}
