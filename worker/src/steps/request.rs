//! Executes client requests about an intent as the owner of the lease: cancel, speed up, rebroadcast.

use gapless_domain::{Ending, ErrorCode, EventKind, TxError, TxState};
use gapless_store::{AskedBy, Move, PendingTxRequest, TxAction};
use tokio::time::Instant;

use crate::failpoint;
use crate::lane::{Lane, QueuedMove, StepError};

const CANCELLED: &str = "cancelled before a nonce was assigned";
const RESERVED: &str = "its nonce is reserved by a client, and nothing was sent yet";
const FORBIDDEN: &str = "nonce.profile = stability_first forbids replacements and placeholders";

/// What was done, or why nothing was changed.
type Outcome = Result<String, String>;

pub(crate) async fn carry_out(lane: &mut Lane) -> Result<(), StepError> {
    if lane.rows.tx_requests.is_empty() {
        return Ok(());
    }
    let mut speeds_up = false;
    for request in std::mem::take(&mut lane.rows.tx_requests) {
        let outcome = match request.action {
            TxAction::Cancel => cancel(lane, &request),
            TxAction::SpeedUp => match speed_up(lane, &request) {
                Ok(()) => {
                    speeds_up = true;
                    continue;
                }
                Err(reason) => Err(reason),
            },
            TxAction::Rebroadcast => rebroadcast(lane, &request),
        };
        tracing::info!(tx.id = %request.tx_id, action = ?request.action, reason = request.reason,
            outcome = ?outcome, "request executed");
        lane.pending.finish_request(AskedBy::TxRequest(request.request_no), outcome);
    }
    lane.flush().await?;
    if speeds_up {
        failpoint::hit("asked");
    }
    Ok(())
}

/// Without a nonce the intent ends at once. With one, a placeholder competes for the nonce; whichever is mined first
/// wins.
fn cancel(lane: &mut Lane, request: &PendingTxRequest) -> Outcome {
    let (may_replace, shared_key) = (lane.may_replace(), lane.sharing.enabled);
    let Some(tx) = lane.rows.open.iter_mut().find(|tx| tx.intent.tx_id == request.tx_id) else {
        return cancel_queued(lane, request);
    };
    match tx.state() {
        TxState::Tracking => Err("already mined".to_owned()),
        TxState::Protect if shared_key => {
            let reason = request.reason.clone();
            tx.give_up(Ending { state: TxState::Cancelled, code: ErrorCode::Cancelled, reason });
            Ok("its nonce was consumed externally; it gets no new one".to_owned())
        }
        TxState::Protect => Err("its submitter is in PROTECT; an operator must release it first".to_owned()),
        _ if !may_replace => Err(FORBIDDEN.to_owned()),
        _ => {
            let reason = request.reason.clone();
            tx.give_up(Ending { state: TxState::Cancelled, code: ErrorCode::Cancelled, reason });
            Ok("cancellation sent; whichever is mined first wins".to_owned())
        }
    }
}

fn cancel_queued(lane: &mut Lane, request: &PendingTxRequest) -> Outcome {
    if lane.pending.moves(request.tx_id) {
        return Ok(CANCELLED.to_owned());
    }
    if request.state != TxState::Queued {
        return Err("already final".to_owned());
    }
    lane.rows.queue.retain(|intent| intent.tx_id != request.tx_id);
    let error = TxError::new(ErrorCode::Cancelled, request.reason.clone());
    lane.emit_event(Some(request.tx_id), EventKind::ended(TxState::Cancelled, &error));
    if request.blocked {
        lane.emit_event(Some(request.tx_id), EventKind::Unblocked { reason: "cancelled".to_owned() });
    }
    let change =
        Move { last_error: Some(error), ..Move::new(request.tx_id, TxState::Queued, TxState::Cancelled) };
    lane.pending.move_queued(QueuedMove { change, trace: None });
    Ok(CANCELLED.to_owned())
}

/// Resends the newest attempt now, and older ones if no node accepts it.
fn rebroadcast(lane: &mut Lane, request: &PendingTxRequest) -> Outcome {
    match lane.rows.open.iter_mut().find(|tx| tx.intent.tx_id == request.tx_id) {
        Some(tx) if tx.is_reserved() => Err(RESERVED.to_owned()),
        Some(tx) if tx.is_unmined() => {
            tx.send_all_now(Instant::now());
            Ok("resending the same bytes, newest attempt first".to_owned())
        }
        _ => Err("nothing to resend".to_owned()),
    }
}

/// Has `replace` make an attempt with a higher price. The request stays open until that attempt is committed or
/// refused, so that the next owner continues with it.
fn speed_up(lane: &mut Lane, request: &PendingTxRequest) -> Result<(), String> {
    if !lane.may_replace() {
        return Err(FORBIDDEN.to_owned());
    }
    let Some(tx) = lane.rows.open.iter_mut().find(|tx| tx.intent.tx_id == request.tx_id) else {
        return Err("no nonce assigned yet, or already final".to_owned());
    };
    match tx.state() {
        _ if tx.is_reserved() => Err(RESERVED.to_owned()),
        TxState::InFlight | TxState::Submitted | TxState::Stuck => {
            tx.replacing.speed_up = true;
            tx.replacing.speed_up_requests.push(request.request_no);
            if !request.seen {
                lane.pending.request_seen(request.request_no);
            }
            Ok(())
        }
        _ => Err("already mined, or its submitter is in PROTECT".to_owned()),
    }
}
