//! Finds the transaction that consumed the nonce of an open intent: one of its own attempts, or an external
//! transaction.
//!
//! The evidence is the transaction itself, in a canonical block. A missing receipt proves nothing: nodes lag, prune
//! their index and resync. So the blocks between two transaction counts are read from any node that has them, and the
//! sender of each transaction is verified by its signature. This module only collects evidence; the caller decides
//! what follows.

use std::collections::HashSet;
use std::ops::RangeInclusive;

use gapless_chain::{BlockId, MinedTx};
use gapless_domain::{H256, Nonce, Receipt};

use super::track;
use crate::lane::Lane;

/// Blocks read in one step. The lane does nothing else meanwhile.
const MAX_BLOCKS_PER_STEP: usize = 64;
/// In ranges of this many blocks or more, historical states are queried first to find the block.
const LONG_RANGE: u64 = 512;

/// What consumed a nonce.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Consumer {
    /// No known canonical block counts it as consumed.
    NotConsumed,
    Ours(Receipt),
    /// One of our attempts is in a canonical block, but no node returns its receipt.
    OursWithoutReceipt(MinedTx),
    /// An external transaction signed with the submitter's key. It has consequences only once it is final.
    External {
        tx: MinedTx,
        is_final: bool,
    },
    /// It is consumed, but the transaction was not found. Holds the reason.
    Unknown(String),
}

/// The blocks searched so far. Dropped with the lane, and when every consumed nonce is explained.
#[derive(Debug, Default)]
pub(crate) struct BlockSearch {
    read: HashSet<H256>,
    proved: Vec<MinedTx>,
    unproved: Vec<MinedTx>,
    /// The blocks were read once without a result: from now on every node is queried.
    every_node: bool,
}

impl BlockSearch {
    /// Adds transactions found in a search, or named by an operator and verified.
    pub(super) fn add(&mut self, proved: Vec<MinedTx>, unproved: Vec<MinedTx>) {
        for (all, more) in [(&mut self.proved, proved), (&mut self.unproved, unproved)] {
            for tx in more {
                if !all.contains(&tx) {
                    all.push(tx);
                }
            }
        }
    }
}

pub(super) async fn find_consumer(lane: &mut Lane, index: usize) -> Consumer {
    let tx = &lane.rows.open[index];
    let (nonce, hashes) = (tx.intent.nonce, tx.hashes());
    if let Some(receipt) = receipt(lane, &hashes, None).await {
        return Consumer::Ours(receipt);
    }
    if let Some(known) = already_found(lane, nonce, &hashes).await {
        return known;
    }
    let bounds = lane.key.evidence().bounds;
    let Some(above) = bounds.above.filter(|above| above.count > nonce.0) else {
        return Consumer::NotConsumed;
    };
    // On a shared key a vacant nonce may be assigned after higher ones were mined: there is no lower bound.
    let range = bounds.range(nonce).filter(|_| !lane.sharing.enabled);
    let blocks = match range {
        Some((first, last)) if last - first < LONG_RANGE => first..=last,
        _ => match lane.chain.connector.block_of_nonce(lane.address(), nonce.0, above.block).await {
            Ok(Some(block)) => block..=block,
            found => {
                let why = match found {
                    Err(error) => error.to_string(),
                    Ok(_) => "historical states do not match the transaction counts".to_owned(),
                };
                // The newest blocks are the most likely: a consumed nonce is noticed at the next send.
                match range {
                    Some((_, last)) => (last + 1).saturating_sub(LONG_RANGE)..=last,
                    None => return Consumer::Unknown(format!("no node shows in which block ({why})")),
                }
            }
        },
    };
    let not_found = read_blocks(lane, blocks).await;
    match already_found(lane, nonce, &hashes).await {
        Some(known) => known,
        None => Consumer::Unknown(not_found),
    }
}

/// The consumer of the nonce, if it is in the blocks read so far.
async fn already_found(lane: &Lane, nonce: Nonce, hashes: &[H256]) -> Option<Consumer> {
    let search = &lane.key.search;
    let at_nonce = |all: &[MinedTx]| -> Vec<MinedTx> {
        let canonical = |tx: &&MinedTx| tx.nonce == nonce.0 && !is_replaced(lane, tx.block);
        all.iter().filter(canonical).copied().collect()
    };
    let (proved, unproved) = (at_nonce(&search.proved), at_nonce(&search.unproved));
    // A matching hash needs no signature check: it identifies our own bytes.
    if let Some(ours) = proved.iter().chain(&unproved).find(|tx| hashes.contains(&tx.tx_hash)) {
        let receipt = receipt(lane, hashes, Some(ours.block)).await;
        return Some(receipt.map_or(Consumer::OursWithoutReceipt(*ours), Consumer::Ours));
    }
    if let Some(tx) = proved.first() {
        return Some(Consumer::External { tx: *tx, is_final: is_final(lane, tx.block).await });
    }
    unproved.first().map(|tx| {
        let (hash, block) = (tx.tx_hash, tx.block.number);
        Consumer::Unknown(format!(
            "block {block} has transaction {hash:#x} at this nonce, but its signature cannot be verified"
        ))
    })
}

async fn receipt(lane: &Lane, hashes: &[H256], block: Option<BlockId>) -> Option<Receipt> {
    let found = lane.chain.watcher.receipts().of_any_node(hashes, block).await;
    found.unwrap_or_default().into_iter().find(|receipt| {
        let block = BlockId { number: receipt.block_number, hash: receipt.block_hash };
        !is_replaced(lane, block)
    })
}

pub(super) fn is_replaced(lane: &Lane, block: BlockId) -> bool {
    lane.chain.watcher.has_replaced(block) == Some(true)
}

/// Whether a block is final by the configured depth or the chain's own finality, and canonical at its height.
pub(super) async fn is_final(lane: &Lane, block: BlockId) -> bool {
    let deep = lane.chain.watcher.final_height().is_some_and(|height| height >= block.number);
    deep && matches!(track::canonical_hash(lane, block.number).await, Ok(Some(hash)) if hash == block.hash)
}

/// Reads blocks that were not read yet, newest first. Returns the reason to report if the nonce is not found.
async fn read_blocks(lane: &mut Lane, blocks: RangeInclusive<u64>) -> String {
    let (first, last) = (*blocks.start(), *blocks.end());
    let (mut unread, mut unknown, mut left) = (Vec::new(), Vec::new(), 0);
    for number in blocks.rev() {
        if unread.len() >= MAX_BLOCKS_PER_STEP {
            left += 1;
            continue;
        }
        match track::canonical_hash(lane, number).await {
            Ok(Some(hash)) if !lane.key.search.read.contains(&hash) => unread.push(BlockId { number, hash }),
            Ok(Some(_)) => {}
            Ok(None) | Err(_) => unknown.push(number),
        }
    }
    let every_node = lane.key.search.every_node;
    let found = lane.chain.connector.sender_in_blocks(lane.address(), &unread, every_node).await;
    unknown.extend(&found.unshown);
    let search = &mut lane.key.search;
    let read = unread.iter().filter(|block| !found.unshown.contains(&block.number));
    search.read.extend(read.map(|block| block.hash));
    search.add(found.proved, found.unproved);
    if let Some(one) = unknown.first() {
        return format!("no node shows block {one} with its transactions ({} blocks missing)", unknown.len());
    }
    if left > 0 {
        return format!("blocks {first} to {last} are being searched, {left} remaining");
    }
    // One node may be wrong: the next search queries every node.
    search.every_node = true;
    search.read.clear();
    format!("no transaction with this nonce was found in blocks {first} to {last}")
}
