//! `gapless-api`: reads the configuration, sets up logging and signals, and runs the server.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use gapless_config::Config;

/// The REST API of Gapless.
#[derive(Debug, Parser)]
#[command(version)]
struct Options {
    /// Configuration file; every key can also be set as GAPLESS__SECTION__KEY.
    #[arg(long, env = "GAPLESS_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print the OpenAPI document and exit.
    #[arg(long)]
    print_openapi: bool,
}

#[tokio::main]
async fn main() -> ExitCode {
    match serve().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // One line with the cause and no backtrace.
            eprintln!("gapless-api: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn serve() -> anyhow::Result<()> {
    let options = Options::parse();
    if options.print_openapi {
        print(&gapless_api::spec_yaml());
        return Ok(());
    }
    let config = Config::load(options.config.as_deref())?;
    let _log = gapless_telemetry::init_telemetry(&config.log, &config.traces, "gapless-api")?;
    gapless_api::run(config, gapless_telemetry::shutdown::stop_signal()).await
}

#[allow(clippy::print_stdout)] // the document is the output of `--print-openapi`
fn print(text: &str) {
    print!("{text}");
}
