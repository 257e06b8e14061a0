//! Removes finished intents with their attempts, and external nonces, once they are older than the retention.

use std::time::Duration;

use chrono::Utc;
use gapless_store::Store;

/// Largest accepted difference between the clocks of the database and of this worker.
const MAX_CLOCK_DIFFERENCE_S: i64 = 3600;

pub(super) async fn run(store: Store, retention: Duration) -> anyhow::Result<()> {
    // Pruning also removes idempotency keys and cannot be undone: a single wrong clock must not cause it.
    let off_by_s = (store.now().await? - Utc::now()).num_seconds();
    anyhow::ensure!(
        off_by_s.abs() <= MAX_CLOCK_DIFFERENCE_S,
        "nothing removed: the clocks of the database and of this worker differ by {off_by_s} s"
    );
    let (mut removed, mut after) = (0, None);
    loop {
        let step = store.prune_sequences(retention, after).await?;
        removed += step.removed;
        match (step.removed, step.upto) {
            (_, None) => break,
            // These submitters may have more to remove.
            (1.., Some(_)) => {}
            (0, upto) => after = upto,
        }
    }
    loop {
        let batch = store.prune_unsent(retention).await?;
        removed += batch;
        if batch == 0 {
            break;
        }
    }
    store.prune_external(retention).await?;
    if removed > 0 {
        tracing::info!(removed, "finished intents beyond the retention were removed");
    }
    Ok(())
}
