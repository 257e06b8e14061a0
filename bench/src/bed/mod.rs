//! The test bed: a durable PostgreSQL, the product's binaries, and a database per run.

mod keys;
mod lifetimes;
mod run;
mod service;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result, bail};
use gapless_cli::output::say;
use gapless_localnet::{AnvilProgram, DataDir, Postgres, PostgresBinaries, PostgresOptions};
use tempfile::TempDir;

pub(crate) use keys::{GAS, Key, keys};
pub(crate) use lifetimes::Lifetimes;
pub(crate) use run::{CHAIN_ID, Run};
pub(crate) use service::{Service, launched};

use crate::args::Args;
use crate::measure::Monitor;

/// Durable settings. No checkpoint occurs during a run: the full-page images after it
/// would distort the WAL volume.
const SETTINGS: [&str; 8] = [
    "fsync=on",
    "synchronous_commit=on",
    "full_page_writes=on",
    "shared_buffers=512MB",
    "max_wal_size=16GB",
    "checkpoint_timeout=1h",
    "max_connections=400",
    "autovacuum=on",
];
const STATEMENTS: &str = "shared_preload_libraries=pg_stat_statements";
const MONITOR_DATABASE: &str = "monitor";

#[derive(Debug)]
pub(crate) struct Bed {
    postgres: Postgres,
    binaries: PostgresBinaries,
    has_statements: bool,
    bin_dir: PathBuf,
    dir: TempDir,
    next: AtomicU32,
}

impl Bed {
    pub(crate) async fn start(args: &Args) -> Result<Bed> {
        let bin_dir = match &args.bin_dir {
            Some(dir) => dir.clone(),
            None => std::env::current_exe()?
                .parent()
                .context("the path of this program has no directory")?
                .to_owned(),
        };
        for program in ["gapless", "gapless-api", "gapless-worker"] {
            if !bin_dir.join(program).is_file() {
                bail!("there is no {program} in {}; run `make bench-build`", bin_dir.display());
            }
        }
        let binaries = tokio::task::spawn_blocking(|| PostgresBinaries::obtain(say)).await??;
        let (postgres, has_statements) = match start_postgres(&binaries, &[STATEMENTS]).await {
            Ok(postgres) => (postgres, true),
            Err(_) => (start_postgres(&binaries, &[]).await?, false),
        };
        postgres.create_database(MONITOR_DATABASE).await?;
        let dir = tempfile::Builder::new().prefix("gapless-bench-").tempdir()?;
        Ok(Bed { postgres, binaries, has_statements, bin_dir, dir, next: AtomicU32::new(0) })
    }

    pub(crate) fn program(&self, name: &str) -> PathBuf {
        self.bin_dir.join(name)
    }

    /// `None`: not part of this PostgreSQL installation.
    pub(crate) fn pgbench(&self) -> Option<PathBuf> {
        self.binaries.beside("pgbench")
    }

    pub(crate) async fn anvil_program() -> Result<AnvilProgram> {
        tokio::task::spawn_blocking(|| AnvilProgram::obtain(say)).await?
    }

    /// Directory of configuration and logs.
    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn postgres_port(&self) -> u16 {
        self.postgres.port()
    }

    pub(crate) fn postgres_pid(&self) -> u32 {
        self.postgres.pid()
    }

    /// Creates a database with the schema, and the settings of its processes.
    pub(crate) async fn run(&self, name: &str, chain_url: &str) -> Result<Run<'_>> {
        let database = format!("bench_{}", self.next.fetch_add(1, Ordering::Relaxed));
        self.postgres.create_database(&database).await?;
        Run::new(self, name, database, chain_url).await
    }

    fn url(&self, database: &str) -> String {
        self.postgres.url(database)
    }

    async fn monitor(&self, database: &str) -> Result<Monitor> {
        Monitor::connect(&self.url(MONITOR_DATABASE), database, self.has_statements).await
    }

    pub(crate) async fn postgres_version(&self) -> Result<String> {
        self.monitor(MONITOR_DATABASE).await?.version().await
    }

    pub(crate) async fn stop(mut self) -> Result<()> {
        self.postgres.stop().await
    }
}

async fn start_postgres(binaries: &PostgresBinaries, more: &[&str]) -> Result<Postgres> {
    let settings = SETTINGS.iter().chain(more).map(|setting| (*setting).to_owned()).collect();
    let options =
        PostgresOptions { data: DataDir::Temporary, port: None, log: None, settings, env: Vec::new() };
    Postgres::start(binaries, options).await
}
