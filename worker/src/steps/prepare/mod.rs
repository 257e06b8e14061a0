//! From QUEUED to IN_FLIGHT: checks, signs and commits. Everything that can fail is tried before a nonce is used.

pub(super) mod draft;
mod passed;
mod revert;

use std::time::Duration;

use gapless_config::BlockedPolicy;
use gapless_domain::{
    BlockedReason, ErrorCode, EventKind, ReservationState, SignedDraft, SubState, TxError, TxId, TxState,
    U256,
};
use gapless_store::{BlockedFor, Move, OpenIntent, QueuedIntent, ReservedNonce};
use gapless_telemetry::step_span;
use tokio::time::Instant;
use tracing::Instrument;

use super::delegated::{self, CodeCheck};
use super::policy::{self, Count};
use super::{protect, shared_key};
use crate::failpoint;
use crate::lane::{Lane, OpenTx, QueuedMove, StepError};
use draft::Refusal;
pub(crate) use passed::Passed;
pub(crate) use revert::Reverts;

/// Intents read per query, so that a busy lane with a window of one does not query for each.
const READ_AHEAD: u32 = 16;
/// An intent that must start within this time is committed before others are drafted.
const COMMIT_BEFORE: Duration = Duration::from_secs(1);
/// The same while all of them expect later nonces.
const READ_FOR_NONCES: u32 = 256;
/// Retry interval then: the intents before them are about to arrive.
const RETRY_FOR_NONCES: Duration = Duration::from_millis(100);
/// Maximum age of a queued reservation request. A nonce for a client that is gone costs a placeholder.
const RESERVATION_MAX_AGE: Duration = Duration::from_millis(500);
/// Retry interval of a lane that waits for funds, a signer or a node.
pub(super) const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// State of the preparation of queued intents.
#[derive(Debug, Default)]
pub(crate) struct Preparation {
    /// Nothing is prepared before this: funds, signer or node are unavailable.
    hold_until: Option<Instant>,
    /// Blocked heads that later intents may pass.
    pub(crate) passed: Passed,
    /// The sender's balance.
    funds: Option<Funds>,
    pub(super) code_check: CodeCheck,
    /// Intents that would revert, and the block at which that was found.
    pub(crate) reverts: Reverts,
    /// The intent at the head of the queue whose reserving client is inactive, and since when.
    client_silent: Option<(TxId, Instant)>,
}

impl Preparation {
    /// The rows are read again. What was seen over time is kept: a revert seen once, a client that is silent.
    pub(crate) fn reload(&mut self) {
        let Preparation { reverts, client_silent, .. } = std::mem::take(self);
        *self = Preparation { reverts, client_silent, ..Preparation::default() };
    }

    pub(crate) fn held_until(&self) -> Option<Instant> {
        self.hold_until
    }

    /// Prepares nothing for this time.
    pub(super) fn hold_for(&mut self, pause: Duration) {
        self.hold_until = Some(Instant::now() + pause);
    }

    /// What was missing may be available now.
    pub(crate) fn end_hold(&mut self) {
        self.hold_until = None;
    }

    /// Reads the balance again before the next intent.
    pub(super) fn forget_funds(&mut self) {
        self.funds = None;
    }
}

/// Balance of the sender as last read, minus the cost of attempts since.
#[derive(Clone, Copy, Debug)]
struct Funds {
    left: U256,
    read_at: Instant,
}

/// Fills the window from the queue and commits. Returns whether there is more to do at once.
pub(crate) async fn fill(lane: &mut Lane) -> Result<bool, StepError> {
    if lane.rows.paused || lane.prepare.hold_until.is_some_and(|until| Instant::now() < until) {
        return Ok(false);
    }
    // A reserving client's transaction that waits for funds or a node comes first.
    if lane.rows.open.iter().any(|tx| tx.is_reserved() && tx.answer_at.is_some()) {
        return Ok(false);
    }
    lane.prepare.end_hold();
    lane.prepare.passed.requeue_due(&mut lane.rows.queue);
    let mut ready = false;
    // Bounded: a long run of intents that can never be sent must not delay the open ones.
    let mut remaining = READ_AHEAD.max(lane.window());
    let mut checked = false;
    while lane.window_has_room() && remaining > 0 {
        remaining -= 1;
        let Some(intent) = next_queued(lane).await? else { break };
        if !protect::first_use(lane).await? {
            lane.rows.queue.push_front(intent);
            break;
        }
        if !checked {
            delegated::check(lane).await;
            // Both may shrink the free window to zero.
            if !shared_key::catch_up(lane).await? || !lane.window_has_room() {
                lane.rows.queue.push_front(intent);
                break;
            }
            checked = true;
        }
        // A head that waits is tried again every second, for days if need be: only the first try has a span.
        let trace = intent.trace_context.as_deref().filter(|_| intent.sub_state.is_none());
        let span = step_span("prepare", trace, &intent.tx_id);
        match try_draft(lane, &intent).instrument(span).await? {
            Ok((draft, count)) => {
                let commit_soon = intent.start_by.is_some_and(|at| at <= Instant::now() + COMMIT_BEFORE);
                // The policy count and the nonce are in the same commit.
                lane.pending.policy(count);
                emit_unblocked(lane, &intent, "a nonce was assigned");
                assign_nonce(lane, intent, draft);
                ready = true;
                if commit_soon {
                    break;
                }
            }
            Err(Refusal::Final { state, sub_state, error }) => {
                fail_queued(lane, &intent, state, sub_state, error)
            }
            Err(Refusal::Wait { sub_state, error }) => match blocked_policy(lane, &intent, sub_state) {
                BlockedPolicy::Fail => fail_blocked(lane, &intent, error),
                BlockedPolicy::Pass if !lane.prepare.passed.is_full() => {
                    let intent = record_wait_reason(lane, intent, sub_state, error);
                    lane.prepare.passed.push(intent);
                }
                BlockedPolicy::Pass | BlockedPolicy::Wait => {
                    wait_at_head(lane, intent, sub_state, error);
                    break;
                }
            },
        }
    }
    if ready {
        failpoint::hit("signed");
        lane.flush().await?;
    }
    Ok(ready || remaining == 0)
}

async fn next_queued(lane: &mut Lane) -> Result<Option<QueuedIntent>, StepError> {
    // A row read ahead does not show whether the reserving client is still waiting.
    let is_old = |intent: &QueuedIntent| {
        intent.reservation.as_ref().is_some_and(|reservation| {
            let lapsed =
                reservation.read_at < reservation.wanted_until && reservation.wanted_until <= Instant::now();
            lapsed || reservation.read_at.elapsed() > RESERVATION_MAX_AGE
        })
    };
    // All of them expect later nonces: the ones before may have arrived, anywhere in the queue.
    let all_expect_later = !lane.rows.queue.is_empty() && first_to_start(lane).is_none();
    let next = first_to_start(lane).and_then(|index| lane.rows.queue.get(index));
    if all_expect_later || next.is_some_and(is_old) {
        lane.rows.reread_queue();
    }
    if lane.rows.queue.is_empty() && lane.rows.may_have_more() {
        // Decisions about earlier intents must be committed first, or the query would return them as QUEUED again.
        if lane.pending.moves_queued() || lane.rows.open.iter().any(|tx| tx.draft().is_some()) {
            lane.flush().await?;
        }
        // The query returns the passed intents as well; they are filtered out.
        let passed = u32::try_from(lane.prepare.passed.len()).unwrap_or(u32::MAX);
        let read_ahead = if all_expect_later { READ_FOR_NONCES } else { READ_AHEAD };
        let wanted = read_ahead.max(lane.window()).saturating_add(passed);
        let heads = lane.context.reader.queue_head(lane.lease.key(), wanted).await?;
        let more = heads.len() >= wanted as usize;
        let unpassed = heads.into_iter().filter(|intent| !lane.prepare.passed.contains(intent));
        lane.rows.read_ahead(unpassed, more);
    }
    let index = first_to_start(lane).unwrap_or(0);
    Ok(lane.rows.queue.remove(index))
}

/// The first intent that does not expect a later nonce than the next one.
fn first_to_start(lane: &Lane) -> Option<usize> {
    let next = lane.next_nonce();
    let may_start = |intent: &QueuedIntent| intent.expected_nonce.is_none_or(|expected| expected <= next);
    lane.rows.queue.iter().position(may_start)
}

/// The signed bytes and the value counted against the daily cap; or the refusal.
async fn try_draft(
    lane: &mut Lane,
    intent: &QueuedIntent,
) -> Result<Result<(SignedDraft, Count), Refusal>, StepError> {
    if let Err(refusal) = draft::check_still_wanted(lane, intent) {
        return Ok(Err(refusal));
    }
    // Before the estimate: a forbidden intent costs no request.
    let count = match policy::check(lane, intent.tx_id, &intent.payload).await? {
        Ok(count) => count,
        Err(refusal) => return Ok(Err(refusal)),
    };
    Ok(draft::draft(lane, &intent.payload).await.map(|draft| (draft, count)))
}

fn assign_nonce(lane: &mut Lane, intent: QueuedIntent, draft: SignedDraft) {
    let (now, window) = (Instant::now(), lane.window());
    if intent.start_by.is_some() {
        lane.pending.awaited();
    }
    lane.rows.assigned(draft.nonce, window);
    let reserved_for = intent
        .reservation
        .map(|reservation| reservation.reserve_for.min(lane.chain.config.nonce.max_reservation));
    let reservation = reserved_for.map(|duration| ReservedNonce {
        state: ReservationState::Reserved,
        expires: now + duration,
        over: false,
        answer: None,
        answer_expires: None,
        noted: false,
    });
    let open = OpenIntent {
        tx_id: intent.tx_id,
        payload: intent.payload,
        state: TxState::InFlight,
        sub_state: reserved_for.map(|_| SubState::Reserved),
        nonce: draft.nonce,
        tx_hash: draft.tx_hash,
        last_error: None,
        gas_params: Some(draft.gas_params()),
        max_cost: draft.max_cost,
        receipt: None,
        resubmit_in: Duration::ZERO,
        age: Duration::ZERO,
        sends: 0,
        last_attempt_age: Duration::ZERO,
        last_attempt_sent: false,
        expires: intent.expires,
        ending: None,
        trace_context: intent.trace_context,
        reservation,
        attempts: Vec::new(),
    };
    lane.sharing.nonce_assigned();
    // At the end, except for a vacant nonce of a shared key.
    let position = lane.rows.open.partition_point(|tx| tx.intent.nonce < open.nonce);
    let open = match reserved_for {
        Some(duration) => OpenTx::reserved(open, draft, duration, now),
        None => OpenTx::prepared(open, draft, lane.chain.config.resubmit.interval, now),
    };
    lane.rows.open.insert(position, open);
}

fn fail_queued(lane: &mut Lane, intent: &QueuedIntent, state: TxState, sub_state: SubState, error: TxError) {
    emit_unblocked(lane, intent, "the intent ended");
    lane.emit_event(Some(intent.tx_id), EventKind::ended(state, &error));
    lane.pending.move_queued(queued_move(intent, state, sub_state, error));
}

/// `queue.blocked`, if the head has lacked funds or a sufficient fee cap for `queue.blocked_after`; otherwise it
/// waits. An unavailable node or signer is not the intent's fault and never counts.
fn blocked_policy(lane: &Lane, intent: &QueuedIntent, sub_state: SubState) -> BlockedPolicy {
    let settings = &lane.chain.config.queue;
    let reason = BlockedReason::of_sub_state(sub_state);
    let own = reason.is_some_and(BlockedReason::is_intent_specific);
    // Only an uninterrupted time without funds or a sufficient fee cap counts.
    let before = intent.sub_state.and_then(BlockedReason::of_sub_state);
    let was = before.is_some_and(BlockedReason::is_intent_specific);
    let long = intent.blocked.is_some_and(|blocked| blocked.elapsed() >= settings.blocked_after);
    if own && was && long { settings.blocked } else { BlockedPolicy::Wait }
}

fn fail_blocked(lane: &mut Lane, intent: &QueuedIntent, error: TxError) {
    let waited = lane.chain.config.queue.blocked_after.as_secs();
    let reason = format!("blocked for {waited} s and queue.blocked = \"fail\": {}", error.message);
    tracing::warn!(tx.id = %intent.tx_id, reason, "failed by queue.blocked; no nonce used");
    fail_queued(lane, intent, TxState::Failed, SubState::Blocked, TxError::new(error.code, reason));
}

fn wait_at_head(lane: &mut Lane, intent: QueuedIntent, sub_state: SubState, error: TxError) {
    let pause = match (sub_state, error.code) {
        (SubState::CheckingRevert, _) => revert::RECHECK_AFTER,
        (_, ErrorCode::NonceMismatch) => RETRY_FOR_NONCES,
        _ => RETRY_INTERVAL,
    };
    let intent = record_wait_reason(lane, intent, sub_state, error);
    lane.rows.queue.push_front(intent);
    lane.prepare.hold_for(pause);
}

/// Records and logs the reason when `sub_state` changes. For a signer also when the message changes, because it says
/// what to fix; other messages contain numbers that change all the time.
fn record_wait_reason(
    lane: &mut Lane,
    mut intent: QueuedIntent,
    sub_state: SubState,
    error: TxError,
) -> QueuedIntent {
    let new_reason = sub_state == SubState::WaitingSigner && intent.last_error.as_ref() != Some(&error);
    if intent.sub_state != Some(sub_state) || new_reason {
        tracing::warn!(tx.id = %intent.tx_id, sub_state = sub_state.as_str(), reason = error.message,
            "intent waits; no nonce used");
        lane.pending.move_queued(queued_move(&intent, TxState::Queued, sub_state, error.clone()));
        update_blocked(lane, &mut intent, sub_state, &error);
        intent.sub_state = Some(sub_state);
        intent.last_error = Some(error);
    }
    intent
}

/// Emits that the head is blocked, or no longer blocked. The start time is written with `sub_state`.
fn update_blocked(lane: &mut Lane, intent: &mut QueuedIntent, sub_state: SubState, error: &TxError) {
    let Some(reason) = BlockedReason::of_sub_state(sub_state) else {
        emit_unblocked(lane, intent, "it now waits for another reason");
        intent.blocked = None;
        return;
    };
    let (code, text) = (error.code, error.message.clone());
    let blocked = EventKind::Blocked { waits_for: reason.as_str(), code, reason: text };
    lane.emit_event(Some(intent.tx_id), blocked);
    let before = intent.sub_state.and_then(BlockedReason::of_sub_state);
    if before.map(BlockedReason::is_intent_specific) != Some(reason.is_intent_specific()) {
        intent.blocked = None;
    }
    intent.blocked.get_or_insert_with(BlockedFor::starting_now);
}

fn emit_unblocked(lane: &mut Lane, intent: &QueuedIntent, reason: &str) {
    if intent.blocked.is_some() {
        lane.emit_event(Some(intent.tx_id), EventKind::Unblocked { reason: reason.to_owned() });
    }
}

/// No node answered, so nothing can be prepared: records that as the wait reason of the queue head. Writes nothing
/// else of the lane's state.
pub(crate) async fn show_waiting_for_node(lane: &mut Lane, cause: &str) -> Result<(), StepError> {
    let head = lane.context.reader.queue_head(lane.lease.key(), 1).await?.into_iter().next();
    let Some(head) = head.filter(|head| head.sub_state != Some(SubState::WaitingNode)) else {
        return Ok(());
    };
    wait_at_head(lane, head, SubState::WaitingNode, TxError::new(ErrorCode::NodeUnavailable, cause));
    lane.flush().await
}

fn queued_move(intent: &QueuedIntent, to: TxState, sub_state: SubState, error: TxError) -> QueuedMove {
    let change = Move {
        sub_state: Some(sub_state),
        last_error: Some(error),
        ending: intent.ending.clone(),
        ..Move::new(intent.tx_id, TxState::Queued, to)
    };
    QueuedMove { change, trace: intent.trace_context.clone() }
}
