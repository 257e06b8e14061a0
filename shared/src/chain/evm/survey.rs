//! Asks every node who it is and where its head is, and has the nodes judged by it.
//!
//! Decides which nodes are used, not whether the chain is: that is for whoever knows the database.

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
use crate::chain::port::{ChainIdentity, RpcError};
use crate::domain::ChainId;

/// How much longer than the first right node the others may take, so that a node that hangs does not delay the verdict.
const PATIENCE: Duration = Duration::from_secs(2);

/// What a node says of itself.
#[derive(Clone, Debug)]
struct Seen {
    chain_id: ChainId,
    genesis: Option<H256>,
    head: u64,
}

impl EvmClient {
    /// Checks every node against the configured id and `known`, the genesis; where that is not known yet, the first
    /// node that has one decides for the others.
    pub(super) async fn survey(&self, known: Option<H256>) -> Result<ChainIdentity, RpcError> {
        let nodes = &self.shared.exchange.nodes;
        let (seen, mut failure) = self.ask_everyone().await;
        let of_our_id = |seen: &&Seen| seen.chain_id == self.chain_id;
        let expected =
            known.or_else(|| seen.iter().flatten().filter(of_our_id).find_map(|seen| seen.genesis));
        let (mut best, mut problem) = (None, None);
        for (node, seen) in nodes.all().iter().zip(&seen) {
            let Some(seen) = seen else { continue };
            match ChainIdentity::judge(self.chain_id, expected, seen.chain_id, seen.genesis) {
                ChainIdentity::Ours { .. } => {
                    nodes.note_identity(node, Identity::Ours);
                    best = best.max(Some(seen.head));
                }
                ChainIdentity::External { problem: told } => {
                    problem.get_or_insert(told.clone());
                    nodes.note_identity(node, Identity::External(told));
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
        nodes.guard();
        if best.is_some() {
            return Ok(ChainIdentity::Ours { genesis: expected });
        }
        // A node that was right when it could last be asked may still be: then nothing is known, and nothing changes.
        let maybe_ours = nodes.all().iter().any(|node| node.health.identity() == Identity::Ours);
        match problem {
            Some(problem) if !maybe_ours => Ok(ChainIdentity::External { problem }),
            _ => Err(failure.take().unwrap_or_else(|| no_node("eth_chainId"))),
        }
    }

    /// What each node said, by its place; nothing for those that said nothing, and one reason why.
    async fn ask_everyone(&self) -> (Vec<Option<Seen>>, Option<RpcError>) {
        let nodes = self.shared.exchange.nodes.all();
        let mut seen: Vec<Option<Seen>> = vec![None; nodes.len()];
        let mut failure = None;
        let mut heard = vec![false; nodes.len()];
        let mut answers: FuturesUnordered<_> =
            nodes.iter().map(|node| async move { (node.index, self.look_at(node).await) }).collect();
        let mut deadline = Instant::now() + self.shared.exchange.nodes.http.timeout() + PATIENCE;
        while let Ok(Some((index, answer))) = timeout_at(deadline, answers.next()).await {
            heard[index] = true;
            match answer {
                Ok(found) => {
                    if found.chain_id == self.chain_id {
                        deadline = deadline.min(Instant::now() + PATIENCE);
                    }
                    seen[index] = Some(found);
                }
                Err(error) => failure = Some(error),
            }
        }
        for node in nodes.iter().filter(|node| !heard[node.index]) {
            self.shared.exchange.nodes.note(node, false);
        }
        (seen, failure)
    }

    async fn look_at(&self, node: &Endpoint) -> Result<Seen, RpcError> {
        let [id, number, block] = ["eth_chainId", "eth_blockNumber", "eth_getBlockByNumber"];
        let asked =
            [Call::new(id, json!([])), Call::new(number, json!([])), Call::new(block, json!(["0x0", false]))];
        let told = self.ask_one(node, &asked).await?;
        let Count(chain_id) = parse(id, &node.shown, &told[0])?;
        let Count(head) = parse(number, &node.shown, &told[1])?;
        let genesis: Option<RawBlock> = parse(block, &node.shown, &told[2])?;
        let genesis = genesis.and_then(RawBlock::mined).filter(|block| block.block.number == 0);
        Ok(Seen { chain_id: ChainId(chain_id), genesis: genesis.map(|block| block.block.hash), head })
    }
}

#[cfg(test)]
#[path = "survey_tests.rs"]
mod tests;
