//! The port: what Gapless asks of a chain, and in which words it may answer.

use std::time::Duration;

use async_trait::async_trait;
use ethers_core::types::{Address, H256, U256};

use crate::chain::classify::SubmitOutcome;
use crate::domain::mempool::PoolSurvey;
use crate::domain::{BlockRef, ChainId, Failure, Payload, Receipt};
use crate::store::Attempt;

/// We could not ask, or could not understand the answer. Says nothing about the transaction.
#[derive(Clone, Debug, thiserror::Error)]
pub enum RpcError {
    #[error("{method}: {endpoint} did not answer within {timeout:?}")]
    Timeout { method: &'static str, endpoint: String, timeout: Duration },
    #[error("{method}: {endpoint} could not be reached: {reason}")]
    Transport { method: &'static str, endpoint: String, reason: String },
    #[error("{method}: {endpoint} answered HTTP {status}")]
    Http { method: &'static str, endpoint: String, status: u16 },
    #[error("{method}: {endpoint} answered something that is not JSON-RPC: {reason}")]
    Malformed { method: &'static str, endpoint: String, reason: String },
    /// An answer that speaks of the node, not of what was asked: a rate limit, a node that syncs or lacks the state.
    #[error("{method}: {endpoint} is in trouble: {message} ({code})")]
    Trouble { method: &'static str, endpoint: String, code: i64, message: String },
    /// An answer that no class has. It is no evidence either: whoever asked waits.
    #[error("{method}: {endpoint} refused: {message} ({code})")]
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

/// A block and the transactions in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockWithHashes {
    pub block: BlockRef,
    pub base_fee_per_gas: Option<U256>,
    /// Gas that fits into it; absent where the node does not say.
    pub gas_limit: Option<u64>,
    pub tx_hashes: Vec<H256>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FeeHistory {
    /// Base fee of the block that comes next.
    pub next_base_fee: U256,
    /// For each past block its priority fees, one for each percentile asked for and in their order.
    pub rewards: Vec<Vec<U256>>,
}

/// A question that executes the transaction without sending it (estimate, call).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallOutcome<T> {
    Ok(T),
    /// The chain executed it and it failed.
    Reverted(Failure),
    /// The sender cannot pay for it now.
    InsufficientFunds {
        message: String,
    },
    /// The chain would never take it, because of what it is (for example: init code above the limit).
    Fatal {
        message: String,
    },
    /// The node would not execute it, and the reason may be the node's own: a cap on the gas of executions, a rule about
    /// senders. Another node, or this one with other settings, may answer otherwise.
    Unwilling {
        /// The gas that the node lets an execution use, where it says so.
        gas_cap: Option<U256>,
        message: String,
    },
}

impl<T> CallOutcome<T> {
    /// Works on with the value; every other outcome stays what it is.
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

/// A transaction of a sender, and the block that holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MinedTx {
    pub tx_hash: H256,
    pub nonce: u64,
    pub block: BlockId,
}

/// What blocks hold of a sender.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SenderInBlocks {
    /// The sender signed them: computed here, whatever the node says.
    pub proved: Vec<MinedTx>,
    /// A node names the sender, and the signature does not show it: another type of transaction, or a wrong answer.
    pub unproved: Vec<MinedTx>,
    /// Blocks that no node showed.
    pub unshown: Vec<u64>,
}

/// Whether the nodes serve the chain that is meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChainIdentity {
    /// At least one does. Some nodes do not keep block 0; then the id has to do.
    Ours { genesis: Option<H256> },
    /// Nodes answered, and none of them does: what they serve instead.
    External { problem: String },
}

impl ChainIdentity {
    /// Judges what one node says of itself.
    pub fn judge(
        wanted: ChainId,
        known: Option<H256>,
        found: ChainId,
        genesis: Option<H256>,
    ) -> ChainIdentity {
        let problem = match (known, genesis) {
            _ if wanted != found => format!("the node serves chain {found}, configured is {wanted}"),
            (Some(known), Some(genesis)) if known != genesis => {
                format!("the chain was reset: block 0 is {genesis:#x}, this database knows {known:#x}")
            }
            _ => return ChainIdentity::Ours { genesis },
        };
        ChainIdentity::External { problem }
    }
}

/// NotFound is a value (`None`), never an error.
#[async_trait]
pub trait ChainConnector: Send + Sync + std::fmt::Debug {
    /// The chain this connector was configured for.
    fn chain_id(&self) -> ChainId;
    /// What the node says its chain id is.
    async fn remote_chain_id(&self) -> Result<ChainId, RpcError>;
    async fn genesis_hash(&self) -> Result<Option<H256>, RpcError>;
    /// Whether this is the chain whose genesis is known. An adapter with several nodes asks each of them, and uses
    /// none of those that serve another chain; an error if no node that could be right can be asked.
    async fn identity(&self, known_genesis: Option<H256>) -> Result<ChainIdentity, RpcError> {
        let (found, genesis) = (self.remote_chain_id().await?, self.genesis_hash().await?);
        Ok(ChainIdentity::judge(self.chain_id(), known_genesis, found, genesis))
    }
    async fn transaction_count(&self, address: Address, tag: BlockTag) -> Result<u64, RpcError>;
    /// The count as of exactly this block.
    async fn transaction_count_at(&self, address: Address, block: BlockId) -> Result<u64, RpcError>;
    /// Takes an `Attempt`, and only the store makes those: unrecorded bytes cannot be sent.
    async fn broadcast(&self, attempt: &Attempt) -> Result<SubmitOutcome, RpcError>;
    async fn receipt(&self, hash: H256) -> Result<Option<Receipt>, RpcError>;
    /// Receipts of several hashes; hashes that are not mined are left out of the answer.
    async fn receipts(&self, hashes: &[H256]) -> Result<Vec<Receipt>, RpcError>;
    /// All receipts of one block, or `None` where the node does not offer that or does not have the block.
    async fn block_receipts(&self, block: H256) -> Result<Option<Vec<Receipt>>, RpcError>;
    async fn block(&self, tag: BlockTag) -> Result<Option<BlockWithHashes>, RpcError>;
    async fn block_by_hash(&self, hash: H256) -> Result<Option<BlockWithHashes>, RpcError>;
    /// Whether the node that is asked first has the transaction, mined or in its pool. Cheap: batched with other reads.
    /// `false` is no evidence that it is lost, only a reason to send the same bytes again.
    async fn has_transaction(&self, hash: H256) -> Result<bool, RpcError>;
    /// How often a node of this chain that could not be used has become usable again.
    fn recoveries(&self) -> u64 {
        0
    }
    /// Receipts of any of the hashes, from the first node that shows one. Nodes that have no index of transactions are
    /// asked for those of `block`, where that is known. Nothing found says nothing.
    async fn receipts_from_any_node(
        &self,
        hashes: &[H256],
        block: Option<BlockId>,
    ) -> Result<Vec<Receipt>, RpcError>;
    /// What these blocks hold of a sender. A node that does not show one is followed by the next; with `every_node` all of
    /// them are read, and what any of them shows is found.
    async fn sender_in_blocks(&self, sender: Address, blocks: &[BlockId], every_node: bool)
    -> SenderInBlocks;
    /// The block up to `top` in which the count of the address passed the nonce, by the states that nodes keep of the past.
    /// `None`: it was not consumed up to there. An error if no node shows the past that far.
    async fn block_of_nonce(&self, address: Address, nonce: u64, top: u64) -> Result<Option<u64>, RpcError>;
    /// Whose code the account runs by delegation (EIP-7702), if it does.
    async fn delegation(&self, address: Address) -> Result<Option<Address>, RpcError>;
    /// `percentiles` ascend.
    async fn fee_history(&self, blocks: u64, percentiles: &[f64]) -> Result<FeeHistory, RpcError>;
    async fn gas_price(&self) -> Result<U256, RpcError>;
    async fn balance(&self, address: Address) -> Result<U256, RpcError>;
    async fn estimate_gas(&self, from: Address, payload: &Payload) -> Result<CallOutcome<U256>, RpcError>;
    /// The same on the state after one block. A node that does not have that block gives no answer.
    async fn estimate_gas_at(
        &self,
        from: Address,
        payload: &Payload,
        block: BlockId,
    ) -> Result<CallOutcome<U256>, RpcError>;
    /// Executes the payload as of `tag` without sending it: how a revert reason is found after the fact.
    async fn call(
        &self,
        from: Address,
        payload: &Payload,
        tag: BlockTag,
    ) -> Result<CallOutcome<()>, RpcError>;
}

/// What the nodes show of their pools. For advice only: whoever asks does the same with any answer and with none.
#[async_trait]
pub trait MempoolInspector: Send + Sync + std::fmt::Debug {
    /// What each node shows of `sender` and of these hashes. A node that does not answer is counted, and is no error.
    async fn inspect(&self, sender: Address, hashes: &[H256]) -> PoolSurvey;
}
