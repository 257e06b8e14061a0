//! Reads the nodes' mempools: each node separately, with its own batcher.
//!
//! Sends never wait for it, and its results do not affect the health of a node.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use async_trait::async_trait;
use ethers_core::types::{Address, H256};
use futures::future::{join_all, try_join_all};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::answer::{lacks_method, malformed, parse, refused};
use super::batcher::{Answered, Batcher, Route, Shared, Width};
use super::client::EvmClient;
use super::decode::Count;
use super::exchange::BatchLimit;
use super::wire::Call;
use crate::port::{MempoolInspector, RpcError};
use gapless_config::ChainConfig;
use gapless_domain::Nonce;
use gapless_domain::mempool::{KnownTx, PoolSurvey, PoolView, PooledTx};

/// One request at a time per node: a slow node occupies one slot of `rpc.max_in_flight`, and a diagnosis can wait.
const WIDTH: Width = Width { normal: 1, max: 1 };

/// The pools of a chain's nodes.
#[derive(Debug)]
pub struct EvmInspector {
    shared: Arc<Shared>,
    /// By the node's index in the configuration.
    pools: Vec<Pool>,
}

#[derive(Debug)]
struct Pool {
    batcher: Batcher,
    /// Set once the node has reported that it lacks `txpool_contentFrom`.
    unsupported: AtomicBool,
}

impl EvmClient {
    /// Starts the batchers of the inspector; must be called within a Tokio runtime.
    pub fn inspector(&self, config: &ChainConfig) -> EvmInspector {
        let start = |index| {
            let limit = Arc::new(BatchLimit::new(config.rpc.max_batch));
            Batcher::start(Arc::clone(&self.shared), limit, WIDTH, Route::Unrated(index))
        };
        let nodes = self.shared.exchange.nodes.all();
        let pools =
            nodes.iter().map(|node| Pool { batcher: start(node.index), unsupported: AtomicBool::new(false) });
        EvmInspector { pools: pools.collect(), shared: Arc::clone(&self.shared) }
    }
}

#[async_trait]
impl MempoolInspector for EvmInspector {
    async fn inspect(&self, sender: Address, hashes: &[H256]) -> PoolSurvey {
        let nodes: Vec<usize> = self.shared.exchange.nodes.not_wrong_chain().map(|node| node.index).collect();
        let views = join_all(nodes.iter().map(|index| self.pools[*index].view(sender, hashes))).await;
        let answered = views.into_iter().filter_map(|view| {
            view.inspect_err(|error| tracing::debug!(%error, "could not read a node's mempool")).ok()
        });
        PoolSurvey { asked: nodes.len(), views: answered.collect() }
    }
}

impl Pool {
    /// All calls are queued together, so that they are sent in one batch, with those for other senders.
    async fn view(&self, sender: Address, hashes: &[H256]) -> Result<PoolView, RpcError> {
        let known = try_join_all(hashes.iter().map(|hash| self.known(*hash)));
        let (mined_count, pending_count, known, pool) =
            tokio::try_join!(self.count(sender, "latest"), self.count(sender, "pending"), known, async {
                Ok(self.content(sender).await)
            })?;
        Ok(PoolView { known: known.into_iter().flatten().collect(), mined_count, pending_count, pool })
    }

    async fn read<T: DeserializeOwned>(
        &self,
        method: &'static str,
        params: Value,
    ) -> Result<(T, String), RpcError> {
        let Answered { reply, endpoint } = self.batcher.call(Call::new(method, params)).await?;
        match reply {
            Ok(result) => Ok((parse(method, &endpoint, &result)?, endpoint)),
            Err(error) => Err(refused(method, &endpoint, &error)),
        }
    }

    async fn count(&self, sender: Address, tag: &str) -> Result<u64, RpcError> {
        let (Count(count), _) = self.read("eth_getTransactionCount", json!([sender, tag])).await?;
        Ok(count)
    }

    async fn known(&self, hash: H256) -> Result<Option<KnownTx>, RpcError> {
        let method = "eth_getTransactionByHash";
        let (found, endpoint): (Option<RawKnown>, _) = self.read(method, json!([hash])).await?;
        match found {
            Some(other) if other.hash != hash => Err(malformed(method, &endpoint, "another transaction")),
            found => Ok(found.map(|found| KnownTx { hash, in_block: found.block_hash.is_some() })),
        }
    }

    /// `None` if the node does not support it, or on an error: the rest of the view is still useful.
    async fn content(&self, sender: Address) -> Option<Vec<PooledTx>> {
        if self.unsupported.load(Relaxed) {
            return None;
        }
        let method = "txpool_contentFrom";
        let Answered { reply, endpoint } =
            self.batcher.call(Call::new(method, json!([sender]))).await.ok()?;
        match reply {
            Ok(result) => parse::<RawContent>(method, &endpoint, &result).ok().map(pooled),
            Err(error) => {
                if lacks_method(&error) {
                    tracing::info!(%endpoint, "no {method}; using hashes and counts instead");
                    self.unsupported.store(true, Relaxed);
                }
                None
            }
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawKnown {
    hash: H256,
    #[serde(default)]
    block_hash: Option<H256>,
}

/// By sub-pool and nonce. The sub-pools are `pending` and `queued`; Erigon has `baseFee` as well.
type RawContent = HashMap<String, HashMap<String, RawPooled>>;

#[derive(Debug, Deserialize)]
struct RawPooled {
    hash: H256,
    nonce: Count,
}

fn pooled(content: RawContent) -> Vec<PooledTx> {
    let one = |queued: bool, raw: RawPooled| PooledTx { nonce: Nonce(raw.nonce.0), hash: raw.hash, queued };
    content
        .into_iter()
        .flat_map(|(part, txs)| txs.into_values().map(move |raw| one(part == "queued", raw)))
        .collect()
}

#[cfg(test)]
#[path = "inspect_tests.rs"]
mod tests;
