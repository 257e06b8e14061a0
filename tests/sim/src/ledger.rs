//! An in-memory chain of one account: mempool, blocks, forks, and a view that may lag.

mod view;

use std::collections::{HashMap, HashSet};

use ethers_core::types::transaction::eip2718::TypedTransaction;
use ethers_core::types::{Address, Bytes, H256, U256};
use ethers_core::utils::keccak256;
use ethers_core::utils::rlp::Rlp;

use super::rng::SeededRng;
pub(crate) use view::Backend;

pub(crate) const BASE_FEE: u64 = 1_000_000_000;

/// A transaction in the mempool or on chain.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tx {
    pub(crate) hash: H256,
    pub(crate) nonce: u64,
    /// Identifies the intent: values are unique. 0 for a placeholder.
    pub(crate) value: u64,
    tip: U256,
    cap: U256,
}

/// How the contract executes a transaction, by the tens digit of its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Succeeds,
    /// The estimate succeeds, and it reverts when it is mined.
    RevertsLate,
    Reverts,
    /// It reverts unless another transaction (`Ledger::needs`) was executed before.
    Needs,
}

impl Fate {
    pub(crate) fn of(value: u64) -> Fate {
        match value / 10 {
            4 => Fate::RevertsLate,
            6 => Fate::Reverts,
            7 => Fate::Needs,
            _ => Fate::Succeeds,
        }
    }
}

/// How a node responds to estimates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Estimates {
    Answered,
    /// With an error message of no known class.
    Refused,
    /// The node declines to execute it, for a reason of its own.
    Unwilling,
    /// Intentional defect: everything reverts, on every state.
    Reverted,
}

#[derive(Clone, Debug)]
struct Block {
    hash: H256,
    parent: H256,
    txs: Vec<Tx>,
}

#[derive(Debug)]
pub(crate) struct Ledger {
    from: Address,
    /// By height; the first is the genesis.
    blocks: Vec<Block>,
    replaced: HashMap<H256, (u64, Block)>,
    pool: Vec<Tx>,
    /// Everything that ever reached the mempool.
    arrived: Vec<Tx>,
    made: u64,
    /// Number of newest blocks that are hidden.
    pub(crate) lag: usize,
    /// The count at `latest` lags by this many blocks behind the shown blocks.
    pub(crate) count_lag: u64,
    /// No index: mined transactions are not found by hash.
    pub(crate) forgets: bool,
    /// The balance is zero: no transaction is accepted or mined.
    pub(crate) is_unfunded: bool,
    pub(crate) base_fee: u64,
    /// Hashes of external transactions of the same key.
    external: HashSet<H256>,
    /// Calls of this kind (`*`: all) are rejected with a temporary error.
    pub(crate) outage: Option<&'static str>,
    pub(crate) estimates: Estimates,
    /// By value: the value of the transaction that must be mined before.
    pub(crate) needs: HashMap<u64, u64>,
    /// A second backend behind the same address; each call goes to one of the two.
    pub(crate) other: Option<Backend>,
    /// Chooses the backend of a call.
    coin: SeededRng,
    /// The blocks of the second backend, during its call.
    view: Option<Vec<Block>>,
    /// Intentional defect: blocks show our transactions as external ones, and receipts are not found.
    pub(crate) forges: bool,
}

impl Ledger {
    pub(crate) fn new(from: Address, seed: u64) -> Ledger {
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
            is_unfunded: false,
            base_fee: BASE_FEE,
            external: HashSet::new(),
            outage: None,
            estimates: Estimates::Answered,
            needs: HashMap::new(),
            other: None,
            coin: SeededRng::new(!seed),
            view: None,
            forges: false,
        }
    }

    /// Accepts a signed transaction, or returns the error message of a node.
    pub(crate) fn take(&mut self, raw: &Bytes) -> Result<(), &'static str> {
        let tx = self.read(raw);
        if tx.nonce < self.shown_count() {
            return Err("nonce too low");
        }
        if tx.nonce < self.count() {
            // The lagging backend has not seen that the nonce is consumed: it accepts the transaction without effect.
            self.arrived.push(tx);
            return Ok(());
        }
        if self.pool.iter().any(|known| known.hash == tx.hash) {
            return Err("already known");
        }
        if self.is_unfunded {
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
        let (tip, cap) = match &tx {
            TypedTransaction::Eip1559(tx) => (tx.max_priority_fee_per_gas, tx.max_fee_per_gas),
            other => (other.gas_price(), other.gas_price()),
        };
        Tx {
            hash: H256(keccak256(raw)),
            nonce: tx.nonce().copied().unwrap_or_default().as_u64(),
            value: tx.value().copied().unwrap_or_default().as_u64(),
            tip: tip.unwrap_or_default(),
            cap: cap.unwrap_or_default(),
        }
    }

    /// Mines a block with up to `most` transactions that pay the base fee. Returns their number.
    pub(crate) fn mine(&mut self, most: usize) -> usize {
        let mut txs = Vec::new();
        let mut next = self.count();
        let base_fee = U256::from(self.base_fee);
        while txs.len() < most
            && !self.is_unfunded
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

    /// Mines an external transaction at the next nonce; pending transactions with this nonce can never be mined.
    pub(crate) fn use_outside(&mut self) -> u64 {
        let nonce = self.count();
        self.send_outside(nonce);
        let was_unfunded = std::mem::take(&mut self.is_unfunded);
        self.mine(1);
        self.is_unfunded = was_unfunded;
        nonce
    }

    /// Adds an external transaction to the mempool, at the pending count.
    pub(crate) fn queue_outside(&mut self) -> u64 {
        let nonce = self.pending_count();
        self.send_outside(nonce);
        nonce
    }

    fn send_outside(&mut self, nonce: u64) {
        self.made += 1;
        let hash = H256::from_low_u64_be(self.made);
        let price = U256::from(self.base_fee) * 100;
        self.external.insert(hash);
        self.pool.retain(|tx| tx.nonce != nonce);
        self.pool.push(Tx { hash, nonce, value: 0, tip: price, cap: price });
    }

    /// The newest mined external transaction, and its block.
    pub(crate) fn newest_external(&self) -> Option<(H256, u64)> {
        self.blocks.iter().enumerate().rev().find_map(|(height, block)| {
            let tx = block.txs.iter().rev().find(|tx| self.is_external(tx))?;
            Some((tx.hash, height as u64))
        })
    }

    /// The block of a mined transaction.
    pub(crate) fn block_of(&self, hash: H256) -> Option<u64> {
        let holds = |block: &Block| block.txs.iter().any(|tx| tx.hash == hash);
        self.blocks.iter().position(holds).map(|height| height as u64)
    }

    /// Whether there ever was an external transaction.
    pub(crate) fn was_used_outside(&self) -> bool {
        !self.external.is_empty()
    }

    pub(crate) fn is_external(&self, tx: &Tx) -> bool {
        self.external.contains(&tx.hash)
    }

    /// Replaces the newest blocks by one more, all empty. Their transactions return to the mempool, or are dropped.
    pub(crate) fn reorg(&mut self, depth: usize, keep: bool) -> usize {
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

    /// Empties the mempool. Returns the number of dropped transactions.
    pub(crate) fn evict(&mut self) -> usize {
        let evicted = self.pool.len();
        self.pool.clear();
        evicted
    }

    /// All mined transactions, independent of the view.
    pub(crate) fn chain(&self) -> Vec<Tx> {
        self.blocks.iter().flat_map(|block| block.txs.iter().copied()).collect()
    }

    pub(crate) fn has_block(&self, hash: &str) -> bool {
        self.blocks.iter().any(|block| format!("{:#x}", block.hash) == hash)
    }

    /// Whether a mined transaction succeeded.
    pub(crate) fn succeeded(&self, tx: &Tx) -> bool {
        let before = self.chain().into_iter().take_while(|mined| mined.hash != tx.hash);
        self.executes(tx.value, before, true)
    }

    /// Whether it succeeds after these transactions.
    fn executes(&self, value: u64, mut before: impl Iterator<Item = Tx>, is_mined: bool) -> bool {
        match Fate::of(value) {
            Fate::Succeeds => true,
            Fate::RevertsLate => !is_mined,
            Fate::Reverts => false,
            Fate::Needs => self.needs.get(&value).is_none_or(|needed| before.any(|tx| tx.value == *needed)),
        }
    }

    pub(crate) fn arrived(&self) -> &[Tx] {
        &self.arrived
    }

    fn count(&self) -> u64 {
        self.blocks.iter().map(|block| block.txs.len() as u64).sum()
    }

    /// Ends all faults.
    pub(crate) fn clear_faults(&mut self) {
        (self.lag, self.count_lag, self.outage) = (0, 0, None);
        (self.forgets, self.is_unfunded, self.base_fee) = (false, false, BASE_FEE);
        self.other = None;
        if self.estimates != Estimates::Reverted {
            self.estimates = Estimates::Answered;
        }
    }
}
