//! Group commit for creates: requests that arrive while an insert is running form the next group.
//!
//! There is no timer: a single request is inserted at once, many in groups of hundreds. Each request gets its own
//! result, and a group that the database refuses is halved until the failing row is alone. Submitters are split into
//! parts by hash: with many rows each part forms its own group, so that one is inserted while the other is parsed and
//! answered, and a submitter's requests are stored in order of arrival. `queue_limit` enforces the submitters' queue
//! limits.

mod queue_limit;

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Instant;

use gapless_batching::{Batcher, Bisection, Concurrency, Options, Request};
use gapless_domain::{Event, EventKind, SubmitterKey};
use gapless_events::EventPublisher;
use gapless_store::notifier::Notifier;
use gapless_store::{IntakeOutcome, NewIntent, Store, StoreError};
use gapless_telemetry::metrics::INTAKE_BATCH_SIZE;
use queue_limit::QueueLimiter;
pub(crate) use queue_limit::QueueLimits;

/// Two concurrent inserts keep disk and CPU busy; more contend for the WAL.
const PARTS: usize = 2;
/// Largest group: beyond this nothing is gained and locks are held longer.
const GROUP_ROWS: usize = 500;
/// Limit of rows that wait or are being inserted: about two seconds of work. Beyond that, requests get 503.
const MAX_ROWS: usize = 20_000;
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

/// Rows submitted together, in order.
type Rows = Vec<NewIntent>;

#[derive(Clone, Debug)]
pub(crate) struct Intake {
    batcher: Batcher<Rows, Answers>,
}

#[derive(Debug)]
struct Inserter {
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
        let inserter = Arc::new(Inserter { limiter: QueueLimiter::new(limits), store, notifier, events });
        let options = Options {
            name: "intake",
            concurrency: Concurrency::OrderedParts { parts: PARTS },
            max_batch: GROUP_ROWS,
            capacity: MAX_ROWS,
        };
        let batcher = Batcher::start(options, move |batch| {
            let inserter = inserter.clone();
            async move { inserter.insert(batch).await }
        });
        Intake { batcher }
    }

    pub(crate) async fn submit(&self, row: NewIntent) -> Result<IntakeOutcome, IntakeError> {
        // One row has one answer.
        self.submit_all(vec![row]).await.pop().unwrap_or(Err(IntakeError::Failed))
    }

    /// Answers in the order of `rows`.
    pub(crate) async fn submit_all(&self, rows: Rows) -> Answers {
        let mut answers = vec![Err(IntakeError::Overloaded); rows.len()];
        let mut parts: [(Vec<usize>, Rows); PARTS] = Default::default();
        for (index, row) in rows.into_iter().enumerate() {
            let (indexes, part) = &mut parts[part_of(&row.submitter)];
            indexes.push(index);
            part.push(row);
        }
        let mut pending = Vec::new();
        for (part, (indexes, rows)) in
            parts.into_iter().enumerate().filter(|(_, (indexes, _))| !indexes.is_empty())
        {
            if let Ok(answer) = self.batcher.try_call(part, rows.len(), rows) {
                pending.push((indexes, answer));
            }
        }
        for (indexes, answer) in pending {
            let part = answer.await.unwrap_or_else(|_| vec![Err(IntakeError::Failed); indexes.len()]);
            for (index, answer) in indexes.into_iter().zip(part) {
                answers[index] = answer;
            }
        }
        answers
    }
}

fn part_of(submitter: &SubmitterKey) -> usize {
    let mut hasher = DefaultHasher::new();
    submitter.hash(&mut hasher);
    (hasher.finish() % PARTS as u64) as usize
}

impl Inserter {
    async fn insert(&self, batch: Vec<Request<Rows, Answers>>) {
        let (units, replies) = Request::split(batch);
        let counts: Vec<usize> = units.iter().map(Vec::len).collect();
        let rows: Rows = units.into_iter().flatten().collect();
        metrics::histogram!(INTAKE_BATCH_SIZE).record(rows.len() as f64);
        let answers = self.answers(&rows).await;
        let created = publish_created(&*self.events, &rows, &answers);
        let mut answers = answers.into_iter();
        for (count, reply) in counts.into_iter().zip(replies) {
            // The caller is gone if the client disconnected. Its row is stored, and a retry finds it.
            reply.send(answers.by_ref().take(count).collect());
        }
        self.notifier.notify(created);
    }
}

/// Queue limits.
impl Inserter {
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
        let answers = insert(&self.store, rows).await;
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
async fn insert(store: &Store, rows: &[NewIntent]) -> Answers {
    let (mut answers, mut bisection) = (Answers::with_capacity(rows.len()), Bisection::new(rows.len()));
    while let Some(range) = bisection.next_range() {
        let part = &rows[range.clone()];
        match store.insert_group(part).await {
            Ok(outcomes) => answers.extend(outcomes.into_iter().map(Ok)),
            Err(error) if error.is_connection() => {
                let part = bisection.abort(&range);
                tracing::warn!(%error, rows = part.len(), "requests refused: the database is unavailable");
                answers.resize(rows.len(), Err(IntakeError::Unavailable));
            }
            Err(_) if bisection.split(&range) => {}
            Err(error) => answers.push(Err(row_error(&part[0], &error))),
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
