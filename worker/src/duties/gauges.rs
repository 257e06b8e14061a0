//! Gauges read from the database: queue depth, unmined and unfinalised transactions with their oldest age, protected
//! submitters, blocked queues. Every worker exports the same values.

use std::time::Duration;

use gapless_domain::{BlockedReason, ChainId};
use gapless_store::{Backlog, Store};
use gapless_telemetry::metrics as m;
use tokio_util::sync::CancellationToken;

const EVERY: Duration = Duration::from_secs(10);

pub(super) async fn run(store: Store, chains: Vec<ChainId>, stop: CancellationToken) {
    loop {
        match store.backlog().await {
            Ok(chains) => {
                chains.iter().for_each(show_backlog);
            }
            Err(error) => tracing::debug!(error = %error, "could not read the backlog"),
        }
        match store.longest_blocked().await {
            Ok(blocked) => show_blocked(&chains, &blocked),
            Err(error) => tracing::debug!(error = %error, "could not read blocked queues"),
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(EVERY) => {}
        }
    }
}

fn show_backlog(backlog: &Backlog) {
    let show = |name: &'static str, value: f64| {
        metrics::gauge!(name, "chain" => backlog.chain_id.to_string()).set(value);
    };
    show(m::QUEUE_DEPTH, backlog.queued as f64);
    show(m::QUEUE_OLDEST_AGE_SECONDS, backlog.oldest_age);
    show(m::PROTECTED_SUBMITTERS, backlog.protected as f64);
    show(m::SUSPECT_SUBMITTERS, backlog.suspect as f64);
    show(m::SHARED_SUBMITTERS, backlog.shared as f64);
    show(m::STUCK_TRANSACTIONS, backlog.stuck as f64);
    show(m::UNMINED_TRANSACTIONS, backlog.unmined.count as f64);
    show(m::UNMINED_OLDEST_AGE_SECONDS, backlog.unmined.oldest_age);
    show(m::TRACKING_TRANSACTIONS, backlog.tracking.count as f64);
    show(m::TRACKING_OLDEST_AGE_SECONDS, backlog.tracking.oldest_age);
}

/// Sets every reason of every chain, so that one that has ended is exported as 0.
fn show_blocked(chains: &[ChainId], blocked: &[(ChainId, BlockedReason, f64)]) {
    for chain in chains {
        for reason in BlockedReason::ALL {
            let found = blocked.iter().find(|(id, why, _)| id == chain && *why == reason);
            metrics::gauge!(m::LANE_BLOCKED_SECONDS, "chain" => chain.to_string(), "reason" => reason.as_str())
                .set(found.map_or(0.0, |(_, _, seconds)| *seconds));
        }
    }
}
