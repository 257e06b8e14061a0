//! After a node failure, open intents are looked up and resent at once, before the resubmit timer. A node that
//! restarted or lost blocks may have lost its mempool as well; resending the same bytes is always safe.
//!
//! A mempool can also be emptied without another visible failure. So the nodes are queried for the oldest attempt
//! when it stays unmined for two block times, with growing pauses. A miss is only a reason to resend.

use std::time::Duration;

use gapless_domain::{ErrorCode, H256, SubState, TxError, TxState};
use tokio::time::Instant;

use super::submit;
use crate::lane::{Lane, OpenTx, StepError};

/// Minimum pause between two recoveries of one lane; doubles on each, up to the resubmit interval.
const MIN_PAUSE: Duration = Duration::from_secs(1);
/// Minimum delay between acceptance and the first mempool check, however short the block time.
const MIN_CHECK_DELAY: Duration = Duration::from_secs(2);
/// The pause is reset after this time without a recovery.
const RESET_AFTER: Duration = Duration::from_secs(60);
/// Maximum pause between two mempool checks, unless two block times are longer.
const MAX_CHECK_PAUSE: Duration = Duration::from_secs(16);
/// Timeout of a mempool check.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(1);
/// After this many misses the node is assumed not to expose its mempool, and only the resubmit timer resends.
const MAX_MISSES: u32 = 2;

#[derive(Debug, Default)]
pub(crate) struct Recovery {
    /// When the open intents are resent.
    due: Option<Instant>,
    last: Option<Instant>,
    pause: Duration,
    check: Option<MempoolCheck>,
}

/// Checks for one attempt in the mempool.
#[derive(Debug)]
struct MempoolCheck {
    hash: H256,
    at: Instant,
    pause: Duration,
    misses: u32,
}

/// Schedules a recovery: a node answers again, blocks were replaced, or the head fell.
pub(crate) fn schedule(lane: &mut Lane) {
    let now = Instant::now();
    let recovery = &mut lane.recovery;
    if recovery.last.is_none_or(|last| now.saturating_duration_since(last) >= RESET_AFTER) {
        recovery.pause = Duration::ZERO;
    }
    let earliest = recovery.last.map_or(now, |last| (last + recovery.pause).max(now));
    recovery.due.get_or_insert(earliest);
    lane.prepare.end_hold();
    lane.track.retry_at(now);
}

/// Marks the open intents for a resend. `submit` looks up their receipts first and keeps the nonce order.
pub(crate) async fn advance(lane: &mut Lane) -> Result<(), StepError> {
    let now = Instant::now();
    if lane.recovery.due.is_some_and(|due| due <= now) {
        let longest = lane.chain.config.resubmit.interval.max(MIN_PAUSE);
        let recovery = &mut lane.recovery;
        recovery.due = None;
        recovery.last = Some(now);
        recovery.pause = (recovery.pause * 2).clamp(MIN_PAUSE, longest);
        recovery.check = None;
        resend_open(lane, now, "a node recovered");
        resend_above_head(lane).await?;
    }
    check_mempool(lane, now).await;
    Ok(())
}

/// The head fell below blocks with our transactions and stays there. Only a new block can show whether those blocks
/// were replaced, and a chain that mines on demand produces none before it receives the bytes. So they are sent once,
/// without a state change: a node that only lags has them already, or adds them to its mempool.
async fn resend_above_head(lane: &mut Lane) -> Result<(), StepError> {
    let Some(height) = lane.chain.watcher.fell_to() else { return Ok(()) };
    let interval = lane.chain.config.resubmit.interval;
    let above = |tx: &OpenTx| tx.intent.receipt.as_ref().is_some_and(|receipt| receipt.block_number > height);
    let indices: Vec<usize> = (0..lane.rows.open.len())
        .filter(|index| lane.rows.open[*index].state() == TxState::Tracking && above(&lane.rows.open[*index]))
        .collect();
    if indices.is_empty() || !lane.chain.config.resubmit.enabled {
        return Ok(());
    }
    indices.iter().for_each(|index| lane.rows.open[*index].claim(interval));
    lane.flush().await?;
    // The commit may have removed finished intents; the others keep their order.
    for index in 0..lane.rows.open.len() {
        let tx = &mut lane.rows.open[index];
        let mined = tx.intent.receipt.as_ref().map(|receipt| receipt.tx_hash);
        let attempt = tx.intent.attempts.iter().find(|attempt| Some(attempt.tx_hash()) == mined).cloned();
        let Some(attempt) = attempt.filter(|_| tx.state() == TxState::Tracking && tx.sending.may_send) else {
            continue;
        };
        tx.sending.may_send = false;
        if !lane.lease.may_send() || lane.chain.halted().is_some() {
            return Ok(());
        }
        let answer = lane.chain.connector.broadcast(&attempt).await;
        submit::count_send(&attempt, &answer);
        tracing::info!(tx.id = %attempt.tx_id(), attempt.id = %attempt.id(), tx.hash = ?attempt.tx_hash(),
            answer = ?answer.map(|outcome| outcome.class.as_str()), "the head fell below its block; resent");
    }
    Ok(())
}

/// When this step is due again.
pub(crate) fn next_time(lane: &Lane) -> Option<Instant> {
    let unmined = lane.rows.open.iter().any(OpenTx::is_pending);
    let settings = &lane.chain.config.resubmit;
    let two_blocks = two_blocks(lane);
    let checks = settings.enabled && settings.interval > two_blocks;
    let check = lane.recovery.check.as_ref().filter(|_| checks).map(|check| check.at);
    [lane.recovery.due, check].into_iter().flatten().min().filter(|_| unmined)
}

fn two_blocks(lane: &Lane) -> Duration {
    (lane.chain.watcher.block_time() * 2).max(MIN_CHECK_DELAY)
}

fn resend_open(lane: &mut Lane, now: Instant, why: &str) {
    // `resubmit.enabled` applies only to bytes that a node has accepted; others are sent in any case.
    let enabled = lane.chain.config.resubmit.enabled;
    let mut count = 0;
    for tx in lane.rows.open.iter_mut().take_while(|tx| !tx.is_reserved()) {
        if tx.is_unmined() && (enabled || !tx.sending.is_accepted) {
            tx.send_again(now);
            count += 1;
        }
    }
    if count > 0 {
        tracing::info!(count, why, "looking up and resending open transactions");
    }
}

/// Checks whether the node still has the oldest attempt after two block times without being mined.
async fn check_mempool(lane: &mut Lane, now: Instant) {
    let oldest = lane
        .rows
        .open
        .iter()
        .find(|tx| tx.is_unmined())
        .filter(|tx| tx.sending.is_accepted && !tx.is_reserved());
    let Some(hash) = oldest.and_then(OpenTx::attempt).map(|attempt| attempt.tx_hash()) else {
        lane.recovery.check = None;
        return;
    };
    let (interval, two_blocks) = (lane.chain.config.resubmit.interval, two_blocks(lane));
    let Some(check) = lane.recovery.check.as_mut().filter(|check| check.hash == hash) else {
        lane.recovery.check = Some(MempoolCheck { hash, at: now + two_blocks, pause: two_blocks, misses: 0 });
        return;
    };
    // Not needed if the resubmit timer is as frequent; not wanted if resubmission is off.
    if check.at > now || !lane.chain.config.resubmit.enabled || interval <= two_blocks {
        return;
    }
    // A hanging node must not delay the lane.
    let Ok(found) = tokio::time::timeout(REQUEST_TIMEOUT, lane.chain.connector.has_transaction(hash)).await
    else {
        check.at = Instant::now() + check.pause;
        return;
    };
    check.pause = (check.pause * 2).min(MAX_CHECK_PAUSE.max(two_blocks));
    check.at = Instant::now() + check.pause;
    match found {
        Ok(true) => check.misses = 0,
        Ok(false) if check.misses < MAX_MISSES => {
            check.misses += 1;
            check.pause = two_blocks;
            check.at = Instant::now() + two_blocks;
            resend_open(lane, now, "a node lost an accepted transaction");
        }
        Ok(false) => check.at = Instant::now() + interval,
        Err(error) => {
            tracing::debug!(error = %error, "mempool check failed");
        }
    }
}

/// While no node returns the head, sent intents make no progress: records that as their wait reason.
pub(crate) fn show_node_outage(lane: &mut Lane) {
    let outage = lane.chain.watcher.outage();
    for tx in lane.rows.open.iter_mut() {
        if !matches!(tx.state(), TxState::Submitted | TxState::Tracking) {
            continue;
        }
        match &outage {
            Some(message) if tx.intent.sub_state.is_none() => {
                tx.set_wait_reason(
                    Some(SubState::WaitingNode),
                    Some(TxError::new(ErrorCode::NodeUnavailable, message.clone())),
                );
                tx.shows_outage = true;
            }
            None if tx.shows_outage => {
                tx.shows_outage = false;
                if tx.intent.sub_state == Some(SubState::WaitingNode) {
                    tx.set_wait_reason(None, None);
                }
            }
            _ => {}
        }
    }
}
