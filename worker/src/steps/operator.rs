//! What an operator asked for, carried out by the owner of the lease: release a protected submitter as it is, or
//! adopt the chain's count as the truth.

use std::time::Instant;

use gapless::chain::BlockTag;
use gapless::domain::{EventKind, Nonce, TxState};
use gapless::store::{DoneAction, OperatorAction};

use crate::lane::{Lane, Sequence, StepError};

/// What it led to, or why nothing was changed.
type Outcome = Result<String, String>;

pub(crate) async fn carry_out(lane: &mut Lane) -> Result<(), StepError> {
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
        lane.done_actions.push(DoneAction { audit_id: action.audit_id, outcome });
        lane.actions.remove(0);
        lane.flush().await?;
        lane.more_queued = true;
    }
    Ok(())
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
        tx.due = now;
    }
    lane.key_checked = false;
    lane.recheck_at = None;
    Ok(format!("released; the sequence continues at {next}"))
}

/// The chain's count becomes the next nonce. Intents whose nonce is finally someone else's go back to the head of the
/// queue: their bytes are dead, so their effect can still happen once.
async fn adopt(lane: &mut Lane) -> Result<Outcome, StepError> {
    let (connector, address) = (lane.chain.connector.clone(), lane.address());
    let latest = connector.transaction_count(address, BlockTag::Latest).await?;
    let pending = connector.transaction_count(address, BlockTag::Pending).await?;
    let ours =
        lane.open.iter().filter(|tx| tx.state() != TxState::Protect && tx.intent.receipt.is_none()).count();
    if pending > latest + ours as u64 {
        return Ok(Err(format!(
            "{} transactions of others are still pending; ask again when they are mined",
            pending - latest - ours as u64
        )));
    }
    let mut displaced = 0;
    for index in 0..lane.open.len() {
        if lane.open[index].state() != TxState::Protect {
            continue;
        }
        let (nonce, hashes) = (lane.open[index].intent.nonce, lane.open[index].hashes());
        let view = connector.consumed_nonce(address, lane.chain.finality_depth(), &hashes).await?;
        if !view.receipts.is_empty() || view.count_at_depth <= nonce.0 {
            return Ok(Err("a protected nonce is not finally someone else's; release instead".to_owned()));
        }
        displaced += 1;
    }
    for tx in lane.open.iter_mut().filter(|tx| tx.state() == TxState::Protect) {
        tx.enter(TxState::Queued);
        tx.intent.gas_params = None;
        tx.complain(Some("displaced"), Some("its nonce was taken by a transaction from outside".to_owned()));
    }
    let window = lane.window();
    let sequence = lane.sequence.get_or_insert(Sequence {
        start: Nonce(latest),
        next: Nonce(latest),
        protect: None,
        max_in_flight: window,
        in_flight: None,
    });
    sequence.start = Nonce(latest);
    sequence.next = Nonce(sequence.next.0.max(latest));
    sequence.protect = None;
    let next = sequence.next;
    lane.queue.clear();
    lane.key_checked = false;
    lane.recheck_at = None;
    Ok(Ok(format!("adopted; the sequence continues at {next}, {displaced} intents went back to the queue")))
}
