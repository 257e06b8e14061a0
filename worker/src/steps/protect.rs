//! The guard of the sequence: the chain's count against ours, at first use, after every claim, and whenever a nonce
//! turns out to be used. If somebody else used the key the lane stops and says so; nothing is skipped.
//!
//! One look is never enough: nodes lag and disagree. It takes two, apart in time, at finality depth.

use std::time::{Duration, Instant};

use gapless::chain::BlockTag;
use gapless::domain::{EventKind, Nonce, TxState};

use super::track;
use crate::lane::{Lane, Sequence, StepError};

/// Between two looks at a suspected key, and between two looks at a protected one.
const RECHECK: Duration = Duration::from_millis(700);

const USED_OUTSIDE: &str = "the key was used outside";

/// Whether new nonces may be given and bytes be sent. Watches a protected key for a false alarm.
pub(crate) async fn key_is_ours(lane: &mut Lane) -> Result<bool, StepError> {
    let Some(sequence) = lane.sequence.clone() else { return Ok(true) };
    if sequence.protect.is_some() {
        watch_protected(lane, &sequence).await?;
        return Ok(false);
    }
    if lane.key_checked {
        return Ok(true);
    }
    if lane.recheck_at.is_some_and(|at| Instant::now() < at) {
        return Ok(false);
    }
    let view = lane.chain.connector.consumed_nonce(lane.address(), lane.chain.finality_depth(), &[]).await?;
    if view.latest_count <= sequence.next.0 {
        lane.key_checked = true;
        lane.key_suspected = None;
        lane.recheck_at = None;
        return Ok(true);
    }
    let seen_before = lane.key_suspected.is_some();
    lane.key_suspected.get_or_insert_with(Instant::now);
    lane.recheck_at = Some(Instant::now() + RECHECK);
    if seen_before && view.count_at_depth > sequence.next.0 {
        let detail = format!(
            "the chain counts {} transactions, this sequence explains {}",
            view.latest_count, sequence.next
        );
        protect(lane, USED_OUTSIDE, &detail);
        lane.flush().await?;
    }
    Ok(false)
}

/// Creates the sequence at first use. An address with history is not taken over silently.
pub(crate) async fn first_use(lane: &mut Lane) -> Result<bool, StepError> {
    if lane.sequence.is_some() {
        return Ok(true);
    }
    let start = Nonce(lane.chain.config.nonce.start_from);
    let count = lane.chain.connector.transaction_count(lane.address(), BlockTag::Latest).await?;
    lane.sequence =
        Some(Sequence { start, next: start, protect: None, max_in_flight: lane.window(), in_flight: None });
    lane.key_checked = true;
    if count == start.0 {
        // Created at once, and alone: the write that gives the first nonce compares against it.
        lane.flush().await?;
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
    let view =
        lane.chain.connector.consumed_nonce(lane.address(), lane.chain.finality_depth(), &hashes).await?;
    if let Some(receipt) = view.receipts.into_iter().next() {
        track::included(lane, receipt);
        return Ok(());
    }
    let tx = &mut lane.open[index];
    if view.count_at_depth <= nonce.0 {
        // Not consumed, or not deep enough to be sure. The next send asks again.
        return Ok(());
    }
    let Some(since) = tx.suspected else {
        tx.suspected = Some(Instant::now());
        tx.due = Instant::now() + RECHECK;
        return Ok(());
    };
    if since.elapsed() < RECHECK {
        return Ok(());
    }
    let tx_id = tx.intent.tx_id;
    tx.enter(TxState::Protect);
    let detail = format!("the nonce of intent {tx_id} was consumed by an unknown transaction");
    lane.open[index].complain(Some("nonce_taken"), Some(detail.clone()));
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

/// A protected lane keeps looking: if the nonce turns out to be ours, it was a false alarm and ends by itself.
async fn watch_protected(lane: &mut Lane, sequence: &Sequence) -> Result<(), StepError> {
    let taken: Vec<usize> =
        (0..lane.open.len()).filter(|index| lane.open[*index].state() == TxState::Protect).collect();
    if lane.false_alarm && taken.is_empty() {
        return lift(lane, "false alarm: the nonce was used by one of our own transactions").await;
    }
    if lane.recheck_at.is_some_and(|at| Instant::now() < at) {
        return Ok(());
    }
    lane.recheck_at = Some(Instant::now() + RECHECK * 3);
    let hashes: Vec<_> = taken.iter().flat_map(|index| lane.open[*index].hashes()).collect();
    let view =
        lane.chain.connector.consumed_nonce(lane.address(), lane.chain.finality_depth(), &hashes).await?;
    view.receipts.into_iter().for_each(|receipt| track::included(lane, receipt));
    if taken.is_empty() && view.latest_count <= sequence.next.0 {
        return lift(lane, "false alarm: the chain agrees with the sequence").await;
    }
    if lane.false_alarm {
        lane.recheck_at = Some(Instant::now());
    }
    Ok(())
}

async fn lift(lane: &mut Lane, why: &str) -> Result<(), StepError> {
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
