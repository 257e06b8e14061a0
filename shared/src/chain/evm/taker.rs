//! Who consumed a nonce. Nodes do not say; the block in which the count passes it does.

use ethers_core::types::{Address, H256};
use serde::Deserialize;
use serde_json::json;

use super::answer::{is_not_found, parse};
use super::client::{EvmClient, tag_text};
use super::decode::{Count, RawBlock};
use super::http::Endpoint;
use super::nodes::no_node;
use super::wire::Call;
use crate::chain::port::{BlockTag, RpcError, Taker};
use crate::domain::Finality;

const COUNT: &str = "eth_getTransactionCount";
const BLOCK: &str = "eth_getBlockByNumber";

/// What EIP-7702 puts before the address whose code an account runs.
const DESIGNATOR: [u8; 3] = [0xef, 0x01, 0x00];

/// The address an account's code points at, if it is a delegation and nothing else.
pub(super) fn delegate(code: &[u8]) -> Option<Address> {
    let address = code.strip_prefix(&DESIGNATOR)?;
    (address.len() == 20).then(|| Address::from_slice(address))
}

#[derive(Debug, Deserialize)]
struct FullBlock {
    hash: H256,
    transactions: Vec<Sent>,
}

/// What is needed of a transaction in a block.
#[derive(Debug, Deserialize)]
struct Sent {
    hash: H256,
    from: Address,
    nonce: Count,
}

impl EvmClient {
    /// All of it from one node: its counts and its blocks must fit together.
    pub(super) async fn find_taker(
        &self,
        address: Address,
        nonce: u64,
        finality: Finality,
    ) -> Result<Option<Taker>, RpcError> {
        let mut answer = Err(no_node(COUNT));
        for node in self.shared.exchange.nodes.in_turn() {
            answer = self.taker_at(node, address, nonce, finality).await;
            if answer.is_ok() {
                break;
            }
        }
        answer
    }

    async fn taker_at(
        &self,
        node: &Endpoint,
        address: Address,
        nonce: u64,
        finality: Finality,
    ) -> Result<Option<Taker>, RpcError> {
        let Some(top) = self.final_height_at(node, finality).await? else { return Ok(None) };
        let Some(height) = self.height_of(node, address, nonce, top).await? else { return Ok(None) };
        let asked = [Call::new(BLOCK, json!([tag_text(BlockTag::Number(height)), true]))];
        let told = self.ask_one(node, &asked).await?;
        let block: Option<FullBlock> = parse(BLOCK, &node.shown, &told[0])?;
        let Some(block) = block else { return Ok(None) };
        let taker = block.transactions.iter().find(|tx| tx.from == address && tx.nonce.0 == nonce);
        let (block_number, block_hash) = (height, block.hash);
        Ok(taker.map(|tx| Taker { tx_hash: tx.hash, block_number, block_hash }))
    }

    async fn final_height_at(&self, node: &Endpoint, finality: Finality) -> Result<Option<u64>, RpcError> {
        let tag = match finality {
            Finality::Blocks(blocks) => {
                let told = self.ask_one(node, &[Call::new("eth_blockNumber", json!([]))]).await?;
                let Count(head) = parse("eth_blockNumber", &node.shown, &told[0])?;
                return Ok(Some(head.saturating_sub(blocks.saturating_sub(1))));
            }
            Finality::Safe => BlockTag::Safe,
            Finality::Finalized => BlockTag::Finalized,
        };
        match self.ask_one(node, &[Call::new(BLOCK, json!([tag_text(tag), false]))]).await {
            Ok(told) => {
                let block: Option<RawBlock> = parse(BLOCK, &node.shown, &told[0])?;
                Ok(block.and_then(RawBlock::mined).map(|block| block.block.number))
            }
            // A chain that has finalised nothing yet says so with an error.
            Err(RpcError::Refused { message, .. }) if is_not_found(&message) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The block up to `top` in which the count of the address passed the nonce. The usual one is recent: steps back
    /// grow, and what lies between the last two is halved.
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

    /// One transaction of ours and one of somebody else in every block from the third on, and a head at 60.
    fn chain(body: &Value) -> Act {
        answer(body, |call| {
            let height = |at: usize| {
                let text = call["params"][at].as_str().unwrap_or_default();
                u64::from_str_radix(text.trim_start_matches("0x"), 16).unwrap()
            };
            Ok(match call["method"].as_str().unwrap() {
                "eth_blockNumber" => json!("0x3c"),
                COUNT => json!(format!("{:#x}", height(1).saturating_sub(2))),
                BLOCK => {
                    let number = height(0);
                    let sent = |from: Address, hash: u64| {
                        json!({ "hash": H256::from_low_u64_be(hash), "from": from,
                                "nonce": format!("{:#x}", number - 3) })
                    };
                    json!({ "hash": H256::from_low_u64_be(number), "transactions": [sent(Address::repeat_byte(2), 1), sent(us(), 1000 + number - 3)] })
                }
                _ => Value::Null,
            })
        })
    }

    #[tokio::test]
    async fn the_transaction_that_consumed_a_nonce_is_found_wherever_it_is() {
        let node = Node::start(chain).await;
        let client = client(&[&node]);
        for nonce in [0, 1, 7, 31, 56, 57] {
            let taker = client.taker(us(), nonce, Finality::Blocks(1)).await.unwrap();
            let hash = H256::from_low_u64_be;
            let (tx_hash, block_number, block_hash) = (hash(1000 + nonce), nonce + 3, hash(nonce + 3));
            assert_eq!(taker, Some(Taker { tx_hash, block_number, block_hash }), "nonce {nonce}");
        }
    }

    #[tokio::test]
    async fn what_is_not_final_has_no_taker_yet() {
        let node = Node::start(chain).await;
        let client = client(&[&node]);
        assert_eq!(client.taker(us(), 58, Finality::Blocks(1)).await.unwrap(), None);
        assert_eq!(client.taker(us(), 57, Finality::Blocks(2)).await.unwrap(), None);
        assert!(client.taker(us(), 56, Finality::Blocks(2)).await.unwrap().is_some());
    }

    #[tokio::test]
    async fn a_node_that_does_not_keep_the_past_says_nothing_about_the_nonce() {
        let node = Node::start(|body| {
            answer(body, |call| match call["params"][1].as_str() {
                Some("0x3c") => Ok(json!("0x9")),
                Some(_) => Err(json!({ "code": -32000, "message": "missing trie node" })),
                None => Ok(json!("0x3c")),
            })
        })
        .await;
        assert!(client(&[&node]).taker(us(), 3, Finality::Blocks(1)).await.is_err());
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
