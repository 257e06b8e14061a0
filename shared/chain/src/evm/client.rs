//! Implements the chain port with Ethereum JSON-RPC.
//!
//! Each method queues one call in a batcher and parses its reply. The search for the transaction that consumed a nonce
//! (`consumer`) bypasses the batchers: its calls must go to one node, or to every node.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use async_trait::async_trait;
use ethers_core::types::{Address, Bytes, H256, U256};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use super::answer::{
    full_message, gas_allowance, lacks_method, malformed, no_final_block_yet, parse, read_receipt,
};
use super::batcher::{Answered, Batcher, Route, SEND, Shared, Width};
use super::broadcast::Sends;
use super::consumer::delegate;
use super::decode::{Count, Quantity, RawBlock, RawFeeHistory, RawReceipt};
use super::exchange::{BatchLimit, Exchange};
use super::http::{Endpoint, EvmClientError};
use super::nodes::Nodes;
use super::revert;
use super::wire::{Call, Reply};
use crate::classify::{ErrorPatterns, SubmitClass, SubmitOutcome, is_about_payload};
use crate::port::{
    BlockId, BlockTag, BlockWithHashes, CallOutcome, ChainConnector, ChainIdentity, FeeHistory, RpcError,
    SenderInBlocks,
};
use gapless_config::ChainConfig;
use gapless_domain::{BlockRef, ChainId, Payload, Receipt};
use gapless_store::Attempt;
use gapless_telemetry::metrics::TX_SUBMIT_UNKNOWN_TOTAL;

/// The node does not accept a block hash as a parameter.
const INVALID_PARAMS: i64 = -32602;

/// Gas of the simplest transaction.
const MIN_GAS: u64 = 21_000;

/// A node's error, as it answered.
#[derive(Clone, Debug)]
pub struct NodeRefusal {
    pub code: i64,
    pub message: String,
    pub data: Option<Value>,
}

/// The chain port over the configured nodes of a chain.
#[derive(Debug)]
pub struct EvmClient {
    pub(super) chain_id: ChainId,
    pub(super) shared: Arc<Shared>,
    /// Separate from the reads, so that slow reads do not delay a send.
    sends: Sends,
    reads: Batcher,
    /// Estimates and calls: separate, because they execute contract code and would delay reads.
    executions: Batcher,
    /// Reads of clients of the API, and executions: separate, because a client decides how slow they are.
    passed_reads: Batcher,
    passed_executions: Batcher,
    reads_limit: Arc<BatchLimit>,
    /// Set once a node has reported that it lacks `eth_getBlockReceipts`.
    no_block_receipts: AtomicBool,
}

impl EvmClient {
    /// Starts the batchers; must be called within a Tokio runtime. Sends no request yet.
    pub fn new(config: &ChainConfig) -> Result<EvmClient, EvmClientError> {
        let patterns = ErrorPatterns::from_config(&config.rpc.error_patterns)
            .map_err(|problem| EvmClientError::BadPatterns { chain: config.name.clone(), problem })?;
        let max_in_flight = config.rpc.max_in_flight.clamp(1, Semaphore::MAX_PERMITS);
        let shared = Arc::new(Shared {
            exchange: Exchange::new(Nodes::new(config)?),
            slots: Arc::new(Semaphore::new(max_in_flight)),
            patterns,
        });
        let limit = || Arc::new(BatchLimit::new(config.rpc.max_batch));
        let reads_limit = limit();
        // Reads and executions together leave a quarter of the slots for sends.
        let start = |limit, normal, max| {
            Batcher::start(Arc::clone(&shared), limit, Width { normal, max }, Route::Failover)
        };
        Ok(EvmClient {
            chain_id: config.id,
            sends: Sends::start(&shared, config, max_in_flight),
            reads: start(Arc::clone(&reads_limit), 4, max_in_flight / 2),
            executions: start(limit(), 2, max_in_flight / 4),
            passed_reads: start(limit(), 4, max_in_flight / 4),
            passed_executions: start(limit(), 4, max_in_flight / 4),
            shared,
            reads_limit,
            no_block_receipts: AtomicBool::new(false),
        })
    }

    async fn read<T: DeserializeOwned>(
        &self,
        method: &'static str,
        params: impl Serialize,
    ) -> Result<T, RpcError> {
        Ok(self.read_from(method, params).await?.0)
    }

    /// The value and the node it came from.
    async fn read_from<T: DeserializeOwned>(
        &self,
        method: &'static str,
        params: impl Serialize,
    ) -> Result<(T, String), RpcError> {
        let Answered { reply, endpoint } = self.reads.call(Call::new(method, params)).await?;
        match reply {
            Ok(result) => Ok((parse(method, &endpoint, &result)?, endpoint)),
            Err(error) => Err(self.shared.refusal(method, &endpoint, &error)),
        }
    }

    /// A read of a client, unchanged, and the node's reply. Executions do not delay other reads.
    pub async fn pass_on(
        &self,
        method: &'static str,
        params: Option<&RawValue>,
        is_execution: bool,
    ) -> Result<Result<Box<RawValue>, NodeRefusal>, RpcError> {
        let call = match params {
            Some(params) => Call { method, params: params.to_owned() },
            None => Call::new(method, [(); 0]),
        };
        let batcher = if is_execution { &self.passed_executions } else { &self.passed_reads };
        let Answered { reply, .. } = batcher.call(call).await?;
        Ok(reply.map_err(|error| NodeRefusal { code: error.code, message: error.message, data: error.data }))
    }

    /// Private to this adapter: the public method requires an `Attempt`.
    pub(super) async fn send_raw(&self, raw: &Bytes, tx_hash: H256) -> Result<SubmitOutcome, RpcError> {
        let call = Call::new(SEND, [raw]);
        self.sends.send(&self.shared, call, tx_hash).await
    }

    /// The result of an execution (estimate, call), or the classified error.
    async fn execute(
        &self,
        method: &'static str,
        params: Value,
    ) -> Result<CallOutcome<(Box<RawValue>, String)>, RpcError> {
        let Answered { reply, endpoint } = self.executions.call(Call::new(method, params)).await?;
        let error = match reply {
            Ok(result) => return Ok(CallOutcome::Ok((result, endpoint))),
            Err(error) => error,
        };
        if self.shared.is_unavailable(&error) {
            return Err(self.shared.refusal(method, &endpoint, &error));
        }
        // Checked first: a revert reason can contain any other error text.
        let failure = revert::failure(&error);
        let returned = failure.as_ref().is_some_and(|failure| failure.revert.is_some());
        // The request has no gas price, so the allowance is the node's general gas cap.
        if let Some(gas_cap) = gas_allowance(&error.message).filter(|_| !returned) {
            return Ok(CallOutcome::Unwilling { gas_cap, message: full_message(&error) });
        }
        if let Some(failure) = failure {
            return Ok(CallOutcome::Reverted(failure));
        }
        match self.shared.class_of(&error) {
            SubmitClass::InsufficientFunds => {
                Ok(CallOutcome::InsufficientFunds { message: full_message(&error) })
            }
            SubmitClass::Fatal if is_about_payload(&error.message, &self.shared.patterns) => {
                Ok(CallOutcome::Fatal { message: full_message(&error) })
            }
            SubmitClass::Fatal => Ok(CallOutcome::Unwilling { gas_cap: None, message: full_message(&error) }),
            _ => Err(self.shared.refusal(method, &endpoint, &error)),
        }
    }

    async fn estimate(&self, params: Value) -> Result<CallOutcome<U256>, RpcError> {
        let method = "eth_estimateGas";
        self.execute(method, params).await?.try_map(|(result, endpoint)| {
            let Quantity(gas) = parse(method, &endpoint, &result)?;
            // With such an estimate the transaction would fail permanently.
            if gas < MIN_GAS.into() || gas > u64::MAX.into() {
                return Err(malformed(method, &endpoint, "gas estimate out of range"));
            }
            Ok(gas)
        })
    }

    /// Reads a block and checks that it is the requested one.
    async fn block_of(
        &self,
        method: &'static str,
        which: Value,
        is_it: impl Fn(&BlockRef) -> bool,
    ) -> Result<Option<BlockWithHashes>, RpcError> {
        let (block, endpoint): (Option<RawBlock>, _) = self.read_from(method, json!([which, false])).await?;
        match block.and_then(RawBlock::mined) {
            Some(other) if !is_it(&other.block) => Err(malformed(method, &endpoint, "another block")),
            found => Ok(found),
        }
    }

    /// Sends calls to one node; all must succeed.
    pub(super) async fn call_node(
        &self,
        endpoint: &Endpoint,
        calls: &[Call],
    ) -> Result<Vec<Box<RawValue>>, RpcError> {
        let calls: Vec<&Call> = calls.iter().collect();
        let results = self.shared.exchange.request(endpoint, &calls, &self.reads_limit).await;
        let answers =
            |reply: &Result<Reply, RpcError>| reply.as_ref().is_ok_and(|reply| self.shared.is_answer(reply));
        self.shared.exchange.nodes.note(endpoint, results.iter().any(answers));
        let read = |(call, result): (&&Call, Result<_, RpcError>)| match result? {
            Ok(result) => Ok(result),
            Err(error) => Err(self.shared.refusal(call.method, &endpoint.shown, &error)),
        };
        calls.iter().zip(results).map(read).collect()
    }
}

#[async_trait]
impl ChainConnector for EvmClient {
    fn chain_id(&self) -> ChainId {
        self.chain_id
    }

    async fn remote_chain_id(&self) -> Result<ChainId, RpcError> {
        let Count(id) = self.read("eth_chainId", json!([])).await?;
        Ok(ChainId(id))
    }

    async fn genesis_hash(&self) -> Result<Option<H256>, RpcError> {
        Ok(self.block(BlockTag::Number(0)).await?.map(|genesis| genesis.block.hash))
    }

    async fn identity(&self, known_genesis: Option<H256>) -> Result<ChainIdentity, RpcError> {
        self.survey(known_genesis).await
    }

    async fn transaction_count(&self, address: Address, tag: BlockTag) -> Result<u64, RpcError> {
        let Count(count) = self.read("eth_getTransactionCount", json!([address, tag_text(tag)])).await?;
        Ok(count)
    }

    async fn transaction_count_at(&self, address: Address, block: BlockId) -> Result<u64, RpcError> {
        let method = "eth_getTransactionCount";
        // By hash (EIP-1898): a node on another fork then returns an error instead of a wrong count.
        let exactly = json!([address, { "blockHash": block.hash }]);
        match self.read(method, exactly).await {
            Ok(Count(count)) => Ok(count),
            Err(RpcError::Refused { code: INVALID_PARAMS, .. }) => {
                let height = json!([address, tag_text(BlockTag::Number(block.number))]);
                let Count(count) = self.read(method, height).await?;
                Ok(count)
            }
            Err(error) => Err(error),
        }
    }

    async fn broadcast(&self, attempt: &Attempt) -> Result<SubmitOutcome, RpcError> {
        let outcome = self.send_raw(attempt.raw(), attempt.tx_hash()).await?;
        if outcome.class == SubmitClass::Unknown {
            metrics::counter!(TX_SUBMIT_UNKNOWN_TOTAL).increment(1);
            tracing::warn!(
                chain.id = %self.chain_id, tx.id = %attempt.tx_id(), attempt.id = %attempt.id(),
                tx.hash = ?attempt.tx_hash(), nonce = %attempt.nonce(), code = outcome.code, message = %outcome.message,
                "unclassified answer to a send; a pattern for it can be added to rpc.error_patterns"
            );
        }
        Ok(outcome)
    }

    async fn receipt(&self, hash: H256) -> Result<Option<Receipt>, RpcError> {
        let (result, endpoint): (Box<RawValue>, _) =
            self.read_from("eth_getTransactionReceipt", [hash]).await?;
        read_receipt(&endpoint, &result, hash)
    }

    async fn receipts(&self, hashes: &[H256]) -> Result<Vec<Receipt>, RpcError> {
        // Queued together, so that they are sent in one batch.
        let found = futures::future::try_join_all(hashes.iter().map(|hash| self.receipt(*hash))).await?;
        Ok(found.into_iter().flatten().collect())
    }

    async fn block_receipts(&self, block: H256) -> Result<Option<Vec<Receipt>>, RpcError> {
        if self.no_block_receipts.load(Relaxed) {
            return Ok(None);
        }
        let method = "eth_getBlockReceipts";
        let Answered { reply, endpoint } = self.reads.call(Call::new(method, json!([block]))).await?;
        let receipts: Option<Vec<RawReceipt>> = match &reply {
            Ok(result) => parse(method, &endpoint, result)?,
            Err(error) if lacks_method(error) => {
                tracing::info!(chain.id = %self.chain_id, %endpoint,
                    "no {method}; reading receipts one by one");
                self.no_block_receipts.store(true, Relaxed);
                None
            }
            Err(error) => return Err(self.shared.refusal(method, &endpoint, error)),
        };
        let Some(receipts) = receipts else { return Ok(None) };
        let receipts: Vec<Receipt> = receipts.into_iter().filter_map(RawReceipt::mined).collect();
        if receipts.iter().any(|receipt| receipt.block_hash != block) {
            return Err(malformed(method, &endpoint, "returned receipts of another block"));
        }
        Ok(Some(receipts))
    }

    async fn block(&self, tag: BlockTag) -> Result<Option<BlockWithHashes>, RpcError> {
        let is_it = |found: &BlockRef| !matches!(tag, BlockTag::Number(wanted) if wanted != found.number);
        match self.block_of("eth_getBlockByNumber", json!(tag_text(tag)), is_it).await {
            // Nodes return an error if the chain has no finalised block yet.
            Err(RpcError::Refused { message, .. })
                if matches!(tag, BlockTag::Safe | BlockTag::Finalized) && no_final_block_yet(&message) =>
            {
                Ok(None)
            }
            answer => answer,
        }
    }

    async fn block_by_hash(&self, hash: H256) -> Result<Option<BlockWithHashes>, RpcError> {
        self.block_of("eth_getBlockByHash", json!(hash), |found| found.hash == hash).await
    }

    async fn receipts_from_any_node(
        &self,
        hashes: &[H256],
        block: Option<BlockId>,
    ) -> Result<Vec<Receipt>, RpcError> {
        self.find_receipts(hashes, block).await
    }

    async fn has_transaction(&self, hash: H256) -> Result<bool, RpcError> {
        let found: Option<Value> = self.read("eth_getTransactionByHash", [hash]).await?;
        Ok(found.is_some())
    }

    fn recoveries(&self) -> u64 {
        self.shared.exchange.nodes.recoveries()
    }

    async fn sender_in_blocks(
        &self,
        sender: Address,
        blocks: &[BlockId],
        every_node: bool,
    ) -> SenderInBlocks {
        self.read_blocks(sender, blocks, every_node).await
    }

    async fn block_of_nonce(&self, address: Address, nonce: u64, top: u64) -> Result<Option<u64>, RpcError> {
        self.find_block_of_nonce(address, nonce, top).await
    }

    async fn delegation(&self, address: Address) -> Result<Option<Address>, RpcError> {
        let code: Bytes = self.read("eth_getCode", json!([address, "latest"])).await?;
        Ok(delegate(&code))
    }

    async fn fee_history(&self, blocks: u64, percentiles: &[f64]) -> Result<FeeHistory, RpcError> {
        let method = "eth_feeHistory";
        let params = json!([format!("{blocks:#x}"), "latest", percentiles]);
        let (history, endpoint): (RawFeeHistory, _) = self.read_from(method, params).await?;
        history
            .history(percentiles.len())
            .ok_or_else(|| malformed(method, &endpoint, "fee history without base fees"))
    }

    async fn gas_price(&self) -> Result<U256, RpcError> {
        let Quantity(price) = self.read("eth_gasPrice", json!([])).await?;
        Ok(price)
    }

    async fn balance(&self, address: Address) -> Result<U256, RpcError> {
        let Quantity(balance) = self.read("eth_getBalance", json!([address, "latest"])).await?;
        Ok(balance)
    }

    async fn estimate_gas(&self, from: Address, payload: &Payload) -> Result<CallOutcome<U256>, RpcError> {
        self.estimate(json!([transaction(from, payload)])).await
    }

    async fn estimate_gas_at(
        &self,
        from: Address,
        payload: &Payload,
        block: BlockId,
    ) -> Result<CallOutcome<U256>, RpcError> {
        let request = transaction(from, payload);
        // By hash (EIP-1898), so that a node on another fork returns an error.
        match self.estimate(json!([request, { "blockHash": block.hash }])).await {
            Err(RpcError::Refused { code: INVALID_PARAMS, .. }) => {
                self.estimate(json!([request, tag_text(BlockTag::Number(block.number))])).await
            }
            answer => answer,
        }
    }

    async fn call(
        &self,
        from: Address,
        payload: &Payload,
        tag: BlockTag,
    ) -> Result<CallOutcome<()>, RpcError> {
        let mut request = transaction(from, payload);
        if let Some(gas) = payload.gas_limit {
            request["gas"] = json!(gas);
        }
        self.execute("eth_call", json!([request, tag_text(tag)])).await?.try_map(|_| Ok(()))
    }
}

/// The call object. Without a gas price, so that an estimate does not fail because of a temporarily high base fee.
fn transaction(from: Address, payload: &Payload) -> Value {
    let mut request = json!({ "from": from, "value": payload.value, "data": payload.data });
    if let Some(to) = payload.to {
        request["to"] = json!(to);
    }
    if !payload.access_list.0.is_empty() {
        request["accessList"] = json!(payload.access_list);
    }
    request
}

pub(super) fn tag_text(tag: BlockTag) -> String {
    match tag {
        BlockTag::Latest => "latest".into(),
        BlockTag::Pending => "pending".into(),
        BlockTag::Safe => "safe".into(),
        BlockTag::Finalized => "finalized".into(),
        BlockTag::Number(number) => format!("{number:#x}"),
    }
}

#[cfg(test)]
#[path = "client_tests.rs"]
mod tests;
