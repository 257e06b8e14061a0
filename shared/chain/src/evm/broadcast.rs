//! Sends a transaction to every responsive node; the first acceptance is the result.
//!
//! Acceptance by one node is enough. The copies for the other nodes are still sent in the background; the caller does
//! not wait for them, and their answers are ignored.

use std::sync::Arc;
use std::time::Duration;

use ethers_core::types::H256;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use tokio::time::{Instant, timeout_at};

use super::answer::{full_message, names_transaction};
use super::batcher::{Answered, Batcher, Route, Shared, Width};
use super::exchange::BatchLimit;
use super::http::Endpoint;
use super::nodes::no_node;
use super::wire::Call;
use crate::classify::{SubmitClass, SubmitOutcome};
use crate::port::RpcError;
use gapless_config::{Broadcast, ChainConfig};

/// How long to wait for an acceptance by another node after a rejection. The caller retries anyway.
const SECOND_OPINION: Duration = Duration::from_secs(1);

type SendResult = Result<SubmitOutcome, RpcError>;

/// How sends are distributed to the nodes.
#[derive(Debug)]
pub(super) enum Sends {
    /// The best node, with failover; all nodes if it returns a fatal error.
    First { best: Batcher, each: Vec<Batcher> },
    /// One batcher per node, so that a slow node does not delay the others.
    All(Vec<Batcher>),
}

impl Sends {
    pub(super) fn start(shared: &Arc<Shared>, config: &ChainConfig, max_in_flight: usize) -> Sends {
        let start = |width, route| {
            Batcher::start(Arc::clone(shared), Arc::new(BatchLimit::new(config.rpc.max_batch)), width, route)
        };
        let nodes = shared.exchange.nodes.all();
        // A hanging node occupies its slots until the timeout: all nodes together use at most a quarter of the slots.
        let width = Width { normal: 2, max: max_in_flight / (4 * nodes.len().max(1)) };
        let each = || nodes.iter().map(|node| start(width, Route::Only(node.index))).collect();
        if nodes.len() == 1 || config.rpc.broadcast == Broadcast::First {
            let best = start(Width { normal: 2, max: max_in_flight }, Route::Failover);
            return Sends::First { best, each: if nodes.len() == 1 { Vec::new() } else { each() } };
        }
        Sends::All(each())
    }

    pub(super) async fn send(&self, shared: &Shared, call: Call, tx_hash: H256) -> SendResult {
        match self {
            Sends::First { best, each } => {
                let outcome = outcome(shared, best.call(call.clone()).await?, tx_hash);
                match outcome.class {
                    SubmitClass::Fatal if !each.is_empty() => send_to_all(shared, each, &call, tx_hash).await,
                    _ => Ok(outcome),
                }
            }
            Sends::All(each) => send_to_all(shared, each, &call, tx_hash).await,
        }
    }
}

/// Sends to every responsive node. Unresponsive nodes are included if no other node answered about the transaction,
/// and before a fatal error is accepted.
async fn send_to_all(shared: &Shared, each: &[Batcher], call: &Call, tx_hash: H256) -> SendResult {
    let mut best: Option<Best> = None;
    let mut incomplete = false;
    for wave in shared.exchange.nodes.for_broadcast() {
        send_to(shared, each, &wave, call, tx_hash, &mut best, &mut incomplete).await;
        let is_final =
            |best: &Best| best.weight.kind <= AnswerKind::AboutTransaction && best.weight.class != FATAL;
        if best.as_ref().is_some_and(is_final) {
            break;
        }
    }
    let result = best.map_or_else(|| Err(no_node(call.method)), |best| best.result);
    result.map(|outcome| if incomplete { fatal_to_unknown(outcome) } else { outcome })
}

/// Sends to some nodes concurrently and stores the best answer, until one accepts or the wait is over. Sets
/// `incomplete` if a node did not answer about the transaction.
async fn send_to(
    shared: &Shared,
    batchers: &[Batcher],
    nodes: &[&Endpoint],
    call: &Call,
    tx_hash: H256,
    best: &mut Option<Best>,
    incomplete: &mut bool,
) {
    let one = |node: &Endpoint| {
        let (lags, index) = (node.health.is_lagging(), node.index);
        async move { (lags, batchers[index].call_detached(call.clone()).await) }
    };
    let mut answers: FuturesUnordered<_> = nodes.iter().map(|node| one(node)).collect();
    let mut deadline: Option<Instant> = None;
    loop {
        let next = match deadline {
            Some(deadline) => timeout_at(deadline, answers.next()).await.unwrap_or_default(),
            None => answers.next().await,
        };
        let Some((lags, answer)) = next else { return };
        let now = Best::of(answer.map(|answered| outcome(shared, answered, tx_hash)), lags);
        *incomplete |= now.weight.kind > AnswerKind::AboutTransaction;
        let better = match best.take() {
            Some(before) if before.weight <= now.weight => before,
            _ => now,
        };
        let weight = best.insert(better).weight;
        if weight.kind == AnswerKind::Accepted {
            return;
        }
        // A fatal error ends the transaction, and a lagging node may be wrong: in both cases wait for all other nodes.
        let rejected = weight.kind == AnswerKind::AboutTransaction;
        if rejected && !weight.lags && weight.class != FATAL && deadline.is_none() {
            deadline = Some(Instant::now() + SECOND_OPINION);
        }
    }
}

/// A fatal error counts only if every node answered: a node that did not may have accepted the transaction.
fn fatal_to_unknown(outcome: SubmitOutcome) -> SubmitOutcome {
    match outcome.class {
        SubmitClass::Fatal => SubmitOutcome { class: SubmitClass::Unknown, ..outcome },
        _ => outcome,
    }
}

/// Classifies a node's answer to a send.
fn outcome(shared: &Shared, answered: Answered, tx_hash: H256) -> SubmitOutcome {
    match answered.reply {
        Ok(result) if serde_json::from_str::<H256>(result.get()).is_ok_and(|hash| hash == tx_hash) => {
            SubmitOutcome::accepted()
        }
        Ok(result) => {
            let returned: String = result.get().chars().take(200).collect();
            let message = format!("{} returned {returned} instead of {tx_hash:#x}", answered.endpoint);
            SubmitOutcome { class: SubmitClass::Unknown, message, code: 0 }
        }
        Err(error) => {
            let has_it = names_transaction(&error, tx_hash);
            let class = if has_it { SubmitClass::AlreadyKnown } else { shared.class_of(&error) };
            SubmitOutcome { class, message: full_message(&error), code: error.code }
        }
    }
}

/// The best answer so far.
struct Best {
    weight: Weight,
    result: SendResult,
}

/// Order of answers: the smallest wins.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Weight {
    kind: AnswerKind,
    /// The answer of a lagging node counts only if no other node answers.
    lags: bool,
    class: u8,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum AnswerKind {
    Accepted,
    /// An error about the transaction.
    AboutTransaction,
    /// An error about the node only.
    Unavailable,
    NoAnswer,
}

const FATAL: u8 = 9;

impl Best {
    fn of(result: SendResult, lags: bool) -> Best {
        let class = result.as_ref().map(|outcome| outcome.class);
        let kind = match class {
            Ok(SubmitClass::Accepted | SubmitClass::AlreadyKnown) => AnswerKind::Accepted,
            Ok(SubmitClass::Unavailable) => AnswerKind::Unavailable,
            Ok(_) => AnswerKind::AboutTransaction,
            Err(_) => AnswerKind::NoAnswer,
        };
        Best { weight: Weight { kind, lags, class: class.map_or(u8::MAX, weight) }, result }
    }
}

/// Priority of error classes: first those that show where the transaction is, then temporary ones, then fatal.
fn weight(class: SubmitClass) -> u8 {
    match class {
        SubmitClass::Accepted | SubmitClass::AlreadyKnown | SubmitClass::NonceTooLow => 0,
        SubmitClass::ReplacementUnderpriced => 1,
        SubmitClass::Underpriced => 2,
        SubmitClass::FeeCapExceeded => 3,
        SubmitClass::DelegatedLimit => 4,
        SubmitClass::PoolFull => 5,
        SubmitClass::InsufficientFunds => 6,
        SubmitClass::NonceTooHigh => 7,
        SubmitClass::Unknown => 8,
        SubmitClass::Fatal => FATAL,
        SubmitClass::Unavailable => 10,
    }
}

#[cfg(test)]
#[path = "broadcast_tests.rs"]
mod tests;
