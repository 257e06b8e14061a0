//! `gapless-chaos`: breaks everything again and again for a while, and says whether every promise was kept. The last line is the
//! verdict; the exit code is 1 if anything was violated.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::Parser;
use gapless_cli::output::{line, say};
use gapless_tests::chaos::{Crew, Options, PER_HOUR, run};
use gapless_tests::reference_worker::FenceStrategy;
use serde_json::Value;

const FIVE_MINUTES: Duration = Duration::from_secs(300);

#[derive(Debug, Parser)]
#[command(name = "gapless-chaos", about = "Break everything for a while, and judge what is left")]
struct Args {
    /// Decides what is broken when. Absent: a random one, which is printed
    #[arg(long)]
    seed: Option<u64>,
    /// How long things are broken. Absent: 300, or 12 for a negative control
    #[arg(long)]
    seconds: Option<u64>,
    /// Faults of each kind in an hour
    #[arg(long, default_value_t = PER_HOUR)]
    per_hour: u64,
    /// A configuration key for every process, as often as you like: nonce.max_in_flight=1
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = setting)]
    settings: Vec<(String, Value)>,
    /// Keep history, configuration and logs of a sound run, too
    #[arg(long)]
    keep: bool,
    /// A negative control: the harness's own workers, lock-then-write (right), exists, send-first or unchecked (wrong)
    #[arg(long)]
    control: Option<FenceStrategy>,
}

#[tokio::main]
async fn main() -> Result<ExitCode> {
    let args = Args::parse();
    let program = std::env::current_exe()?.with_file_name("gapless-stack");
    anyhow::ensure!(program.is_file(), "gapless-stack is not beside this program: use `make chaos`");
    let seed = args.seed.unwrap_or_else(|| rand::random_range(1..100_000));
    let mut options = match args.control {
        None => Options::new(program, seed, FIVE_MINUTES),
        Some(strategy) => Options::control(program, seed, strategy),
    };
    options.length = args.seconds.map_or(options.length, Duration::from_secs);
    options.per_hour = args.per_hour;
    options.settings = args.settings;
    options.keep = args.keep;
    options.say = say;
    if let Crew::Plain(strategy) = options.crew {
        say(&format!("negative control: workers that guard their writes by {}", strategy.word()));
    }
    say(&format!("seed {seed}, {} s; Ctrl-C ends it early, in good order", options.length.as_secs()));
    let over = options.over.clone();
    tokio::spawn(async move {
        let _ = tokio::signal::ctrl_c().await;
        say("coming to an end; once more to stop at once");
        over.cancel();
        let _ = tokio::signal::ctrl_c().await;
        std::process::exit(130);
    });
    let outcome = run(options).await;
    line(format!("\n{}\n", outcome.table));
    if !outcome.is_sound() {
        line(format!("{}\n", outcome.complaints()));
    }
    if let Some(dir) = &outcome.kept {
        line(format!("history, configuration and logs are kept in {}", dir.display()));
    }
    line(&outcome.verdict);
    Ok(if outcome.is_sound() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// A number and a truth value are what they look like; anything else is text.
fn setting(text: &str) -> Result<(String, Value), String> {
    let (key, value) = text.split_once('=').ok_or("write KEY=VALUE")?;
    Ok((key.to_owned(), serde_json::from_str(value).unwrap_or_else(|_| value.into())))
}
