//! `gapless-worker`: reads the configuration, runs the worker, hands over on SIGTERM or Ctrl-C.

use std::path::PathBuf;

use clap::Parser;
use gapless::config::Config;

/// Owns submitters by lease and carries their transactions to the chain.
#[derive(Debug, Parser)]
#[command(name = "gapless-worker", version)]
struct Args {
    /// Configuration file; every key can also be set by the environment (GAPLESS__LEASE__DURATION=10s).
    #[arg(long, env = "GAPLESS_CONFIG")]
    config: Option<PathBuf>,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let config = Config::load(args.config.as_deref())?;
    let _log = gapless::observe::init_logging(&config.log)?;
    gapless_worker::run(config, gapless::shutdown::stop_signal()).await
}
