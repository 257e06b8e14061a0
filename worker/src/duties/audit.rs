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
    sequences.retain(|idle| fleet.can_serve(&idle.key));
    let mut suspects = Vec::new();
    for group in sequences.chunks(AT_ONCE) {
        let counts = futures::future::join_all(group.iter().map(async |idle| {
            let chain = chains.get(&idle.key.chain_id)?;
            let count = async |tag| chain.connector.transaction_count(idle.key.address, tag).await.ok();
            let (latest, pending) = tokio::join!(count(BlockTag::Latest), count(BlockTag::Pending));
            // Not every node has a count of its pool. Where it has one, it may show what is about to be mined.
            let used = latest.max(pending).filter(|_| latest.is_some())? > idle.next.0;
            // Used elsewhere, or stopped although it fits: a lane looks into both.
            (used != idle.stopped).then_some(idle.key)
        }));
        suspects.extend(counts.await.into_iter().flatten());
    }
    if suspects.is_empty() {
        return Ok(());
    }
    tracing::warn!(
        submitters = suspects.len(),
        "sequences that nobody watches do not fit the chain; looking into them"
    );
    // A lane reads the rows, looks twice and stops the submitter behind the fence.
    fleet.look_into(suspects).await?;
    Ok(())
}
