//! One event stream, as server-sent events. The client sets the pace: the next part is made when the last one was taken,
//! and nothing is stored for it in between.

use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use gapless_events::{EventFeed, FeedEvent, Next};
use gapless_http::ClientConnection;
use gapless_store::events::{EventCursor, EventFilter, EventPage, LogHead, ResetReason};
use gapless_telemetry::metrics::{EVENT_RESETS_TOTAL, EVENT_STREAMS_ENDED_TOTAL};
use poem::Body;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::open::OpenStream;
use crate::app::SharedApp;
use crate::auth::{Caller, Read};
use crate::error::ApiError;

/// A comment that keeps idle connections open, with the position that was reached.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// How often the key is looked up.
const RECHECK: Duration = Duration::from_secs(3);
/// Events in one part.
const PART: usize = 200;
/// How long a client waits before it connects again, in milliseconds.
const RECONNECT_MILLIS: u32 = 2_000;
/// Pause after an error of the database.
const RETRY: Duration = Duration::from_secs(1);

type Part = Result<String, std::io::Error>;

/// Where a stream begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Start {
    /// With the oldest event.
    Oldest,
    /// With the next one.
    Now,
    After(EventCursor),
}

impl Start {
    pub(crate) fn cursor(self, head: &LogHead) -> EventCursor {
        match self {
            Start::Oldest => head.start(),
            Start::Now => head.end(),
            Start::After(cursor) => cursor,
        }
    }
}

#[derive(Debug)]
pub(crate) struct StreamRequest {
    pub(crate) caller: Caller<Read>,
    pub(crate) start: Start,
    pub(crate) filter: EventFilter,
    pub(crate) connection: Option<ClientConnection>,
}

/// Why the server ends a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// The client is too slow.
    Slow,
    /// The key is no longer valid.
    Key,
    Stop,
    /// The client is gone.
    Client,
}

impl End {
    fn as_str(self) -> &'static str {
        match self {
            End::Slow => "slow",
            End::Key => "key",
            End::Stop => "stop",
            End::Client => "client",
        }
    }
}

pub(crate) async fn open_stream(app: &SharedApp, request: StreamRequest) -> Result<Body, ApiError> {
    let open = app.events.open().ok_or(ApiError::TooManyStreams)?;
    let cursor = request.start.clone().cursor(&app.events.feed().head().await?);
    if let Some(connection) = &request.connection {
        // Streams have a limit of their own.
        connection.free_slot();
    }
    let (parts, mut body) = mpsc::channel(1);
    let stream = EventStream {
        app: app.clone(),
        caller: request.caller,
        filter: request.filter,
        cursor,
        is_live: false,
        checked_at: Instant::now(),
        sent_at: Instant::now(),
        parts,
        _open: open,
    };
    tokio::spawn(stream.run());
    Ok(Body::from_bytes_stream(futures::stream::poll_fn(move |context| body.poll_recv(context))))
}

struct EventStream {
    app: SharedApp,
    caller: Caller<Read>,
    filter: EventFilter,
    /// Everything up to here was sent, or does not match.
    cursor: EventCursor,
    /// It has once had the newest event.
    is_live: bool,
    checked_at: Instant,
    sent_at: Instant,
    parts: mpsc::Sender<Part>,
    _open: OpenStream,
}

impl EventStream {
    async fn run(mut self) {
        let Err(end) = self.send_all().await;
        if end != End::Client {
            metrics::counter!(EVENT_STREAMS_ENDED_TOTAL, "reason" => end.as_str()).increment(1);
        }
        tracing::debug!(reason = end.as_str(), cursor = %self.cursor, "event stream ended");
    }

    async fn send_all(&mut self) -> Result<std::convert::Infallible, End> {
        let feed: EventFeed = self.app.events.feed().clone();
        let mut added = feed.added();
        // With the cursor, so that a client that loses the connection before the first event misses none.
        self.send(format!("retry: {RECONNECT_MILLIS}\nid: {}\n\n", self.cursor)).await?;
        loop {
            added.mark_unchanged();
            match feed.after(&self.cursor, PART) {
                Next::Events(events) => {
                    self.is_live = true;
                    self.send_events(&events).await?;
                }
                Next::Wait => {
                    self.is_live = true;
                    self.wait(&mut added).await?;
                }
                Next::NotKept if self.is_too_slow() => return Err(End::Slow),
                Next::NotKept => self.catch_up(&feed).await?,
            }
        }
    }

    /// It had the newest event, and now is behind all that are in memory.
    fn is_too_slow(&self) -> bool {
        let feed = self.app.events.feed();
        let is_reset = || feed.epoch() != self.cursor.epoch;
        self.is_live && matches!(feed.after(&self.cursor, 1), Next::NotKept) && !is_reset()
    }

    /// Sends the next page of the log from the database.
    async fn catch_up(&mut self, feed: &EventFeed) -> Result<(), End> {
        self.check().await?;
        // One part at a time: nothing is stored while the client reads it.
        let page = loop {
            let read = feed.read_page(&self.cursor, &self.filter, PART as u32);
            let next = (self.sent_at + KEEP_ALIVE).min(self.checked_at + RECHECK);
            tokio::select! {
                page = read => break page,
                // Others are before it: it asks again.
                () = tokio::time::sleep_until(next) => {}
                () = self.app.shutdown.cancelled() => return Err(End::Stop),
                () = self.parts.closed() => return Err(End::Client),
            }
            self.keep_alive().await?;
            self.check().await?;
        };
        match page {
            Ok(EventPage { reset: Some(reason), head, .. }) => self.reset(reason, &head).await,
            Ok(page) => {
                self.is_live = false;
                let read_to = page.read_to;
                // At the end of the log, which the feed has not read yet.
                let is_end = page.events.is_empty() && read_to == self.cursor.position;
                let events: Vec<_> =
                    page.events.into_iter().map(|event| Arc::new(FeedEvent::from(event))).collect();
                self.send_events(&events).await?;
                self.cursor.position = read_to;
                if is_end {
                    self.pause(Duration::from_millis(20)).await?;
                }
                Ok(())
            }
            Err(error) => {
                tracing::debug!(%error, "an event stream cannot read the log; retrying");
                self.pause(RETRY).await
            }
        }
    }

    /// Tells the client that events are missing, and goes on with the oldest.
    async fn reset(&mut self, reason: ResetReason, head: &LogHead) -> Result<(), End> {
        metrics::counter!(EVENT_RESETS_TOTAL, "reason" => reason.as_str()).increment(1);
        tracing::warn!(reason = reason.as_str(), cursor = %self.cursor,
            "the cursor of an event stream has no place in the log; the stream goes on with the oldest event");
        self.cursor = head.start();
        self.is_live = false;
        let (cursor, reason) = (&self.cursor, reason.as_str());
        self.send(format!(
            "event: reset\nid: {cursor}\ndata: {{\"reason\":\"{reason}\",\"cursor\":\"{cursor}\"}}\n\n"
        ))
        .await
    }

    async fn send_events(&mut self, events: &[Arc<FeedEvent>]) -> Result<(), End> {
        let mut part = String::new();
        for event in events.iter().filter(|event| self.filter.matches(&event.event)) {
            let (epoch, position) = (&self.cursor.epoch, event.event.position);
            // Writing to a string cannot fail.
            let _ = write!(part, "id: {epoch}.{position}\ndata: {}\n\n", event.text);
        }
        if let Some(last) = events.last() {
            self.cursor.position = last.event.position;
        }
        if part.is_empty() { self.keep_alive().await } else { self.send(part).await }
    }

    /// Waits for new events; meanwhile the connection is kept open and the key is looked up.
    async fn wait(&mut self, added: &mut tokio::sync::watch::Receiver<u64>) -> Result<(), End> {
        let next = (self.sent_at + KEEP_ALIVE).min(self.checked_at + RECHECK);
        tokio::select! {
            _ = added.changed() => {}
            () = tokio::time::sleep_until(next) => {}
            () = self.app.shutdown.cancelled() => return Err(End::Stop),
            () = self.parts.closed() => return Err(End::Client),
        }
        self.keep_alive().await?;
        self.check().await
    }

    async fn pause(&mut self, time: Duration) -> Result<(), End> {
        tokio::select! {
            () = tokio::time::sleep(time) => {}
            () = self.app.shutdown.cancelled() => return Err(End::Stop),
            () = self.parts.closed() => return Err(End::Client),
        }
        self.keep_alive().await?;
        self.check().await
    }

    /// A comment, and the position: a client whose filter matches nothing for long does not fall behind retention.
    async fn keep_alive(&mut self) -> Result<(), End> {
        if self.sent_at.elapsed() < KEEP_ALIVE {
            return Ok(());
        }
        self.send(format!(": keep-alive\nid: {}\n\n", self.cursor)).await
    }

    async fn check(&mut self) -> Result<(), End> {
        if self.checked_at.elapsed() < RECHECK {
            return Ok(());
        }
        self.checked_at = Instant::now();
        match self.caller.recheck(&self.app.authenticator).await {
            // While the database is away nothing is sent either.
            Ok(()) | Err(ApiError::DatabaseUnavailable) => Ok(()),
            Err(_) => Err(End::Key),
        }
    }

    /// Returns when the client has taken the part before this one.
    async fn send(&mut self, part: String) -> Result<(), End> {
        let parts = self.parts.clone();
        let mut sending = std::pin::pin!(parts.send(Ok(part)));
        loop {
            tokio::select! {
                sent = &mut sending => {
                    self.sent_at = Instant::now();
                    return sent.map_err(|_| End::Client);
                }
                () = self.app.shutdown.cancelled() => return Err(End::Stop),
                () = tokio::time::sleep_until(self.checked_at + RECHECK) => {
                    self.check().await?;
                    if self.is_too_slow() {
                        return Err(End::Slow);
                    }
                }
            }
        }
    }
}
