//! Sends a set of calls to one node: splits them into batches, matches replies by id, and splits further if the node
//! rejects a batch as too large.
//!
//! The batcher chooses the node and handles failover.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use super::http::{Endpoint, PostError};
use super::nodes::Nodes;
use super::wire::{self, Call, ErrorObject, Replies, Reply};
use crate::port::RpcError;
use gapless_telemetry::metrics::{RPC_BATCH_SIZE, RPC_ERRORS_TOTAL};

/// Full batches that must succeed before the limit grows by one.
const FULL_BATCHES_BEFORE_GROWTH: usize = 64;

/// Current maximum number of calls per batch. Halved on failure, raised slowly.
#[derive(Debug)]
pub(super) struct BatchLimit {
    max: usize,
    now: AtomicUsize,
    full: AtomicUsize,
}

impl BatchLimit {
    pub(super) fn new(max: usize) -> BatchLimit {
        let max = max.max(1);
        BatchLimit { max, now: AtomicUsize::new(max), full: AtomicUsize::new(0) }
    }

    pub(super) fn now(&self) -> usize {
        self.now.load(Relaxed)
    }

    pub(super) fn max(&self) -> usize {
        self.max
    }

    /// Lowers the limit to half of the failed batch, so that several concurrent failures count once.
    fn halve(&self, sent: usize) {
        self.full.store(0, Relaxed);
        let half = (sent / 2).max(1);
        if self.now.fetch_min(half, Relaxed) > half {
            tracing::info!(limit = half, "JSON-RPC batch size reduced");
        }
    }

    fn succeeded(&self, sent: usize) {
        let now = self.now();
        if sent < now || now == self.max || self.full.fetch_add(1, Relaxed) + 1 < FULL_BATCHES_BEFORE_GROWTH {
            return;
        }
        self.full.store(0, Relaxed);
        // Fails if another flush has changed the limit; then the increment is skipped.
        let _ = self.now.compare_exchange(now, now + 1, Relaxed, Relaxed);
    }
}

/// Why a request has no replies at all.
enum NoReplies {
    Post(PostError),
    Malformed(String),
    Refused(ErrorObject),
    BatchTooLarge,
}

/// The result of one call of a request.
enum Outcome {
    Replied(Reply),
    Unanswered(&'static str),
    BatchTooLarge,
}

impl Outcome {
    fn redact(self, endpoint: &Endpoint) -> Outcome {
        match self {
            Outcome::Replied(Err(error)) => Outcome::Replied(Err(redact(error, endpoint))),
            other => other,
        }
    }
}

/// Removes the secret parts of the URL from the message and from `data`, which is appended to messages.
fn redact(error: ErrorObject, endpoint: &Endpoint) -> ErrorObject {
    ErrorObject {
        message: endpoint.without_secrets(error.message),
        data: error.data.map(|data| endpoint.value_without_secrets(data)),
        ..error
    }
}

#[derive(Debug)]
pub(super) struct Exchange {
    pub(super) nodes: Nodes,
    /// Ids are never reused, so that a late or wrong reply matches nothing.
    next_id: AtomicU64,
}

impl Exchange {
    pub(super) fn new(nodes: Nodes) -> Exchange {
        Exchange { nodes, next_id: AtomicU64::new(1) }
    }

    /// One result per call, in order. After a failed request the remaining calls are not sent to this node, so that
    /// they can go to another node instead of waiting for the same timeout again.
    pub(super) async fn request(
        &self,
        endpoint: &Endpoint,
        calls: &[&Call],
        limit: &BatchLimit,
    ) -> Vec<Result<Reply, RpcError>> {
        let mut results: Vec<Option<Result<Reply, RpcError>>> = calls.iter().map(|_| None).collect();
        let mut parts: VecDeque<Vec<usize>> = VecDeque::from([(0..calls.len()).collect()]);
        while let Some(mut part) = parts.pop_front() {
            // The limit may have been lowered since the part was created.
            let rest = part.split_off(part.len().min(limit.now()));
            if !rest.is_empty() {
                parts.push_front(rest);
            }
            let sent: Vec<&Call> = part.iter().map(|&index| calls[index]).collect();
            let again = match self.send(endpoint, &sent).await {
                Ok(outcomes) => settle(&mut results, calls, &part, outcomes, endpoint),
                Err(NoReplies::BatchTooLarge) => part.clone(),
                Err(failure) => {
                    if matches!(failure, NoReplies::Post(PostError::Timeout(_))) {
                        limit.halve(part.len());
                    }
                    for index in part.into_iter().chain(parts.drain(..).flatten()) {
                        results[index] = Some(Err(failure.for_call(calls[index].method, endpoint)));
                    }
                    break;
                }
            };
            if again.is_empty() {
                limit.succeeded(part.len());
                continue;
            }
            limit.halve(part.len());
            for half in again.chunks((part.len() / 2).max(1)).rev() {
                parts.push_front(half.to_vec());
            }
        }
        results
            .into_iter()
            .map(|result| result.expect("every call is in one part until it has a result"))
            .collect()
    }

    /// Whether the node accepts these calls as one batch, found out with one request.
    pub(super) async fn accepts(&self, endpoint: &Endpoint, calls: &[&Call]) -> Result<bool, RpcError> {
        let method = calls.first().map_or("batch", |call| call.method);
        match self.send(endpoint, calls).await {
            Err(NoReplies::BatchTooLarge) => Ok(false),
            Err(failure) => Err(failure.for_call(method, endpoint)),
            Ok(outcomes) if outcomes.iter().any(|outcome| matches!(outcome, Outcome::BatchTooLarge)) => {
                Ok(false)
            }
            Ok(outcomes) => {
                for outcome in outcomes {
                    let failure = match outcome {
                        Outcome::Replied(Err(error)) => NoReplies::Refused(error),
                        Outcome::Unanswered(reason) => NoReplies::Malformed(reason.into()),
                        Outcome::Replied(Ok(_)) | Outcome::BatchTooLarge => continue,
                    };
                    return Err(failure.for_call(method, endpoint));
                }
                Ok(true)
            }
        }
    }

    /// One request. `BatchTooLarge` is only returned for more than one call, so splitting terminates.
    async fn send(&self, endpoint: &Endpoint, calls: &[&Call]) -> Result<Vec<Outcome>, NoReplies> {
        metrics::histogram!(RPC_BATCH_SIZE).record(calls.len() as f64);
        let first_id = self.next_id.fetch_add(calls.len() as u64, Relaxed);
        let body = match self.nodes.http.post(endpoint, wire::encode(calls, first_id)).await {
            Ok(body) => body,
            Err(error) => {
                count(error.kind());
                let batch = error == PostError::TooLarge && calls.len() > 1;
                return Err(if batch { NoReplies::BatchTooLarge } else { NoReplies::Post(error) });
            }
        };
        match wire::decode(&body.bytes, first_id..first_id + calls.len() as u64) {
            Ok(Replies::ById(mut replies)) => Ok((first_id..)
                .take(calls.len())
                .map(|id| outcome(replies.remove(&id), calls.len()).redact(endpoint))
                .collect()),
            Ok(Replies::Whole(error)) => {
                count("refused");
                let error = redact(error, endpoint);
                let batch = calls.len() > 1 && refuses_batch(&error);
                Err(if batch { NoReplies::BatchTooLarge } else { NoReplies::Refused(error) })
            }
            Err(reason) => {
                count("malformed");
                Err(NoReplies::Malformed(endpoint.without_secrets(reason)))
            }
        }
    }
}

/// Stores the final results; returns the calls to be sent again in smaller parts.
fn settle(
    results: &mut [Option<Result<Reply, RpcError>>],
    calls: &[&Call],
    part: &[usize],
    outcomes: Vec<Outcome>,
    endpoint: &Endpoint,
) -> Vec<usize> {
    // Geth answers a batch above its limit with one error for the first call's id and nothing for the others.
    let too_large = outcomes.iter().any(|outcome| matches!(outcome, Outcome::BatchTooLarge));
    let mut again = Vec::new();
    for (&index, outcome) in part.iter().zip(outcomes) {
        match outcome {
            Outcome::Replied(reply) => results[index] = Some(Ok(reply)),
            Outcome::Unanswered(_) | Outcome::BatchTooLarge if too_large => again.push(index),
            Outcome::Unanswered(reason) => {
                count("malformed");
                let failure = NoReplies::Malformed(reason.into());
                results[index] = Some(Err(failure.for_call(calls[index].method, endpoint)));
            }
            Outcome::BatchTooLarge => unreachable!("too_large is true when there is one"),
        }
    }
    again
}

fn outcome(reply: Option<Option<Reply>>, batch: usize) -> Outcome {
    match reply {
        Some(Some(Err(error))) if batch > 1 && is_about_batch(&error) => Outcome::BatchTooLarge,
        Some(Some(reply)) => Outcome::Replied(reply),
        Some(None) => Outcome::Unanswered("duplicate or empty reply for the call's id"),
        None => Outcome::Unanswered("no reply for the call's id"),
    }
}

/// Whether an error for a single call is about the batch. Specific, because a call's error may contain any text.
fn is_about_batch(error: &ErrorObject) -> bool {
    let text = error.message.to_lowercase();
    ["batch too large", "max batch size", "batch size", "batch limit", "response too large"]
        .iter()
        .any(|wording| text.contains(wording))
}

/// Whether one error for the whole request rejects this batch or batches in general.
fn refuses_batch(error: &ErrorObject) -> bool {
    const INVALID_REQUEST: i64 = -32600;
    let text = error.message.to_lowercase();
    error.code == INVALID_REQUEST || text.contains("batch") || text.contains("too large")
}

impl NoReplies {
    fn for_call(&self, method: &'static str, endpoint: &Endpoint) -> RpcError {
        match self {
            NoReplies::Post(error) => error.for_call(method, endpoint),
            NoReplies::BatchTooLarge => PostError::TooLarge.for_call(method, endpoint),
            NoReplies::Malformed(reason) => {
                RpcError::Malformed { method, endpoint: endpoint.shown.clone(), reason: reason.clone() }
            }
            NoReplies::Refused(error) => RpcError::Refused {
                method,
                endpoint: endpoint.shown.clone(),
                code: error.code,
                message: error.message.clone(),
            },
        }
    }
}

fn count(kind: &'static str) {
    metrics::counter!(RPC_ERRORS_TOTAL, "kind" => kind).increment(1);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_halved_at_once_and_raised_slowly() {
        let limit = BatchLimit::new(100);
        limit.halve(100);
        limit.halve(100);
        assert_eq!(limit.now(), 50, "two batches that failed together count once");
        limit.halve(1);
        assert_eq!(limit.now(), 1);
        for _ in 0..FULL_BATCHES_BEFORE_GROWTH {
            assert_eq!(limit.now(), 1);
            limit.succeeded(1);
        }
        assert_eq!(limit.now(), 2);
        for _ in 0..10 * FULL_BATCHES_BEFORE_GROWTH {
            limit.succeeded(1);
        }
        assert_eq!(limit.now(), 2, "a batch that was not full does not count");
    }
}
