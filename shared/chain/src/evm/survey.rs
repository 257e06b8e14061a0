//! Queries every node for its chain id, genesis and head, and updates its health.
//!
//! Decides which nodes are used. Whether the chain is halted is decided by the caller.

use std::time::Duration;

use ethers_core::types::H256;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use serde_json::json;
use tokio::time::{Instant, timeout_at};

use super::answer::parse;
use super::client::EvmClient;
use super::decode::{Count, RawBlock};
use super::health::Identity;
use super::http::Endpoint;
use super::nodes::no_node;
use super::wire::Call;
use crate::port::{ChainIdentity, RpcError};
use gapless_domain::ChainId;

/// How much longer than the first correct node the others may take, so that a hanging node does not delay the result.
const STRAGGLER_TIMEOUT: Duration = Duration::from_secs(2);

/// A node's identity and head.
#[derive(Clone, Debug)]
struct NodeStatus {
    chain_id: ChainId,
    genesis: Option<H256>,
    head: u64,
}

impl EvmClient {
    /// Checks every node against the configured chain id and `known`, the genesis hash. If that is not known yet, the
    /// genesis of the first node that has one is used for all.
    pub(super) async fn survey(&self, known: Option<H256>) -> Result<ChainIdentity, RpcError> {
        let nodes = &self.shared.exchange.nodes;
        let (seen, mut failure) = self.query_all().await;
        let of_our_id = |seen: &&NodeStatus| seen.chain_id == self.chain_id;
        let expected =
            known.or_else(|| seen.iter().flatten().filter(of_our_id).find_map(|seen| seen.genesis));
        let (mut best, mut problem) = (None, None);
        for (node, seen) in nodes.all().iter().zip(&seen) {
            let Some(seen) = seen else { continue };
            match ChainIdentity::check(self.chain_id, expected, seen.chain_id, seen.genesis) {
                ChainIdentity::Ours { .. } => {
                    nodes.note_identity(node, Identity::Ours);
                    best = best.max(Some(seen.head));
                }
                ChainIdentity::WrongChain { problem: found } => {
                    problem.get_or_insert(found.clone());
                    nodes.note_identity(node, Identity::WrongChain(found));
                }
            }
        }
        for (node, seen) in nodes.all().iter().zip(&seen) {
            if let (Some(seen), Some(best)) = (seen, best)
                && node.health.identity() == Identity::Ours
            {
                nodes.note_lag(node, best.saturating_sub(seen.head));
            }
        }
        nodes.require_identity();
        if best.is_some() {
            return Ok(ChainIdentity::Ours { genesis: expected });
        }
        // A node that was correct at its last answer may still be: then the result is unknown, not a wrong chain.
        let maybe_ours = nodes.all().iter().any(|node| node.health.identity() == Identity::Ours);
        match problem {
            Some(problem) if !maybe_ours => Ok(ChainIdentity::WrongChain { problem }),
            _ => Err(failure.take().unwrap_or_else(|| no_node("eth_chainId"))),
        }
    }

    /// The status of each node by index, `None` for those without one, and the last error.
    async fn query_all(&self) -> (Vec<Option<NodeStatus>>, Option<RpcError>) {
        let nodes = self.shared.exchange.nodes.all();
        let mut seen: Vec<Option<NodeStatus>> = vec![None; nodes.len()];
        let mut failure = None;
        let mut answered = vec![false; nodes.len()];
        let mut answers: FuturesUnordered<_> =
            nodes.iter().map(|node| async move { (node.index, self.query(node).await) }).collect();
        let mut deadline = Instant::now() + self.shared.exchange.nodes.http.timeout() + STRAGGLER_TIMEOUT;
        while let Ok(Some((index, answer))) = timeout_at(deadline, answers.next()).await {
            answered[index] = true;
            match answer {
                Ok(found) => {
                    if found.chain_id == self.chain_id {
                        deadline = deadline.min(Instant::now() + STRAGGLER_TIMEOUT);
                    }
                    seen[index] = Some(found);
                }
                Err(error) => failure = Some(error),
            }
        }
        for node in nodes.iter().filter(|node| !answered[node.index]) {
            self.shared.exchange.nodes.note(node, false);
        }
        (seen, failure)
    }

    async fn query(&self, node: &Endpoint) -> Result<NodeStatus, RpcError> {
        let [id, number, block] = ["eth_chainId", "eth_blockNumber", "eth_getBlockByNumber"];
        let calls =
            [Call::new(id, json!([])), Call::new(number, json!([])), Call::new(block, json!(["0x0", false]))];
        let replies = self.call_node(node, &calls).await?;
        let Count(chain_id) = parse(id, &node.shown, &replies[0])?;
        let Count(head) = parse(number, &node.shown, &replies[1])?;
        let genesis: Option<RawBlock> = parse(block, &node.shown, &replies[2])?;
        let genesis = genesis.and_then(RawBlock::mined).filter(|block| block.block.number == 0);
        Ok(NodeStatus { chain_id: ChainId(chain_id), genesis: genesis.map(|block| block.block.hash), head })
    }
}

#[cfg(test)]
#[path = "survey_tests.rs"]
mod tests;
