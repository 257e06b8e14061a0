//! Bytes to the node: the first time, again by timer, again after trouble. The newest attempt of an intent, and older ones where
//! that cannot be paid.
//!
//! Every send is claimed in the database first; one claim is for all attempts of an intent. N+1 is sent for the first time only after a node took N.

use gapless::chain::{RpcError, SubmitClass, SubmitOutcome};
use gapless::domain::sanitize::storable;
use gapless::domain::{ErrorCode, EventKind, TxError, TxState};
use gapless::observe::metrics as m;
use gapless::store::{Attempt, SentNote};
use tokio::time::Instant;

use super::recover::WAITING_NODE;
use super::{delegated, protect, replace, shared_key, track};
use crate::failpoint;
use crate::lane::{Lane, NOT_REPLACED, OpenTx, StepError};

/// Why it waits: the node says that its nonce is used.
pub(crate) const NONCE_USED: &str = "nonce_used";
/// What a send without an answer is counted as.
const NO_ANSWER: &str = "no_answer";

pub(crate) async fn advance(lane: &mut Lane) -> Result<(), StepError> {
    let now = Instant::now();
    look_up_overdue(lane, now).await;
    claim_due(lane, now);
    if sendable(lane).any(|tx| is_due(tx, now) && !tx.may_send) {
        lane.flush().await?;
    }
    for index in 0..sendable(lane).count() {
        if !is_due(&lane.open[index], now) || !lane.open[index].may_send {
            continue;
        }
        let earlier_waits = lane.open.iter().take(index).any(|tx| holds_back(lane, tx));
        if earlier_waits && !lane.open[index].is_taken {
            break;
        }
        if !send(lane, index).await? {
            // The others may wait as long for their answers. That this one waits is written before the next is tried, and the lane
            // looks at its mail in between.
            return lane.flush().await;
        }
        if lane.is_protected() {
            break;
        }
    }
    Ok(())
}

/// What is not behind a nonce that a caller outside holds.
fn sendable(lane: &Lane) -> impl Iterator<Item = &OpenTx> {
    lane.open.iter().take_while(|tx| !tx.is_reserved())
}

/// Whether what is behind it has to wait: no node took it yet. A nonce that others of a shared key have consumed holds
/// nobody back.
fn holds_back(lane: &Lane, tx: &OpenTx) -> bool {
    let used = tx.suspected.is_some() || tx.intent.sub_state.as_deref() == Some(NONCE_USED);
    tx.is_unmined() && !tx.is_taken && !(lane.sharing.enabled && used)
}

fn is_due(tx: &OpenTx, now: Instant) -> bool {
    tx.is_unmined() && tx.due <= now
}

/// When the next send is due. Those behind one that no node took are not: it comes first.
pub(crate) fn next_due(lane: &Lane) -> Option<Instant> {
    let mut next: Option<Instant> = None;
    for tx in sendable(lane).filter(|tx| tx.is_unmined()) {
        next = Some(next.map_or(tx.due, |earlier| earlier.min(tx.due)));
        if holds_back(lane, tx) {
            break;
        }
    }
    next
}

/// Before the same bytes go out by timer, see whether they are mined already.
async fn look_up_overdue(lane: &mut Lane, now: Instant) {
    let overdue: Vec<_> = sendable(lane)
        .filter(|tx| is_due(tx, now) && !tx.may_send && tx.state() != TxState::InFlight)
        .flat_map(OpenTx::hashes)
        .collect();
    if !overdue.is_empty() {
        track::look_up_if_possible(lane, &overdue).await;
        protect::note_count(lane).await;
    }
}

fn claim_due(lane: &mut Lane, now: Instant) {
    let settings = lane.chain.config.resubmit.clone();
    let reach = sendable(lane).count();
    for tx in lane.open.iter_mut().take(reach).filter(|tx| is_due(tx, now) && !tx.may_send) {
        // Off, the timer is off. Bytes that no node is known to have, or that were asked for, go out all the same.
        if !tx.is_taken || tx.resend || settings.enabled {
            tx.claim(settings.interval);
        } else {
            tx.due = now + settings.interval;
        }
    }
}

/// Sends the newest attempt. If it is refused because it cannot be paid or is above a fee cap, those before it follow: an older
/// price may still be one that can be mined. False: no node answered.
async fn send(lane: &mut Lane, index: usize) -> Result<bool, StepError> {
    let older_too = std::mem::take(&mut lane.open[index].resend_older);
    lane.open[index].may_send = false;
    let mut refused: Option<SubmitOutcome> = None;
    for attempt in lane.open[index].sendable_attempts() {
        if !lane.lease.may_send() {
            return Err(StepError::Retry {
                after: std::time::Duration::from_millis(200),
                cause: "the lease was not renewed in time to send".to_owned(),
            });
        }
        if lane.chain.halted().is_some() {
            return Ok(true);
        }
        let Some(outcome) = broadcast(lane, index, &attempt).await else { return Ok(false) };
        match (outcome.class, refused.take()) {
            (SubmitClass::Accepted | SubmitClass::AlreadyKnown, newest) => {
                taken(lane, index, &attempt, newest);
                return Ok(true);
            }
            (class, None) if too_dear(class) || (older_too && class != SubmitClass::NonceTooLow) => {
                refused = Some(outcome);
            }
            (_, None) => return answered(lane, index, outcome).await.map(|()| true),
            // What says something about the nonce or the node, and not about a price.
            (class, Some(_)) if says_more_than_a_price(class) => {
                return answered(lane, index, outcome).await.map(|()| true);
            }
            (_, newest) => refused = newest,
        }
    }
    match refused {
        Some(newest) => answered(lane, index, newest).await.map(|()| true),
        None => Ok(true),
    }
}

/// The price is what is wrong with it, and a lower one may pass.
fn too_dear(class: SubmitClass) -> bool {
    matches!(class, SubmitClass::InsufficientFunds | SubmitClass::FeeCapExceeded)
}

fn says_more_than_a_price(class: SubmitClass) -> bool {
    matches!(class, SubmitClass::NonceTooLow | SubmitClass::NonceTooHigh | SubmitClass::Unknown)
}

/// One attempt to the nodes. `None`: there was no answer.
async fn broadcast(lane: &mut Lane, index: usize, attempt: &Attempt) -> Option<SubmitOutcome> {
    lane.chain.watcher.watch(attempt.tx_hash(), &lane.mailbox);
    let at = Instant::now();
    let answer = lane.chain.connector.broadcast(attempt).await;
    failpoint::hit("sent");
    count_send(attempt, &answer);
    match answer {
        Ok(outcome) => {
            tracing::debug!(chain.id = lane.chain.config.id.0, submitter = %lane.lease.key().address_text(),
                tx.id = %attempt.tx_id(), attempt.id = %attempt.id(), tx.hash = ?attempt.tx_hash(),
                fencing_token = lane.lease.token().0, class = outcome.class.as_str(), answer = outcome.message,
                "sent");
            let (tx_id, attempt_id) = (attempt.tx_id(), attempt.id());
            lane.open[index].note_outcome(attempt_id, outcome.class.as_str());
            let taken = matches!(outcome.class, SubmitClass::Accepted | SubmitClass::AlreadyKnown);
            let answer = (!taken).then(|| storable(&outcome.message));
            let outcome_noted = Some(outcome.class.as_str());
            note_sent(lane, SentNote { tx_id, attempt_id, outcome: outcome_noted, answer, at, sends: 1 });
            Some(outcome)
        }
        Err(error) => {
            // In memory alone: from now on these bytes were sent before.
            lane.open[index].note_outcome(attempt.id(), NO_ANSWER);
            let (tx_id, attempt_id) = (attempt.tx_id(), attempt.id());
            note_sent(lane, SentNote { tx_id, attempt_id, outcome: None, answer: None, at, sends: 1 });
            let error = TxError::new(ErrorCode::NodeUnavailable, error.to_string());
            put_off(lane, index, Some(WAITING_NODE), error);
            None
        }
    }
}

/// Sends of bytes of which no earlier send is known, apart from those that repeat one.
pub(super) fn count_send(attempt: &Attempt, answer: &Result<SubmitOutcome, RpcError>) {
    let send = if attempt.last_outcome().is_some() { "again" } else { "first" };
    let result = answer.as_ref().map_or(NO_ANSWER, |outcome| outcome.class.as_str());
    metrics::counter!(m::TX_SUBMIT_TOTAL, "send" => send, "result" => result).increment(1);
}

/// To be written with the next commit. One note for each attempt: a second send before that adds to it.
fn note_sent(lane: &mut Lane, note: SentNote) {
    match lane.sent_notes.iter_mut().find(|known| known.attempt_id == note.attempt_id) {
        Some(known) => {
            known.sends = known.sends.saturating_add(note.sends);
            known.at = note.at;
            if note.outcome.is_some() {
                (known.outcome, known.answer) = (note.outcome, note.answer);
            }
        }
        None => lane.sent_notes.push(note),
    }
}

/// What the node said decides what comes next. It never decides to use another nonce.
async fn answered(lane: &mut Lane, index: usize, outcome: SubmitOutcome) -> Result<(), StepError> {
    let error = TxError::new(code_of(outcome.class), outcome.message);
    match outcome.class {
        // `send` has dealt with it.
        SubmitClass::Accepted | SubmitClass::AlreadyKnown => Ok(()),
        SubmitClass::NonceTooLow => nonce_used(lane, index, error).await,
        SubmitClass::NonceTooHigh => {
            resend_lower(lane, index);
            put_off(lane, index, Some("lower_nonce_missing"), error);
            Ok(())
        }
        SubmitClass::InsufficientFunds => {
            put_off(lane, index, Some("waiting_funds"), error);
            Ok(())
        }
        SubmitClass::Unknown => {
            let hashes = lane.open[index].hashes();
            put_off(lane, index, None, error);
            track::look_up(lane, &hashes).await
        }
        SubmitClass::Fatal => {
            replace::refused_for_good(lane, index, &error.message);
            put_off(lane, index, Some("rejected"), error);
            Ok(())
        }
        SubmitClass::ReplacementUnderpriced => {
            // The earlier attempt lives. If this one must win, it needs a higher price.
            replace::outbid(lane, index);
            put_off(lane, index, None, error);
            Ok(())
        }
        SubmitClass::Underpriced => {
            replace::underpriced(lane, index);
            put_off(lane, index, None, error);
            Ok(())
        }
        SubmitClass::DelegatedLimit => {
            delegated::refused(lane, index);
            put_off(lane, index, Some(delegated::LIMIT), error);
            Ok(())
        }
        SubmitClass::Unavailable => {
            put_off(lane, index, Some(WAITING_NODE), error);
            Ok(())
        }
        SubmitClass::PoolFull | SubmitClass::FeeCapExceeded => {
            put_off(lane, index, None, error);
            Ok(())
        }
    }
}

/// What an answer that is not good news is called.
fn code_of(class: SubmitClass) -> ErrorCode {
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

/// A node has these bytes. `newest`: how newer ones were refused before.
fn taken(lane: &mut Lane, index: usize, attempt: &Attempt, newest: Option<SubmitOutcome>) {
    let interval = lane.chain.config.resubmit.interval;
    let tx = &mut lane.open[index];
    tx.taken(interval, Instant::now());
    // Whatever was wrong with earlier sends is over; a stuck one is still unmined, and a price that cannot be paid is not paid.
    let is_stuck = tx.state() == TxState::Stuck;
    let too_dear = newest.map(|outcome| TxError::new(code_of(outcome.class), outcome.message));
    let too_dear = too_dear.or_else(|| tx.unaffordable.clone());
    let alarm = tx.intent.last_error.clone().filter(|error| error.code == ErrorCode::Stuck);
    let alarm = alarm.unwrap_or_else(|| TxError::new(ErrorCode::Stuck, "a node has it, and it is not mined"));
    let (sub_state, error) = match (is_stuck, too_dear) {
        (true, too_dear) => (Some("unmined"), Some(too_dear.unwrap_or(alarm))),
        (false, Some(error)) => (Some(NOT_REPLACED), Some(error)),
        (false, None) => (None, None),
    };
    tx.complain(sub_state, error);
    if tx.state() == TxState::InFlight {
        tx.enter(TxState::Submitted);
        tx.complain(sub_state, tx.intent.last_error.clone());
        let (tx_id, tx_hash) = (tx.intent.tx_id, attempt.tx_hash());
        lane.tell(Some(tx_id), EventKind::Submitted { tx_hash });
    }
    lane.chain.watcher.expect_block(attempt.tx_hash());
}

/// "Nonce too low": one of ours, most likely. If none of ours is found, someone may have used the key.
async fn nonce_used(lane: &mut Lane, index: usize, error: TxError) -> Result<(), StepError> {
    let hashes = lane.open[index].hashes();
    track::look_up(lane, &hashes).await?;
    if lane.open[index].state() == TxState::Tracking {
        return Ok(());
    }
    put_off(lane, index, Some(NONCE_USED), error);
    if lane.sharing.enabled {
        return shared_key::suspect(lane, index).await;
    }
    protect::doubt(lane);
    Ok(())
}

/// The node misses a lower nonce: everything below that is not mined goes out again, in order.
pub(super) fn resend_lower(lane: &mut Lane, index: usize) {
    let now = Instant::now();
    for tx in lane.open.iter_mut().take(index).filter(|tx| tx.is_unmined()) {
        tx.send_now(now);
    }
}

fn put_off(lane: &mut Lane, index: usize, sub_state: Option<&str>, error: TxError) {
    let longest = lane.chain.config.resubmit.interval;
    let tx = &mut lane.open[index];
    tx.put_off(longest, Instant::now());
    tx.shows_trouble = false;
    // Other bytes are wanted and cannot be made: that is what it waits for, whatever becomes of the old ones.
    let unaffordable = tx.unaffordable.clone().filter(|_| error.code != ErrorCode::InsufficientFunds);
    let (sub_state, error) = unaffordable.map_or((sub_state, error), |why| (Some(NOT_REPLACED), why));
    tracing::warn!(chain.id = lane.chain.config.id.0, submitter = %lane.lease.key().address_text(),
        tx.id = %tx.intent.tx_id, tx.hash = ?tx.intent.tx_hash, answer = error.message, sub_state,
        retry_in = ?tx.due.saturating_duration_since(Instant::now()), "not taken; trying on");
    tx.complain(sub_state, Some(error));
}
