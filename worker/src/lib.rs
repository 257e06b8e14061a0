//! The worker: leases submitters and submits their intents to the chain.

mod builder;
mod chains;
mod duties;
pub mod failpoint;
mod fleet;
mod health;
mod heartbeat;
mod initial_counters;
mod lane;
mod lease_balance;
mod outlets;
mod reader;
mod receipts;
mod run;
mod sequencer;
#[cfg(feature = "sim-driver")]
pub mod sim_driver;
mod steps;
mod watcher;
mod writer;

pub use builder::{Worker, WorkerBuilder};

use gapless_config::Config;
use tokio_util::sync::CancellationToken;

/// Runs until `stop`, then releases every lease. To run with custom adapters, use `Worker::builder`.
pub async fn run(config: Config, stop: CancellationToken) -> anyhow::Result<()> {
    Worker::builder(config).run(stop).await
}
