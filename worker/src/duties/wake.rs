//! Polls the balances of submitters that are blocked by missing funds and have no lane, in batches, and makes those
//! whose balance rose claimable. The others become claimable when their pause ends.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use gapless_domain::{ChainId, SubmitterKey, U256, WorkerId};
use gapless_store::{Store, StoreError};
use tokio_util::sync::CancellationToken;

use crate::chains::Chain;
use crate::fleet::Fleet;

const EVERY: Duration = Duration::from_secs(2);
/// Duration of the duty's lease; there is one holder per set of keys.
const LEASE: Duration = Duration::from_secs(10);
const AT_ONCE: usize = 100;

/// Last seen balances. Not persisted: after a restart the pause of at most a minute applies.
type Seen = HashMap<SubmitterKey, U256>;

pub(super) async fn run(
    store: Store,
    worker_id: WorkerId,
    fleet: Arc<Fleet>,
    chains: Arc<HashMap<ChainId, Arc<Chain>>>,
    stop: CancellationToken,
) {
    let mut seen = Seen::new();
    loop {
        if let Err(error) = wake_funded(&store, &worker_id, &fleet, &chains, &mut seen).await {
            tracing::debug!(error = %error, "could not read blocked submitters");
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(EVERY) => {}
        }
    }
}

async fn wake_funded(
    store: &Store,
    worker_id: &WorkerId,
    fleet: &Fleet,
    chains: &HashMap<ChainId, Arc<Chain>>,
    seen: &mut Seen,
) -> Result<(), StoreError> {
    let mut waiting = store.waiting_for_funds().await?;
    waiting.retain(|key| fleet.can_serve(key));
    if waiting.is_empty() || !store.hold_duty(&format!("wake:{}", fleet.serves()), worker_id, LEASE).await? {
        seen.clear();
        return Ok(());
    }
    let mut now = Seen::new();
    for group in waiting.chunks(AT_ONCE) {
        let read = group.iter().filter_map(|key| chains.get(&key.chain_id).map(|chain| (key, chain)));
        let read = read.map(async |(key, chain)| (*key, chain.connector.balance(key.address).await));
        for (key, balance) in futures::future::join_all(read).await {
            // If the request failed, the last seen balance stays.
            if let Some(balance) = balance.ok().or_else(|| seen.get(&key).copied()) {
                now.insert(key, balance);
            }
        }
    }
    let richer =
        |(key, balance): &(&SubmitterKey, &U256)| seen.get(key).is_some_and(|before| *balance > before);
    let funded: Vec<SubmitterKey> = now.iter().filter(richer).map(|(key, _)| *key).collect();
    *seen = now;
    if !funded.is_empty() {
        store.wake_submitters(&funded).await?;
        tracing::info!(worker.id = %worker_id, submitters = funded.len(),
            "balance increased; retrying blocked submitters");
        store.notify_work().await?;
        fleet.wake.notify_one();
    }
    Ok(())
}
