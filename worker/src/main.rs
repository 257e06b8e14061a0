//! `gapless-worker`: reads the configuration, runs the worker, releases its leases on SIGTERM or Ctrl-C.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use gapless_config::Config;

/// Leases submitters and submits their transactions to the chain.
#[derive(Debug, Parser)]
#[command(name = "gapless-worker", version)]
struct Args {
    /// Configuration file; environment variables override its keys (GAPLESS__LEASE__DURATION=10s).
    #[arg(long, env = "GAPLESS_CONFIG")]
    config: Option<PathBuf>,
}

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // One line with the cause and no backtrace.
            eprintln!("gapless-worker: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> anyhow::Result<()> {
    let args = Args::parse();
    let config = Config::load(args.config.as_deref())?;
    let _log = gapless_telemetry::init_telemetry(&config.log, &config.traces, "gapless-worker")?;
    gapless_worker::run(config, gapless_telemetry::shutdown::stop_signal()).await
}
