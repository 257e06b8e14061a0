//! A chain of one account, in memory: a pool, blocks, forks, and a view of it that may lag.

use std::collections::{HashMap, HashSet};

use ethers_core::types::transaction::eip2718::TypedTransaction;
use ethers_core::types::{Address, Bytes, H256, U256};
use ethers_core::utils::keccak256;
use ethers_core::utils::rlp::Rlp;
use gapless::chain::{BlockId, BlockWithHashes, MinedTx, SenderInBlocks};
use gapless::domain::{BlockRef, Receipt};

pub(super) const BASE_FEE: u64 = 1_000_000_000;
const BLOCK_GAS: u64 = 30_000_000;

/// What the pool knows of a transaction.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tx {
    pub(super) hash: H256,
    pub(super) nonce: u64,
    /// Tells which intent it is of: no two have the same. A placeholder moves nothing.
    pub(super) value: u64,
    tip: U256,
    cap: U256,
}

impl Tx {
    /// Some are mined and fail.
    pub(super) fn succeeds(&self) -> bool {
        !is_bad(self.value)
    }
}

/// Whether the transaction with this value reverts.
pub(super) fn is_bad(value: u64) -> bool {
    value / 10 == 4
}

#[derive(Clone, Debug)]
struct Block {
    hash: H256,
    parent: H256,
    txs: Vec<Tx>,
}

#[derive(Debug)]
pub(super) struct Ledger {
    from: Address,
    /// By height; the first is the genesis.
    blocks: Vec<Block>,
    replaced: HashMap<H256, (u64, Block)>,
    pool: Vec<Tx>,
    /// Everything that ever reached the pool.
    arrived: Vec<Tx>,
    made: u64,
    /// So many of the newest blocks are not shown to whoever asks.
    pub(super) lag: usize,
    /// The count at `latest` comes from a backend that is so many blocks behind the one that shows blocks.
    pub(super) count_lag: u64,
    /// There is no index: what is mined is not found by its hash.
    pub(super) forgets: bool,
    /// The account has nothing: nothing new is taken, and nothing of it is mined.
    pub(super) is_broke: bool,
    pub(super) base_fee: u64,
    /// Transactions of the same key that somebody else made.
    foreign: HashSet<H256>,
    /// Questions of this kind (`*`: all) are answered with the node's own trouble.
    pub(super) trouble: Option<&'static str>,
}

impl Ledger {
    pub(super) fn new(from: Address) -> Ledger {
        let genesis = Block { hash: H256::from_low_u64_be(1), parent: H256::zero(), txs: Vec::new() };
        Ledger {
            from,
            blocks: vec![genesis],
            replaced: HashMap::new(),
            pool: Vec::new(),
            arrived: Vec::new(),
            made: 1,
            lag: 0,
            count_lag: 0,
            forgets: false,
            is_broke: false,
            base_fee: BASE_FEE,
            foreign: HashSet::new(),
            trouble: None,
        }
    }

    /// Takes signed bytes, or answers in a node's words why not.
    pub(super) fn take(&mut self, raw: &Bytes) -> Result<(), &'static str> {
        let tx = self.read(raw);
        if tx.nonce < self.count() {
            return Err("nonce too low");
        }
        if self.pool.iter().any(|known| known.hash == tx.hash) {
            return Err("already known");
        }
        if self.is_broke {
            return Err("insufficient funds for gas * price + value");
        }
        if let Some(rival) = self.pool.iter().position(|other| other.nonce == tx.nonce) {
            let old = self.pool[rival];
            let enough = |new: U256, old: U256| new * 10 >= old * 11;
            if !enough(tx.tip, old.tip) || !enough(tx.cap, old.cap) {
                return Err("replacement transaction underpriced");
            }
            self.pool.remove(rival);
        }
        self.pool.push(tx);
        self.arrived.push(tx);
        Ok(())
    }

    fn read(&self, raw: &Bytes) -> Tx {
        let (tx, _) = TypedTransaction::decode_signed(&Rlp::new(raw)).expect("lanes send transactions");
        assert_eq!(tx.from(), Some(&self.from), "signed with another key");
        let TypedTransaction::Eip1559(tx) = tx else { panic!("the simulation asks for EIP-1559 alone") };
        Tx {
            hash: H256(keccak256(raw)),
            nonce: tx.nonce.unwrap_or_default().as_u64(),
            value: tx.value.unwrap_or_default().as_u64(),
            tip: tx.max_priority_fee_per_gas.unwrap_or_default(),
            cap: tx.max_fee_per_gas.unwrap_or_default(),
        }
    }

    /// A block with up to so many transactions: those that can be paid and offer enough.
    pub(super) fn mine(&mut self, most: usize) -> usize {
        let mut txs = Vec::new();
        let mut next = self.count();
        let base_fee = U256::from(self.base_fee);
        while txs.len() < most
            && !self.is_broke
            && let Some(found) = self.pool.iter().position(|tx| tx.nonce == next && tx.cap >= base_fee)
        {
            txs.push(self.pool.remove(found));
            next += 1;
        }
        let mined = txs.len();
        self.made += 1;
        let parent = self.blocks.last().map_or(H256::zero(), |head| head.hash);
        self.blocks.push(Block { hash: H256::from_low_u64_be(self.made), parent, txs });
        mined
    }

    /// Somebody else uses the key: the next nonce is consumed, and what waited for it can never be mined.
    pub(super) fn use_outside(&mut self) -> u64 {
        let nonce = self.count();
        self.made += 1;
        let hash = H256::from_low_u64_be(self.made);
        let price = U256::from(self.base_fee) * 100;
        self.foreign.insert(hash);
        self.pool.retain(|tx| tx.nonce != nonce);
        self.pool.push(Tx { hash, nonce, value: 0, tip: price, cap: price });
        let was_broke = std::mem::take(&mut self.is_broke);
        self.mine(1);
        self.is_broke = was_broke;
        nonce
    }

    /// Whether somebody else ever used the key.
    pub(super) fn was_used_outside(&self) -> bool {
        !self.foreign.is_empty()
    }

    pub(super) fn is_foreign(&self, tx: &Tx) -> bool {
        self.foreign.contains(&tx.hash)
    }

    /// Replaces the newest blocks by one more, all empty. What was in them is in the pool again, or nowhere.
    pub(super) fn reorg(&mut self, depth: usize, keep: bool) -> usize {
        let depth = depth.min(self.blocks.len() - 1);
        for height in (self.blocks.len() - depth..self.blocks.len()).rev() {
            if let Some(gone) = self.blocks.pop() {
                if keep {
                    self.pool.extend(&gone.txs);
                }
                self.replaced.insert(gone.hash, (height as u64, gone));
            }
        }
        for _ in 0..=depth {
            self.mine(0);
        }
        depth
    }

    /// The pool forgets.
    pub(super) fn evict(&mut self) -> usize {
        let evicted = self.pool.len();
        self.pool.clear();
        evicted
    }

    /// The pool and the blocks as they are, whatever is shown.
    pub(super) fn chain(&self) -> Vec<Tx> {
        self.blocks.iter().flat_map(|block| block.txs.iter().copied()).collect()
    }

    pub(super) fn arrived(&self) -> &[Tx] {
        &self.arrived
    }

    fn count(&self) -> u64 {
        self.blocks.iter().map(|block| block.txs.len() as u64).sum()
    }

    /// What a node says of `latest`.
    pub(super) fn latest_count(&self) -> u64 {
        self.count_at(self.head().saturating_sub(self.count_lag))
    }

    /// All is well with it again.
    pub(super) fn mend(&mut self) {
        (self.lag, self.count_lag, self.trouble) = (0, 0, None);
        (self.forgets, self.is_broke, self.base_fee) = (false, false, BASE_FEE);
    }

    fn shown(&self) -> &[Block] {
        &self.blocks[..self.blocks.len().saturating_sub(self.lag).max(1)]
    }

    pub(super) fn head(&self) -> u64 {
        self.shown().len() as u64 - 1
    }

    /// Transactions up to and with a height.
    pub(super) fn count_at(&self, height: u64) -> u64 {
        self.shown().iter().take(height as usize + 1).map(|block| block.txs.len() as u64).sum()
    }

    pub(super) fn block(&self, height: u64) -> Option<BlockWithHashes> {
        self.shown().get(height as usize).map(|block| self.show(height, block))
    }

    pub(super) fn block_by_hash(&self, hash: H256) -> Option<BlockWithHashes> {
        let canonical = self.shown().iter().position(|block| block.hash == hash);
        let canonical = canonical.map(|height| self.show(height as u64, &self.blocks[height]));
        canonical.or_else(|| self.replaced.get(&hash).map(|(height, block)| self.show(*height, block)))
    }

    /// In a block or in the pool.
    pub(super) fn has(&self, hash: H256) -> bool {
        self.pool.iter().any(|tx| tx.hash == hash) || self.receipt(hash).is_some()
    }

    pub(super) fn receipt(&self, hash: H256) -> Option<Receipt> {
        if self.forgets {
            return None;
        }
        self.shown().iter().enumerate().find_map(|(height, block)| {
            let index = block.txs.iter().position(|tx| tx.hash == hash)?;
            Some(Receipt {
                tx_hash: hash,
                block_number: height as u64,
                block_hash: block.hash,
                transaction_index: index as u64,
                succeeded: block.txs[index].succeeds(),
                gas_used: U256::from(21_000),
                effective_gas_price: None,
                contract_address: None,
            })
        })
    }

    /// `None`: it shows no such block.
    pub(super) fn count_at_hash(&self, hash: H256) -> Option<u64> {
        let height = self.shown().iter().position(|block| block.hash == hash)?;
        Some(self.count_at(height as u64))
    }

    pub(super) fn sender_in_blocks(&self, blocks: &[BlockId]) -> SenderInBlocks {
        let mut found = SenderInBlocks::default();
        for block in blocks {
            match self.shown().iter().find(|shown| shown.hash == block.hash) {
                Some(shown) => found.proved.extend(shown.txs.iter().map(|tx| MinedTx {
                    tx_hash: tx.hash,
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
