//! Shared lookups, and the data read for each policy.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use async_trait::async_trait;
use ethers_core::types::{Address, H256};

use super::super::tests::{at, config, dynamic, legacy, one, payload};
use super::*;
use crate::classify::SubmitOutcome;
use crate::port::{BlockId, BlockTag, BlockWithHashes, CallOutcome, SenderInBlocks};
use gapless_config as config;
use gapless_domain::{Receipt, Speed};
use gapless_store::Attempt;

/// A connector that answers price requests slowly, counts them, and can lack the fee history or fail.
#[derive(Debug, Default)]
pub(in crate::fees) struct Node {
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
    async fn fee_history(&self, _: u64, percentiles: &[f64]) -> Result<FeeHistory, RpcError> {
        self.asked_history.fetch_add(1, SeqCst);
        tokio::time::sleep(Duration::from_millis(20)).await;
        let (method, endpoint) = ("eth_feeHistory", "node".to_owned());
        if self.down {
            return Err(RpcError::Http { method, endpoint, status: 503 });
        }
        if self.lacks_history {
            return Err(RpcError::Refused { method, endpoint, code: METHOD_NOT_FOUND, message: "no".into() });
        }
        // 100,000 wei per percentile: 2,000,000 wei at percentile 20.
        let reward = |percentile: &f64| U256::from((percentile * 100_000.0) as u64);
        Ok(FeeHistory { next_base_fee: 100.into(), rewards: vec![percentiles.iter().map(reward).collect()] })
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
    async fn receipts_from_any_node(&self, _: &[H256], _: Option<BlockId>) -> Result<Vec<Receipt>, RpcError> {
        unreachable!()
    }
    async fn sender_in_blocks(&self, _: Address, _: &[BlockId], _: bool) -> SenderInBlocks {
        unreachable!()
    }
    async fn block_of_nonce(&self, _: Address, _: u64, _: u64) -> Result<Option<u64>, RpcError> {
        unreachable!()
    }
    async fn transaction_count_at(&self, _: Address, _: BlockId) -> Result<u64, RpcError> {
        unreachable!()
    }
    async fn delegation(&self, _: Address) -> Result<Option<Address>, RpcError> {
        unreachable!()
    }
    async fn balance(&self, _: Address) -> Result<U256, RpcError> {
        unreachable!()
    }
    async fn estimate_gas(&self, _: Address, _: &Payload) -> Result<CallOutcome<U256>, RpcError> {
        unreachable!()
    }
    async fn estimate_gas_at(
        &self,
        _: Address,
        _: &Payload,
        _: BlockId,
    ) -> Result<CallOutcome<U256>, RpcError> {
        unreachable!()
    }
    async fn has_transaction(&self, _: H256) -> Result<bool, RpcError> {
        unreachable!()
    }
    async fn call(&self, _: Address, _: &Payload, _: BlockTag) -> Result<CallOutcome<()>, RpcError> {
        unreachable!()
    }
}

async fn quote_at(source: &FeeSource, node: &Node, head: u64) -> Result<Fees, RpcError> {
    source.quote(node, head, &payload()).await
}

#[tokio::test]
async fn many_lanes_at_one_head_share_one_lookup() {
    let (source, node) = (FeeSource::new(&config::Fees::default()), Node::default());
    let lanes = futures::future::join_all((0..50).map(|_| quote_at(&source, &node, 7))).await;
    assert!(lanes.iter().all(Result::is_ok));
    assert_eq!(node.asked_history.load(SeqCst), 1);
    quote_at(&source, &node, 6).await.unwrap();
    assert_eq!(node.asked_history.load(SeqCst), 1, "a lane one block behind uses the newer price");
    quote_at(&source, &node, 8).await.unwrap();
    assert_eq!(node.asked_history.load(SeqCst), 2);
}

/// A chain that mines a block for every transaction.
#[test]
fn a_price_stays_valid_for_a_while_unless_the_base_fee_has_risen_above_it() {
    let asked = Instant::now();
    let market = Arc::new(Market { next_base_fee: Some(100.into()), ..Market::default() });
    let known = Known { at: 40, asked, market };
    let at = |number, base_fee: u64| Head { number, base_fee: Some(base_fee.into()) };
    let soon = asked + VALID_FOR / 2;
    assert!(known.is_valid_for(at(41, 95), soon, VALID_FOR));
    assert!(known.is_valid_for(at(90, 100), soon, VALID_FOR));
    assert!(!known.is_valid_for(at(41, 101), soon, VALID_FOR), "the base fee has risen");
    assert!(!known.is_valid_for(Head::from(41), soon, VALID_FOR), "unknown base fee");
    assert!(!known.is_valid_for(at(41, 95), asked + VALID_FOR, VALID_FOR), "too old");
    assert!(!known.is_valid_for(at(40 - HEADS_SHARED - 1, 95), soon, VALID_FOR), "a chain reset");
    assert!(known.is_valid_for(at(40, 500), asked + VALID_FOR, VALID_FOR), "the head it was read at");
}

#[tokio::test]
async fn lanes_that_waited_for_a_failed_lookup_share_the_failure() {
    let (source, node) = (FeeSource::new(&config::Fees::default()), Node { down: true, ..Node::default() });
    let lanes = futures::future::join_all((0..50).map(|_| quote_at(&source, &node, 7))).await;
    assert!(lanes.iter().all(Result::is_err));
    assert_eq!(node.asked_history.load(SeqCst), 1);
    assert!(quote_at(&source, &node, 7).await.is_err());
    assert_eq!(node.asked_history.load(SeqCst), 2, "a later request causes a new lookup");
}

#[tokio::test]
async fn without_fee_history_the_gas_price_is_read() {
    let (source, node) =
        (FeeSource::new(&config::Fees::default()), Node { lacks_history: true, ..Node::default() });
    for head in 1..4 {
        assert_eq!(quote_at(&source, &node, head).await.unwrap().cap(), 1_000_000.into());
    }
    assert_eq!((node.asked_history.load(SeqCst), node.asked_price.load(SeqCst)), (1, 3));
}

fn tip(fees: Fees) -> U256 {
    match fees {
        Fees::Eip1559 { max_priority_fee_per_gas, .. } => max_priority_fee_per_gas,
        Fees::Legacy { gas_price } => gas_price,
    }
}

#[tokio::test]
async fn one_lookup_has_the_tips_of_all_speeds() {
    let (source, node) = (FeeSource::new(&config()), Node::default());
    for (speed, expected) in [(Speed::Slow, 2_500_000), (Speed::Normal, 5_000_000), (Speed::Fast, 9_000_000)]
    {
        assert_eq!(tip(source.quote(&node, 7, &at(speed)).await.unwrap()), expected.into());
    }
    assert_eq!(node.asked_history.load(SeqCst), 1);
    let high = FeeSource::new(&config::Fees { percentile: 95.0, ..config() });
    assert_eq!(
        tip(high.quote(&node, 7, &at(Speed::Fast)).await.unwrap()),
        9_500_000.into(),
        "two speeds with the same percentile"
    );
    assert_eq!(tip(high.quote(&node, 7, &at(Speed::Slow)).await.unwrap()), 2_500_000.into());
}

#[tokio::test]
async fn nothing_is_priced_above_the_limit_of_the_chain() {
    let source = FeeSource::new(&config::Fees { max_fee_per_gas: Some(70.into()), ..config() });
    let node = Node::default();
    assert_eq!(source.quote(&node, 7, &payload()).await.unwrap(), dynamic(70, 70));
    let own = Payload { max_fee_per_gas: Some(500.into()), ..legacy() };
    assert_eq!(source.quote(&node, 7, &own).await.unwrap(), one(70), "not even on request");
}

#[tokio::test]
async fn only_the_data_that_a_policy_needs_is_read() {
    let sources = |policy| {
        let fixed = config::FixedFees { gas_price: Some(60.into()), ..config::FixedFees::default() };
        FeeSource::new(&config::Fees { policy, fixed, ..config() })
    };
    let asked = |node: &Node| (node.asked_history.load(SeqCst), node.asked_price.load(SeqCst));
    for (policy, lacks_history, price, expected) in [
        (FeePolicyKind::GasPrice, false, 100, (1, 1)),
        (FeePolicyKind::GasPrice, true, 100, (1, 1)),
        (FeePolicyKind::Fixed, false, 60, (1, 0)),
        (FeePolicyKind::Fixed, true, 60, (1, 0)),
    ] {
        let node = Node { lacks_history, ..Node::default() };
        let source = sources(policy);
        assert_eq!(source.quote(&node, 7, &legacy()).await.unwrap(), one(price), "{policy:?}");
        source.quote(&node, 7, &payload()).await.unwrap();
        assert_eq!(asked(&node), expected, "{policy:?}");
        let base = source.next_base_fee(&node, 7).await.unwrap();
        assert_eq!(base, (!lacks_history).then(|| 100.into()), "read for every policy");
    }
}
