//! A deterministic simulation: the product's lanes, writer, reader, watcher and SQL on a real PostgreSQL, with an
//! in-memory chain and a paused clock that only the history advances.
//!
//! The seed determines everything: requests, steps of two workers, where in a step one stops, fails or crashes,
//! takeovers, blocks, reorgs, evictions, lost responses, a lagging node. Then all faults end, and every intent must
//! become final correctly. Histories are independent: each has its own chain id in one database.
//!
//! It keeps the SQL, although that is slow, and replaces the connections to nodes; the end-to-end tests use real
//! nodes.
//!
//! It panics on errors of its own, so that the test fails.
#![allow(clippy::unwrap_used)]

mod call_boundary;
mod checker;
mod clock;
mod history;
mod ledger;
mod log;
mod ports;
mod process;
mod rng;

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use gapless_config::{ChainConfig, Config, Secret};
use gapless_store::notifier::Notifier;
use gapless_store::{Channel, Contract, Store, Timeouts};
use gapless_testkit::servers;
use sqlx::postgres::PgPoolOptions;

use history::{History, ThreadContext};
use log::Log;

/// An intentional defect, for the negative controls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sabotage {
    Nothing,
    /// A signed transaction is sent before it is recorded.
    SendBeforeCommit,
    /// A takeover does not change the lease id, so the fence does not stop the previous owner; the guards are dropped.
    NoFence,
    /// A reserving client's answer is accepted, but the row records that it gave up.
    LostAnswers,
    /// Externally consumed nonces are skipped without being recorded.
    UnrecordedExternal,
    /// The worker lacks the submitter's policy.
    NoPolicy,
    /// Every estimate reverts, at every block.
    FalseReverts,
    /// Blocks show our transactions as external ones, with a valid signature.
    ForgedExternal,
    /// A backend shows a fork that is deeper than finality.
    DeepFork,
}

/// A history that failed.
#[derive(Clone, Debug)]
pub struct Failure {
    pub seed: u64,
    pub problems: Vec<String>,
    pub history: Vec<String>,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "seed {}:", self.seed)?;
        self.history.iter().try_for_each(|line| writeln!(f, "{line}"))?;
        self.problems.iter().try_for_each(|problem| writeln!(f, "=> {problem}"))?;
        write!(f, "to repeat: GAPLESS_SIM_SEED={} cargo test -p gapless-tests --test simulation", self.seed)
    }
}

/// Texts that must occur in the log of some history; otherwise that case is not covered.
pub const MARKS: [&str; 24] = [
    "Unsigned: Taken",
    "Signed: Taken",
    "): Taken",
    ": TooLate",
    "is gone",
    "ends as CANCELLED (cancelled)",
    "ends as CANCELLED (deadline_passed)",
    "ends as FAILED (handler_failed)",
    "ends as FAILED (nonce_taken)",
    "ends as FAILED (would_revert)",
    "ends as FAILED (call_not_allowed)",
    "ends as FAILED (value_cap_exceeded)",
    "ends as FAILED (day_cap_exceeded)",
    "consumed outside, as STEPPED_OVER",
    "consumed outside, as DISPLACED",
    "adopt with Right: adopted",
    "adopt with WrongBlock: ",
    "adopt with OurOwn: ",
    "release with no transaction: released",
    "of the other backend",
    "the other backend: Some(EmptyFork(",
    "the other backend: Some(FullFork(",
    "estimates: Refused",
    "estimates: Unwilling",
];

/// Result of a set of histories.
#[derive(Clone, Debug, Default)]
pub struct Ran {
    pub histories: u64,
    /// The first failure.
    pub failure: Option<Failure>,
    /// Number of histories with each of `MARKS`.
    pub marks: BTreeMap<&'static str, u64>,
}

/// A database for histories.
#[derive(Debug)]
pub struct Simulation {
    url: String,
    config: ChainConfig,
    sabotage: Sabotage,
}

impl Simulation {
    pub fn start(sabotage: Sabotage) -> Simulation {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let url = runtime.block_on(async {
            let server = servers::shared_postgres().await;
            let url = servers::create_database(server).await;
            prepare(&url, sabotage).await;
            url
        });
        Simulation { url, config: chain_config(), sabotage }
    }

    /// Runs these seeds on several threads. Stops at the first failure, and starts none after `limit`.
    pub fn run(&self, seeds: std::ops::Range<u64>, threads: usize, limit: Duration) -> Ran {
        let (next, stop) = (AtomicU64::new(seeds.start), AtomicBool::new(false));
        let (ran, begun) = (Mutex::new(Ran::default()), std::time::Instant::now());
        let watchdog: Vec<Watchdog> = (0..threads).map(|_| Watchdog::default()).collect();
        std::thread::scope(|scope| {
            let running: Vec<_> = watchdog
                .iter()
                .enumerate()
                .map(|(thread, watchdog)| {
                    let (next, stop, seeds, ran) = (&next, &stop, &seeds, &ran);
                    scope.spawn(move || {
                        self.with_paused_clock(thread, async |context| {
                            while !stop.load(Ordering::Relaxed) && begun.elapsed() < limit {
                                let seed = next.fetch_add(1, Ordering::Relaxed);
                                if seed >= seeds.end {
                                    return;
                                }
                                let (history, problems) = one(context, seed, watchdog).await;
                                let mut ran = ran.lock().unwrap();
                                ran.histories += 1;
                                for mark in MARKS {
                                    let is_there = history.iter().any(|line| line.contains(mark));
                                    *ran.marks.entry(mark).or_default() += u64::from(is_there);
                                }
                                if !problems.is_empty() {
                                    stop.store(true, Ordering::Relaxed);
                                    ran.failure.get_or_insert(Failure { seed, problems, history });
                                }
                            }
                        });
                    })
                })
                .collect();
            while running.iter().any(|thread| !thread.is_finished()) {
                watchdog.iter().for_each(Watchdog::check);
                std::thread::sleep(Duration::from_millis(100));
            }
        });
        ran.into_inner().unwrap()
    }

    /// Ten minutes in which the node rejects calls of one kind (`*`: all) with a temporary error. Returns the
    /// violations.
    pub fn ten_minutes_of_outage(&self, seed: u64, with: &'static str) -> Vec<String> {
        let found = Mutex::new(Vec::new());
        self.with_paused_clock(0, async |context| {
            let mut history = History::begin_plain(context, seed, false).await;
            let mut problems = history.outage(with).await;
            if !history.drain().await {
                problems.push("not everything is final".to_owned());
            }
            problems.extend(checker::problems(&history).await);
            problems.extend(history.unconfirmed().await);
            if !problems.is_empty() {
                problems.extend(history.log.lines());
            }
            *found.lock().unwrap() = problems;
        });
        found.into_inner().unwrap()
    }

    /// An external transaction consumes the first of three open nonces; the others become final before the worker
    /// polls. Returns the violations.
    pub fn first_of_a_window_is_taken(&self) -> Vec<String> {
        self.script(false, async |history| history.lose_the_first_of_three().await)
    }

    /// A reorg removes an external transaction from before the first use of a shared key. Returns the violations.
    pub fn others_are_reorged_away_before_the_first_use(&self) -> Vec<String> {
        self.script(true, async |history| history.lose_what_others_did_before().await)
    }

    fn script(&self, is_shared: bool, run: impl AsyncFnOnce(&mut History<'_>)) -> Vec<String> {
        let found = Mutex::new(Vec::new());
        self.with_paused_clock(0, async |context| {
            let mut history = History::begin_plain(context, 0, is_shared).await;
            run(&mut history).await;
            let mut problems = Vec::new();
            if !history.drain().await {
                problems.extend(history.open_state().await);
            }
            problems.extend(checker::problems(&history).await);
            if !problems.is_empty() {
                problems.extend(history.log.lines());
            }
            *found.lock().unwrap() = problems;
        });
        found.into_inner().unwrap()
    }

    /// More events than fit into a lane's mailbox. Returns the violations.
    pub fn a_flooded_mailbox(&self) -> Vec<String> {
        let found = Mutex::new(Vec::new());
        self.with_paused_clock(0, async |context| {
            let mut history = History::begin_plain(context, 0, false).await;
            let mut problems = history.flood_the_mailbox().await;
            if !history.drain().await {
                problems.extend(history.open_state().await);
            }
            problems.extend(checker::problems(&history).await);
            problems.extend(history.unconfirmed().await);
            if !problems.is_empty() {
                problems.extend(history.log.lines());
            }
            *found.lock().unwrap() = problems;
        });
        found.into_inner().unwrap()
    }

    /// The log of one seed's history.
    pub fn log_of(&self, seed: u64) -> Vec<String> {
        let log = Mutex::new(Vec::new());
        self.with_paused_clock(0, async |context| {
            *log.lock().unwrap() = one(context, seed, &Watchdog::default()).await.0
        });
        log.into_inner().unwrap()
    }

    /// Runs with a paused clock, also in the database. tokio advances a paused clock while it is idle, for example
    /// while it waits for a socket, unless the runtime has a blocking task; so there is one.
    fn with_paused_clock(&self, thread: usize, run: impl AsyncFnOnce(&ThreadContext)) {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let (over, until) = std::sync::mpsc::channel::<()>();
            let still = tokio::task::spawn_blocking(move || until.recv());
            let timeouts = Timeouts { acquire: Duration::from_secs(86_400), ..Timeouts::default() };
            let url = clock::url(&self.url, thread);
            let store = Store::new(&Secret::new(url.clone()), "simulation", 3, timeouts).unwrap();
            let db = PgPoolOptions::new().max_connections(1).connect(&url).await.unwrap();
            clock::set(&db).await;
            let notifier = Notifier::start(store.clone(), Channel::Final);
            run(&ThreadContext { store, db, notifier, config: self.config.clone(), sabotage: self.sabotage })
                .await;
            drop(over);
            let _ = still.await;
        });
    }
}

/// Detects a hanging thread from outside, because its own clock is paused.
#[derive(Debug, Default)]
struct Watchdog(Mutex<Option<(u64, std::time::Instant, Log)>>);

/// A history normally takes a fraction of a second.
const HANGS: Duration = Duration::from_secs(60);

impl Watchdog {
    fn check(&self) {
        if let Some((seed, begun, log)) = &*self.0.lock().unwrap()
            && begun.elapsed() > HANGS
        {
            let problems = vec![format!("the history hangs, after {HANGS:?}")];
            eprintln!("{}", Failure { seed: *seed, problems, history: log.lines() });
            // A hanging thread cannot be ended otherwise.
            std::process::exit(1);
        }
    }
}

/// Runs a history. Returns its log and the violations.
async fn one(context: &ThreadContext, seed: u64, watchdog: &Watchdog) -> (Vec<String>, Vec<String>) {
    let mut history = History::begin(context, seed).await;
    *watchdog.0.lock().unwrap() = Some((seed, std::time::Instant::now(), history.log.clone()));
    history.run().await;
    let mut problems = Vec::new();
    if !history.drain().await {
        problems.push("not everything is final".to_owned());
        problems.extend(history.open_state().await);
    }
    problems.extend(checker::problems(&history).await);
    history.log_ends().await;
    *watchdog.0.lock().unwrap() = None;
    (history.log.lines(), problems)
}

async fn prepare(url: &str, sabotage: Sabotage) {
    let store = Store::new(&Secret::new(url), "simulation", 1, Timeouts::default()).unwrap();
    store.migrate(Contract::Later).await.unwrap();
    store.close().await;
    let db = PgPoolOptions::new().max_connections(1).connect(url).await.unwrap();
    // Durability is not needed here.
    let name: String = sqlx::query_scalar("SELECT current_database()").fetch_one(&db).await.unwrap();
    let fast = format!("ALTER DATABASE {name} SET synchronous_commit = off");
    sqlx::raw_sql(sqlx::AssertSqlSafe(fast)).execute(&db).await.unwrap();
    clock::install(&db).await;
    let breakage = match sabotage {
        Sabotage::NoFence => {
            "CREATE FUNCTION keep_lease() RETURNS TRIGGER LANGUAGE plpgsql AS $$
             BEGIN NEW.lease_id := coalesce(OLD.lease_id, NEW.lease_id); RETURN NEW; END $$;
             CREATE TRIGGER keep_lease BEFORE UPDATE ON submitter_lease FOR EACH ROW EXECUTE FUNCTION keep_lease();
             DROP TRIGGER managed_tx_guard ON managed_tx;
             DROP TRIGGER submitter_nonce_cursor_guard ON submitter_nonce_cursor;"
        }
        Sabotage::LostAnswers => {
            "CREATE FUNCTION lose_answer() RETURNS TRIGGER LANGUAGE plpgsql AS $$
             BEGIN
                 IF OLD.answered_at IS NULL AND NEW.answered_at IS NOT NULL THEN
                     NEW.answer_payload := NULL; NEW.answer_raw := NULL; NEW.gave_up := 'lost';
                 END IF;
                 RETURN NEW;
             END $$;
             CREATE TRIGGER a_lose_answer BEFORE UPDATE ON nonce_reservation FOR EACH ROW EXECUTE FUNCTION lose_answer();"
        }
        Sabotage::UnrecordedExternal => {
            "CREATE FUNCTION forget_external() RETURNS TRIGGER LANGUAGE plpgsql AS $$
             BEGIN RETURN NULL; END $$;
             CREATE TRIGGER a_forget_external BEFORE INSERT ON external_nonce FOR EACH ROW EXECUTE FUNCTION forget_external();"
        }
        _ => "",
    };
    sqlx::raw_sql(breakage).execute(&db).await.unwrap();
    db.close().await;
}

/// The default configuration.
fn chain_config() -> ChainConfig {
    let file = tempfile::NamedTempFile::with_suffix(".toml").unwrap();
    let text = "[database]\nurl = \"postgres://nobody@127.0.0.1/none\"\n[chain.simulated]\nid = 1\n";
    std::fs::write(file.path(), text).unwrap();
    let config = Config::load(Some(file.path())).unwrap();
    config.chains["simulated"].clone()
}
