//! Pauses at vulnerable points, until another worker has taken over and become active.

use std::time::{Duration, Instant};

use gapless_testkit::Submitter;
use uuid::Uuid;

use super::{FenceStrategy, LaneContext};

const POLL: Duration = Duration::from_millis(20);
/// How long it waits for the new owner to become active.
const AFTER_TAKEOVER: Duration = Duration::from_secs(3);
/// One in this many intents is paused.
const ONE_IN: usize = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum After {
    /// The next intent is chosen, the cursor is not read yet.
    Choice,
    /// The transaction is signed (and sent, with `SendFirst`), nothing is written.
    Draft,
    /// Everything is written, not committed.
    Write,
}

/// Where the lane pauses for its nth intent, if at all: at the vulnerable point of the strategy. The correct one has
/// none and pauses at each point in turn.
pub(super) fn pause_after(strategy: FenceStrategy, nth: usize) -> Option<After> {
    let places: &[After] = match strategy {
        FenceStrategy::LockThenWrite => &[After::Choice, After::Draft, After::Write],
        FenceStrategy::Exists => &[After::Write],
        FenceStrategy::SendFirst => &[After::Draft],
        FenceStrategy::Unchecked => &[After::Choice],
    };
    // Not for the first intent: after a takeover the lane first continues open intents.
    (nth % ONE_IN == 1).then(|| places[nth / ONE_IN % places.len()])
}

impl LaneContext {
    /// Waits until another worker owns the lease and is active, or until a time limit.
    pub(super) async fn pause(&self, after: After, submitter: &Submitter, lease_id: Uuid, tx_id: Uuid) {
        tracing::info!(?after, submitter = submitter.text(), tx.id = %tx_id, "pausing");
        let limit = Instant::now() + 2 * self.lease + Duration::from_secs(1);
        while Instant::now() < limit && !self.has_new_owner(submitter, lease_id).await {
            tokio::time::sleep(POLL).await;
        }
        if Instant::now() >= limit {
            return;
        }
        let limit = Instant::now() + AFTER_TAKEOVER;
        while Instant::now() < limit && !self.successor_is_active(after, tx_id).await {
            tokio::time::sleep(POLL).await;
        }
    }

    /// Another worker has claimed the lease.
    async fn has_new_owner(&self, submitter: &Submitter, lease_id: Uuid) -> bool {
        let taken = sqlx::query_scalar(
            "SELECT EXISTS (SELECT FROM submitter_lease WHERE submitter = $1 AND lease_id <> $2)",
        );
        taken.bind(submitter.bytes()).bind(lease_id).fetch_one(&self.db).await.unwrap_or(false)
    }

    /// The new owner has continued this intent, or waits for a lock of this transaction.
    async fn successor_is_active(&self, after: After, tx_id: Uuid) -> bool {
        let query = match after {
            After::Write => sqlx::query_scalar(
                "SELECT $1::UUID IS NOT NULL AND EXISTS (SELECT FROM pg_locks WHERE NOT granted)",
            ),
            _ => sqlx::query_scalar(
                "SELECT EXISTS (SELECT FROM managed_tx WHERE tx_id = $1 AND state <> 'QUEUED')",
            ),
        };
        query.bind(tx_id).fetch_one(&self.db).await.unwrap_or(false)
    }
}
