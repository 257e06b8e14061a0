//! The newest events in memory, read from the log once for all streams of the process.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use gapless_events::cloud_event;
use gapless_store::events::{EventCursor, EventFilter, EventPage, LogHead, LoggedEvent};
use gapless_store::notifier;
use gapless_store::{Channel, Store, StoreError};
use gapless_telemetry::metrics::EVENT_STREAMS;
use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore, watch};
use tokio_util::sync::CancellationToken;

/// A stream that is further behind reads from the database if it has just started, and is ended otherwise.
const KEPT_EVENTS: usize = 10_000;
const KEPT_BYTES: usize = 16 << 20;
/// Events read by one statement.
const PAGE: u32 = 1_000;
/// Poll interval: the delay after a lost notification.
const POLL: Duration = Duration::from_millis(500);
/// Pause after an error of the database.
const RETRY: Duration = Duration::from_secs(1);
/// Shortest time between two wake-ups of all streams: a fixed part, and one for each stream, so that thousands of
/// streams get several events at once.
const MIN_PAUSE: Duration = Duration::from_millis(2);
const PAUSE_PER_STREAM: Duration = Duration::from_micros(50);

/// An event with its text, shared by all streams.
#[derive(Debug)]
pub(super) struct FeedEvent {
    pub(super) event: LoggedEvent,
    pub(super) text: String,
}

impl From<LoggedEvent> for FeedEvent {
    fn from(event: LoggedEvent) -> Self {
        FeedEvent { text: cloud_event(&event), event }
    }
}

#[derive(Debug, Default)]
struct Kept {
    /// Empty: nothing was read yet.
    epoch: String,
    /// Position before the first kept event.
    start: i64,
    /// Position of the last one.
    end: i64,
    events: VecDeque<Arc<FeedEvent>>,
    bytes: usize,
}

/// What follows a cursor.
#[derive(Debug)]
pub(super) enum Next {
    /// Nothing yet.
    Wait,
    Events(Vec<Arc<FeedEvent>>),
    /// The events are no longer in memory, or are of another epoch: the database knows.
    NotKept,
}

#[derive(Clone, Debug)]
pub(crate) struct EventFeed {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    store: Store,
    kept: Mutex<Kept>,
    /// Counts the additions.
    added: watch::Sender<u64>,
    streams: AtomicUsize,
    max_streams: usize,
    started: Notify,
    /// Streams that catch up use one connection together, so that they leave the others to requests.
    catching_up: Semaphore,
}

/// An open stream, counted until it is dropped.
#[derive(Debug)]
pub(super) struct OpenStream(EventFeed);

impl Drop for OpenStream {
    fn drop(&mut self) {
        let left = self.0.inner.streams.fetch_sub(1, Ordering::Relaxed) - 1;
        metrics::gauge!(EVENT_STREAMS).set(left as f64);
    }
}

impl EventFeed {
    pub(crate) fn start(store: Store, max_streams: usize, stop: CancellationToken) -> EventFeed {
        let feed = EventFeed {
            inner: Arc::new(Inner {
                store: store.clone(),
                kept: Mutex::default(),
                added: watch::Sender::new(0),
                streams: AtomicUsize::new(0),
                max_streams,
                started: Notify::new(),
                catching_up: Semaphore::new(1),
            }),
        };
        let logged = Arc::new(Notify::new());
        let listener = notifier::listen(store, Channel::Events, {
            let logged = logged.clone();
            move |_| logged.notify_one()
        });
        let reader = feed.clone().read(logged);
        tokio::spawn(async move {
            tokio::select! {
                () = stop.cancelled() => {}
                () = listener => {}
                () = reader => {}
            }
        });
        feed
    }

    /// `None`: there are too many.
    pub(super) fn open(&self) -> Option<OpenStream> {
        let streams = &self.inner.streams;
        let count = |open: usize| (open < self.inner.max_streams).then_some(open + 1);
        let before = streams.fetch_update(Ordering::Relaxed, Ordering::Relaxed, count).ok()?;
        metrics::gauge!(EVENT_STREAMS).set((before + 1) as f64);
        self.inner.started.notify_one();
        Some(OpenStream(self.clone()))
    }

    pub(super) fn added(&self) -> watch::Receiver<u64> {
        self.inner.added.subscribe()
    }

    /// The events after a cursor, at most `limit`.
    pub(super) fn after(&self, cursor: &EventCursor, limit: usize) -> Next {
        let kept = self.inner.kept.lock();
        if kept.epoch != cursor.epoch || cursor.position < kept.start || cursor.position > kept.end {
            return Next::NotKept;
        }
        let skipped = usize::try_from(cursor.position - kept.start).unwrap_or(usize::MAX);
        let events: Vec<_> = kept.events.iter().skip(skipped).take(limit).cloned().collect();
        if events.is_empty() { Next::Wait } else { Next::Events(events) }
    }

    /// Of the kept events; empty before the first.
    pub(super) fn epoch(&self) -> String {
        self.inner.kept.lock().epoch.clone()
    }

    pub(crate) async fn head(&self) -> Result<LogHead, StoreError> {
        self.inner.store.event_head().await
    }

    /// A page of the log from the database, for a stream that catches up.
    pub(super) async fn read_page(
        &self,
        cursor: &EventCursor,
        filter: &EventFilter,
        limit: u32,
    ) -> Result<EventPage, StoreError> {
        // The semaphore is never closed.
        let _turn = self.inner.catching_up.acquire().await;
        self.inner.store.read_events(cursor, filter, limit).await
    }

    /// Reads the log while there are streams.
    async fn read(self, logged: Arc<Notify>) {
        let mut reported = false;
        loop {
            if self.inner.streams.load(Ordering::Relaxed) == 0 {
                *self.inner.kept.lock() = Kept::default();
                self.inner.started.notified().await;
                continue;
            }
            let pause = match self.read_new().await {
                Ok(added) => {
                    reported = false;
                    if added {
                        self.inner.added.send_modify(|count| *count += 1);
                    }
                    let streams = self.inner.streams.load(Ordering::Relaxed);
                    PAUSE_PER_STREAM.saturating_mul(u32::try_from(streams).unwrap_or(u32::MAX)).max(MIN_PAUSE)
                }
                Err(error) => {
                    if !std::mem::replace(&mut reported, true) {
                        tracing::warn!(%error, "event streams wait: the log cannot be read; retrying");
                    }
                    RETRY
                }
            };
            tokio::time::sleep(pause).await;
            let _ = tokio::time::timeout(POLL, logged.notified()).await;
        }
    }

    /// Adds what the log has after the kept events. False: nothing.
    async fn read_new(&self) -> Result<bool, StoreError> {
        let (epoch, end) = {
            let kept = self.inner.kept.lock();
            (kept.epoch.clone(), kept.end)
        };
        if epoch.is_empty() {
            self.begin_at(&self.inner.store.event_head().await?);
            return Ok(true);
        }
        let mut cursor = EventCursor { epoch, position: end };
        let mut added = false;
        loop {
            let page = self.inner.store.read_events(&cursor, &EventFilter::default(), PAGE).await?;
            if page.reset.is_some() {
                if page.head.epoch == cursor.epoch && page.head.position < cursor.position {
                    // The log is shorter than it was: the database was replaced by an older copy of itself.
                    tracing::warn!(
                        position = page.head.position,
                        was = cursor.position,
                        "the event log went back; every reader is reset"
                    );
                    self.inner.store.renew_event_epoch(true).await?;
                }
                self.begin_at(&self.inner.store.event_head().await?);
                return Ok(true);
            }
            if page.events.is_empty() {
                return Ok(added);
            }
            added = true;
            let is_full = page.events.len() == PAGE as usize;
            cursor.position = page.read_to;
            self.keep(page.events);
            if !is_full {
                return Ok(true);
            }
        }
    }

    fn begin_at(&self, head: &LogHead) {
        let (start, end) = (head.position, head.position);
        *self.inner.kept.lock() = Kept { epoch: head.epoch.clone(), start, end, ..Kept::default() };
    }

    fn keep(&self, events: Vec<LoggedEvent>) {
        let events: Vec<FeedEvent> = events.into_iter().map(FeedEvent::from).collect();
        let mut kept = self.inner.kept.lock();
        for event in events {
            kept.end = event.event.position;
            kept.bytes += event.text.len();
            kept.events.push_back(Arc::new(event));
        }
        while kept.events.len() > KEPT_EVENTS || kept.bytes > KEPT_BYTES {
            let Some(oldest) = kept.events.pop_front() else { break };
            kept.bytes -= oldest.text.len();
            kept.start = oldest.event.position;
        }
    }
}
