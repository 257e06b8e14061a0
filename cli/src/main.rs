//! `gapless`: see `gapless --help`.

use std::process::ExitCode;

use clap::Parser;
use gapless_cli::args::Cli;
use gapless_cli::output;

#[tokio::main]
async fn main() -> ExitCode {
    match gapless_cli::run(Cli::parse()).await {
        Ok(code) => code,
        Err(error) => {
            output::say(&format!("gapless: {error:#}"));
            ExitCode::from(2)
        }
    }
}
