//! Group commit for creates: requests that arrive while an insert is under way form the next one.
//!
//! No timer: a lone request is inserted at once, a flood in groups of hundreds. Each request gets its own answer, and a
//! group that the database refuses is halved until the one row to blame stands alone. Who waits, and what goes
//! together, is in `waiting`; whether the queue of a submitter has room, in `queue_limit`.

mod queue_limit;
mod waiting;

use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use futures::FutureExt;
use gapless::domain::{Event, EventKind};
use gapless::events::EventPublisher;
use gapless::notifier::Notifier;
use gapless::observe::metrics::INTAKE_BATCH_SIZE;
use gapless::store::{IntakeOutcome, NewIntent, Store, StoreError};
use queue_limit::QueueLimiter;
pub(crate) use queue_limit::QueueLimits;
use tokio::sync::{Notify, oneshot};
use waiting::{Group, PARTS, Unit, Waiting, part_of};

/// Before a group is closed, requests that have already arrived may join it: so often the flusher lets the tasks run that
/// are ready, which takes some microseconds when there are none. A lone request waits for nobody.
const GATHER_TURNS: usize = 4;
/// Groups under way: no more connections are needed.
pub(crate) const MOST_AT_ONCE: u32 = PARTS as u32;

/// Why a request has no outcome. Either way nothing is known to be stored, and the same request may be sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IntakeError {
    /// So many of its submitter wait already.
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
    /// A flusher is wanted.
    call: Notify,
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
        let shared = Shared { waiting, call: Notify::new(), limiter, store, notifier, events };
        let intake = Intake { shared: Arc::new(shared) };
        // Each group has at least one part to itself.
        for _ in 0..MOST_AT_ONCE {
            tokio::spawn(flusher(intake.shared.clone()));
        }
        intake
    }

    pub(crate) async fn submit(&self, row: NewIntent) -> Result<IntakeOutcome, IntakeError> {
        // One row in, one answer out; an empty list can only mean that the flusher is gone.
        self.submit_all(vec![row]).await.pop().unwrap_or(Err(IntakeError::Failed))
    }

    /// Answers in the order of `rows`.
    pub(crate) async fn submit_all(&self, rows: Vec<NewIntent>) -> Answers {
        let mut answers = vec![Err(IntakeError::Overloaded); rows.len()];
        let mut parts: [(Vec<usize>, Vec<NewIntent>); PARTS] = Default::default();
        for (index, row) in rows.into_iter().enumerate() {
            let (places, part) = &mut parts[part_of(&row.submitter)];
            places.push(index);
            part.push(row);
        }
        let mut pending = Vec::new();
        for (part, (places, rows)) in
            parts.into_iter().enumerate().filter(|(_, (places, _))| !places.is_empty())
        {
            let (answer, receiver) = oneshot::channel();
            if self.shared.enqueue(part, Unit { rows, answer }) {
                pending.push((places, receiver));
            }
        }
        for (places, receiver) in pending {
            let part = receiver.await.unwrap_or_else(|_| vec![Err(IntakeError::Failed); places.len()]);
            for (place, answer) in places.into_iter().zip(part) {
                answers[place] = answer;
            }
        }
        answers
    }
}

impl Shared {
    /// False when there is no room.
    fn enqueue(&self, part: usize, unit: Unit) -> bool {
        let mut waiting = self.lock();
        let added = waiting.add(part, unit);
        let wanted = waiting.call_flusher();
        drop(waiting);
        if wanted {
            self.call.notify_one();
        }
        added
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        // Every method leaves it valid, so a panic elsewhere leaves nothing half done.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn next_group(&self) -> Option<Group> {
        for _ in 0..GATHER_TURNS {
            tokio::task::yield_now().await;
        }
        let mut waiting = self.lock();
        let group = waiting.take();
        let more = waiting.call_flusher();
        drop(waiting);
        if more {
            self.call.notify_one();
        }
        group
    }

    async fn insert(&self, group: &mut Group) {
        let rows = &group.rows;
        metrics::histogram!(INTAKE_BATCH_SIZE).record(rows.len() as f64);
        let answers = self.answers(rows).await;
        let created = announce(&*self.events, rows, &answers);
        let mut answers = answers.into_iter();
        for (count, answer) in group.answers.drain(..) {
            let part: Answers = answers.by_ref().take(count).collect();
            // A client that went away needs no answer; its row stands and a retry finds it.
            let _ = answer.send(part);
        }
        self.notifier.notify(created);
    }
}

/// Queues that have a limit.
impl Shared {
    /// An answer for every row. A queue without room refuses its own rows and no others.
    async fn answers(&self, rows: &[NewIntent]) -> Answers {
        if let Err(error) = self.count_queues(rows).await {
            return vec![Err(error); rows.len()];
        }
        let judged = self.limiter.judge(rows);
        if judged.iter().all(Result::is_ok) {
            return self.insert_judged(rows).await;
        }
        let having_room = |queue_limit: bool| {
            let chosen = rows.iter().zip(&judged).filter(move |(_, judged)| judged.is_ok() == queue_limit);
            chosen.map(|(row, _)| row.clone()).collect::<Vec<NewIntent>>()
        };
        let mut inserted = self.insert_judged(&having_room(true)).await.into_iter();
        let mut known = self.known(&having_room(false)).await.into_iter();
        judged
            .into_iter()
            .map(|judged| match judged {
                Ok(()) => inserted.next().unwrap_or(Err(IntakeError::Failed)),
                // What was accepted before is told, however full the queue is now.
                Err(limit) => {
                    let known = known.next().unwrap_or(Err(IntakeError::Failed));
                    known.and_then(|known| known.ok_or(IntakeError::QueueFull { limit }))
                }
            })
            .collect()
    }

    /// Counts the queues of these rows where that is due, which is seldom.
    async fn count_queues(&self, rows: &[NewIntent]) -> Result<(), IntakeError> {
        // Before the count: what is inserted meanwhile is inserted by others.
        let now = Instant::now();
        let limits = self.limiter.to_count(rows, now);
        if limits.is_empty() {
            return Ok(());
        }
        let depths = self.store.queue_depths(&limits).await.map_err(|error| whole(&error, rows.len()))?;
        self.limiter.counted(&limits, &depths, now);
        Ok(())
    }

    async fn insert_judged(&self, rows: &[NewIntent]) -> Answers {
        let answers = insert(&self.store, rows, self.events.wants_outbox()).await;
        self.limiter.settle(rows, &answers);
        answers
    }

    async fn known(&self, rows: &[NewIntent]) -> Vec<Result<Option<IntakeOutcome>, IntakeError>> {
        match self.store.known_outcomes(rows).await {
            Ok(outcomes) => outcomes.into_iter().map(Ok).collect(),
            Err(error) => vec![Err(whole(&error, rows.len())); rows.len()],
        }
    }
}

/// A statement that concerns all of them failed.
fn whole(error: &StoreError, rows: usize) -> IntakeError {
    if error.is_connection() {
        tracing::warn!(%error, rows, "requests were refused: the database is away");
        return IntakeError::Unavailable;
    }
    tracing::error!(%error, rows, "requests could not be judged");
    IntakeError::Failed
}

async fn flusher(shared: Arc<Shared>) {
    loop {
        shared.call.notified().await;
        while let Some(mut group) = shared.next_group().await {
            // A group that panicked is answered by the end of its channels; what waits behind it must not wait for ever.
            if AssertUnwindSafe(shared.insert(&mut group)).catch_unwind().await.is_err() {
                tracing::error!(rows = group.rows.len(), "an insert panicked");
            }
            shared.lock().finish(&group);
        }
    }
}

/// Tells of every new row, and counts them.
fn announce(events: &dyn EventPublisher, rows: &[NewIntent], answers: &Answers) -> usize {
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

/// An answer for every row, whatever happens.
async fn insert(store: &Store, rows: &[NewIntent], outbox: bool) -> Answers {
    let mut answers = Answers::with_capacity(rows.len());
    // A stack with the leftmost part on top, so that answers and queue order come out left to right.
    let mut parts = vec![rows];
    while let Some(part) = parts.pop() {
        match store.insert_group(part, outbox).await {
            Ok(outcomes) => answers.extend(outcomes.into_iter().map(Ok)),
            Err(error) if error.is_connection() => {
                tracing::warn!(%error, rows = part.len(), "requests were refused: the database is away");
                answers.resize(rows.len(), Err(IntakeError::Unavailable));
                break;
            }
            Err(error) => match part {
                [one] => answers.push(Err(blame(one, &error))),
                many => {
                    let (left, right) = many.split_at(many.len() / 2);
                    parts.extend([right, left]);
                }
            },
        }
    }
    answers
}

fn blame(row: &NewIntent, error: &StoreError) -> IntakeError {
    let key = row.submitter;
    tracing::error!(%error, chain.id = key.chain_id.0, submitter = key.address_text(), tx.id = %row.tx_id,
        "a request could not be stored");
    IntakeError::Failed
}
