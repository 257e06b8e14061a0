//! Node, signer and database of one process, all behind its call boundary.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use ethers_core::types::transaction::eip2718::TypedTransaction;
use ethers_core::types::{Address, H256, Signature, U256};
use ethers_core::utils::keccak256;
use ethers_signers::{LocalWallet, Signer as _};
use gapless_chain::{
    BlockId, BlockTag, BlockWithHashes, CallOutcome, ChainConnector, ErrorPatterns, FeeHistory, RpcError,
    SenderInBlocks, SubmitOutcome, classify,
};
use gapless_domain::{ChainId, Failure, Payload, Receipt, SignedDraft, UnsignedTx};
use gapless_signer::{Signer, SignerError};
use gapless_store::{Applied, Attempt, FencedWrite, Store, StoreError};
use gapless_worker::sim_driver::Commits;

use super::call_boundary::CallBoundary;
use super::ledger::{BASE_FEE, Estimates, Ledger};

#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) chain_id: ChainId,
    pub(crate) ledger: Arc<Mutex<Ledger>>,
    pub(crate) boundary: Arc<CallBoundary>,
}

impl Node {
    async fn ask<T>(
        &self,
        method: &'static str,
        answer: impl FnOnce(&mut Ledger) -> T,
    ) -> Result<T, RpcError> {
        let other = self.ledger.lock().unwrap().route();
        let effect = async {
            let mut ledger = self.ledger.lock().unwrap();
            ledger.switch_to(other);
            if ledger.outage.is_some_and(|rejected| rejected == "*" || rejected == method) {
                let (endpoint, message) = ("simulated".to_owned(), "rate limit exceeded".to_owned());
                return Err(RpcError::Unavailable { method, endpoint, code: -32005, message });
            }
            let answer = answer(&mut ledger);
            ledger.switch_to(false);
            Ok(answer)
        };
        let timeout = Duration::from_secs(10);
        let lost = || Err(RpcError::Timeout { method, endpoint: "simulated".to_owned(), timeout });
        let call = if other { &format!("{method}, of the other backend") } else { method };
        self.boundary.pass(call, effect, lost).await
    }

    /// Estimates on the state after a block; `None`: after the newest shown one.
    async fn execute(
        &self,
        method: &'static str,
        payload: &Payload,
        block: Option<BlockId>,
    ) -> Result<CallOutcome<U256>, RpcError> {
        let value = payload.value.low_u64();
        let refused = |message: &str| {
            let (endpoint, message) = ("simulated".to_owned(), message.to_owned());
            Err(RpcError::Refused { method, endpoint, code: -32000, message })
        };
        self.ask(method, |ledger| {
            let block = block.map_or(ledger.head_hash(), |block| block.hash);
            match (ledger.estimates, ledger.estimate(value, block)) {
                (Estimates::Refused, _) => refused("a message of no known class"),
                (Estimates::Unwilling, _) => {
                    let message = "this node declines to execute this".to_owned();
                    Ok(CallOutcome::Unwilling { gas_cap: None, message })
                }
                (_, None) => refused("unknown block"),
                (_, Some(true)) => Ok(CallOutcome::Ok(U256::from(21_000))),
                (_, Some(false)) => Ok(CallOutcome::Reverted(Failure {
                    revert: None,
                    message: "execution reverted".to_owned(),
                    out_of_gas: false,
                })),
            }
        })
        .await?
    }
}

#[async_trait]
impl ChainConnector for Node {
    fn chain_id(&self) -> ChainId {
        self.chain_id
    }

    async fn remote_chain_id(&self) -> Result<ChainId, RpcError> {
        Ok(self.chain_id)
    }

    async fn genesis_hash(&self) -> Result<Option<H256>, RpcError> {
        self.ask("genesis", |ledger| ledger.block(0).map(|genesis| genesis.block.hash)).await
    }

    async fn transaction_count(&self, _: Address, tag: BlockTag) -> Result<u64, RpcError> {
        self.ask("transaction count", |ledger| match tag {
            BlockTag::Number(height) => ledger.count_at(height),
            BlockTag::Pending => ledger.pending_count(),
            _ => ledger.latest_count(),
        })
        .await
    }

    async fn broadcast(&self, attempt: &Attempt) -> Result<SubmitOutcome, RpcError> {
        self.ask("broadcast", |ledger| match ledger.take(attempt.raw()) {
            Ok(()) => SubmitOutcome::accepted(),
            Err(message) => SubmitOutcome {
                class: classify(-32000, message, None, &ErrorPatterns::default()),
                message: message.to_owned(),
                code: -32000,
            },
        })
        .await
    }

    async fn receipt(&self, hash: H256) -> Result<Option<Receipt>, RpcError> {
        self.ask("receipt", |ledger| ledger.receipt(hash)).await
    }

    async fn receipts(&self, hashes: &[H256]) -> Result<Vec<Receipt>, RpcError> {
        self.ask("receipts", |ledger| hashes.iter().filter_map(|hash| ledger.receipt(*hash)).collect()).await
    }

    async fn block_receipts(&self, _: H256) -> Result<Option<Vec<Receipt>>, RpcError> {
        Ok(None)
    }

    async fn block(&self, tag: BlockTag) -> Result<Option<BlockWithHashes>, RpcError> {
        self.ask("block", |ledger| match tag {
            BlockTag::Number(height) => ledger.block(height),
            _ => ledger.block(ledger.head()),
        })
        .await
    }

    async fn block_by_hash(&self, hash: H256) -> Result<Option<BlockWithHashes>, RpcError> {
        self.ask("block by hash", |ledger| ledger.block_by_hash(hash)).await
    }

    async fn transaction_count_at(&self, _: Address, block: BlockId) -> Result<u64, RpcError> {
        let method = "transaction count at a block";
        let refused = || RpcError::Refused {
            method,
            endpoint: "simulated".to_owned(),
            code: -32000,
            message: "unknown block".to_owned(),
        };
        self.ask(method, |ledger| ledger.count_at_hash(block.hash)).await?.ok_or_else(refused)
    }

    async fn has_transaction(&self, hash: H256) -> Result<bool, RpcError> {
        self.ask("transaction", |ledger| ledger.has(hash)).await
    }

    async fn receipts_from_any_node(
        &self,
        hashes: &[H256],
        _: Option<BlockId>,
    ) -> Result<Vec<Receipt>, RpcError> {
        self.receipts(hashes).await
    }

    async fn sender_in_blocks(&self, _: Address, blocks: &[BlockId], _: bool) -> SenderInBlocks {
        let unshown = || blocks.iter().map(|block| block.number).collect();
        let shown = self.ask("blocks", |ledger| ledger.sender_in_blocks(blocks)).await;
        shown.unwrap_or_else(|_| SenderInBlocks { unshown: unshown(), ..SenderInBlocks::default() })
    }

    async fn block_of_nonce(&self, _: Address, nonce: u64, top: u64) -> Result<Option<u64>, RpcError> {
        self.ask("block of a nonce", |ledger| (0..=top).find(|height| ledger.count_at(*height) > nonce)).await
    }

    async fn delegation(&self, _: Address) -> Result<Option<Address>, RpcError> {
        Ok(None)
    }

    async fn fee_history(&self, blocks: u64, percentiles: &[f64]) -> Result<FeeHistory, RpcError> {
        let tips = vec![U256::from(BASE_FEE); percentiles.len()];
        let rewards = vec![tips; blocks as usize];
        self.ask("fee history", |ledger| FeeHistory { next_base_fee: ledger.base_fee.into(), rewards }).await
    }

    async fn gas_price(&self) -> Result<U256, RpcError> {
        self.ask("gas price", |ledger| U256::from(ledger.base_fee + BASE_FEE)).await
    }

    async fn balance(&self, _: Address) -> Result<U256, RpcError> {
        self.ask("balance", |ledger| if ledger.is_unfunded { U256::zero() } else { U256::exp10(24) }).await
    }

    async fn estimate_gas(&self, _: Address, payload: &Payload) -> Result<CallOutcome<U256>, RpcError> {
        self.execute("estimate", payload, None).await
    }

    async fn estimate_gas_at(
        &self,
        _: Address,
        payload: &Payload,
        block: BlockId,
    ) -> Result<CallOutcome<U256>, RpcError> {
        self.execute("estimate at a block", payload, Some(block)).await
    }

    async fn call(&self, _: Address, _: &Payload, _: BlockTag) -> Result<CallOutcome<()>, RpcError> {
        self.ask("call", |_| CallOutcome::Ok(())).await
    }
}

/// An in-memory key.
#[derive(Debug)]
pub(crate) struct Key {
    pub(crate) wallet: LocalWallet,
    pub(crate) boundary: Arc<CallBoundary>,
    /// Intentional defect: signed transactions reach the mempool before they are recorded.
    pub(crate) leaks_to: Option<Arc<Mutex<Ledger>>>,
}

#[async_trait]
impl Signer for Key {
    fn address(&self) -> Address {
        self.wallet.address()
    }

    fn kind(&self) -> &'static str {
        "raw_key"
    }

    async fn sign(&self, tx: &UnsignedTx) -> Result<SignedDraft, SignerError> {
        let address = self.wallet.address();
        let effect = async {
            let typed = tx.typed();
            let signed = self.wallet.sign_hash(typed.sighash()).expect("a key signs");
            let parity = signed.v - 27;
            // In legacy transactions `v` includes the chain id (EIP-155).
            let is_legacy = matches!(typed, TypedTransaction::Legacy(_));
            let v = if is_legacy { parity + 35 + 2 * tx.chain_id.0 } else { parity };
            let raw = typed.rlp_signed(&Signature { v, ..signed });
            if let Some(ledger) = &self.leaks_to {
                // The response does not matter for the defect.
                let _ = ledger.lock().unwrap().take(&raw);
            }
            Ok(SignedDraft {
                nonce: tx.nonce,
                tx_hash: H256(keccak256(&raw)),
                raw,
                gas_limit: tx.gas_limit,
                fees: tx.fees,
                max_cost: tx.max_cost().expect("small numbers"),
            })
        };
        let lost = || Err(SignerError::Unavailable { address, reason: "simulated".to_owned() });
        self.boundary.pass("sign", effect, lost).await
    }
}

/// The real store. Calls and their responses may be lost.
#[derive(Debug)]
pub(crate) struct Database {
    pub(crate) store: Store,
    pub(crate) boundary: Arc<CallBoundary>,
}

#[async_trait]
impl Commits for Database {
    async fn apply(&self, batch: &[FencedWrite]) -> Result<Vec<Applied>, StoreError> {
        let lost = || {
            let error = sqlx::Error::Io(std::io::ErrorKind::ConnectionReset.into());
            Err(StoreError::Db { operation: "simulated", error })
        };
        self.boundary.pass("commit", self.store.apply(batch), lost).await
    }
}
