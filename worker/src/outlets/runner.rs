//! Delivers to one outlet, as long as this process has its lease.
//!
//! Sends, reads and writes run at the same time as tasks; this loop decides what comes next. A result is stored some
//! time after it is known: a crash in between delivers the event again, with the same id.

use std::sync::Arc;
use std::time::Duration;

use gapless_events::{EventFeed, FeedEvent, Next as Feed, cloud_event};
use gapless_store::events::{EventCursor, EventFilter, EventPage, LogHead, ResetReason};
use gapless_store::outlets::{
    LoadedOutlet, OutletLease, OutletReset, OutletState, OutletWrite, Replay, Sequence, Written,
};
use gapless_store::webhooks::{DeliveryState, DisabledReason};
use gapless_store::{Store, StoreError};
use gapless_telemetry::metrics as m;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::outlet::{Message, Outlet, Sent};
use super::progress::{Job, Next, Progress};
use super::results::{Attempt, AttemptResult};
use super::{Settings, notices};
use crate::failpoint;

/// Events read from the log at once.
const PAGE: usize = 256;
/// Shortest time between two writes of results.
const WRITE_PAUSE: Duration = Duration::from_millis(100);
/// Longest time until a cursor that moved without deliveries is stored.
const CURSOR_PAUSE: Duration = Duration::from_secs(2);
/// After an error of the database.
const RETRY: Duration = Duration::from_secs(1);
/// Until the feed has read the end of the log.
const END_OF_LOG: Duration = Duration::from_millis(20);
/// How long an ended session waits for what is under way.
const DRAIN: Duration = Duration::from_secs(3);
/// Replays loaded at once, and below how many more are loaded.
const REPLAYS: u32 = 1_000;
const FEW_REPLAYS: usize = 500;
/// With more results that are not stored, nothing is sent.
const MAX_UNWRITTEN: usize = 1_000;

/// Why a session ended.
#[derive(Debug)]
pub(super) enum End {
    Stopped,
    LeaseLost,
    /// This worker does not have the key that decrypts the secret.
    Unusable,
    /// The settings changed: load them again.
    Changed,
    Disabled(DisabledReason),
    Reset(ResetReason, LogHead),
}

/// What a task has done.
enum Finished {
    Sent {
        sequence: Sequence,
        job: Job,
        sent: Sent,
        duration: Duration,
    },
    /// A replay whose event does not exist any more.
    Missing {
        sequence: Sequence,
        job: Job,
    },
    /// The database could not be read, or the lease is not recent.
    NotRead {
        sequence: Sequence,
        job: Option<Job>,
    },
    Fetched {
        sequence: Sequence,
        page: EventPage,
    },
    Written(Result<Written, StoreError>),
}

/// One load of an outlet, until it ends or its settings change.
pub(super) struct Session<'a> {
    store: &'a Store,
    feed: &'a EventFeed,
    lease: &'a Arc<OutletLease>,
    settings: &'a Settings,
    state: &'a mut watch::Receiver<Option<OutletState>>,
    outlet: Arc<dyn Outlet>,
    filter: EventFilter,
    epoch: String,
    revision: i64,
    progress: Progress,
    tasks: JoinSet<Finished>,
    /// Sends and reads under way.
    under_way: usize,
    /// Being written, or to be written again.
    write: Option<Arc<OutletWrite>>,
    is_writing: bool,
    written_at: Instant,
    /// When a write that failed is repeated.
    rewrite_at: Option<Instant>,
    /// When the database is read again: after an error, or because the feed does not have the end of the log yet.
    reread_at: Option<Instant>,
    /// A page of the log was read, and there is more.
    is_reading: bool,
    replay_no: i64,
    more_replays: bool,
    failing_since: Option<Instant>,
    /// An error of the database was logged, and nothing was stored since.
    is_reported: bool,
    end: Option<(End, Instant)>,
}

impl<'a> Session<'a> {
    pub(super) fn new(
        store: &'a Store,
        feed: &'a EventFeed,
        lease: &'a Arc<OutletLease>,
        settings: &'a Settings,
        state: &'a mut watch::Receiver<Option<OutletState>>,
        outlet: Arc<dyn Outlet>,
        loaded: LoadedOutlet,
    ) -> Session<'a> {
        let now = Instant::now();
        let LoadedOutlet { settings: webhook, cursor, failing_for, behind, .. } = loaded;
        Session {
            store,
            feed,
            lease,
            settings,
            state,
            outlet,
            filter: webhook.filter,
            epoch: cursor.epoch,
            revision: webhook.revision,
            progress: Progress::new(
                settings.schedule.clone(),
                settings.max_in_flight,
                cursor.position,
                behind,
                now,
            ),
            tasks: JoinSet::new(),
            under_way: 0,
            write: None,
            is_writing: false,
            written_at: now,
            rewrite_at: None,
            reread_at: None,
            is_reading: false,
            replay_no: 0,
            more_replays: false,
            failing_since: failing_for.and_then(|time| now.checked_sub(time)),
            is_reported: false,
            end: None,
        }
    }

    pub(super) async fn run(mut self, stop: &CancellationToken) -> Result<End, StoreError> {
        let subscription = self.feed.subscribe();
        let mut added = self.feed.added();
        self.follow_state().await;
        loop {
            if self.end.is_none() {
                self.read().await;
                self.dispatch();
            }
            self.start_write();
            if let Some((end, until)) = self.end.take() {
                let is_quiet = self.under_way == 0 && !self.is_writing && self.write.is_none();
                if is_quiet || Instant::now() >= until || matches!(end, End::LeaseLost) {
                    drop(subscription);
                    return self.finish(end).await;
                }
                self.end = Some((end, until));
            }
            let (is_live, wake_at) = (self.end.is_none(), self.wake_at());
            tokio::select! {
                Some(finished) = self.tasks.join_next() => {
                    // After a panic nothing is known of the attempt: the outlet is loaded again.
                    match finished {
                        Ok(finished) => self.finished(finished),
                        Err(error) => {
                            tracing::error!(%error, "a delivery panicked");
                            self.end_with(End::Changed);
                        }
                    }
                }
                _ = added.changed(), if is_live && self.progress.has_room() => {}
                changed = self.state.changed(), if is_live => {
                    if changed.is_err() { self.end_with(End::Stopped) } else { self.follow_state().await }
                }
                () = stop.cancelled(), if is_live => self.end_with(End::Stopped),
                () = tokio::time::sleep_until(wake_at) => {}
            }
        }
    }

    fn end_with(&mut self, end: End) {
        if self.end.is_none() || matches!(end, End::LeaseLost) {
            self.end = Some((end, Instant::now() + DRAIN));
        }
    }

    fn wake_at(&self) -> Instant {
        let now = Instant::now();
        if self.is_reading && self.end.is_none() {
            return now;
        }
        let mut at = now + CURSOR_PAUSE;
        if self.progress.has_results() && !self.is_writing && self.write.is_none() {
            at = at.min(self.written_at + WRITE_PAUSE);
        }
        if !self.lease.may_send() {
            at = at.min(now + WRITE_PAUSE);
        }
        let end = self.end.as_ref().map(|(_, until)| *until);
        let times = [self.progress.next_due(), self.rewrite_at, self.reread_at, end];
        // A time that has passed was looked at in this round: it waits for something that wakes the loop.
        times.into_iter().flatten().filter(|time| *time > now).fold(at, Instant::min).max(now)
    }

    /// What the manager has read of the webhook: whether it changed, its key, and new replays.
    async fn follow_state(&mut self) {
        let Some(state) = self.state.borrow_and_update().clone() else { return };
        if !state.key_usable {
            self.end_with(End::Disabled(DisabledReason::KeyRevoked));
        } else if !state.is_enabled {
            self.end_with(End::Stopped);
        } else if state.revision > self.revision {
            self.end_with(End::Changed);
        } else if state.replay_no > self.replay_no {
            self.replay_no = state.replay_no;
            self.more_replays = true;
        }
    }

    /// Reads replays and events. An error of the database ends nothing: what is under way goes on.
    async fn read(&mut self) {
        self.is_reading = false;
        let now = Instant::now();
        if self.reread_at.is_some_and(|at| at > now) {
            return;
        }
        self.reread_at = None;
        let read = async {
            if self.more_replays && self.progress.loaded_replays() < FEW_REPLAYS {
                self.load_replays().await?;
            }
            self.read_log().await
        };
        if let Err(error) = read.await {
            if !std::mem::replace(&mut self.is_reported, true) {
                tracing::warn!(%error, outlet = %self.lease.outlet_id(), "events cannot be read; retrying");
            }
            self.reread_at = Some(Instant::now() + RETRY);
        }
    }

    async fn load_replays(&mut self) -> Result<(), StoreError> {
        let replays = self.store.load_replays(self.lease, REPLAYS).await?;
        self.more_replays = replays.len() == REPLAYS as usize;
        self.progress.add_replays(replays, Instant::now());
        Ok(())
    }

    /// Events from memory, and at most one page of the database.
    async fn read_log(&mut self) -> Result<(), StoreError> {
        while self.progress.has_room() {
            let cursor = EventCursor { epoch: self.epoch.clone(), position: self.progress.read_to() };
            let now = Instant::now();
            match self.feed.after(&cursor, PAGE) {
                Feed::Wait => return Ok(()),
                Feed::Events(events) => {
                    for event in events {
                        let matches = self.filter.matches(&event.event);
                        self.progress.offer(event, matches, now);
                    }
                }
                Feed::NotKept => return self.read_page(&cursor).await,
            }
        }
        Ok(())
    }

    async fn read_page(&mut self, cursor: &EventCursor) -> Result<(), StoreError> {
        let page = self.feed.read_page(cursor, &self.filter, PAGE as u32).await?;
        if let Some(reason) = page.reset {
            self.end_with(End::Reset(reason, page.head));
            return Ok(());
        }
        let now = Instant::now();
        let is_end = page.events.is_empty() && page.read_to == cursor.position;
        for event in page.events {
            self.progress.offer(Arc::new(FeedEvent::from(event)), true, now);
        }
        self.progress.skip_to(page.read_to);
        self.is_reading = !is_end;
        // The end of the log is there before the feed has read it.
        self.reread_at = is_end.then_some(now + END_OF_LOG);
        Ok(())
    }

    fn dispatch(&mut self) {
        // Results that cannot be stored would be delivered again after a restart.
        let is_stuck = self.rewrite_at.is_some() || self.progress.unwritten() > MAX_UNWRITTEN;
        while !is_stuck && self.under_way < self.settings.max_in_flight && self.lease.may_send() {
            match self.progress.next(Instant::now()) {
                Some(Next::Send(sequence, job)) => self.send(sequence, job),
                Some(Next::Fetch(sequence, after, count)) => self.fetch(sequence, after, count),
                None => return,
            }
        }
    }

    fn send(&mut self, sequence: Sequence, job: Job) {
        self.under_way += 1;
        let (outlet, feed, lease) = (self.outlet.clone(), self.feed.clone(), self.lease.clone());
        let epoch = self.epoch.clone();
        self.tasks.spawn(async move {
            let message = match &job {
                Job::Event(event) => Ok(Some(Message { id: event.event.id, body: event.text.clone() })),
                Job::Replay(replay) => replayed(&feed, epoch, replay, lease.outlet_id()).await,
            };
            let message = match message {
                Ok(Some(message)) => message,
                Ok(None) => return Finished::Missing { sequence, job },
                Err(error) => {
                    tracing::debug!(%error, "a replay cannot be read; retrying");
                    return Finished::NotRead { sequence, job: Some(job) };
                }
            };
            if !lease.may_send() {
                return Finished::NotRead { sequence, job: Some(job) };
            }
            let began = Instant::now();
            let sent = outlet.send(message).await;
            failpoint::hit("delivered");
            Finished::Sent { sequence, job, sent, duration: began.elapsed() }
        });
    }

    fn fetch(&mut self, sequence: Sequence, after: i64, count: u32) {
        self.under_way += 1;
        let filter = EventFilter {
            submitter: sequence,
            only_without_submitter: sequence.is_none(),
            ..self.filter.clone()
        };
        let cursor = EventCursor { epoch: self.epoch.clone(), position: after };
        let feed = self.feed.clone();
        self.tasks.spawn(async move {
            match feed.read_page(&cursor, &filter, count).await {
                Ok(page) => Finished::Fetched { sequence, page },
                Err(error) => {
                    tracing::debug!(%error, "events cannot be read; retrying");
                    Finished::NotRead { sequence, job: None }
                }
            }
        });
    }

    fn finished(&mut self, finished: Finished) {
        let now = Instant::now();
        match finished {
            Finished::Written(result) => self.write_finished(result),
            Finished::NotRead { sequence, job } => {
                self.under_way -= 1;
                self.progress.postponed(sequence, job, now + RETRY);
            }
            Finished::Missing { sequence, job } => {
                self.under_way -= 1;
                let attempt =
                    Attempt { result: AttemptResult::Missing, status_code: None, duration: Duration::ZERO };
                self.progress.done(sequence, job, attempt, now);
            }
            Finished::Fetched { sequence, page } => {
                self.under_way -= 1;
                if let Some(reason) = page.reset {
                    self.progress.postponed(sequence, None, now + RETRY);
                    self.end_with(End::Reset(reason, page.head));
                    return;
                }
                // The filter may have changed since the submitter fell behind.
                let events = page.events.into_iter().filter(|event| self.filter.matches(event));
                let events = events.map(|event| Arc::new(FeedEvent::from(event)));
                self.progress.fetched(sequence, events.collect(), page.read_to);
            }
            Finished::Sent { sequence, job, sent, duration } => {
                self.under_way -= 1;
                self.sent(sequence, job, sent, duration);
            }
        }
    }

    fn sent(&mut self, sequence: Sequence, job: Job, sent: Sent, duration: Duration) {
        let now = Instant::now();
        let (is_gone, is_delivered) =
            (matches!(sent, Sent::Gone { .. }), matches!(sent, Sent::Delivered { .. }));
        let state = self.progress.done(sequence, job, sent.attempt(duration), now);
        count_delivery(state);
        if is_delivered {
            self.failing_since = None;
            return;
        }
        let since = *self.failing_since.get_or_insert(now);
        if is_gone {
            self.end_with(End::Disabled(DisabledReason::Gone));
        } else if now.saturating_duration_since(since) >= self.settings.disable_after {
            self.end_with(End::Disabled(DisabledReason::Failing));
        }
    }

    /// Stores what is known, one write at a time. A write that failed is repeated before the next.
    fn start_write(&mut self) {
        let now = Instant::now();
        if self.is_writing {
            return;
        }
        if self.write.is_none() {
            let pause = if self.progress.has_results() { WRITE_PAUSE } else { CURSOR_PAUSE };
            if self.end.is_none() && now < self.written_at + pause {
                return;
            }
            self.write = self.progress.take_write(&self.epoch, now).map(Arc::new);
            self.written_at = now;
        } else if self.rewrite_at.is_some_and(|at| at > now) {
            return;
        }
        let Some(write) = self.write.clone() else { return };
        self.is_writing = true;
        let (store, lease) = (self.store.clone(), self.lease.clone());
        self.tasks.spawn(async move { Finished::Written(store.write_outlet(&lease, &write).await) });
    }

    fn write_finished(&mut self, result: Result<Written, StoreError>) {
        self.is_writing = false;
        match result {
            Ok(Written::Yes) => {
                (self.rewrite_at, self.is_reported) = (None, false);
                if let Some(write) = self.write.take() {
                    self.progress.written(&write);
                }
            }
            Ok(Written::LeaseLost) => self.end_with(End::LeaseLost),
            Err(error) => {
                if !std::mem::replace(&mut self.is_reported, true) {
                    tracing::warn!(%error, outlet = %self.lease.outlet_id(),
                        "the state of deliveries could not be stored; retrying");
                }
                self.rewrite_at = Some(Instant::now() + RETRY);
            }
        }
    }

    /// The last write of the session.
    async fn finish(mut self, end: End) -> Result<End, StoreError> {
        self.tasks.abort_all();
        if matches!(end, End::LeaseLost) {
            return Ok(end);
        }
        if let Some(write) = self.write.take()
            && self.store.write_outlet(self.lease, &write).await? == Written::LeaseLost
        {
            return Ok(End::LeaseLost);
        }
        let now = Instant::now();
        let mut write = self.progress.take_last_write(&self.epoch, now).unwrap_or_default();
        match &end {
            End::Disabled(reason) => write.disabled = Some((*reason, self.revision)),
            End::Reset(reason, head) => {
                let start = head.start();
                // Of the same epoch it may be only one submitter whose events are gone.
                let at = match reason {
                    ResetReason::Epoch => start.position,
                    ResetReason::Retention => start.position.max(self.progress.low_water()),
                };
                write.cursor = Some(EventCursor { epoch: head.epoch.clone(), position: at });
                write.reset = Some(OutletReset { id: Uuid::now_v7(), reason: *reason, start });
                // Positions of another epoch.
                if *reason == ResetReason::Epoch {
                    write.behind.clear();
                }
            }
            End::Stopped | End::LeaseLost | End::Unusable | End::Changed => {}
        }
        match self.store.write_outlet(self.lease, &write).await? {
            Written::Yes => Ok(end),
            Written::LeaseLost => Ok(End::LeaseLost),
        }
    }
}

pub(super) fn count_delivery(state: DeliveryState) {
    let result = match state {
        DeliveryState::Delivered => "delivered",
        DeliveryState::Exhausted => "exhausted",
        DeliveryState::Pending | DeliveryState::Retrying => "failed",
    };
    metrics::counter!(m::WEBHOOK_DELIVERIES_TOTAL, "result" => result).increment(1);
}

/// `None`: the event is no longer in the log.
async fn replayed(
    feed: &EventFeed,
    epoch: String,
    replay: &Replay,
    outlet_id: Uuid,
) -> Result<Option<Message>, StoreError> {
    let id = replay.event_id;
    let Some(position) = replay.position else {
        return Ok(Some(notices::test(id, outlet_id)));
    };
    let before = EventCursor { epoch, position: position - 1 };
    let page = feed.read_page(&before, &EventFilter::default(), 1).await?;
    let event = page.events.into_iter().find(|event| event.position == position && event.id == id);
    Ok(event.map(|event| Message { id, body: cloud_event(&event) }))
}
