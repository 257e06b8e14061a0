//! A deterministic simulation: the product's lanes, writer, reader, watcher and SQL on a real PostgreSQL, with a chain in
//! memory and a clock that stands still until the history says that time passes.
//!
//! A seed decides everything: requests, steps of two workers, where in a step one stops, fails or dies, takeovers, blocks,
//! reorgs, evictions, lost answers, a node that lags. Then nothing bad happens any more, and in the end everything must have
//! ended well. Histories know nothing of each other: each has a chain of its own in one database.
//!
//! It refuses to be fast by leaving SQL out, and real by having sockets to nodes: that is what the end-to-end tests have.

mod clock;
mod dice;
mod gate;
mod history;
mod ledger;
mod log;
mod ports;
mod process;
mod verdict;

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use gapless::config::{ChainConfig, Config, Secret};
use gapless::notifier::Notifier;
use gapless::store::{Channel, Store, Timeouts};
use sqlx::postgres::PgPoolOptions;

use crate::servers;
use history::{Bench, History};
use log::Log;

/// What the simulation runs on, as it should be or broken on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sabotage {
    Nothing,
    /// What is signed is sent before it is recorded.
    SendBeforeCommit,
    /// A takeover does not change the lease, so the fence lets the last owner through; and no guard stands behind it.
    NoFence,
    /// A caller hears that its answer counts, and the row says that it gave up.
    LostAnswers,
    /// Nonces of others are stepped over, and not recorded.
    UnrecordedStrangers,
    /// The worker has no policy where the submitter has one.
    NoPolicy,
    /// Every estimate reverts, at every block.
    FalseReverts,
    /// Blocks show our own transactions as somebody else's, with a signature that proves it.
    ForgedTaker,
    /// A backend shows a fork that is deeper than what counts as final.
    DeepFork,
}

/// A history that ended badly.
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
        write!(f, "again: GAPLESS_SIM_SEED={} cargo test -p gapless-tests --test simulation", self.seed)
    }
}

/// What has to happen in some history, in the words of its log: what never happens is not tried.
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
    "left to others, as STEPPED_OVER",
    "left to others, as DISPLACED",
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

/// What became of some histories.
#[derive(Clone, Debug, Default)]
pub struct Ran {
    pub histories: u64,
    /// The first that ended badly.
    pub failure: Option<Failure>,
    /// In how many there was each of `MARKS`.
    pub marks: BTreeMap<&'static str, u64>,
}

/// A database that histories run in.
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

    /// Runs these seeds on several threads. Stops at the first that ends badly, and begins none after `limit`.
    pub fn run(&self, seeds: std::ops::Range<u64>, threads: usize, limit: Duration) -> Ran {
        let (next, stop) = (AtomicU64::new(seeds.start), AtomicBool::new(false));
        let (ran, begun) = (Mutex::new(Ran::default()), std::time::Instant::now());
        let watched: Vec<Watched> = (0..threads).map(|_| Watched::default()).collect();
        std::thread::scope(|scope| {
            let running: Vec<_> = watched
                .iter()
                .enumerate()
                .map(|(thread, watched)| {
                    let (next, stop, seeds, ran) = (&next, &stop, &seeds, &ran);
                    scope.spawn(move || {
                        self.on_a_still_clock(thread, async |bench| {
                            while !stop.load(Ordering::Relaxed) && begun.elapsed() < limit {
                                let seed = next.fetch_add(1, Ordering::Relaxed);
                                if seed >= seeds.end {
                                    return;
                                }
                                let (history, problems) = one(bench, seed, watched).await;
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
                watched.iter().for_each(Watched::check);
                std::thread::sleep(Duration::from_millis(100));
            }
        });
        ran.into_inner().unwrap()
    }

    /// Ten minutes in which a node answers questions of one kind (`*`: all) with its own trouble. Answers what does not hold.
    pub fn ten_minutes_of_trouble(&self, seed: u64, with: &'static str) -> Vec<String> {
        let found = Mutex::new(Vec::new());
        self.on_a_still_clock(0, async |bench| {
            let mut history = History::begin_plain(bench, seed, false).await;
            let mut problems = history.trouble(with).await;
            if !history.drain().await {
                problems.push("not everything has ended".to_owned());
            }
            problems.extend(verdict::problems(&history).await);
            problems.extend(history.unconfirmed().await);
            if !problems.is_empty() {
                problems.extend(history.log.lines());
            }
            *found.lock().unwrap() = problems;
        });
        found.into_inner().unwrap()
    }

    /// Somebody else takes the first of three open nonces; the others are final before anybody looks. Answers what does not hold.
    pub fn first_of_a_window_is_taken(&self) -> Vec<String> {
        self.script(false, async |history| history.lose_the_first_of_three().await)
    }

    /// What others did with a shared key before its first use is reorged away. Answers what does not hold.
    pub fn others_are_reorged_away_before_the_first_use(&self) -> Vec<String> {
        self.script(true, async |history| history.lose_what_others_did_before().await)
    }

    fn script(&self, is_shared: bool, run: impl AsyncFnOnce(&mut History<'_>)) -> Vec<String> {
        let found = Mutex::new(Vec::new());
        self.on_a_still_clock(0, async |bench| {
            let mut history = History::begin_plain(bench, 0, is_shared).await;
            run(&mut history).await;
            let mut problems = Vec::new();
            if !history.drain().await {
                problems.extend(history.where_it_stands().await);
            }
            problems.extend(verdict::problems(&history).await);
            if !problems.is_empty() {
                problems.extend(history.log.lines());
            }
            *found.lock().unwrap() = problems;
        });
        found.into_inner().unwrap()
    }

    /// News that does not fit into a lane's mailbox. Answers what does not hold.
    pub fn a_flooded_mailbox(&self) -> Vec<String> {
        let found = Mutex::new(Vec::new());
        self.on_a_still_clock(0, async |bench| {
            let mut history = History::begin_plain(bench, 0, false).await;
            let mut problems = history.flood_the_mailbox().await;
            if !history.drain().await {
                problems.extend(history.where_it_stands().await);
            }
            problems.extend(verdict::problems(&history).await);
            problems.extend(history.unconfirmed().await);
            if !problems.is_empty() {
                problems.extend(history.log.lines());
            }
            *found.lock().unwrap() = problems;
        });
        found.into_inner().unwrap()
    }

    /// What happens in one seed's history.
    pub fn tell(&self, seed: u64) -> Vec<String> {
        let told = Mutex::new(Vec::new());
        self.on_a_still_clock(0, async |bench| {
            *told.lock().unwrap() = one(bench, seed, &Watched::default()).await.0
        });
        told.into_inner().unwrap()
    }

    /// Time passes when a history says so, for the database too; and not while a thread waits for a socket: a paused clock
    /// advances by itself when there is nothing to do, but for a runtime with a blocking task.
    fn on_a_still_clock(&self, thread: usize, run: impl AsyncFnOnce(&Bench)) {
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
            run(&Bench { store, db, notifier, config: self.config.clone(), sabotage: self.sabotage }).await;
            drop(over);
            let _ = still.await;
        });
    }
}

/// What a thread is at. Its clock stands still, so it cannot notice by itself that it hangs.
#[derive(Debug, Default)]
struct Watched(Mutex<Option<(u64, std::time::Instant, Log)>>);

/// A history takes a fraction of a second.
const HANGS: Duration = Duration::from_secs(60);

impl Watched {
    fn check(&self) {
        if let Some((seed, begun, log)) = &*self.0.lock().unwrap()
            && begun.elapsed() > HANGS
        {
            let problems = vec![format!("nothing happens any more, after {HANGS:?}")];
            eprintln!("{}", Failure { seed: *seed, problems, history: log.lines() });
            // A thread that hangs cannot be ended otherwise.
            std::process::exit(1);
        }
    }
}

/// Runs a history. Whatever does not hold at its end is a problem.
async fn one(bench: &Bench, seed: u64, watched: &Watched) -> (Vec<String>, Vec<String>) {
    let mut history = History::begin(bench, seed).await;
    *watched.0.lock().unwrap() = Some((seed, std::time::Instant::now(), history.log.clone()));
    history.run().await;
    let mut problems = Vec::new();
    if !history.drain().await {
        problems.push("not everything has ended".to_owned());
        problems.extend(history.where_it_stands().await);
    }
    problems.extend(verdict::problems(&history).await);
    history.tell_ends().await;
    *watched.0.lock().unwrap() = None;
    (history.log.lines(), problems)
}

async fn prepare(url: &str, sabotage: Sabotage) {
    let store = Store::new(&Secret::new(url), "simulation", 1, Timeouts::default()).unwrap();
    store.migrate().await.unwrap();
    store.close().await;
    let db = PgPoolOptions::new().max_connections(1).connect(url).await.unwrap();
    // Nobody pulls a plug here.
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
        Sabotage::UnrecordedStrangers => {
            "CREATE FUNCTION forget_stranger() RETURNS TRIGGER LANGUAGE plpgsql AS $$
             BEGIN RETURN NULL; END $$;
             CREATE TRIGGER a_forget_stranger BEFORE INSERT ON foreign_nonce FOR EACH ROW EXECUTE FUNCTION forget_stranger();"
        }
        _ => "",
    };
    sqlx::raw_sql(breakage).execute(&db).await.unwrap();
    db.close().await;
}

/// The product's defaults.
fn chain_config() -> ChainConfig {
    let file = tempfile::NamedTempFile::with_suffix(".toml").unwrap();
    let text = "[database]\nurl = \"postgres://nobody@127.0.0.1/none\"\n[chain.simulated]\nid = 1\n";
    std::fs::write(file.path(), text).unwrap();
    let config = Config::load(Some(file.path())).unwrap();
    config.chains["simulated"].clone()
}
