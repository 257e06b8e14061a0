//! What an operator asked for, carried out by the owner of the lease: release a protected submitter as it is, or
//! adopt the chain's count as the truth.

use gapless::chain::BlockTag;
use gapless::domain::{EventKind, Nonce, TxState};
use gapless::store::{AskedBy, DoneAction, OperatorAction};
use tokio::time::Instant;

use super::{protect, shared};
use crate::lane::{Lane, OpenTx, Sequence, StepError};

/// What it led to, or why nothing was changed.
type Outcome = Result<String, String>;

/// True: something was asked.
pub(crate) async fn carry_out(lane: &mut Lane) -> Result<bool, StepError> {
    let asked = !lane.actions.is_empty();
    while let Some(action) = lane.actions.first().cloned() {
        let outcome = match action.action {
            OperatorAction::Release => release(lane),
            OperatorAction::Adopt => adopt(lane).await?,
        };
        if outcome.is_ok() {
            lane.tell(None, EventKind::Released { reason: action.reason.clone() });
        }
        tracing::info!(chain.id = lane.chain.config.id.0, submitter = %lane.lease.key().address_text(),
            fencing_token = lane.lease.token().0, action = ?action.action, reason = action.reason, outcome = ?outcome,
            "operator's request carried out");
        lane.done_actions.push(DoneAction { asked_by: AskedBy::Audit(action.audit_id), outcome });
        lane.actions.remove(0);
        lane.flush().await?;
        lane.more_queued = true;
    }
    Ok(asked)
}

/// Go on as if nothing had happened. If the key really was used outside, the next look stops the lane again.
fn release(lane: &mut Lane) -> Outcome {
    let Some(sequence) = lane.sequence.as_mut().filter(|sequence| sequence.protect.is_some()) else {
        return Err("not protected: there is nothing to release".to_owned());
    };
    sequence.protect = None;
    let next = sequence.next;
    let now = Instant::now();
    for tx in lane.open.iter_mut().filter(|tx| tx.state() == TxState::Protect) {
        tx.enter(TxState::Submitted);
        tx.suspected = None;
        tx.start_waiting(now);
        tx.due = now;
    }
    lane.key_checked = false;
    lane.recheck_at = None;
    Ok(format!("released; the sequence continues at {next}"))
}

/// The chain's count becomes the next nonce. Intents whose nonce is finally someone else's go back to the head of the
/// queue: their bytes are dead, so their effect can still happen once.
async fn adopt(lane: &mut Lane) -> Result<Outcome, StepError> {
    if lane.sequence.is_some() {
        if !lane.is_protected() {
            return Ok(Err("not protected: there is nothing to adopt".to_owned()));
        }
        protect::judge_open(lane).await?;
    }
    let latest = match final_count(lane).await? {
        Ok(count) => count,
        Err(why) => return Ok(Err(why)),
    };
    if let Err(why) = taken_for_good(lane).await? {
        return Ok(Err(why));
    }
    let displaced = displace(lane);
    let start = Sequence {
        start: Nonce(latest),
        next: Nonce(latest),
        protect: None,
        max_in_flight: lane.window(),
        in_flight: None,
        open_from: Nonce(latest),
        delegated: false,
    };
    let sequence = lane.sequence.get_or_insert(start);
    sequence.start = Nonce(latest);
    sequence.next = Nonce(sequence.next.0.max(latest));
    sequence.protect = None;
    let next = sequence.next;
    lane.queue.clear();
    lane.key_checked = false;
    lane.recheck_at = None;
    Ok(Ok(format!("adopted; the sequence continues at {next}, {displaced} intents went back to the queue")))
}

/// The chain's count, if nothing of others is on its way and a reorg can no longer take it back.
async fn final_count(lane: &Lane) -> Result<Result<u64, String>, StepError> {
    let (connector, address) = (&lane.chain.connector, lane.address());
    let view = connector.consumed_nonce(address, lane.chain.finality(), &[]).await?;
    let pending = connector.transaction_count(address, BlockTag::Pending).await?;
    let in_pool =
        |tx: &&OpenTx| tx.state() != TxState::Protect && tx.intent.receipt.is_none() && !tx.is_held();
    let ours = lane.open.iter().filter(in_pool).count() as u64;
    if pending > view.latest_count + ours {
        let others = pending - view.latest_count - ours;
        return Ok(Err(format!(
            "{others} transactions of others are still pending; ask again when they are mined"
        )));
    }
    let explained = lane.sequence.as_ref().is_some_and(|sequence| view.latest_count <= sequence.next.0);
    if !explained && view.count_at_depth < view.latest_count {
        return Ok(Err("the last transactions of others are not final yet; ask again later".to_owned()));
    }
    Ok(Ok(view.latest_count))
}

/// Whether what is protected can never be mined. A node that shows no receipt is not enough: if any node knows one of
/// the hashes, or a block was seen to hold it, requeueing it could give it a second effect.
async fn taken_for_good(lane: &Lane) -> Result<Result<(), String>, StepError> {
    let protected = || lane.open.iter().filter(|tx| tx.state() == TxState::Protect);
    let hashes: Vec<_> = protected().flat_map(OpenTx::hashes).collect();
    if hashes.is_empty() {
        return Ok(Ok(()));
    }
    let connector = &lane.chain.connector;
    let view = connector.consumed_nonce(lane.address(), lane.chain.finality(), &hashes).await?;
    if !view.receipts.is_empty() || protected().any(|tx| view.count_at_depth <= tx.intent.nonce.0) {
        return Ok(Err("a protected nonce is not finally someone else's; release instead".to_owned()));
    }
    if lane.chain.watcher.saw_any(&hashes) {
        return Ok(Err(
            "one of our own transactions was seen in a block; wait until its receipt is found".to_owned()
        ));
    }
    Ok(match connector.known_to_any_node(&hashes).await {
        Ok(false) => Ok(()),
        Ok(true) => Err("a node knows one of our own transactions at that nonce; release instead".to_owned()),
        Err(error) => Err(format!("every node must be asked first, and one did not answer: {error}")),
    })
}

fn displace(lane: &mut Lane) -> usize {
    let mut displaced = 0;
    for tx in lane.open.iter_mut().filter(|tx| tx.state() == TxState::Protect) {
        shared::displace(tx);
        displaced += 1;
    }
    displaced
}
