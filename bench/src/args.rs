//! The command line.

use std::path::PathBuf;

use clap::{Parser, Subcommand, ValueEnum};

/// Benchmarks of Gapless. Starts its own PostgreSQL and chains; every run ends with `gapless verify`.
#[derive(Debug, Parser)]
#[command(name = "gapless-bench")]
pub(crate) struct Args {
    /// Only these, separated by commas
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_enum)]
    pub(crate) only: Vec<Name>,
    /// Small sizes: under two minutes, and a summary as the last line
    #[arg(long)]
    pub(crate) quick: bool,
    /// Tables in Markdown
    #[arg(long)]
    pub(crate) markdown: bool,
    /// Also write every figure as JSON, a file for each benchmark
    #[arg(long, value_name = "DIR")]
    pub(crate) json: Option<PathBuf>,
    /// One size for `engine` and `anvil` instead of theirs: so many submitters
    #[arg(long, value_name = "N")]
    pub(crate) submitters: Option<usize>,
    /// With it, or alone: so many transactions of each submitter
    #[arg(long, value_name = "N")]
    pub(crate) each: Option<usize>,
    /// Where gapless, gapless-api and gapless-worker are; absent: beside this program
    #[arg(long, value_name = "DIR")]
    pub(crate) bin_dir: Option<PathBuf>,
    #[command(subcommand)]
    pub(crate) role: Option<Role>,
}

/// What this program does when it is its own child.
#[derive(Debug, Subcommand)]
pub(crate) enum Role {
    /// An HTTP server whose handler does nothing
    #[command(hide = true)]
    EmptyHandler { port: u16 },
}

/// The benchmarks, in the order they run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Name {
    /// POST at several concurrencies, against single-row INSERTs and against an empty handler
    Ingest,
    /// The worker on a chain that mines at once, against the same SQL without signing and RPC
    Engine,
    /// End to end on anvil, against a bare sender without a database
    Anvil,
    /// One transaction on an idle system
    Latency,
    /// Cost as submitters, queued rows, finished rows and workers grow; cost of doing nothing
    Scale,
    /// Hand-over, takeover, and the share of a joining worker
    Recovery,
    /// Ingest and engine at once
    Both,
}

impl Args {
    pub(crate) fn names(&self) -> Vec<Name> {
        if self.only.is_empty() { Name::value_variants().to_vec() } else { self.only.clone() }
    }

    /// Submitters and transactions of each, as given or as the benchmark would have it.
    pub(crate) fn size(&self, submitters: usize, each: usize) -> (usize, usize) {
        (self.submitters.unwrap_or(submitters), self.each.unwrap_or(each))
    }

    pub(crate) fn has_size(&self) -> bool {
        self.submitters.is_some() || self.each.is_some()
    }
}
