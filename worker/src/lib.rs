//! The worker: owns submitters by lease and carries their intents to the chain.

mod builder;
#[cfg(feature = "sim-driver")]
pub mod sim_driver;
mod chains;
mod duties;
pub mod failpoint;
mod fleet;
mod batcher;
mod health;
mod lane;
mod listener;
mod heartbeat;
mod reader;
mod receipts;
mod run;
mod lease_balance;
mod steps;
mod watcher;
mod writer;

pub use builder::{Worker, WorkerBuilder};

use gapless::config::Config;
use tokio_util::sync::CancellationToken;

/// Runs until `stop`, then hands every lease over. With code of one's own: `Worker::builder`.
pub async fn run(config: Config, stop: CancellationToken) -> anyhow::Result<()> {
    Worker::builder(config).run(stop).await
}
