//! Connector for a consortium chain: Ethereum JSON-RPC, no fee market, gas price zero, final at the first block.

use async_trait::async_trait;
use gapless_chain::evm::{EvmClient, EvmClientError};
use gapless_chain::{
    BlockId, BlockTag, BlockWithHashes, CallOutcome, ChainConnector, ChainIdentity, FeeHistory, RpcError,
    SenderInBlocks, SubmitOutcome,
};
use gapless_config::ChainConfig;
use gapless_domain::{Address, ChainId, H256, Payload, Receipt, U256};
use gapless_store::Attempt;

/// Delegates everything but prices to the built-in client.
#[derive(Debug)]
pub(crate) struct ZeroPrice {
    nodes: EvmClient,
}

impl ZeroPrice {
    /// Must be called within a Tokio runtime, as the worker does.
    pub(crate) fn new(config: &ChainConfig) -> Result<ZeroPrice, EvmClientError> {
        Ok(ZeroPrice { nodes: EvmClient::new(config)? })
    }
}

/// Blocks of this chain have no base fee.
fn without_base_fee(block: Option<BlockWithHashes>) -> Option<BlockWithHashes> {
    block.map(|block| BlockWithHashes { base_fee_per_gas: None, ..block })
}

#[async_trait]
impl ChainConnector for ZeroPrice {
    async fn gas_price(&self) -> Result<U256, RpcError> {
        Ok(U256::zero())
    }

    async fn fee_history(&self, blocks: u64, percentiles: &[f64]) -> Result<FeeHistory, RpcError> {
        let rewards =
            vec![vec![U256::zero(); percentiles.len()]; usize::try_from(blocks).unwrap_or_default()];
        Ok(FeeHistory { next_base_fee: U256::zero(), rewards })
    }

    async fn block(&self, tag: BlockTag) -> Result<Option<BlockWithHashes>, RpcError> {
        self.nodes.block(tag).await.map(without_base_fee)
    }

    async fn block_by_hash(&self, hash: H256) -> Result<Option<BlockWithHashes>, RpcError> {
        self.nodes.block_by_hash(hash).await.map(without_base_fee)
    }

    // Everything below delegates to the built-in client.

    fn chain_id(&self) -> ChainId {
        self.nodes.chain_id()
    }

    fn recoveries(&self) -> u64 {
        self.nodes.recoveries()
    }

    async fn remote_chain_id(&self) -> Result<ChainId, RpcError> {
        self.nodes.remote_chain_id().await
    }

    async fn genesis_hash(&self) -> Result<Option<H256>, RpcError> {
        self.nodes.genesis_hash().await
    }

    async fn identity(&self, known_genesis: Option<H256>) -> Result<ChainIdentity, RpcError> {
        self.nodes.identity(known_genesis).await
    }

    async fn transaction_count(&self, address: Address, tag: BlockTag) -> Result<u64, RpcError> {
        self.nodes.transaction_count(address, tag).await
    }

    async fn transaction_count_at(&self, address: Address, block: BlockId) -> Result<u64, RpcError> {
        self.nodes.transaction_count_at(address, block).await
    }

    async fn broadcast(&self, attempt: &Attempt) -> Result<SubmitOutcome, RpcError> {
        self.nodes.broadcast(attempt).await
    }

    async fn receipt(&self, hash: H256) -> Result<Option<Receipt>, RpcError> {
        self.nodes.receipt(hash).await
    }

    async fn receipts(&self, hashes: &[H256]) -> Result<Vec<Receipt>, RpcError> {
        self.nodes.receipts(hashes).await
    }

    async fn block_receipts(&self, block: H256) -> Result<Option<Vec<Receipt>>, RpcError> {
        self.nodes.block_receipts(block).await
    }

    async fn has_transaction(&self, hash: H256) -> Result<bool, RpcError> {
        self.nodes.has_transaction(hash).await
    }

    async fn receipts_from_any_node(
        &self,
        hashes: &[H256],
        block: Option<BlockId>,
    ) -> Result<Vec<Receipt>, RpcError> {
        self.nodes.receipts_from_any_node(hashes, block).await
    }

    async fn sender_in_blocks(
        &self,
        sender: Address,
        blocks: &[BlockId],
        every_node: bool,
    ) -> SenderInBlocks {
        self.nodes.sender_in_blocks(sender, blocks, every_node).await
    }

    async fn block_of_nonce(&self, address: Address, nonce: u64, top: u64) -> Result<Option<u64>, RpcError> {
        self.nodes.block_of_nonce(address, nonce, top).await
    }

    async fn delegation(&self, address: Address) -> Result<Option<Address>, RpcError> {
        self.nodes.delegation(address).await
    }

    async fn balance(&self, address: Address) -> Result<U256, RpcError> {
        self.nodes.balance(address).await
    }

    async fn estimate_gas(&self, from: Address, payload: &Payload) -> Result<CallOutcome<U256>, RpcError> {
        self.nodes.estimate_gas(from, payload).await
    }

    async fn estimate_gas_at(
        &self,
        from: Address,
        payload: &Payload,
        block: BlockId,
    ) -> Result<CallOutcome<U256>, RpcError> {
        self.nodes.estimate_gas_at(from, payload, block).await
    }

    async fn call(
        &self,
        from: Address,
        payload: &Payload,
        tag: BlockTag,
    ) -> Result<CallOutcome<()>, RpcError> {
        self.nodes.call(from, payload, tag).await
    }
}
