//! One node, queried by itself, for `gapless doctor`: what only a diagnosis needs, beside the chain port.

use ethers_core::types::H256;
use serde::Deserialize;
use serde_json::{Value, json};

use super::answer::{malformed, parse};
use super::client::{EvmClient, tag_text};
use super::decode::Count;
use super::http::{Endpoint, EvmClientError};
use super::wire::Call;
use crate::port::{BlockTag, RpcError};
use gapless_config::ChainConfig;

const SYNCING: &str = "eth_syncing";
const BLOCK: &str = "eth_getBlockByNumber";
const CHAIN_ID: &str = "eth_chainId";

/// A client of a single node of a chain.
#[derive(Debug)]
pub struct SingleNode {
    client: EvmClient,
    /// Index in the configuration.
    index: usize,
}

/// How far a node that is syncing has come; the numbers are absent if it does not report them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SyncProgress {
    pub current: Option<u64>,
    pub highest: Option<u64>,
}

/// A block with its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockTime {
    pub number: u64,
    pub hash: H256,
    /// Seconds since 1970.
    pub timestamp: u64,
}

#[derive(Deserialize)]
struct RawBlockTime {
    number: Option<Count>,
    hash: Option<H256>,
    timestamp: Count,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawProgress {
    current_block: Option<Count>,
    highest_block: Option<Count>,
}

impl SingleNode {
    /// One client for each node of the chain, in configuration order. Sends no request yet.
    pub fn all(config: &ChainConfig) -> Result<Vec<SingleNode>, EvmClientError> {
        // Names the chain and the index of an invalid URL, which is 0 in the configuration of a single node.
        Endpoint::all(config)?;
        let urls = config.urls.iter().enumerate();
        urls.map(|(index, url)| {
            let alone = ChainConfig { urls: vec![url.clone()], ..config.clone() };
            Ok(SingleNode { client: EvmClient::new(&alone)?, index })
        })
        .collect()
    }

    /// The node through the chain port.
    pub fn client(&self) -> &EvmClient {
        &self.client
    }

    pub fn index(&self) -> usize {
        self.index
    }

    /// Scheme, host and port.
    pub fn shown(&self) -> &str {
        &self.endpoint().shown
    }

    fn endpoint(&self) -> &Endpoint {
        &self.client.shared.exchange.nodes.all()[0]
    }

    async fn ask(&self, call: Call) -> Result<Box<serde_json::value::RawValue>, RpcError> {
        Ok(self.client.call_node(self.endpoint(), &[call]).await?.remove(0))
    }

    /// `None`: the node is not syncing.
    pub async fn syncing(&self) -> Result<Option<SyncProgress>, RpcError> {
        let answer: Value =
            parse(SYNCING, self.shown(), self.ask(Call::new(SYNCING, json!([]))).await?.as_ref())?;
        match answer {
            Value::Bool(false) => Ok(None),
            // Some nodes only say that they are.
            Value::Bool(true) => Ok(Some(SyncProgress { current: None, highest: None })),
            progress => {
                let raw: RawProgress = serde_json::from_value(progress)
                    .map_err(|error| malformed(SYNCING, self.shown(), &error.to_string()))?;
                let number = |count: Option<Count>| count.map(|count| count.0);
                Ok(Some(SyncProgress {
                    current: number(raw.current_block),
                    highest: number(raw.highest_block),
                }))
            }
        }
    }

    /// `None`: the node does not have the block.
    pub async fn block_time(&self, tag: BlockTag) -> Result<Option<BlockTime>, RpcError> {
        let answer = self.ask(Call::new(BLOCK, json!([tag_text(tag), false]))).await?;
        let block: Option<RawBlockTime> = parse(BLOCK, self.shown(), &answer)?;
        Ok(block.and_then(|block| {
            Some(BlockTime { number: block.number?.0, hash: block.hash?, timestamp: block.timestamp.0 })
        }))
    }

    /// The largest batch that the node accepts when a rejected one is halved, as in normal use. 1: none.
    pub async fn accepted_batch(&self, calls: usize) -> Result<usize, RpcError> {
        let call = Call::new(CHAIN_ID, json!([]));
        let mut size = calls;
        while size > 1 {
            if self.client.shared.exchange.accepts(self.endpoint(), &vec![&call; size]).await? {
                return Ok(size);
            }
            size /= 2;
        }
        Ok(1)
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Act, Node, answer, config, replies};
    use super::*;

    fn single(node: &Node) -> SingleNode {
        SingleNode::all(&config(&[node])).unwrap().remove(0)
    }

    #[tokio::test]
    async fn a_node_says_whether_it_is_syncing() {
        for (answered, expected) in [
            (json!(false), None),
            (json!(true), Some((None, None))),
            (
                json!({ "currentBlock": "0x5", "highestBlock": "0xa", "stages": [] }),
                Some((Some(5), Some(10))),
            ),
            (json!({}), Some((None, None))),
        ] {
            let node = Node::start(move |body| answer(body, |_| Ok(answered.clone()))).await;
            let found = single(&node).syncing().await.unwrap();
            assert_eq!(found.map(|progress| (progress.current, progress.highest)), expected);
        }
        let node = Node::start(|body| answer(body, |_| Ok(json!("soon")))).await;
        assert!(single(&node).syncing().await.is_err(), "nonsense is no answer");
    }

    #[tokio::test]
    async fn the_accepted_batch_is_found_by_halving() {
        let up_to = |most: usize| {
            move |body: &Value| match body.as_array() {
                Some(calls) if calls.len() > most => Act::Answer(
                    200,
                    json!({ "jsonrpc": "2.0", "id": null, "error": { "code": -32600, "message": "no" } })
                        .to_string(),
                ),
                _ => answer(body, |_| Ok(json!("0x1"))),
            }
        };
        for (most, found) in [(100, 16), (16, 16), (5, 4), (0, 1)] {
            let node = Node::start(up_to(most)).await;
            assert_eq!(single(&node).accepted_batch(16).await.unwrap(), found, "{most}");
            assert!(node.batches().len() <= 4, "one request for each size: {:?}", node.batches());
        }
        let node =
            Node::start(|body| answer(body, |_| Err(json!({ "code": -32000, "message": "no" })))).await;
        assert!(single(&node).accepted_batch(16).await.is_err());
        // Only the first call is answered.
        let node = Node::start(|body| {
            Act::Answer(200, json!([replies(&body[0], |_| Ok(json!("0x1")))]).to_string())
        })
        .await;
        assert!(single(&node).accepted_batch(16).await.is_err());
    }
}
