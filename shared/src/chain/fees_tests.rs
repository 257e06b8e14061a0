//! Prices at the edges of the arithmetic, and one look-up for many lanes.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use async_trait::async_trait;
use ethers_core::types::{Address, H256};

use super::*;
use crate::chain::classify::SubmitOutcome;
use crate::chain::port::{BlockTag, BlockWithHashes, CallOutcome, ConsumedNonce};
use crate::domain::{ChainId, Receipt};
use crate::store::Attempt;

fn policy() -> FeeHistoryPolicy {
    FeeHistoryPolicy::new(config::Fees { min_priority_fee: 10, ..config::Fees::default() })
}

fn history(base: U256, rewards: &[u64]) -> Market {
    Market::History(FeeHistory {
        next_base_fee: base,
        rewards: rewards.iter().copied().map(U256::from).collect(),
    })
}

fn payload() -> Payload {
    Payload::transfer(Address::zero(), U256::one())
}

fn dynamic(cap: u64, tip: u64) -> Fees {
    Fees::Eip1559 { max_fee_per_gas: cap.into(), max_priority_fee_per_gas: tip.into() }
}

#[test]
fn the_cap_leaves_room_for_the_base_fee_and_the_tip_is_the_median() {
    assert_eq!(policy().price(&history(100.into(), &[40, 20, 30]), &payload()), dynamic(230, 30));
}

#[test]
fn empty_blocks_do_not_pull_the_tip_down_and_the_floor_holds() {
    assert_eq!(policy().price(&history(100.into(), &[0, 0, 50]), &payload()), dynamic(250, 50));
    assert_eq!(policy().price(&history(100.into(), &[0, 0]), &payload()), dynamic(210, 10));
    assert_eq!(policy().price(&history(100.into(), &[3]), &payload()), dynamic(210, 10));
}

#[test]
fn a_zero_base_fee_still_offers_the_tip() {
    assert_eq!(policy().price(&history(U256::zero(), &[]), &payload()), dynamic(10, 10));
}

#[test]
fn the_largest_base_fee_saturates() {
    let fees = policy().price(&history(U256::MAX, &[5]), &payload());
    assert_eq!(fees, Fees::Eip1559 { max_fee_per_gas: U256::MAX, max_priority_fee_per_gas: 10.into() });
}

#[test]
fn limits_of_the_payload_are_used_as_they_are() {
    let market = history(100.into(), &[30]);
    let with = |cap: Option<u64>, tip: Option<u64>| Payload {
        max_fee_per_gas: cap.map(U256::from),
        max_priority_fee_per_gas: tip.map(U256::from),
        ..payload()
    };
    assert_eq!(policy().price(&market, &with(Some(500), None)), dynamic(500, 30));
    assert_eq!(policy().price(&market, &with(Some(5), None)), dynamic(5, 5), "a tip is never above the cap");
    assert_eq!(policy().price(&market, &with(None, Some(7))), dynamic(207, 7));
    assert_eq!(policy().price(&market, &with(None, Some(0))), dynamic(200, 0));
    assert_eq!(policy().price(&market, &with(Some(8), Some(9))), dynamic(8, 8));
}

#[test]
fn a_legacy_payload_gets_one_price() {
    let legacy = Payload { kind: TxKind::Legacy, ..payload() };
    let price = |price: u64| Fees::Legacy { gas_price: price.into() };
    assert_eq!(policy().price(&history(100.into(), &[30]), &legacy), price(230));
    assert_eq!(policy().price(&Market::GasPrice(77.into()), &legacy), price(77));
    let capped = Payload { max_fee_per_gas: Some(3.into()), ..legacy };
    assert_eq!(policy().price(&history(100.into(), &[30]), &capped), price(3));
}

#[test]
fn without_history_the_node_s_price_is_the_base() {
    assert_eq!(policy().price(&Market::GasPrice(100.into()), &payload()), dynamic(200, 10));
    assert_eq!(policy().price(&Market::GasPrice(U256::zero()), &payload()), dynamic(10, 10));
}

#[test]
fn scaling_is_exact_rounds_up_and_saturates() {
    assert_eq!(scale(21_000.into(), 1.2), 25_200.into());
    assert_eq!(scale(3.into(), 1.125), 4.into());
    assert_eq!(scale(U256::zero(), 9.0), U256::zero());
    assert_eq!(scale(U256::MAX, 1.0), U256::MAX);
    assert_eq!(scale(U256::MAX, 1.5), U256::MAX);
    assert_eq!(scale(U256::MAX - 1, 1.0), U256::MAX - 1);
    assert_eq!(scale(U256::MAX, 0.5), U256::MAX / 2 + 1);
    for odd in [f64::NAN, f64::INFINITY, -1.0, 0.0] {
        assert_eq!(scale(7.into(), odd), 7.into());
    }
}

/// Answers prices slowly, counts how often it was asked, and can lack the history or fail altogether.
#[derive(Debug, Default)]
struct Node {
    asked_history: AtomicUsize,
    asked_price: AtomicUsize,
    lacks_history: bool,
    down: bool,
}

#[async_trait]
impl ChainConnector for Node {
    fn chain_id(&self) -> ChainId {
        ChainId(1)
    }
    async fn fee_history(&self, _: u64, _: f64) -> Result<FeeHistory, RpcError> {
        self.asked_history.fetch_add(1, SeqCst);
        tokio::time::sleep(Duration::from_millis(20)).await;
        let (method, endpoint) = ("eth_feeHistory", "node".to_owned());
        if self.down {
            return Err(RpcError::Http { method, endpoint, status: 503 });
        }
        if self.lacks_history {
            return Err(RpcError::Refused { method, endpoint, code: METHOD_NOT_FOUND, message: "no".into() });
        }
        Ok(FeeHistory { next_base_fee: 100.into(), rewards: vec![30.into()] })
    }
    async fn gas_price(&self) -> Result<U256, RpcError> {
        self.asked_price.fetch_add(1, SeqCst);
        Ok(100.into())
    }
    async fn remote_chain_id(&self) -> Result<ChainId, RpcError> {
        unreachable!()
    }
    async fn genesis_hash(&self) -> Result<Option<H256>, RpcError> {
        unreachable!()
    }
    async fn transaction_count(&self, _: Address, _: BlockTag) -> Result<u64, RpcError> {
        unreachable!()
    }
    async fn broadcast(&self, _: &Attempt) -> Result<SubmitOutcome, RpcError> {
        unreachable!()
    }
    async fn receipt(&self, _: H256) -> Result<Option<Receipt>, RpcError> {
        unreachable!()
    }
    async fn receipts(&self, _: &[H256]) -> Result<Vec<Receipt>, RpcError> {
        unreachable!()
    }
    async fn block_receipts(&self, _: H256) -> Result<Option<Vec<Receipt>>, RpcError> {
        unreachable!()
    }
    async fn block(&self, _: BlockTag) -> Result<Option<BlockWithHashes>, RpcError> {
        unreachable!()
    }
    async fn block_by_hash(&self, _: H256) -> Result<Option<BlockWithHashes>, RpcError> {
        unreachable!()
    }
    async fn known_to_any_node(&self, _: &[H256]) -> Result<bool, RpcError> {
        unreachable!()
    }
    async fn balance(&self, _: Address) -> Result<U256, RpcError> {
        unreachable!()
    }
    async fn estimate_gas(&self, _: Address, _: &Payload) -> Result<CallOutcome<U256>, RpcError> {
        unreachable!()
    }
    async fn call(&self, _: Address, _: &Payload, _: BlockTag) -> Result<CallOutcome<()>, RpcError> {
        unreachable!()
    }
    async fn consumed_nonce(&self, _: Address, _: u64, _: &[H256]) -> Result<ConsumedNonce, RpcError> {
        unreachable!()
    }
}

async fn quote_at(source: &FeeSource, node: &Node, head: u64) -> Result<Fees, RpcError> {
    source.quote(node, head, &payload()).await
}

#[tokio::test]
async fn many_lanes_at_one_head_ask_the_node_once() {
    let (source, node) = (FeeSource::new(&config::Fees::default()), Node::default());
    let lanes = futures::future::join_all((0..50).map(|_| quote_at(&source, &node, 7))).await;
    assert!(lanes.iter().all(Result::is_ok));
    assert_eq!(node.asked_history.load(SeqCst), 1);
    quote_at(&source, &node, 6).await.unwrap();
    assert_eq!(node.asked_history.load(SeqCst), 1, "a lane one block behind takes the newer price");
    quote_at(&source, &node, 8).await.unwrap();
    assert_eq!(node.asked_history.load(SeqCst), 2);
}

#[tokio::test]
async fn lanes_that_waited_for_a_failed_look_up_share_the_failure() {
    let (source, node) = (FeeSource::new(&config::Fees::default()), Node { down: true, ..Node::default() });
    let lanes = futures::future::join_all((0..50).map(|_| quote_at(&source, &node, 7))).await;
    assert!(lanes.iter().all(Result::is_err));
    assert_eq!(node.asked_history.load(SeqCst), 1);
    assert!(quote_at(&source, &node, 7).await.is_err());
    assert_eq!(node.asked_history.load(SeqCst), 2, "whoever comes later asks again");
}

#[tokio::test]
async fn a_node_without_fee_history_is_asked_for_its_gas_price() {
    let (source, node) =
        (FeeSource::new(&config::Fees::default()), Node { lacks_history: true, ..Node::default() });
    for head in 1..4 {
        assert_eq!(quote_at(&source, &node, head).await.unwrap().cap(), 1_000_000.into());
    }
    assert_eq!((node.asked_history.load(SeqCst), node.asked_price.load(SeqCst)), (1, 3));
}
