//! Queue depth, oldest age, protected submitters and blocked queues, as gauges. Every worker shows them: they are facts of the
//! database, not of a process.

use std::time::Duration;

use gapless::domain::{BlockedReason, ChainId};
use gapless::observe::metrics as m;
use gapless::store::Store;
use tokio_util::sync::CancellationToken;

const EVERY: Duration = Duration::from_secs(10);

pub(super) async fn run(store: Store, chains: Vec<ChainId>, stop: CancellationToken) {
    loop {
        match store.backlog().await {
            Ok(chains) => {
                for backlog in chains {
                    let chain = backlog.chain_id.to_string();
                    metrics::gauge!(m::QUEUE_DEPTH, "chain" => chain.clone()).set(backlog.queued as f64);
                    metrics::gauge!(m::QUEUE_OLDEST_AGE_SECONDS, "chain" => chain.clone())
                        .set(backlog.oldest_age);
                    metrics::gauge!(m::PROTECTED_SUBMITTERS, "chain" => chain.clone())
                        .set(backlog.protected as f64);
                    metrics::gauge!(m::SUSPECT_SUBMITTERS, "chain" => chain).set(backlog.suspect as f64);
                    metrics::gauge!(m::SHARED_SUBMITTERS, "chain" => backlog.chain_id.to_string())
                        .set(backlog.shared as f64);
                    metrics::gauge!(m::STUCK_TRANSACTIONS, "chain" => backlog.chain_id.to_string())
                        .set(backlog.stuck as f64);
                }
            }
            Err(error) => tracing::debug!(error = %error, "the backlog could not be counted"),
        }
        match store.longest_blocked().await {
            Ok(blocked) => show_blocked(&chains, &blocked),
            Err(error) => tracing::debug!(error = %error, "blocked queues could not be read"),
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(EVERY) => {}
        }
    }
}

/// Every reason of every chain, so that one that is over is shown as 0.
fn show_blocked(chains: &[ChainId], blocked: &[(ChainId, BlockedReason, f64)]) {
    for chain in chains {
        for reason in BlockedReason::ALL {
            let found = blocked.iter().find(|(id, why, _)| id == chain && *why == reason);
            metrics::gauge!(m::LANE_BLOCKED_SECONDS, "chain" => chain.to_string(), "reason" => reason.as_str())
                .set(found.map_or(0.0, |(_, _, seconds)| *seconds));
        }
    }
}
