//! From "in a block" to "deep enough", and back when the block goes.

use std::time::Duration;

use gapless::chain::{BlockId, BlockTag, CallOutcome, RpcError};
use gapless::domain::finality::confirmations_news;
use gapless::domain::{
    Confirmation, Ending, ErrorCode, EventKind, FinalConfirmations, H256, Payload, Receipt, TxError, TxState,
};
use gapless::observe::metrics as m;
use gapless::store::AttemptKind;
use tokio::time::Instant;

use crate::lane::{Lane, OpenTx, StepError};
use crate::receipts::Place;

/// After a look-up that failed; doubles.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(15);

/// One of our hashes is in a canonical block. Whichever attempt it was, it decides.
pub(crate) fn included(lane: &mut Lane, receipt: Receipt) {
    let now = Instant::now();
    lane.reverts.mined_in(receipt.block_number);
    let Some(tx) = lane.open.iter_mut().find(|tx| tx.hashes().contains(&receipt.tx_hash)) else { return };
    let known = tx.intent.receipt.as_ref().is_some_and(|old| old.block_hash == receipt.block_hash);
    if known || tx.state().is_terminal() {
        tx.receipt_seen = now;
        return;
    }
    // A protected nonce that is ours after all: the protect step lifts the protection.
    lane.key.false_alarm |= tx.state() == TxState::Protect;
    let (tx_id, moved_block) = (tx.intent.tx_id, tx.intent.receipt.is_some());
    tx.mined(receipt.clone(), now);
    lane.moved = true;
    if moved_block {
        let (tx_hash, block_number) = (receipt.tx_hash, receipt.block_number);
        lane.tell(Some(tx_id), EventKind::Reorged { tx_hash, block_number, new_fork: true });
    }
    lane.tell(
        Some(tx_id),
        EventKind::ReceiptUpdated {
            tx_hash: receipt.tx_hash,
            block_number: receipt.block_number,
            succeeded: receipt.succeeded,
        },
    );
}

/// Blocks from a height on were replaced: whatever was in them has to be mined again, with the same bytes.
pub(crate) fn reorged(lane: &mut Lane, from: u64) {
    let now = Instant::now();
    let mut gone = Vec::new();
    for tx in lane.open.iter_mut().filter(|tx| tx.state() == TxState::Tracking) {
        let Some(receipt) = tx.intent.receipt.clone() else { continue };
        match lane
            .chain
            .watcher
            .has_replaced(BlockId { number: receipt.block_number, hash: receipt.block_hash })
        {
            Some(true) if receipt.block_number >= from => {
                tx.unmined(now);
                gone.push((tx.intent.tx_id, receipt));
            }
            Some(_) => {}
            // The fork is deeper than what the watcher keeps, and the block lies below that: a node has to be asked.
            None => {
                let patience = lane.chain.config.confirmations.stale_receipt_timeout;
                tx.receipt_seen = now.checked_sub(patience).unwrap_or(now);
            }
        }
    }
    for (tx_id, receipt) in gone {
        note_reorg(lane, tx_id, &receipt);
    }
}

fn note_reorg(lane: &mut Lane, tx_id: gapless::domain::TxId, receipt: &Receipt) {
    tracing::warn!(chain.id = lane.chain.config.id.0, submitter = %lane.lease.key().address_text(), tx.id = %tx_id,
        tx.hash = ?receipt.tx_hash, block = receipt.block_number, "its block was replaced; sending the same bytes again");
    let (tx_hash, block_number) = (receipt.tx_hash, receipt.block_number);
    lane.tell(Some(tx_id), EventKind::Reorged { tx_hash, block_number, new_fork: true });
}

/// Tells consumers which blocks confirm an intent, if anybody hears it: the first time and after a fork all of them, else
/// what came on top. In the mode where clients ask, it writes nothing and is woken by nothing.
fn tell_confirmations(lane: &mut Lane, index: usize) {
    if !lane.context.events.is_heard() {
        return;
    }
    let tx = &lane.open[index];
    let blocks = tx.intent.receipt.as_ref().map(|receipt| lane.chain.watcher.confirmations(receipt));
    let listed = blocks.as_ref().map_or(0, Vec::len) as u64;
    if tx.intent.receipt.is_some() && listed < lane.chain.finality().listed() {
        let next = lane.chain.watcher.head().unwrap_or_default() + 1;
        lane.chain.watcher.wake_at_head(next, &lane.mailbox);
    }
    let blocks = match blocks {
        // Mined, and its block is below the kept window or about to be found replaced: nothing to tell yet.
        Some(blocks) if blocks.is_empty() => return,
        Some(blocks) => blocks,
        None => Vec::new(),
    };
    let tx_id = tx.intent.tx_id;
    if let Some((news, new_fork)) = confirmations_news(&tx.told_blocks, &blocks) {
        lane.open[index].told_blocks = blocks;
        lane.tell(Some(tx_id), EventKind::Confirmations { blocks: news, new_fork });
    }
}

/// Asks for the receipts of everything that is not known to be mined. After reading the rows: what happened while
/// nobody watched, on a chain that may not produce another block for hours, is still noticed. A node that cannot tell keeps
/// nothing from going on, and is asked again: the next timer may be as far away.
pub(crate) async fn look_up_all(lane: &mut Lane) {
    let hashes: Vec<H256> =
        lane.open.iter().filter(|tx| tx.intent.receipt.is_none()).flat_map(OpenTx::hashes).collect();
    lane.look_again = match look_up_if_possible(lane, &hashes).await {
        true => None,
        false => {
            let pause = lane.look_again.map_or(LOOK_AGAIN, |(_, pause)| (pause * 2).min(LONGEST_PAUSE));
            Some((Instant::now() + pause, pause))
        }
    };
}

/// Before bytes go out again. If the node cannot tell, they go out: it is the same transaction. Answers whether it could.
pub(crate) async fn look_up_if_possible(lane: &mut Lane, hashes: &[H256]) -> bool {
    let looked = look_up(lane, hashes).await;
    if let Err(error) = &looked {
        tracing::debug!(chain.id = lane.chain.config.id.0, submitter = %lane.lease.key().address_text(),
            error = %error, "receipts could not be looked up; going on without");
    }
    looked.is_ok()
}

pub(crate) async fn look_up(lane: &mut Lane, hashes: &[H256]) -> Result<(), StepError> {
    if hashes.is_empty() {
        return Ok(());
    }
    for receipt in lane.chain.watcher.receipts().of(hashes, Place::Lane).await? {
        included(lane, receipt);
    }
    Ok(())
}

/// Finishes what is deep enough, asks to be woken for the rest.
pub(crate) async fn advance(lane: &mut Lane) -> Result<(), StepError> {
    if lane.look_again.is_some_and(|(at, _)| at <= Instant::now()) {
        look_up_all(lane).await;
    }
    for index in 0..lane.open.len() {
        tell_confirmations(lane, index);
        let tx = &lane.open[index];
        let (TxState::Tracking, Some(receipt)) = (tx.state(), tx.intent.receipt.clone()) else { continue };
        if tx.leaves_protect() {
            // This round writes that it is ours after all; the next may write that it is final.
            lane.moved = true;
            continue;
        }
        if lane.chain.watcher.final_height().is_some_and(|height| height >= receipt.block_number) {
            conclude(lane, index, receipt).await?;
        } else {
            lane.chain.watcher.wake_when_final(receipt.block_number, &lane.mailbox);
        }
        if lane.open[index].receipt_seen.elapsed() >= lane.chain.config.confirmations.stale_receipt_timeout {
            recheck(lane, index).await?;
        }
    }
    Ok(())
}

pub(crate) fn next_stale(lane: &Lane) -> Option<Instant> {
    let patience = lane.chain.config.confirmations.stale_receipt_timeout;
    lane.open.iter().filter(|tx| tx.state() == TxState::Tracking).map(|tx| tx.receipt_seen + patience).min()
}

/// The depth is reached. Final if the receipt's block is the canonical one at its height.
async fn conclude(lane: &mut Lane, index: usize, receipt: Receipt) -> Result<(), StepError> {
    let canonical = canonical_hash(lane, receipt.block_number).await?;
    let result = match canonical {
        Some(hash) if hash == receipt.block_hash => "final",
        Some(_) => "replaced",
        None => "unknown",
    };
    metrics::counter!(m::FINALITY_CHECK_TOTAL, "result" => result).increment(1);
    match canonical {
        Some(hash) if hash == receipt.block_hash => finish(lane, index, receipt).await,
        Some(_) => {
            let tx = &mut lane.open[index];
            tx.unmined(Instant::now());
            let (tx_id, hashes) = (tx.intent.tx_id, tx.hashes());
            note_reorg(lane, tx_id, &receipt);
            // It may sit in a sibling block that nobody told us of.
            look_up(lane, &hashes).await
        }
        // The node does not have that height (it lags): no evidence of anything. The next block asks again.
        None => {
            lane.chain.watcher.wake_at_head(lane.chain.watcher.head().unwrap_or_default() + 1, &lane.mailbox);
            Ok(())
        }
    }
}

/// As the watcher knows it; below what it keeps, as a node shows it.
pub(super) async fn canonical_hash(lane: &Lane, number: u64) -> Result<Option<H256>, RpcError> {
    match lane.chain.watcher.canonical_hash(number) {
        Some(hash) => Ok(Some(hash)),
        None => Ok(lane.chain.connector.block(BlockTag::Number(number)).await?.map(|block| block.block.hash)),
    }
}

async fn finish(lane: &mut Lane, index: usize, receipt: Receipt) -> Result<(), StepError> {
    let tx = &lane.open[index];
    // It bounds where later nonces were consumed. An earlier one that is still open may have been consumed in an earlier block.
    let is_earlier = |other: &OpenTx| other.intent.nonce < tx.intent.nonce && !other.state().is_terminal();
    if !lane.open.iter().any(is_earlier) {
        lane.key.evidence.bounds.own_final(receipt.block_number);
    }
    let tx_id = tx.intent.tx_id;
    let is_placeholder = tx.kind_of(receipt.tx_hash) == Some(AttemptKind::Placeholder);
    let counted = count(lane, &receipt).await;
    lane.open[index].counted = Some(counted.clone());
    if is_placeholder {
        consumed_by_placeholder(lane, index);
    } else if receipt.succeeded {
        lane.open[index].enter(TxState::Confirmed);
        let (tx_hash, block_number) = (receipt.tx_hash, receipt.block_number);
        let FinalConfirmations { count: confirmations, blocks, .. } = counted;
        // Whole, for those who hear only this; so it replaces, and may be heard twice.
        let new_fork = true;
        lane.tell(
            Some(tx_id),
            EventKind::Confirmed { tx_hash, block_number, confirmations, blocks, new_fork },
        );
    } else {
        let error = why_reverted(lane, index, &receipt).await;
        lane.tell(Some(tx_id), EventKind::ended(TxState::Failed, &error));
        let tx = &mut lane.open[index];
        tx.enter(TxState::Failed);
        tx.complain(Some("reverted"), Some(error));
    }
    Ok(())
}

/// What makes it final, to be kept with it. Its own block was compared with the chain just before.
async fn count(lane: &Lane, receipt: &Receipt) -> FinalConfirmations {
    let watcher = &lane.chain.watcher;
    let rule = lane.chain.finality();
    let head = watcher.head().unwrap_or(receipt.block_number);
    let count = head.saturating_sub(receipt.block_number) + 1;
    let listed = count.min(rule.listed());
    let mut blocks = watcher.confirmations(receipt);
    if blocks.is_empty() {
        blocks = show_blocks(lane, receipt, listed).await;
    }
    // A block may have come since the head was read.
    blocks.truncate(usize::try_from(listed).unwrap_or(usize::MAX));
    let final_block = rule.blocks().is_none().then(|| watcher.final_height()).flatten();
    FinalConfirmations { rule, count, final_block, blocks }
}

/// The blocks from a receipt's own on, as a node shows them: the watcher does not keep them (any more). Asked twice; what is
/// missing then is missing in the list, and holds nothing up: the depth is what counts, and that is known.
async fn show_blocks(lane: &Lane, receipt: &Receipt, most: u64) -> Vec<Confirmation> {
    let mut blocks = vec![Confirmation { number: receipt.block_number, hash: receipt.block_hash }];
    for _ in 0..2 {
        let next = receipt.block_number + blocks.len() as u64;
        let numbers = next..receipt.block_number + most;
        let asked = numbers.map(|number| lane.chain.connector.block(BlockTag::Number(number)));
        for shown in futures::future::join_all(asked).await {
            match (shown, blocks.last()) {
                (Ok(Some(block)), Some(below)) if block.block.parent == below.hash => {
                    blocks.push(Confirmation { number: block.block.number, hash: block.block.hash });
                }
                _ => break,
            }
        }
    }
    if (blocks.len() as u64) < most {
        tracing::warn!(chain.id = lane.chain.config.id.0, submitter = %lane.lease.key().address_text(),
            tx.hash = ?receipt.tx_hash, shown = blocks.len(), wanted = most,
            "no node shows all blocks that confirm it; its list is kept without them");
    }
    blocks
}

/// The placeholder won: the intent had no effect, and ends as it was meant to.
fn consumed_by_placeholder(lane: &mut Lane, index: usize) {
    let tx = &mut lane.open[index];
    let (code, reason) = (ErrorCode::Cancelled, "replaced by a placeholder".to_owned());
    let fallback = Ending { state: TxState::Cancelled, code, reason };
    let ending = tx.intent.ending.clone().unwrap_or(fallback);
    let tx_id = tx.intent.tx_id;
    tx.enter(ending.state);
    tx.complain(Some("placeholder"), Some(ending.error()));
    lane.tell(Some(tx_id), EventKind::ended(ending.state, &ending.error()));
}

/// Executes it again with the gas it had: as of the block before, and if it succeeds there, as of its own. Best effort:
/// the state in the middle of a block may have been another.
async fn why_reverted(lane: &Lane, index: usize, receipt: &Receipt) -> TxError {
    let tx = &lane.open[index];
    let gas_limit = tx.gas_limit();
    let payload = Payload { gas_limit, ..tx.intent.payload.clone() };
    let before = receipt.block_number.saturating_sub(1);
    for block in [before, receipt.block_number] {
        let outcome = lane.chain.connector.call(lane.address(), &payload, BlockTag::Number(block)).await;
        if let Ok(CallOutcome::Reverted(failure)) = outcome {
            return TxError::reverted(failure, &payload.errors);
        }
    }
    match gas_limit.filter(|limit| receipt.gas_used >= *limit) {
        Some(limit) => {
            TxError::new(ErrorCode::OutOfGas, format!("reverted: all of its gas was used, {limit}"))
        }
        None => TxError::new(ErrorCode::Reverted, "reverted"),
    }
}

/// No progress for a long time: is the receipt still there?
async fn recheck(lane: &mut Lane, index: usize) -> Result<(), StepError> {
    let Some(receipt) = lane.open[index].intent.receipt.clone() else { return Ok(()) };
    match lane.chain.watcher.receipts().of(&[receipt.tx_hash], Place::Lane).await?.pop() {
        Some(current) => {
            lane.open[index].receipt_seen = Instant::now();
            included(lane, current);
        }
        // A node that merely lags has no receipt either. Another block at its height is the evidence of a reorg.
        None => match canonical_hash(lane, receipt.block_number).await? {
            Some(hash) if hash != receipt.block_hash => {
                let tx = &mut lane.open[index];
                tx.unmined(Instant::now());
                let tx_id = tx.intent.tx_id;
                note_reorg(lane, tx_id, &receipt);
            }
            _ => lane.open[index].receipt_seen = Instant::now(),
        },
    }
    Ok(())
}
