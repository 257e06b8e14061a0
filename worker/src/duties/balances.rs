//! Warns of submitters whose balance is below `low_balance`.

use std::collections::HashMap;
use std::sync::Arc;

use gapless_domain::ChainId;
use gapless_store::Store;
use gapless_telemetry::metrics as m;

use crate::chains::Chain;

const AT_ONCE: usize = 100;

pub(super) async fn run(store: Store, chains: Arc<HashMap<ChainId, Arc<Chain>>>) -> anyhow::Result<()> {
    for (chain_id, chain) in chains.iter() {
        let Some(low) = chain.config.low_balance else { continue };
        let mut low_count = 0_u32;
        for group in store.submitters_of(*chain_id).await?.chunks(AT_ONCE) {
            let balances = futures::future::join_all(
                group.iter().map(async |key| (*key, chain.connector.balance(key.address).await)),
            );
            for (key, balance) in balances.await {
                let balance = balance?;
                if balance < low {
                    low_count += 1;
                    tracing::warn!(chain.id = chain_id.0, submitter = %key.address_text(), %balance, %low,
                        "balance is low");
                }
            }
        }
        metrics::gauge!(m::SUBMITTER_BALANCE_LOW, "chain" => chain_id.to_string()).set(f64::from(low_count));
    }
    Ok(())
}
