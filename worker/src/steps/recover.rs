//! After trouble with a node: what is open is looked up and sent again at once, not when the resubmit timer says so. A node
//! that restarted, or lost blocks, may have lost its pool as well; sending the same bytes again is always safe.
//!
//! A pool can also be emptied without anything else to see. So the oldest bytes that stay unmined for two block times are
//! asked for, ever more rarely. That a node does not have them is no evidence of anything but a reason to send them.

use std::time::Duration;

use gapless::domain::{ErrorCode, H256, TxError, TxState};
use tokio::time::Instant;

use super::submit;
use crate::lane::{Lane, OpenTx, StepError};

/// Between two recoveries that one lane acts upon; doubles while they keep coming, up to the resubmit interval.
const LEAST_PAUSE: Duration = Duration::from_secs(1);
/// No bytes are asked for earlier than this after a node took them, however fast blocks come.
const FIRST_LOOK: Duration = Duration::from_secs(2);
/// Without a recovery for this long, the pause begins anew.
const QUIET: Duration = Duration::from_secs(60);
/// The longest pause between two looks for bytes in a pool, where blocks come more often.
const LONGEST_LOOK: Duration = Duration::from_secs(16);
/// How long a lane waits for the answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(1);
/// A node that does not show what it just took does not show its pool: the timer is left to do its work.
const MOST_MISSES: u32 = 2;

pub(crate) const WAITING_NODE: &str = "waiting_node";

#[derive(Debug, Default)]
pub(crate) struct Recovery {
    /// What is open is to be sent again, at this time.
    due: Option<Instant>,
    last: Option<Instant>,
    pause: Duration,
    look: Option<PoolLook>,
}

/// The bytes that are asked for.
#[derive(Debug)]
struct PoolLook {
    hash: H256,
    at: Instant,
    pause: Duration,
    misses: u32,
}

/// A node answers again, blocks were replaced, or the head fell.
pub(crate) fn heard(lane: &mut Lane) {
    let now = Instant::now();
    let recovery = &mut lane.recovery;
    if recovery.last.is_none_or(|last| now.saturating_duration_since(last) >= QUIET) {
        recovery.pause = Duration::ZERO;
    }
    let earliest = recovery.last.map_or(now, |last| (last + recovery.pause).max(now));
    recovery.due.get_or_insert(earliest);
    lane.hold_until = None;
    if let Some((at, _)) = &mut lane.look_again {
        *at = now;
    }
}

/// Marks what is to be sent again. The step that sends looks it up first, and keeps the order of nonces.
pub(crate) async fn advance(lane: &mut Lane) -> Result<(), StepError> {
    let now = Instant::now();
    if lane.recovery.due.is_some_and(|due| due <= now) {
        let longest = lane.chain.config.resubmit.interval.max(LEAST_PAUSE);
        let recovery = &mut lane.recovery;
        recovery.due = None;
        recovery.last = Some(now);
        recovery.pause = (recovery.pause * 2).clamp(LEAST_PAUSE, longest);
        recovery.look = None;
        send_again(lane, now, "a node is well again");
        offer_again(lane).await?;
    }
    look_into_pool(lane, now).await;
    Ok(())
}

/// The head fell below blocks that hold something of ours and stays there. Whether they are gone, only another block can
/// tell; on a chain that makes blocks of what it is sent, none comes before the bytes are there again. They are sent once,
/// and stay what they are: a node that merely lags has them, or takes them for its pool.
async fn offer_again(lane: &mut Lane) -> Result<(), StepError> {
    let Some(height) = lane.chain.watcher.fell_to() else { return Ok(()) };
    let interval = lane.chain.config.resubmit.interval;
    let above = |tx: &OpenTx| tx.intent.receipt.as_ref().is_some_and(|receipt| receipt.block_number > height);
    let indices: Vec<usize> = (0..lane.open.len())
        .filter(|index| lane.open[*index].state() == TxState::Tracking && above(&lane.open[*index]))
        .collect();
    if indices.is_empty() || !lane.chain.config.resubmit.enabled {
        return Ok(());
    }
    indices.iter().for_each(|index| lane.open[*index].claim(interval));
    lane.flush().await?;
    // The commit may have dropped what is finished; what is left keeps its order.
    for index in 0..lane.open.len() {
        let tx = &mut lane.open[index];
        let mined = tx.intent.receipt.as_ref().map(|receipt| receipt.tx_hash);
        let attempt = tx.intent.attempts.iter().find(|attempt| Some(attempt.tx_hash()) == mined).cloned();
        let Some(attempt) = attempt.filter(|_| tx.state() == TxState::Tracking && tx.may_send) else {
            continue;
        };
        tx.may_send = false;
        if !lane.lease.may_send() || lane.chain.halted().is_some() {
            return Ok(());
        }
        let answer = lane.chain.connector.broadcast(&attempt).await;
        submit::count_send(&attempt, &answer);
        tracing::info!(chain.id = lane.chain.config.id.0, submitter = %lane.lease.key().address_text(),
            tx.id = %attempt.tx_id(), attempt.id = %attempt.id(), tx.hash = ?attempt.tx_hash(),
            fencing_token = lane.lease.token().0, answer = ?answer.map(|outcome| outcome.class.as_str()),
            "the head fell below its block; sent again");
    }
    Ok(())
}

/// When to look again.
pub(crate) fn next_time(lane: &Lane) -> Option<Instant> {
    let unmined = lane.open.iter().any(OpenTx::is_on_its_way);
    let settings = &lane.chain.config.resubmit;
    let two_blocks = two_blocks(lane);
    let asks = settings.enabled && settings.interval > two_blocks;
    let look = lane.recovery.look.as_ref().filter(|_| asks).map(|look| look.at);
    [lane.recovery.due, look].into_iter().flatten().min().filter(|_| unmined)
}

fn two_blocks(lane: &Lane) -> Duration {
    (lane.chain.watcher.block_time() * 2).max(FIRST_LOOK)
}

fn send_again(lane: &mut Lane, now: Instant, why: &str) {
    // Off, the timer is off. Bytes that no node is known to have go out all the same.
    let enabled = lane.chain.config.resubmit.enabled;
    let mut count = 0;
    for tx in lane.open.iter_mut().take_while(|tx| !tx.is_reserved()) {
        if tx.is_unmined() && (enabled || !tx.is_taken) {
            tx.send_again(now);
            count += 1;
        }
    }
    if count > 0 {
        tracing::info!(chain.id = lane.chain.config.id.0, submitter = %lane.lease.key().address_text(),
            fencing_token = lane.lease.token().0, count, why, "open transactions are looked up and sent again");
    }
}

/// Two block times without being mined: does the node still have it?
async fn look_into_pool(lane: &mut Lane, now: Instant) {
    let oldest = lane.open.iter().find(|tx| tx.is_unmined()).filter(|tx| tx.is_taken && !tx.is_reserved());
    let Some(hash) = oldest.and_then(OpenTx::attempt).map(|attempt| attempt.tx_hash()) else {
        lane.recovery.look = None;
        return;
    };
    let (interval, two_blocks) = (lane.chain.config.resubmit.interval, two_blocks(lane));
    let Some(look) = lane.recovery.look.as_mut().filter(|look| look.hash == hash) else {
        lane.recovery.look = Some(PoolLook { hash, at: now + two_blocks, pause: two_blocks, misses: 0 });
        return;
    };
    // Where the timer is as quick, it does without asking; and where it is off, nothing is sent for being missed.
    if look.at > now || !lane.chain.config.resubmit.enabled || interval <= two_blocks {
        return;
    }
    // A node that hangs must not keep the lane from its other work.
    let Ok(found) = tokio::time::timeout(ANSWER_WITHIN, lane.chain.connector.has_transaction(hash)).await
    else {
        look.at = Instant::now() + look.pause;
        return;
    };
    look.pause = (look.pause * 2).min(LONGEST_LOOK.max(two_blocks));
    look.at = Instant::now() + look.pause;
    match found {
        Ok(true) => look.misses = 0,
        Ok(false) if look.misses < MOST_MISSES => {
            look.misses += 1;
            look.pause = two_blocks;
            look.at = Instant::now() + two_blocks;
            send_again(lane, now, "a node does not have what it took");
        }
        Ok(false) => look.at = Instant::now() + interval,
        Err(error) => {
            tracing::debug!(chain.id = lane.chain.config.id.0, submitter = %lane.lease.key().address_text(),
                error = %error, "a pool could not be looked into");
        }
    }
}

/// While no node shows the head, nothing that was sent moves on: it says so.
pub(crate) fn show_trouble(lane: &mut Lane) {
    let trouble = lane.chain.watcher.trouble();
    for tx in lane.open.iter_mut() {
        if !matches!(tx.state(), TxState::Submitted | TxState::Tracking) {
            continue;
        }
        match &trouble {
            Some(words) if tx.intent.sub_state.is_none() => {
                tx.complain(
                    Some(WAITING_NODE),
                    Some(TxError::new(ErrorCode::NodeUnavailable, words.clone())),
                );
                tx.shows_trouble = true;
            }
            None if tx.shows_trouble => {
                tx.shows_trouble = false;
                if tx.intent.sub_state.as_deref() == Some(WAITING_NODE) {
                    tx.complain(None, None);
                }
            }
            _ => {}
        }
    }
}
