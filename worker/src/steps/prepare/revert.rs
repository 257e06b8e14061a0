//! When a revert counts. A node that is a block behind, or on another fork, executes on a state that lacks what the
//! transaction needs; its revert says nothing about the contract.
//!
//! So a revert is evidence only on the state after the watcher's head, which must not be below the newest block that holds a
//! receipt of this submitter; and it must be seen twice, at two heads, or some seconds apart where the head stands still. If
//! the block of the first look is replaced meanwhile, it starts over.

use std::time::Duration;

use gapless::chain::{BlockId, CallOutcome};
use gapless::domain::{ErrorCode, Nonce, Payload, TxError, U256};
use tokio::time::Instant;

use super::super::recover::WAITING_NODE;
use super::draft::{Verdict, known_limit, not_estimated};
use crate::lane::Lane;

/// Why it waits.
pub(super) const CHECKING: &str = "checking_revert";
/// Between two looks where the head does not move.
pub(super) const AGAIN_AFTER: Duration = Duration::from_secs(3);

/// What is known of reverts of this submitter's next transaction.
#[derive(Debug, Default)]
pub(crate) struct Reverts {
    seen: Option<Seen>,
    /// The newest block with a receipt of this submitter, as far as this lane knows.
    own_block: Option<u64>,
    /// The rows of finished intents were asked for theirs.
    own_block_read: bool,
}

/// The first look.
#[derive(Debug)]
struct Seen {
    nonce: Nonce,
    payload: Payload,
    block: BlockId,
    at: Instant,
    error: TxError,
}

impl Reverts {
    /// A receipt of ours is in this block.
    pub(crate) fn mined_in(&mut self, block: u64) {
        self.own_block = self.own_block.max(Some(block));
    }

    /// Blocks from this height on were replaced: receipts are heard of anew.
    pub(crate) fn replaced_from(&mut self, height: u64) {
        self.own_block = self.own_block.map(|block| block.min(height.saturating_sub(1)));
    }

    /// A revert was seen once, and is to be looked at again.
    pub(crate) fn is_checking(&self) -> bool {
        self.seen.is_some()
    }

    pub(super) fn forget(&mut self) {
        self.seen = None;
    }
}

/// The first look, if it was about this transaction and its block is still canonical.
fn first_look<'a>(lane: &'a Lane, payload: &Payload, nonce: Nonce) -> Option<&'a Seen> {
    let seen = lane.reverts.seen.as_ref()?;
    let canonical = lane.chain.watcher.canonical_hash(seen.block.number) == Some(seen.block.hash);
    (seen.nonce == nonce && seen.payload == *payload && canonical).then_some(seen)
}

/// Whether a second look counts by now.
fn is_due(lane: &Lane, seen: &Seen) -> bool {
    let head = lane.chain.watcher.head();
    head.is_some_and(|head| head > seen.block.number) || seen.at.elapsed() >= AGAIN_AFTER
}

/// It was seen to revert, and it is too early to look again.
pub(super) fn too_early(lane: &Lane, payload: &Payload, nonce: Nonce) -> Option<Verdict> {
    let seen = first_look(lane, payload, nonce).filter(|seen| !is_due(lane, seen))?;
    Some(checking(seen.error.clone()))
}

fn checking(error: TxError) -> Verdict {
    Verdict::Hold { sub_state: CHECKING, error }
}

/// A node says that it reverts, or that the chain would never take it. What counts is what the state after the watcher's
/// head says; another outcome there is the answer.
pub(super) async fn judge(
    lane: &mut Lane,
    payload: &Payload,
    nonce: Nonce,
) -> Result<CallOutcome<U256>, Verdict> {
    let Some(head) = lane.chain.watcher.head_block() else {
        return Err(Verdict::hold(WAITING_NODE, ErrorCode::NodeUnavailable, "no block is known yet"));
    };
    let own_block = newest_own_block(lane).await?;
    if own_block.is_some_and(|own| own > head.number) {
        let reason = format!(
            "the newest block known is {}, and its last transaction is in block {}",
            head.number,
            own_block.unwrap_or_default()
        );
        return Err(Verdict::hold(WAITING_NODE, ErrorCode::NodeUnavailable, reason));
    }
    let outcome = lane.chain.connector.estimate_gas_at(lane.address(), payload, head).await;
    let (error, dead) = match known_limit(lane, outcome.map_err(not_estimated)?) {
        CallOutcome::Reverted(failure) => {
            let error = TxError::would_revert(failure, &payload.errors);
            (error.clone(), Verdict::failed("would_revert", error))
        }
        CallOutcome::Fatal { message } => {
            (TxError::new(ErrorCode::Invalid, message.clone()), Verdict::invalid(message))
        }
        other => {
            lane.reverts.forget();
            return Ok(other);
        }
    };
    let again = first_look(lane, payload, nonce).map(|seen| is_due(lane, seen));
    if lane.chain.watcher.canonical_hash(head.number) != Some(head.hash) {
        // Replaced while it was asked for.
        lane.reverts.forget();
        return Err(checking(error));
    }
    match again {
        Some(true) => {
            lane.reverts.forget();
            Err(dead)
        }
        Some(false) => Err(checking(error)),
        None => {
            let (payload, at) = (payload.clone(), Instant::now());
            lane.reverts.seen = Some(Seen { nonce, payload, block: head, at, error: error.clone() });
            lane.chain.watcher.wake_at_head(head.number + 1, &lane.mailbox);
            Err(checking(error))
        }
    }
}

async fn newest_own_block(lane: &mut Lane) -> Result<Option<u64>, Verdict> {
    if !lane.reverts.own_block_read {
        let found = lane.context.reader.newest_receipt_block(lane.lease.key()).await;
        let found = found.map_err(|error| {
            let reason = format!("its last receipt could not be read: {error}");
            Verdict::hold(CHECKING, ErrorCode::WouldRevert, reason)
        })?;
        found.into_iter().for_each(|block| lane.reverts.mined_in(block));
        lane.reverts.own_block_read = true;
    }
    Ok(lane.reverts.own_block)
}
