//! A worker with custom adapters: a connector for a chain without gas prices, and policies for unmined transactions.
//!
//! ```sh
//! cargo run -p gapless-worker --example custom_worker -- --config my.toml
//! ```
//!
//! The chain's table in the configuration selects the adapters:
//!
//! ```toml
//! [chain.consortium.adapters]
//! connector = "zero_price"
//! fee_policy = "free"
//! gas_bump_policy = "steep"
//! stuck_policy = "patient"
//! ```

mod adapters;

use std::path::PathBuf;

use clap::Parser;
use gapless_config::Config;
use gapless_worker::Worker;

#[derive(Debug, Parser)]
struct Args {
    #[arg(long, env = "GAPLESS_CONFIG")]
    config: Option<PathBuf>,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let config = Config::load(args.config.as_deref())?;
    let _log = gapless_telemetry::init_telemetry(&config.log, &config.traces, "gapless-worker")?;
    adapters::with_adapters(Worker::builder(config)).run(gapless_telemetry::shutdown::stop_signal()).await
}
