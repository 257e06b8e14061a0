//! What the submitter's policy says, before a nonce is given or used. The policy is this worker's own configuration: whoever
//! can insert intents cannot change it.
//!
//! Every decision is written in the commit of what follows from it: a refusal with the end of its intent, a count with
//! the nonce. A lane without a policy asks nothing and writes nothing.

use gapless::domain::policy::Breach;
use gapless::domain::{Payload, TxError, TxId, TxState};
use gapless::store::{PolicyDecision, PolicyNote};

use super::prepare::draft::Verdict;
use crate::lane::{Lane, StepError};

/// What has to be written with the nonce of an intent that is allowed: what it counts, if it does.
pub(super) type Count = Option<PolicyNote>;

/// Whether the submitter may do this, today. A refusal is noted; a count is the caller's to note, when there are bytes.
pub(super) async fn judge(
    lane: &mut Lane,
    tx_id: TxId,
    payload: &Payload,
) -> Result<Result<Count, Verdict>, StepError> {
    let Some(policy) = lane.policy.clone() else { return Ok(Ok(None)) };
    if let Err(breach) = policy.judge(lane.address(), payload) {
        return Ok(Err(refuse(lane, tx_id, &breach)));
    }
    let Some(limit) = policy.max_value_per_day.filter(|_| !payload.value.is_zero()) else {
        return Ok(Ok(None));
    };
    let today = lane.context.reader.spent_today(lane.lease.key(), tx_id).await?;
    if today.counted {
        return Ok(Ok(None));
    }
    // What this lane has counted and not written yet is on top. Nobody else counts: the lease is ours.
    let unwritten = lane.policy_notes.iter().filter(|note| note.decision == PolicyDecision::Counted);
    let spent = unwritten.fold(today.total, |sum, note| sum.saturating_add(note.value));
    match policy.judge_day(payload, spent) {
        Ok(()) => Ok(Ok(Some(PolicyNote::counted(tx_id, lane.context.worker_id.clone(), payload, limit)))),
        Err(breach) => Ok(Err(refuse(lane, tx_id, &breach))),
    }
}

fn refuse(lane: &mut Lane, tx_id: TxId, breach: &Breach) -> Verdict {
    lane.policy_notes.push(PolicyNote::refused(tx_id, lane.context.worker_id.clone(), breach));
    Verdict::Dead { state: TxState::Failed, sub_state: "policy", error: breach.error() }
}

/// Whether the bytes of an intent may be replaced by others of the same payload: it was allowed once, and the policy may
/// have become stricter since. The earlier bytes stay; what is signed cannot be taken back. Answers why they may not. It is
/// noted once for each time the rows are read.
pub(super) fn forbids_replacement(lane: &mut Lane, index: usize) -> Option<TxError> {
    let policy = lane.policy.clone()?;
    let tx_id = lane.open[index].intent.tx_id;
    let breach = policy.judge(lane.address(), &lane.open[index].intent.payload).err()?;
    if !lane.open[index].refused_by_policy {
        lane.open[index].refused_by_policy = true;
        lane.policy_notes.push(PolicyNote::refused(tx_id, lane.context.worker_id.clone(), &breach));
    }
    Some(breach.error())
}
