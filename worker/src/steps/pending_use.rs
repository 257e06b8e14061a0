//! Detects unmined external transactions in a node's mempool: its `pending` count is above the cursor.
//!
//! All our nonces are below the cursor, whether mined, pending or unsent. So a count above the cursor includes an
//! external transaction. It is not mined and may never be: a reason for SUSPECT (the next nonce would compete with
//! it), but not for PROTECT. The suspicion ends when a node no longer counts the transaction, or it is mined and
//! `protect` handles it.
//!
//! Only an answer changes the result. A timeout or error leaves the suspicion as it is; a node that does not support
//! the `pending` count neither raises nor retains one.

use std::time::Duration;

use gapless_chain::{BlockTag, RpcError};
use gapless_domain::Nonce;
use tokio::time::Instant;

use super::protect::require_check;
use crate::lane::Lane;

/// The lane waits no longer than this for the count.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(1);
/// An active lane checks once per resubmit interval, and at least this often.
const MAX_INTERVAL: Duration = Duration::from_secs(60);

/// Error codes of nodes that do not support the `pending` count.
const INVALID_PARAMS: i64 = -32602;
const NO_METHOD: i64 = -32601;

/// Has no numbers: it is part of an event, and is written only when it changes.
pub(super) const REASON: &str =
    "an unmined external transaction is in a node's mempool, above the nonces of this sequence";

/// In memory only; the resulting suspicion is persisted.
#[derive(Debug, Default)]
pub(super) struct PendingUse {
    /// The last answer of a node counted an external transaction.
    pub(super) detected: bool,
    checked_at: Option<Instant>,
}

impl PendingUse {
    /// A previous owner's suspicion stays until a node answers.
    pub(super) fn loaded(suspicion: Option<&str>) -> PendingUse {
        PendingUse { detected: suspicion.is_some_and(|reason| reason.contains(REASON)), checked_at: None }
    }

    pub(super) fn update(&mut self, answer: Option<bool>) {
        self.checked_at = Some(Instant::now());
        self.detected = answer.unwrap_or(self.detected);
    }
}

/// Whether a node's `pending` count is above the cursor. `None`: it did not answer.
pub(super) async fn check(lane: &Lane, next: Nonce) -> Option<bool> {
    let request = lane.chain.connector.transaction_count(lane.address(), BlockTag::Pending);
    match tokio::time::timeout(REQUEST_TIMEOUT, request).await {
        Ok(Ok(count)) => Some(count > next.0),
        Ok(Err(RpcError::Refused { code: INVALID_PARAMS | NO_METHOD, .. })) => Some(false),
        Ok(Err(error)) => {
            tracing::debug!(error = %error, "could not read the pending count");
            None
        }
        Err(_) => None,
    }
}

/// Repeats the check at an interval, for a lane whose sequence matched the chain when its rows were read.
pub(super) async fn check_periodically(lane: &mut Lane, next: Nonce) {
    let interval = lane.chain.config.resubmit.interval.min(MAX_INTERVAL);
    if lane.key.pending_use.checked_at.is_some_and(|at| at.elapsed() < interval) {
        return;
    }
    let answer = check(lane, next).await;
    lane.key.pending_use.update(answer);
    if lane.key.pending_use.detected {
        require_check(lane);
    }
}
