//! Executes operator requests as the owner of the lease: release a submitter from PROTECT with its sequence
//! unchanged, or adopt the chain's transaction count.

use gapless_chain::{BlockId, BlockTag, MinedTx};
use gapless_domain::{EventKind, Nonce, TxState};
use gapless_store::{AskedBy, OperatorAction, TakenBy};
use tokio::time::Instant;

use super::{attribution, protect, shared_key, track};
use crate::lane::{Lane, OpenTx, StepError};

/// What was done, or why nothing was changed.
type Outcome = Result<String, String>;

/// Returns whether there was any request.
pub(crate) async fn carry_out(lane: &mut Lane) -> Result<bool, StepError> {
    let any = !lane.rows.actions.is_empty();
    while let Some(action) = lane.rows.actions.first().cloned() {
        let outcome = match action.action {
            OperatorAction::Release => release(lane),
            OperatorAction::Adopt => adopt(lane, action.taken_by).await?,
        };
        if outcome.is_ok() {
            lane.emit_event(None, EventKind::Released { reason: action.reason.clone() });
        }
        tracing::info!(action = ?action.action, reason = action.reason, outcome = ?outcome,
            "operator request executed");
        lane.pending.finish_request(AskedBy::Audit(action.audit_id), outcome);
        lane.rows.actions.remove(0);
        lane.flush().await?;
        lane.rows.expect_more();
    }
    Ok(any)
}

/// Continues with the sequence unchanged. If the key really was used externally, the next check enters PROTECT again.
fn release(lane: &mut Lane) -> Outcome {
    let Some(next) = lane.rows.leave_protect() else {
        return Err("not in PROTECT: nothing to release".to_owned());
    };
    let now = Instant::now();
    for tx in lane.rows.open.iter_mut().filter(|tx| tx.state() == TxState::Protect) {
        tx.enter(TxState::Submitted);
        tx.suspected = None;
        tx.start_waiting(now);
        tx.sending.due = now;
    }
    lane.key.reset_check();
    Ok(format!("released; the sequence continues at {next}"))
}

/// The chain's count becomes the next nonce. Intents whose nonce an external transaction consumed in a final block go
/// back to the head of the queue: their bytes can never be mined, so a new nonce executes them only once. Refused
/// while any consumed nonce is unexplained: that intent may have been executed already.
async fn adopt(lane: &mut Lane, taken_by: Option<TakenBy>) -> Result<Outcome, StepError> {
    if lane.rows.sequence().is_some() {
        if !lane.is_protected() && !lane.key.is_doubted() {
            return Ok(Err("neither in PROTECT nor SUSPECT: nothing to adopt".to_owned()));
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
    if protect::in_protect(lane).any(|tx| tx.intent.nonce.0 >= latest) {
        return Ok(Err("a nonce in PROTECT is no longer consumed; use release instead".to_owned()));
    }
    if let Some(tx) = oldest_outside_window(lane, latest) {
        let why = format!("intent {} is in flight and not final yet; retry when it is", tx.intent.tx_id);
        return Ok(Err(why));
    }
    let displaced = displace(lane);
    let window = lane.window();
    let next = lane.rows.adopt(Nonce(latest), window);
    lane.rows.reread_queue();
    lane.key.drop_suspicion();
    lane.key.reset_check();
    Ok(Ok(format!("adopted; the sequence continues at {next}, {displaced} intents went back to the queue")))
}

/// Verifies the transaction that the operator named: in that block, signed by this key, final. It is then added to
/// the search results, as if the search had found it.
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
        return Err(format!("the signature of {tx_hash:#x} cannot be verified"));
    }
    if !found.proved.iter().any(|tx| is_it(&tx)) {
        return Err(format!("block {number} contains no transaction {tx_hash:#x} of this submitter"));
    }
    if lane.rows.open.iter().any(|tx| tx.hashes().contains(&tx_hash)) {
        lane.key.search.add(found.proved, found.unproved);
        return Err(format!("{tx_hash:#x} is our own transaction and is being tracked"));
    }
    if !attribution::is_final(lane, block).await {
        return Err(format!("block {number} is not final yet; retry later"));
    }
    lane.key.search.add(found.proved, found.unproved);
    Ok(())
}

/// The chain's count, if no external transaction is pending and a reorg can no longer lower it.
async fn adoptable_count(lane: &mut Lane) -> Result<Result<u64, String>, StepError> {
    let next = lane.rows.sequence().map(|sequence| sequence.next);
    let Some(at) = protect::count_at_head(lane, next.unwrap_or(Nonce(0))).await else {
        return Ok(Err("no node returned the transaction count at the head; retry later".to_owned()));
    };
    let pending = lane.chain.connector.transaction_count(lane.address(), BlockTag::Pending).await?;
    let in_pool =
        |tx: &&OpenTx| tx.state() != TxState::Protect && tx.intent.receipt.is_none() && !tx.is_reserved();
    let ours = lane.rows.open.iter().filter(in_pool).count() as u64;
    if pending > at.count + ours {
        let external = pending - at.count - ours;
        return Ok(Err(format!(
            "{external} external transactions are still pending; retry when they are mined"
        )));
    }
    let is_explained = next.is_some_and(|next| at.count <= next.0);
    if !is_explained && protect::final_count(lane).await.is_none_or(|count| count < at.count) {
        return Ok(Err("the latest external transactions are not final yet; retry later".to_owned()));
    }
    Ok(Ok(at.count))
}

/// The oldest open intent, if the window does not reach from its nonce to the next nonce after adoption.
fn oldest_outside_window(lane: &Lane, latest: u64) -> Option<&OpenTx> {
    let next = lane.rows.sequence().map_or(0, |sequence| sequence.next.0);
    let oldest = lane.rows.open.iter().find(|tx| tx.state() != TxState::Protect)?;
    let distance = latest.saturating_sub(oldest.intent.nonce.0);
    (latest > next && distance > u64::from(lane.window())).then_some(oldest)
}

fn displace(lane: &mut Lane) -> usize {
    let mut displaced = 0;
    for tx in lane.rows.open.iter_mut().filter(|tx| tx.state() == TxState::Protect) {
        shared_key::displace(tx);
        displaced += 1;
    }
    displaced
}
