//! `gapless-chaos`: a chaos run. The last line is the summary; the exit code is 1 if a rule was violated.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::Parser;
use gapless_chaos::reference_worker::FenceStrategy;
use gapless_chaos::{Crew, Options, PER_HOUR, Upgrade, run};
use gapless_cli::output::{line, say};
use serde_json::Value;

const FIVE_MINUTES: Duration = Duration::from_secs(300);

#[derive(Debug, Parser)]
#[command(name = "gapless-chaos", about = "Inject faults into a running stack, then check the result")]
struct Args {
    /// Seed of the schedule. Default: random, and printed
    #[arg(long)]
    seed: Option<u64>,
    /// Duration of fault injection. Default: 300, or 12 for a negative control
    #[arg(long)]
    seconds: Option<u64>,
    /// Faults of each kind per hour
    #[arg(long, default_value_t = PER_HOUR)]
    per_hour: u64,
    /// A configuration key for every process, repeatable: nonce.max_in_flight=1
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = setting)]
    settings: Vec<(String, Value)>,
    /// Keep history, configuration and logs even if the run passes
    #[arg(long)]
    keep: bool,
    /// Negative control with the reference worker: lock-then-write (correct), exists, send-first or unchecked (faulty)
    #[arg(long)]
    control: Option<FenceStrategy>,
    /// Upgrade run: `gapless-stack` of the previous release, from which the run rolls to this version, back, and forward
    /// again. With --control, workers with a correct fence are rolled to the reference worker
    #[arg(long, value_name = "PROGRAM", requires = "previous_openapi")]
    previous: Option<PathBuf>,
    /// openapi.yaml of the previous release; answers of the API must have the fields that it requires
    #[arg(long, value_name = "FILE", requires = "previous")]
    previous_openapi: Option<PathBuf>,
}

#[tokio::main]
async fn main() -> Result<ExitCode> {
    let args = Args::parse();
    let program = std::env::current_exe()?.with_file_name("gapless-stack");
    anyhow::ensure!(
        program.is_file(),
        "gapless-stack is not in the directory of this program: use `make chaos`"
    );
    let seed = args.seed.unwrap_or_else(|| rand::random_range(1..100_000));
    let mut options = match args.control {
        None => Options::new(program, seed, FIVE_MINUTES),
        Some(strategy) => Options::control(program, seed, strategy),
    };
    if let Some((previous, openapi)) = args.previous.zip(args.previous_openapi) {
        options.upgrade(Upgrade::new(previous, openapi));
    }
    options.length = args.seconds.map_or(options.length, Duration::from_secs);
    options.per_hour = args.per_hour;
    options.settings = args.settings;
    options.keep = args.keep;
    options.on_progress = say;
    if let Crew::Reference(strategy) = options.crew {
        say(&format!("negative control: reference worker with fence strategy {}", strategy.name()));
    }
    say(&format!("seed {seed}, {} s; Ctrl-C ends the run early", options.length.as_secs()));
    let stop_faults = options.stop_faults.clone();
    tokio::spawn(async move {
        let _ = tokio::signal::ctrl_c().await;
        say("ending the run; press Ctrl-C again to stop immediately");
        stop_faults.cancel();
        let _ = tokio::signal::ctrl_c().await;
        std::process::exit(130);
    });
    let outcome = run(options).await;
    line(format!("\n{}\n", outcome.table));
    if !outcome.is_sound() {
        line(format!("{}\n", outcome.describe_violations()));
    }
    if let Some(dir) = &outcome.artifacts {
        line(format!("history, configuration and logs: {}", dir.display()));
    }
    line(&outcome.summary);
    Ok(if outcome.is_sound() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// `KEY=VALUE`; numbers and booleans are parsed as JSON, anything else is a string.
fn setting(text: &str) -> Result<(String, Value), String> {
    let (key, value) = text.split_once('=').ok_or("expected KEY=VALUE")?;
    Ok((key.to_owned(), serde_json::from_str(value).unwrap_or_else(|_| value.into())))
}
