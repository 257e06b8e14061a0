//! From QUEUED to signed and committed. Everything that can fail is tried before a nonce is used.

pub(super) mod draft;
mod passed;
mod revert;

use std::time::Duration;

use gapless::config::BlockedPolicy;
use gapless::domain::{BlockedReason, ErrorCode, EventKind, ReservationState, SignedDraft, TxError, TxState};
use gapless::store::{BlockedFor, Move, OpenIntent, QueuedIntent, ReservedNonce};
use tokio::time::Instant;

use super::policy::{self, Count};
use super::recover::WAITING_NODE;
use super::{delegated, protect, shared_key};
use crate::failpoint;
use crate::lane::{Lane, OpenTx, QueuedMove, StepError};
use draft::Verdict;
pub(crate) use passed::Passed;
pub(crate) use revert::Reverts;

/// Intents read ahead, so that a busy lane with a window of one does not ask for each.
const READ_AHEAD: u32 = 16;
/// Callers are gone from one moment to the next; a nonce for one that is gone costs a placeholder.
const CALLER_FRESH: Duration = Duration::from_millis(500);
/// A lane that waits for funds, a signer or a node looks again this often.
pub(super) const HOLD: Duration = Duration::from_secs(1);

/// Fills the window from the queue and commits. True: there is more to do at once.
pub(crate) async fn fill(lane: &mut Lane) -> Result<bool, StepError> {
    if lane.paused || lane.hold_until.is_some_and(|until| Instant::now() < until) {
        return Ok(false);
    }
    // A caller's answer that waits for funds or for a node comes first.
    if lane.open.iter().any(|tx| tx.is_reserved() && tx.answer_at.is_some()) {
        return Ok(false);
    }
    lane.hold_until = None;
    let Lane { passed, queue, .. } = lane;
    passed.give_back(queue);
    let mut ready = false;
    // Bounded: a long run of intents that can never be sent must not keep the lane from its open ones.
    let mut room = READ_AHEAD.max(lane.window());
    let mut looked = false;
    while lane.has_room() && room > 0 {
        room -= 1;
        let Some(intent) = next_queued(lane).await? else { break };
        if !protect::first_use(lane).await? {
            lane.queue.push_front(intent);
            break;
        }
        if !looked {
            delegated::look(lane).await;
            // Both may find that there is no room after all.
            if !shared_key::catch_up(lane).await? || !lane.has_room() {
                lane.queue.push_front(intent);
                break;
            }
            looked = true;
        }
        match drafted(lane, &intent).await? {
            Ok((draft, count)) => {
                // The count is on disk with the nonce, or neither is.
                lane.policy_notes.extend(count);
                unblocked(lane, &intent, "it has a nonce");
                give_nonce(lane, intent, draft);
                ready = true;
            }
            Err(Verdict::Dead { state, sub_state, error }) => {
                fail_queued(lane, &intent, state, sub_state, error)
            }
            Err(Verdict::Hold { sub_state, error }) => match overdue(lane, &intent, sub_state) {
                BlockedPolicy::Fail => fail(lane, &intent, error),
                BlockedPolicy::Pass if !lane.passed.is_full() => {
                    let intent = show_held(lane, intent, sub_state, error);
                    lane.passed.push(intent);
                }
                BlockedPolicy::Pass | BlockedPolicy::Wait => {
                    hold(lane, intent, sub_state, error);
                    break;
                }
            },
        }
    }
    if ready {
        failpoint::hit("signed");
        lane.flush().await?;
    }
    Ok(ready || room == 0)
}

async fn next_queued(lane: &mut Lane) -> Result<Option<QueuedIntent>, StepError> {
    // What was read ahead does not know whether a caller that waits is still there.
    let old = |intent: &QueuedIntent| {
        intent.reservation.as_ref().is_some_and(|reservation| {
            let lapsed =
                reservation.read_at < reservation.wanted_until && reservation.wanted_until <= Instant::now();
            lapsed || reservation.read_at.elapsed() > CALLER_FRESH
        })
    };
    if lane.queue.front().is_some_and(old) {
        lane.queue.clear();
        lane.more_queued = true;
    }
    if lane.queue.is_empty() && lane.more_queued {
        // What was decided about earlier intents must be on disk, or they would be read as queued again.
        if !lane.queued_moves.is_empty() || lane.open.iter().any(|tx| tx.draft().is_some()) {
            lane.flush().await?;
        }
        // Those that are passed are read again, and are not tried twice.
        let passed = u32::try_from(lane.passed.len()).unwrap_or(u32::MAX);
        let wanted = READ_AHEAD.max(lane.window()).saturating_add(passed);
        let heads = lane.context.reader.queue_head(lane.lease.key(), wanted).await?;
        lane.more_queued = heads.len() >= wanted as usize;
        lane.queue.extend(heads.into_iter().filter(|intent| !lane.passed.has(intent)));
    }
    Ok(lane.queue.pop_front())
}

/// Its bytes, and what it counts against the policy's day; or why there are none.
async fn drafted(
    lane: &mut Lane,
    intent: &QueuedIntent,
) -> Result<Result<(SignedDraft, Count), Verdict>, StepError> {
    if let Err(verdict) = draft::still_due(lane, intent) {
        return Ok(Err(verdict));
    }
    // First: what is not allowed is not even estimated.
    let count = match policy::judge(lane, intent.tx_id, &intent.payload).await? {
        Ok(count) => count,
        Err(verdict) => return Ok(Err(verdict)),
    };
    Ok(draft::draft(lane, &intent.payload).await.map(|draft| (draft, count)))
}

fn give_nonce(lane: &mut Lane, intent: QueuedIntent, draft: SignedDraft) {
    let (now, window) = (Instant::now(), lane.window());
    // Unwrap safety: `first_use` said yes, and that means the sequence exists.
    let sequence = lane.sequence.as_mut().expect("a sequence");
    sequence.next = sequence.next.max(draft.nonce.next());
    sequence.max_in_flight = window;
    let hold =
        intent.reservation.map(|reservation| reservation.hold.min(lane.chain.config.nonce.max_reservation));
    let reservation = hold.map(|hold| ReservedNonce {
        state: ReservationState::Reserved,
        expires: now + hold,
        over: false,
        answer: None,
        answer_expires: None,
        noted: false,
    });
    let open = OpenIntent {
        tx_id: intent.tx_id,
        payload: intent.payload,
        state: TxState::InFlight,
        sub_state: hold.map(|_| "reserved".to_owned()),
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
    lane.sharing.free = None;
    // Last, but for a nonce that others vacated.
    let place = lane.open.partition_point(|tx| tx.intent.nonce < open.nonce);
    let open = match hold {
        Some(hold) => OpenTx::reserved(open, draft, hold, now),
        None => OpenTx::prepared(open, draft, lane.chain.config.resubmit.interval, now),
    };
    lane.open.insert(place, open);
}

fn fail_queued(
    lane: &mut Lane,
    intent: &QueuedIntent,
    state: TxState,
    sub_state: &'static str,
    error: TxError,
) {
    unblocked(lane, intent, "it has ended");
    lane.tell(Some(intent.tx_id), EventKind::ended(state, &error));
    lane.queued_moves.push(note(intent, state, sub_state, error));
}

/// What the operator wants of a head that waits: nothing but waiting, unless it cannot be paid or priced and has been blocked
/// for so long. What a node or a signer owes is not the intent's fault.
fn overdue(lane: &Lane, intent: &QueuedIntent, sub_state: &str) -> BlockedPolicy {
    let settings = &lane.chain.config.queue;
    let reason = BlockedReason::of_sub_state(sub_state);
    let own = reason.is_some_and(BlockedReason::is_its_own);
    // The time that counts is one in which it could not be paid or priced, without a break.
    let before = intent.sub_state.as_deref().and_then(BlockedReason::of_sub_state);
    let was = before.is_some_and(BlockedReason::is_its_own);
    let long = intent.blocked.is_some_and(|blocked| blocked.elapsed() >= settings.blocked_after);
    if own && was && long { settings.blocked } else { BlockedPolicy::Wait }
}

fn fail(lane: &mut Lane, intent: &QueuedIntent, error: TxError) {
    let waited = lane.chain.config.queue.blocked_after.as_secs();
    let reason = format!("blocked for {waited} s, and queue.blocked = \"fail\": {}", error.message);
    tracing::warn!(chain.id = lane.chain.config.id.0, submitter = %lane.lease.key().address_text(),
        tx.id = %intent.tx_id, reason, "failed by the operator's policy; no nonce is used");
    fail_queued(lane, intent, TxState::Failed, "blocked", TxError::new(error.code, reason));
}

/// Keeps the intent at the head and says why, once. Of a signer it says every new reason: what has to be mended changes
/// with it. Other reasons hold numbers, which change all the time.
fn hold(lane: &mut Lane, intent: QueuedIntent, sub_state: &'static str, error: TxError) {
    let intent = show_held(lane, intent, sub_state, error);
    lane.queue.push_front(intent);
    let pause = if sub_state == revert::CHECKING { revert::AGAIN_AFTER } else { HOLD };
    lane.hold_until = Some(Instant::now() + pause);
}

fn show_held(
    lane: &mut Lane,
    mut intent: QueuedIntent,
    sub_state: &'static str,
    error: TxError,
) -> QueuedIntent {
    let new_reason = sub_state == "waiting_signer" && intent.last_error.as_ref() != Some(&error);
    if intent.sub_state.as_deref() != Some(sub_state) || new_reason {
        tracing::warn!(chain.id = lane.chain.config.id.0, submitter = %lane.lease.key().address_text(),
            tx.id = %intent.tx_id, sub_state, reason = error.message, "the lane holds; no nonce is used");
        lane.queued_moves.push(note(&intent, TxState::Queued, sub_state, error.clone()));
        show_blocked(lane, &mut intent, sub_state, &error);
        intent.sub_state = Some(sub_state.to_owned());
        intent.last_error = Some(error);
    }
    intent
}

/// Tells that the head is blocked, or that it waits for something else now. Since when is written with its sub-state.
fn show_blocked(lane: &mut Lane, intent: &mut QueuedIntent, sub_state: &str, error: &TxError) {
    let Some(reason) = BlockedReason::of_sub_state(sub_state) else {
        unblocked(lane, intent, "it waits for something else");
        intent.blocked = None;
        return;
    };
    let (code, text) = (error.code, error.message.clone());
    let blocked = EventKind::Blocked { waits_for: reason.as_str(), code, reason: text };
    lane.tell(Some(intent.tx_id), blocked);
    let before = intent.sub_state.as_deref().and_then(BlockedReason::of_sub_state);
    if before.map(BlockedReason::is_its_own) != Some(reason.is_its_own()) {
        intent.blocked = None;
    }
    intent.blocked.get_or_insert_with(BlockedFor::starting_now);
}

fn unblocked(lane: &mut Lane, intent: &QueuedIntent, reason: &str) {
    if intent.blocked.is_some() {
        lane.tell(Some(intent.tx_id), EventKind::Unblocked { reason: reason.to_owned() });
    }
}

/// A node could not be asked, and nothing can be prepared without it: the head of the queue says why it waits. Nothing
/// else of the lane's memory is written.
pub(crate) async fn show_waiting_for_node(lane: &mut Lane, cause: &str) -> Result<(), StepError> {
    let head = lane.context.reader.queue_head(lane.lease.key(), 1).await?.into_iter().next();
    let Some(head) = head.filter(|head| head.sub_state.as_deref() != Some(WAITING_NODE)) else {
        return Ok(());
    };
    hold(lane, head, WAITING_NODE, TxError::new(ErrorCode::NodeUnavailable, cause));
    lane.flush().await
}

fn note(intent: &QueuedIntent, to: TxState, sub_state: &str, error: TxError) -> QueuedMove {
    let change = Move {
        sub_state: Some(sub_state.to_owned()),
        last_error: Some(error),
        ending: intent.ending.clone(),
        ..Move::new(intent.tx_id, TxState::Queued, to)
    };
    QueuedMove { change, trace: intent.trace_context.clone() }
}
