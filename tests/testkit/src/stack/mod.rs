//! A complete Gapless deployment: database, chains, keys, and the API and worker processes that the test starts.
//!
//! Every test ends with `finish`, which runs the audit; dropping a stack without it fails the test.

mod audit;
mod builder;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use gapless_config::Config;
use gapless_domain::{H256, TxId, TxState};
use gapless_localnet::{Postgres, Settings};
use nix::sys::signal::Signal;
use parking_lot::{Mutex as StdMutex, MutexGuard};
use serde_json::Value;
use sqlx::PgPool;
use tempfile::TempDir;
use tokio::sync::Mutex;

pub use self::audit::{AuditResult, CliOutput};
pub use self::builder::{StackBuilder, new_webhook_key};
use crate::client::{Answer, Client};
use crate::eventually::{LIMIT, eventually, eventually_within};
use crate::node::Node;
use crate::proxy::Proxy;
use crate::rows::{self, AttemptRow, CursorRow, LeaseRow, TxRow};
use crate::servers;
use crate::service::{Part, Service, ServiceBuilder};
use crate::submitter::Submitter;

/// Log lines of each process that a failing test prints.
const TAIL: usize = 40;
/// Interval at which waits call `Node::free_stranded`.
const NODE_EVERY: Duration = Duration::from_secs(5);

#[derive(Debug)]
enum Database {
    Shared,
    Own(Box<Mutex<Postgres>>),
    /// Provided by the test.
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
    /// All started processes, including exited ones: their logs are checked for panics.
    services: StdMutex<Vec<Service>>,
    /// Transactions accepted with 202: none may be lost.
    accepted: StdMutex<Vec<TxId>>,
    finished: bool,
    /// `None` once it is retained.
    dir: Option<TempDir>,
}

fn locked<T>(mutex: &StdMutex<T>) -> MutexGuard<'_, T> {
    mutex.lock()
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

    /// Direct database access, to read and to tamper with rows.
    pub fn db(&self) -> &PgPool {
        &self.db
    }

    /// URL with the owner's role.
    pub fn database_url(&self) -> &str {
        self.settings.text("database.url").expect("set when the database was made")
    }

    /// URL with this role.
    pub fn database_url_as(&self, role: &str) -> String {
        format!("{}?options[role]={role}", self.database_url())
    }

    /// Directory of configuration files and logs.
    pub fn dir(&self) -> &Path {
        self.dir.as_ref().expect("the stack is up").path()
    }

    pub fn program(&self) -> &Path {
        &self.program
    }

    pub fn audit_config(&self) -> &Path {
        &self.audit_config
    }

    /// The configuration as a process of this stack reads it.
    pub fn config(&self) -> Config {
        let file = self.settings.write(&self.dir().join("read-by-a-test.toml")).unwrap();
        Config::load(Some(&file)).unwrap()
    }

    pub(crate) fn settings(&self) -> &Settings {
        &self.settings
    }

    /// NAME of `[chain.NAME]`.
    pub(crate) fn chain_name(index: usize) -> String {
        format!("c{index}")
    }

    pub fn key_name(index: usize) -> String {
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

    /// A worker with its own settings, environment or failpoint.
    pub fn worker(&self) -> ServiceBuilder<'_> {
        ServiceBuilder::new(self, Part::Worker)
    }

    /// The worker of the example `custom_worker`, with custom adapters.
    pub fn custom_worker(&self) -> ServiceBuilder<'_> {
        ServiceBuilder::new(self, Part::CustomWorker)
    }

    pub fn api(&self) -> ServiceBuilder<'_> {
        ServiceBuilder::new(self, Part::Api)
    }

    pub(crate) fn next_name(&self, kind: &str) -> String {
        format!("{kind}-{}", locked(&self.services).iter().filter(|s| s.name().starts_with(kind)).count())
    }

    pub(crate) fn adopt(&self, service: Service) {
        locked(&self.services).push(service);
    }

    /// In start order, including exited ones.
    pub fn services(&self) -> Vec<Service> {
        locked(&self.services).clone()
    }

    /// Running workers.
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

    /// Creates another database on the same server, without a schema. Returns its URL.
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

    /// Like `pg_ctl restart -m immediate`: sessions are aborted without a checkpoint, and the server recovers from
    /// WAL.
    pub async fn restart_postgres_immediately(&self) {
        let mut server = self.own_postgres().lock().await;
        server.process().signal(Signal::SIGQUIT).expect("PostgreSQL can be signalled");
        let ended = server.process().wait(LIMIT).await.expect("PostgreSQL can be asked");
        assert!(ended.is_some(), "PostgreSQL did not exit");
        server.restart().await.expect("PostgreSQL starts again");
    }

    /// The database's time plus this interval, in RFC 3339.
    pub async fn database_time_in(&self, interval: &str) -> String {
        sqlx::query_scalar(
            "SELECT to_char((clock_timestamp() + $1::TEXT::INTERVAL) AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.MS\"Z\"')",
        )
        .bind(interval)
        .fetch_one(self.db())
        .await
        .expect("the database answers")
    }

    /// The SQLSTATE of a statement that must fail.
    pub async fn refusal(&self, statement: &'static str) -> String {
        let error = sqlx::query(statement).execute(self.db()).await.expect_err(statement);
        let refused = error.as_database_error().unwrap_or_else(|| panic!("{statement}: {error}"));
        refused.code().unwrap_or_default().into_owned()
    }

    /// Waits until no worker has an idle open transaction: a worker that awaits a response inside one would keep it
    /// open.
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

    /// Waits until this client sees all submitters announced.
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
        self.record_accepted(&answer);
        answer
    }

    /// Records a 202 response, so that `finish` can check that the transaction is not lost.
    pub fn record_accepted(&self, answer: &Answer) {
        if answer.status == 202 {
            locked(&self.accepted).push(answer.tx_id().parse().expect("txId is a UUID"));
        }
    }

    /// Posts a request that must be accepted with 202.
    pub async fn create(&self, submitter: &Submitter, request_id: &str, payload: &Value) -> TxId {
        let answer = self.post(submitter, request_id, payload).await;
        assert_eq!(answer.status, 202, "{request_id}: {}", answer.body);
        answer.tx_id().parse().expect("txId is a UUID")
    }

    /// The transaction from the API.
    pub async fn get(&self, tx_id: TxId) -> Value {
        let answer = self.client().get(&format!("/api/v1/tx/{tx_id}")).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        answer.body
    }

    pub async fn submitter_action(&self, submitter: &Submitter, action: &str, reason: &str) -> Answer {
        self.client().submitter_action(submitter, action, reason).await
    }
}

/// Rows of the database.
impl Stack {
    pub async fn row(&self, tx_id: TxId) -> TxRow {
        rows::transaction(&self.db, tx_id).await.expect("the row")
    }

    /// All rows of a submitter, in the order of acceptance.
    pub async fn rows(&self, submitter: &Submitter) -> Vec<TxRow> {
        rows::transactions(&self.db, submitter).await.expect("the rows")
    }

    pub async fn attempts(&self, tx_id: TxId) -> Vec<AttemptRow> {
        rows::attempts(&self.db, tx_id).await.expect("the attempts")
    }

    /// Lease on the first chain; `None` before the first claim.
    pub async fn lease(&self, submitter: &Submitter) -> Option<LeaseRow> {
        rows::lease(&self.db, submitter).await.expect("the lease")
    }

    /// Cursor on the first chain; `None` before the first nonce.
    pub async fn cursor(&self, submitter: &Submitter) -> Option<CursorRow> {
        rows::cursor(&self.db, submitter).await.expect("the cursor")
    }

    /// Runs a statement, to tamper with data. Returns the number of changed rows.
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
    /// Waits until the intent is in `state`; panics at once if it ends in another terminal state.
    pub async fn wait_for(&self, tx_id: TxId, state: TxState) -> TxRow {
        self.wait_for_within(LIMIT, tx_id, state).await
    }

    pub async fn wait_for_within(&self, limit: Duration, tx_id: TxId, state: TxState) -> TxRow {
        let mut looked = Instant::now();
        eventually_within(limit, &format!("{tx_id} is {state}"), async || {
            self.free_stranded(&mut looked).await;
            // Database errors are retried until the limit.
            let row = rows::transaction(&self.db, tx_id).await.map_err(|error| error.to_string())?;
            if row.state == state {
                return Ok(row);
            }
            assert!(!row.state.is_terminal(), "{tx_id} should become {state}, but ended: {row:?}");
            Err(format!("{row:?}"))
        })
        .await
    }

    /// Works around stranded transactions in anvil (`Node::free_stranded`), at most every `NODE_EVERY`.
    async fn free_stranded(&self, looked: &mut Instant) {
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

    /// Waits until all transactions are final.
    pub async fn wait_all_terminal(&self) {
        self.wait_all_terminal_within(LIMIT).await;
    }

    pub async fn wait_all_terminal_within(&self, limit: Duration) {
        let mut looked = Instant::now();
        eventually_within(limit, "every transaction is final", async || {
            self.free_stranded(&mut looked).await;
            match rows::unfinished(&self.db).await {
                Ok(left) if left.is_empty() => Ok(()),
                Ok(left) => Err(format!("{} unfinished: {:?}", left.len(), &left[..left.len().min(10)])),
                Err(error) => Err(error.to_string()),
            }
        })
        .await;
    }

    /// Waits until an intent has `count` attempts.
    pub async fn wait_attempts(&self, tx_id: TxId, count: usize) -> Vec<AttemptRow> {
        eventually(&format!("{tx_id} has {count} attempts"), async || {
            let attempts = self.attempts(tx_id).await;
            if attempts.len() >= count { Ok(attempts) } else { Err(attempts) }
        })
        .await
    }

    /// Waits until the node has a transaction.
    pub async fn wait_pooled(&self, hash: H256) {
        eventually(&format!("the node has {hash:?}"), async || {
            let found = self.anvil().rpc("eth_getTransactionByHash", serde_json::json!([hash])).await;
            if found.is_null() { Err("not found") } else { Ok(()) }
        })
        .await;
    }

    /// Waits until the submitter is in PROTECT. Returns the reason.
    pub async fn wait_protected(&self, submitter: &Submitter) -> String {
        eventually(&format!("{} is in PROTECT", submitter.text()), async || {
            let cursor = self.cursor(submitter).await;
            cursor.as_ref().and_then(|cursor| cursor.protect_reason.clone()).ok_or(cursor)
        })
        .await
    }

    /// Waits until `count` transactions are pending on the first chain.
    pub async fn wait_pending(&self, count: u64) {
        eventually(&format!("{count} transactions are in the mempool"), async || {
            let pending = self.anvil().pending().await;
            if pending == count { Ok(()) } else { Err(pending) }
        })
        .await;
    }

    /// Names of the logged events of an intent (`events.mode = log`), by process, oldest first.
    pub fn logged_events(&self, tx_id: TxId) -> Vec<String> {
        let events = self.services().into_iter().flat_map(|service| service.events());
        let ours = events.filter(|event| event["tx.id"] == tx_id.to_string());
        ours.filter_map(|event| event["event"].as_str().map(str::to_owned)).collect()
    }

    /// Waits until `event` of the intent is logged, which happens after the commit and therefore after the row shows
    /// it.
    pub async fn wait_for_event(&self, tx_id: TxId, event: &str) -> Vec<String> {
        eventually(&format!("{event} of {tx_id} is logged"), async || {
            let logged = self.logged_events(tx_id);
            if logged.iter().any(|name| name == event) { Ok(logged) } else { Err(logged) }
        })
        .await
    }

    /// Waits until a worker other than `not` owns the submitter.
    pub async fn wait_owned(&self, submitter: &Submitter, not: Option<&str>) -> LeaseRow {
        eventually(&format!("{} is owned", submitter.text()), async || {
            let lease = self.lease(submitter).await;
            let owner = lease.as_ref().and_then(|lease| lease.owner.clone());
            if owner.is_some() && owner.as_deref() != not { lease.ok_or(None) } else { Err(lease) }
        })
        .await
    }
}
