//! `gapless-bench`: throughput, latency and cost per transaction. See docs/internals/performance.md.
//!
//! Every figure is compared with a reference measured in the same run on the same machine. The product runs as its
//! release binaries; a run whose data does not pass `gapless verify` fails.
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod args;
mod bed;
mod both;
mod chain;
mod end_to_end;
mod engine;
mod events;
mod ingest;
mod latency;
mod load;
mod machine;
mod measure;
mod recovery;
mod report;
mod scale;
mod webhooks;

use std::time::Instant;

use anyhow::{Context, Result};
use clap::Parser;
use gapless_cli::output::say;

use args::{Args, Name, Role};
use bed::Bed;
use report::Report;

#[tokio::main]
async fn main() -> Result<()> {
    let args = Args::parse();
    if let Some(Role::EmptyHandler { port }) = args.role {
        return ingest::serve_nothing(port).await;
    }
    let begun = Instant::now();
    let bed = Bed::start(&args).await?;
    let mut report = Report::new(args.markdown);
    report.table("machine", machine::describe(&bed).await?);
    for name in args.names() {
        let started = Instant::now();
        run(name, &bed, &args, &mut report).await.with_context(|| format!("{name:?}"))?;
        say(&format!("{name:?} took {:.0} s", started.elapsed().as_secs_f64()));
    }
    bed.stop().await?;
    report.print_goals();
    if let Some(dir) = &args.json {
        report.write(dir)?;
    }
    say(&format!("everything took {:.0} s", begun.elapsed().as_secs_f64()));
    report.print_summary();
    Ok(())
}

async fn run(name: Name, bed: &Bed, args: &Args, report: &mut Report) -> Result<()> {
    match name {
        Name::Ingest => ingest::run(bed, args, report).await,
        Name::Engine => engine::run(bed, args, report).await,
        Name::Anvil => end_to_end::run(bed, args, report).await,
        Name::Latency => latency::run(bed, args, report).await,
        Name::Scale => scale::run(bed, args, report).await,
        Name::Recovery => recovery::run(bed, args, report).await,
        Name::Both => both::run(bed, args, report).await,
        Name::Events => events::run(bed, args, report).await,
    }
}
