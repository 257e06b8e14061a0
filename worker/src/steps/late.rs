//! Ends queued intents whose `start_by` passed: also while the window is full, the submitter is paused, or no node answers.

use gapless_domain::{ErrorCode, EventKind, SubState, TxError, TxState};
use gapless_store::{LateIntent, Move};

use crate::lane::{Lane, QueuedMove, StepError};

pub(crate) async fn end(lane: &mut Lane) -> Result<(), StepError> {
    if lane.rows.late.is_empty() {
        return Ok(());
    }
    for late in std::mem::take(&mut lane.rows.late) {
        // A client's request may have ended it.
        if lane.pending.moves(late.tx_id) || lane.rows.open.iter().any(|tx| tx.intent.tx_id == late.tx_id) {
            continue;
        }
        lane.rows.queue.retain(|intent| intent.tx_id != late.tx_id);
        let error = error(late.last_error.as_deref());
        lane.emit_event(Some(late.tx_id), EventKind::ended(TxState::Cancelled, &error));
        if late.blocked {
            lane.emit_event(Some(late.tx_id), EventKind::Unblocked { reason: "the intent ended".to_owned() });
        }
        lane.pending.move_queued(queued_move(late, error));
    }
    lane.flush().await
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
