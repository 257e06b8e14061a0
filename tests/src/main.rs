//! `gapless-stack`: API, worker and CLI in one binary for the tests. It differs from the released binaries in two
//! ways: the worker's failpoints are compiled in, and the wall clock can be shifted. It also contains the reference
//! worker.

mod clock;
// The example `custom_worker` of the worker crate.
#[path = "../../worker/examples/custom_worker/adapters/mod.rs"]
mod adapters;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};
use gapless_chaos::reference_worker::FenceStrategy;
use gapless_config::Config;
use gapless_domain::{Address, ChainId, RequestedTx, SubmitterKey};
use gapless_embed::{Gapless, NonceContext};
use gapless_telemetry::TelemetryGuard;

#[derive(Debug, Parser)]
struct Args {
    #[command(subcommand)]
    part: Part,
}

#[derive(Debug, Subcommand)]
enum Part {
    Api {
        #[arg(long)]
        config: PathBuf,
    },
    Worker {
        #[arg(long)]
        config: PathBuf,
    },
    /// The worker of the example `custom_worker`.
    CustomWorker {
        #[arg(long)]
        config: PathBuf,
    },
    /// The reference worker, for negative controls.
    ReferenceWorker {
        #[arg(long)]
        config: PathBuf,
        #[arg(long, env = "GAPLESS_FENCE_STRATEGY")]
        strategy: FenceStrategy,
    },
    /// A client that reserves a nonce, logs it, and never returns a transaction.
    ReservationClient {
        #[arg(long)]
        config: PathBuf,
        #[arg(long)]
        chain_id: u64,
        #[arg(long)]
        submitter: Address,
        #[arg(long)]
        request_id: String,
    },
    Cli(gapless_cli::args::Cli),
}

#[tokio::main]
async fn main() -> ExitCode {
    run().await.unwrap_or_else(|error| {
        // As the released programs do.
        eprintln!("{error:#}");
        ExitCode::FAILURE
    })
}

async fn run() -> anyhow::Result<ExitCode> {
    clock::follow();
    match Args::parse().part {
        Part::Api { config } => {
            let (config, _log) = load(config, "gapless-api")?;
            gapless_api::run(config, gapless_telemetry::shutdown::stop_signal()).await?;
        }
        Part::Worker { config } => {
            let (config, _log) = load(config, "gapless-worker")?;
            gapless_worker::run(config, gapless_telemetry::shutdown::stop_signal()).await?;
        }
        Part::CustomWorker { config } => {
            let (config, _log) = load(config, "gapless-worker")?;
            let worker = adapters::with_adapters(gapless_worker::Worker::builder(config));
            worker.run(gapless_telemetry::shutdown::stop_signal()).await?;
        }
        Part::ReferenceWorker { config, strategy } => {
            let (log, traces) = (gapless_config::Log::default(), gapless_config::Traces::default());
            let _log = gapless_telemetry::init_telemetry(&log, &traces, "gapless-reference-worker")?;
            gapless_chaos::reference_worker::run(&std::fs::read_to_string(config)?, strategy).await?;
        }
        Part::ReservationClient { config, chain_id, submitter, request_id } => {
            let (config, _log) = load(config, "gapless-reservation-client")?;
            let submitter = SubmitterKey { chain_id: ChainId(chain_id), address: submitter };
            let call = Gapless::with_config(&config).await?;
            let call = call.call(submitter).request_id(request_id).reserve_for(Duration::from_secs(5));
            call.run(async |context: NonceContext| {
                tracing::info!(nonce = context.nonce.0, "the client received its nonce");
                std::future::pending::<Result<RequestedTx, String>>().await
            })
            .await?;
        }
        Part::Cli(cli) => return gapless_cli::run(cli).await,
    }
    Ok(ExitCode::SUCCESS)
}

fn load(path: PathBuf, service: &'static str) -> anyhow::Result<(Config, TelemetryGuard)> {
    let config = Config::load(Some(&path))?;
    let log = gapless_telemetry::init_telemetry(&config.log, &config.traces, service)?;
    Ok((config, log))
}
