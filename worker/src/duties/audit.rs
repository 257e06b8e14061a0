//! Compares the chain's count with our sequence, for submitters that nobody owns at the moment. Lanes watch their
//! own; this finds a key that was used outside while nothing was asked of it.

use std::collections::HashMap;
use std::sync::Arc;

use gapless::chain::BlockTag;
use gapless::domain::ChainId;
use gapless::store::Store;

use crate::chains::Chain;
use crate::fleet::Fleet;

/// Look-ups under way at once; the chain client makes batches of them.
const AT_ONCE: usize = 100;

pub(super) async fn run(
    store: Store,
    fleet: Arc<Fleet>,
    chains: Arc<HashMap<ChainId, Arc<Chain>>>,
) -> anyhow::Result<()> {
    let mut sequences = store.idle_sequences().await?;
    sequences.retain(|(key, _)| fleet.can_serve(key));
    let mut suspects = Vec::new();
    for group in sequences.chunks(AT_ONCE) {
        let counts = futures::future::join_all(group.iter().map(async |(key, next)| {
            let chain = chains.get(&key.chain_id)?;
            let count = chain.connector.transaction_count(key.address, BlockTag::Latest).await.ok()?;
            (count > next.0).then_some(*key)
        }));
        suspects.extend(counts.await.into_iter().flatten());
    }
    if suspects.is_empty() {
        return Ok(());
    }
    tracing::warn!(
        submitters = suspects.len(),
        "the chain counts more transactions than our sequences explain"
    );
    // A lane reads the rows, looks twice and stops the submitter behind the fence.
    fleet.look_into(suspects).await?;
    Ok(())
}
