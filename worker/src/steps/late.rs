//! Ends queued intents whose `start_by` passed: also while the window is full, the submitter is paused, or no node answers.

use gapless_domain::{ErrorCode, EventKind, SubState, TxError, TxState};
use gapless_store::{LateIntent, MAX_LATE, Move};

use crate::lane::{Lane, QueuedMove, StepError};

/// Returns whether there may be more.
pub(crate) async fn end(lane: &mut Lane) -> Result<bool, StepError> {
    let found = lane.context.reader.late(lane.lease.key()).await?;
    let is_full = found.len() >= MAX_LATE;
    let mut ended = false;
    for late in found {
        // Decided and not committed yet.
        if lane.pending.moves(late.tx_id) || lane.rows.open.iter().any(|tx| tx.intent.tx_id == late.tx_id) {
            continue;
        }
        lane.rows.queue.retain(|intent| intent.tx_id != late.tx_id);
        lane.prepare.passed.remove(late.tx_id);
        let error = error(late.last_error.as_deref());
        lane.emit_event(Some(late.tx_id), EventKind::ended(TxState::Cancelled, &error));
        if late.blocked {
            lane.emit_event(Some(late.tx_id), EventKind::Unblocked { reason: "the intent ended".to_owned() });
        }
        lane.pending.move_queued(queued_move(late, error));
        ended = true;
    }
    if ended {
        lane.flush().await?;
    }
    Ok(is_full && ended)
}

fn queued_move(late: LateIntent, error: TxError) -> QueuedMove {
    let change = Move {
        sub_state: Some(SubState::Deadline),
        last_error: Some(error),
        ..Move::new(late.tx_id, TxState::Queued, TxState::Cancelled)
    };
    QueuedMove { change, trace: late.trace_context }
}

/// `waited_for`: the reason why it waited, if there is one.
pub(super) fn error(waited_for: Option<&str>) -> TxError {
    let text = "not started in time, no nonce was used";
    let message = match waited_for {
        Some(reason) => format!("{text}: {reason}"),
        None => format!("{text}: transactions before it were not finished"),
    };
    TxError::new(ErrorCode::DeadlinePassed, message)
}
