//! One run: its database, the settings of its processes, and the final audit.

use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use gapless_cli::commands::migrate::migrate;
use gapless_config::Secret;
use gapless_localnet::{Launch, Port, Settings};
use gapless_store::{Announced, Contract, IntakeOutcome, NewIntent, Store, Timeouts};
use serde_json::Value;
use sqlx::postgres::{PgPool, PgPoolOptions};

use super::lifetimes::Lifetime;
use super::{Bed, Key, Lifetimes, Service, launched};
use crate::measure::{Meter, Monitor, Parties};

pub(crate) const CHAIN_ID: u64 = 31337;
/// Time limit of `gapless verify`, for a million rows.
const VERIFY_LIMIT: Duration = Duration::from_secs(600);
/// Rows per INSERT.
const GROUP: usize = 500;

#[derive(Debug)]
pub(crate) struct Run<'a> {
    bed: &'a Bed,
    name: String,
    database: String,
    settings: Settings,
    services: std::cell::Cell<u32>,
    pub(crate) db: PgPool,
    pub(crate) store: Store,
    pub(crate) monitor: Monitor,
}

impl<'a> Run<'a> {
    pub(super) async fn new(bed: &'a Bed, name: &str, database: String, chain_url: &str) -> Result<Run<'a>> {
        let url = bed.url(&database);
        let secret = Secret::new(url.as_str());
        migrate(&secret, Contract::Later).await?;
        let mut settings = Settings::default();
        settings.set("database.url", url.as_str());
        settings.set("confirmations.required", 1);
        settings.set("chain.bench.id", CHAIN_ID);
        settings.set("chain.bench.rpc.urls", vec![chain_url]);
        Ok(Run {
            bed,
            name: name.to_owned(),
            settings,
            services: std::cell::Cell::new(0),
            db: PgPoolOptions::new().max_connections(4).connect(&url).await?,
            store: Store::new(&secret, "gapless-bench", 8, Timeouts::default())?,
            monitor: bed.monitor(&database).await?,
            database,
        })
    }

    /// Sets a configuration key for processes that are started later.
    pub(crate) fn set(&mut self, key: &str, value: impl Into<Value>) {
        self.settings.set(key, value);
    }

    pub(crate) fn database(&self) -> &str {
        &self.database
    }

    pub(crate) fn url(&self) -> String {
        self.bed.url(&self.database)
    }

    /// Announces the submitters, as a worker does; optionally paused.
    pub(crate) async fn announce(&self, keys: &[Key], paused: bool) -> Result<()> {
        let announced = |key: &Key| Announced {
            key: key.submitter(),
            signer: "raw_key",
            shared: false,
            low_level: false,
        };
        self.store.announce(&keys.iter().map(announced).collect::<Vec<_>>()).await?;
        if paused {
            sqlx::query("UPDATE submitter SET status = 'PAUSED'").execute(&self.db).await?;
        }
        Ok(())
    }

    /// Resumes all submitters.
    pub(crate) async fn activate(&self) -> Result<()> {
        sqlx::query("UPDATE submitter SET status = 'ACTIVE'").execute(&self.db).await?;
        self.store.notify_work().await?;
        Ok(())
    }

    /// Queues `each` transactions per submitter, round-robin.
    pub(crate) async fn fill(&self, keys: &[Key], each: usize) -> Result<()> {
        let mut group = Vec::with_capacity(GROUP);
        for number in 0..each {
            for key in keys {
                group.push(NewIntent::new(key.submitter(), format!("f-{number}"), key.payload(), None));
                if group.len() == GROUP {
                    self.insert(std::mem::take(&mut group)).await?;
                }
            }
        }
        if !group.is_empty() {
            self.insert(group).await?;
        }
        sqlx::query("ANALYZE").execute(&self.db).await?;
        Ok(())
    }

    async fn insert(&self, group: Vec<NewIntent>) -> Result<()> {
        let outcomes = self.store.insert_group(&group).await?;
        match outcomes.iter().find(|outcome| !matches!(outcome, IntakeOutcome::Created(_))) {
            Some(other) => bail!("a row was not inserted: {other:?}"),
            None => Ok(()),
        }
    }

    fn next_name(&self, program: &str) -> String {
        let number = self.services.get();
        self.services.set(number + 1);
        format!("{}-{program}-{number}", self.name)
    }

    pub(crate) async fn start_api(&self) -> Result<Service> {
        let port = Port::claim()?;
        let mut settings = self.settings.clone();
        settings.set("api.bind", format!("127.0.0.1:{}", port.number()));
        // The queue limit is enforced as in production, but never reached.
        settings.set("api.queue_limit", 1_000_000_000_u64);
        let launch = self.launch("gapless-api", &settings)?;
        launched(launch, port, "the API is listening").await
    }

    pub(crate) async fn start_worker(&self, keys: &[Key]) -> Result<Service> {
        self.start_worker_named(keys, "").await
    }

    /// `worker_id` is its worker id; empty: generated.
    pub(crate) async fn start_worker_named(&self, keys: &[Key], worker_id: &str) -> Result<Service> {
        let port = Port::claim()?;
        let names: Vec<String> = (0..keys.len()).map(|index| format!("BENCH_KEY_{index}")).collect();
        let mut settings = self.settings.clone();
        settings.set("worker.metrics_bind", format!("127.0.0.1:{}", port.number()));
        settings.set("worker.id", worker_id);
        settings.set("signer.raw_key_env", names.clone());
        let mut launch = self.launch("gapless-worker", &settings)?;
        launch.env = names.into_iter().zip(keys.iter().map(Key::secret_hex)).collect();
        launched(launch, port, "worker started").await
    }

    fn launch(&self, program: &str, settings: &Settings) -> Result<Launch> {
        let name = self.next_name(program);
        let dir = self.bed.dir();
        let config = settings.write(&dir.join(format!("{name}.toml")))?;
        let config = config.to_str().context("the path of the configuration is not UTF-8")?.to_owned();
        let log = dir.join(format!("{name}.log"));
        Ok(Launch::new(name, self.bed.program(program), log).args(["--config".to_owned(), config]))
    }

    pub(crate) async fn meter(&self, api: &[&Service], worker: &[&Service]) -> Result<Meter> {
        let pids = |services: &[&Service]| services.iter().map(|service| service.pid()).collect();
        let parties = Parties { api: pids(api), worker: pids(worker), postgres: self.bed.postgres_pid() };
        Meter::begin(&self.monitor, parties).await
    }

    /// Waits until nothing is queued or open. Two queries on partial indexes, independent of finished rows; the
    /// second, which has to skip recently dequeued entries, runs only after the first has found nothing.
    pub(crate) async fn wait_settled(&self, limit: Duration) -> Result<()> {
        let deadline = Instant::now() + limit;
        loop {
            let busy: bool = sqlx::query_scalar(
                "SELECT EXISTS (SELECT 1 FROM submitter_nonce_cursor WHERE has_open)
                     OR EXISTS (SELECT 1 FROM managed_tx WHERE queued)",
            )
            .fetch_one(&self.db)
            .await?;
            if !busy {
                return Ok(());
            }
            if Instant::now() > deadline {
                bail!("{}: there is still work to do after {limit:?}", self.name);
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Lifetimes of all confirmed transactions, which must be at least `count`.
    pub(crate) async fn lifetimes(&self, count: usize) -> Result<Lifetimes> {
        let rows: Vec<(f64, f64, f64)> = sqlx::query_as(
            "SELECT extract(epoch FROM created_at)::FLOAT8, extract(epoch FROM prepared_at)::FLOAT8,
                    extract(epoch FROM confirmed_at)::FLOAT8
             FROM managed_tx
             WHERE state = 'CONFIRMED' AND chain_id = $1",
        )
        .bind(i64::try_from(CHAIN_ID)?)
        .fetch_all(&self.db)
        .await?;
        if rows.len() < count {
            bail!("{}: {} of {count} transactions are CONFIRMED", self.name, rows.len());
        }
        let lifetime = |(created, prepared, confirmed)| Lifetime { created, prepared, confirmed };
        Ok(Lifetimes::new(rows.into_iter().map(lifetime).collect()))
    }

    /// The database's clock, in seconds.
    pub(crate) async fn now(&self) -> Result<f64> {
        let now = sqlx::query_scalar("SELECT extract(epoch FROM clock_timestamp())::FLOAT8");
        Ok(now.fetch_one(&self.db).await?)
    }

    /// Runs the audit with the CLI. A run that does not pass has no figures.
    async fn verify(&self) -> Result<()> {
        let config = self.settings.write(&self.bed.dir().join(format!("{}-verify.toml", self.name)))?;
        let mut command = tokio::process::Command::new(self.bed.program("gapless"));
        command.arg("--config").arg(config).arg("verify").stdin(Stdio::null()).kill_on_drop(true);
        let output = tokio::time::timeout(VERIFY_LIMIT, command.output()).await;
        let output = output.context("gapless verify timed out")?.context("gapless verify")?;
        if !output.status.success() {
            let (out, err) =
                (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
            bail!("{}: gapless verify failed:\n{out}{err}", self.name);
        }
        Ok(())
    }

    /// Ends a run: runs the audit, for which the chain must still exist, and drops the database.
    pub(crate) async fn finish(self) -> Result<()> {
        self.verify().await?;
        self.store.close().await;
        self.db.close().await;
        self.monitor.drop_database(&self.database).await
    }
}
