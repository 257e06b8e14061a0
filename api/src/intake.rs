//! Group commit for creates: requests that arrive while an insert is running form the next group.
//!
//! There is no timer: a single request is inserted at once, many in groups of hundreds. Each request gets its own
//! result, and a group that the database refuses is halved until the failing row is alone. `waiting` queues and
//! groups the requests; `queue_limit` enforces the submitters' queue limits.

mod queue_limit;
mod waiting;

use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use futures::FutureExt;
use gapless_domain::{Event, EventKind};
use gapless_events::EventPublisher;
use gapless_store::notifier::Notifier;
use gapless_store::{IntakeOutcome, NewIntent, Store, StoreError};
use gapless_telemetry::metrics::INTAKE_BATCH_SIZE;
use queue_limit::QueueLimiter;
pub(crate) use queue_limit::QueueLimits;
use tokio::sync::{Notify, oneshot};
use waiting::{Group, PARTS, Unit, Waiting, part_of};

/// How often a flusher yields before it closes a group, so that requests that have already arrived can join. Takes a
/// few microseconds if no task is ready.
const GATHER_YIELDS: usize = 4;
/// Concurrent inserts, and so the connections needed.
pub(crate) const CONNECTIONS: u32 = PARTS as u32;

/// Why a request has no outcome. It is not known to be stored; the same request may be retried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IntakeError {
    /// The submitter's queue is at its limit.
    QueueFull {
        limit: u64,
    },
    Overloaded,
    Unavailable,
    Failed,
}

type Answers = Vec<Result<IntakeOutcome, IntakeError>>;

#[derive(Clone, Debug)]
pub(crate) struct Intake {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    waiting: Mutex<Waiting>,
    /// Wakes a flusher.
    wake: Notify,
    limiter: QueueLimiter,
    store: Store,
    notifier: Notifier,
    events: Arc<dyn EventPublisher>,
}

impl Intake {
    pub(crate) fn start(
        store: &Store,
        notifier: &Notifier,
        events: &Arc<dyn EventPublisher>,
        limits: QueueLimits,
    ) -> Intake {
        let (store, notifier, events) = (store.clone(), notifier.clone(), events.clone());
        let (waiting, limiter) = (Mutex::default(), QueueLimiter::new(limits));
        let shared = Shared { waiting, wake: Notify::new(), limiter, store, notifier, events };
        let intake = Intake { shared: Arc::new(shared) };
        // A group occupies at least one part, so more flushers would have nothing to do.
        for _ in 0..CONNECTIONS {
            tokio::spawn(flusher(intake.shared.clone()));
        }
        intake
    }

    pub(crate) async fn submit(&self, row: NewIntent) -> Result<IntakeOutcome, IntakeError> {
        // One row has one answer; an empty list would mean that the flusher is gone.
        self.submit_all(vec![row]).await.pop().unwrap_or(Err(IntakeError::Failed))
    }

    /// Answers in the order of `rows`.
    pub(crate) async fn submit_all(&self, rows: Vec<NewIntent>) -> Answers {
        let mut answers = vec![Err(IntakeError::Overloaded); rows.len()];
        let mut parts: [(Vec<usize>, Vec<NewIntent>); PARTS] = Default::default();
        for (index, row) in rows.into_iter().enumerate() {
            let (indexes, part) = &mut parts[part_of(&row.submitter)];
            indexes.push(index);
            part.push(row);
        }
        let mut pending = Vec::new();
        for (part, (indexes, rows)) in
            parts.into_iter().enumerate().filter(|(_, (indexes, _))| !indexes.is_empty())
        {
            let (answer, receiver) = oneshot::channel();
            if self.shared.enqueue(part, Unit { rows, answer }) {
                pending.push((indexes, receiver));
            }
        }
        for (indexes, receiver) in pending {
            let part = receiver.await.unwrap_or_else(|_| vec![Err(IntakeError::Failed); indexes.len()]);
            for (index, answer) in indexes.into_iter().zip(part) {
                answers[index] = answer;
            }
        }
        answers
    }
}

impl Shared {
    /// False if too many rows are waiting.
    fn enqueue(&self, part: usize, unit: Unit) -> bool {
        let mut waiting = self.lock();
        let added = waiting.add(part, unit);
        let wanted = waiting.wake_flusher();
        drop(waiting);
        if wanted {
            self.wake.notify_one();
        }
        added
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        // Every method leaves the value consistent, so a poisoned lock can be used.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn next_group(&self) -> Option<Group> {
        for _ in 0..GATHER_YIELDS {
            tokio::task::yield_now().await;
        }
        let mut waiting = self.lock();
        let group = waiting.take();
        let more = waiting.wake_flusher();
        drop(waiting);
        if more {
            self.wake.notify_one();
        }
        group
    }

    async fn insert(&self, group: &mut Group) {
        let rows = &group.rows;
        metrics::histogram!(INTAKE_BATCH_SIZE).record(rows.len() as f64);
        let answers = self.answers(rows).await;
        let created = publish_created(&*self.events, rows, &answers);
        let mut answers = answers.into_iter();
        for (count, answer) in group.answers.drain(..) {
            let part: Answers = answers.by_ref().take(count).collect();
            // The receiver is gone if the client disconnected. Its row is stored, and a retry finds it.
            let _ = answer.send(part);
        }
        self.notifier.notify(created);
    }
}

/// Queue limits.
impl Shared {
    /// An answer for every row. A full queue refuses only its own rows.
    async fn answers(&self, rows: &[NewIntent]) -> Answers {
        if let Err(error) = self.count_queues(rows).await {
            return vec![Err(error); rows.len()];
        }
        let checked = self.limiter.reserve(rows);
        if checked.iter().all(Result::is_ok) {
            return self.insert_accepted(rows).await;
        }
        let rows_where = |accepted: bool| {
            let chosen = rows.iter().zip(&checked).filter(move |(_, checked)| checked.is_ok() == accepted);
            chosen.map(|(row, _)| row.clone()).collect::<Vec<NewIntent>>()
        };
        let mut inserted = self.insert_accepted(&rows_where(true)).await.into_iter();
        let mut known = self.known(&rows_where(false)).await.into_iter();
        checked
            .into_iter()
            .map(|checked| match checked {
                Ok(()) => inserted.next().unwrap_or(Err(IntakeError::Failed)),
                // A request that was accepted before keeps its answer, even if the queue is full now.
                Err(limit) => {
                    let known = known.next().unwrap_or(Err(IntakeError::Failed));
                    known.and_then(|known| known.ok_or(IntakeError::QueueFull { limit }))
                }
            })
            .collect()
    }

    /// Counts the queues of these rows where a count is due, which is rare.
    async fn count_queues(&self, rows: &[NewIntent]) -> Result<(), IntakeError> {
        // Taken before the count, so that the count's age is never underestimated.
        let now = Instant::now();
        let limits = self.limiter.to_count(rows, now);
        if limits.is_empty() {
            return Ok(());
        }
        let depths =
            self.store.queue_depths(&limits).await.map_err(|error| group_error(&error, rows.len()))?;
        self.limiter.set_counts(&limits, &depths, now);
        Ok(())
    }

    async fn insert_accepted(&self, rows: &[NewIntent]) -> Answers {
        let answers = insert(&self.store, rows, self.events.wants_outbox()).await;
        self.limiter.release_unused(rows, &answers);
        answers
    }

    async fn known(&self, rows: &[NewIntent]) -> Vec<Result<Option<IntakeOutcome>, IntakeError>> {
        match self.store.known_outcomes(rows).await {
            Ok(outcomes) => outcomes.into_iter().map(Ok).collect(),
            Err(error) => vec![Err(group_error(&error, rows.len())); rows.len()],
        }
    }
}

/// The error of every row when a statement for all of them failed.
fn group_error(error: &StoreError, rows: usize) -> IntakeError {
    if error.is_connection() {
        tracing::warn!(%error, rows, "requests refused: the database is unavailable");
        return IntakeError::Unavailable;
    }
    tracing::error!(%error, rows, "could not check queue limits");
    IntakeError::Failed
}

async fn flusher(shared: Arc<Shared>) {
    loop {
        shared.wake.notified().await;
        while let Some(mut group) = shared.next_group().await {
            // After a panic the group's channels close, which answers its requests. The flusher must go on.
            if AssertUnwindSafe(shared.insert(&mut group)).catch_unwind().await.is_err() {
                tracing::error!(rows = group.rows.len(), "insert panicked");
            }
            shared.lock().finish(&group);
        }
    }
}

/// Publishes an event for every new row and returns their number.
fn publish_created(events: &dyn EventPublisher, rows: &[NewIntent], answers: &Answers) -> usize {
    let mut created = 0;
    for (row, answer) in rows.iter().zip(answers) {
        if let Ok(IntakeOutcome::Created(tx_id)) = answer {
            created += 1;
            events.publish(&Event {
                submitter: row.submitter,
                tx_id: Some(*tx_id),
                kind: EventKind::Accepted,
            });
        }
    }
    created
}

/// Returns an answer for every row, also on errors.
async fn insert(store: &Store, rows: &[NewIntent], outbox: bool) -> Answers {
    let mut answers = Answers::with_capacity(rows.len());
    // A stack with the leftmost part on top, so that rows are inserted and answered in order.
    let mut parts = vec![rows];
    while let Some(part) = parts.pop() {
        match store.insert_group(part, outbox).await {
            Ok(outcomes) => answers.extend(outcomes.into_iter().map(Ok)),
            Err(error) if error.is_connection() => {
                tracing::warn!(%error, rows = part.len(), "requests refused: the database is unavailable");
                answers.resize(rows.len(), Err(IntakeError::Unavailable));
                break;
            }
            Err(error) => match part {
                [one] => answers.push(Err(row_error(one, &error))),
                many => {
                    let (left, right) = many.split_at(many.len() / 2);
                    parts.extend([right, left]);
                }
            },
        }
    }
    answers
}

fn row_error(row: &NewIntent, error: &StoreError) -> IntakeError {
    let key = row.submitter;
    tracing::error!(%error, chain.id = key.chain_id.0, submitter = key.address_text(), tx.id = %row.tx_id,
        "could not store a request");
    IntakeError::Failed
}
