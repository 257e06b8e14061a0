//! A queue that batches by itself and fails over between nodes.
//!
//! There is no timer. A call that finds the funnel idle leaves at once and alone; while requests are under way calls
//! gather, and leave together when one is done. A funnel never repeats a call at a node that did not answer it: after
//! one round over the nodes the error is the caller's, who knows whether and when to ask again.

use std::sync::Arc;
use std::time::Instant;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::task::JoinSet;

use super::exchange::{BatchLimit, Exchange};
use super::wire::{Call, ErrorObject, Reply};
use crate::chain::classify::{ErrorPatterns, SubmitClass, classify};
use crate::chain::port::RpcError;
use crate::observe::metrics::RPC_REQUEST_SECONDS;

/// Calls that may wait in one funnel; beyond that callers wait to put theirs in.
const QUEUE: usize = 16_384;

/// Nodes refuse bodies over a few megabytes; a batch is closed once it is this heavy.
const MAX_BATCH_BYTES: usize = 1 << 20;

/// What all funnels of a chain share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) exchange: Exchange,
    /// HTTP requests under way, over all funnels.
    pub(super) slots: Arc<Semaphore>,
    pub(super) patterns: ErrorPatterns,
}

impl Shared {
    /// Whether another node may have a better answer than this error.
    pub(super) fn is_worth_another_node(&self, error: &ErrorObject) -> bool {
        self.class_of(error) == SubmitClass::Unavailable
    }

    pub(super) fn class_of(&self, error: &ErrorObject) -> SubmitClass {
        classify(error.code, &error.message, error.data_text().as_deref(), &self.patterns)
    }
}

/// A node's reply and who gave it.
#[derive(Debug)]
pub(super) struct Answered {
    pub(super) reply: Reply,
    pub(super) endpoint: String,
}

/// How many requests of a funnel may be under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Width {
    /// With full-sized batches. Few, so that batches fill while they run.
    pub(super) usual: usize,
    /// When the node takes only small batches and more requests make up for it.
    pub(super) most: usize,
}

struct Job {
    call: Call,
    queued: Instant,
    answer: oneshot::Sender<Result<Answered, RpcError>>,
}

#[derive(Debug)]
pub(super) struct Funnel {
    queue: mpsc::Sender<Job>,
}

impl Funnel {
    /// Starts the funnel's task, which ends when the funnel is dropped. Needs a Tokio runtime.
    pub(super) fn start(shared: Arc<Shared>, limit: Arc<BatchLimit>, width: Width) -> Funnel {
        let (queue, jobs) = mpsc::channel(QUEUE);
        tokio::spawn(dispatch(shared, limit, width, jobs));
        Funnel { queue }
    }

    pub(super) async fn ask(&self, call: Call) -> Result<Answered, RpcError> {
        let method = call.method;
        let stopped = || RpcError::Transport {
            method,
            endpoint: "no node".into(),
            reason: "the chain client has stopped".into(),
        };
        let (answer, answered) = oneshot::channel();
        let job = Job { call, queued: Instant::now(), answer };
        self.queue.send(job).await.map_err(|_| stopped())?;
        answered.await.map_err(|_| stopped())?
    }
}

async fn dispatch(shared: Arc<Shared>, limit: Arc<BatchLimit>, width: Width, mut jobs: mpsc::Receiver<Job>) {
    let mut flushes = JoinSet::new();
    while let Some(first) = jobs.recv().await {
        while flushes.try_join_next().is_some() {}
        while flushes.len() >= allowed(&limit, width) {
            flushes.join_next().await;
        }
        // Only now is the batch filled: what came in during the waits above goes with it.
        let Ok(slot) = Arc::clone(&shared.slots).acquire_owned().await else { return };
        let batch = fill(first, &mut jobs, limit.now());
        flushes.spawn(flush(Arc::clone(&shared), Arc::clone(&limit), batch, slot));
    }
}

/// As many calls under way as full-sized batches would carry, whatever the size is now.
fn allowed(limit: &BatchLimit, width: Width) -> usize {
    (width.usual * limit.most() / limit.now()).clamp(width.usual, width.most.max(width.usual))
}

fn fill(first: Job, jobs: &mut mpsc::Receiver<Job>, limit: usize) -> Vec<Job> {
    let mut weight = first.call.weight();
    let mut batch = vec![first];
    while batch.len() < limit && weight < MAX_BATCH_BYTES {
        let Ok(job) = jobs.try_recv() else { break };
        weight += job.call.weight();
        batch.push(job);
    }
    // Nobody waits for these any more.
    batch.retain(|job| !job.answer.is_closed());
    batch
}

/// Takes the batch to the nodes in turn until every call has its answer.
async fn flush(shared: Arc<Shared>, limit: Arc<BatchLimit>, batch: Vec<Job>, _slot: OwnedSemaphorePermit) {
    let nodes = &shared.exchange.nodes;
    let mut open: Vec<(Job, Option<Unsettled>)> = batch.into_iter().map(|job| (job, None)).collect();
    let mut skipped = false;
    for endpoint in nodes.round() {
        if open.is_empty() {
            return;
        }
        let calls: Vec<&Call> = open.iter().map(|(job, _)| &job.call).collect();
        let results = shared.exchange.ask(endpoint, &calls, &limit).await;
        let asked = open.len();
        let mut left = Vec::new();
        for ((job, before), result) in open.into_iter().zip(results) {
            let answered = result.map(|reply| Answered { reply, endpoint: endpoint.shown.clone() });
            match judge(&shared, answered) {
                Ok(answered) => job.settle(Ok(answered)),
                Err(now) => left.push((job, Some(Unsettled::better(before, now)))),
            }
        }
        let useful = left.len() < asked;
        if useful && skipped {
            nodes.prefer(endpoint);
        }
        skipped |= !useful;
        open = left;
    }
    for (job, unsettled) in open {
        let Some(unsettled) = unsettled else { continue };
        job.settle(match unsettled {
            Unsettled::Refused(answered) => Ok(answered),
            Unsettled::Failed(error) => Err(error),
        });
    }
}

/// What the nodes asked so far have left a call with.
enum Unsettled {
    /// A node answered that it is in trouble.
    Refused(Answered),
    Failed(RpcError),
}

impl Unsettled {
    /// An answer, even a refusal, says more than no answer.
    fn better(before: Option<Unsettled>, now: Unsettled) -> Unsettled {
        match (before, now) {
            (Some(refused @ Unsettled::Refused(_)), Unsettled::Failed(_)) => refused,
            (_, now) => now,
        }
    }
}

fn judge(shared: &Shared, answered: Result<Answered, RpcError>) -> Result<Answered, Unsettled> {
    match answered {
        Err(error) => Err(Unsettled::Failed(error)),
        Ok(answered) => match &answered.reply {
            Err(error) if shared.is_worth_another_node(error) => Err(Unsettled::Refused(answered)),
            _ => Ok(answered),
        },
    }
}

impl Job {
    fn settle(self, answer: Result<Answered, RpcError>) {
        metrics::histogram!(RPC_REQUEST_SECONDS, "method" => self.call.method)
            .record(self.queued.elapsed().as_secs_f64());
        // The caller may have gone; then nobody wants the answer.
        let _ = self.answer.send(answer);
    }
}

#[cfg(test)]
#[path = "funnel_tests.rs"]
mod tests;
