//! What clients ask about an intent, carried out by the owner of the lease.

use gapless::domain::{Ending, ErrorCode, EventKind, TxError, TxState};
use gapless::store::{AskedBy, DoneAction, Move, PendingTxRequest, TxAction};
use tokio::time::Instant;

use crate::failpoint;
use crate::lane::{Lane, QueuedMove, StepError};

const CANCELLED: &str = "cancelled before it had a nonce";
const HELD: &str = "its nonce is held by a caller, and nothing of it was sent yet";
const FORBIDDEN: &str = "nonce.profile = stability_first forbids replacements and placeholders";

/// What it led to, or why nothing was changed.
type Outcome = Result<String, String>;

pub(crate) async fn carry_out(lane: &mut Lane) -> Result<(), StepError> {
    if lane.tx_requests.is_empty() {
        return Ok(());
    }
    let mut asked = false;
    for request in std::mem::take(&mut lane.tx_requests) {
        let outcome = match request.action {
            TxAction::Cancel => cancel(lane, &request),
            TxAction::SpeedUp => match speed_up(lane, &request) {
                Ok(()) => {
                    asked = true;
                    continue;
                }
                Err(reason) => Err(reason),
            },
            TxAction::Rebroadcast => rebroadcast(lane, &request),
        };
        tracing::info!(chain.id = lane.chain.config.id.0, submitter = %lane.lease.key().address_text(),
            tx.id = %request.tx_id, fencing_token = lane.lease.token().0, action = ?request.action,
            reason = request.reason, outcome = ?outcome, "request carried out");
        lane.done_actions.push(DoneAction { asked_by: AskedBy::TxRequest(request.request_no), outcome });
    }
    lane.flush().await?;
    if asked {
        failpoint::hit("asked");
    }
    Ok(())
}

/// Without a nonce it is over at once. With one, a placeholder competes for the nonce, and what is mined decides.
fn cancel(lane: &mut Lane, request: &PendingTxRequest) -> Outcome {
    let (may_replace, shared_key) = (lane.may_replace(), lane.sharing.enabled);
    let Some(tx) = lane.open.iter_mut().find(|tx| tx.intent.tx_id == request.tx_id) else {
        return cancel_queued(lane, request);
    };
    match tx.state() {
        TxState::Tracking => Err("it is mined".to_owned()),
        TxState::Protect if shared_key => {
            let reason = request.reason.clone();
            tx.give_up(Ending { state: TxState::Cancelled, code: ErrorCode::Cancelled, reason });
            Ok("it lost its nonce to others and gets no other".to_owned())
        }
        TxState::Protect => Err("its submitter is protected; an operator must release it first".to_owned()),
        _ if !may_replace => Err(FORBIDDEN.to_owned()),
        _ => {
            let reason = request.reason.clone();
            tx.give_up(Ending { state: TxState::Cancelled, code: ErrorCode::Cancelled, reason });
            Ok("a placeholder competes for its nonce; what is mined decides".to_owned())
        }
    }
}

fn cancel_queued(lane: &mut Lane, request: &PendingTxRequest) -> Outcome {
    if lane.queued_moves.iter().any(|queued| queued.change.tx_id == request.tx_id) {
        return Ok(CANCELLED.to_owned());
    }
    if request.state != TxState::Queued {
        return Err("it is final".to_owned());
    }
    lane.queue.retain(|intent| intent.tx_id != request.tx_id);
    let error = TxError::new(ErrorCode::Cancelled, request.reason.clone());
    lane.tell(Some(request.tx_id), EventKind::ended(TxState::Cancelled, &error));
    if request.blocked {
        lane.tell(Some(request.tx_id), EventKind::Unblocked { reason: "it was cancelled".to_owned() });
    }
    let change =
        Move { last_error: Some(error), ..Move::new(request.tx_id, TxState::Queued, TxState::Cancelled) };
    lane.queued_moves.push(QueuedMove { change, trace: None });
    Ok(CANCELLED.to_owned())
}

/// The same bytes, now; older ones, too, if no node takes the newest.
fn rebroadcast(lane: &mut Lane, request: &PendingTxRequest) -> Outcome {
    match lane.open.iter_mut().find(|tx| tx.intent.tx_id == request.tx_id) {
        Some(tx) if tx.is_reserved() => Err(HELD.to_owned()),
        Some(tx) if tx.is_unmined() => {
            tx.send_all_now(Instant::now());
            Ok("the same bytes go out again, the newest first".to_owned())
        }
        _ => Err("there is nothing to send again".to_owned()),
    }
}

/// Has `replace` make an attempt with a higher price. The request stays open until that is on disk, or until it is known why there
/// is none: whoever owns the submitter by then finds it again.
fn speed_up(lane: &mut Lane, request: &PendingTxRequest) -> Result<(), String> {
    if !lane.may_replace() {
        return Err(FORBIDDEN.to_owned());
    }
    let Some(tx) = lane.open.iter_mut().find(|tx| tx.intent.tx_id == request.tx_id) else {
        return Err("it has no nonce yet, or is final".to_owned());
    };
    match tx.state() {
        _ if tx.is_reserved() => Err(HELD.to_owned()),
        TxState::InFlight | TxState::Submitted | TxState::Stuck => {
            tx.speed_up = true;
            tx.asked.push(request.request_no);
            if !request.seen {
                lane.seen_requests.push(request.request_no);
            }
            Ok(())
        }
        _ => Err("it is mined, or its submitter is protected".to_owned()),
    }
}
