//! Finds the transaction that consumed a nonce. JSON-RPC has no query for it: the block is found by the sender's
//! transaction count, then the block's transactions are searched.
//!
//! If a node returns nothing, the next one is queried. Results are verified by their signature (`mined_tx`).

use ethers_core::types::{Address, H256};
use serde_json::json;

use super::answer::{malformed, parse, read_receipt};
use super::client::{EvmClient, tag_text};
use super::decode::{Count, RawReceipt};
use super::http::Endpoint;
use super::mined_tx::FullBlock;
use super::nodes::no_node;
use super::wire::Call;
use crate::port::{BlockId, BlockTag, RpcError, SenderInBlocks};
use gapless_domain::Receipt;

const COUNT: &str = "eth_getTransactionCount";
const BLOCK: &str = "eth_getBlockByHash";
const BLOCK_RECEIPTS: &str = "eth_getBlockReceipts";
const RECEIPT: &str = "eth_getTransactionReceipt";

/// EIP-7702 delegation prefix, followed by the address of the delegate.
const DESIGNATOR: [u8; 3] = [0xef, 0x01, 0x00];

/// The delegate's address, if the code is exactly an EIP-7702 delegation.
pub(super) fn delegate(code: &[u8]) -> Option<Address> {
    let address = code.strip_prefix(&DESIGNATOR)?;
    (address.len() == 20).then(|| Address::from_slice(address))
}

impl EvmClient {
    pub(super) async fn read_blocks(
        &self,
        sender: Address,
        blocks: &[BlockId],
        every_node: bool,
    ) -> SenderInBlocks {
        let mut found = SenderInBlocks::default();
        for block in blocks {
            let mut shown = false;
            for node in self.shared.exchange.nodes.by_preference() {
                match self.block_at(node, *block).await {
                    Ok(Some(full)) => {
                        let Some(sent) = full.sent_by(sender, *block) else { continue };
                        shown = true;
                        add(&mut found.proved, sent.proved);
                        add(&mut found.unproved, sent.unproved);
                        if !every_node {
                            break;
                        }
                    }
                    Ok(None) => {}
                    Err(error) => {
                        tracing::debug!(chain.id = %self.chain_id, block = block.number, error = %error,
                            "could not read a block; trying the next node");
                    }
                }
            }
            if !shown {
                found.unshown.push(block.number);
            }
        }
        found
    }

    async fn block_at(&self, node: &Endpoint, block: BlockId) -> Result<Option<FullBlock>, RpcError> {
        let replies = self.call_node(node, &[Call::new(BLOCK, json!([block.hash, true]))]).await?;
        parse(BLOCK, &node.shown, &replies[0])
    }

    /// The block up to `top` in which the address consumed the nonce, from the first node that finds it.
    pub(super) async fn find_block_of_nonce(
        &self,
        address: Address,
        nonce: u64,
        top: u64,
    ) -> Result<Option<u64>, RpcError> {
        let mut answer = Err(no_node(COUNT));
        for node in self.shared.exchange.nodes.by_preference() {
            match self.height_of(node, address, nonce, top).await {
                Ok(Some(height)) => return Ok(Some(height)),
                // Another node may be further ahead.
                Ok(None) => answer = Ok(None),
                Err(error) => answer = answer.or(Err(error)),
            }
        }
        answer
    }

    /// Exponential search backwards, because the block is usually recent, then binary search. All counts come from one
    /// node, so that they are consistent.
    async fn height_of(
        &self,
        node: &Endpoint,
        address: Address,
        nonce: u64,
        top: u64,
    ) -> Result<Option<u64>, RpcError> {
        let passed = async |height: u64| -> Result<bool, RpcError> {
            let calls = [Call::new(COUNT, json!([address, tag_text(BlockTag::Number(height))]))];
            let replies = self.call_node(node, &calls).await?;
            let Count(count) = parse(COUNT, &node.shown, &replies[0])?;
            Ok(count > nonce)
        };
        if !passed(top).await? {
            return Ok(None);
        }
        let (mut high, mut step) = (top, 1);
        let mut low = loop {
            if high == 0 {
                // Consumed before the first block: not by a transaction.
                return Ok(None);
            }
            let below = high.saturating_sub(step);
            if !passed(below).await? {
                break below;
            }
            high = below;
            step *= 2;
        };
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if passed(middle).await? {
                high = middle;
            } else {
                low = middle;
            }
        }
        Ok(Some(high))
    }

    /// Queries every node until one returns a receipt. Nodes without a transaction index are queried by block.
    pub(super) async fn find_receipts(
        &self,
        hashes: &[H256],
        block: Option<BlockId>,
    ) -> Result<Vec<Receipt>, RpcError> {
        let mut answer = Err(no_node(RECEIPT));
        for node in self.shared.exchange.nodes.by_preference() {
            let by_hash = self.receipts_at(node, hashes).await;
            let found = match (by_hash, block) {
                (Ok(found), Some(block)) if found.is_empty() => {
                    self.block_receipts_at(node, block, hashes).await
                }
                (Err(_), Some(block)) => self.block_receipts_at(node, block, hashes).await,
                (found, _) => found,
            };
            match found {
                Ok(found) if !found.is_empty() => return Ok(found),
                Ok(nothing) => answer = Ok(nothing),
                Err(error) => answer = answer.or(Err(error)),
            }
        }
        answer
    }

    async fn receipts_at(&self, node: &Endpoint, hashes: &[H256]) -> Result<Vec<Receipt>, RpcError> {
        let calls: Vec<Call> = hashes.iter().map(|hash| Call::new(RECEIPT, json!([hash]))).collect();
        let replies = self.call_node(node, &calls).await?;
        let read = replies.iter().zip(hashes).map(|(result, hash)| read_receipt(&node.shown, result, *hash));
        Ok(read.collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect())
    }

    async fn block_receipts_at(
        &self,
        node: &Endpoint,
        block: BlockId,
        hashes: &[H256],
    ) -> Result<Vec<Receipt>, RpcError> {
        let replies = self.call_node(node, &[Call::new(BLOCK_RECEIPTS, json!([block.hash]))]).await?;
        let receipts: Option<Vec<RawReceipt>> = parse(BLOCK_RECEIPTS, &node.shown, &replies[0])?;
        let receipts = receipts.unwrap_or_default().into_iter().filter_map(RawReceipt::mined);
        let ours: Vec<Receipt> = receipts.filter(|receipt| hashes.contains(&receipt.tx_hash)).collect();
        if ours.iter().any(|receipt| receipt.block_hash != block.hash) {
            return Err(malformed(BLOCK_RECEIPTS, &node.shown, "returned receipts of another block"));
        }
        Ok(ours)
    }
}

fn add<T: PartialEq>(all: &mut Vec<T>, more: Vec<T>) {
    for one in more {
        if !all.contains(&one) {
            all.push(one);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::super::testing::{Act, Node, answer, client};
    use super::*;
    use crate::port::ChainConnector;

    fn us() -> Address {
        Address::repeat_byte(1)
    }

    /// One transaction in every block from the third on.
    fn counts(body: &Value) -> Act {
        answer(body, |call| {
            let height = call["params"][1].as_str().unwrap_or_default();
            let height = u64::from_str_radix(height.trim_start_matches("0x"), 16).unwrap();
            Ok(json!(format!("{:#x}", height.saturating_sub(2))))
        })
    }

    fn pruned(body: &Value) -> Act {
        answer(body, |call| match call["params"][1].as_str() {
            Some("0x3c") => Ok(json!("0x9")),
            _ => Err(json!({ "code": -32000, "message": "missing trie node" })),
        })
    }

    fn nothing(body: &Value) -> Act {
        answer(body, |call| Ok(if call["method"] == COUNT { json!("0x0") } else { Value::Null }))
    }

    #[tokio::test]
    async fn the_block_that_consumed_a_nonce_is_found() {
        let node = Node::start(counts).await;
        for nonce in [0, 1, 7, 31, 56, 57] {
            let found = client(&[&node]).block_of_nonce(us(), nonce, 60).await.unwrap();
            assert_eq!(found, Some(nonce + 3), "nonce {nonce}");
        }
        assert_eq!(client(&[&node]).block_of_nonce(us(), 58, 60).await.unwrap(), None);
    }

    #[tokio::test]
    async fn a_node_without_historical_state_returns_an_error() {
        let node = Node::start(pruned).await;
        assert!(client(&[&node]).block_of_nonce(us(), 3, 60).await.is_err());
    }

    #[tokio::test]
    async fn the_next_node_is_queried_if_one_finds_nothing() {
        let (empty, pruned, complete) =
            (Node::start(nothing).await, Node::start(pruned).await, Node::start(counts).await);
        let client = client(&[&empty, &pruned, &complete]);
        assert_eq!(client.block_of_nonce(us(), 7, 60).await.unwrap(), Some(10));
    }

    #[tokio::test]
    async fn a_block_missing_on_one_node_is_read_from_the_next() {
        let block = BlockId { number: 5, hash: H256::repeat_byte(5) };
        let shows = |body: &Value| {
            answer(body, |call| {
                Ok(match call["method"].as_str().unwrap() {
                    BLOCK => json!({ "number": "0x5", "hash": H256::repeat_byte(5), "transactions": [] }),
                    _ => Value::Null,
                })
            })
        };
        let (empty, complete) = (Node::start(nothing).await, Node::start(shows).await);
        let both = client(&[&empty, &complete]).sender_in_blocks(us(), &[block], false).await;
        assert!(both.unshown.is_empty());
        let empty_alone = client(&[&empty]).sender_in_blocks(us(), &[block], false).await;
        assert_eq!(empty_alone.unshown, [5]);
    }

    #[test]
    fn only_an_exact_delegation_is_recognised() {
        let code = [DESIGNATOR.as_slice(), us().as_bytes()].concat();
        assert_eq!(delegate(&code), Some(us()));
        assert_eq!(delegate(&[]), None);
        assert_eq!(delegate(&code[..22]), None);
        assert_eq!(delegate(&[0x60, 0x00]), None);
    }
}
