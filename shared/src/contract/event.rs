//! The contract of `EventPublisher`.

use std::time::{Duration, Instant};

use super::Findings;
use crate::domain::Event;
use crate::events::EventPublisher;

/// A lane publishes between two steps and does not wait: nothing here may take long, whatever the consumer does.
const LIMIT: Duration = Duration::from_millis(50);
const EVENTS: u32 = 100;

/// `publish` returns at once, for the same event as often as it comes. A publisher that nobody hears must say so always.
pub fn event_publisher(publisher: &dyn EventPublisher, event: &Event) -> Vec<String> {
    let mut found = Findings::default();
    let begun = Instant::now();
    for _ in 0..EVENTS {
        publisher.publish(event);
    }
    let each = begun.elapsed() / EVENTS;
    found.expect(each < LIMIT, format!("publish: {each:?} for one event; it must not wait for anybody"));
    found.expect(
        publisher.is_heard() == publisher.is_heard() && publisher.wants_outbox() == publisher.wants_outbox(),
        "is_heard, wants_outbox: the answer changes",
    );
    found.0
}
