//! Sends attempts to the nodes: first sends, resends by timer, and resends after failures. Sends the newest attempt
//! of an intent, and older ones if it is refused for its price.
//!
//! Every send is claimed in the database first; one claim covers all attempts of an intent. Nonce N+1 is first sent
//! only after a node accepted N.

use gapless_chain::{RpcError, SubmitClass, SubmitOutcome};
use gapless_domain::sanitize::storable;
use gapless_domain::{ErrorCode, EventKind, SubState, TxError, TxState};
use gapless_store::{Attempt, SentNote};
use gapless_telemetry::{metrics as m, step_span};
use tokio::time::Instant;
use tracing::Instrument;

use super::{delegated, protect, replace, shared_key, track};
use crate::failpoint;
use crate::lane::{Lane, OpenTx, StepError};

/// Metric label and outcome of a send without an answer.
const NO_ANSWER: &str = "no_answer";

pub(crate) async fn advance(lane: &mut Lane) -> Result<(), StepError> {
    let now = Instant::now();
    look_up_overdue(lane, now).await;
    claim_due(lane, now);
    if sendable(lane).any(|tx| is_due(tx, now) && !tx.sending.may_send) {
        lane.flush().await?;
    }
    for index in 0..sendable(lane).count() {
        if !is_due(&lane.rows.open[index], now) || !lane.rows.open[index].sending.may_send {
            continue;
        }
        let earlier_waits = lane.rows.open.iter().take(index).any(|tx| blocks_later(lane, tx));
        if earlier_waits && !lane.rows.open[index].sending.is_accepted {
            break;
        }
        if !send(lane, index).await? {
            // The next sends may time out as well: commit the wait reason first, and let the lane process its events.
            return lane.flush().await;
        }
        if lane.is_protected() {
            break;
        }
    }
    Ok(())
}

/// The open intents before the first reserved nonce.
fn sendable(lane: &Lane) -> impl Iterator<Item = &OpenTx> {
    lane.rows.open.iter().take_while(|tx| !tx.is_reserved())
}

/// Whether later nonces have to wait for this one, because no node has accepted it yet. A nonce of a shared key that
/// was consumed externally blocks nothing.
fn blocks_later(lane: &Lane, tx: &OpenTx) -> bool {
    let used = tx.suspected.is_some() || tx.intent.sub_state == Some(SubState::NonceUsed);
    tx.is_unmined() && !tx.sending.is_accepted && !(lane.sharing.enabled && used)
}

fn is_due(tx: &OpenTx, now: Instant) -> bool {
    tx.is_unmined() && tx.sending.due <= now
}

/// When the next send is due. Nonces after one that no node has accepted do not count: it comes first.
pub(crate) fn next_due(lane: &Lane) -> Option<Instant> {
    let mut next: Option<Instant> = None;
    for tx in sendable(lane).filter(|tx| tx.is_unmined()) {
        next = Some(next.map_or(tx.sending.due, |earlier| earlier.min(tx.sending.due)));
        if blocks_later(lane, tx) {
            break;
        }
    }
    next
}

/// Before a resend by timer: checks whether the attempts are mined already.
async fn look_up_overdue(lane: &mut Lane, now: Instant) {
    let overdue: Vec<_> = sendable(lane)
        .filter(|tx| is_due(tx, now) && !tx.sending.may_send && tx.state() != TxState::InFlight)
        .flat_map(OpenTx::hashes)
        .collect();
    if !overdue.is_empty() {
        track::look_up_if_possible(lane, &overdue).await;
        protect::note_count(lane).await;
    }
}

fn claim_due(lane: &mut Lane, now: Instant) {
    let settings = lane.chain.config.resubmit.clone();
    let sendable = sendable(lane).count();
    for tx in lane.rows.open.iter_mut().take(sendable).filter(|tx| is_due(tx, now) && !tx.sending.may_send) {
        // `resubmit.enabled` applies to accepted bytes only; unaccepted or requested sends happen in any case.
        if !tx.sending.is_accepted || tx.sending.resend || settings.enabled {
            tx.claim(settings.interval);
        } else {
            tx.sending.due = now + settings.interval;
        }
    }
}

/// Sends the newest attempt. If it is refused for lack of funds or a fee cap, older ones follow: a lower price may
/// still be mined. Returns false if no node answered.
async fn send(lane: &mut Lane, index: usize) -> Result<bool, StepError> {
    let older_too = std::mem::take(&mut lane.rows.open[index].sending.resend_older);
    lane.rows.open[index].sending.may_send = false;
    let mut refused: Option<SubmitOutcome> = None;
    for attempt in lane.rows.open[index].sendable_attempts() {
        if !lane.lease.may_send() {
            return Err(StepError::NotRenewed);
        }
        if lane.chain.halted().is_some() {
            return Ok(true);
        }
        let Some(outcome) = broadcast(lane, index, &attempt).await else { return Ok(false) };
        match (outcome.class, refused.take()) {
            (SubmitClass::Accepted | SubmitClass::AlreadyKnown, newest) => {
                accepted(lane, index, &attempt, newest);
                return Ok(true);
            }
            (class, None) if price_too_high(class) || (older_too && class != SubmitClass::NonceTooLow) => {
                refused = Some(outcome);
            }
            (_, None) => return handle_refusal(lane, index, outcome).await.map(|()| true),
            (class, Some(_)) if is_independent_of_price(class) => {
                return handle_refusal(lane, index, outcome).await.map(|()| true);
            }
            (_, newest) => refused = newest,
        }
    }
    match refused {
        Some(newest) => handle_refusal(lane, index, newest).await.map(|()| true),
        None => Ok(true),
    }
}

/// Refused because of its price; a lower one may be accepted.
fn price_too_high(class: SubmitClass) -> bool {
    matches!(class, SubmitClass::InsufficientFunds | SubmitClass::FeeCapExceeded)
}

/// The answer is about the nonce or the node, not about the price of an older attempt.
fn is_independent_of_price(class: SubmitClass) -> bool {
    matches!(class, SubmitClass::NonceTooLow | SubmitClass::NonceTooHigh | SubmitClass::Unknown)
}

/// Sends one attempt to the nodes. `None`: no answer.
async fn broadcast(lane: &mut Lane, index: usize, attempt: &Attempt) -> Option<SubmitOutcome> {
    lane.chain.watcher.watch(attempt.tx_hash(), &lane.signals.mailbox);
    let at = Instant::now();
    let span = step_span("send", lane.rows.open[index].intent.trace_context.as_deref(), &attempt.tx_id());
    span.record("tx.hash", tracing::field::debug(attempt.tx_hash()));
    let answer = lane.chain.connector.broadcast(attempt).instrument(span.clone()).await;
    span.record("answer", answer.as_ref().map_or(NO_ANSWER, |outcome| outcome.class.as_str()));
    drop(span);
    failpoint::hit("sent");
    count_send(attempt, &answer);
    match answer {
        Ok(outcome) => {
            tracing::debug!(tx.id = %attempt.tx_id(), attempt.id = %attempt.id(), tx.hash = ?attempt.tx_hash(),
                class = outcome.class.as_str(), answer = outcome.message, "sent");
            let (tx_id, attempt_id) = (attempt.tx_id(), attempt.id());
            lane.rows.open[index].note_outcome(attempt_id, outcome.class.as_str());
            let accepted = matches!(outcome.class, SubmitClass::Accepted | SubmitClass::AlreadyKnown);
            let answer = (!accepted).then(|| storable(&outcome.message));
            let class = Some(outcome.class.as_str());
            lane.pending.sent(SentNote { tx_id, attempt_id, outcome: class, answer, at, sends: 1 });
            Some(outcome)
        }
        Err(error) => {
            // In memory only: from now on these bytes count as sent before.
            lane.rows.open[index].note_outcome(attempt.id(), NO_ANSWER);
            let (tx_id, attempt_id) = (attempt.tx_id(), attempt.id());
            lane.pending.sent(SentNote { tx_id, attempt_id, outcome: None, answer: None, at, sends: 1 });
            let error = TxError::new(ErrorCode::NodeUnavailable, error.to_string());
            back_off(lane, index, Some(SubState::WaitingNode), error);
            None
        }
    }
}

/// Counts first sends and resends of an attempt separately.
pub(super) fn count_send(attempt: &Attempt, answer: &Result<SubmitOutcome, RpcError>) {
    let send = if attempt.last_outcome().is_some() { "again" } else { "first" };
    let result = answer.as_ref().map_or(NO_ANSWER, |outcome| outcome.class.as_str());
    metrics::counter!(m::TX_SUBMIT_TOTAL, "send" => send, "result" => result).increment(1);
}

/// Handles a refusal by its class. No class leads to another nonce.
async fn handle_refusal(lane: &mut Lane, index: usize, outcome: SubmitOutcome) -> Result<(), StepError> {
    let error = TxError::new(error_code(outcome.class), outcome.message);
    match outcome.class {
        // `send` has handled it.
        SubmitClass::Accepted | SubmitClass::AlreadyKnown => Ok(()),
        SubmitClass::NonceTooLow => nonce_used(lane, index, error).await,
        SubmitClass::NonceTooHigh => {
            resend_lower(lane, index);
            back_off(lane, index, Some(SubState::LowerNonceMissing), error);
            Ok(())
        }
        SubmitClass::InsufficientFunds => {
            back_off(lane, index, Some(SubState::WaitingFunds), error);
            Ok(())
        }
        SubmitClass::Unknown => {
            let hashes = lane.rows.open[index].hashes();
            back_off(lane, index, None, error);
            track::look_up(lane, &hashes).await
        }
        SubmitClass::Fatal => {
            replace::refused_for_good(lane, index, &error.message);
            back_off(lane, index, Some(SubState::Rejected), error);
            Ok(())
        }
        SubmitClass::ReplacementUnderpriced => {
            // The earlier attempt is still in the mempool. If this one must win, it needs a higher price.
            replace::outbid(lane, index);
            back_off(lane, index, None, error);
            Ok(())
        }
        SubmitClass::Underpriced => {
            replace::underpriced(lane, index);
            back_off(lane, index, None, error);
            Ok(())
        }
        SubmitClass::DelegatedLimit => {
            delegated::refused(lane, index);
            back_off(lane, index, Some(SubState::DelegatedLimit), error);
            Ok(())
        }
        SubmitClass::Unavailable => {
            back_off(lane, index, Some(SubState::WaitingNode), error);
            Ok(())
        }
        SubmitClass::PoolFull | SubmitClass::FeeCapExceeded => {
            back_off(lane, index, None, error);
            Ok(())
        }
    }
}

fn error_code(class: SubmitClass) -> ErrorCode {
    match class {
        SubmitClass::NonceTooLow => ErrorCode::NonceUsed,
        SubmitClass::NonceTooHigh => ErrorCode::LowerNonceMissing,
        SubmitClass::InsufficientFunds => ErrorCode::InsufficientFunds,
        SubmitClass::Fatal => ErrorCode::Unmineable,
        SubmitClass::Underpriced | SubmitClass::ReplacementUnderpriced => ErrorCode::Underpriced,
        SubmitClass::PoolFull => ErrorCode::PoolFull,
        SubmitClass::DelegatedLimit => ErrorCode::DelegatedLimit,
        SubmitClass::FeeCapExceeded => ErrorCode::FeeCapExceeded,
        SubmitClass::Unavailable => ErrorCode::NodeUnavailable,
        SubmitClass::Accepted | SubmitClass::AlreadyKnown | SubmitClass::Unknown => ErrorCode::Unknown,
    }
}

/// A node accepted this attempt. `newest`: the refusal of a newer attempt, if there was one.
fn accepted(lane: &mut Lane, index: usize, attempt: &Attempt, newest: Option<SubmitOutcome>) {
    let interval = lane.chain.config.resubmit.interval;
    let tx = &mut lane.rows.open[index];
    tx.accepted(interval, Instant::now());
    // Errors of earlier sends are obsolete, except that a STUCK intent is still unmined and a refused price is still
    // refused.
    let is_stuck = tx.state() == TxState::Stuck;
    let not_replaced = newest.map(|outcome| TxError::new(error_code(outcome.class), outcome.message));
    let not_replaced = not_replaced.or_else(|| tx.replacing.unaffordable.clone());
    let alarm = tx.intent.last_error.clone().filter(|error| error.code == ErrorCode::Stuck);
    let alarm = alarm.unwrap_or_else(|| TxError::new(ErrorCode::Stuck, "accepted by a node but not mined"));
    let (sub_state, error) = match (is_stuck, not_replaced) {
        (true, not_replaced) => (Some(SubState::Unmined), Some(not_replaced.unwrap_or(alarm))),
        (false, Some(error)) => (Some(SubState::NotReplaced), Some(error)),
        (false, None) => (None, None),
    };
    tx.set_wait_reason(sub_state, error);
    if tx.state() == TxState::InFlight {
        tx.enter(TxState::Submitted);
        tx.set_wait_reason(sub_state, tx.intent.last_error.clone());
        let (tx_id, tx_hash) = (tx.intent.tx_id, attempt.tx_hash());
        lane.emit_event(Some(tx_id), EventKind::Submitted { tx_hash });
    }
    lane.chain.watcher.expect_block(attempt.tx_hash());
}

/// "Nonce too low": most likely one of our attempts is mined. If none is found, the key may have been used externally.
async fn nonce_used(lane: &mut Lane, index: usize, error: TxError) -> Result<(), StepError> {
    let hashes = lane.rows.open[index].hashes();
    track::look_up(lane, &hashes).await?;
    if lane.rows.open[index].state() == TxState::Tracking {
        return Ok(());
    }
    back_off(lane, index, Some(SubState::NonceUsed), error);
    if lane.sharing.enabled {
        return shared_key::suspect(lane, index).await;
    }
    protect::require_check(lane);
    Ok(())
}

/// The node misses a lower nonce: resends all lower unmined nonces, in order.
pub(super) fn resend_lower(lane: &mut Lane, index: usize) {
    let now = Instant::now();
    for tx in lane.rows.open.iter_mut().take(index).filter(|tx| tx.is_unmined()) {
        tx.send_now(now);
    }
}

fn back_off(lane: &mut Lane, index: usize, sub_state: Option<SubState>, error: TxError) {
    let longest = lane.chain.config.resubmit.interval;
    let tx = &mut lane.rows.open[index];
    tx.back_off(longest, Instant::now());
    tx.shows_outage = false;
    // If a needed replacement cannot be made, that is the wait reason, whatever the answer to the current attempt.
    let unaffordable =
        tx.replacing.unaffordable.clone().filter(|_| error.code != ErrorCode::InsufficientFunds);
    let (sub_state, error) =
        unaffordable.map_or((sub_state, error), |why| (Some(SubState::NotReplaced), why));
    tracing::warn!(tx.id = %tx.intent.tx_id, tx.hash = ?tx.intent.tx_hash, answer = error.message,
        sub_state = sub_state.map(SubState::as_str),
        retry_in = ?tx.sending.due.saturating_duration_since(Instant::now()), "not accepted; retrying");
    tx.set_wait_reason(sub_state, Some(error));
}
