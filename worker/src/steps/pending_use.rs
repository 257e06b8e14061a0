//! Transactions from elsewhere that wait in a node's pool: its `pending` count is above the cursor.
//!
//! Every nonce of ours is below the cursor, whether it is mined, waits in a pool or was never sent. So whatever of ours the count
//! includes, a count above the cursor includes a transaction that is not ours. That one is not mined, and may never be: a reason to
//! suspect (no new nonces: the next would compete with it) and no evidence. It ends when a node no longer counts it, or is mined and
//! then judged by `protect`.
//!
//! Only an answer changes anything. A node that does not answer leaves the suspicion as it is; one that says that it has no
//! such count cannot raise or keep one.

use std::time::Duration;

use gapless::chain::{BlockTag, RpcError};
use gapless::domain::Nonce;
use tokio::time::Instant;

use super::protect::doubt;
use crate::lane::Lane;

/// A lane has other work: an answer that takes longer says nothing.
const ANSWER_WITHIN: Duration = Duration::from_secs(1);
/// A lane that goes on giving nonces looks as often as it sends again, and this often at the least.
const LONGEST_INTERVAL: Duration = Duration::from_secs(60);

/// What a node answers that has no count of its pool.
const INVALID_PARAMS: i64 = -32602;
const NO_METHOD: i64 = -32601;

/// Without numbers: consumers of events hear it, and it is written only when it changes.
pub(super) const WAITS: &str =
    "a transaction from elsewhere, not mined yet, waits in a node's pool beyond the nonces of this sequence";

/// What is known of it. Of the lane's memory; the suspicion that follows is on disk.
#[derive(Debug, Default)]
pub(super) struct PendingUse {
    /// A transaction from elsewhere was there when a node last answered.
    pub(super) waits: bool,
    looked_at: Option<Instant>,
}

impl PendingUse {
    /// A suspicion that an earlier owner had is kept until a node answers.
    pub(super) fn loaded(suspicion: Option<&str>) -> PendingUse {
        PendingUse { waits: suspicion.is_some_and(|reason| reason.contains(WAITS)), looked_at: None }
    }

    pub(super) fn note(&mut self, answer: Option<bool>) {
        self.looked_at = Some(Instant::now());
        self.waits = answer.unwrap_or(self.waits);
    }
}

/// Whether a node counts more in its pool than the sequence has given. `None`: it did not answer.
pub(super) async fn look(lane: &Lane, next: Nonce) -> Option<bool> {
    let asked = lane.chain.connector.transaction_count(lane.address(), BlockTag::Pending);
    match tokio::time::timeout(ANSWER_WITHIN, asked).await {
        Ok(Ok(count)) => Some(count > next.0),
        Ok(Err(RpcError::Refused { code: INVALID_PARAMS | NO_METHOD, .. })) => Some(false),
        Ok(Err(error)) => {
            tracing::debug!(chain.id = lane.chain.config.id.0, submitter = %lane.lease.key().address_text(),
                error = %error, "the pending count could not be asked for");
            None
        }
        Err(_) => None,
    }
}

/// For a lane whose sequence fitted when its rows were read: looks again now and then, when it has a turn anyway.
pub(super) async fn glance(lane: &mut Lane, next: Nonce) {
    let interval = lane.chain.config.resubmit.interval.min(LONGEST_INTERVAL);
    if lane.key.pending_use.looked_at.is_some_and(|at| at.elapsed() < interval) {
        return;
    }
    let answer = look(lane, next).await;
    lane.key.pending_use.note(answer);
    if lane.key.pending_use.waits {
        doubt(lane);
    }
}
