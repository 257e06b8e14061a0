//! Who consumed a nonce of an open intent: one of its own attempts, or a transaction from elsewhere.
//!
//! Both are shown by name, in a canonical block. That no node shows one of ours proves nothing: nodes lag, prune their index,
//! and start anew. So the blocks between two counts are read from any node that has them, and what they hold is proved by its
//! signature. Whoever asks decides what follows; here nothing is changed but what was read.

use std::collections::HashSet;
use std::ops::RangeInclusive;

use gapless::chain::{BlockId, MinedTx};
use gapless::domain::{H256, Nonce, Receipt};

use super::track;
use crate::lane::Lane;

/// Blocks read at one look. A look keeps the lane from its other work.
const AT_ONCE: usize = 64;
/// Over a longer distance the nodes' old states are asked first.
const FAR: u64 = 512;

/// What became of a nonce.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Consumer {
    /// No canonical block is known to count it as consumed.
    Nobody,
    Ours(Receipt),
    /// One of ours is in a canonical block, and no node shows its receipt.
    OursWithoutReceipt(MinedTx),
    /// Another transaction that the submitter's key signed. It ends something only where it is final.
    Other {
        tx: MinedTx,
        is_final: bool,
    },
    /// It is consumed, and nobody can say by what: why not.
    Unknown(String),
}

/// What was read of the blocks so far. Forgotten with the lane, and when everything is explained.
#[derive(Debug, Default)]
pub(crate) struct Reading {
    read: HashSet<H256>,
    proved: Vec<MinedTx>,
    unproved: Vec<MinedTx>,
    /// The blocks were read once and held nothing: from now on every node is asked.
    every_node: bool,
}

impl Reading {
    /// Blocks that an operator named, or that were read for another reason.
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

pub(super) async fn who_consumed(lane: &mut Lane, index: usize) -> Consumer {
    let tx = &lane.open[index];
    let (nonce, hashes) = (tx.intent.nonce, tx.hashes());
    if let Some(receipt) = receipt(lane, &hashes, None).await {
        return Consumer::Ours(receipt);
    }
    if let Some(known) = shown(lane, nonce, &hashes).await {
        return known;
    }
    let bounds = lane.key.evidence.bounds;
    let Some(above) = bounds.above.filter(|above| above.count > nonce.0) else { return Consumer::Nobody };
    // On a shared key a nonce that others left may be given after higher ones were mined: no lower bound holds for it.
    let range = bounds.range(nonce).filter(|_| !lane.sharing.enabled);
    let blocks = match range {
        Some((first, last)) if last - first < FAR => first..=last,
        _ => match lane.chain.connector.block_of_nonce(lane.address(), nonce.0, above.block).await {
            Ok(Some(block)) => block..=block,
            found => {
                let why = match found {
                    Err(error) => error.to_string(),
                    Ok(_) => "their old states do not fit their counts".to_owned(),
                };
                // The newest are the likeliest: a consumed nonce is noticed when it is used again.
                match range {
                    Some((_, last)) => (last + 1).saturating_sub(FAR)..=last,
                    None => return Consumer::Unknown(format!("no node shows in which block ({why})")),
                }
            }
        },
    };
    let unread = read(lane, blocks).await;
    match shown(lane, nonce, &hashes).await {
        Some(known) => known,
        None => Consumer::Unknown(unread),
    }
}

/// What the blocks that were read say of the nonce.
async fn shown(lane: &Lane, nonce: Nonce, hashes: &[H256]) -> Option<Consumer> {
    let reading = &lane.key.reading;
    let at_nonce = |all: &[MinedTx]| -> Vec<MinedTx> {
        let canonical = |tx: &&MinedTx| tx.nonce == nonce.0 && !is_replaced(lane, tx.block);
        all.iter().filter(canonical).copied().collect()
    };
    let (proved, unproved) = (at_nonce(&reading.proved), at_nonce(&reading.unproved));
    // A hash that is ours needs no other proof: nobody else can have made those bytes.
    if let Some(ours) = proved.iter().chain(&unproved).find(|tx| hashes.contains(&tx.tx_hash)) {
        let receipt = receipt(lane, hashes, Some(ours.block)).await;
        return Some(receipt.map_or(Consumer::OursWithoutReceipt(*ours), Consumer::Ours));
    }
    if let Some(tx) = proved.first() {
        return Some(Consumer::Other { tx: *tx, is_final: is_final(lane, tx.block).await });
    }
    unproved.first().map(|tx| {
        let (hash, block) = (tx.tx_hash, tx.block.number);
        Consumer::Unknown(format!(
            "block {block} shows transaction {hash:#x} there, and its signature cannot be checked"
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

/// Whether a block is deep enough, or below what the chain itself calls final, and the canonical one at its height.
pub(super) async fn is_final(lane: &Lane, block: BlockId) -> bool {
    let deep = lane.chain.watcher.final_height().is_some_and(|height| height >= block.number);
    deep && matches!(track::canonical_hash(lane, block.number).await, Ok(Some(hash)) if hash == block.hash)
}

/// Reads blocks that were not read yet, the newest first. Answers why nothing may have been found.
async fn read(lane: &mut Lane, blocks: RangeInclusive<u64>) -> String {
    let (first, last) = (*blocks.start(), *blocks.end());
    let (mut named, mut unknown, mut left) = (Vec::new(), Vec::new(), 0);
    for number in blocks.rev() {
        if named.len() >= AT_ONCE {
            left += 1;
            continue;
        }
        match track::canonical_hash(lane, number).await {
            Ok(Some(hash)) if !lane.key.reading.read.contains(&hash) => named.push(BlockId { number, hash }),
            Ok(Some(_)) => {}
            Ok(None) | Err(_) => unknown.push(number),
        }
    }
    let every_node = lane.key.reading.every_node;
    let found = lane.chain.connector.sender_in_blocks(lane.address(), &named, every_node).await;
    unknown.extend(&found.unshown);
    let reading = &mut lane.key.reading;
    let read = named.iter().filter(|block| !found.unshown.contains(&block.number));
    reading.read.extend(read.map(|block| block.hash));
    reading.add(found.proved, found.unproved);
    if let Some(one) = unknown.first() {
        return format!("no node shows block {one} with its transactions ({} blocks in all)", unknown.len());
    }
    if left > 0 {
        return format!("blocks {first} to {last} are being read, {left} are left");
    }
    // What one node shows may be wrong: all of them are read the next time.
    reading.every_node = true;
    reading.read.clear();
    format!("no transaction with it is in blocks {first} to {last}, as nodes show them")
}
