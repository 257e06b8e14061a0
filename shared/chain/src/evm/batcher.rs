//! A call queue that batches automatically and fails over between nodes.
//!
//! There is no timer. A call to an idle batcher is sent immediately; while requests are in flight, calls queue up and
//! are sent together when one finishes. A batcher does not retry a call on the same node: after one round over the
//! nodes it returns the error, and the caller decides about retries.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::task::JoinSet;

use super::answer::{lacks_method, refused};
use super::exchange::{BatchLimit, Exchange};
use super::http::Endpoint;
use super::nodes::no_node;
use super::revert;
use super::wire::{Call, ErrorObject, Reply};
use crate::classify::{ErrorPatterns, SubmitClass, classify};
use crate::port::RpcError;
use gapless_telemetry::metrics::RPC_REQUEST_SECONDS;

/// Queue capacity of one batcher; if it is full, callers wait.
const QUEUE: usize = 16_384;

/// A batch is closed at this size, because nodes reject bodies of more than a few megabytes.
const MAX_BATCH_BYTES: usize = 1 << 20;

/// How long a copy of a send may stay queued after its caller has stopped waiting.
const COPY_LIFE: Duration = Duration::from_secs(5);

pub(super) const SEND: &str = "eth_sendRawTransaction";

/// State shared by all batchers of a chain.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) exchange: Exchange,
    /// Limits the HTTP requests in flight over all batchers.
    pub(super) slots: Arc<Semaphore>,
    pub(super) patterns: ErrorPatterns,
}

impl Shared {
    /// Whether another node should be tried after this error. For a send, every error about the transaction is final
    /// here; for other calls, unclassified errors are retried on the next node.
    fn should_try_another_node(&self, method: &str, error: &ErrorObject) -> bool {
        match self.class_of(error) {
            SubmitClass::Unavailable => self.is_unavailable(error),
            SubmitClass::Unknown => method != SEND && revert::failure(error).is_none(),
            _ => false,
        }
    }

    /// Whether an error is only about the node. A revert reason may contain the same text, so reverts are excluded.
    pub(super) fn is_unavailable(&self, error: &ErrorObject) -> bool {
        let reverted = || revert::failure(error).is_some_and(|failure| failure.revert.is_some());
        self.class_of(error) == SubmitClass::Unavailable && !reverted()
    }

    /// Whether a reply is more than an error about the node.
    pub(super) fn is_answer(&self, reply: &Reply) -> bool {
        !reply.as_ref().is_err_and(|error| self.is_unavailable(error))
    }

    /// Converts an error reply: `Unavailable` for errors about the node, otherwise `Refused`. A missing method is
    /// `Refused`, so that the caller can detect it.
    pub(super) fn refusal(&self, method: &'static str, endpoint: &str, error: &ErrorObject) -> RpcError {
        match self.is_unavailable(error) && !lacks_method(error) {
            true => RpcError::Unavailable {
                method,
                endpoint: endpoint.to_owned(),
                code: error.code,
                message: error.message.clone(),
            },
            false => refused(method, endpoint, error),
        }
    }

    /// The nodes of a route that may be used now.
    fn on(&self, route: Route) -> Vec<&Endpoint> {
        let nodes = &self.exchange.nodes;
        match route {
            Route::Failover => nodes.by_preference(),
            Route::Only(index) | Route::Unrated(index) => {
                nodes.all().get(index).filter(|node| nodes.is_usable(node)).into_iter().collect()
            }
        }
    }

    pub(super) fn class_of(&self, error: &ErrorObject) -> SubmitClass {
        classify(error.code, &error.message, error.data_text().as_deref(), &self.patterns)
    }
}

/// A reply and the node it came from.
#[derive(Debug)]
pub(super) struct Answered {
    pub(super) reply: Reply,
    pub(super) endpoint: String,
}

/// How many requests of a batcher may be in flight.
#[derive(Clone, Copy, Debug)]
pub(super) struct Width {
    /// With full-sized batches. Few, so that batches fill up meanwhile.
    pub(super) normal: usize,
    /// If the node accepts only small batches, more requests compensate for it.
    pub(super) max: usize,
}

/// Which nodes a batcher uses.
#[derive(Clone, Copy, Debug)]
pub(super) enum Route {
    /// One node after the other, best first, until one answers.
    Failover,
    /// Only the node with this index in the configuration.
    Only(usize),
    /// As `Only`, for calls that a healthy node need not support: the results do not affect its health.
    Unrated(usize),
}

struct Job {
    call: Call,
    queued: Instant,
    /// A copy of a send that another node may have answered already; it is sent even if the caller is gone.
    copy: bool,
    answer: oneshot::Sender<Result<Answered, RpcError>>,
}

#[derive(Debug)]
pub(super) struct Batcher {
    queue: mpsc::Sender<Job>,
}

impl Batcher {
    /// Starts the batcher's task, which ends when the batcher is dropped. Needs a Tokio runtime.
    pub(super) fn start(shared: Arc<Shared>, limit: Arc<BatchLimit>, width: Width, route: Route) -> Batcher {
        let (queue, jobs) = mpsc::channel(QUEUE);
        tokio::spawn(dispatch(shared, limit, width, route, jobs));
        Batcher { queue }
    }

    /// A call that is dropped from the queue if the caller stops waiting.
    pub(super) async fn call(&self, call: Call) -> Result<Answered, RpcError> {
        self.put(call, false).await
    }

    /// A call that is sent even if the caller stops waiting.
    pub(super) async fn call_detached(&self, call: Call) -> Result<Answered, RpcError> {
        self.put(call, true).await
    }

    async fn put(&self, call: Call, copy: bool) -> Result<Answered, RpcError> {
        let method = call.method;
        let stopped = || RpcError::Transport {
            method,
            endpoint: "no node".into(),
            reason: "the chain client has stopped".into(),
        };
        let (answer, answered) = oneshot::channel();
        let job = Job { call, queued: Instant::now(), copy, answer };
        self.queue.send(job).await.map_err(|_| stopped())?;
        answered.await.map_err(|_| stopped())?
    }
}

async fn dispatch(
    shared: Arc<Shared>,
    limit: Arc<BatchLimit>,
    width: Width,
    route: Route,
    mut jobs: mpsc::Receiver<Job>,
) {
    let mut flushes = JoinSet::new();
    while let Some(first) = jobs.recv().await {
        // Lets other lanes that were woken by the same commit queue their calls for this batch.
        tokio::task::yield_now().await;
        while flushes.try_join_next().is_some() {}
        while flushes.len() >= allowed(&limit, width) {
            flushes.join_next().await;
        }
        // The batch is filled only now, so that it includes calls queued during the waits above.
        let Ok(slot) = Arc::clone(&shared.slots).acquire_owned().await else { return };
        let batch = fill(first, &mut jobs, limit.now());
        flushes.spawn(flush(Arc::clone(&shared), Arc::clone(&limit), route, batch, slot));
    }
}

/// Requests in flight such that the number of calls is about that of `width.normal` full-sized batches.
fn allowed(limit: &BatchLimit, width: Width) -> usize {
    (width.normal * limit.max() / limit.now()).clamp(width.normal, width.max.max(width.normal))
}

fn fill(first: Job, jobs: &mut mpsc::Receiver<Job>, limit: usize) -> Vec<Job> {
    let mut weight = first.call.weight();
    let mut batch = vec![first];
    while batch.len() < limit && weight < MAX_BATCH_BYTES {
        let Ok(job) = jobs.try_recv() else { break };
        weight += job.call.weight();
        batch.push(job);
    }
    // Drop calls whose callers have stopped waiting.
    batch.retain(|job| !job.answer.is_closed() || (job.copy && job.queued.elapsed() < COPY_LIFE));
    batch
}

/// Sends the batch to one node after the other until every call has a final answer.
async fn flush(
    shared: Arc<Shared>,
    limit: Arc<BatchLimit>,
    route: Route,
    batch: Vec<Job>,
    _slot: OwnedSemaphorePermit,
) {
    let nodes = &shared.exchange.nodes;
    let mut open: Vec<(Job, Option<NotFinal>)> = batch.into_iter().map(|job| (job, None)).collect();
    for endpoint in shared.on(route) {
        if open.is_empty() {
            return;
        }
        let calls: Vec<&Call> = open.iter().map(|(job, _)| &job.call).collect();
        let results = shared.exchange.request(endpoint, &calls, &limit).await;
        let mut answers = false;
        let mut left = Vec::new();
        for ((job, before), result) in open.into_iter().zip(results) {
            let answered = result.map(|reply| Answered { reply, endpoint: endpoint.shown.clone() });
            answers |= answered.as_ref().is_ok_and(|answered| shared.is_answer(&answered.reply));
            match evaluate(&shared, job.call.method, answered) {
                Ok(answered) => job.settle(Ok(answered)),
                Err(now) => left.push((job, Some(NotFinal::better(before, now)))),
            }
        }
        if !matches!(route, Route::Unrated(_)) {
            nodes.note(endpoint, answers);
        }
        open = left;
    }
    for (job, last) in open {
        let no_usable_node = || NotFinal::Failed(no_node(job.call.method));
        let answer = match last.unwrap_or_else(no_usable_node) {
            NotFinal::Refused(answered) => Ok(answered),
            NotFinal::Failed(error) => Err(error),
        };
        job.settle(answer);
    }
}

/// The best result of a call from the nodes tried so far.
enum NotFinal {
    /// A node is unavailable, or its error is unclassified.
    Refused(Answered),
    Failed(RpcError),
}

impl NotFinal {
    /// A refusal is preferred to a failed request.
    fn better(before: Option<NotFinal>, now: NotFinal) -> NotFinal {
        match (before, now) {
            (Some(refused @ NotFinal::Refused(_)), NotFinal::Failed(_)) => refused,
            (_, now) => now,
        }
    }
}

/// `Err` if another node should be tried.
fn evaluate(
    shared: &Shared,
    method: &str,
    answered: Result<Answered, RpcError>,
) -> Result<Answered, NotFinal> {
    match answered {
        Err(error) => Err(NotFinal::Failed(error)),
        Ok(answered) => match &answered.reply {
            Err(error) if shared.should_try_another_node(method, error) => Err(NotFinal::Refused(answered)),
            _ => Ok(answered),
        },
    }
}

impl Job {
    fn settle(self, answer: Result<Answered, RpcError>) {
        metrics::histogram!(RPC_REQUEST_SECONDS, "method" => self.call.method)
            .record(self.queued.elapsed().as_secs_f64());
        // Fails if the caller has stopped waiting.
        let _ = self.answer.send(answer);
    }
}

#[cfg(test)]
#[path = "batcher_tests.rs"]
mod tests;
