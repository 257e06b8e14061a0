//! Keys that others use as well (docs/adr/0013): their nonces are stepped over and noted, and an intent that loses its
//! nonce to one of them makes way by itself. What stays: bytes that could still be mined are never given a second nonce.

use std::time::Duration;

use gapless::chain::BlockTag;
use gapless::domain::{Ending, ErrorCode, EventKind, Nonce, TxError, TxState};
use gapless::observe::metrics as m;
use gapless::store::{ExternalCause, ExternalNonces};
use tokio::time::Instant;

use super::attribution::{self, Consumer};
use super::protect::{self, LONGEST_PAUSE, RECHECK};
use super::track;
use crate::lane::{Lane, OpenTx, StepError};

/// While something is unmined, and the head has moved, the chain's counts are looked at this often.
const LOOK: Duration = Duration::from_secs(1);
/// More than others are likely to send between two looks.
const FAR: u64 = 1_000;
/// So far below the first nonce of the sequence a reorg may have vacated one. A node that counts fewer is far behind, and the
/// nonces that it misses are not given.
const BEFORE_START: u64 = 64;
/// A nonce of others that no node knows anything of for this long is not coming: their transaction was dropped.
const VACANT_FOR: Duration = Duration::from_secs(3);

/// The step of a turn: intents that lost their nonce go back to the queue, and what is unmined is held against the chain.
/// Nothing stops the lane of a shared key.
pub(crate) async fn settle(lane: &mut Lane) -> Result<(), StepError> {
    if lane.is_protected() {
        protect::lift(lane, "the key is shared now").await?;
    }
    lane.key.evidence.suspicion = None;
    requeue_displaced(lane).await?;
    look_at_unmined(lane).await
}

/// When to look again.
pub(crate) fn next_time(lane: &Lane) -> Option<Instant> {
    if !lane.sharing.enabled {
        return None;
    }
    let look = lane.sharing.look_at.filter(|_| lane.open.iter().any(OpenTx::is_unmined));
    let judge = lane.sharing.judge_at.filter(|_| protect::taken(lane).next().is_some());
    [look, judge].into_iter().flatten().min()
}

/// Where the chain and its mempool stand.
#[derive(Clone, Copy, Debug)]
struct Counts {
    latest: u64,
    /// Mined, or known to the node and next in line.
    pending: u64,
}

async fn ask_counts(lane: &Lane) -> Result<Counts, StepError> {
    let (connector, address) = (&lane.chain.connector, lane.address());
    let (latest, pending) = tokio::try_join!(
        connector.transaction_count(address, BlockTag::Latest),
        connector.transaction_count(address, BlockTag::Pending)
    )?;
    // A node that has no pool to speak of may say less.
    Ok(Counts { latest, pending: pending.max(latest) })
}

/// Before a nonce is given: what others did meanwhile is stepped over. False: it is not clear yet which nonce is next.
pub(crate) async fn catch_up(lane: &mut Lane) -> Result<bool, StepError> {
    if !lane.sharing.enabled {
        return Ok(true);
    }
    if is_recent(lane) {
        return Ok(true);
    }
    let asked_at = Instant::now();
    let counts = ask_counts(lane).await?;
    if !is_believable(lane, counts) {
        lane.hold_until = Some(Instant::now() + RECHECK);
        return Ok(false);
    }
    step_over(lane, counts);
    look_for_vacancy(lane, counts);
    if lane.sharing.vacant.is_some() && lane.sharing.free.is_none() {
        lane.hold_until = Some(Instant::now() + RECHECK);
        return Ok(false);
    }
    lane.sharing.counted_at = Some(asked_at);
    Ok(true)
}

/// Whether the counts are young enough to be believed once more (`nonce.count_max_age`). What others did since then is found when
/// the node refuses the nonce; until then nothing is left to step over, because that was done when they were asked.
fn is_recent(lane: &Lane) -> bool {
    let sharing = &lane.sharing;
    let settled = sharing.vacant.is_none() && sharing.free.is_none() && sharing.far.is_none();
    let age = lane.chain.config.nonce.count_max_age;
    settled && sharing.counted_at.is_some_and(|at| at.elapsed() < age)
}

/// A cursor never falls again, so a count far beyond it is believed only if it is still there a moment later.
fn is_believable(lane: &mut Lane, counts: Counts) -> bool {
    let next = lane.sequence.as_ref().map_or(counts.pending, |sequence| sequence.next.0);
    if counts.pending <= next.saturating_add(FAR) {
        lane.sharing.far = None;
        return true;
    }
    match lane.sharing.far {
        Some((count, since)) if count <= counts.pending => since.elapsed() >= RECHECK,
        _ => {
            lane.sharing.far = Some((counts.pending, Instant::now()));
            false
        }
    }
}

/// The chain is ahead of the cursor: everything of ours is below the cursor, so what is above it is not ours.
fn step_over(lane: &mut Lane, counts: Counts) {
    let Some(sequence) = lane.sequence.as_mut().filter(|sequence| counts.pending > sequence.next.0) else {
        return;
    };
    let first = sequence.next;
    sequence.next = Nonce(counts.pending);
    note(lane, ExternalNonces { first, last: Nonce(counts.pending - 1), cause: ExternalCause::SteppedOver });
}

fn note(lane: &mut Lane, range: ExternalNonces) {
    let how = match range.cause {
        ExternalCause::SteppedOver => "stepped_over",
        ExternalCause::Displaced => "displaced",
    };
    tracing::info!(chain.id = lane.chain.config.id.0, submitter = %lane.lease.key().address_text(),
        fencing_token = lane.lease.token().0, first = range.first.0, last = range.last.0, how,
        "nonces are left to others");
    metrics::counter!(m::EXTERNAL_NONCES_TOTAL, "how" => how).increment(range.count());
    lane.tell(None, EventKind::External { how, count: range.count() });
    lane.sharing.known.push(range);
    lane.sharing.found.push(range);
}

/// A nonce that was left to others, and that the node now knows nothing of, was vacated: their transaction was dropped, or a
/// reorg took it. Everything behind it waits, so it is filled.
fn look_for_vacancy(lane: &mut Lane, counts: Counts) {
    let missing = Nonce(counts.pending);
    let given = lane.sequence.as_ref().is_some_and(|sequence| missing < sequence.next);
    // Where the sequence starts is what a node counted at the first use, and those transactions were not final.
    let before_start = |start: Nonce| missing < start && start.0 - missing.0 <= BEFORE_START;
    let of_others = lane.sharing.known.iter().any(|range| range.contains(missing))
        || lane.sequence.as_ref().is_some_and(|sequence| before_start(sequence.start));
    let ours = lane.open.iter().any(|tx| tx.intent.nonce == missing);
    if !given || !of_others || ours {
        lane.sharing.vacant = None;
        lane.sharing.free = None;
        return;
    }
    match lane.sharing.vacant {
        Some((nonce, since)) if nonce == missing => {
            if since.elapsed() >= VACANT_FOR {
                lane.sharing.free = Some(missing);
                lane.more_queued = true;
            }
        }
        _ => {
            lane.sharing.vacant = Some((missing, Instant::now()));
            lane.sharing.free = None;
        }
    }
}

/// Whether a node mentions it or not: an unmined intent whose nonce the chain counts as used is looked into.
async fn look_at_unmined(lane: &mut Lane) -> Result<(), StepError> {
    if !lane.open.iter().any(OpenTx::is_unmined) || lane.sharing.look_at.is_some_and(|at| Instant::now() < at)
    {
        return Ok(());
    }
    lane.sharing.look_at = Some(Instant::now() + LOOK);
    let head = lane.chain.watcher.head();
    let doubts = lane.sharing.vacant.is_some() || lane.open.iter().any(|tx| tx.suspected.is_some());
    if head == lane.sharing.looked_at_head && !doubts {
        return Ok(());
    }
    lane.sharing.looked_at_head = head;
    let counts = ask_counts(lane).await?;
    look_for_vacancy(lane, counts);
    // By index: nothing leaves the lane before the next commit.
    for index in 0..lane.open.len() {
        let tx = &lane.open[index];
        if tx.is_unmined() && tx.intent.nonce.0 < counts.latest {
            suspect(lane, index).await?;
        }
    }
    Ok(())
}

/// A nonce of ours is used, and none of our hashes was found. Looked into at the second such answer.
pub(super) async fn suspect(lane: &mut Lane, index: usize) -> Result<(), StepError> {
    // The count was too old, or somebody was faster: it is asked for before the next nonce.
    lane.sharing.counted_at = None;
    let tx = &mut lane.open[index];
    match tx.suspected {
        None => {
            tx.suspected = Some(Instant::now());
            tx.due = Instant::now() + RECHECK;
            Ok(())
        }
        Some(since) if since.elapsed() < RECHECK => Ok(()),
        Some(_) => lose(lane, index).await,
    }
}

/// Its nonce is used and none of our hashes is found, at two looks. If the one who used it is found, and final, it has
/// lost its nonce. Not written here: whoever calls may be in the middle of a round over what is open.
async fn lose(lane: &mut Lane, index: usize) -> Result<(), StepError> {
    if lane.sharing.judge_at.is_some_and(|at| Instant::now() < at) {
        return Ok(());
    }
    if !is_dead(lane, index).await? {
        judge_later(lane);
        return Ok(());
    }
    lane.sharing.judge_at = None;
    let tx = &mut lane.open[index];
    tracing::warn!(chain.id = lane.chain.config.id.0, submitter = %lane.lease.key().address_text(),
        tx.id = %tx.intent.tx_id, nonce = tx.intent.nonce.0, "its nonce was used by others of a shared key");
    tx.lose_nonce("its nonce was consumed by a transaction of others", Instant::now());
    lane.moved = true;
    Ok(())
}

/// Whether the bytes of an intent can never be mined: a block that is final holds another transaction at its nonce. That
/// nobody shows ours is not enough.
async fn is_dead(lane: &mut Lane, index: usize) -> Result<bool, StepError> {
    if lane.chain.watcher.saw_any(&lane.open[index].hashes()) {
        return Ok(false);
    }
    let next = lane.sequence.as_ref().map_or(Nonce(0), |sequence| sequence.next);
    protect::count_at_head(lane, next).await;
    let consumer = attribution::who_consumed(lane, index).await;
    let tx_id = lane.open[index].intent.tx_id;
    match consumer {
        Consumer::Other { is_final, .. } => return Ok(is_final),
        Consumer::Ours(receipt) => track::included(lane, receipt),
        Consumer::Nobody | Consumer::OursWithoutReceipt(_) => {}
        Consumer::Unknown(why) => {
            tracing::warn!(chain.id = lane.chain.config.id.0, submitter = %lane.lease.key().address_text(),
                tx.id = %tx_id, why, "who used its nonce could not be found out; it keeps it meanwhile");
        }
    }
    Ok(false)
}

/// Intents that lost their nonce, by this lane or by one before it, go back to the head of the queue. Asked once more: the
/// rows may be those of a strict lane.
async fn requeue_displaced(lane: &mut Lane) -> Result<(), StepError> {
    if protect::taken(lane).next().is_none() || lane.sharing.judge_at.is_some_and(|at| Instant::now() < at) {
        return Ok(());
    }
    let mut displaced = false;
    for index in 0..lane.open.len() {
        if lane.open[index].state() != TxState::Protect || !is_dead(lane, index).await? {
            continue;
        }
        let tx = &mut lane.open[index];
        if tx.state_on_disk() != TxState::Protect {
            // Written first that it lost its nonce: the machine has no shorter way.
            lane.moved = true;
            continue;
        }
        let nonce = tx.intent.nonce;
        displace(tx);
        note(lane, ExternalNonces { first: nonce, last: nonce, cause: ExternalCause::Displaced });
        displaced = true;
    }
    if displaced {
        lane.sharing.judge_pause = Duration::ZERO;
        lane.queue.clear();
        lane.more_queued = true;
        lane.flush().await?;
    }
    lane.sharing.judge_at = None;
    if protect::taken(lane).next().is_some() {
        judge_later(lane);
    }
    Ok(())
}

/// The proof is missing: asked for again, ever more rarely.
fn judge_later(lane: &mut Lane) {
    lane.sharing.judge_pause = (lane.sharing.judge_pause * 2).clamp(RECHECK, LONGEST_PAUSE);
    lane.sharing.judge_at = Some(Instant::now() + lane.sharing.judge_pause);
}

/// Back to the queue: its bytes are dead, so its effect can still happen once.
pub(super) fn displace(tx: &mut OpenTx) {
    if tx.intent.reservation.is_some() {
        // Its caller made it for the nonce that it saw.
        let reason = "the nonce that its caller was shown was taken from outside".to_owned();
        tx.give_up(Ending { state: TxState::Failed, code: ErrorCode::NonceTaken, reason });
    }
    tx.enter(TxState::Queued);
    tx.intent.gas_params = None;
    tx.complain(
        Some("displaced"),
        Some(TxError::new(ErrorCode::Displaced, "its nonce was taken by a transaction from outside")),
    );
}
