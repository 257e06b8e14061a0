//! Nonces reserved by clients. `prepare` has committed the nonce with its placeholder; this step ends the
//! reservation: the client's transaction uses the nonce, or the placeholder does.
//!
//! The database clock decides. When a reservation seems to have expired, the rows are read again first, so that an
//! answer that arrived in time counts.

use gapless_domain::{Answer, Ending, ErrorCode, Payload, SignedDraft, SubState, TxError, TxState};
use gapless_signer::ReadSigned;
use tokio::time::Instant;

use super::policy::{self, Count};
use super::prepare::RETRY_INTERVAL;
use super::prepare::draft::{self, Refusal};
use crate::failpoint;
use crate::lane::{Lane, OpenTx, StepError};

pub(crate) async fn advance(lane: &mut Lane) -> Result<(), StepError> {
    for index in 0..lane.rows.open.len() {
        if lane.rows.open[index].is_reserved() {
            advance_one(lane, index).await?;
        }
    }
    if lane.rows.open.iter().any(|tx| tx.draft().is_some()) {
        lane.flush().await?;
    }
    Ok(())
}

/// When this step is due again.
pub(crate) fn next_time(lane: &Lane) -> Option<Instant> {
    lane.rows.open.iter().filter(|tx| tx.is_reserved()).filter_map(wake_at).min()
}

fn wake_at(tx: &OpenTx) -> Option<Instant> {
    let reservation = tx.intent.reservation.as_ref()?;
    Some(if reservation.answer.is_some() {
        tx.answer_at.unwrap_or(reservation.expires)
    } else {
        reservation.expires
    })
}

async fn advance_one(lane: &mut Lane, index: usize) -> Result<(), StepError> {
    let now = Instant::now();
    let tx = &mut lane.rows.open[index];
    let Some(reservation) = tx.intent.reservation.clone() else { return Ok(()) };
    if tx.intent.ending.is_some() {
        // Cancelled by a request, or its deadline passed.
        tx.recycle(false, now);
        return Ok(());
    }
    match reservation.answer {
        Some(Answer::GaveUp(reason)) => {
            end(lane, index, TxState::Failed, TxError::new(ErrorCode::HandlerFailed, reason), false);
        }
        Some(_) if reservation.answer_expires.is_some_and(|at| at <= now) => {
            let error = TxError::new(ErrorCode::DeadlinePassed, "deadline passed before it was sent");
            end(lane, index, TxState::Cancelled, error, false);
        }
        Some(_) if tx.answer_at.is_some_and(|at| now < at) => {}
        Some(answer) => use_answer(lane, index, answer).await?,
        None if reservation.over => {
            let message = "the reservation expired before the client answered";
            end(lane, index, TxState::Failed, TxError::new(ErrorCode::HandlerFailed, message), true);
        }
        None if reservation.expires <= now => lane.request_reload(),
        None => {}
    }
    Ok(())
}

/// Prepares the client's transaction like any other, but at its reserved nonce. If it can never be sent, the
/// placeholder consumes the nonce.
async fn use_answer(lane: &mut Lane, index: usize, answer: Answer) -> Result<(), StepError> {
    failpoint::hit("answered");
    let drafted = draft_answer(lane, index, answer).await?;
    // The check excluded the cost at this nonce, so later intents must not use the cached balance.
    lane.prepare.forget_funds();
    match drafted {
        Ok((draft, payload, count)) => {
            lane.pending.policy(count);
            let interval = lane.chain.config.resubmit.interval;
            lane.rows.open[index].use_reservation(draft, payload, interval, Instant::now());
        }
        Err(Refusal::Final { state, error, .. }) => end(lane, index, state, error, false),
        Err(Refusal::Wait { sub_state, error }) => {
            let tx = &mut lane.rows.open[index];
            if tx.intent.sub_state != Some(sub_state) {
                tracing::warn!(tx.id = %tx.intent.tx_id, sub_state = sub_state.as_str(), reason = error.message,
                    "transaction for a reserved nonce waits");
                tx.set_wait_reason(Some(sub_state), Some(error));
            }
            tx.answer_at = Some(Instant::now() + RETRY_INTERVAL);
        }
    }
    Ok(())
}

/// The signed bytes, the payload and the value counted against the daily cap; or the refusal. The policy also applies
/// to transactions that the client signed itself.
async fn draft_answer(
    lane: &mut Lane,
    index: usize,
    answer: Answer,
) -> Result<Result<(SignedDraft, Payload, Count), Refusal>, StepError> {
    let tx = &lane.rows.open[index];
    let (tx_id, nonce, recorded) = (tx.intent.tx_id, tx.intent.nonce, tx.hashes());
    let (payload, signed) = match answer {
        Answer::Unsigned(payload) => (*payload, None),
        Answer::Signed(raw) => match draft::decode_signed(lane, &raw, nonce, &recorded) {
            Ok(ReadSigned { payload, draft }) => (payload, Some(draft)),
            Err(refusal) => return Ok(Err(refusal)),
        },
        Answer::GaveUp(reason) => {
            let error = TxError::new(ErrorCode::HandlerFailed, reason);
            return Ok(Err(Refusal::Final { state: TxState::Failed, sub_state: SubState::GivenUp, error }));
        }
    };
    let count = match policy::check(lane, tx_id, &payload).await? {
        Ok(count) => count,
        Err(refusal) => return Ok(Err(refusal)),
    };
    let drafted = match signed {
        None => draft::draft_at(lane, &payload, nonce, &recorded).await,
        Some(draft) => draft::check_signed(lane, draft, &payload, nonce).await,
    };
    Ok(drafted.map(|draft| (draft, payload, count)))
}

fn end(lane: &mut Lane, index: usize, state: TxState, error: TxError, unanswered: bool) {
    let tx = &mut lane.rows.open[index];
    tracing::info!(tx.id = %tx.intent.tx_id, reason = error.message,
        "reservation ended; the placeholder will consume the nonce");
    tx.give_up(Ending { state, code: error.code, reason: error.message });
    tx.recycle(unanswered, Instant::now());
}
