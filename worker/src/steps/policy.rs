//! Checks the submitter's policy before a nonce is assigned or used. The policy is part of this worker's
//! configuration: clients that can insert intents cannot change it.
//!
//! Every decision is written in the commit of its consequence: a refusal with the end of its intent, a counted value
//! with the nonce. A lane without a policy does nothing here.

use gapless_domain::policy::Breach;
use gapless_domain::{Payload, SubState, TxError, TxId, TxState};
use gapless_store::PolicyNote;

use super::prepare::draft::Refusal;
use crate::lane::{Lane, StepError};

/// The value counted against the daily cap, to be written with the nonce; `None` if nothing counts.
pub(super) type Count = Option<PolicyNote>;

/// Checks all rules, including the daily cap. Records a refusal; the caller records the count once there are bytes.
pub(super) async fn check(
    lane: &mut Lane,
    tx_id: TxId,
    payload: &Payload,
) -> Result<Result<Count, Refusal>, StepError> {
    let Some(policy) = lane.signing.policy.clone() else { return Ok(Ok(None)) };
    if let Err(breach) = policy.check(lane.address(), payload) {
        return Ok(Err(refuse(lane, tx_id, &breach)));
    }
    let Some(limit) = policy.max_value_per_day.filter(|_| !payload.value.is_zero()) else {
        return Ok(Ok(None));
    };
    let today = lane.context.reader.spent_today(lane.lease.key(), tx_id).await?;
    if today.counted {
        return Ok(Ok(None));
    }
    // Plus what this lane has counted and not written yet. No other worker counts: this one has the lease.
    let spent = lane.pending.counted_values().fold(today.total, |sum, value| sum.saturating_add(value));
    match policy.check_day(payload, spent) {
        Ok(()) => Ok(Ok(Some(PolicyNote::counted(tx_id, lane.context.worker_id.clone(), payload, limit)))),
        Err(breach) => Ok(Err(refuse(lane, tx_id, &breach))),
    }
}

fn refuse(lane: &mut Lane, tx_id: TxId, breach: &Breach) -> Refusal {
    lane.pending.policy([PolicyNote::refused(tx_id, lane.context.worker_id.clone(), breach)]);
    Refusal::Final { state: TxState::Failed, sub_state: SubState::Policy, error: breach.error() }
}

/// Why the policy forbids a replacement with the same payload, if it does: it may have become stricter since the
/// intent was allowed. The earlier bytes are still sent. The refusal is recorded once per load of the rows.
pub(super) fn forbids_replacement(lane: &mut Lane, index: usize) -> Option<TxError> {
    let policy = lane.signing.policy.clone()?;
    let tx_id = lane.rows.open[index].intent.tx_id;
    let breach = policy.check(lane.address(), &lane.rows.open[index].intent.payload).err()?;
    if !lane.rows.open[index].replacing.refused_by_policy {
        lane.rows.open[index].replacing.refused_by_policy = true;
        lane.pending.policy([PolicyNote::refused(tx_id, lane.context.worker_id.clone(), &breach)]);
    }
    Some(breach.error())
}
