//! Removes finished intents, with their attempts, once they are older than the retention; and what was left to others then.

use std::time::Duration;

use gapless::store::Store;

pub(super) async fn run(store: Store, retention: Duration) -> anyhow::Result<()> {
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
    store.prune_foreign(retention).await?;
    if removed > 0 {
        tracing::info!(removed, "finished intents beyond the retention were removed");
    }
    Ok(())
}
