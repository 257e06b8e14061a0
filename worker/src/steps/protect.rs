//! The guard of the sequence: the chain's count against ours, at first use, after every claim, and whenever a nonce
//! turns out to be used. If somebody else used the key the lane stops and says so; nothing is skipped.
//!
//! One look is never enough: nodes lag and disagree. It takes two, apart in time, at finality depth.

use std::time::Duration;

use gapless::chain::BlockTag;
use gapless::domain::{EventKind, Nonce, TxState};
use tokio::time::Instant;

use super::{shared, track};
use crate::lane::{Lane, OpenTx, Sequence, StepError};

/// Between two looks at a suspected key, and between two looks at a protected one.
pub(super) const RECHECK: Duration = Duration::from_millis(700);

/// A protected key is looked at this often at the least.
pub(super) const LONGEST_PAUSE: Duration = Duration::from_secs(60);

const USED_OUTSIDE: &str = "the key was used outside";

/// Whether new nonces may be given and bytes be sent. Watches a protected key for a false alarm.
pub(crate) async fn key_is_ours(lane: &mut Lane) -> Result<bool, StepError> {
    let Some(sequence) = lane.sequence.clone() else { return Ok(true) };
    if lane.sharing.enabled {
        return shared::settle(lane).await;
    }
    if sequence.protect.is_some() {
        watch_protected(lane, &sequence).await?;
        return Ok(false);
    }
    if taken(lane).next().is_some() {
        // It happened while the key was shared. Now that it is not, an operator decides.
        protect(lane, USED_OUTSIDE, "an intent lost its nonce while the key was shared");
        lane.flush().await?;
        return Ok(false);
    }
    if lane.key_checked {
        return Ok(true);
    }
    if lane.recheck_at.is_some_and(|at| Instant::now() < at) {
        return Ok(false);
    }
    // The first look is the cheap one, batched with those of other lanes.
    let count = lane.chain.connector.transaction_count(lane.address(), BlockTag::Latest).await?;
    if count <= sequence.next.0 {
        lane.key_checked = true;
        lane.key_suspected = None;
        lane.recheck_at = None;
        return Ok(true);
    }
    let view = lane.chain.connector.consumed_nonce(lane.address(), lane.chain.finality(), &[]).await?;
    let seen_before = lane.key_suspected.is_some();
    lane.key_suspected.get_or_insert_with(Instant::now);
    lane.recheck_at = Some(Instant::now() + RECHECK);
    if seen_before && view.count_at_depth > sequence.next.0 {
        let detail = format!(
            "the chain counts {} transactions, this sequence explains {}",
            view.latest_count, sequence.next
        );
        protect(lane, USED_OUTSIDE, &detail);
        judge_open(lane).await?;
    }
    Ok(false)
}

/// Creates the sequence at first use. An address with history is not taken over silently.
pub(crate) async fn first_use(lane: &mut Lane) -> Result<bool, StepError> {
    if lane.sequence.is_some() {
        return Ok(true);
    }
    let count = lane.chain.connector.transaction_count(lane.address(), BlockTag::Latest).await?;
    // Others may have used a shared key as often as they like.
    let start = Nonce(if lane.sharing.enabled { count } else { lane.chain.config.nonce.start_from });
    lane.sequence = Some(Sequence {
        start,
        next: start,
        protect: None,
        max_in_flight: lane.window(),
        in_flight: None,
        open_from: start,
        delegated: false,
    });
    lane.key_checked = true;
    if count == start.0 {
        // Written with the first nonce, or at the end of the turn: the insert meets no other, or all of it fails.
        return Ok(true);
    }
    let detail = format!(
        "the chain counts {count} transactions, the sequence would start from {start}; \
         adopt it to start from the chain's count"
    );
    protect(lane, "the address has a history", &detail);
    lane.flush().await?;
    Ok(false)
}

/// A nonce of ours is used and none of our hashes is found. Called after each such answer; the second one that
/// holds at depth decides.
pub(crate) async fn suspect(lane: &mut Lane, index: usize) -> Result<(), StepError> {
    let tx = &lane.open[index];
    let (nonce, hashes) = (tx.intent.nonce, tx.hashes());
    let view = lane.chain.connector.consumed_nonce(lane.address(), lane.chain.finality(), &hashes).await?;
    if let Some(receipt) = view.receipts.into_iter().next() {
        track::included(lane, receipt);
        return Ok(());
    }
    if view.count_at_depth <= nonce.0 || lane.chain.watcher.saw_any(&hashes) {
        // Not consumed, not deep enough to be sure, or seen in a block although its receipt is missing. The next send
        // asks again.
        return Ok(());
    }
    let tx = &mut lane.open[index];
    let Some(since) = tx.suspected else {
        tx.suspected = Some(Instant::now());
        tx.due = Instant::now() + RECHECK;
        return Ok(());
    };
    if since.elapsed() < RECHECK {
        return Ok(());
    }
    if lane.sharing.enabled {
        return shared::lose(lane, index).await;
    }
    let tx_id = tx.intent.tx_id;
    let detail = format!("the nonce of intent {tx_id} was consumed by an unknown transaction");
    tx.lose_nonce(&detail, Instant::now());
    protect(lane, USED_OUTSIDE, &detail);
    lane.flush().await
}

fn protect(lane: &mut Lane, cause: &str, detail: &str) {
    let reason = format!("{cause}: {detail}");
    tracing::error!(chain.id = lane.chain.config.id.0, submitter = %lane.lease.key().address_text(),
        fencing_token = lane.lease.token().0, reason = reason, "PROTECT: the lane stops until an operator releases it");
    lane.recheck_at = Some(Instant::now() + RECHECK);
    lane.key_suspected = None;
    if let Some(sequence) = &mut lane.sequence {
        sequence.protect = Some(reason);
    }
    // Consumers of events are told what kind of thing happened; counts and nonces are for operators.
    lane.tell(None, EventKind::Protected { reason: cause.to_owned() });
}

/// Sorts what is open when the chain counts more than the sequence: found on chain, it is ours; finally consumed and
/// not found, it is taken. On disk before anything else happens, so that an operator's adoption finds it so.
pub(super) async fn judge_open(lane: &mut Lane) -> Result<(), StepError> {
    let unmined = |tx: &OpenTx| tx.intent.receipt.is_none() && !tx.state().is_terminal();
    let hashes: Vec<_> = lane.open.iter().filter(|tx| unmined(tx)).flat_map(OpenTx::hashes).collect();
    let view = lane.chain.connector.consumed_nonce(lane.address(), lane.chain.finality(), &hashes).await?;
    view.receipts.into_iter().for_each(|receipt| track::included(lane, receipt));
    let watcher = lane.chain.watcher.clone();
    for tx in lane.open.iter_mut().filter(|tx| unmined(tx) && tx.state() != TxState::Protect) {
        if tx.intent.nonce.0 < view.count_at_depth && !watcher.saw_any(&tx.hashes()) {
            tx.lose_nonce("its nonce was consumed by an unknown transaction", Instant::now());
        }
    }
    lane.flush().await
}

/// A protected lane keeps looking, ever more rarely: if the nonce turns out to be ours, or the count to fit, it was a
/// false alarm and ends by itself.
async fn watch_protected(lane: &mut Lane, sequence: &Sequence) -> Result<(), StepError> {
    if lane.false_alarm && taken(lane).next().is_none() {
        return lift(lane, "false alarm: the nonce was used by one of our own transactions").await;
    }
    if lane.recheck_at.is_some_and(|at| Instant::now() < at) {
        return Ok(());
    }
    lane.protect_pause = (lane.protect_pause * 2).clamp(RECHECK * 2, LONGEST_PAUSE);
    lane.recheck_at = Some(Instant::now() + lane.protect_pause);
    let hashes: Vec<_> = taken(lane).flat_map(OpenTx::hashes).collect();
    let view = lane.chain.connector.consumed_nonce(lane.address(), lane.chain.finality(), &hashes).await?;
    view.receipts.into_iter().for_each(|receipt| track::included(lane, receipt));
    if taken(lane).next().is_some() {
        return Ok(());
    }
    let fits = view.latest_count <= sequence.next.0;
    if fits && lane.fitted_once {
        return lift(lane, "false alarm: the chain agrees with the sequence").await;
    }
    lane.fitted_once = fits;
    Ok(())
}

pub(super) fn taken(lane: &Lane) -> impl Iterator<Item = &OpenTx> {
    lane.open.iter().filter(|tx| tx.state() == TxState::Protect)
}

pub(super) async fn lift(lane: &mut Lane, why: &str) -> Result<(), StepError> {
    tracing::info!(chain.id = lane.chain.config.id.0, submitter = %lane.lease.key().address_text(),
        fencing_token = lane.lease.token().0, why, "protection lifted");
    if let Some(sequence) = &mut lane.sequence {
        sequence.protect = None;
    }
    lane.recheck_at = None;
    lane.key_checked = false;
    lane.false_alarm = false;
    lane.tell(None, EventKind::Released { reason: why.to_owned() });
    lane.flush().await
}
