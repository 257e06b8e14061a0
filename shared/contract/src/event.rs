//! The contract of `EventPublisher`.

use std::time::{Duration, Instant};

use super::Findings;
use gapless_domain::Event;
use gapless_events::EventPublisher;

/// Limit per event. A lane publishes between two steps, so `publish` must not wait for the consumer.
const LIMIT: Duration = Duration::from_millis(50);
const EVENTS: u32 = 100;

/// `publish` returns at once, also for repeated events. `is_enabled` is constant.
pub fn event_publisher(publisher: &dyn EventPublisher, event: &Event) -> Vec<String> {
    let mut found = Findings::default();
    let started = Instant::now();
    for _ in 0..EVENTS {
        publisher.publish(event);
    }
    let each = started.elapsed() / EVENTS;
    found.expect(each < LIMIT, format!("publish: {each:?} per event; it must not block"));
    found.expect(publisher.is_enabled() == publisher.is_enabled(), "is_enabled: the value changes");
    found.0
}
