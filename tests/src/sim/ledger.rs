//! A chain of one account, in memory: a pool, blocks, forks, and a view of it that may lag.

mod view;

use std::collections::{HashMap, HashSet};

use ethers_core::types::transaction::eip2718::TypedTransaction;
use ethers_core::types::{Address, Bytes, H256, U256};
use ethers_core::utils::keccak256;
use ethers_core::utils::rlp::Rlp;

use super::dice::Dice;
pub(super) use view::Backend;

pub(super) const BASE_FEE: u64 = 1_000_000_000;

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

/// What a contract does with a transaction of this value, by its tens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Succeeds,
    /// It is estimated well, and reverts when it is mined.
    RevertsLate,
    Reverts,
    /// It reverts on a state without another one, which `Ledger::needs` names.
    Needs,
}

impl Fate {
    pub(super) fn of(value: u64) -> Fate {
        match value / 10 {
            4 => Fate::RevertsLate,
            6 => Fate::Reverts,
            7 => Fate::Needs,
            _ => Fate::Succeeds,
        }
    }
}

/// How a node answers who asks for an estimate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Estimates {
    Answered,
    /// In words that no class has.
    Refused,
    /// It would not execute it, for a reason that may be its own.
    Unwilling,
    /// Broken on purpose: everything reverts, on every state.
    Reverted,
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
    pub(super) estimates: Estimates,
    /// By value: the value of what has to be mined before.
    pub(super) needs: HashMap<u64, u64>,
    /// A second backend behind the same address: every question is answered by one of the two.
    pub(super) other: Option<Backend>,
    /// Which of them answers.
    coin: Dice,
    /// What the other one shows, while it answers.
    view: Option<Vec<Block>>,
    /// Broken on purpose: blocks show our own transactions as somebody else's, and no receipt is found.
    pub(super) forges: bool,
}

impl Ledger {
    pub(super) fn new(from: Address, seed: u64) -> Ledger {
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
            estimates: Estimates::Answered,
            needs: HashMap::new(),
            other: None,
            coin: Dice::new(!seed),
            view: None,
            forges: false,
        }
    }

    /// Takes signed bytes, or answers in a node's words why not.
    pub(super) fn take(&mut self, raw: &Bytes) -> Result<(), &'static str> {
        let tx = self.read(raw);
        if tx.nonce < self.shown_count() {
            return Err("nonce too low");
        }
        if tx.nonce < self.count() {
            // The backend that is asked does not know yet that it is mined: its pool takes it, and that leads to nothing.
            self.arrived.push(tx);
            return Ok(());
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
        self.send_outside(nonce);
        let was_broke = std::mem::take(&mut self.is_broke);
        self.mine(1);
        self.is_broke = was_broke;
        nonce
    }

    /// Somebody else uses the key: a transaction waits in the pool, behind all that could be mined.
    pub(super) fn queue_outside(&mut self) -> u64 {
        let nonce = self.pending_count();
        self.send_outside(nonce);
        nonce
    }

    fn send_outside(&mut self, nonce: u64) {
        self.made += 1;
        let hash = H256::from_low_u64_be(self.made);
        let price = U256::from(self.base_fee) * 100;
        self.foreign.insert(hash);
        self.pool.retain(|tx| tx.nonce != nonce);
        self.pool.push(Tx { hash, nonce, value: 0, tip: price, cap: price });
    }

    /// Somebody else's newest transaction that is mined, and its block.
    pub(super) fn newest_external(&self) -> Option<(H256, u64)> {
        self.blocks.iter().enumerate().rev().find_map(|(height, block)| {
            let tx = block.txs.iter().rev().find(|tx| self.is_external(tx))?;
            Some((tx.hash, height as u64))
        })
    }

    /// Where it is mined.
    pub(super) fn block_of(&self, hash: H256) -> Option<u64> {
        let holds = |block: &Block| block.txs.iter().any(|tx| tx.hash == hash);
        self.blocks.iter().position(holds).map(|height| height as u64)
    }

    /// Whether somebody else ever used the key.
    pub(super) fn was_used_outside(&self) -> bool {
        !self.foreign.is_empty()
    }

    pub(super) fn is_external(&self, tx: &Tx) -> bool {
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

    /// The blocks as they are, whatever is shown.
    pub(super) fn chain(&self) -> Vec<Tx> {
        self.blocks.iter().flat_map(|block| block.txs.iter().copied()).collect()
    }

    pub(super) fn has_block(&self, hash: &str) -> bool {
        self.blocks.iter().any(|block| format!("{:#x}", block.hash) == hash)
    }

    /// Whether it did what it was to do, on the chain as it is.
    pub(super) fn succeeded(&self, tx: &Tx) -> bool {
        let before = self.chain().into_iter().take_while(|mined| mined.hash != tx.hash);
        self.executes(tx.value, before, true)
    }

    /// What a contract says after these.
    fn executes(&self, value: u64, mut before: impl Iterator<Item = Tx>, is_mined: bool) -> bool {
        match Fate::of(value) {
            Fate::Succeeds => true,
            Fate::RevertsLate => !is_mined,
            Fate::Reverts => false,
            Fate::Needs => self.needs.get(&value).is_none_or(|needed| before.any(|tx| tx.value == *needed)),
        }
    }

    pub(super) fn arrived(&self) -> &[Tx] {
        &self.arrived
    }

    fn count(&self) -> u64 {
        self.blocks.iter().map(|block| block.txs.len() as u64).sum()
    }

    /// All is well with it again.
    pub(super) fn mend(&mut self) {
        (self.lag, self.count_lag, self.trouble) = (0, 0, None);
        (self.forgets, self.is_broke, self.base_fee) = (false, false, BASE_FEE);
        self.other = None;
        if self.estimates != Estimates::Reverted {
            self.estimates = Estimates::Answered;
        }
    }
}
