//! Group commit for creates: requests that arrive while an insert is under way form the next one.
//!
//! No timer: a lone request is inserted at once, a flood in groups of hundreds. Each request gets its own answer, and a
//! group that the database refuses is halved until the one row to blame stands alone.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use gapless::bell::Bell;
use gapless::domain::{Event, EventKind, SubmitterKey};
use gapless::events::EventPublisher;
use gapless::observe::metrics::INTAKE_BATCH_SIZE;
use gapless::store::{IntakeOutcome, NewIntent, Store, StoreError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

/// Above this a larger group gains nothing and its locks are held longer.
const GROUP_ROWS: usize = 500;
/// Two inserts at once keep the disk and the processor busy; more contend for the same log.
const FLUSHERS: usize = 2;
/// Rows that may wait. About two seconds of work; beyond that a client is better told to come back.
const MAX_WAITING_ROWS: usize = 20_000;

/// Why a request has no outcome. Either way nothing is known to be stored, and the same request may be sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IntakeError {
    Overloaded,
    Unavailable,
    Failed,
}

type Answers = Vec<Result<IntakeOutcome, IntakeError>>;

/// Requests that came together and stay in order.
struct Unit {
    rows: Vec<NewIntent>,
    answer: oneshot::Sender<Answers>,
    _room: OwnedSemaphorePermit,
}

#[derive(Clone, Debug)]
pub(crate) struct Intake {
    flushers: Vec<mpsc::UnboundedSender<Unit>>,
    room: Arc<Semaphore>,
}

impl Intake {
    pub(crate) fn start(store: &Store, bell: &Bell, events: &Arc<dyn EventPublisher>) -> Intake {
        let flushers = (0..FLUSHERS)
            .map(|_| {
                let (sender, receiver) = mpsc::unbounded_channel();
                tokio::spawn(flusher(store.clone(), bell.clone(), events.clone(), receiver));
                sender
            })
            .collect();
        Intake { flushers, room: Arc::new(Semaphore::new(MAX_WAITING_ROWS)) }
    }

    pub(crate) async fn submit(&self, row: NewIntent) -> Result<IntakeOutcome, IntakeError> {
        // One row in, one answer out; an empty list can only mean that the flusher is gone.
        self.submit_all(vec![row]).await.pop().unwrap_or(Err(IntakeError::Failed))
    }

    /// Answers in the order of `rows`.
    pub(crate) async fn submit_all(&self, rows: Vec<NewIntent>) -> Answers {
        let mut answers = vec![Err(IntakeError::Overloaded); rows.len()];
        let mut parts: Vec<(Vec<usize>, Vec<NewIntent>)> = vec![Default::default(); self.flushers.len()];
        for (index, row) in rows.into_iter().enumerate() {
            let (places, part) = &mut parts[self.flusher_of(&row.submitter)];
            places.push(index);
            part.push(row);
        }
        let mut pending = Vec::new();
        for (flusher, (places, part)) in self.flushers.iter().zip(parts) {
            if let Some(receiver) = self.enqueue(flusher, part) {
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

    /// One flusher per submitter: its queue keeps the order of arrival, and the two never wait for each other's rows.
    fn flusher_of(&self, submitter: &SubmitterKey) -> usize {
        let mut hasher = DefaultHasher::new();
        submitter.hash(&mut hasher);
        (hasher.finish() % self.flushers.len() as u64) as usize
    }

    /// `None` when there is no room, or nothing to do.
    fn enqueue(
        &self,
        flusher: &mpsc::UnboundedSender<Unit>,
        rows: Vec<NewIntent>,
    ) -> Option<oneshot::Receiver<Answers>> {
        if rows.is_empty() {
            return None;
        }
        let permits = u32::try_from(rows.len()).ok()?;
        let room = self.room.clone().try_acquire_many_owned(permits).ok()?;
        let (answer, receiver) = oneshot::channel();
        flusher.send(Unit { rows, answer, _room: room }).ok()?;
        Some(receiver)
    }
}

async fn flusher(
    store: Store,
    bell: Bell,
    events: Arc<dyn EventPublisher>,
    mut queue: mpsc::UnboundedReceiver<Unit>,
) {
    while let Some(first) = queue.recv().await {
        let mut rows = first.rows;
        let mut units = vec![(rows.len(), first.answer, first._room)];
        while rows.len() < GROUP_ROWS
            && let Ok(next) = queue.try_recv()
        {
            units.push((next.rows.len(), next.answer, next._room));
            rows.extend(next.rows);
        }
        metrics::histogram!(INTAKE_BATCH_SIZE).record(rows.len() as f64);
        let answers = insert(&store, &rows, events.wants_outbox()).await;
        let created = announce(&*events, &rows, &answers);
        let mut answers = answers.into_iter();
        for (count, answer, _room) in units {
            let part: Answers = answers.by_ref().take(count).collect();
            // A client that went away needs no answer; its row stands and a retry finds it.
            let _ = answer.send(part);
        }
        bell.ring(created);
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
