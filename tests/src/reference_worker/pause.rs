//! Pauses where they hurt: long enough for somebody else to take over, and then a little longer.

use std::time::{Duration, Instant};

use uuid::Uuid;

use super::{Desk, FenceStrategy};

const POLL: Duration = Duration::from_millis(20);
/// How long it waits for the successor to come into its way, once there is one.
const AFTER_TAKEOVER: Duration = Duration::from_secs(3);
/// Of so many intents, one meets a pause.
const ONE_IN: usize = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum After {
    /// It knows which intent is next, and has not looked at the cursor.
    Choice,
    /// The bytes are signed (and sent, by those who send first); nothing is written.
    Draft,
    /// Everything is written, and not committed.
    Write,
}

/// Where the nth intent of a lane is paused over, if at all: where the hole of its way is. The right one has none, and
/// pauses everywhere in turn.
pub(super) fn pause_after(strategy: FenceStrategy, nth: usize) -> Option<After> {
    let places: &[After] = match strategy {
        FenceStrategy::LockThenWrite => &[After::Choice, After::Draft, After::Write],
        FenceStrategy::Exists => &[After::Write],
        FenceStrategy::SendFirst => &[After::Draft],
        FenceStrategy::Unchecked => &[After::Choice],
    };
    // Not the first: a lane that has just taken over goes on with what it found.
    (nth % ONE_IN == 1).then(|| places[nth / ONE_IN % places.len()])
}

impl Desk {
    /// Until the lease is another's and that one is at work, or for as long as that should have taken.
    pub(super) async fn pause(&self, after: After, submitter: &str, lease_id: Uuid, tx_id: Uuid) {
        tracing::info!(?after, submitter, tx.id = %tx_id, "pausing");
        let limit = Instant::now() + 2 * self.lease + Duration::from_secs(1);
        while Instant::now() < limit && !self.is_taken(submitter, lease_id).await {
            tokio::time::sleep(POLL).await;
        }
        if Instant::now() >= limit {
            return;
        }
        let limit = Instant::now() + AFTER_TAKEOVER;
        while Instant::now() < limit && !self.is_in_the_way(after, tx_id).await {
            tokio::time::sleep(POLL).await;
        }
    }

    /// Another period of ownership has begun.
    async fn is_taken(&self, submitter: &str, lease_id: Uuid) -> bool {
        let taken = sqlx::query_scalar(
            "SELECT EXISTS (SELECT FROM submitter_lease WHERE submitter = $1 AND lease_id <> $2)",
        );
        taken.bind(submitter).bind(lease_id).fetch_one(&self.db).await.unwrap_or(false)
    }

    /// The successor has gone on with this intent, or waits for what is locked here.
    async fn is_in_the_way(&self, after: After, tx_id: Uuid) -> bool {
        let asked = match after {
            After::Write => sqlx::query_scalar(
                "SELECT $1::UUID IS NOT NULL AND EXISTS (SELECT FROM pg_locks WHERE NOT granted)",
            ),
            _ => sqlx::query_scalar(
                "SELECT EXISTS (SELECT FROM managed_tx WHERE tx_id = $1 AND state <> 'QUEUED')",
            ),
        };
        asked.bind(tx_id).fetch_one(&self.db).await.unwrap_or(false)
    }
}
