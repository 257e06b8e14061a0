//! Compares the chain's transaction count with the sequence: at first use, after every claim, and when a nonce turns
//! out to be used. Decides PROTECT and SUSPECT.
//!
//! A count above the sequence in a final block proves external use of the key: PROTECT. For a consumed nonce of an
//! open intent, only the transaction that consumed it is evidence (`attribution`). Until it is found the submitter is
//! SUSPECT: no new nonces, everything else continues. One check is never enough: nodes lag and disagree.

use std::time::Duration;

use gapless_chain::{BlockId, BlockTag, MinedTx};
use gapless_domain::{CountAt, EventKind, Nonce, TxId, TxState};
use gapless_store::{Cursor, Evidence};
use tokio::time::Instant;

use super::attribution::{self, BlockSearch, Consumer};
use super::pending_use::{self, PendingUse};
use super::{shared_key, track};
use crate::lane::{Lane, OpenTx, StepError};

/// Minimum pause between two checks.
pub(super) const RECHECK: Duration = Duration::from_millis(700);
/// Maximum pause between two checks in PROTECT.
pub(super) const MAX_PAUSE: Duration = Duration::from_secs(60);
/// Maximum pause between two checks in SUSPECT. Shorter, because requests wait for the result.
const MAX_SUSPECT_PAUSE: Duration = Duration::from_secs(10);
/// An older bound, in blocks, is renewed when the rows are read.
const OLD_BOUND: u64 = 256;

const USED_OUTSIDE: &str = "the key was used outside Gapless";

/// What a lane may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Allowed {
    Everything,
    /// Existing attempts are sent; no new nonces.
    OpenOnly,
    Nothing,
}

/// State of the key check. Only the evidence is persisted.
#[derive(Debug, Default)]
pub(crate) struct KeyState {
    evidence: Evidence,
    pub(super) search: BlockSearch,
    pub(super) pending_use: PendingUse,
    /// The chain's count was compared with the sequence since the rows were read.
    checked: bool,
    /// Since when a mismatch is unexplained.
    doubted_since: Option<Instant>,
    /// Time of the next check, and the growing pause before it.
    recheck_at: Option<Instant>,
    pause: Duration,
    /// A nonce in PROTECT turned out to be ours.
    false_alarm: bool,
    /// A sequence in PROTECT matched the chain at the last check.
    matched_once: bool,
}

impl KeyState {
    /// The rows were reloaded. The block search is retained: if rows were reloaded more often than blocks are read, a
    /// fresh search would never finish.
    pub(crate) fn read_again(self, evidence: Evidence) -> KeyState {
        let pending_use = PendingUse::loaded(evidence.suspicion.as_deref());
        KeyState { evidence, pending_use, search: self.search, ..KeyState::default() }
    }

    /// The rows contain an unexplained used nonce, found by a previous owner or before the reload: the next check is
    /// not the first.
    pub(crate) fn doubted_before(&mut self) {
        self.doubted_since = Instant::now().checked_sub(RECHECK);
    }

    pub(crate) fn recheck_at(&self) -> Option<Instant> {
        self.recheck_at
    }

    pub(crate) fn is_doubted(&self) -> bool {
        self.doubted_since.is_some() || self.evidence.suspicion.is_some()
    }

    pub(crate) fn evidence(&self) -> &Evidence {
        &self.evidence
    }

    /// The suspicion is settled otherwise: by an operator, or because external use of the key is expected now.
    pub(super) fn drop_suspicion(&mut self) {
        self.evidence.suspicion = None;
    }

    /// One of our transactions with this block is final, and no earlier nonce is open.
    pub(super) fn own_final(&mut self, block: u64) {
        self.evidence.bounds.own_final(block);
    }

    /// A nonce in PROTECT is ours after all: the next step ends PROTECT.
    pub(super) fn nonce_is_ours(&mut self) {
        self.false_alarm = true;
    }

    /// Restarts the check with the next step.
    pub(super) fn reset_check(&mut self) {
        self.checked = false;
        self.doubted_since = None;
        self.recheck_at = None;
        self.pause = Duration::ZERO;
        self.false_alarm = false;
    }

    fn schedule_recheck(&mut self, longest: Duration) {
        self.pause = (self.pause * 2).clamp(RECHECK, longest);
        self.recheck_at = Some(Instant::now() + self.pause);
    }
}

/// Whether new nonces may be assigned and bytes be sent. Rechecks a key in PROTECT for a false alarm.
pub(crate) async fn allowed(lane: &mut Lane) -> Result<Allowed, StepError> {
    let Some(sequence) = lane.rows.sequence().cloned() else { return Ok(Allowed::Everything) };
    if lane.sharing.enabled {
        shared_key::advance(lane).await?;
        return Ok(Allowed::Everything);
    }
    if sequence.protect.is_some() {
        watch_protected(lane, &sequence).await?;
        return Ok(Allowed::Nothing);
    }
    if in_protect(lane).next().is_some() {
        // The nonce was consumed while the key was shared. Now that it is exclusive, an operator decides.
        protect(lane, USED_OUTSIDE, "an intent lost its nonce while the key was shared", None);
        lane.flush().await?;
        return Ok(Allowed::Nothing);
    }
    if lane.key.checked {
        pending_use::check_periodically(lane, sequence.next).await;
        // If a check is required now, the next step runs it, and no nonce is assigned until then.
        return Ok(if lane.key.checked { Allowed::Everything } else { Allowed::OpenOnly });
    }
    if lane.key.recheck_at.is_some_and(|at| Instant::now() < at) {
        return Ok(Allowed::OpenOnly);
    }
    check(lane, sequence.next).await
}

/// Compares the chain with the sequence, and searches for the transactions that explain a mismatch.
async fn check(lane: &mut Lane, next: Nonce) -> Result<Allowed, StepError> {
    // Cheap, because it is batched with the counts of other lanes. It names no block, so it can only clear a
    // suspicion.
    let count = lane.chain.connector.transaction_count(lane.address(), BlockTag::Latest);
    let (latest, pending) = tokio::join!(count, pending_use::check(lane, next));
    let latest = latest?;
    lane.key.pending_use.update(pending);
    if latest <= next.0 && unexplained(lane, latest).is_empty() && !lane.key.pending_use.detected {
        renew_old_bound(lane, next).await;
        return clear_suspicion(lane).await;
    }
    let since = *lane.key.doubted_since.get_or_insert_with(Instant::now);
    if since.elapsed() >= RECHECK
        && lane.key.evidence.suspicion.is_none()
        && let Some(index) = unexplained(lane, latest).first()
    {
        // The search may take long; SUSPECT is shown meanwhile.
        let tx_id = lane.rows.open[*index].intent.tx_id;
        raise_suspicion(
            lane,
            Some(tx_id),
            format!("the nonce of intent {tx_id} is consumed; searching for the consuming transaction"),
        )
        .await?;
    }
    let counted = count_at_head(lane, next).await;
    let (mut reasons, mut consumed) = (Vec::new(), Vec::new());
    for index in unexplained(lane, latest) {
        let tx_id = lane.rows.open[index].intent.tx_id;
        let unsure = |why: String| format!("the nonce of intent {tx_id} is consumed, but {why}");
        match attribution::find_consumer(lane, index).await {
            Consumer::Ours(receipt) => track::included(lane, receipt),
            Consumer::External { tx, is_final: true } => consumed.push((index, tx)),
            Consumer::External { tx, is_final: false } => reasons.push(unsure(format!(
                "external transaction {:#x} in block {} is not final yet",
                tx.tx_hash, tx.block.number
            ))),
            Consumer::OursWithoutReceipt(tx) => reasons.push(unsure(format!(
                "no node shows the receipt of our own transaction {:#x} in block {}",
                tx.tx_hash, tx.block.number
            ))),
            Consumer::NotConsumed => reasons.push(unsure("no known block counts it".to_owned())),
            Consumer::Unknown(why) => reasons.push(unsure(why)),
        }
    }
    if !consumed.is_empty() {
        for (index, tx) in &consumed {
            lose_nonce(lane, *index, tx);
        }
        let (index, tx) = consumed[0];
        let detail = format!(
            "transaction {:#x} in block {} consumed the nonce of intent {}",
            tx.tx_hash, tx.block.number, lane.rows.open[index].intent.tx_id
        );
        protect(lane, USED_OUTSIDE, &detail, Some(tx.tx_hash));
        lane.key.evidence.suspicion = (!reasons.is_empty()).then(|| reasons.join("; "));
        lane.flush().await?;
        return Ok(Allowed::Nothing);
    }
    let is_second_check = since.elapsed() >= RECHECK;
    if latest > next.0 {
        let detail = format!("the chain counts {latest} transactions, this sequence explains {next}");
        if is_second_check && final_count(lane).await.is_some_and(|count| count > next.0) {
            protect(lane, USED_OUTSIDE, &detail, None);
            lane.key.evidence.suspicion = (!reasons.is_empty()).then(|| reasons.join("; "));
            lane.flush().await?;
            return Ok(Allowed::Nothing);
        }
        let missing = if counted.is_some() { "not yet in a final block" } else { "not yet at a known block" };
        reasons.push(format!("{detail}, {missing}"));
    } else if lane.key.pending_use.detected {
        reasons.push(pending_use::REASON.to_owned());
    }
    if reasons.is_empty() {
        return clear_suspicion(lane).await;
    }
    if is_second_check {
        let concerned = unexplained(lane, latest).first().map(|index| lane.rows.open[*index].intent.tx_id);
        raise_suspicion(lane, concerned, reasons.join("; ")).await?;
    }
    lane.key.schedule_recheck(MAX_SUSPECT_PAUSE);
    Ok(Allowed::OpenOnly)
}

/// Unmined open intents without a receipt whose nonce the chain counts as used.
fn unexplained(lane: &Lane, count: u64) -> Vec<usize> {
    let is_open = |tx: &OpenTx| tx.intent.receipt.is_none() && tx.is_unmined();
    let open = lane.rows.open.iter().enumerate().filter(|(_, tx)| is_open(tx) && tx.intent.nonce.0 < count);
    open.map(|(index, _)| index).collect()
}

/// The chain matches the sequence: ends a suspicion.
async fn clear_suspicion(lane: &mut Lane) -> Result<Allowed, StepError> {
    lane.key.checked = true;
    lane.key.doubted_since = None;
    lane.key.recheck_at = None;
    lane.key.pause = Duration::ZERO;
    lane.key.search = BlockSearch::default();
    lane.key.evidence.bounds.above = None;
    if let Some(suspicion) = lane.key.evidence.suspicion.take() {
        tracing::info!(suspicion, "no longer SUSPECT: every consumed nonce is explained");
        lane.rows.expect_more();
        lane.flush().await?;
    }
    Ok(Allowed::Everything)
}

/// Enters SUSPECT and commits it at once, so that the next owner continues with it.
async fn raise_suspicion(lane: &mut Lane, tx_id: Option<TxId>, reason: String) -> Result<(), StepError> {
    if lane.key.evidence.suspicion.as_ref() == Some(&reason) {
        return Ok(());
    }
    if lane.key.evidence.suspicion.is_none() {
        tracing::error!(
            tx.id = tx_id.map(tracing::field::display),
            reason,
            "SUSPECT: no new nonces until this is explained"
        );
    }
    lane.key.evidence.suspicion = Some(reason);
    lane.flush().await
}

/// The transaction count at the watcher's head. Updates the bounds. `None`: no node returned it.
pub(super) async fn count_at_head(lane: &mut Lane, next: Nonce) -> Option<CountAt> {
    let watcher = lane.chain.watcher.clone();
    let head = watcher.head_block()?;
    lane.key
        .evidence
        .bounds
        .forget_replaced(|number, hash| watcher.has_replaced(BlockId { number, hash }) == Some(true));
    let count = match lane.chain.connector.transaction_count_at(lane.address(), head).await {
        Ok(count) => count,
        Err(error) => {
            tracing::debug!(error = %error, block = head.number,
                "could not read the transaction count at the head");
            return None;
        }
    };
    let at = CountAt { block: head.number, hash: head.hash, count };
    let oldest =
        lane.rows.open.iter().find(|tx| tx.intent.receipt.is_none()).map_or(next, |tx| tx.intent.nonce);
    lane.key.evidence.bounds.counted(at, oldest, next);
    Some(at)
}

/// Renews an old lower bound, which would make a later block search long.
async fn renew_old_bound(lane: &mut Lane, next: Nonce) {
    let below = lane.key.evidence.bounds.below.map(|below| below.block);
    let head = lane.chain.watcher.head().unwrap_or_default();
    if below.is_none_or(|below| below + OLD_BOUND < head) {
        count_at_head(lane, next).await;
    }
}

/// Before a resend by timer: updates the bounds, and requires a check if a nonce was consumed meanwhile.
pub(super) async fn note_count(lane: &mut Lane) {
    let Some(next) = lane.rows.sequence().map(|sequence| sequence.next) else { return };
    if lane.sharing.enabled {
        return;
    }
    if let Some(at) = count_at_head(lane, next).await
        && !unexplained(lane, at.count).is_empty()
    {
        require_check(lane);
    }
}

/// Has the next step check the key, because the chain may not match the sequence.
pub(super) fn require_check(lane: &mut Lane) {
    lane.key.checked = false;
    lane.step_again();
}

/// The highest known count at a final block: from a state that nodes still have, or from a count read when the block
/// was the head.
pub(super) async fn final_count(lane: &Lane) -> Option<u64> {
    let height = lane.chain.watcher.final_height()?;
    let mut known = None;
    if let Ok(Some(hash)) = track::canonical_hash(lane, height).await {
        let block = BlockId { number: height, hash };
        known = lane.chain.connector.transaction_count_at(lane.address(), block).await.ok();
    }
    if let Some(above) = lane.key.evidence.bounds.above
        && attribution::is_final(lane, BlockId { number: above.block, hash: above.hash }).await
    {
        known = known.max(Some(above.count));
    }
    known
}

/// Creates the sequence at first use. An exclusive address with a history enters PROTECT instead.
pub(crate) async fn first_use(lane: &mut Lane) -> Result<bool, StepError> {
    if lane.rows.sequence().is_some() {
        return Ok(true);
    }
    let count = lane.chain.connector.transaction_count(lane.address(), BlockTag::Latest);
    let sequence_start = Nonce(lane.chain.config.nonce.start_from);
    let (count, pending) = tokio::join!(count, pending_use::check(lane, sequence_start));
    let count = count?;
    // A shared key may have any history.
    let start = if lane.sharing.enabled { Nonce(count) } else { sequence_start };
    let window = lane.window();
    lane.rows.begin_sequence(start, window);
    lane.key.checked = true;
    if count == start.0 {
        // Written with the first nonce, or at the end of the step. If another row exists, the insert and the whole
        // commit fail.
        renew_old_bound(lane, start).await;
        if !lane.sharing.enabled {
            lane.key.pending_use.update(pending);
        }
        if lane.key.pending_use.detected {
            require_check(lane);
            return Ok(false);
        }
        return Ok(true);
    }
    let detail = format!(
        "the chain counts {count} transactions, the sequence would start from {start}; \
         adopt to start from the chain's count"
    );
    protect(lane, "the address has a history", &detail, None);
    lane.flush().await?;
    Ok(false)
}

/// An external transaction in a final block consumed the nonce of this intent.
pub(super) fn lose_nonce(lane: &mut Lane, index: usize, by: &MinedTx) {
    let detail = format!(
        "its nonce was consumed by external transaction {:#x} in block {}",
        by.tx_hash, by.block.number
    );
    lane.rows.open[index].lose_nonce(&detail, Instant::now());
}

fn protect(lane: &mut Lane, cause: &str, detail: &str, tx_hash: Option<gapless_domain::H256>) {
    let reason = format!("{cause}: {detail}");
    let tx_id = in_protect(lane).next().map(|tx| tx.intent.tx_id);
    tracing::error!(
        tx.id = tx_id.map(tracing::field::display),
        reason = reason,
        "PROTECT: the lane stops until an operator releases it"
    );
    lane.key.reset_check();
    lane.key.schedule_recheck(MAX_PAUSE);
    lane.rows.enter_protect(reason);
    // The event has only the cause; counts and nonces are for operators.
    lane.emit_event(None, EventKind::Protected { reason: cause.to_owned(), tx_hash });
}

/// Searches for the consumers of all open, consumed nonces: our own transactions are tracked, and an intent whose
/// nonce a final external transaction consumed enters PROTECT. Commits the result, and returns what is not explained.
pub(super) async fn explain_open(lane: &mut Lane) -> Result<Vec<String>, StepError> {
    let Some(next) = lane.rows.sequence().map(|sequence| sequence.next) else { return Ok(Vec::new()) };
    let Some(at) = count_at_head(lane, next).await else {
        return Ok(vec!["no node returned the transaction count at the head".to_owned()]);
    };
    let mut reasons = Vec::new();
    let concerned = |tx: &OpenTx| tx.intent.receipt.is_none() && !tx.state().is_terminal();
    for index in 0..lane.rows.open.len() {
        let tx = &lane.rows.open[index];
        if !concerned(tx) || tx.intent.nonce.0 >= at.count {
            continue;
        }
        let tx_id = tx.intent.tx_id;
        match attribution::find_consumer(lane, index).await {
            Consumer::Ours(receipt) => track::included(lane, receipt),
            Consumer::External { tx, is_final: true } if lane.rows.open[index].state() != TxState::Protect => {
                lose_nonce(lane, index, &tx);
            }
            Consumer::External { is_final: true, .. } => {}
            Consumer::External { tx, is_final: false } => {
                reasons.push(format!(
                    "transaction {:#x} consumed the nonce of intent {tx_id} and is not final yet",
                    tx.tx_hash
                ));
            }
            Consumer::OursWithoutReceipt(tx) => reasons.push(format!(
                "our own transaction {:#x} of intent {tx_id} is in block {}; wait until a node shows its receipt",
                tx.tx_hash, tx.block.number
            )),
            Consumer::NotConsumed => {
                reasons.push(format!("the nonce of intent {tx_id} is in no known block"));
            }
            Consumer::Unknown(why) => reasons.push(format!(
                "the nonce of intent {tx_id} is consumed, and no node shows by which transaction: {why}"
            )),
        }
    }
    lane.flush().await?;
    Ok(reasons)
}

/// Rechecks a lane in PROTECT with growing pauses: if the nonce turns out to be ours, or the count matches twice, it
/// was a false alarm and PROTECT ends.
async fn watch_protected(lane: &mut Lane, sequence: &Cursor) -> Result<(), StepError> {
    if lane.key.false_alarm && in_protect(lane).next().is_none() {
        return lift_protection(lane, "false alarm: the nonce was used by one of our own transactions").await;
    }
    if lane.key.recheck_at.is_some_and(|at| Instant::now() < at) {
        return Ok(());
    }
    lane.key.schedule_recheck(MAX_PAUSE);
    let unexplained = explain_open(lane).await?;
    let suspicion = (!unexplained.is_empty()).then(|| unexplained.join("; "));
    if lane.key.evidence.suspicion != suspicion {
        lane.key.evidence.suspicion = suspicion;
        lane.flush().await?;
    }
    if in_protect(lane).next().is_some() {
        return Ok(());
    }
    let matches = unexplained.is_empty()
        && count_at_head(lane, sequence.next).await.is_some_and(|at| at.count <= sequence.next.0);
    if matches && lane.key.matched_once {
        return lift_protection(lane, "false alarm: the chain agrees with the sequence").await;
    }
    lane.key.matched_once = matches;
    Ok(())
}

/// Open intents in PROTECT: their nonce was consumed externally.
pub(super) fn in_protect(lane: &Lane) -> impl Iterator<Item = &OpenTx> {
    lane.rows.open.iter().filter(|tx| tx.state() == TxState::Protect)
}

pub(super) async fn lift_protection(lane: &mut Lane, why: &str) -> Result<(), StepError> {
    tracing::info!(why, "protection lifted");
    lane.rows.leave_protect();
    lane.key.reset_check();
    lane.emit_event(None, EventKind::Released { reason: why.to_owned() });
    lane.flush().await
}
