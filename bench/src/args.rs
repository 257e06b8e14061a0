//! The command line.

use std::path::PathBuf;

use clap::{Parser, Subcommand, ValueEnum};

/// Benchmarks of Gapless. Starts its own PostgreSQL and chains; every run ends with `gapless verify`.
#[derive(Debug, Parser)]
#[command(name = "gapless-bench")]
pub(crate) struct Args {
    /// Run only these, comma-separated
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_enum)]
    pub(crate) only: Vec<Name>,
    /// Small sizes: less than two minutes; prints a summary as the last line
    #[arg(long)]
    pub(crate) quick: bool,
    /// Print tables as Markdown
    #[arg(long)]
    pub(crate) markdown: bool,
    /// Also write all figures as JSON, one file per benchmark
    #[arg(long, value_name = "DIR")]
    pub(crate) json: Option<PathBuf>,
    /// Number of submitters of `engine` and `anvil`, instead of their own sizes
    #[arg(long, value_name = "N")]
    pub(crate) submitters: Option<usize>,
    /// Transactions per submitter of `engine` and `anvil`
    #[arg(long, value_name = "N")]
    pub(crate) each: Option<usize>,
    /// Directory of gapless, gapless-api and gapless-worker. Default: the directory of this program
    #[arg(long, value_name = "DIR")]
    pub(crate) bin_dir: Option<PathBuf>,
    #[command(subcommand)]
    pub(crate) role: Option<Role>,
}

/// Subcommands for child processes of this program.
#[derive(Debug, Subcommand)]
pub(crate) enum Role {
    /// An HTTP server whose handler does nothing
    #[command(hide = true)]
    EmptyHandler { port: u16 },
}

/// The benchmarks, in the order they run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Name {
    /// POST at several concurrencies, compared with single-row INSERTs and an empty handler
    Ingest,
    /// The worker on a chain with instant mining, compared with the same SQL without signing and RPC
    Engine,
    /// End to end on anvil, compared with a bare sender without a database
    Anvil,
    /// One transaction on an idle system
    Latency,
    /// Cost by number of submitters, queued rows, finished rows and workers; cost when idle
    Scale,
    /// Handover, takeover, and lease balancing with a joining worker
    Recovery,
    /// Ingest and engine at the same time
    Both,
    /// Recorded events: their cost, their latency, many streams, and webhooks
    Events,
}

impl Args {
    pub(crate) fn names(&self) -> Vec<Name> {
        if self.only.is_empty() { Name::value_variants().to_vec() } else { self.only.clone() }
    }

    /// Submitters and transactions per submitter, from the options or these defaults.
    pub(crate) fn size(&self, submitters: usize, each: usize) -> (usize, usize) {
        (self.submitters.unwrap_or(submitters), self.each.unwrap_or(each))
    }

    pub(crate) fn has_size(&self) -> bool {
        self.submitters.is_some() || self.each.is_some()
    }
}
