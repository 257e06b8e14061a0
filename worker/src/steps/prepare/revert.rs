//! Decides when a revert in an estimate is final. A node that lags or is on another fork executes on a state that may
//! lack what the transaction needs; its revert proves nothing.
//!
//! So a revert counts only on the state of the watcher's head, which must not be below the newest block with a
//! receipt of this submitter. It must be seen twice: at two heads, or some seconds apart if the head does not move.
//! If the block of the first revert is replaced meanwhile, the check starts over.

use std::time::Duration;

use gapless_chain::{BlockId, CallOutcome};
use gapless_domain::{ErrorCode, Nonce, Payload, SubState, TxError, U256};
use tokio::time::Instant;

use super::draft::{Refusal, classify_gas_cap, estimate_error};
use crate::lane::Lane;

/// Time between the two checks if the head does not move.
pub(super) const RECHECK_AFTER: Duration = Duration::from_secs(3);

/// Revert checks of this submitter's next transaction.
#[derive(Debug, Default)]
pub(crate) struct Reverts {
    first: Option<FirstRevert>,
    /// The newest block with a receipt of this submitter, as far as this lane knows.
    own_block: Option<u64>,
    /// `own_block` includes the finished intents in the database.
    own_block_read: bool,
}

/// The first of the two reverts.
#[derive(Debug)]
struct FirstRevert {
    nonce: Nonce,
    payload: Payload,
    block: BlockId,
    at: Instant,
    error: TxError,
}

impl Reverts {
    /// This block has a receipt of this submitter.
    pub(crate) fn mined_in(&mut self, block: u64) {
        self.own_block = self.own_block.max(Some(block));
    }

    /// Blocks from this height on were replaced: their receipts no longer count.
    pub(crate) fn replaced_from(&mut self, height: u64) {
        self.own_block = self.own_block.map(|block| block.min(height.saturating_sub(1)));
    }

    /// A revert was seen once and has to be checked again.
    pub(crate) fn is_checking(&self) -> bool {
        self.first.is_some()
    }

    pub(super) fn clear(&mut self) {
        self.first = None;
    }
}

/// The first revert, if it was of this transaction and its block is still canonical.
fn first_revert<'a>(lane: &'a Lane, payload: &Payload, nonce: Nonce) -> Option<&'a FirstRevert> {
    let first = lane.prepare.reverts.first.as_ref()?;
    let canonical = lane.chain.watcher.canonical_hash(first.block.number) == Some(first.block.hash);
    (first.nonce == nonce && first.payload == *payload && canonical).then_some(first)
}

/// Whether a second revert would count now.
fn is_due(lane: &Lane, first: &FirstRevert) -> bool {
    let head = lane.chain.watcher.head();
    head.is_some_and(|head| head > first.block.number) || first.at.elapsed() >= RECHECK_AFTER
}

/// The refusal to repeat while the second check is not due.
pub(super) fn too_early(lane: &Lane, payload: &Payload, nonce: Nonce) -> Option<Refusal> {
    let first = first_revert(lane, payload, nonce).filter(|first| !is_due(lane, first))?;
    Some(checking(first.error.clone()))
}

fn checking(error: TxError) -> Refusal {
    Refusal::Wait { sub_state: SubState::CheckingRevert, error }
}

/// A node reported a revert, or that the transaction is invalid. Repeats the estimate on the state of the watcher's
/// head; only that result counts. Returns it if it is another outcome.
pub(super) async fn evaluate(
    lane: &mut Lane,
    payload: &Payload,
    nonce: Nonce,
) -> Result<CallOutcome<U256>, Refusal> {
    let Some(head) = lane.chain.watcher.head_block() else {
        return Err(Refusal::wait(
            SubState::WaitingNode,
            ErrorCode::NodeUnavailable,
            "no block received yet",
        ));
    };
    let own_block = newest_own_block(lane).await?;
    if own_block.is_some_and(|own| own > head.number) {
        let reason = format!(
            "the newest known block is {}, but the submitter's last transaction is in block {}",
            head.number,
            own_block.unwrap_or_default()
        );
        return Err(Refusal::wait(SubState::WaitingNode, ErrorCode::NodeUnavailable, reason));
    }
    let outcome = lane.chain.connector.estimate_gas_at(lane.address(), payload, head).await;
    let (error, refusal) = match classify_gas_cap(lane, outcome.map_err(estimate_error)?) {
        CallOutcome::Reverted(failure) => {
            let error = TxError::would_revert(failure, &payload.errors);
            (error.clone(), Refusal::failed(SubState::WouldRevert, error))
        }
        CallOutcome::Fatal { message } => {
            (TxError::new(ErrorCode::Invalid, message.clone()), Refusal::invalid(message))
        }
        other => {
            lane.prepare.reverts.clear();
            return Ok(other);
        }
    };
    let second = first_revert(lane, payload, nonce).map(|first| is_due(lane, first));
    if lane.chain.watcher.canonical_hash(head.number) != Some(head.hash) {
        // The block was replaced during the request.
        lane.prepare.reverts.clear();
        return Err(checking(error));
    }
    match second {
        Some(true) => {
            lane.prepare.reverts.clear();
            Err(refusal)
        }
        Some(false) => Err(checking(error)),
        None => {
            let (payload, at) = (payload.clone(), Instant::now());
            lane.prepare.reverts.first =
                Some(FirstRevert { nonce, payload, block: head, at, error: error.clone() });
            lane.chain.watcher.wake_at_head(head.number + 1, &lane.signals.mailbox);
            Err(checking(error))
        }
    }
}

async fn newest_own_block(lane: &mut Lane) -> Result<Option<u64>, Refusal> {
    if !lane.prepare.reverts.own_block_read {
        let found = lane.context.reader.newest_receipt_block(lane.lease.key()).await;
        let found = found.map_err(|error| {
            let reason = format!("could not read the submitter's last receipt: {error}");
            Refusal::wait(SubState::CheckingRevert, ErrorCode::WouldRevert, reason)
        })?;
        found.into_iter().for_each(|block| lane.prepare.reverts.mined_in(block));
        lane.prepare.reverts.own_block_read = true;
    }
    Ok(lane.prepare.reverts.own_block)
}
