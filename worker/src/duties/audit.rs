//! Compares the chain's transaction count with the stored sequence, for submitters without a lane. Lanes check their
//! own submitters; this duty finds a key that was used externally while it had no work.

use std::collections::HashMap;
use std::sync::Arc;

use gapless_chain::BlockTag;
use gapless_domain::ChainId;
use gapless_store::Store;

use crate::chains::Chain;
use crate::fleet::Fleet;

/// Concurrent requests; the chain client batches them.
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
            // Not every node supports the pending count. If it does, the count may include what is about to be mined.
            let used = latest.max(pending).filter(|_| latest.is_some())? > idle.next.0;
            // Used externally, or protected although the counts match: a lane checks both cases.
            (used != idle.stopped).then_some(idle.key)
        }));
        suspects.extend(counts.await.into_iter().flatten());
    }
    if suspects.is_empty() {
        return Ok(());
    }
    tracing::warn!(
        submitters = suspects.len(),
        "nonce mismatch on idle submitters; starting lanes to check them"
    );
    // The lane loads the submitter, checks again and protects it with a fenced write.
    fleet.claim_for_check(suspects).await?;
    Ok(())
}
