//! The chain as a node shows it: it may lag, lack an index, or be one of two inconsistent backends.

use ethers_core::types::{H256, U256};
use ethers_core::utils::keccak256;
use gapless_chain::{BlockId, BlockWithHashes, MinedTx, SenderInBlocks};
use gapless_domain::{BlockRef, Receipt};

use super::{Block, Estimates, Ledger, Tx};

const BLOCK_GAS: u64 = 30_000_000;

/// A backend that shows another chain than the canonical one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Backend {
    /// Lags by this many blocks.
    Behind(usize),
    /// A fork of this many empty blocks.
    EmptyFork(usize),
    /// A fork of this many blocks with other attempts at the same nonces, and with the mempool.
    FullFork(usize),
}

impl Backend {
    fn depth(self) -> usize {
        let (Backend::Behind(depth) | Backend::EmptyFork(depth) | Backend::FullFork(depth)) = self;
        depth
    }
}

impl Ledger {
    /// The transaction count at `latest`.
    pub(crate) fn latest_count(&self) -> u64 {
        self.count_at(self.head().saturating_sub(self.count_lag))
    }

    fn shown(&self) -> &[Block] {
        self.view.as_deref().unwrap_or(self.own_view())
    }

    fn own_view(&self) -> &[Block] {
        &self.blocks[..self.blocks.len().saturating_sub(self.lag).max(1)]
    }

    /// Chooses the backend of the next call. True: the second one.
    pub(crate) fn route(&mut self) -> bool {
        self.other.is_some() && self.coin.one_in(2)
    }

    /// Switches to this backend.
    pub(crate) fn switch_to(&mut self, other: bool) {
        self.view = self.other.filter(|_| other).map(|backend| self.seen_by(backend));
    }

    fn seen_by(&self, backend: Backend) -> Vec<Block> {
        let own = self.own_view();
        let keep = own.len().saturating_sub(backend.depth()).max(1);
        let mut blocks = own[..keep].to_vec();
        let mut txs = match backend {
            Backend::Behind(_) => return blocks,
            Backend::EmptyFork(_) => Vec::new(),
            Backend::FullFork(_) => self.on_the_fork(&own[keep..]),
        };
        for _ in keep..own.len() {
            let parent = blocks.last().map_or(H256::zero(), |block| block.hash);
            let txs = std::mem::take(&mut txs);
            // The hash depends on parent and content.
            let mut named = parent.as_bytes().to_vec();
            named.extend(txs.iter().flat_map(|tx: &Tx| tx.hash.to_fixed_bytes()));
            blocks.push(Block { hash: H256(keccak256(named)), parent, txs });
        }
        blocks
    }

    /// At each nonce another attempt than the mined one, if there is one; then the mempool.
    fn on_the_fork(&self, replaced: &[Block]) -> Vec<Tx> {
        let rival = |tx: Tx| {
            let is_rival = |other: &&Tx| other.nonce == tx.nonce && other.hash != tx.hash;
            self.arrived.iter().find(is_rival).copied().unwrap_or(tx)
        };
        let mut txs: Vec<Tx> = replaced.iter().flat_map(|block| &block.txs).copied().map(rival).collect();
        let mut next = self.count();
        while let Some(tx) = self.pool.iter().find(|tx| tx.nonce == next && self.lag == 0) {
            txs.push(*tx);
            next += 1;
        }
        txs
    }

    pub(super) fn shown_count(&self) -> u64 {
        self.count_at(self.head())
    }

    /// Mined transactions, plus consecutive ones in the mempool.
    pub(crate) fn pending_count(&self) -> u64 {
        let mut next = self.count().max(self.shown_count());
        while self.pool.iter().any(|tx| tx.nonce == next) {
            next += 1;
        }
        next
    }

    /// Whether it succeeds on the state after a block; `None`: unknown block.
    pub(crate) fn estimate(&self, value: u64, block: H256) -> Option<bool> {
        let height = self.shown().iter().position(|shown| shown.hash == block)?;
        let before = self.shown()[..=height].iter().flat_map(|block| block.txs.iter().copied());
        Some(self.estimates != Estimates::Reverted && self.executes(value, before, false))
    }

    pub(crate) fn head_hash(&self) -> H256 {
        self.shown().last().map_or(H256::zero(), |head| head.hash)
    }

    pub(crate) fn head(&self) -> u64 {
        self.shown().len() as u64 - 1
    }

    /// Number of transactions up to and including a height.
    pub(crate) fn count_at(&self, height: u64) -> u64 {
        self.shown().iter().take(height as usize + 1).map(|block| block.txs.len() as u64).sum()
    }

    pub(crate) fn block(&self, height: u64) -> Option<BlockWithHashes> {
        self.shown().get(height as usize).map(|block| self.show(height, block))
    }

    pub(crate) fn block_by_hash(&self, hash: H256) -> Option<BlockWithHashes> {
        let canonical = self.shown().iter().position(|block| block.hash == hash);
        let canonical = canonical.map(|height| self.show(height as u64, &self.shown()[height]));
        canonical.or_else(|| self.replaced.get(&hash).map(|(height, block)| self.show(*height, block)))
    }

    /// Whether it is mined or in the mempool.
    pub(crate) fn has(&self, hash: H256) -> bool {
        self.pool.iter().any(|tx| tx.hash == hash) || self.receipt(hash).is_some()
    }

    pub(crate) fn receipt(&self, hash: H256) -> Option<Receipt> {
        if self.forgets || self.forges {
            return None;
        }
        let before = |height: usize, index: usize| {
            let below = self.shown()[..height].iter().flat_map(|block| &block.txs);
            below.chain(&self.shown()[height].txs[..index]).copied()
        };
        self.shown().iter().enumerate().find_map(|(height, block)| {
            let index = block.txs.iter().position(|tx| tx.hash == hash)?;
            Some(Receipt {
                tx_hash: hash,
                block_number: height as u64,
                block_hash: block.hash,
                transaction_index: index as u64,
                succeeded: self.executes(block.txs[index].value, before(height, index), true),
                gas_used: U256::from(21_000),
                effective_gas_price: None,
                contract_address: None,
            })
        })
    }

    /// `None`: unknown block.
    pub(crate) fn count_at_hash(&self, hash: H256) -> Option<u64> {
        let height = self.shown().iter().position(|block| block.hash == hash)?;
        Some(self.count_at(height as u64))
    }

    pub(crate) fn sender_in_blocks(&self, blocks: &[BlockId]) -> SenderInBlocks {
        let mut found = SenderInBlocks::default();
        for block in blocks {
            match self.shown().iter().find(|shown| shown.hash == block.hash) {
                Some(shown) => found.proved.extend(shown.txs.iter().map(|tx| MinedTx {
                    tx_hash: if self.forges { H256(keccak256(tx.hash)) } else { tx.hash },
                    nonce: tx.nonce,
                    block: *block,
                })),
                None => found.unshown.push(block.number),
            }
        }
        found
    }

    fn show(&self, number: u64, block: &Block) -> BlockWithHashes {
        BlockWithHashes {
            block: BlockRef { number, hash: block.hash, parent: block.parent },
            base_fee_per_gas: Some(self.base_fee.into()),
            gas_limit: Some(BLOCK_GAS),
            tx_hashes: block.txs.iter().map(|tx| tx.hash).collect(),
        }
    }
}
