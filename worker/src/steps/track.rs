//! Tracks mined intents until their block is final, and handles reorgs.

use std::time::Duration;

use gapless_chain::{BlockId, BlockTag, CallOutcome, RpcError};
use gapless_domain::finality::confirmations_delta;
use gapless_domain::{
    Confirmation, Ending, ErrorCode, EventKind, FinalConfirmations, H256, Payload, Receipt, SubState,
    TxError, TxState,
};
use gapless_store::AttemptKind;
use gapless_telemetry::metrics as m;
use tokio::time::Instant;

use crate::lane::{Lane, OpenTx, StepError};
use crate::receipts::Place;

/// Pause after a failed receipt lookup; doubles up to `MAX_PAUSE`.
const MIN_PAUSE: Duration = Duration::from_secs(1);
const MAX_PAUSE: Duration = Duration::from_secs(15);

/// State of the receipt lookups.
#[derive(Debug, Default)]
pub(crate) struct Tracking {
    /// The lookup after loading failed: when it is retried, and the pause before that.
    receipt_retry: Option<(Instant, Duration)>,
}

impl Tracking {
    pub(crate) fn next_retry(&self) -> Option<Instant> {
        self.receipt_retry.map(|(at, _)| at)
    }

    /// A node answers again: moves a retry that is scheduled.
    pub(super) fn retry_at(&mut self, time: Instant) {
        if let Some((at, _)) = &mut self.receipt_retry {
            *at = time;
        }
    }
}

/// One of our attempts is in a canonical block. It determines the result of the intent, whichever attempt it is.
pub(crate) fn included(lane: &mut Lane, receipt: Receipt) {
    let now = Instant::now();
    lane.prepare.reverts.mined_in(receipt.block_number);
    let Some(tx) = lane.rows.open.iter_mut().find(|tx| tx.hashes().contains(&receipt.tx_hash)) else {
        return;
    };
    let known = tx.intent.receipt.as_ref().is_some_and(|old| old.block_hash == receipt.block_hash);
    if known || tx.state().is_terminal() {
        tx.receipt_seen = now;
        return;
    }
    if tx.state() == TxState::Protect {
        lane.key.nonce_is_ours();
    }
    let (tx_id, moved_block) = (tx.intent.tx_id, tx.intent.receipt.is_some());
    tx.mined(receipt.clone(), now);
    lane.step_again();
    if moved_block {
        let (tx_hash, block_number) = (receipt.tx_hash, receipt.block_number);
        lane.emit_event(Some(tx_id), EventKind::Reorged { tx_hash, block_number, new_fork: true });
    }
    lane.emit_event(
        Some(tx_id),
        EventKind::ReceiptUpdated {
            tx_hash: receipt.tx_hash,
            block_number: receipt.block_number,
            succeeded: receipt.succeeded,
        },
    );
}

/// Blocks from a height on were replaced: intents mined in them have to be mined again, with the same bytes.
pub(crate) fn reorged(lane: &mut Lane, from: u64) {
    let now = Instant::now();
    let mut gone = Vec::new();
    for tx in lane.rows.open.iter_mut().filter(|tx| tx.state() == TxState::Tracking) {
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
            // The block is below the watcher's window: makes the receipt stale, so that a node is queried.
            None => {
                let timeout = lane.chain.config.confirmations.stale_receipt_timeout;
                tx.receipt_seen = now.checked_sub(timeout).unwrap_or(now);
            }
        }
    }
    for (tx_id, receipt) in gone {
        note_reorg(lane, tx_id, &receipt);
    }
}

fn note_reorg(lane: &mut Lane, tx_id: gapless_domain::TxId, receipt: &Receipt) {
    tracing::warn!(tx.id = %tx_id, tx.hash = ?receipt.tx_hash, block = receipt.block_number,
        "its block was replaced; resending the same bytes");
    let (tx_hash, block_number) = (receipt.tx_hash, receipt.block_number);
    lane.emit_event(Some(tx_id), EventKind::Reorged { tx_hash, block_number, new_fork: true });
}

/// Emits the blocks that confirm an intent: all of them the first time and after a fork, otherwise only the new ones.
/// Does nothing, and schedules no wake-up, if events have no consumer.
fn report_confirmations(lane: &mut Lane, index: usize) {
    if !lane.context.events.is_enabled() && !lane.context.recording.is_enabled() {
        return;
    }
    let tx = &lane.rows.open[index];
    let blocks = tx.intent.receipt.as_ref().map(|receipt| lane.chain.watcher.confirmations(receipt));
    let listed = blocks.as_ref().map_or(0, Vec::len) as u64;
    if tx.intent.receipt.is_some() && listed < lane.chain.finality().listed() {
        let next = lane.chain.watcher.head().unwrap_or_default() + 1;
        lane.chain.watcher.wake_at_head(next, &lane.signals.mailbox);
    }
    let blocks = match blocks {
        // Its block is below the watcher's window, or was replaced and that is not handled yet: nothing to report.
        Some(blocks) if blocks.is_empty() => return,
        Some(blocks) => blocks,
        None => Vec::new(),
    };
    let tx_id = tx.intent.tx_id;
    if let Some((added, new_fork)) = confirmations_delta(&tx.reported_blocks, &blocks) {
        lane.rows.open[index].reported_blocks = blocks;
        lane.emit_event(Some(tx_id), EventKind::Confirmations { blocks: added, new_fork });
    }
}

/// Looks up the receipts of all intents without one. Runs after the rows are read, to find what was mined while no
/// worker watched, even if the chain produces no block for hours. A failed lookup blocks nothing and is retried: the
/// next timer may be hours away.
pub(crate) async fn look_up_all(lane: &mut Lane) {
    let hashes: Vec<H256> =
        lane.rows.open.iter().filter(|tx| tx.intent.receipt.is_none()).flat_map(OpenTx::hashes).collect();
    lane.track.receipt_retry = match look_up_if_possible(lane, &hashes).await {
        true => None,
        false => {
            let pause = lane.track.receipt_retry.map_or(MIN_PAUSE, |(_, pause)| (pause * 2).min(MAX_PAUSE));
            Some((Instant::now() + pause, pause))
        }
    };
}

/// Lookup before a resend. If it fails, the resend happens anyway: the bytes are the same. Returns whether it
/// succeeded.
pub(crate) async fn look_up_if_possible(lane: &mut Lane, hashes: &[H256]) -> bool {
    let looked = look_up(lane, hashes).await;
    if let Err(error) = &looked {
        tracing::debug!(error = %error, "receipt lookup failed; continuing without it");
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

/// Finishes intents whose block is final; schedules a wake-up for the others.
pub(crate) async fn advance(lane: &mut Lane) -> Result<(), StepError> {
    if lane.track.next_retry().is_some_and(|at| at <= Instant::now()) {
        look_up_all(lane).await;
    }
    for index in 0..lane.rows.open.len() {
        report_confirmations(lane, index);
        let tx = &lane.rows.open[index];
        let (TxState::Tracking, Some(receipt)) = (tx.state(), tx.intent.receipt.clone()) else { continue };
        if tx.leaves_protect() {
            // TRACKING is committed first; the next step may finish it.
            lane.step_again();
            continue;
        }
        if lane.chain.watcher.final_height().is_some_and(|height| height >= receipt.block_number) {
            conclude(lane, index, receipt).await?;
        } else {
            lane.chain.watcher.wake_when_final(receipt.block_number, &lane.signals.mailbox);
        }
        if lane.rows.open[index].receipt_seen.elapsed()
            >= lane.chain.config.confirmations.stale_receipt_timeout
        {
            recheck(lane, index).await?;
        }
    }
    Ok(())
}

pub(crate) fn next_stale(lane: &Lane) -> Option<Instant> {
    let timeout = lane.chain.config.confirmations.stale_receipt_timeout;
    lane.rows
        .open
        .iter()
        .filter(|tx| tx.state() == TxState::Tracking)
        .map(|tx| tx.receipt_seen + timeout)
        .min()
}

/// The required depth is reached. Final if the receipt's block is canonical at its height.
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
            let tx = &mut lane.rows.open[index];
            tx.unmined(Instant::now());
            let (tx_id, hashes) = (tx.intent.tx_id, tx.hashes());
            note_reorg(lane, tx_id, &receipt);
            // It may be in a sibling block that the watcher missed.
            look_up(lane, &hashes).await
        }
        // The node does not have that height because it lags: no evidence. The next block repeats the check.
        None => {
            lane.chain
                .watcher
                .wake_at_head(lane.chain.watcher.head().unwrap_or_default() + 1, &lane.signals.mailbox);
            Ok(())
        }
    }
}

/// The canonical hash at a height: from the watcher, or from a node if the height is below the watcher's window.
pub(super) async fn canonical_hash(lane: &Lane, number: u64) -> Result<Option<H256>, RpcError> {
    match lane.chain.watcher.canonical_hash(number) {
        Some(hash) => Ok(Some(hash)),
        None => Ok(lane.chain.connector.block(BlockTag::Number(number)).await?.map(|block| block.block.hash)),
    }
}

async fn finish(lane: &mut Lane, index: usize, receipt: Receipt) -> Result<(), StepError> {
    let tx = &lane.rows.open[index];
    // A lower bound for the blocks that consume later nonces. Not valid while an earlier nonce is still open.
    let is_earlier = |other: &OpenTx| other.intent.nonce < tx.intent.nonce && !other.state().is_terminal();
    if !lane.rows.open.iter().any(is_earlier) {
        lane.key.own_final(receipt.block_number);
    }
    let tx_id = tx.intent.tx_id;
    let is_placeholder = tx.kind_of(receipt.tx_hash) == Some(AttemptKind::Placeholder);
    let counted = count(lane, &receipt).await;
    lane.rows.open[index].counted = Some(counted.clone());
    if is_placeholder {
        consumed_by_placeholder(lane, index);
    } else if receipt.succeeded {
        lane.rows.open[index].enter(TxState::Confirmed);
        let (tx_hash, block_number) = (receipt.tx_hash, receipt.block_number);
        let FinalConfirmations { count: confirmations, blocks, .. } = counted;
        // The complete list, for consumers that handle only this event; it replaces earlier ones and may be delivered
        // twice.
        let new_fork = true;
        lane.emit_event(
            Some(tx_id),
            EventKind::Confirmed { tx_hash, block_number, confirmations, blocks, new_fork },
        );
    } else {
        let error = why_reverted(lane, index, &receipt).await;
        lane.emit_event(Some(tx_id), EventKind::ended(TxState::Failed, &error));
        let tx = &mut lane.rows.open[index];
        tx.enter(TxState::Failed);
        tx.set_wait_reason(Some(SubState::Reverted), Some(error));
    }
    Ok(())
}

/// The evidence of finality, stored with the intent. Its own block was compared with the chain just before.
async fn count(lane: &Lane, receipt: &Receipt) -> FinalConfirmations {
    let watcher = &lane.chain.watcher;
    let rule = lane.chain.finality();
    let head = watcher.head().unwrap_or(receipt.block_number);
    let count = head.saturating_sub(receipt.block_number) + 1;
    let listed = count.min(rule.listed());
    let mut blocks = watcher.confirmations(receipt);
    if blocks.is_empty() {
        blocks = fetch_confirming_blocks(lane, receipt, listed).await;
    }
    // A block may have arrived since the head was read.
    blocks.truncate(usize::try_from(listed).unwrap_or(usize::MAX));
    let final_block = rule.blocks().is_none().then(|| watcher.final_height()).flatten();
    FinalConfirmations { rule, count, final_block, blocks }
}

/// Reads the blocks from the receipt's own block on from a node, because they are outside the watcher's window. Tries
/// twice; missing blocks are left out of the list and delay nothing, because the depth is known already.
async fn fetch_confirming_blocks(lane: &Lane, receipt: &Receipt, most: u64) -> Vec<Confirmation> {
    let mut blocks = vec![Confirmation { number: receipt.block_number, hash: receipt.block_hash }];
    for _ in 0..2 {
        let next = receipt.block_number + blocks.len() as u64;
        let numbers = next..receipt.block_number + most;
        let requests = numbers.map(|number| lane.chain.connector.block(BlockTag::Number(number)));
        for answer in futures::future::join_all(requests).await {
            match (answer, blocks.last()) {
                (Ok(Some(block)), Some(below)) if block.block.parent == below.hash => {
                    blocks.push(Confirmation { number: block.block.number, hash: block.block.hash });
                }
                _ => break,
            }
        }
    }
    if (blocks.len() as u64) < most {
        tracing::warn!(tx.hash = ?receipt.tx_hash, shown = blocks.len(), wanted = most,
            "no node returned all confirming blocks; the stored list is incomplete");
    }
    blocks
}

/// The placeholder was mined: the intent was not executed, and ends with its recorded ending.
fn consumed_by_placeholder(lane: &mut Lane, index: usize) {
    let tx = &mut lane.rows.open[index];
    let (code, reason) = (ErrorCode::Cancelled, "replaced by a placeholder".to_owned());
    let fallback = Ending { state: TxState::Cancelled, code, reason };
    let ending = tx.intent.ending.clone().unwrap_or(fallback);
    let tx_id = tx.intent.tx_id;
    tx.enter(ending.state);
    tx.set_wait_reason(Some(SubState::Placeholder), Some(ending.error()));
    lane.emit_event(Some(tx_id), EventKind::ended(ending.state, &ending.error()));
}

/// Repeats the call with the same gas limit at the previous block, and if it succeeds there, at its own block. Best
/// effort: the state within the block may have been different.
async fn why_reverted(lane: &Lane, index: usize, receipt: &Receipt) -> TxError {
    let tx = &lane.rows.open[index];
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
        Some(limit) => TxError::new(ErrorCode::OutOfGas, format!("reverted: out of gas (limit {limit})")),
        None => TxError::new(ErrorCode::Reverted, "reverted"),
    }
}

/// No progress for `stale_receipt_timeout`: checks that the receipt still exists.
async fn recheck(lane: &mut Lane, index: usize) -> Result<(), StepError> {
    let Some(receipt) = lane.rows.open[index].intent.receipt.clone() else { return Ok(()) };
    match lane.chain.watcher.receipts().of(&[receipt.tx_hash], Place::Lane).await?.pop() {
        Some(current) => {
            lane.rows.open[index].receipt_seen = Instant::now();
            included(lane, current);
        }
        // A node that lags has no receipt either. Only another block at its height is evidence of a reorg.
        None => match canonical_hash(lane, receipt.block_number).await? {
            Some(hash) if hash != receipt.block_hash => {
                let tx = &mut lane.rows.open[index];
                tx.unmined(Instant::now());
                let tx_id = tx.intent.tx_id;
                note_reorg(lane, tx_id, &receipt);
            }
            _ => lane.rows.open[index].receipt_seen = Instant::now(),
        },
    }
    Ok(())
}
