//! What of the log is delivered to one outlet: plain data, without a clock, a database or a network.
//!
//! The events of a submitter are delivered one after the other; those of different submitters at the same time. A
//! submitter whose event fails, takes long, or that has more events than fit into memory is *behind*: it has a cursor of
//! its own, which is stored. So neither memory nor the common cursor waits for it. The common cursor is a low-water mark:
//! everything up to it is delivered or given up, except what belongs to submitters that are behind.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use gapless_events::FeedEvent;
use gapless_store::events::EventCursor;
use gapless_store::outlets::{BehindRow, BehindWrite, OutletWrite, Replay, ReplayWrite, Sequence};
use gapless_store::webhooks::DeliveryState;
use gapless_webhook::RetrySchedule;
use tokio::time::Instant;

use super::notices;
use super::results::{Attempt, AttemptResult, Delivered, Results};

/// Events of one submitter in memory.
const MAX_QUEUED: usize = 64;
/// Events of all submitters in memory.
const MAX_BUFFERED: usize = 2_000;
/// Reads of the log for submitters that are behind, at the same time.
const MAX_FETCHES: usize = 4;
/// A delivery that takes longer does not hold the common cursor back.
const SLOW: Duration = Duration::from_secs(1);

/// One event to send.
#[derive(Clone, Debug)]
pub(super) enum Job {
    Event(Arc<FeedEvent>),
    /// The event is to be read first, or is a test event.
    Replay(Replay),
}

/// What to do next.
#[derive(Clone, Debug)]
pub(super) enum Next {
    Send(Sequence, Job),
    /// Read events of this submitter after the position, at most so many.
    Fetch(Sequence, i64, u32),
}

/// The cursor of a submitter that is behind.
#[derive(Debug)]
struct Behind {
    /// Events up to here are delivered or given up.
    position: i64,
    /// Failed attempts at the next one.
    attempts: usize,
    due: Instant,
    /// Events up to here are, or were, in memory.
    fetched_to: i64,
    /// It has all events that the others have. Its row is deleted when the common cursor is where it is.
    caught_up: bool,
    /// Differs from the stored row.
    changed: bool,
}

#[derive(Debug, Default)]
struct Queue {
    events: VecDeque<Arc<FeedEvent>>,
    /// By due time and number of the request.
    replays: BTreeMap<(Instant, i64), Replay>,
    /// Since when an attempt or a read is under way.
    busy: Option<Instant>,
    behind: Option<Behind>,
}

impl Queue {
    fn attempts(&self) -> usize {
        self.behind.as_ref().map_or(0, |behind| behind.attempts)
    }

    /// Events of this submitter up to here are delivered or given up.
    fn done_to(&self, read_to: i64) -> i64 {
        match (&self.behind, self.events.front()) {
            (Some(behind), _) => behind.position,
            (None, Some(first)) => first.event.position - 1,
            (None, None) => read_to,
        }
    }
}

#[derive(Debug)]
pub(super) struct Progress {
    schedule: RetrySchedule,
    /// Sends of events that failed before, at the same time: others must not wait for them.
    max_retries: usize,
    /// The log was read up to here.
    read_to: i64,
    queues: HashMap<Sequence, Queue>,
    ready: VecDeque<Sequence>,
    /// Ready, but there are too many retries, reads or events in memory.
    parked: VecDeque<Sequence>,
    timers: BTreeSet<(Instant, Sequence)>,
    buffered: usize,
    fetches: usize,
    retries: usize,
    /// Numbers of the replays that are loaded and still in the database.
    replays: BTreeSet<i64>,
    results: Results,
    /// The stored cursor.
    written: i64,
}

impl Progress {
    pub(super) fn new(
        schedule: RetrySchedule,
        max_in_flight: usize,
        position: i64,
        behind: Vec<BehindRow>,
        now: Instant,
    ) -> Progress {
        let mut progress = Progress {
            schedule,
            max_retries: (max_in_flight / 2).max(1),
            read_to: position,
            queues: HashMap::new(),
            ready: VecDeque::new(),
            parked: VecDeque::new(),
            timers: BTreeSet::new(),
            buffered: 0,
            fetches: 0,
            retries: 0,
            replays: BTreeSet::new(),
            results: Results::default(),
            written: position,
        };
        for row in behind {
            let behind = Behind {
                position: row.position,
                attempts: row.attempts as usize,
                due: now + row.due_in,
                fetched_to: row.position,
                caught_up: false,
                changed: false,
            };
            progress.timers.insert((behind.due, row.sequence));
            progress.queues.insert(row.sequence, Queue { behind: Some(behind), ..Queue::default() });
        }
        progress
    }

    pub(super) fn read_to(&self) -> i64 {
        self.read_to
    }

    /// Whether there is room for more events of the log.
    pub(super) fn has_room(&self) -> bool {
        self.buffered < MAX_BUFFERED
    }

    /// The next event of the log. `matches`: the outlet wants it.
    pub(super) fn offer(&mut self, event: Arc<FeedEvent>, matches: bool, now: Instant) {
        self.read_to = event.event.position;
        if !matches {
            return;
        }
        let sequence = event.event.submitter;
        let queue = self.queues.entry(sequence).or_default();
        // What a submitter that is behind does not have is read for it later.
        let takes = queue.behind.as_ref().is_none_or(|behind| behind.caught_up);
        let is_known = queue.behind.as_ref().is_some_and(|behind| event.event.position <= behind.fetched_to);
        if !takes || is_known {
            return;
        }
        if queue.events.len() >= MAX_QUEUED
            && let Some(last) = queue.events.back()
        {
            let fetched_to = last.event.position;
            let (position, attempts) = (queue.done_to(fetched_to), queue.attempts());
            queue.behind =
                Some(Behind { position, attempts, due: now, fetched_to, caught_up: false, changed: true });
            return;
        }
        queue.events.push_back(event);
        self.buffered += 1;
        self.ready.push_back(sequence);
    }

    /// The log up to here has no more matching events.
    pub(super) fn skip_to(&mut self, position: i64) {
        self.read_to = self.read_to.max(position);
    }

    /// Adds requested replays that are not loaded yet.
    pub(super) fn add_replays(&mut self, replays: Vec<Replay>, now: Instant) {
        for replay in replays {
            if !self.replays.insert(replay.no) {
                continue;
            }
            let (sequence, due) = (replay.sequence, now + replay.due_in);
            self.queues.entry(sequence).or_default().replays.insert((due, replay.no), replay);
            self.timers.insert((due, sequence));
        }
    }

    pub(super) fn loaded_replays(&self) -> usize {
        self.replays.len()
    }

    /// What to send or to read. It counts as under way until `done`, `fetched` or `postponed`.
    pub(super) fn next(&mut self, now: Instant) -> Option<Next> {
        while let Some((due, sequence)) = self.timers.first().copied().filter(|(due, _)| *due <= now) {
            self.timers.remove(&(due, sequence));
            self.ready.push_back(sequence);
        }
        while let Some(sequence) = self.ready.pop_front() {
            let has_room = self.has_room();
            let Some(queue) = self.queues.get_mut(&sequence).filter(|queue| queue.busy.is_none()) else {
                continue;
            };
            while let Some(entry) = queue.replays.first_entry().filter(|entry| entry.key().0 <= now) {
                let replay = entry.remove();
                if replay.position.is_some_and(|position| position > queue.done_to(self.read_to)) {
                    // It is delivered in its turn, which is now.
                    self.results.add_replay(ReplayWrite::Done { no: replay.no });
                    if let Some(behind) = queue.behind.as_mut().filter(|behind| behind.due > now) {
                        (behind.due, behind.changed) = (now, true);
                    }
                    continue;
                }
                queue.busy = Some(now);
                return Some(Next::Send(sequence, Job::Replay(replay)));
            }
            if queue.behind.as_ref().is_some_and(|behind| behind.due > now) {
                continue;
            }
            let attempts = queue.attempts();
            if let Some(event) = queue.events.front() {
                if attempts > 0 && self.retries >= self.max_retries {
                    self.parked.push_back(sequence);
                    continue;
                }
                self.retries += usize::from(attempts > 0);
                queue.busy = Some(now);
                return Some(Next::Send(sequence, Job::Event(event.clone())));
            }
            if let Some(behind) = queue.behind.as_ref().filter(|behind| !behind.caught_up) {
                if self.fetches >= MAX_FETCHES || !has_room {
                    self.parked.push_back(sequence);
                    continue;
                }
                self.fetches += 1;
                queue.busy = Some(now);
                // What comes after an event that fails again is not needed.
                let count = if attempts > 0 { 1 } else { MAX_QUEUED as u32 };
                return Some(Next::Fetch(sequence, behind.fetched_to, count));
            }
        }
        None
    }

    /// When `next` may have something that it does not have now.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.timers.first().map(|(due, _)| *due)
    }

    /// The events of a submitter that is behind, up to a position.
    pub(super) fn fetched(&mut self, sequence: Sequence, events: Vec<Arc<FeedEvent>>, read_to: i64) {
        self.fetches -= 1;
        self.unpark();
        let Some(queue) = self.queues.get_mut(&sequence) else { return };
        queue.busy = None;
        let Some(behind) = &mut queue.behind else { return };
        // What the others do not have yet is offered to all.
        behind.fetched_to = behind.fetched_to.max(read_to.min(self.read_to));
        behind.caught_up = read_to >= self.read_to;
        if events.is_empty() {
            // The event that failed is not wanted any more: the filter was changed.
            behind.attempts = 0;
        }
        let before = queue.events.len();
        queue.events.extend(events.into_iter().filter(|event| event.event.position <= self.read_to));
        self.buffered += queue.events.len() - before;
        // Next, so that not all submitters are read before the first is sent.
        self.ready.push_front(sequence);
    }

    /// A read failed (without a job), or what was to be sent was not sent: it is tried again later.
    pub(super) fn postponed(&mut self, sequence: Sequence, job: Option<Job>, until: Instant) {
        match &job {
            None => self.fetches -= 1,
            Some(Job::Event(_)) => self.retry_ended(sequence),
            Some(Job::Replay(_)) => {}
        }
        self.unpark();
        let Some(queue) = self.queues.get_mut(&sequence) else { return };
        queue.busy = None;
        if let Some(Job::Replay(replay)) = job {
            queue.replays.insert((until, replay.no), replay);
        }
        self.timers.insert((until, sequence));
    }

    /// An attempt has ended. Returns the state of the delivery.
    pub(super) fn done(
        &mut self,
        sequence: Sequence,
        job: Job,
        attempt: Attempt,
        now: Instant,
    ) -> DeliveryState {
        if matches!(job, Job::Event(_)) {
            self.retry_ended(sequence);
        }
        let state = match job {
            Job::Event(event) => self.event_done(sequence, &event, attempt, now),
            Job::Replay(replay) => self.replay_done(sequence, replay, attempt, now),
        };
        if let Some(queue) = self.queues.get_mut(&sequence) {
            queue.busy = None;
        }
        self.ready.push_back(sequence);
        self.unpark();
        state
    }

    fn event_done(
        &mut self,
        sequence: Sequence,
        event: &FeedEvent,
        attempt: Attempt,
        now: Instant,
    ) -> DeliveryState {
        let position = event.event.position;
        let queue = self.queues.entry(sequence).or_default();
        let made = queue.attempts() + 1;
        let (state, wait) = outcome(&self.schedule, &attempt.result, made);
        if let Some(wait) = wait {
            self.buffered -= queue.events.len();
            queue.events.clear();
            let (before, due) = (position - 1, now + wait);
            queue.behind = Some(Behind {
                position: before,
                attempts: made,
                due,
                fetched_to: before,
                caught_up: false,
                changed: true,
            });
            self.timers.insert((due, sequence));
        } else {
            if queue.events.pop_front().is_some() {
                self.buffered -= 1;
            }
            if let Some(behind) = &mut queue.behind {
                (behind.position, behind.attempts, behind.changed) = (position, 0, true);
            }
        }
        let what = Delivered {
            event_id: event.event.id,
            position: Some(position),
            sequence,
            tx_id: event.event.tx_id,
            kind: event.event.kind.clone(),
        };
        self.results.add(what, state, wait, attempt, now);
        state
    }

    fn replay_done(
        &mut self,
        sequence: Sequence,
        mut replay: Replay,
        attempt: Attempt,
        now: Instant,
    ) -> DeliveryState {
        replay.attempts += 1;
        let (no, attempts) = (replay.no, replay.attempts);
        let (state, wait) = outcome(&self.schedule, &attempt.result, attempts as usize);
        // The list has the type and the transaction of an event since the request.
        let what = Delivered {
            event_id: replay.event_id,
            position: replay.position,
            sequence,
            tx_id: None,
            kind: notices::TEST.to_owned(),
        };
        match wait {
            Some(due_in) => {
                let queue = self.queues.entry(sequence).or_default();
                queue.replays.insert((now + due_in, no), replay);
                self.timers.insert((now + due_in, sequence));
                self.results.add_replay(ReplayWrite::Retry { no, attempts, due_in });
            }
            None => self.results.add_replay(ReplayWrite::Done { no }),
        }
        self.results.add(what, state, wait, attempt, now);
        state
    }

    /// Of an event; call it before its outcome changes the queue.
    fn retry_ended(&mut self, sequence: Sequence) {
        if self.queues.get(&sequence).is_some_and(|queue| queue.attempts() > 0) {
            self.retries = self.retries.saturating_sub(1);
        }
    }

    fn unpark(&mut self) {
        self.ready.append(&mut self.parked);
    }

    /// A write was committed: replays that ended are not in the database any more.
    pub(super) fn written(&mut self, write: &OutletWrite) {
        for replay in &write.replays {
            if let ReplayWrite::Done { no } = replay {
                self.replays.remove(no);
            }
        }
    }

    /// Whether something happened that should be stored soon.
    pub(super) fn has_results(&self) -> bool {
        !self.results.is_empty()
    }

    /// Results that are not stored.
    pub(super) fn unwritten(&self) -> usize {
        self.results.len()
    }

    /// What changed since the last call. `None`: nothing. The caller stores it before it asks again.
    pub(super) fn take_write(&mut self, epoch: &str, now: Instant) -> Option<OutletWrite> {
        self.separate(now, |queue| queue.busy.is_some_and(|since| now.duration_since(since) >= SLOW));
        self.changes(epoch, now)
    }

    /// The last write: whatever is in memory or under way gets a cursor of its own, so that the next owner repeats no
    /// more than is necessary.
    pub(super) fn take_last_write(&mut self, epoch: &str, now: Instant) -> Option<OutletWrite> {
        self.separate(now, |_| true);
        self.changes(epoch, now)
    }

    /// Gives a cursor to submitters that would hold the common one back.
    fn separate(&mut self, now: Instant, which: impl Fn(&Queue) -> bool) {
        let fetched_to = self.read_to;
        let slow = self.queues.values_mut().filter(|queue| queue.behind.is_none() && which(queue));
        for queue in slow.filter(|queue| !queue.events.is_empty()) {
            let position = queue.done_to(fetched_to);
            queue.behind =
                Some(Behind { position, attempts: 0, due: now, fetched_to, caught_up: true, changed: true });
        }
    }

    fn changes(&mut self, epoch: &str, now: Instant) -> Option<OutletWrite> {
        let position = self.low_water();
        let mut write = self.results.take(now);
        for (sequence, queue) in &mut self.queues {
            let Some(behind) = &mut queue.behind else { continue };
            // Without the row the common cursor counts for it: nothing is delivered again, nothing is left out.
            let is_after = queue.events.front().is_none_or(|event| event.event.position > position);
            let is_common = behind.caught_up && behind.fetched_to <= self.read_to && behind.attempts == 0;
            if is_common && behind.position <= position && is_after {
                queue.behind = None;
                write.caught_up.push(*sequence);
            } else if std::mem::take(&mut behind.changed) {
                write.behind.push(BehindWrite {
                    sequence: *sequence,
                    position: behind.position,
                    attempts: u32::try_from(behind.attempts).unwrap_or(u32::MAX),
                    due_in: behind.due.saturating_duration_since(now),
                });
            }
        }
        self.queues.retain(|_, queue| {
            let is_idle = queue.events.is_empty() && queue.replays.is_empty() && queue.busy.is_none();
            !is_idle || queue.behind.is_some()
        });
        if position != self.written {
            self.written = position;
            write.cursor = Some(EventCursor { epoch: epoch.to_owned(), position });
        }
        let is_empty = write.cursor.is_none()
            && write.behind.is_empty()
            && write.caught_up.is_empty()
            && write.deliveries.is_empty()
            && write.replays.is_empty();
        (!is_empty).then_some(write)
    }

    /// Everything up to here is delivered or given up, except what belongs to submitters that are behind.
    pub(super) fn low_water(&self) -> i64 {
        let open = self.queues.values().filter(|queue| queue.behind.is_none());
        let first = open.filter_map(|queue| queue.events.front()).map(|event| event.event.position - 1).min();
        first.map_or(self.read_to, |first| first.min(self.read_to))
    }
}

/// The state of a delivery after this many attempts, and the time until the next one.
fn outcome(
    schedule: &RetrySchedule,
    result: &AttemptResult,
    made: usize,
) -> (DeliveryState, Option<Duration>) {
    match result {
        AttemptResult::Delivered => (DeliveryState::Delivered, None),
        AttemptResult::Missing => (DeliveryState::Exhausted, None),
        AttemptResult::Failed { retry_after, .. } => match schedule.next(made, *retry_after) {
            Some(wait) => (DeliveryState::Retrying, Some(wait)),
            None => (DeliveryState::Exhausted, None),
        },
    }
}

#[cfg(test)]
#[path = "progress_tests.rs"]
mod tests;
