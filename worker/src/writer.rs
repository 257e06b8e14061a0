//! Group commit: the fenced writes of many lanes in few database transactions.
//!
//! A batch that fails because of a row is bisected until the failing write is alone; only its lane gets the error. A
//! batch that fails because the database is unreachable fails as a whole: splitting would not help.

use std::sync::Arc;

use async_trait::async_trait;
use gapless_batching::{Batcher, Bisection, Concurrency, Options, Reply, Request};
use gapless_domain::WorkerId;
use gapless_store::notifier::Notifier;
use gapless_store::{Applied, Attempt, FencedWrite, Store, StoreError};
use gapless_telemetry::metrics as m;
use tokio::time::Instant;

use crate::sequencer::EventsWritten;

/// Why a lane's write failed. The store's error is the source and not part of the message: the writer logs it.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum WriteError {
    /// Another worker owns the submitter. Nothing was written.
    #[error("the lease is lost")]
    LeaseLost,
    /// A row was not in the expected state, or a constraint failed. Nothing was written.
    #[error("write rejected")]
    Refused(#[source] Arc<StoreError>),
    /// The database was unreachable, or the result of COMMIT was lost.
    #[error("outcome of the commit unknown")]
    Unknown(#[source] Arc<StoreError>),
    /// The batch ended without an answer, by a panic. The write may be committed.
    #[error("the writer gave no answer")]
    NoAnswer,
}

/// Commits fenced writes; implemented by the store. Tests wrap it to drop requests or results.
#[cfg_attr(not(feature = "sim-driver"), allow(unreachable_pub))]
#[async_trait]
pub trait Commits: Send + Sync + std::fmt::Debug {
    async fn apply(&self, batch: &[FencedWrite]) -> Result<Vec<Applied>, StoreError>;
}

#[async_trait]
impl Commits for Store {
    async fn apply(&self, batch: &[FencedWrite]) -> Result<Vec<Applied>, StoreError> {
        Store::apply(self, batch).await
    }
}

type Answer = Result<Vec<Attempt>, WriteError>;

/// Maximum items per transaction: larger batches gain little and hold locks longer.
const MAX_BATCH: usize = 500;
/// Full batches that may wait; beyond them lanes wait to enqueue.
const WAITING_BATCHES: usize = 4;

/// Options of a queue to the database.
pub(crate) fn batching(name: &'static str, flushers: usize) -> Options {
    let concurrency = Concurrency::Unordered { flushers };
    Options { name, concurrency, max_batch: MAX_BATCH, capacity: (WAITING_BATCHES + flushers) * MAX_BATCH }
}

#[derive(Clone, Debug)]
pub(crate) struct Writer {
    batcher: Batcher<FencedWrite, Answer>,
}

impl Writer {
    /// `endings` is notified of final intents after their commit, `events` of events. `worker_id` is for the log.
    pub(crate) fn start(
        store: Arc<dyn Commits>,
        writers: usize,
        endings: Notifier,
        events: EventsWritten,
        worker_id: WorkerId,
    ) -> Self {
        let observer = Arc::new(CommitObserver { endings, events, worker_id });
        let batcher = Batcher::start(batching("writer", writers), move |batch| {
            let (store, observer) = (store.clone(), observer.clone());
            async move {
                let (writes, replies) = Request::split(batch);
                flush(store.as_ref(), &observer, writes, replies).await;
            }
        });
        Writer { batcher }
    }

    /// Name of the queue, and the number of waiting writes.
    pub(crate) fn depth(&self) -> (&'static str, usize) {
        self.batcher.depth()
    }

    /// Commits one lane's write. The returned attempts are stored.
    pub(crate) async fn commit(&self, write: FencedWrite) -> Answer {
        self.batcher.call(write).await.unwrap_or(Err(WriteError::NoAnswer))
    }
}

/// Handles the result of each committed or fenced write: notifications, metrics, logs.
#[derive(Debug)]
struct CommitObserver {
    endings: Notifier,
    events: EventsWritten,
    worker_id: WorkerId,
}

async fn flush(
    store: &dyn Commits,
    observer: &CommitObserver,
    writes: Vec<FencedWrite>,
    replies: Vec<Reply<Answer>>,
) {
    let (mut bisection, mut replies) = (Bisection::new(writes.len()), replies.into_iter());
    while let Some(range) = bisection.next_range() {
        let part = &writes[range.clone()];
        let started = Instant::now();
        let result = store.apply(part).await;
        metrics::histogram!(m::WRITER_BATCH_SIZE).record(part.len() as f64);
        metrics::histogram!(m::WRITER_FLUSH_SECONDS).record(started.elapsed().as_secs_f64());
        match result {
            Ok(answers) => {
                let replies: Vec<_> = replies.by_ref().take(part.len()).collect();
                for ((write, answer), reply) in part.iter().zip(answers).zip(replies) {
                    reply.send(observer.answer(write, answer));
                }
            }
            Err(error) if error.is_connection() => {
                let part = bisection.abort(&range);
                tracing::warn!(error = %error, writes = part.len(), "batch not confirmed: database unavailable");
                let error = Arc::new(error);
                replies.by_ref().for_each(|reply| reply.send(Err(WriteError::Unknown(error.clone()))));
            }
            Err(error) if bisection.split(&range) => {
                tracing::warn!(error = %error, writes = part.len(),
                    "batch rejected; bisecting to find the failing write");
            }
            Err(error) => {
                observer.log_rejected(&part[0], &error);
                if let Some(reply) = replies.next() {
                    reply.send(Err(WriteError::Refused(Arc::new(error))));
                }
            }
        }
    }
}

impl CommitObserver {
    fn log_rejected(&self, write: &FencedWrite, error: &StoreError) {
        let submitter = write.submitter();
        if write.has_awaited() {
            tracing::warn!(error = %error, chain.id = submitter.chain_id.0, submitter = %submitter.address_text(),
                fencing_token = write.token().0, worker.id = %self.worker_id, tx.ids = ?write.tx_ids(),
                "write rejected; an intent may be too late; its lane reads its rows again");
            return;
        }
        tracing::error!(error = %error, chain.id = submitter.chain_id.0, submitter = %submitter.address_text(),
            fencing_token = write.token().0, worker.id = %self.worker_id, operation = write.operation(),
            tx.ids = ?write.tx_ids(), "write rejected; its lane is parked");
    }

    fn answer(&self, write: &FencedWrite, answer: Applied) -> Answer {
        match answer {
            Applied::Yes(attempts) => {
                self.endings.notify(write.endings());
                self.events.written(write.events());
                Ok(attempts)
            }
            Applied::LeaseLost => {
                let operation = write.operation();
                metrics::counter!(m::LEASE_FENCED_TOTAL, "operation" => operation).increment(1);
                self.log_fenced(write, operation);
                Err(WriteError::LeaseLost)
            }
        }
    }

    /// One line per intent of the write; one line if it has none.
    fn log_fenced(&self, write: &FencedWrite, operation: &'static str) {
        let (submitter, ids) = (write.submitter(), write.tx_ids());
        let ids = ids.iter().map(Some).chain(ids.is_empty().then_some(None));
        for tx_id in ids {
            tracing::info!(chain.id = submitter.chain_id.0, submitter = %submitter.address_text(),
                tx.id = tx_id.map(tracing::field::display), worker.id = %self.worker_id, fencing_token = write.token().0,
                operation, "fenced: the lease is held by another worker");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error;

    use super::*;
    use crate::lane::StepError;

    #[test]
    fn the_stores_error_is_the_source_of_a_failed_write_and_is_named_once() {
        let cause = Arc::new(StoreError::RowsAffected { operation: "apply", expected: 1, found: 0 });
        for error in [WriteError::Refused(cause.clone()), WriteError::Unknown(cause.clone())] {
            let error = StepError::from(error);
            assert_eq!(error.source().map(ToString::to_string), Some(cause.to_string()));
            assert!(!error.to_string().contains(&cause.to_string()), "{error}");
        }
    }
}
