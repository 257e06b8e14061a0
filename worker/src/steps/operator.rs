//! What an operator asked for, carried out by the owner of the lease: release a protected submitter as it is, or
//! adopt the chain's count as the truth.

use gapless::chain::{BlockId, BlockTag, MinedTx};
use gapless::domain::{EventKind, Nonce, TxState};
use gapless::store::{AskedBy, DoneAction, OperatorAction, TakenBy};
use tokio::time::Instant;

use super::{attribution, protect, shared_key, track};
use crate::lane::{Lane, OpenTx, Sequence, StepError};

/// What it led to, or why nothing was changed.
type Outcome = Result<String, String>;

/// True: something was asked.
pub(crate) async fn carry_out(lane: &mut Lane) -> Result<bool, StepError> {
    let asked = !lane.actions.is_empty();
    while let Some(action) = lane.actions.first().cloned() {
        let outcome = match action.action {
            OperatorAction::Release => release(lane),
            OperatorAction::Adopt => adopt(lane, action.taken_by).await?,
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
    lane.key.look_anew();
    Ok(format!("released; the sequence continues at {next}"))
}

/// The chain's count becomes the next nonce. Intents whose nonce is finally someone else's go back to the head of the
/// queue: their bytes are dead, so their effect can still happen once. While one of them is not explained nothing is adopted:
/// it may have had its effect already.
async fn adopt(lane: &mut Lane, taken_by: Option<TakenBy>) -> Result<Outcome, StepError> {
    if lane.sequence.is_some() {
        if !lane.is_protected() && !lane.key.is_doubted() {
            return Ok(Err("neither PROTECT nor SUSPECT: there is nothing to adopt".to_owned()));
        }
        if let Some(taken_by) = taken_by
            && let Err(why) = verify(lane, taken_by).await
        {
            return Ok(Err(why));
        }
        let unexplained = protect::explain_open(lane).await?;
        if !unexplained.is_empty() {
            return Ok(Err(format!("adoption could execute a request twice: {}", unexplained.join("; "))));
        }
    }
    let latest = match adoptable_count(lane).await? {
        Ok(count) => count,
        Err(why) => return Ok(Err(why)),
    };
    if protect::taken(lane).any(|tx| tx.intent.nonce.0 >= latest) {
        return Ok(Err("a protected nonce is not consumed any more; release instead".to_owned()));
    }
    if let Some(tx) = too_far_ahead_of(lane, latest) {
        let why = format!("intent {} is on its way and not final yet; ask again when it is", tx.intent.tx_id);
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
    lane.key.evidence.suspicion = None;
    lane.key.look_anew();
    Ok(Ok(format!("adopted; the sequence continues at {next}, {displaced} intents went back to the queue")))
}

/// Whether the transaction that the operator names is what it is said to be: in that block, signed by this key, final. Then the
/// block counts as read, and what follows is as if a node had shown it by itself.
async fn verify(lane: &mut Lane, taken_by: TakenBy) -> Result<(), String> {
    let TakenBy { tx_hash, block: number } = taken_by;
    let hash = match track::canonical_hash(lane, number).await {
        Ok(Some(hash)) => hash,
        Ok(None) => return Err(format!("no node shows block {number}")),
        Err(error) => return Err(format!("block {number} could not be read: {error}")),
    };
    let block = BlockId { number, hash };
    let found = lane.chain.connector.sender_in_blocks(lane.address(), &[block], true).await;
    if !found.unshown.is_empty() {
        return Err(format!("no node shows block {number} with its transactions"));
    }
    let is_it = |tx: &&MinedTx| tx.tx_hash == tx_hash;
    if found.unproved.iter().any(|tx| is_it(&tx)) {
        return Err(format!("the signature of {tx_hash:#x} cannot be checked"));
    }
    if !found.proved.iter().any(|tx| is_it(&tx)) {
        return Err(format!("block {number} holds no transaction {tx_hash:#x} of this submitter"));
    }
    if lane.open.iter().any(|tx| tx.hashes().contains(&tx_hash)) {
        lane.key.reading.add(found.proved, found.unproved);
        return Err(format!("{tx_hash:#x} is our own transaction; it is followed"));
    }
    if !attribution::is_final(lane, block).await {
        return Err(format!("block {number} is not final yet; ask again later"));
    }
    lane.key.reading.add(found.proved, found.unproved);
    Ok(())
}

/// The chain's count, if nothing of others is on its way and a reorg can no longer take it back.
async fn adoptable_count(lane: &mut Lane) -> Result<Result<u64, String>, StepError> {
    let next = lane.sequence.as_ref().map(|sequence| sequence.next);
    let Some(at) = protect::count_at_head(lane, next.unwrap_or(Nonce(0))).await else {
        return Ok(Err("no node says what the chain counts at the head; ask again later".to_owned()));
    };
    let pending = lane.chain.connector.transaction_count(lane.address(), BlockTag::Pending).await?;
    let in_pool =
        |tx: &&OpenTx| tx.state() != TxState::Protect && tx.intent.receipt.is_none() && !tx.is_reserved();
    let ours = lane.open.iter().filter(in_pool).count() as u64;
    if pending > at.count + ours {
        let others = pending - at.count - ours;
        return Ok(Err(format!(
            "{others} transactions of others are still pending; ask again when they are mined"
        )));
    }
    let is_explained = next.is_some_and(|next| at.count <= next.0);
    if !is_explained && protect::final_count(lane).await.is_none_or(|count| count < at.count) {
        return Ok(Err("the last transactions of others are not final yet; ask again later".to_owned()));
    }
    Ok(Ok(at.count))
}

/// The oldest open intent of ours, if the window does not reach from its nonce to the one that would come next.
fn too_far_ahead_of(lane: &Lane, latest: u64) -> Option<&OpenTx> {
    let given = lane.sequence.as_ref().map_or(0, |sequence| sequence.next.0);
    let oldest = lane.open.iter().find(|tx| tx.state() != TxState::Protect)?;
    let reach = latest.saturating_sub(oldest.intent.nonce.0);
    (latest > given && reach > u64::from(lane.window())).then_some(oldest)
}

fn displace(lane: &mut Lane) -> usize {
    let mut displaced = 0;
    for tx in lane.open.iter_mut().filter(|tx| tx.state() == TxState::Protect) {
        shared_key::displace(tx);
        displaced += 1;
    }
    displaced
}
