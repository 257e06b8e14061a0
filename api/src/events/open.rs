//! The open streams of the process and their limit.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use gapless_events::{EventFeed, Subscription};
use gapless_telemetry::metrics::EVENT_STREAMS;

#[derive(Debug)]
pub(crate) struct EventStreams {
    feed: EventFeed,
    open: Arc<AtomicUsize>,
    max: usize,
}

/// An open stream, counted until it is dropped.
#[derive(Debug)]
pub(super) struct OpenStream {
    open: Arc<AtomicUsize>,
    _subscription: Subscription,
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        let left = self.open.fetch_sub(1, Ordering::Relaxed) - 1;
        metrics::gauge!(EVENT_STREAMS).set(left as f64);
    }
}

impl EventStreams {
    pub(crate) fn new(feed: EventFeed, max: usize) -> EventStreams {
        EventStreams { feed, open: Arc::default(), max }
    }

    pub(super) fn feed(&self) -> &EventFeed {
        &self.feed
    }

    /// `None`: there are too many.
    pub(super) fn open(&self) -> Option<OpenStream> {
        let count = |open: usize| (open < self.max).then_some(open + 1);
        let before = self.open.fetch_update(Ordering::Relaxed, Ordering::Relaxed, count).ok()?;
        metrics::gauge!(EVENT_STREAMS).set((before + 1) as f64);
        Some(OpenStream { open: self.open.clone(), _subscription: self.feed.subscribe() })
    }
}
