//! Removes finished intents, with their attempts, once they are older than the retention; and what was left to others then.

use std::time::Duration;

use chrono::Utc;
use gapless::store::Store;

/// Clocks of two machines differ by less.
const MAX_CLOCK_DIFFERENCE_S: i64 = 3600;

pub(super) async fn run(store: Store, retention: Duration) -> anyhow::Result<()> {
    // What is removed is gone, and so is the answer to a repeated request: one wrong clock alone must not do that.
    let off_by_s = (store.now().await? - Utc::now()).num_seconds();
    anyhow::ensure!(
        off_by_s.abs() <= MAX_CLOCK_DIFFERENCE_S,
        "nothing is removed: the clocks of the database and of this worker differ by {off_by_s} s"
    );
    let (mut removed, mut after) = (0, None);
    loop {
        let step = store.prune_sequences(retention, after).await?;
        removed += step.removed;
        match (step.removed, step.upto) {
            (_, None) => break,
            // Some of these submitters may have more.
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
