//! From QUEUED to signed and committed. Everything that can fail is tried before a nonce is used.

mod draft;

use std::time::{Duration, Instant};

use gapless::domain::{EventKind, SignedDraft, TxState};
use gapless::store::{Move, OpenIntent, QueuedIntent};

use super::protect;
use crate::failpoint;
use crate::lane::{Lane, OpenTx, QueuedMove, StepError};
use draft::Verdict;

/// Intents read ahead, so that a busy lane with a window of one does not ask for each.
const READ_AHEAD: u32 = 16;
/// A lane that waits for funds, a signer or a node looks again this often.
const HOLD: Duration = Duration::from_secs(1);

/// Fills the window from the queue and commits. True: there is more to do at once.
pub(crate) async fn fill(lane: &mut Lane) -> Result<bool, StepError> {
    if lane.paused || lane.hold_until.is_some_and(|until| Instant::now() < until) {
        return Ok(false);
    }
    lane.hold_until = None;
    let mut ready = false;
    // Bounded: a long run of intents that can never be sent must not keep the lane from its open ones.
    let mut room = READ_AHEAD.max(lane.window());
    while lane.in_window() < u64::from(lane.window()) && room > 0 {
        room -= 1;
        let Some(intent) = next_queued(lane).await? else { break };
        if !protect::first_use(lane).await? {
            lane.queue.push_front(intent);
            break;
        }
        match draft::draft(lane, &intent).await {
            Ok(draft) => {
                give_nonce(lane, intent, draft);
                ready = true;
            }
            Err(Verdict::Dead { state, sub_state, reason }) => bury(lane, &intent, state, sub_state, reason),
            Err(Verdict::Hold { sub_state, reason }) => {
                hold(lane, intent, sub_state, reason);
                break;
            }
        }
    }
    if ready {
        failpoint::hit("signed");
        lane.flush().await?;
    }
    Ok(ready || room == 0)
}

async fn next_queued(lane: &mut Lane) -> Result<Option<QueuedIntent>, StepError> {
    if lane.queue.is_empty() && lane.more_queued {
        // What was decided about earlier intents must be on disk, or they would be read as queued again.
        if !lane.queued_moves.is_empty() || lane.open.iter().any(|tx| tx.draft().is_some()) {
            lane.flush().await?;
        }
        let wanted = READ_AHEAD.max(lane.window());
        let heads = lane.shared.reader.queue_head(lane.lease.key(), wanted).await?;
        lane.more_queued = heads.len() >= wanted as usize;
        lane.queue.extend(heads);
    }
    Ok(lane.queue.pop_front())
}

fn give_nonce(lane: &mut Lane, intent: QueuedIntent, draft: SignedDraft) {
    let (now, window) = (Instant::now(), lane.window());
    // Unwrap safety: `first_use` said yes, and that means the sequence exists.
    let sequence = lane.sequence.as_mut().expect("a sequence");
    sequence.next = draft.nonce.next();
    sequence.max_in_flight = window;
    let open = OpenIntent {
        tx_id: intent.tx_id,
        payload: intent.payload,
        state: TxState::InFlight,
        sub_state: None,
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
        attempts: Vec::new(),
    };
    lane.open.push_back(OpenTx::prepared(open, draft, lane.chain.config.resubmit.interval, now));
}

fn bury(lane: &mut Lane, intent: &QueuedIntent, state: TxState, sub_state: &'static str, reason: String) {
    lane.queued_moves.push(note(intent, state, sub_state, &reason));
    let event = match state {
        TxState::Cancelled => EventKind::Cancelled { reason },
        _ => EventKind::Failed { reason },
    };
    lane.tell(Some(intent.tx_id), event);
}

/// Keeps the intent at the head and says why, once. Of a signer it says every new reason: what has to be mended changes
/// with it. Other reasons hold numbers, which change all the time.
fn hold(lane: &mut Lane, mut intent: QueuedIntent, sub_state: &'static str, reason: String) {
    let new_reason = sub_state == "waiting_signer" && intent.last_error.as_ref() != Some(&reason);
    if intent.sub_state.as_deref() != Some(sub_state) || new_reason {
        tracing::warn!(chain.id = lane.chain.config.id.0, submitter = %lane.lease.key().address_text(),
            tx.id = %intent.tx_id, sub_state, reason, "the lane holds; no nonce is used");
        lane.queued_moves.push(note(&intent, TxState::Queued, sub_state, &reason));
        intent.sub_state = Some(sub_state.to_owned());
        intent.last_error = Some(reason);
    }
    lane.queue.push_front(intent);
    lane.hold_until = Some(Instant::now() + HOLD);
}

fn note(intent: &QueuedIntent, to: TxState, sub_state: &str, reason: &str) -> QueuedMove {
    let change = Move {
        tx_id: intent.tx_id,
        from: TxState::Queued,
        to,
        sub_state: Some(sub_state.to_owned()),
        nonce: None,
        tx_hash: None,
        last_error: Some(reason.to_owned()),
        gas_params: None,
        receipt: None,
        replaced_by: None,
        ending: intent.ending.clone(),
        sends: 0,
        resubmit_in: None,
    };
    QueuedMove { change, trace: intent.trace_context.clone() }
}
