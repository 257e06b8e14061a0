//! A whole Gapless: database, chains, keys, and whatever API and worker processes the test starts.
//!
//! Every test ends with `finish`, which runs the audit; a stack that is dropped without it fails the test.

mod builder;
mod verdict;

use std::path::{Path, PathBuf};
use std::sync::{Mutex as StdMutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use gapless::config::Config;
use gapless::domain::{H256, TxId, TxState};
use gapless_cli::localnet::{Postgres, Settings};
use nix::sys::signal::Signal;
use serde_json::Value;
use sqlx::PgPool;
use tempfile::TempDir;
use tokio::sync::Mutex;

pub use self::builder::StackBuilder;
pub use self::verdict::{CliOutput, Verdict};
use crate::client::{Answer, Client};
use crate::eventually::{LIMIT, eventually, eventually_within};
use crate::node::Node;
use crate::proxy::Proxy;
use crate::rows::{self, AttemptRow, CursorRow, LeaseRow, TxRow};
use crate::servers;
use crate::service::{Part, Service, ServiceBuilder};
use crate::submitter::Submitter;

/// Lines of each log that a failing test shows.
const TAIL: usize = 40;
/// How often those who wait look whether the node has stranded something.
const NODE_EVERY: Duration = Duration::from_secs(5);

#[derive(Debug)]
enum Database {
    Shared,
    Own(Box<Mutex<Postgres>>),
    /// The test has it.
    Given,
}

#[derive(Debug)]
pub struct Stack {
    program: PathBuf,
    settings: Settings,
    audit_config: PathBuf,
    nodes: Vec<Node>,
    proxy: Option<Proxy>,
    submitters: Vec<Submitter>,
    db: PgPool,
    database: Database,
    /// Every process that was started, ended ones included: their logs are part of the verdict.
    services: StdMutex<Vec<Service>>,
    /// What was answered with 202: none of it may be lost.
    accepted: StdMutex<Vec<TxId>>,
    finished: bool,
    /// `None` once it is to be kept.
    dir: Option<TempDir>,
}

fn locked<T>(mutex: &StdMutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The parts.
impl Stack {
    /// The first chain.
    pub fn anvil(&self) -> &Node {
        &self.nodes[0]
    }

    pub fn chain(&self, index: usize) -> &Node {
        &self.nodes[index]
    }

    pub fn proxy(&self) -> &Proxy {
        self.proxy.as_ref().expect("the stack was built with proxied()")
    }

    pub fn submitter(&self, index: usize) -> &Submitter {
        &self.submitters[index]
    }

    pub fn submitters(&self) -> &[Submitter] {
        &self.submitters
    }

    /// The database itself, to look at rows and to tamper with them.
    pub fn db(&self) -> &PgPool {
        &self.db
    }

    /// For a `Store` of the test's own.
    pub fn database_url(&self) -> &str {
        self.settings.text("database.url").expect("set when the database was made")
    }

    /// The same, with the rights of this role.
    pub fn database_url_as(&self, role: &str) -> String {
        format!("{}?options[role]={role}", self.database_url())
    }

    /// Directory of configuration files and logs.
    pub fn dir(&self) -> &Path {
        self.dir.as_ref().expect("the stack is up").path()
    }

    pub(crate) fn program(&self) -> &Path {
        &self.program
    }

    pub(crate) fn audit_config(&self) -> &Path {
        &self.audit_config
    }

    /// As a program of this stack reads it.
    pub fn config(&self) -> Config {
        let file = self.settings.write(&self.dir().join("read-by-a-test.toml")).unwrap();
        Config::load(Some(&file)).unwrap()
    }

    pub(crate) fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Of `[chain.NAME]`.
    pub(crate) fn chain_name(index: usize) -> String {
        format!("c{index}")
    }

    pub(crate) fn key_name(index: usize) -> String {
        format!("GAPLESS_TEST_KEY_{index}")
    }

    pub(crate) fn key_env(&self) -> Vec<(String, String)> {
        let keys = self.submitters.iter().enumerate();
        keys.map(|(index, submitter)| (Stack::key_name(index), submitter.key_hex())).collect()
    }
}

/// Processes.
impl Stack {
    pub async fn start_worker(&self) -> Service {
        self.worker().start().await
    }

    pub async fn start_api(&self) -> Service {
        self.api().start().await
    }

    /// A worker with settings, environment or a failpoint of its own.
    pub fn worker(&self) -> ServiceBuilder<'_> {
        ServiceBuilder::new(self, Part::Worker)
    }

    /// The worker of the example `custom_worker`: what the chain's `adapters` may name.
    pub fn custom_worker(&self) -> ServiceBuilder<'_> {
        ServiceBuilder::new(self, Part::CustomWorker)
    }

    pub fn api(&self) -> ServiceBuilder<'_> {
        ServiceBuilder::new(self, Part::Api)
    }

    pub(crate) fn next_name(&self, word: &str) -> String {
        format!("{word}-{}", locked(&self.services).iter().filter(|s| s.name().starts_with(word)).count())
    }

    pub(crate) fn adopt(&self, service: Service) {
        locked(&self.services).push(service);
    }

    /// In the order they were started, ended ones included.
    pub fn services(&self) -> Vec<Service> {
        locked(&self.services).clone()
    }

    /// Those that run.
    pub fn workers(&self) -> Vec<Service> {
        self.services().into_iter().filter(|service| !service.is_api() && service.is_running()).collect()
    }

    fn own_postgres(&self) -> &Mutex<Postgres> {
        match &self.database {
            Database::Own(server) => server,
            Database::Shared | Database::Given => panic!("the stack was not built with own_postgres()"),
        }
    }

    pub async fn kill_postgres(&self) {
        self.own_postgres().lock().await.kill9();
    }

    /// Another database on the same server, without a schema. Answers its URL.
    pub async fn empty_database(&self) -> String {
        match &self.database {
            Database::Own(server) => servers::create_database(&*server.lock().await).await,
            Database::Shared | Database::Given => {
                servers::create_database(servers::shared_postgres().await).await
            }
        }
    }

    pub async fn restart_postgres(&self) {
        self.own_postgres().lock().await.restart().await.expect("PostgreSQL starts again");
    }

    /// As by `pg_ctl restart -m immediate`: sessions end at once, nothing is written, and it recovers from its log.
    pub async fn restart_postgres_immediately(&self) {
        let mut server = self.own_postgres().lock().await;
        server.process().signal(Signal::SIGQUIT).expect("PostgreSQL can be signalled");
        let ended = server.process().wait(LIMIT).await.expect("PostgreSQL can be asked");
        assert!(ended.is_some(), "PostgreSQL did not end");
        server.restart().await.expect("PostgreSQL starts again");
    }

    /// The database's time after this interval, as clients write it.
    pub async fn database_time_in(&self, interval: &str) -> String {
        sqlx::query_scalar(
            "SELECT to_char((clock_timestamp() + $1::TEXT::INTERVAL) AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.MS\"Z\"')",
        )
        .bind(interval)
        .fetch_one(self.db())
        .await
        .expect("the database answers")
    }

    /// The SQLSTATE with which the database refuses a statement.
    pub async fn refusal(&self, statement: &'static str) -> String {
        let error = sqlx::query(statement).execute(self.db()).await.expect_err(statement);
        let refused = error.as_database_error().unwrap_or_else(|| panic!("{statement}: {error}"));
        refused.code().unwrap_or_default().into_owned()
    }

    /// Until no transaction of a worker is open: one in which somebody's answer is waited for would stay.
    pub async fn wait_no_open_transaction(&self) {
        eventually("no transaction of a worker is open", async || {
            let open: i64 = sqlx::query_scalar(
                "SELECT count(*) FROM pg_stat_activity
                 WHERE datname = current_database() AND application_name LIKE 'gapless-worker%'
                   AND state LIKE 'idle in%'",
            )
            .fetch_one(self.db())
            .await
            .expect("the database answers");
            if open == 0 { Ok(()) } else { Err(open) }
        })
        .await;
    }
}

/// Requests, through the first API that runs.
impl Stack {
    pub fn client(&self) -> Client {
        let services = self.services();
        let api = services.iter().find(|service| service.is_api() && service.is_running());
        api.expect("an API runs").client()
    }

    /// Until the workers have announced every submitter, as this client sees it.
    pub async fn wait_announced(&self, client: &Client) {
        eventually("the submitters are announced", async || {
            let page = client.get("/api/v1/submitters?limit=200").await;
            let known = page.body["items"].as_array().map_or(0, Vec::len);
            if known == self.submitters.len() { Ok(()) } else { Err(page) }
        })
        .await;
    }

    pub async fn post(&self, submitter: &Submitter, request_id: &str, payload: &Value) -> Answer {
        let answer = self.client().post(submitter, request_id, payload).await;
        self.note(&answer);
        answer
    }

    /// Remembers what an answer promised, so that `finish` can hold the database to it.
    pub fn note(&self, answer: &Answer) {
        if answer.status == 202 {
            locked(&self.accepted).push(answer.tx_id().parse().expect("txId is a UUID"));
        }
    }

    /// Posts what must be accepted as new.
    pub async fn create(&self, submitter: &Submitter, request_id: &str, payload: &Value) -> TxId {
        let answer = self.post(submitter, request_id, payload).await;
        assert_eq!(answer.status, 202, "{request_id}: {}", answer.body);
        answer.tx_id().parse().expect("txId is a UUID")
    }

    /// The transaction as a client sees it.
    pub async fn get(&self, tx_id: TxId) -> Value {
        let answer = self.client().get(&format!("/api/v1/tx/{tx_id}")).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        answer.body
    }

    pub async fn operate(&self, submitter: &Submitter, action: &str, reason: &str) -> Answer {
        self.client().operate(submitter, action, reason).await
    }
}

/// Rows, straight from the database.
impl Stack {
    pub async fn row(&self, tx_id: TxId) -> TxRow {
        rows::transaction(&self.db, tx_id).await.expect("the row")
    }

    /// All of a submitter, in the order they were accepted.
    pub async fn rows(&self, submitter: &Submitter) -> Vec<TxRow> {
        rows::transactions(&self.db, submitter).await.expect("the rows")
    }

    pub async fn attempts(&self, tx_id: TxId) -> Vec<AttemptRow> {
        rows::attempts(&self.db, tx_id).await.expect("the attempts")
    }

    /// On the first chain; `None` before the first claim.
    pub async fn lease(&self, submitter: &Submitter) -> Option<LeaseRow> {
        rows::lease(&self.db, submitter).await.expect("the lease")
    }

    /// On the first chain; `None` before the first nonce.
    pub async fn cursor(&self, submitter: &Submitter) -> Option<CursorRow> {
        rows::cursor(&self.db, submitter).await.expect("the cursor")
    }

    /// Runs a statement, for tests that tamper. Answers how many rows it changed.
    pub async fn sql(&self, statement: &'static str) -> u64 {
        sqlx::query(statement)
            .execute(&self.db)
            .await
            .unwrap_or_else(|e| panic!("{statement}: {e}"))
            .rows_affected()
    }
}

/// Waiting.
impl Stack {
    /// Until the intent is in `state`; a terminal state that is not the one waited for fails at once.
    pub async fn wait_for(&self, tx_id: TxId, state: TxState) -> TxRow {
        self.wait_for_within(LIMIT, tx_id, state).await
    }

    pub async fn wait_for_within(&self, limit: Duration, tx_id: TxId, state: TxState) -> TxRow {
        let mut looked = Instant::now();
        eventually_within(limit, &format!("{tx_id} is {state}"), async || {
            self.look_after_node(&mut looked).await;
            // A database that is away is waited for like everything else.
            let row = rows::transaction(&self.db, tx_id).await.map_err(|error| error.to_string())?;
            if row.state == state {
                return Ok(row);
            }
            assert!(!row.state.is_terminal(), "{tx_id} should become {state} and ended: {row:?}");
            Err(format!("{row:?}"))
        })
        .await
    }

    /// What a fault of the node's own keeps back is no fault of ours: after a while it is sent again.
    async fn look_after_node(&self, looked: &mut Instant) {
        if looked.elapsed() < NODE_EVERY {
            return;
        }
        *looked = Instant::now();
        for node in &self.nodes {
            node.free_stranded().await;
        }
    }

    pub async fn wait_confirmed(&self, tx_ids: &[TxId]) {
        for tx_id in tx_ids {
            self.wait_for(*tx_id, TxState::Confirmed).await;
        }
    }

    /// Until nothing is left to do.
    pub async fn wait_all_terminal(&self) {
        self.wait_all_terminal_within(LIMIT).await;
    }

    pub async fn wait_all_terminal_within(&self, limit: Duration) {
        let mut looked = Instant::now();
        eventually_within(limit, "every transaction is final", async || {
            self.look_after_node(&mut looked).await;
            match rows::unfinished(&self.db).await {
                Ok(left) if left.is_empty() => Ok(()),
                Ok(left) => Err(format!("{} unfinished: {:?}", left.len(), &left[..left.len().min(10)])),
                Err(error) => Err(error.to_string()),
            }
        })
        .await;
    }

    /// Waits until an intent has so many attempts.
    pub async fn wait_attempts(&self, tx_id: TxId, count: usize) -> Vec<AttemptRow> {
        eventually(&format!("{tx_id} has {count} attempts"), async || {
            let attempts = self.attempts(tx_id).await;
            if attempts.len() >= count { Ok(attempts) } else { Err(attempts) }
        })
        .await
    }

    /// Waits until the node knows a transaction.
    pub async fn wait_pooled(&self, hash: H256) {
        eventually(&format!("the node has {hash:?}"), async || {
            let found = self.anvil().rpc("eth_getTransactionByHash", serde_json::json!([hash])).await;
            if found.is_null() { Err("unknown to it") } else { Ok(()) }
        })
        .await;
    }

    /// Until the submitter has stopped; answers its reason.
    pub async fn wait_protected(&self, submitter: &Submitter) -> String {
        eventually(&format!("{} is in PROTECT", submitter.text()), async || {
            let cursor = self.cursor(submitter).await;
            cursor.as_ref().and_then(|cursor| cursor.protect_reason.clone()).ok_or(cursor)
        })
        .await
    }

    /// Until so many transactions wait in the mempool of the first chain.
    pub async fn wait_pending(&self, count: u64) {
        eventually(&format!("{count} transactions are in the mempool"), async || {
            let pending = self.anvil().pending().await;
            if pending == count { Ok(()) } else { Err(pending) }
        })
        .await;
    }

    /// Names of the events told of an intent (`events.mode = log`), process by process, oldest first.
    pub fn told(&self, tx_id: TxId) -> Vec<String> {
        let events = self.services().into_iter().flat_map(|service| service.events());
        let ours = events.filter(|event| event["tx.id"] == tx_id.to_string());
        ours.filter_map(|event| event["event"].as_str().map(str::to_owned)).collect()
    }

    /// Until `event` was told of the intent: that is after the commit, and so a little after the row shows it.
    pub async fn wait_told(&self, tx_id: TxId, event: &str) -> Vec<String> {
        eventually(&format!("{event} is told of {tx_id}"), async || {
            let told = self.told(tx_id);
            if told.iter().any(|name| name == event) { Ok(told) } else { Err(told) }
        })
        .await
    }

    /// Until a worker other than `not` holds the submitter.
    pub async fn wait_owned(&self, submitter: &Submitter, not: Option<&str>) -> LeaseRow {
        eventually(&format!("{} is owned", submitter.text()), async || {
            let lease = self.lease(submitter).await;
            let owner = lease.as_ref().and_then(|lease| lease.owner.clone());
            if owner.is_some() && owner.as_deref() != not { lease.ok_or(None) } else { Err(lease) }
        })
        .await
    }
}
