//! The chain port: the operations Gapless needs from a chain, and their result types.

use std::time::Duration;

use async_trait::async_trait;
use ethers_core::types::{Address, H256, U256};

use crate::classify::SubmitOutcome;
use gapless_domain::mempool::PoolSurvey;
use gapless_domain::{BlockRef, ChainId, Failure, Payload, Receipt};
use gapless_store::Attempt;

/// A request failed or its response could not be parsed. This is no evidence about the transaction.
#[derive(Clone, Debug, thiserror::Error)]
pub enum RpcError {
    #[error("{method}: {endpoint} did not answer within {timeout:?}")]
    Timeout { method: &'static str, endpoint: String, timeout: Duration },
    #[error("{method}: {endpoint} could not be reached: {reason}")]
    Transport { method: &'static str, endpoint: String, reason: String },
    #[error("{method}: {endpoint} returned HTTP {status}")]
    Http { method: &'static str, endpoint: String, status: u16 },
    #[error("{method}: {endpoint} returned an invalid response: {reason}")]
    Malformed { method: &'static str, endpoint: String, reason: String },
    /// An error about the node, not about the request: rate limit, syncing, missing state.
    #[error("{method}: {endpoint} is unavailable: {message} ({code})")]
    Unavailable { method: &'static str, endpoint: String, code: i64, message: String },
    /// An unclassified error. It is no evidence either; the caller retries later.
    #[error("{method}: {endpoint} refused the request: {message} ({code})")]
    Refused { method: &'static str, endpoint: String, code: i64, message: String },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockTag {
    Latest,
    Pending,
    Safe,
    Finalized,
    Number(u64),
}

/// A block and the hashes of its transactions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockWithHashes {
    pub block: BlockRef,
    pub base_fee_per_gas: Option<U256>,
    /// The block gas limit; absent if the node does not report it.
    pub gas_limit: Option<u64>,
    pub tx_hashes: Vec<H256>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FeeHistory {
    /// Base fee of the next block.
    pub next_base_fee: U256,
    /// Per past block, the priority fee at each requested percentile, in the requested order.
    pub rewards: Vec<Vec<U256>>,
}

/// Result of executing a transaction without sending it (estimate, call).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallOutcome<T> {
    Ok(T),
    /// Execution failed.
    Reverted(Failure),
    /// The sender's balance is too low now.
    InsufficientFunds {
        message: String,
    },
    /// The transaction itself can never be accepted (for example: init code above the limit).
    Fatal {
        message: String,
    },
    /// The node refused to execute it, possibly because of its own limits: a gas cap for executions, a rule about
    /// senders. Another node, or this one with other settings, may accept it.
    Unwilling {
        /// The node's gas cap for executions, if it reports one.
        gas_cap: Option<U256>,
        message: String,
    },
}

impl<T> CallOutcome<T> {
    /// Maps the value; every other outcome is unchanged.
    pub fn try_map<U, E>(self, read: impl FnOnce(T) -> Result<U, E>) -> Result<CallOutcome<U>, E> {
        Ok(match self {
            CallOutcome::Ok(value) => CallOutcome::Ok(read(value)?),
            CallOutcome::Reverted(failure) => CallOutcome::Reverted(failure),
            CallOutcome::InsufficientFunds { message } => CallOutcome::InsufficientFunds { message },
            CallOutcome::Fatal { message } => CallOutcome::Fatal { message },
            CallOutcome::Unwilling { gas_cap, message } => CallOutcome::Unwilling { gas_cap, message },
        })
    }
}

/// A block by height and hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BlockId {
    pub number: u64,
    pub hash: H256,
}

/// A mined transaction of a sender, with its block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MinedTx {
    pub tx_hash: H256,
    pub nonce: u64,
    pub block: BlockId,
}

/// The transactions of a sender in some blocks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SenderInBlocks {
    /// Hash and signature were verified locally.
    pub proved: Vec<MinedTx>,
    /// The node reports the sender, but the signature does not verify: an unknown transaction type or a wrong answer.
    pub unproved: Vec<MinedTx>,
    /// Blocks that no node returned.
    pub unshown: Vec<u64>,
}

/// Whether the nodes serve the configured chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChainIdentity {
    /// At least one does. `genesis` is absent if no node has block 0; then only the chain id was checked.
    Ours { genesis: Option<H256> },
    /// Nodes answered, and none of them does; `problem` describes what they serve.
    WrongChain { problem: String },
}

impl ChainIdentity {
    /// Checks the chain id and the genesis hash that one node reports.
    pub fn check(
        wanted: ChainId,
        known: Option<H256>,
        found: ChainId,
        genesis: Option<H256>,
    ) -> ChainIdentity {
        let problem = match (known, genesis) {
            _ if wanted != found => format!("the node serves chain {found}, expected {wanted}"),
            (Some(known), Some(genesis)) if known != genesis => {
                format!("the chain was reset: the hash of block 0 is {genesis:#x}, expected {known:#x}")
            }
            _ => return ChainIdentity::Ours { genesis },
        };
        ChainIdentity::WrongChain { problem }
    }
}

/// NotFound is a value (`None`), never an error.
#[async_trait]
pub trait ChainConnector: Send + Sync + std::fmt::Debug {
    /// The chain this connector was configured for.
    fn chain_id(&self) -> ChainId;
    /// The chain id reported by the node.
    async fn remote_chain_id(&self) -> Result<ChainId, RpcError>;
    async fn genesis_hash(&self) -> Result<Option<H256>, RpcError>;
    /// Whether this is the configured chain with the known genesis. An adapter with several nodes checks each of them
    /// and does not use those that serve another chain; an error if no possibly correct node can be reached.
    async fn identity(&self, known_genesis: Option<H256>) -> Result<ChainIdentity, RpcError> {
        let (found, genesis) = (self.remote_chain_id().await?, self.genesis_hash().await?);
        Ok(ChainIdentity::check(self.chain_id(), known_genesis, found, genesis))
    }
    async fn transaction_count(&self, address: Address, tag: BlockTag) -> Result<u64, RpcError>;
    /// The count at exactly this block.
    async fn transaction_count_at(&self, address: Address, block: BlockId) -> Result<u64, RpcError>;
    /// Takes an `Attempt`, which only the store creates, so that unrecorded bytes cannot be sent.
    async fn broadcast(&self, attempt: &Attempt) -> Result<SubmitOutcome, RpcError>;
    async fn receipt(&self, hash: H256) -> Result<Option<Receipt>, RpcError>;
    /// Receipts of several hashes; hashes that are not mined are omitted.
    async fn receipts(&self, hashes: &[H256]) -> Result<Vec<Receipt>, RpcError>;
    /// All receipts of one block; `None` if the node does not support this or does not have the block.
    async fn block_receipts(&self, block: H256) -> Result<Option<Vec<Receipt>>, RpcError>;
    async fn block(&self, tag: BlockTag) -> Result<Option<BlockWithHashes>, RpcError>;
    async fn block_by_hash(&self, hash: H256) -> Result<Option<BlockWithHashes>, RpcError>;
    /// Whether the preferred node has the transaction, mined or in its pool. Cheap: batched with other reads. `false`
    /// does not prove that it is lost; it is only a reason to send the same bytes again.
    async fn has_transaction(&self, hash: H256) -> Result<bool, RpcError>;
    /// How often an unusable node of this chain has become usable again.
    fn recoveries(&self) -> u64 {
        0
    }
    /// Receipts of any of the hashes, from the first node that returns one. Nodes without a transaction index are
    /// queried for the receipts of `block`, if given. An empty result is no evidence.
    async fn receipts_from_any_node(
        &self,
        hashes: &[H256],
        block: Option<BlockId>,
    ) -> Result<Vec<Receipt>, RpcError>;
    /// The transactions of a sender in these blocks. If a node does not return a block, the next node is queried; with
    /// `every_node` all nodes are queried and their results merged.
    async fn sender_in_blocks(&self, sender: Address, blocks: &[BlockId], every_node: bool)
    -> SenderInBlocks;
    /// The block up to `top` in which the address consumed the nonce, found with historical state. `None`: not
    /// consumed up to there. An error if no node has the required historical state.
    async fn block_of_nonce(&self, address: Address, nonce: u64, top: u64) -> Result<Option<u64>, RpcError>;
    /// The address the account delegates to (EIP-7702), if any.
    async fn delegation(&self, address: Address) -> Result<Option<Address>, RpcError>;
    /// `percentiles` must be ascending.
    async fn fee_history(&self, blocks: u64, percentiles: &[f64]) -> Result<FeeHistory, RpcError>;
    async fn gas_price(&self) -> Result<U256, RpcError>;
    async fn balance(&self, address: Address) -> Result<U256, RpcError>;
    async fn estimate_gas(&self, from: Address, payload: &Payload) -> Result<CallOutcome<U256>, RpcError>;
    /// Estimates on the state after `block`. Fails on a node that does not have that block.
    async fn estimate_gas_at(
        &self,
        from: Address,
        payload: &Payload,
        block: BlockId,
    ) -> Result<CallOutcome<U256>, RpcError>;
    /// Executes the payload at `tag` without sending it, to find the reason of a past revert.
    async fn call(
        &self,
        from: Address,
        payload: &Payload,
        tag: BlockTag,
    ) -> Result<CallOutcome<()>, RpcError>;
}

/// Reads the nodes' mempools. For diagnosis only: no decision depends on the result.
#[async_trait]
pub trait MempoolInspector: Send + Sync + std::fmt::Debug {
    /// Each node's view of `sender` and of these hashes. A node that does not answer is counted; it is not an error.
    async fn inspect(&self, sender: Address, hashes: &[H256]) -> PoolSurvey;
}
