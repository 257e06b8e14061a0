//! Who consumed a nonce. Nodes do not say: the block in which the count passed it does, by the transaction it holds.
//!
//! A node that shows nothing is followed by the next one. What is found is proved by its signature (`mined_tx`).

use ethers_core::types::{Address, H256};
use serde_json::json;

use super::answer::{malformed, parse, read_receipt};
use super::client::{EvmClient, tag_text};
use super::decode::{Count, RawReceipt};
use super::http::Endpoint;
use super::mined_tx::FullBlock;
use super::nodes::no_node;
use super::wire::Call;
use crate::chain::port::{BlockId, BlockTag, RpcError, SenderInBlocks};
use crate::domain::Receipt;

const COUNT: &str = "eth_getTransactionCount";
const BLOCK: &str = "eth_getBlockByHash";
const BLOCK_RECEIPTS: &str = "eth_getBlockReceipts";
const RECEIPT: &str = "eth_getTransactionReceipt";

/// What EIP-7702 puts before the address whose code an account runs.
const DESIGNATOR: [u8; 3] = [0xef, 0x01, 0x00];

/// The address an account's code points at, if it is a delegation and nothing else.
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
            for node in self.shared.exchange.nodes.in_turn() {
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
                            "a block could not be read; the next node is asked");
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
        let told = self.ask_one(node, &[Call::new(BLOCK, json!([block.hash, true]))]).await?;
        parse(BLOCK, &node.shown, &told[0])
    }

    /// The block up to `top` in which the count of the address passed the nonce, from the first node that can tell.
    pub(super) async fn find_block_of_nonce(
        &self,
        address: Address,
        nonce: u64,
        top: u64,
    ) -> Result<Option<u64>, RpcError> {
        let mut answer = Err(no_node(COUNT));
        for node in self.shared.exchange.nodes.in_turn() {
            match self.height_of(node, address, nonce, top).await {
                Ok(Some(height)) => return Ok(Some(height)),
                // One node's "not yet" is not everybody's.
                Ok(None) => answer = Ok(None),
                Err(error) => answer = answer.or(Err(error)),
            }
        }
        answer
    }

    /// The usual one is recent: steps back grow, and what lies between the last two is halved. All of it from one node:
    /// its counts must fit together.
    async fn height_of(
        &self,
        node: &Endpoint,
        address: Address,
        nonce: u64,
        top: u64,
    ) -> Result<Option<u64>, RpcError> {
        let passed = async |height: u64| -> Result<bool, RpcError> {
            let asked = [Call::new(COUNT, json!([address, tag_text(BlockTag::Number(height))]))];
            let told = self.ask_one(node, &asked).await?;
            let Count(count) = parse(COUNT, &node.shown, &told[0])?;
            Ok(count > nonce)
        };
        if !passed(top).await? {
            return Ok(None);
        }
        let (mut high, mut step) = (top, 1);
        let mut low = loop {
            if high == 0 {
                // Counted before the first block: no transaction did that.
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

    /// From every node, until one shows something. Nodes without an index of transactions are asked for the block's.
    pub(super) async fn find_receipts(
        &self,
        hashes: &[H256],
        block: Option<BlockId>,
    ) -> Result<Vec<Receipt>, RpcError> {
        let mut answer = Err(no_node(RECEIPT));
        for node in self.shared.exchange.nodes.in_turn() {
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
        let asked: Vec<Call> = hashes.iter().map(|hash| Call::new(RECEIPT, json!([hash]))).collect();
        let told = self.ask_one(node, &asked).await?;
        let read = told.iter().zip(hashes).map(|(result, hash)| read_receipt(&node.shown, result, *hash));
        Ok(read.collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect())
    }

    async fn block_receipts_at(
        &self,
        node: &Endpoint,
        block: BlockId,
        hashes: &[H256],
    ) -> Result<Vec<Receipt>, RpcError> {
        let told = self.ask_one(node, &[Call::new(BLOCK_RECEIPTS, json!([block.hash]))]).await?;
        let receipts: Option<Vec<RawReceipt>> = parse(BLOCK_RECEIPTS, &node.shown, &told[0])?;
        let receipts = receipts.unwrap_or_default().into_iter().filter_map(RawReceipt::mined);
        let ours: Vec<Receipt> = receipts.filter(|receipt| hashes.contains(&receipt.tx_hash)).collect();
        if ours.iter().any(|receipt| receipt.block_hash != block.hash) {
            return Err(malformed(BLOCK_RECEIPTS, &node.shown, "receipts of another block"));
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
    use crate::chain::port::ChainConnector;

    fn us() -> Address {
        Address::repeat_byte(1)
    }

    /// One transaction in every block from the third on, and a head at 60.
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
    async fn the_block_that_consumed_a_nonce_is_found_wherever_it_is() {
        let node = Node::start(counts).await;
        for nonce in [0, 1, 7, 31, 56, 57] {
            let found = client(&[&node]).block_of_nonce(us(), nonce, 60).await.unwrap();
            assert_eq!(found, Some(nonce + 3), "nonce {nonce}");
        }
        assert_eq!(client(&[&node]).block_of_nonce(us(), 58, 60).await.unwrap(), None);
    }

    #[tokio::test]
    async fn a_node_that_does_not_keep_the_past_says_nothing_about_the_nonce() {
        let node = Node::start(pruned).await;
        assert!(client(&[&node]).block_of_nonce(us(), 3, 60).await.is_err());
    }

    #[tokio::test]
    async fn a_node_that_knows_nothing_is_followed_by_the_next() {
        let (blind, pruned, seeing) =
            (Node::start(nothing).await, Node::start(pruned).await, Node::start(counts).await);
        let client = client(&[&blind, &pruned, &seeing]);
        assert_eq!(client.block_of_nonce(us(), 7, 60).await.unwrap(), Some(10));
    }

    #[tokio::test]
    async fn what_one_node_does_not_show_another_does() {
        let block = BlockId { number: 5, hash: H256::repeat_byte(5) };
        let shows = |body: &Value| {
            answer(body, |call| {
                Ok(match call["method"].as_str().unwrap() {
                    BLOCK => json!({ "number": "0x5", "hash": H256::repeat_byte(5), "transactions": [] }),
                    _ => Value::Null,
                })
            })
        };
        let (blind, seeing) = (Node::start(nothing).await, Node::start(shows).await);
        assert!(client(&[&blind, &seeing]).sender_in_blocks(us(), &[block], false).await.unshown.is_empty());
        let blind_alone = client(&[&blind]).sender_in_blocks(us(), &[block], false).await;
        assert_eq!(blind_alone.unshown, [5]);
    }

    #[test]
    fn only_a_delegation_is_one() {
        let code = [DESIGNATOR.as_slice(), us().as_bytes()].concat();
        assert_eq!(delegate(&code), Some(us()));
        assert_eq!(delegate(&[]), None);
        assert_eq!(delegate(&code[..22]), None);
        assert_eq!(delegate(&[0x60, 0x00]), None);
    }
}
