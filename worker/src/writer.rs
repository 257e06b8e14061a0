//! Group commit: the fenced writes of many lanes, a few transactions at a time.
//!
//! A batch that fails because of a row is split in halves until the guilty write stands alone; only its lane hears of
//! it. A batch that fails because the database is away fails as a whole: splitting would not help.

use std::sync::Arc;

use async_trait::async_trait;
use gapless::domain::WorkerId;
use gapless::notifier::Notifier;
use gapless::observe::metrics as m;
use gapless::store::{Applied, Attempt, FencedWrite, Store, StoreError};
use tokio::time::Instant;

use crate::batcher::{Batcher, Reply, Request};

/// How one write ended for its lane.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum WriteError {
    /// Someone else owns the submitter. Nothing was written.
    #[error("the lease is lost")]
    LeaseLost,
    /// A row was not as the lane believed. Nothing was written.
    #[error("the write was refused: {0}")]
    Refused(Arc<StoreError>),
    /// The database could not be asked, or COMMIT's answer was lost.
    #[error("the outcome is unknown: {0}")]
    Unknown(Arc<StoreError>),
    #[error("the worker is stopping")]
    Stopping,
}

/// Where fenced writes are committed: the store. A test may stand in between, and lose what it is asked or answered.
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

/// Writes in one transaction at the most: beyond it the gain is small and the locks are held longer.
const MAX_BATCH: usize = 500;

#[derive(Clone, Debug)]
pub(crate) struct Writer {
    batcher: Batcher<FencedWrite, Answer>,
}

impl Writer {
    /// `endings` is rung for what became final, after its commit. `worker_id` is for the log.
    pub(crate) fn start(
        store: Arc<dyn Commits>,
        writers: usize,
        endings: Notifier,
        worker_id: WorkerId,
    ) -> Self {
        let told = Arc::new(Told { endings, worker_id });
        let batcher = Batcher::start("writer", writers, MAX_BATCH, move |batch| {
            let (store, told) = (store.clone(), told.clone());
            async move {
                let (writes, replies) = Request::split(batch);
                flush(store.as_ref(), &told, writes, replies).await;
            }
        });
        Writer { batcher }
    }

    /// Name of the queue, and writes that wait.
    pub(crate) fn depth(&self) -> (&'static str, usize) {
        self.batcher.depth()
    }

    /// Commits one lane's write. The attempts that come back are on disk.
    pub(crate) async fn commit(&self, write: FencedWrite) -> Answer {
        self.batcher.ask(write).await.unwrap_or(Err(WriteError::Stopping))
    }
}

/// Who hears of a write beside its lane.
#[derive(Debug)]
struct Told {
    endings: Notifier,
    worker_id: WorkerId,
}

async fn flush(store: &dyn Commits, told: &Told, writes: Vec<FencedWrite>, replies: Vec<Reply<Answer>>) {
    // Depth-first over halves; a list instead of recursion, because async recursion would box.
    let mut parts = vec![(writes, replies)];
    while let Some((mut writes, mut replies)) = parts.pop() {
        let started = Instant::now();
        let result = store.apply(&writes).await;
        metrics::histogram!(m::WRITER_BATCH_SIZE).record(writes.len() as f64);
        metrics::histogram!(m::WRITER_FLUSH_SECONDS).record(started.elapsed().as_secs_f64());
        match result {
            Ok(answers) => {
                for ((write, reply), answer) in writes.iter().zip(replies).zip(answers) {
                    reply.send(told.answer(write, answer));
                }
            }
            Err(error) if error.is_connection() => {
                tracing::warn!(error = %error, writes = writes.len(), "the database did not take a batch");
                let error = Arc::new(error);
                for reply in replies {
                    reply.send(Err(WriteError::Unknown(error.clone())));
                }
            }
            Err(error) if writes.len() == 1 => {
                let submitter = writes[0].submitter();
                tracing::error!(error = %error, chain.id = submitter.chain_id.0,
                    submitter = %submitter.address_text(), fencing_token = writes[0].token().0,
                    worker.id = %told.worker_id, operation = writes[0].operation(), tx.ids = ?writes[0].tx_ids(),
                    "a write was refused; its lane is parked");
                let error = Arc::new(error);
                for reply in replies {
                    reply.send(Err(WriteError::Refused(error.clone())));
                }
            }
            Err(error) => {
                tracing::warn!(error = %error, writes = writes.len(), "a batch was refused; looking for the row");
                let half = writes.len() / 2;
                let rest = (writes.split_off(half), replies.split_off(half));
                parts.push(rest);
                parts.push((writes, replies));
            }
        }
    }
}

impl Told {
    fn answer(&self, write: &FencedWrite, answer: Applied) -> Answer {
        match answer {
            Applied::Yes(attempts) => {
                self.endings.notify(write.endings());
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

    /// One line for each intent that the write was about; one at the least.
    fn log_fenced(&self, write: &FencedWrite, operation: &'static str) {
        let (submitter, ids) = (write.submitter(), write.tx_ids());
        let ids = ids.iter().map(Some).chain(ids.is_empty().then_some(None));
        for tx_id in ids {
            tracing::info!(chain.id = submitter.chain_id.0, submitter = %submitter.address_text(),
                tx.id = tx_id.map(tracing::field::display), worker.id = %self.worker_id, fencing_token = write.token().0,
                operation, "fenced: the lease is someone else's");
        }
    }
}
