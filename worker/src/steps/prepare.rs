//! From QUEUED to signed and committed. Everything that can fail is tried before a nonce is used.

use std::time::{Duration, Instant};

use gapless::chain::CallOutcome;
use gapless::chain::fees::scale;
use gapless::domain::{EventKind, Nonce, Payload, SignedDraft, TxState, U256, UnsignedTx};
use gapless::signer::SignerError;
use gapless::store::{Move, OpenIntent, QueuedIntent};

use super::protect;
use crate::failpoint;
use crate::lane::{Funds, Lane, OpenTx, StepError};

/// Intents read ahead, so that a busy lane with a window of one does not ask for each.
const READ_AHEAD: u32 = 16;
/// A lane that waits for funds, a signer or a node looks again this often.
const HOLD: Duration = Duration::from_secs(1);
/// A balance is believed this long; spending is counted down meanwhile.
const FUNDS_FRESH: Duration = Duration::from_secs(30);
/// Gas of a plain transfer: exact, no margin needed.
const TRANSFER_GAS: u64 = 21_000;

/// What became of an intent that was to be prepared.
enum Prepared {
    Ready(Box<(SignedDraft, QueuedIntent)>),
    /// It can never be sent. No nonce was used.
    Dead {
        intent: QueuedIntent,
        state: TxState,
        sub_state: &'static str,
        reason: String,
    },
    /// Not now. It stays at the head.
    Hold {
        intent: QueuedIntent,
        sub_state: &'static str,
        reason: String,
    },
}

/// Fills the window from the queue and commits. True: something is ready to be sent.
pub(crate) async fn fill(lane: &mut Lane) -> Result<bool, StepError> {
    if lane.paused || lane.hold_until.is_some_and(|until| Instant::now() < until) {
        return Ok(false);
    }
    lane.hold_until = None;
    let mut ready = false;
    while lane.in_window() < lane.window() as usize {
        let Some(intent) = next_queued(lane).await? else { break };
        if !protect::first_use(lane).await? {
            lane.queue.push_front(intent);
            break;
        }
        match prepare(lane, intent).await? {
            Prepared::Ready(boxed) => {
                let (draft, intent) = *boxed;
                give_nonce(lane, intent, draft);
                ready = true;
            }
            Prepared::Dead { intent, state, sub_state, reason } => {
                bury(lane, intent, state, sub_state, reason)
            }
            Prepared::Hold { intent, sub_state, reason } => {
                hold(lane, intent, sub_state, reason);
                break;
            }
        }
    }
    if ready {
        failpoint::hit("signed");
        lane.flush().await?;
    }
    Ok(ready)
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

async fn prepare(lane: &mut Lane, intent: QueuedIntent) -> Result<Prepared, StepError> {
    if intent.expires.is_some_and(|at| at <= Instant::now()) {
        let reason = "its deadline passed before it had a nonce".to_owned();
        return Ok(Prepared::Dead { intent, state: TxState::Cancelled, sub_state: "deadline", reason });
    }
    let gas_limit = match gas_limit(lane, &intent.payload).await {
        Ok(CallOutcome::Ok(gas)) => gas,
        // What is in flight may be what it needs (an approval before a transfer): judge when that is mined.
        Ok(CallOutcome::Reverted { reason }) if lane.open.iter().any(|tx| tx.intent.receipt.is_none()) => {
            return Ok(Prepared::Hold { intent, sub_state: "waiting_earlier", reason });
        }
        Ok(CallOutcome::Reverted { reason }) => {
            let reason = format!("would revert: {reason}");
            return Ok(Prepared::Dead { intent, state: TxState::Failed, sub_state: "would_revert", reason });
        }
        Ok(CallOutcome::Fatal { message }) => {
            return Ok(Prepared::Dead {
                intent,
                state: TxState::Failed,
                sub_state: "invalid",
                reason: message,
            });
        }
        Ok(CallOutcome::InsufficientFunds { message }) => {
            return Ok(Prepared::Hold { intent, sub_state: "waiting_funds", reason: message });
        }
        Err(error) => {
            return Ok(Prepared::Hold { intent, sub_state: "waiting_node", reason: error.to_string() });
        }
    };
    let head = lane.chain.watcher.head().unwrap_or_default();
    let fees = match lane.chain.fees.quote(lane.chain.connector.as_ref(), head, &intent.payload).await {
        Ok(fees) => fees,
        Err(error) => {
            return Ok(Prepared::Hold { intent, sub_state: "waiting_node", reason: error.to_string() });
        }
    };
    let unsigned = UnsignedTx {
        chain_id: lane.chain.config.id,
        from: lane.address(),
        nonce: next_nonce(lane),
        gas_limit,
        fees,
        payload: intent.payload.clone(),
    };
    let Some(cost) = unsigned.max_cost() else {
        let reason = "value and fees together exceed 256 bits".to_owned();
        return Ok(Prepared::Dead { intent, state: TxState::Failed, sub_state: "invalid", reason });
    };
    match can_pay(lane, cost).await {
        Ok(None) => {}
        Ok(Some(reason)) => return Ok(Prepared::Hold { intent, sub_state: "waiting_funds", reason }),
        Err(error) => {
            return Ok(Prepared::Hold { intent, sub_state: "waiting_node", reason: error.to_string() });
        }
    }
    failpoint::hit("prepared");
    Ok(match sign(lane, &unsigned).await {
        Ok(draft) => {
            spend(lane, cost);
            Prepared::Ready(Box::new((draft, intent)))
        }
        Err(SignerError::Unavailable { reason, .. }) => {
            Prepared::Hold { intent, sub_state: "waiting_signer", reason }
        }
        Err(SignerError::Refused { reason, .. }) => {
            Prepared::Dead { intent, state: TxState::Failed, sub_state: "signer_refused", reason }
        }
    })
}

async fn sign(lane: &Lane, unsigned: &UnsignedTx) -> Result<SignedDraft, SignerError> {
    if failpoint::signer_is_away() {
        return Err(SignerError::Unavailable { address: unsigned.from, reason: "failpoint".to_owned() });
    }
    lane.signer.sign(unsigned).await
}

async fn gas_limit(lane: &Lane, payload: &Payload) -> Result<CallOutcome<U256>, gapless::chain::RpcError> {
    if let Some(gas) = payload.gas_limit {
        return Ok(CallOutcome::Ok(gas));
    }
    let estimate = lane.chain.connector.estimate_gas(lane.address(), payload).await?;
    Ok(match estimate {
        CallOutcome::Ok(gas) if gas == U256::from(TRANSFER_GAS) => CallOutcome::Ok(gas),
        CallOutcome::Ok(gas) => CallOutcome::Ok(scale(gas, lane.chain.config.fees.gas_limit_multiplier)),
        other => other,
    })
}

/// The lease makes us the only writer, so memory knows the next nonce.
fn next_nonce(lane: &Lane) -> Nonce {
    lane.sequence.as_ref().map_or(Nonce(0), |sequence| sequence.next)
}

/// `None`: yes. `Some`: why not.
async fn can_pay(lane: &mut Lane, cost: U256) -> Result<Option<String>, gapless::chain::RpcError> {
    let fresh = lane.funds.filter(|funds| funds.read_at.elapsed() < FUNDS_FRESH && funds.left >= cost);
    if fresh.is_some() {
        return Ok(None);
    }
    let balance = lane.chain.connector.balance(lane.address()).await?;
    // What is mined is already taken off the balance; what is not may still cost all it was signed for.
    let owed = lane
        .open
        .iter()
        .filter(|tx| tx.state() != TxState::Tracking && !tx.state().is_terminal())
        .fold(U256::zero(), |sum, tx| sum.saturating_add(tx.intent.max_cost));
    let left = balance.saturating_sub(owed);
    lane.funds = Some(Funds { left, read_at: Instant::now() });
    Ok((left < cost).then(|| format!("needs up to {cost} wei, has {left} beyond what is in flight")))
}

fn spend(lane: &mut Lane, cost: U256) {
    if let Some(funds) = &mut lane.funds {
        funds.left = funds.left.saturating_sub(cost);
    }
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
        trace_context: intent.trace_context,
        attempts: Vec::new(),
    };
    lane.open.push_back(OpenTx::prepared(open, draft, lane.chain.config.resubmit.interval, now));
}

fn bury(lane: &mut Lane, intent: QueuedIntent, state: TxState, sub_state: &'static str, reason: String) {
    lane.queued_moves.push(note(&intent, state, sub_state, &reason));
    lane.tell(
        Some(intent.tx_id),
        match state {
            TxState::Cancelled => EventKind::Cancelled { reason },
            _ => EventKind::Failed { reason },
        },
    );
}

/// Keeps the intent at the head and says why, once.
fn hold(lane: &mut Lane, mut intent: QueuedIntent, sub_state: &'static str, reason: String) {
    if intent.sub_state.as_deref() != Some(sub_state) {
        tracing::warn!(chain.id = lane.chain.config.id.0, submitter = %lane.lease.key().address_text(),
            tx.id = %intent.tx_id, sub_state, reason, "the lane holds; no nonce is used");
        lane.queued_moves.push(note(&intent, TxState::Queued, sub_state, &reason));
        intent.sub_state = Some(sub_state.to_owned());
    }
    lane.queue.push_front(intent);
    lane.hold_until = Some(Instant::now() + HOLD);
}

fn note(intent: &QueuedIntent, to: TxState, sub_state: &str, reason: &str) -> Move {
    Move {
        tx_id: intent.tx_id,
        from: TxState::Queued,
        to,
        sub_state: Some(sub_state.to_owned()),
        nonce: None,
        tx_hash: None,
        last_error: Some(reason.to_owned()),
        gas_params: None,
        receipt: None,
        sends: 0,
        resubmit_in: None,
    }
}
