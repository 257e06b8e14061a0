//! A queue that batches by itself and fails over between nodes.
//!
//! There is no timer. A call that finds the funnel idle leaves at once and alone; while requests are under way calls
//! gather, and leave together when one is done. A funnel never repeats a call at a node that did not answer it: after
//! one round over the nodes the error is the caller's, who knows whether and when to ask again.

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
use crate::chain::classify::{ErrorPatterns, SubmitClass, classify};
use crate::chain::port::RpcError;
use crate::observe::metrics::RPC_REQUEST_SECONDS;

/// Calls that may wait in one funnel; beyond that callers wait to put theirs in.
const QUEUE: usize = 16_384;

/// Nodes refuse bodies over a few megabytes; a batch is closed once it is this heavy.
const MAX_BATCH_BYTES: usize = 1 << 20;

/// How long a copy of a send may wait for its node when nobody waits for the answer any more.
const COPY_LIFE: Duration = Duration::from_secs(5);

pub(super) const SEND: &str = "eth_sendRawTransaction";

/// What all funnels of a chain share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) exchange: Exchange,
    /// HTTP requests under way, over all funnels.
    pub(super) slots: Arc<Semaphore>,
    pub(super) patterns: ErrorPatterns,
}

impl Shared {
    /// Whether another node may have a better answer than this error. To a send every opinion is an answer; a question
    /// that is refused in words that no class has is asked elsewhere as well.
    fn is_worth_another_node(&self, method: &str, error: &ErrorObject) -> bool {
        match self.class_of(error) {
            SubmitClass::Unavailable => self.is_trouble(error),
            SubmitClass::Unknown => method != SEND && revert::failure(error).is_none(),
            _ => false,
        }
    }

    /// Whether an error speaks of the node alone. A contract that reverts may use any words, these too.
    pub(super) fn is_trouble(&self, error: &ErrorObject) -> bool {
        let reverted = || revert::failure(error).is_some_and(|failure| failure.revert.is_some());
        self.class_of(error) == SubmitClass::Unavailable && !reverted()
    }

    /// Whether a reply says anything beyond the node's own trouble.
    pub(super) fn is_answer(&self, reply: &Reply) -> bool {
        !reply.as_ref().is_err_and(|error| self.is_trouble(error))
    }

    /// A refusal of a question: the node's trouble, or words that no class has. That a method is missing is for the
    /// caller to know.
    pub(super) fn refusal(&self, method: &'static str, endpoint: &str, error: &ErrorObject) -> RpcError {
        match self.is_trouble(error) && !lacks_method(error) {
            true => RpcError::Trouble {
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
            Route::InTurn => nodes.in_turn(),
            Route::Only(index) | Route::Aside(index) => {
                nodes.all().get(index).filter(|node| nodes.is_usable(node)).into_iter().collect()
            }
        }
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

/// Whom a funnel asks.
#[derive(Clone, Copy, Debug)]
pub(super) enum Route {
    /// One node after the other, the best first, until one has an answer.
    InTurn,
    /// The node at this place of the configuration and no other.
    Only(usize),
    /// The same, for questions that a good node need not be able to answer: they do not count for or against it.
    Aside(usize),
}

struct Job {
    call: Call,
    queued: Instant,
    /// A copy of something that another node may have answered already: it is sent all the same.
    copy: bool,
    answer: oneshot::Sender<Result<Answered, RpcError>>,
}

#[derive(Debug)]
pub(super) struct Batcher {
    queue: mpsc::Sender<Job>,
}

impl Batcher {
    /// Starts the funnel's task, which ends when the funnel is dropped. Needs a Tokio runtime.
    pub(super) fn start(shared: Arc<Shared>, limit: Arc<BatchLimit>, width: Width, route: Route) -> Batcher {
        let (queue, jobs) = mpsc::channel(QUEUE);
        tokio::spawn(dispatch(shared, limit, width, route, jobs));
        Batcher { queue }
    }

    /// A call that is not sent once nobody waits for it.
    pub(super) async fn ask(&self, call: Call) -> Result<Answered, RpcError> {
        self.put(call, false).await
    }

    /// A call that is sent even if the caller has left meanwhile.
    pub(super) async fn tell(&self, call: Call) -> Result<Answered, RpcError> {
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
        // Lanes that one commit has woken ask one after the other: whoever can run now goes along.
        tokio::task::yield_now().await;
        while flushes.try_join_next().is_some() {}
        while flushes.len() >= allowed(&limit, width) {
            flushes.join_next().await;
        }
        // Only now is the batch filled: what came in during the waits above goes with it.
        let Ok(slot) = Arc::clone(&shared.slots).acquire_owned().await else { return };
        let batch = fill(first, &mut jobs, limit.now());
        flushes.spawn(flush(Arc::clone(&shared), Arc::clone(&limit), route, batch, slot));
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
    batch.retain(|job| !job.answer.is_closed() || (job.copy && job.queued.elapsed() < COPY_LIFE));
    batch
}

/// Takes the batch to the nodes in turn until every call has its answer.
async fn flush(
    shared: Arc<Shared>,
    limit: Arc<BatchLimit>,
    route: Route,
    batch: Vec<Job>,
    _slot: OwnedSemaphorePermit,
) {
    let nodes = &shared.exchange.nodes;
    let mut open: Vec<(Job, Option<Unsettled>)> = batch.into_iter().map(|job| (job, None)).collect();
    for endpoint in shared.on(route) {
        if open.is_empty() {
            return;
        }
        let calls: Vec<&Call> = open.iter().map(|(job, _)| &job.call).collect();
        let results = shared.exchange.ask(endpoint, &calls, &limit).await;
        let mut answers = false;
        let mut left = Vec::new();
        for ((job, before), result) in open.into_iter().zip(results) {
            let answered = result.map(|reply| Answered { reply, endpoint: endpoint.shown.clone() });
            answers |= answered.as_ref().is_ok_and(|answered| shared.is_answer(&answered.reply));
            match judge(&shared, job.call.method, answered) {
                Ok(answered) => job.settle(Ok(answered)),
                Err(now) => left.push((job, Some(Unsettled::better(before, now)))),
            }
        }
        if !matches!(route, Route::Aside(_)) {
            nodes.note(endpoint, answers);
        }
        open = left;
    }
    for (job, unsettled) in open {
        let nobody = || Unsettled::Failed(no_node(job.call.method));
        let answer = match unsettled.unwrap_or_else(nobody) {
            Unsettled::Refused(answered) => Ok(answered),
            Unsettled::Failed(error) => Err(error),
        };
        job.settle(answer);
    }
}

/// What the nodes asked so far have left a call with.
enum Unsettled {
    /// A node answered that it is in trouble, or in words that no class has.
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

fn judge(shared: &Shared, method: &str, answered: Result<Answered, RpcError>) -> Result<Answered, Unsettled> {
    match answered {
        Err(error) => Err(Unsettled::Failed(error)),
        Ok(answered) => match &answered.reply {
            Err(error) if shared.is_worth_another_node(method, error) => Err(Unsettled::Refused(answered)),
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
#[path = "batcher_tests.rs"]
mod tests;
