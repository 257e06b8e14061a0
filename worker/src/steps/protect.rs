//! The guard of the sequence: the chain's count against ours, at first use, after every claim, and whenever a nonce turns out
//! to be used.
//!
//! A count above the sequence, in a final block, shows that the key was used elsewhere: PROTECT. A consumed nonce of an open
//! intent is another matter: only the transaction that consumed it, shown by name (`attribution`), says whose it was. Until
//! then the submitter is SUSPECT: no new nonces, everything else goes on. One look is never enough: nodes lag and disagree.

use std::time::Duration;

use gapless::chain::{BlockId, BlockTag, MinedTx};
use gapless::domain::{CountAt, EventKind, Nonce, TxId, TxState};
use gapless::store::Evidence;
use tokio::time::Instant;

use super::attribution::{self, Consumer, Reading};
use super::pending_use::{self, PendingUse};
use super::{shared_key, track};
use crate::lane::{Lane, OpenTx, Sequence, StepError};

/// Between two looks at a doubted key, and between two looks at a protected one.
pub(super) const RECHECK: Duration = Duration::from_millis(700);
/// A protected key is looked at this often at the least.
pub(super) const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// A SUSPECT one is waited for by requests.
const LONGEST_SUSPECT_PAUSE: Duration = Duration::from_secs(10);
/// A bound that is older is renewed when the rows are read.
const OLD_BOUND: u64 = 256;

const USED_OUTSIDE: &str = "the key was used outside";

/// What a lane may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Allowed {
    Everything,
    /// Bytes that exist go on; no new nonce is given.
    OpenOnly,
    Nothing,
}

/// What is known of the key. Of it only the evidence is on disk.
#[derive(Debug, Default)]
pub(crate) struct KeyState {
    pub(crate) evidence: Evidence,
    pub(super) reading: Reading,
    pub(super) pending_use: PendingUse,
    /// The chain's count was compared with the sequence since the rows were read.
    pub(super) checked: bool,
    /// Since when something is not explained.
    doubted_since: Option<Instant>,
    /// When to look again, and the pause before that; grows.
    pub(super) recheck_at: Option<Instant>,
    pause: Duration,
    /// A nonce that was thought to be someone else's turned out to be ours.
    pub(super) false_alarm: bool,
    /// A protected sequence fitted the chain at the last look.
    fitted_once: bool,
}

impl KeyState {
    /// The rows were read again. What blocks hold does not change with them: whoever reads on would never come to an end if the rows
    /// were read more often than blocks.
    pub(crate) fn read_again(self, evidence: Evidence) -> KeyState {
        let pending_use = PendingUse::loaded(evidence.suspicion.as_deref());
        KeyState { evidence, pending_use, reading: self.reading, ..KeyState::default() }
    }

    /// The rows say that a nonce was found used and not explained, by a former owner or before the rows were read again: the next look
    /// is not the first.
    pub(crate) fn doubted_before(&mut self) {
        self.doubted_since = Instant::now().checked_sub(RECHECK);
    }

    pub(crate) fn recheck_at(&self) -> Option<Instant> {
        self.recheck_at
    }

    pub(crate) fn is_doubted(&self) -> bool {
        self.doubted_since.is_some() || self.evidence.suspicion.is_some()
    }

    /// An operator decided, or it turned out to be fine: the next turn looks anew.
    pub(super) fn look_anew(&mut self) {
        self.checked = false;
        self.doubted_since = None;
        self.recheck_at = None;
        self.pause = Duration::ZERO;
        self.false_alarm = false;
    }

    fn look_later(&mut self, longest: Duration) {
        self.pause = (self.pause * 2).clamp(RECHECK, longest);
        self.recheck_at = Some(Instant::now() + self.pause);
    }
}

/// Whether new nonces may be given and bytes be sent. Watches a protected key for a false alarm.
pub(crate) async fn allowed(lane: &mut Lane) -> Result<Allowed, StepError> {
    let Some(sequence) = lane.sequence.clone() else { return Ok(Allowed::Everything) };
    if lane.sharing.enabled {
        shared_key::settle(lane).await?;
        return Ok(Allowed::Everything);
    }
    if sequence.protect.is_some() {
        watch_protected(lane, &sequence).await?;
        return Ok(Allowed::Nothing);
    }
    if taken(lane).next().is_some() {
        // It happened while the key was shared. Now that it is not, an operator decides.
        protect(lane, USED_OUTSIDE, "an intent lost its nonce while the key was shared", None);
        lane.flush().await?;
        return Ok(Allowed::Nothing);
    }
    if lane.key.checked {
        pending_use::glance(lane, sequence.next).await;
        // In doubt: the next turn looks into it, and gives no nonce meanwhile.
        return Ok(if lane.key.checked { Allowed::Everything } else { Allowed::OpenOnly });
    }
    if lane.key.recheck_at.is_some_and(|at| Instant::now() < at) {
        return Ok(Allowed::OpenOnly);
    }
    check(lane, sequence.next).await
}

/// Compares the chain with the sequence, and explains what does not fit as far as that is possible.
async fn check(lane: &mut Lane, next: Nonce) -> Result<Allowed, StepError> {
    // The cheap look, batched with those of other lanes. It cannot be held against a block, so it only clears.
    let count = lane.chain.connector.transaction_count(lane.address(), BlockTag::Latest);
    let (latest, pending) = tokio::join!(count, pending_use::look(lane, next));
    let latest = latest?;
    lane.key.pending_use.note(pending);
    if latest <= next.0 && unexplained(lane, latest).is_empty() && !lane.key.pending_use.waits {
        renew_old_bound(lane, next).await;
        return explained(lane).await;
    }
    let since = *lane.key.doubted_since.get_or_insert_with(Instant::now);
    if since.elapsed() >= RECHECK
        && lane.key.evidence.suspicion.is_none()
        && let Some(index) = unexplained(lane, latest).first()
    {
        // The look may take long; that there is something to look for is shown meanwhile.
        let tx_id = lane.open[*index].intent.tx_id;
        raise(
            lane,
            Some(tx_id),
            format!("the nonce of intent {tx_id} is consumed, and by what is being looked for"),
        )
        .await?;
    }
    let counted = count_at_head(lane, next).await;
    let (mut reasons, mut named) = (Vec::new(), Vec::new());
    for index in unexplained(lane, latest) {
        let tx_id = lane.open[index].intent.tx_id;
        let unsure = |why: String| format!("the nonce of intent {tx_id} is consumed, and {why}");
        match attribution::who_consumed(lane, index).await {
            Consumer::Ours(receipt) => track::included(lane, receipt),
            Consumer::Other { tx, is_final: true } => named.push((index, tx)),
            Consumer::Other { tx, is_final: false } => reasons.push(unsure(format!(
                "transaction {:#x} from elsewhere, in block {}, is not final yet",
                tx.tx_hash, tx.block.number
            ))),
            Consumer::OursWithoutReceipt(tx) => reasons.push(unsure(format!(
                "our own transaction {:#x} is in block {}, but no node shows its receipt",
                tx.tx_hash, tx.block.number
            ))),
            Consumer::Nobody => reasons.push(unsure("no block that is known here counts it".to_owned())),
            Consumer::Unknown(why) => reasons.push(unsure(why)),
        }
    }
    if !named.is_empty() {
        for (index, tx) in &named {
            lose(lane, *index, tx);
        }
        let (index, tx) = named[0];
        let detail = format!(
            "transaction {:#x} in block {} took the nonce of intent {}",
            tx.tx_hash, tx.block.number, lane.open[index].intent.tx_id
        );
        protect(lane, USED_OUTSIDE, &detail, Some(tx.tx_hash));
        lane.key.evidence.suspicion = (!reasons.is_empty()).then(|| reasons.join("; "));
        lane.flush().await?;
        return Ok(Allowed::Nothing);
    }
    let is_second_look = since.elapsed() >= RECHECK;
    if latest > next.0 {
        let detail = format!("the chain counts {latest} transactions, this sequence explains {next}");
        if is_second_look && final_count(lane).await.is_some_and(|count| count > next.0) {
            protect(lane, USED_OUTSIDE, &detail, None);
            lane.key.evidence.suspicion = (!reasons.is_empty()).then(|| reasons.join("; "));
            lane.flush().await?;
            return Ok(Allowed::Nothing);
        }
        let where_ = if counted.is_some() { "in no final block" } else { "at no block that is known here" };
        reasons.push(format!("{detail}, {where_} yet"));
    } else if lane.key.pending_use.waits {
        reasons.push(pending_use::WAITS.to_owned());
    }
    if reasons.is_empty() {
        return explained(lane).await;
    }
    if is_second_look {
        let concerned = unexplained(lane, latest).first().map(|index| lane.open[*index].intent.tx_id);
        raise(lane, concerned, reasons.join("; ")).await?;
    }
    lane.key.look_later(LONGEST_SUSPECT_PAUSE);
    Ok(Allowed::OpenOnly)
}

/// Open intents whose nonce the chain counts as used, and that no receipt explains.
fn unexplained(lane: &Lane, count: u64) -> Vec<usize> {
    let is_open = |tx: &OpenTx| tx.intent.receipt.is_none() && tx.is_unmined();
    let open = lane.open.iter().enumerate().filter(|(_, tx)| is_open(tx) && tx.intent.nonce.0 < count);
    open.map(|(index, _)| index).collect()
}

/// Everything fits: a suspicion is over.
async fn explained(lane: &mut Lane) -> Result<Allowed, StepError> {
    lane.key.checked = true;
    lane.key.doubted_since = None;
    lane.key.recheck_at = None;
    lane.key.pause = Duration::ZERO;
    lane.key.reading = Reading::default();
    lane.key.evidence.bounds.above = None;
    if let Some(suspicion) = lane.key.evidence.suspicion.take() {
        tracing::info!(chain.id = lane.chain.config.id.0, submitter = %lane.lease.key().address_text(),
            fencing_token = lane.lease.token().0, suspicion, "no longer SUSPECT: every consumed nonce is explained");
        lane.more_queued = true;
        lane.flush().await?;
    }
    Ok(Allowed::Everything)
}

/// SUSPECT, on disk before anything else happens: whoever owns the submitter next knows it.
async fn raise(lane: &mut Lane, tx_id: Option<TxId>, reason: String) -> Result<(), StepError> {
    if lane.key.evidence.suspicion.as_ref() == Some(&reason) {
        return Ok(());
    }
    if lane.key.evidence.suspicion.is_none() {
        tracing::error!(chain.id = lane.chain.config.id.0, submitter = %lane.lease.key().address_text(),
            tx.id = tx_id.map(tracing::field::display), worker.id = %lane.context.worker_id,
            fencing_token = lane.lease.token().0, reason, "SUSPECT: no new nonces until this is explained");
    }
    lane.key.evidence.suspicion = Some(reason);
    lane.flush().await
}

/// What the chain counts at the head, as the watcher knows it. Keeps the bounds. `None`: no node could say.
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
            tracing::debug!(chain.id = lane.chain.config.id.0, submitter = %lane.lease.key().address_text(),
                error = %error, block = head.number, "no count at the head");
            return None;
        }
    };
    let at = CountAt { block: head.number, hash: head.hash, count };
    let oldest = lane.open.iter().find(|tx| tx.intent.receipt.is_none()).map_or(next, |tx| tx.intent.nonce);
    lane.key.evidence.bounds.counted(at, oldest, next);
    Some(at)
}

/// A lower bound far in the past would make a long search of a short one.
async fn renew_old_bound(lane: &mut Lane, next: Nonce) {
    let below = lane.key.evidence.bounds.below.map(|below| below.block);
    let head = lane.chain.watcher.head().unwrap_or_default();
    if below.is_none_or(|below| below + OLD_BOUND < head) {
        count_at_head(lane, next).await;
    }
}

/// Before the same bytes go out by timer: a nonce that was consumed meanwhile is looked into, and if not, this is how far that
/// is known.
pub(super) async fn note_count(lane: &mut Lane) {
    let Some(next) = lane.sequence.as_ref().map(|sequence| sequence.next) else { return };
    if lane.sharing.enabled {
        return;
    }
    if let Some(at) = count_at_head(lane, next).await
        && !unexplained(lane, at.count).is_empty()
    {
        doubt(lane);
    }
}

/// A nonce of ours seems to be used, and none of our hashes was found: the next turn looks into it.
pub(super) fn doubt(lane: &mut Lane) {
    lane.key.checked = false;
    lane.moved = true;
}

/// The highest count known of a final block, from a state that nodes still have, or from a count that was taken when the block
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

/// Creates the sequence at first use. An address with history is not taken over silently.
pub(crate) async fn first_use(lane: &mut Lane) -> Result<bool, StepError> {
    if lane.sequence.is_some() {
        return Ok(true);
    }
    let count = lane.chain.connector.transaction_count(lane.address(), BlockTag::Latest);
    let sequence_start = Nonce(lane.chain.config.nonce.start_from);
    let (count, pending) = tokio::join!(count, pending_use::look(lane, sequence_start));
    let count = count?;
    // Others may have used a shared key as often as they like.
    let start = if lane.sharing.enabled { Nonce(count) } else { sequence_start };
    lane.sequence = Some(Sequence {
        start,
        next: start,
        protect: None,
        max_in_flight: lane.window(),
        in_flight: None,
        open_from: start,
        delegated: false,
    });
    lane.key.checked = true;
    if count == start.0 {
        // Written with the first nonce, or at the end of the turn: the insert meets no other, or all of it fails.
        renew_old_bound(lane, start).await;
        if !lane.sharing.enabled {
            lane.key.pending_use.note(pending);
        }
        if lane.key.pending_use.waits {
            doubt(lane);
            return Ok(false);
        }
        return Ok(true);
    }
    let detail = format!(
        "the chain counts {count} transactions, the sequence would start from {start}; \
         adopt it to start from the chain's count"
    );
    protect(lane, "the address has a history", &detail, None);
    lane.flush().await?;
    Ok(false)
}

/// A transaction from elsewhere, shown by name in a final block, took the nonce of this intent.
pub(super) fn lose(lane: &mut Lane, index: usize, by: &MinedTx) {
    let detail = format!(
        "its nonce was taken by transaction {:#x} from elsewhere, in block {}",
        by.tx_hash, by.block.number
    );
    lane.open[index].lose_nonce(&detail, Instant::now());
}

fn protect(lane: &mut Lane, cause: &str, detail: &str, tx_hash: Option<gapless::domain::H256>) {
    let reason = format!("{cause}: {detail}");
    let tx_id = taken(lane).next().map(|tx| tx.intent.tx_id);
    tracing::error!(chain.id = lane.chain.config.id.0, submitter = %lane.lease.key().address_text(),
        tx.id = tx_id.map(tracing::field::display), worker.id = %lane.context.worker_id,
        fencing_token = lane.lease.token().0, reason = reason, "PROTECT: the lane stops until an operator releases it");
    lane.key.look_anew();
    lane.key.look_later(LONGEST_PAUSE);
    if let Some(sequence) = &mut lane.sequence {
        sequence.protect = Some(reason);
    }
    // Consumers of events are told what kind of thing happened; counts and nonces are for operators.
    lane.tell(None, EventKind::Protected { reason: cause.to_owned(), tx_hash });
}

/// What is open and consumed, as far as it is explained: ours is followed, what somebody else finally took is lost. On disk
/// before an operator's decision rests on it. Answers what is not explained.
pub(super) async fn explain_open(lane: &mut Lane) -> Result<Vec<String>, StepError> {
    let Some(next) = lane.sequence.as_ref().map(|sequence| sequence.next) else { return Ok(Vec::new()) };
    let Some(at) = count_at_head(lane, next).await else {
        return Ok(vec!["no node says what the chain counts at the head".to_owned()]);
    };
    let mut open = Vec::new();
    let concerned = |tx: &OpenTx| tx.intent.receipt.is_none() && !tx.state().is_terminal();
    for index in 0..lane.open.len() {
        let tx = &lane.open[index];
        if !concerned(tx) || tx.intent.nonce.0 >= at.count {
            continue;
        }
        let tx_id = tx.intent.tx_id;
        match attribution::who_consumed(lane, index).await {
            Consumer::Ours(receipt) => track::included(lane, receipt),
            Consumer::Other { tx, is_final: true } if lane.open[index].state() != TxState::Protect => {
                lose(lane, index, &tx);
            }
            Consumer::Other { is_final: true, .. } => {}
            Consumer::Other { tx, is_final: false } => {
                open.push(format!(
                    "transaction {:#x} took the nonce of intent {tx_id}, and is not final yet",
                    tx.tx_hash
                ));
            }
            Consumer::OursWithoutReceipt(tx) => open.push(format!(
                "our own transaction {:#x} of intent {tx_id} is in block {}; wait until a node shows its receipt",
                tx.tx_hash, tx.block.number
            )),
            Consumer::Nobody => {
                open.push(format!("the nonce of intent {tx_id} is in no block that is known here"));
            }
            Consumer::Unknown(why) => open.push(format!(
                "the nonce of intent {tx_id} is consumed, and no node shows by which transaction: {why}"
            )),
        }
    }
    lane.flush().await?;
    Ok(open)
}

/// A protected lane keeps looking, ever more rarely: if the nonce turns out to be ours, or the count to fit, it was a
/// false alarm and ends by itself.
async fn watch_protected(lane: &mut Lane, sequence: &Sequence) -> Result<(), StepError> {
    if lane.key.false_alarm && taken(lane).next().is_none() {
        return lift(lane, "false alarm: the nonce was used by one of our own transactions").await;
    }
    if lane.key.recheck_at.is_some_and(|at| Instant::now() < at) {
        return Ok(());
    }
    lane.key.look_later(LONGEST_PAUSE);
    let unexplained = explain_open(lane).await?;
    let suspicion = (!unexplained.is_empty()).then(|| unexplained.join("; "));
    if lane.key.evidence.suspicion != suspicion {
        lane.key.evidence.suspicion = suspicion;
        lane.flush().await?;
    }
    if taken(lane).next().is_some() {
        return Ok(());
    }
    let fits = unexplained.is_empty()
        && count_at_head(lane, sequence.next).await.is_some_and(|at| at.count <= sequence.next.0);
    if fits && lane.key.fitted_once {
        return lift(lane, "false alarm: the chain agrees with the sequence").await;
    }
    lane.key.fitted_once = fits;
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
    lane.key.look_anew();
    lane.tell(None, EventKind::Released { reason: why.to_owned() });
    lane.flush().await
}
