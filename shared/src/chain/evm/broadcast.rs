//! One transaction to every node that is worth telling; the first success is the answer.
//!
//! A transaction that one node took is on its way, whatever the others say. The others are still told, in the
//! background: the caller does not wait for them, and their answers change nothing.

use std::sync::Arc;
use std::time::Duration;

use ethers_core::types::H256;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use tokio::time::{Instant, timeout_at};

use super::answer::{says_it_has, told};
use super::batcher::{Answered, Batcher, Route, Shared, Width};
use super::exchange::BatchLimit;
use super::http::Endpoint;
use super::nodes::no_node;
use super::wire::Call;
use crate::chain::classify::{SubmitClass, SubmitOutcome};
use crate::chain::port::RpcError;
use crate::config::{Broadcast, ChainConfig};

/// How long a refusal waits for a success elsewhere. Whoever asked tries again anyway.
const SECOND_OPINION: Duration = Duration::from_secs(1);

type Told = Result<SubmitOutcome, RpcError>;

/// How sends reach the nodes.
#[derive(Debug)]
pub(super) enum Sends {
    /// The best node; another one when it cannot be asked, and every one when it says "never".
    First { best: Batcher, each: Vec<Batcher> },
    /// A funnel for each node, so that a slow one delays only itself.
    All(Vec<Batcher>),
}

impl Sends {
    pub(super) fn start(shared: &Arc<Shared>, config: &ChainConfig, most: usize) -> Sends {
        let start = |width, route| {
            Batcher::start(Arc::clone(shared), Arc::new(BatchLimit::new(config.rpc.max_batch)), width, route)
        };
        let nodes = shared.exchange.nodes.all();
        // A node that hangs holds its requests until they time out: together no more than a quarter of the slots.
        let width = Width { usual: 2, most: most / (4 * nodes.len().max(1)) };
        let each = || nodes.iter().map(|node| start(width, Route::Only(node.index))).collect();
        if nodes.len() == 1 || config.rpc.broadcast == Broadcast::First {
            let best = start(Width { usual: 2, most }, Route::InTurn);
            return Sends::First { best, each: if nodes.len() == 1 { Vec::new() } else { each() } };
        }
        Sends::All(each())
    }

    pub(super) async fn send(&self, shared: &Shared, call: Call, tx_hash: H256) -> Told {
        match self {
            Sends::First { best, each } => {
                let told = outcome(shared, best.ask(call.clone()).await?, tx_hash);
                match told.class {
                    SubmitClass::Fatal if !each.is_empty() => tell_all(shared, each, &call, tx_hash).await,
                    _ => Ok(told),
                }
            }
            Sends::All(each) => tell_all(shared, each, &call, tx_hash).await,
        }
    }
}

/// Tells every node that is worth it. Those that were silent lately are told as well where nobody else had an opinion, and
/// before "never" is believed.
async fn tell_all(shared: &Shared, each: &[Batcher], call: &Call, tx_hash: H256) -> Told {
    let mut best: Option<Best> = None;
    let mut unheard = false;
    for wave in shared.exchange.nodes.for_broadcast() {
        tell(shared, each, &wave, call, tx_hash, &mut best, &mut unheard).await;
        let settles = |best: &Best| best.weight.says <= Says::Opinion && best.weight.class != FATAL;
        if best.as_ref().is_some_and(settles) {
            break;
        }
    }
    let told = best.map_or_else(|| Err(no_node(call.method)), |best| best.told);
    told.map(|outcome| if unheard { not_for_good(outcome) } else { outcome })
}

/// Tells some nodes at once and keeps the best answer, until there is a success or no more to wait for.
async fn tell(
    shared: &Shared,
    funnels: &[Batcher],
    nodes: &[&Endpoint],
    call: &Call,
    tx_hash: H256,
    best: &mut Option<Best>,
    unheard: &mut bool,
) {
    let one = |node: &Endpoint| {
        let (lags, index) = (node.health.lags_behind(), node.index);
        async move { (lags, funnels[index].tell(call.clone()).await) }
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
        *unheard |= now.weight.says > Says::Opinion;
        let kept = match best.take() {
            Some(before) if before.weight <= now.weight => before,
            _ => now,
        };
        let weight = best.insert(kept).weight;
        if weight.says == Says::Taken {
            return;
        }
        // "Never" has consequences, so everybody is heard first. And a node that lags can wait for the others.
        if weight.says == Says::Opinion && !weight.lags && weight.class != FATAL && deadline.is_none() {
            deadline = Some(Instant::now() + SECOND_OPINION);
        }
    }
}

/// "Never" is everybody's word or nobody's: a node that could not be heard may have taken it.
fn not_for_good(outcome: SubmitOutcome) -> SubmitOutcome {
    match outcome.class {
        SubmitClass::Fatal => SubmitOutcome { class: SubmitClass::Unknown, ..outcome },
        _ => outcome,
    }
}

/// What a node's answer to a send means.
fn outcome(shared: &Shared, answered: Answered, tx_hash: H256) -> SubmitOutcome {
    match answered.reply {
        Ok(result) if serde_json::from_str::<H256>(result.get()).is_ok_and(|said| said == tx_hash) => {
            SubmitOutcome::accepted()
        }
        Ok(result) => {
            let said: String = result.get().chars().take(200).collect();
            let message = format!("{} took {tx_hash:#x} and called it {said}", answered.endpoint);
            SubmitOutcome { class: SubmitClass::Unknown, message, code: 0 }
        }
        Err(error) => {
            let has_it = says_it_has(&error, tx_hash);
            let class = if has_it { SubmitClass::AlreadyKnown } else { shared.class_of(&error) };
            SubmitOutcome { class, message: told(&error), code: error.code }
        }
    }
}

/// The answer that counts so far.
struct Best {
    weight: Weight,
    told: Told,
}

/// How much an answer counts, the smallest most.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Weight {
    says: Says,
    /// What a node says that has not seen the newest blocks counts if no other says anything.
    lags: bool,
    class: u8,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Says {
    Taken,
    /// Something about the transaction.
    Opinion,
    /// Something about the node only.
    Unavailable,
    Nothing,
}

const FATAL: u8 = 9;

impl Best {
    fn of(told: Told, lags: bool) -> Best {
        let class = told.as_ref().map(|outcome| outcome.class);
        let says = match class {
            Ok(SubmitClass::Accepted | SubmitClass::AlreadyKnown) => Says::Taken,
            Ok(SubmitClass::Unavailable) => Says::Unavailable,
            Ok(_) => Says::Opinion,
            Err(_) => Says::Nothing,
        };
        Best { weight: Weight { says, lags, class: class.map_or(u8::MAX, weight) }, told }
    }
}

/// Which of several answers counts: one that finds the transaction, then those that pass by themselves, then the
/// final one.
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
