//! The newest events in memory, read from the log once for all readers of the process: streams, or webhooks.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use gapless_store::events::{EventCursor, EventFilter, EventPage, LogHead, LoggedEvent};
use gapless_store::notifier;
use gapless_store::{Channel, Store, StoreError};
use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore, watch};
use tokio_util::sync::CancellationToken;

use crate::envelope::cloud_event;

/// A reader that is further behind reads from the database.
const KEPT_EVENTS: usize = 10_000;
const KEPT_BYTES: usize = 16 << 20;
/// Events read by one statement.
const PAGE: u32 = 1_000;
/// Poll interval: the delay after a lost notification.
const POLL: Duration = Duration::from_millis(500);
/// Pause after an error of the database.
const RETRY: Duration = Duration::from_secs(1);
/// Shortest time between two wake-ups of all subscribers: a fixed part, and one for each, so that thousands of them get
/// several events at once.
const MIN_PAUSE: Duration = Duration::from_millis(2);
const PAUSE_PER_SUBSCRIBER: Duration = Duration::from_micros(50);

/// An event with its text, shared by all subscribers.
#[derive(Debug)]
pub struct FeedEvent {
    pub event: LoggedEvent,
    pub text: String,
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
pub enum Next {
    /// Nothing yet.
    Wait,
    Events(Vec<Arc<FeedEvent>>),
    /// The events are no longer in memory, or are of another epoch: the database knows.
    NotKept,
}

/// Reads the log while it has subscribers.
#[derive(Clone, Debug)]
pub struct EventFeed {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    store: Store,
    kept: Mutex<Kept>,
    /// Counts the additions.
    added: watch::Sender<u64>,
    subscribers: AtomicUsize,
    subscribed: Notify,
    /// Readers that catch up use one connection together, so that they leave the others to the rest of the process.
    catching_up: Semaphore,
}

/// A subscriber, counted until it is dropped.
#[derive(Debug)]
pub struct Subscription(EventFeed);

impl Drop for Subscription {
    fn drop(&mut self) {
        self.0.inner.subscribers.fetch_sub(1, Ordering::Relaxed);
    }
}

impl EventFeed {
    pub fn start(store: Store, stop: CancellationToken) -> EventFeed {
        let feed = EventFeed {
            inner: Arc::new(Inner {
                store: store.clone(),
                kept: Mutex::default(),
                added: watch::Sender::new(0),
                subscribers: AtomicUsize::new(0),
                subscribed: Notify::new(),
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

    /// The log is read until the last subscription is dropped.
    pub fn subscribe(&self) -> Subscription {
        self.inner.subscribers.fetch_add(1, Ordering::Relaxed);
        self.inner.subscribed.notify_one();
        Subscription(self.clone())
    }

    /// Changes with every addition.
    pub fn added(&self) -> watch::Receiver<u64> {
        self.inner.added.subscribe()
    }

    /// The events after a cursor, at most `limit`.
    pub fn after(&self, cursor: &EventCursor, limit: usize) -> Next {
        let kept = self.inner.kept.lock();
        if kept.epoch != cursor.epoch || cursor.position < kept.start || cursor.position > kept.end {
            return Next::NotKept;
        }
        let skipped = usize::try_from(cursor.position - kept.start).unwrap_or(usize::MAX);
        let events: Vec<_> = kept.events.iter().skip(skipped).take(limit).cloned().collect();
        if events.is_empty() { Next::Wait } else { Next::Events(events) }
    }

    /// Of the kept events; empty before the first.
    pub fn epoch(&self) -> String {
        self.inner.kept.lock().epoch.clone()
    }

    pub async fn head(&self) -> Result<LogHead, StoreError> {
        self.inner.store.event_head().await
    }

    /// A page of the log from the database, for a reader that catches up.
    pub async fn read_page(
        &self,
        cursor: &EventCursor,
        filter: &EventFilter,
        limit: u32,
    ) -> Result<EventPage, StoreError> {
        // The semaphore is never closed.
        let _turn = self.inner.catching_up.acquire().await;
        self.inner.store.read_events(cursor, filter, limit).await
    }

    async fn read(self, logged: Arc<Notify>) {
        let mut reported = false;
        loop {
            if self.inner.subscribers.load(Ordering::Relaxed) == 0 {
                *self.inner.kept.lock() = Kept::default();
                self.inner.subscribed.notified().await;
                continue;
            }
            let pause = match self.read_new().await {
                Ok(added) => {
                    reported = false;
                    if added {
                        self.inner.added.send_modify(|count| *count += 1);
                    }
                    let count = self.inner.subscribers.load(Ordering::Relaxed);
                    PAUSE_PER_SUBSCRIBER
                        .saturating_mul(u32::try_from(count).unwrap_or(u32::MAX))
                        .max(MIN_PAUSE)
                }
                Err(error) => {
                    if !std::mem::replace(&mut reported, true) {
                        tracing::warn!(%error, "events wait: the log cannot be read; retrying");
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
