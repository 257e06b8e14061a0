//! Keys that are also used externally (docs/adr/0013): external nonces are skipped and recorded, and an intent that
//! loses its nonce to an external transaction is requeued automatically. An intent whose bytes could still be mined
//! never gets a second nonce.

use std::time::Duration;

use gapless_chain::BlockTag;
use gapless_domain::{Ending, ErrorCode, EventKind, Nonce, SubState, TxError, TxState};
use gapless_store::{ExternalCause, ExternalNonces, LaneRows};
use gapless_telemetry::metrics as m;
use tokio::time::Instant;

use super::attribution::{self, Consumer};
use super::protect::{self, MAX_PAUSE, RECHECK};
use super::track;
use crate::lane::{Lane, OpenTx, StepError};

/// Interval of the count check while an intent is unmined and the head moves.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// A count this far above the cursor is confirmed by a second one: more than external senders are likely to send
/// between two checks.
const FAR_AHEAD: u64 = 1_000;
/// How far below the first nonce of the sequence a reorg may vacate a nonce. A node that counts fewer lags, and the
/// nonces it misses are not assigned.
const BEFORE_START: u64 = 64;
/// An external nonce that no node counts for this long is vacant: its transaction was dropped.
const VACANT_FOR: Duration = Duration::from_secs(3);

/// State of the lane of a shared key about its other users.
#[derive(Debug, Default)]
pub(crate) struct Sharing {
    /// The key is shared. Everything below applies only then.
    pub(crate) enabled: bool,
    /// External nonces: the newest stored ones, and those found since.
    known: Vec<ExternalNonces>,
    /// When the chain's transaction counts were last read and accepted before a nonce was assigned.
    counted_at: Option<Instant>,
    /// A count far beyond the sequence, and when it was first seen.
    far: Option<(u64, Instant)>,
    /// An external nonce for which the node has no transaction, and since when.
    vacant: Option<(Nonce, Instant)>,
    /// A nonce that stayed vacant: the next intent takes it, because all later nonces wait for it.
    free: Option<Nonce>,
    /// When unmined intents are compared with the chain's counts again.
    check_at: Option<Instant>,
    /// The head at the last such check.
    checked_at_head: Option<u64>,
    /// When intents that lost their nonce are checked again; the pause grows.
    lost_check_at: Option<Instant>,
    lost_check_pause: Duration,
}

impl Sharing {
    pub(crate) fn loaded(rows: &LaneRows) -> Sharing {
        Sharing { enabled: rows.shared, known: rows.external.clone(), ..Sharing::default() }
    }

    /// A vacant nonce that the next intent takes.
    pub(crate) fn free_nonce(&self) -> Option<Nonce> {
        self.free
    }

    /// An intent took the free nonce, if there was one.
    pub(super) fn nonce_assigned(&mut self) {
        self.free = None;
    }
}

/// Requeues intents that lost their nonce, and compares the unmined ones with the chain. The lane of a shared key is
/// never stopped.
pub(crate) async fn advance(lane: &mut Lane) -> Result<(), StepError> {
    if lane.is_protected() {
        protect::lift_protection(lane, "the key is shared now").await?;
    }
    lane.key.drop_suspicion();
    requeue_displaced(lane).await?;
    check_unmined(lane).await
}

/// When this step is due again.
pub(crate) fn next_time(lane: &Lane) -> Option<Instant> {
    if !lane.sharing.enabled {
        return None;
    }
    let check = lane.sharing.check_at.filter(|_| lane.rows.open.iter().any(OpenTx::is_unmined));
    let lost_check = lane.sharing.lost_check_at.filter(|_| protect::in_protect(lane).next().is_some());
    [check, lost_check].into_iter().flatten().min()
}

/// Transaction counts of the chain and of a node's mempool.
#[derive(Clone, Copy, Debug)]
struct Counts {
    latest: u64,
    /// Mined, or executable in the node's mempool.
    pending: u64,
}

async fn read_counts(lane: &Lane) -> Result<Counts, StepError> {
    let (connector, address) = (&lane.chain.connector, lane.address());
    let (latest, pending) = tokio::try_join!(
        connector.transaction_count(address, BlockTag::Latest),
        connector.transaction_count(address, BlockTag::Pending)
    )?;
    // A node without a mempool may return a lower pending count.
    Ok(Counts { latest, pending: pending.max(latest) })
}

/// Before a nonce is assigned: skips nonces used externally. Returns false if the next nonce is not certain yet.
pub(crate) async fn catch_up(lane: &mut Lane) -> Result<bool, StepError> {
    if !lane.sharing.enabled {
        return Ok(true);
    }
    if is_recent(lane) {
        return Ok(true);
    }
    let requested_at = Instant::now();
    let counts = read_counts(lane).await?;
    if !is_plausible(lane, counts) {
        lane.prepare.hold_for(RECHECK);
        return Ok(false);
    }
    skip_external(lane, counts);
    check_vacant_nonce(lane, counts);
    if lane.sharing.vacant.is_some() && lane.sharing.free.is_none() {
        lane.prepare.hold_for(RECHECK);
        return Ok(false);
    }
    lane.sharing.counted_at = Some(requested_at);
    Ok(true)
}

/// Whether the last counts are not older than `nonce.count_max_age`. Their external nonces are skipped already; later
/// external use is found when the node refuses the nonce.
fn is_recent(lane: &Lane) -> bool {
    let sharing = &lane.sharing;
    let certain = sharing.vacant.is_none() && sharing.free.is_none() && sharing.far.is_none();
    let age = lane.chain.config.nonce.count_max_age;
    certain && sharing.counted_at.is_some_and(|at| at.elapsed() < age)
}

/// The cursor never decreases, so a count far above it must be confirmed by a second one after `RECHECK`.
fn is_plausible(lane: &mut Lane, counts: Counts) -> bool {
    let next = lane.rows.sequence().map_or(counts.pending, |sequence| sequence.next.0);
    if counts.pending <= next.saturating_add(FAR_AHEAD) {
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

/// All our nonces are below the cursor, so nonces between the cursor and a higher count were used externally.
fn skip_external(lane: &mut Lane, counts: Counts) {
    let Some(first) = lane.rows.skip_to(Nonce(counts.pending)) else { return };
    let last = Nonce(counts.pending - 1);
    record_external(lane, ExternalNonces { first, last, cause: ExternalCause::SteppedOver });
}

fn record_external(lane: &mut Lane, range: ExternalNonces) {
    let how = match range.cause {
        ExternalCause::SteppedOver => "stepped_over",
        ExternalCause::Displaced => "displaced",
    };
    tracing::info!(first = range.first.0, last = range.last.0, how, "external nonces recorded");
    metrics::counter!(m::EXTERNAL_NONCES_TOTAL, "how" => how).increment(range.count());
    lane.emit_event(None, EventKind::External { how, count: range.count() });
    lane.sharing.known.push(range);
    lane.pending.external(range);
}

/// An external nonce that the node no longer counts is vacant: its transaction was dropped, or removed by a reorg.
/// All later nonces wait for it, so it is assigned to the next intent.
fn check_vacant_nonce(lane: &mut Lane, counts: Counts) {
    let missing = Nonce(counts.pending);
    let below_cursor = lane.rows.sequence().is_some_and(|sequence| missing < sequence.next);
    // The start of the sequence is the count at first use, and those transactions were not final.
    let before_start = |start: Nonce| missing < start && start.0 - missing.0 <= BEFORE_START;
    let external = lane.sharing.known.iter().any(|range| range.contains(missing))
        || lane.rows.sequence().is_some_and(|sequence| before_start(sequence.start));
    let ours = lane.rows.open.iter().any(|tx| tx.intent.nonce == missing);
    if !below_cursor || !external || ours {
        lane.sharing.vacant = None;
        lane.sharing.free = None;
        return;
    }
    match lane.sharing.vacant {
        Some((nonce, since)) if nonce == missing => {
            if since.elapsed() >= VACANT_FOR {
                lane.sharing.free = Some(missing);
                lane.rows.expect_more();
            }
        }
        _ => {
            lane.sharing.vacant = Some((missing, Instant::now()));
            lane.sharing.free = None;
        }
    }
}

/// Suspects unmined intents whose nonce the chain counts as used, even if no node has refused it.
async fn check_unmined(lane: &mut Lane) -> Result<(), StepError> {
    let is_early = lane.sharing.check_at.is_some_and(|at| Instant::now() < at);
    if is_early || !lane.rows.open.iter().any(OpenTx::is_unmined) {
        return Ok(());
    }
    lane.sharing.check_at = Some(Instant::now() + CHECK_INTERVAL);
    let head = lane.chain.watcher.head();
    let suspicious = lane.sharing.vacant.is_some() || lane.rows.open.iter().any(|tx| tx.suspected.is_some());
    if head == lane.sharing.checked_at_head && !suspicious {
        return Ok(());
    }
    lane.sharing.checked_at_head = head;
    let counts = read_counts(lane).await?;
    check_vacant_nonce(lane, counts);
    // Indices stay valid: no intent leaves the lane before the next commit.
    for index in 0..lane.rows.open.len() {
        let tx = &lane.rows.open[index];
        if tx.is_unmined() && tx.intent.nonce.0 < counts.latest {
            suspect(lane, index).await?;
        }
    }
    Ok(())
}

/// The nonce of an intent is used, but none of its hashes was found. Checked at the second such finding.
pub(super) async fn suspect(lane: &mut Lane, index: usize) -> Result<(), StepError> {
    // The count was too old, or an external sender was faster: read it again before the next nonce.
    lane.sharing.counted_at = None;
    let tx = &mut lane.rows.open[index];
    match tx.suspected {
        None => {
            tx.suspected = Some(Instant::now());
            tx.sending.due = Instant::now() + RECHECK;
            Ok(())
        }
        Some(since) if since.elapsed() < RECHECK => Ok(()),
        Some(_) => check_lost(lane, index).await,
    }
}

/// The intent has lost its nonce if a final external transaction consumed it. Does not commit, because callers may be
/// iterating over the open intents.
async fn check_lost(lane: &mut Lane, index: usize) -> Result<(), StepError> {
    if lane.sharing.lost_check_at.is_some_and(|at| Instant::now() < at) {
        return Ok(());
    }
    if !is_dead(lane, index).await? {
        schedule_lost_check(lane);
        return Ok(());
    }
    lane.sharing.lost_check_at = None;
    let tx = &mut lane.rows.open[index];
    tracing::warn!(tx.id = %tx.intent.tx_id, nonce = tx.intent.nonce.0,
        "nonce of a shared key was consumed externally");
    tx.lose_nonce("its nonce was consumed by an external transaction", Instant::now());
    lane.step_again();
    Ok(())
}

/// Whether the attempts of an intent can never be mined: a final block contains another transaction at its nonce.
/// That no node shows ours is not enough.
async fn is_dead(lane: &mut Lane, index: usize) -> Result<bool, StepError> {
    if lane.chain.watcher.saw_any(&lane.rows.open[index].hashes()) {
        return Ok(false);
    }
    let next = lane.rows.sequence().map_or(Nonce(0), |sequence| sequence.next);
    protect::count_at_head(lane, next).await;
    let consumer = attribution::find_consumer(lane, index).await;
    let tx_id = lane.rows.open[index].intent.tx_id;
    match consumer {
        Consumer::External { is_final, .. } => return Ok(is_final),
        Consumer::Ours(receipt) => track::included(lane, receipt),
        Consumer::NotConsumed | Consumer::OursWithoutReceipt(_) => {}
        Consumer::Unknown(why) => {
            tracing::warn!(tx.id = %tx_id, why,
                "could not find the transaction that consumed the nonce; the intent keeps it");
        }
    }
    Ok(false)
}

/// Intents in PROTECT go back to the head of the queue. Checked again, because the rows may come from an exclusive
/// key's lane.
async fn requeue_displaced(lane: &mut Lane) -> Result<(), StepError> {
    let is_early = lane.sharing.lost_check_at.is_some_and(|at| Instant::now() < at);
    if is_early || protect::in_protect(lane).next().is_none() {
        return Ok(());
    }
    let mut displaced = false;
    for index in 0..lane.rows.open.len() {
        if lane.rows.open[index].state() != TxState::Protect || !is_dead(lane, index).await? {
            continue;
        }
        let tx = &mut lane.rows.open[index];
        if tx.state_on_disk() != TxState::Protect {
            // PROTECT has to be committed first: the state machine allows no direct move.
            lane.step_again();
            continue;
        }
        let nonce = tx.intent.nonce;
        displace(tx);
        record_external(lane, ExternalNonces { first: nonce, last: nonce, cause: ExternalCause::Displaced });
        displaced = true;
    }
    if displaced {
        lane.sharing.lost_check_pause = Duration::ZERO;
        lane.rows.reread_queue();
        lane.flush().await?;
    }
    lane.sharing.lost_check_at = None;
    if protect::in_protect(lane).next().is_some() {
        schedule_lost_check(lane);
    }
    Ok(())
}

/// The evidence is missing: checks again, with growing pauses.
fn schedule_lost_check(lane: &mut Lane) {
    lane.sharing.lost_check_pause = (lane.sharing.lost_check_pause * 2).clamp(RECHECK, MAX_PAUSE);
    lane.sharing.lost_check_at = Some(Instant::now() + lane.sharing.lost_check_pause);
}

/// Back to the queue: its bytes can never be mined, so a new nonce executes it only once.
pub(super) fn displace(tx: &mut OpenTx) {
    if tx.intent.reservation.is_some() {
        // The client made its transaction for the reserved nonce.
        let reason = "the reserved nonce was consumed by an external transaction".to_owned();
        tx.give_up(Ending { state: TxState::Failed, code: ErrorCode::NonceTaken, reason });
    }
    tx.enter(TxState::Queued);
    tx.intent.gas_params = None;
    tx.set_wait_reason(
        Some(SubState::Displaced),
        Some(TxError::new(ErrorCode::Displaced, "its nonce was consumed by an external transaction")),
    );
}
