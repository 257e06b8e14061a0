//! State of the chain: blocks, transactions by sender, and the mempool.

use std::collections::HashMap;
use std::time::Instant;

use ethers_core::types::{Address, H256};
use ethers_core::utils::keccak256;

use super::transaction::Transaction;

#[derive(Clone, Debug)]
pub(super) struct Block {
    pub(super) number: u64,
    pub(super) hash: H256,
    pub(super) parent: H256,
    pub(super) transactions: Vec<Transaction>,
}

/// Block and index of a transaction.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) block: usize,
    pub(super) index: usize,
}

#[derive(Debug)]
pub(super) struct Ledger {
    pub(super) chain_id: u64,
    blocks: Vec<Block>,
    by_hash: HashMap<H256, usize>,
    places: HashMap<H256, Place>,
    /// By sender, the block of each nonce; nonces start at 0 without gaps.
    mined_in: HashMap<Address, Vec<u64>>,
    pool: Vec<Transaction>,
    /// Number of pending transactions by sender.
    pooled: HashMap<Address, u64>,
    sends: Vec<(Instant, Address)>,
    refused: Option<String>,
}

impl Ledger {
    pub(super) fn new(chain_id: u64) -> Ledger {
        let hash = block_hash(0, H256::zero());
        let genesis = Block { number: 0, hash, parent: H256::zero(), transactions: Vec::new() };
        Ledger {
            chain_id,
            blocks: vec![genesis],
            by_hash: HashMap::from([(hash, 0)]),
            places: HashMap::new(),
            mined_in: HashMap::new(),
            pool: Vec::new(),
            pooled: HashMap::new(),
            sends: Vec::new(),
            refused: None,
        }
    }

    /// Accepts a transaction with the next nonce of its sender; otherwise returns the error message of a node.
    pub(super) fn take(&mut self, transaction: Transaction) -> Result<(), &'static str> {
        self.sends.push((Instant::now(), transaction.from));
        let next = self.count(&transaction.from) + self.pooled.get(&transaction.from).copied().unwrap_or(0);
        if transaction.nonce < next {
            let known = self.places.contains_key(&transaction.hash)
                || self.pool.iter().any(|waiting| waiting.hash == transaction.hash);
            return Err(if known { "already known" } else { "nonce too low" });
        }
        if transaction.nonce > next {
            // Workers never send ahead of an unsent nonce: this is a defect.
            self.refuse(format!("nonce {} of {:#x}, {next} is next", transaction.nonce, transaction.from));
            return Err("nonce too high");
        }
        *self.pooled.entry(transaction.from).or_default() += 1;
        self.pool.push(transaction);
        Ok(())
    }

    pub(super) fn refuse(&mut self, why: String) {
        self.refused.get_or_insert(why);
    }

    /// A transaction that should never have been sent, if any.
    pub(super) fn refused(&self) -> Option<&String> {
        self.refused.as_ref()
    }

    pub(super) fn has_waiting(&self) -> bool {
        !self.pool.is_empty()
    }

    /// Mines all pending transactions in one block.
    pub(super) fn mine(&mut self) {
        let (number, parent) = (self.blocks.len(), self.head().hash);
        let hash = block_hash(number as u64, parent);
        let transactions = std::mem::take(&mut self.pool);
        self.pooled.clear();
        for (index, transaction) in transactions.iter().enumerate() {
            self.places.insert(transaction.hash, Place { block: number, index });
            self.mined_in.entry(transaction.from).or_default().push(number as u64);
        }
        self.by_hash.insert(hash, number);
        self.blocks.push(Block { number: number as u64, hash, parent, transactions });
    }

    pub(super) fn head(&self) -> &Block {
        self.blocks.last().expect("there is always a genesis")
    }

    pub(super) fn block(&self, number: u64) -> Option<&Block> {
        self.blocks.get(usize::try_from(number).ok()?)
    }

    pub(super) fn block_by_hash(&self, hash: &H256) -> Option<&Block> {
        self.blocks.get(*self.by_hash.get(hash)?)
    }

    pub(super) fn place(&self, hash: &H256) -> Option<(&Block, usize)> {
        let place = self.places.get(hash)?;
        Some((self.blocks.get(place.block)?, place.index))
    }

    pub(super) fn count(&self, sender: &Address) -> u64 {
        self.mined_in.get(sender).map_or(0, |blocks| blocks.len() as u64)
    }

    pub(super) fn count_at(&self, sender: &Address, block: u64) -> u64 {
        self.mined_in.get(sender).map_or(0, |blocks| blocks.partition_point(|at| *at <= block) as u64)
    }

    pub(super) fn count_with_pool(&self, sender: &Address) -> u64 {
        self.count(sender) + self.pooled.get(sender).copied().unwrap_or(0)
    }

    pub(super) fn mined(&self) -> usize {
        self.places.len()
    }

    /// All sends with their times.
    pub(super) fn sends(&self) -> &[(Instant, Address)] {
        &self.sends
    }
}

fn block_hash(number: u64, parent: H256) -> H256 {
    let mut text = b"gapless benchmark chain".to_vec();
    text.extend(number.to_be_bytes());
    text.extend(parent.as_bytes());
    H256(keccak256(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn transaction(sender: u8, nonce: u64) -> Transaction {
        let hash = H256(keccak256([sender, nonce as u8]));
        Transaction { hash, from: Address::repeat_byte(sender), nonce }
    }

    #[test]
    fn nonces_are_taken_in_order_and_counted_by_block() {
        let mut ledger = Ledger::new(1);
        let sender = Address::repeat_byte(1);
        ledger.take(transaction(1, 0)).unwrap();
        ledger.take(transaction(1, 1)).unwrap();
        assert_eq!(ledger.take(transaction(1, 1)), Err("already known"));
        assert_eq!((ledger.count(&sender), ledger.count_with_pool(&sender)), (0, 2));
        ledger.mine();
        ledger.take(transaction(1, 2)).unwrap();
        ledger.mine();
        assert_eq!((ledger.count(&sender), ledger.count_at(&sender, 1), ledger.mined()), (3, 2, 3));
        assert_eq!(
            ledger.place(&transaction(1, 1).hash).map(|(block, index)| (block.number, index)),
            Some((1, 1))
        );
        assert!(ledger.refused().is_none());
        assert_eq!(ledger.take(transaction(1, 9)), Err("nonce too high"));
        assert!(ledger.refused().is_some());
        assert_eq!(ledger.head().parent, ledger.block(1).unwrap().hash);
    }
}
