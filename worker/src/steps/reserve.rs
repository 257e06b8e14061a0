//! Nonces that callers outside hold. The nonce and its placeholder are on disk (`prepare` gave it); here the hold ends: the
//! caller's transaction takes the nonce, or the placeholder does.
//!
//! The database's time decides. When a hold seems over, the rows are read again first: an answer that came in time counts.

use gapless::domain::{Answer, Ending, ErrorCode, Payload, SignedDraft, TxError, TxState};
use gapless::signer::ReadSigned;
use tokio::time::Instant;

use super::policy::{self, Count};
use super::prepare::HOLD;
use super::prepare::draft::{self, Verdict};
use crate::failpoint;
use crate::lane::{Lane, OpenTx, StepError};

pub(crate) async fn advance(lane: &mut Lane) -> Result<(), StepError> {
    for index in 0..lane.open.len() {
        if lane.open[index].is_reserved() {
            look_at(lane, index).await?;
        }
    }
    if lane.open.iter().any(|tx| tx.draft().is_some()) {
        lane.flush().await?;
    }
    Ok(())
}

/// When to look again.
pub(crate) fn next_time(lane: &Lane) -> Option<Instant> {
    lane.open.iter().filter(|tx| tx.is_reserved()).filter_map(wake_at).min()
}

fn wake_at(tx: &OpenTx) -> Option<Instant> {
    let reservation = tx.intent.reservation.as_ref()?;
    Some(if reservation.answer.is_some() {
        tx.answer_at.unwrap_or(reservation.expires)
    } else {
        reservation.expires
    })
}

async fn look_at(lane: &mut Lane, index: usize) -> Result<(), StepError> {
    let now = Instant::now();
    let tx = &mut lane.open[index];
    let Some(reservation) = tx.intent.reservation.clone() else { return Ok(()) };
    if tx.intent.ending.is_some() {
        // Cancelled by somebody else, or its deadline passed.
        tx.recycle(false, now);
        return Ok(());
    }
    match reservation.answer {
        Some(Answer::GaveUp(reason)) => {
            end(lane, index, TxState::Failed, TxError::new(ErrorCode::HandlerFailed, reason), false);
        }
        Some(_) if reservation.answer_expires.is_some_and(|at| at <= now) => {
            let error = TxError::new(ErrorCode::DeadlinePassed, "its deadline passed before it was sent");
            end(lane, index, TxState::Cancelled, error, false);
        }
        Some(_) if tx.answer_at.is_some_and(|at| now < at) => {}
        Some(answer) => take(lane, index, answer).await?,
        None if reservation.over => {
            let words = "its caller did not answer while it held the nonce";
            end(lane, index, TxState::Failed, TxError::new(ErrorCode::HandlerFailed, words), true);
        }
        None if reservation.expires <= now => lane.read_again(),
        None => {}
    }
    Ok(())
}

/// The caller's transaction, prepared like any other, but for a nonce that is given: what can never be sent ends in the
/// placeholder.
async fn take(lane: &mut Lane, index: usize, answer: Answer) -> Result<(), StepError> {
    failpoint::hit("answered");
    let drafted = answered(lane, index, answer).await?;
    // What it costs was left out of what is owed: nothing behind it may rely on that sum.
    lane.funds = None;
    match drafted {
        Ok((draft, payload, count)) => {
            lane.policy_notes.extend(count);
            let interval = lane.chain.config.resubmit.interval;
            lane.open[index].use_reservation(draft, payload, interval, Instant::now());
        }
        Err(Verdict::Dead { state, error, .. }) => end(lane, index, state, error, false),
        Err(Verdict::Hold { sub_state, error }) => {
            let tx = &mut lane.open[index];
            if tx.intent.sub_state.as_deref() != Some(sub_state) {
                tracing::warn!(chain.id = lane.chain.config.id.0, submitter = %lane.lease.key().address_text(),
                    tx.id = %tx.intent.tx_id, sub_state, reason = error.message, "the lane holds; its caller has answered");
                tx.complain(Some(sub_state), Some(error));
            }
            tx.answer_at = Some(Instant::now() + HOLD);
        }
    }
    Ok(())
}

/// The bytes of the caller's transaction, what it does, and what it counts against the policy's day; or why not. Bytes
/// that the caller signed itself are held against the policy like any other: they are not sent by us if they break it.
async fn answered(
    lane: &mut Lane,
    index: usize,
    answer: Answer,
) -> Result<Result<(SignedDraft, Payload, Count), Verdict>, StepError> {
    let tx = &lane.open[index];
    let (tx_id, nonce, recorded) = (tx.intent.tx_id, tx.intent.nonce, tx.hashes());
    let (payload, signed) = match answer {
        Answer::Unsigned(payload) => (*payload, None),
        Answer::Signed(raw) => match draft::read(lane, &raw, nonce, &recorded) {
            Ok(ReadSigned { payload, draft }) => (payload, Some(draft)),
            Err(verdict) => return Ok(Err(verdict)),
        },
        Answer::GaveUp(reason) => {
            let error = TxError::new(ErrorCode::HandlerFailed, reason);
            return Ok(Err(Verdict::Dead { state: TxState::Failed, sub_state: "given_up", error }));
        }
    };
    let count = match policy::judge(lane, tx_id, &payload).await? {
        Ok(count) => count,
        Err(verdict) => return Ok(Err(verdict)),
    };
    let drafted = match signed {
        None => draft::at(lane, &payload, nonce, &recorded).await,
        Some(draft) => draft::of_signed(lane, draft, &payload, nonce).await,
    };
    Ok(drafted.map(|draft| (draft, payload, count)))
}

fn end(lane: &mut Lane, index: usize, state: TxState, error: TxError, unanswered: bool) {
    let tx = &mut lane.open[index];
    tracing::info!(chain.id = lane.chain.config.id.0, submitter = %lane.lease.key().address_text(),
        tx.id = %tx.intent.tx_id, fencing_token = lane.lease.token().0, reason = error.message,
        "a held nonce is given up; its placeholder consumes it");
    tx.give_up(Ending { state, code: error.code, reason: error.message });
    tx.recycle(unanswered, Instant::now());
}
