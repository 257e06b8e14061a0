//! `gapless-stack`: API, worker and CLI of the product in one binary for the tests. It calls what the product's own
//! binaries call, and differs from them in one thing: the worker's failpoints are compiled in.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use gapless::config::Config;

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
    Cli(gapless_cli::args::Cli),
}

#[tokio::main]
async fn main() -> anyhow::Result<ExitCode> {
    match Args::parse().part {
        Part::Api { config } => {
            let config = load(config)?;
            gapless_api::run(config, gapless::shutdown::stop_signal()).await?;
        }
        Part::Worker { config } => {
            let config = load(config)?;
            gapless_worker::run(config, gapless::shutdown::stop_signal()).await?;
        }
        Part::Cli(cli) => return gapless_cli::run(cli).await,
    }
    Ok(ExitCode::SUCCESS)
}

fn load(path: PathBuf) -> anyhow::Result<Config> {
    let config = Config::load(Some(&path))?;
    gapless::observe::init_logging(&config.log)?;
    Ok(config)
}
