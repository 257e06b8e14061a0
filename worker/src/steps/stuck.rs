//! The alarm for intents that stay unmined, and the action of the stuck policy. An intent leaves STUCK when it is
//! mined.

use gapless_domain::stuck::{StuckAction, StuckFacts};
use gapless_domain::{Ending, ErrorCode, EventKind, SubState, TxError, TxState};
use gapless_store::AttemptKind;
use gapless_telemetry::metrics as m;
use tokio::time::Instant;

use crate::lane::{Lane, OpenTx};

pub(crate) fn alarm(lane: &mut Lane) {
    let now = Instant::now();
    for index in 0..watched(lane) {
        let Some(reason) = too_long(lane, &lane.rows.open[index], now) else { continue };
        let tx = &mut lane.rows.open[index];
        let facts = facts(tx, now);
        tx.enter(TxState::Stuck);
        // A node's error is more specific than the elapsed time.
        let error = tx.intent.last_error.clone();
        let error = error.unwrap_or_else(|| TxError::new(ErrorCode::Stuck, reason.clone()));
        tx.set_wait_reason(Some(SubState::Unmined), Some(error));
        let tx_id = tx.intent.tx_id;
        let action = lane.chain.stuck.decide(facts);
        metrics::counter!(m::STUCK_DECISIONS_TOTAL, "action" => action.as_str()).increment(1);
        tracing::error!(tx.id = %tx_id, reason, action = action.as_str(), "stuck: still unmined; retrying");
        lane.emit_event(Some(tx_id), EventKind::Stuck { code: ErrorCode::Stuck, reason });
        act(lane, index, action);
    }
}

/// After the rows were read: repeats a bump that the policy decided on when the intent became STUCK and that was not
/// made. Once there is a replacement, it cannot be known whether it was that one; then gas bump or an operator
/// continues.
pub(crate) fn resume(lane: &mut Lane) {
    if !lane.may_replace() {
        return;
    }
    let now = Instant::now();
    for tx in lane.rows.open.iter_mut().filter(|tx| tx.state() == TxState::Stuck && !tx.is_reserved()) {
        let facts = facts(tx, now);
        let wanted = facts.replacements == 0 && tx.intent.ending.is_none();
        tx.replacing.speed_up |= wanted && lane.chain.stuck.decide(facts) == StuckAction::Bump;
    }
}

/// When the next alarm is due.
pub(crate) fn next_time(lane: &Lane) -> Option<Instant> {
    let candidates = lane.rows.open.iter().take(watched(lane)).filter(|tx| can_be_stuck(tx));
    candidates.map(|tx| tx.sending.unmined_since + lane.chain.config.stuck.after).min()
}

/// How many of the oldest open intents can become STUCK. A reserved nonce and all later ones are unsent and cannot,
/// except for a reservation whose client has answered.
fn watched(lane: &Lane) -> usize {
    let sent = lane.rows.open.iter().take_while(|tx| !tx.is_reserved()).count();
    sent + usize::from(lane.rows.open.get(sent).is_some_and(|tx| tx.answer_at.is_some()))
}

fn can_be_stuck(tx: &OpenTx) -> bool {
    matches!(tx.state(), TxState::InFlight | TxState::Submitted)
}

fn too_long(lane: &Lane, tx: &OpenTx, now: Instant) -> Option<String> {
    let settings = &lane.chain.config.stuck;
    if !can_be_stuck(tx) {
        return None;
    }
    if now.saturating_duration_since(tx.sending.unmined_since) >= settings.after {
        return Some(format!("unmined for {} s", settings.after.as_secs()));
    }
    let sends = tx.sending.sends.saturating_sub(tx.sending.sends_before);
    (settings.max_attempts > 0 && sends >= settings.max_attempts)
        .then(|| format!("unmined after {sends} sends"))
}

fn facts(tx: &OpenTx, now: Instant) -> StuckFacts {
    StuckFacts {
        age: now.saturating_duration_since(tx.prepared_at),
        sends: tx.sending.sends,
        taken: tx.sending.is_accepted,
        replacements: count_replacements(tx),
    }
}

fn count_replacements(tx: &OpenTx) -> u32 {
    let count =
        tx.intent.attempts.iter().filter(|attempt| attempt.kind() == AttemptKind::Replacement).count();
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// Executes the action, or marks it for a later step of the same pass.
fn act(lane: &mut Lane, index: usize, action: StuckAction) {
    let allowed = lane.may_replace();
    let tx = &mut lane.rows.open[index];
    match action {
        StuckAction::Wait => {}
        // There is no attempt yet that could be resent or bumped.
        StuckAction::Rebroadcast | StuckAction::Bump if tx.is_reserved() => {}
        StuckAction::Rebroadcast => tx.send_all_now(Instant::now()),
        StuckAction::Bump if allowed => tx.replacing.speed_up = true,
        StuckAction::Cancel if allowed => {
            let reason = "stuck: cancelled by policy".to_owned();
            tx.give_up(Ending { state: TxState::Cancelled, code: ErrorCode::Stuck, reason });
        }
        StuckAction::Bump | StuckAction::Cancel | StuckAction::Escalate => {
            tracing::error!(tx.id = %tx.intent.tx_id, action = action.as_str(),
                "stuck: operator action required");
        }
    }
}
