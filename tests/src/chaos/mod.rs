//! The nemesis: a whole stack under load, everything broken again and again, and a judge who was not there.
//!
//! `schedule` says what is broken and done when, `faults` breaks it, `operations` and `operator` do what users and operators do, `clients` ask
//! all the while, `sampler` looks on, `history` records, `evidence` gathers what is left, `checker` judges, `report` prints. The same run with workers that are wrong on purpose (`crate::reference_worker`)
//! shows that the judge can find something. docs/reliability.md says how to read it.

pub mod checker;
mod clients;
mod evidence;
mod faults;
mod history;
mod operations;
mod operator;
mod report;
mod sampler;
mod schedule;
mod supervisor;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::join_all;
use gapless_cli::localnet::Mining;
use serde_json::{Value, json};
use tokio::sync::Mutex;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use self::checker::judge;
use self::clients::Client;
use self::history::History;
use self::operations::SecondSender;
pub use self::report::Outcome;
use self::sampler::Sampler;
pub use self::schedule::{Kind, Operation, PER_HOUR};
pub use self::supervisor::Crew;
use self::supervisor::Supervised;
use crate::reference_worker::{self, FenceStrategy};
use crate::stack::{Stack, StackBuilder};

/// Seconds between blocks.
const BLOCK_S: f64 = 0.25;
/// Wei. Below some of what the base fee is raised to.
const MAX_FEE: &str = "500000000000";
const SAY_EVERY: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(50);

/// What to run.
#[derive(Clone, Debug)]
pub struct Options {
    /// The binary `gapless-stack`.
    pub program: PathBuf,
    pub seed: u64,
    /// How long things are broken.
    pub length: Duration,
    /// Faults of each kind in an hour.
    pub per_hour: u64,
    pub crew: Crew,
    pub apis: usize,
    pub workers: usize,
    pub submitters: usize,
    /// For each submitter.
    pub clients: usize,
    /// Between two requests of a client, on average.
    pub think: Duration,
    /// Some requests fail, and some are cancelled.
    pub varied: bool,
    /// `confirmations.required`; no reorg is as deep.
    pub required: u64,
    pub lease: Duration,
    /// `nonce.max_in_flight`.
    pub window: u32,
    /// Configuration keys for every process, over the ones above.
    pub settings: Vec<(String, Value)>,
    /// How long everything may take to become final once nothing is broken any more.
    pub settle: Duration,
    /// Whether what it leaves behind is kept if the verdict is good, too.
    pub keep: bool,
    /// Cancelled: break nothing more, and come to the end.
    pub over: CancellationToken,
    /// Hears of progress.
    pub say: fn(&str),
}

impl Options {
    /// What `make chaos` runs.
    pub fn new(program: PathBuf, seed: u64, length: Duration) -> Options {
        Options {
            program,
            seed,
            length,
            per_hour: PER_HOUR,
            crew: Crew::Product,
            apis: 2,
            workers: 3,
            submitters: 8,
            clients: 2,
            think: Duration::from_millis(800),
            varied: true,
            required: 6,
            lease: Duration::from_secs(2),
            window: 4,
            settings: Vec::new(),
            settle: Duration::from_secs(180),
            keep: false,
            over: CancellationToken::new(),
            say: |_| {},
        }
    }

    /// The submitter whose key is shared with a second sender, if there is one.
    fn shared(&self) -> Option<usize> {
        self.has_roles().then(|| self.submitters - 2)
    }

    /// The submitter with a policy, if there is one.
    fn policed(&self) -> Option<usize> {
        self.has_roles().then(|| self.submitters - 1)
    }

    fn has_roles(&self) -> bool {
        self.crew == Crew::Product && self.varied && self.submitters >= 4
    }

    /// The same with workers of the harness's own, few enough to be quick. A wrong one leaves requests that are never
    /// final: nobody waits long for them.
    pub fn control(program: PathBuf, seed: u64, strategy: FenceStrategy) -> Options {
        let settle = Duration::from_secs(if strategy == FenceStrategy::LockThenWrite { 120 } else { 5 });
        Options {
            crew: Crew::Plain(strategy),
            submitters: 4,
            clients: 1,
            think: Duration::from_millis(200),
            varied: false,
            required: 3,
            lease: Duration::from_secs(1),
            window: 1,
            settle,
            ..Options::new(program, seed, Duration::from_secs(12))
        }
    }
}

/// Everything that takes part.
#[derive(Debug)]
struct Arena {
    options: Options,
    stack: Stack,
    apis: Vec<Supervised>,
    workers: Vec<Supervised>,
    history: History,
    sampler: Sampler,
    second_sender: SecondSender,
    begun: Instant,
    /// No more faults.
    over: CancellationToken,
    /// No more requests.
    quiet: CancellationToken,
    /// No more patience.
    closing: CancellationToken,
    /// One fault at a time on lines to the database, and on lines to the node.
    wires: Mutex<()>,
    nodes: Mutex<()>,
}

impl Arena {
    /// The moment at which something that is planned begins. `None`: no more of it.
    async fn wait_until(&self, at: Duration) -> Option<Instant> {
        tokio::select! {
            () = tokio::time::sleep_until((self.begun + at).into()) => Some(Instant::now()),
            () = self.over.cancelled() => None,
        }
    }

    async fn open(options: Options) -> Arena {
        let stack = build(&options).await;
        if let Crew::Plain(_) = options.crew {
            reference_worker::prepare(&stack).await;
        }
        // What is set by hand must be deeper than any reorg.
        stack.anvil().rpc("anvil_setCode", json!([clients::TRAP, "0x60006000fd"])).await;
        stack.anvil().mine(options.required + 2).await;
        let (mut apis, mut workers) = (Vec::new(), Vec::new());
        for index in 0..options.apis {
            apis.push(Supervised::api(&stack, index).await);
        }
        for index in 0..options.workers {
            let settings = roles(&options, &stack);
            workers.push(Supervised::worker(&stack, options.crew, index, settings).await);
        }
        let history = History::begin(&stack.dir().join("history.jsonl"));
        let sampler = Sampler::default();
        let (over, token) = (options.over.clone(), CancellationToken::new);
        let (quiet, closing) = (token(), token());
        let (wires, nodes) = (Mutex::new(()), Mutex::new(()));
        let begun = Instant::now();
        let mut arena = Arena {
            options,
            stack,
            apis,
            workers,
            history,
            sampler,
            second_sender: SecondSender::default(),
            begun,
            over,
            quiet,
            closing,
            wires,
            nodes,
        };
        for process_slot in arena.slots() {
            process_slot.open(&arena.stack).await;
        }
        arena.begun = Instant::now();
        arena
    }

    fn slots(&self) -> Vec<&Supervised> {
        self.apis.iter().chain(&self.workers).collect()
    }

    /// Nothing is broken any more.
    fn mend(&self) {
        for process_slot in self.slots() {
            process_slot.wire.mend();
            for proxy in process_slot.proxies() {
                proxy.clear();
                proxy.thaw();
                proxy.agree();
                proxy.show_transactions();
                proxy.keep_all_states();
            }
        }
    }

    /// Rows that are not final; `None` while the database is away.
    async fn unfinished(&self) -> Option<i64> {
        let count = sqlx::query_scalar("SELECT count(*) FROM managed_tx WHERE finished_at IS NULL");
        count.fetch_one(self.stack.db()).await.ok()
    }

    async fn report_progress(&self) {
        loop {
            tokio::time::sleep(SAY_EVERY).await;
            let unfinished = self.unfinished().await.map_or("?".to_owned(), |count| count.to_string());
            (self.options.say)(&report::progress(&self.history.entries(), self.begun.elapsed(), &unfinished));
        }
    }
}

/// What workers are told of single submitters. The API is not told of the policy: what it forbids is to reach the workers.
fn roles(options: &Options, stack: &Stack) -> Vec<(String, Value)> {
    let key = |index: usize, name: &str| format!("submitter.{}.{name}", stack.submitter(index).text());
    let shared = options.shared().map(|index| (key(index, "nonce.strict.enabled"), json!(false)));
    let policed = options.policed().map(|index| {
        let policy =
            json!({ "allow": [{ "to": clients::SINK }], "max_value": clients::MOST_VALUE.to_string() });
        (key(index, "policy"), policy)
    });
    shared.into_iter().chain(policed).collect()
}

async fn build(options: &Options) -> Stack {
    let program = options.program.to_str().expect("a UTF-8 path");
    let seconds = |length: Duration| format!("{}ms", length.as_millis());
    let stack = StackBuilder::new(program)
        .own_postgres()
        .submitters(options.submitters)
        .window(options.window)
        .confirmations(options.required)
        .mining(Mining::Interval(BLOCK_S))
        .set("lease.duration", seconds(options.lease))
        .set("lease.renew_interval", seconds(options.lease / 4))
        .set("resubmit.interval", "1s")
        .set("rpc.timeout", "2s")
        .set("confirmations.stale_receipt_timeout", "5s")
        .set("fees.max_fee_per_gas", MAX_FEE)
        .set("stuck.after", "5s")
        .set("events.mode", "mq_outbox")
        .set("log.level", "info");
    let settings = options.settings.iter();
    settings.fold(stack, |stack, (key, value)| stack.set(key, value.clone())).start().await
}

/// The whole run. What it leaves behind is kept if the verdict is bad.
pub async fn run(options: Options) -> Outcome {
    let arena = Arc::new(Arena::open(options).await);
    let mut clients = JoinSet::new();
    for (submitter, number) in
        (0..arena.options.submitters).flat_map(|s| (0..arena.options.clients).map(move |n| (s, n)))
    {
        let arena = Arc::clone(&arena);
        clients.spawn(async move { Client::new(&arena, submitter, number).work().await });
    }
    let slots = arena.slots();
    let settled = tokio::select! {
        settled = storm(&arena, &mut clients) => settled,
        () = supervisor::look_after(&arena.stack, &slots) => unreachable!("it never ends"),
        () = arena.report_progress() => unreachable!("it never ends"),
        () = sampler::watch(&arena) => unreachable!("it never ends"),
        () = operator::attend(&arena) => unreachable!("it never ends"),
        () = operations::send_again(&arena) => unreachable!("it never ends"),
    };
    arena.closing.cancel();
    all_of(&mut clients).await;
    for process_slot in arena.slots() {
        process_slot.close().await;
    }
    let evidence = evidence::gather(&arena).await;
    let arena = Arc::into_inner(arena).expect("every client has ended");
    let audit = match arena.options.crew {
        Crew::Product => Some(arena.stack.verify().await),
        Crew::Plain(_) => None,
    };
    Outcome::new(arena, &evidence, judge(&evidence), audit, settled).await
}

/// Everything is broken until the time is over, and then nothing any more. Answers how long it took until all was final.
async fn storm(arena: &Arena, clients: &mut JoinSet<()>) -> Option<Duration> {
    let faults = join_all(Kind::ALL.map(|kind| faults::carry_out(arena, kind)));
    let operations = join_all(Operation::ALL.map(|kind| operations::carry_out(arena, kind)));
    tokio::join!(faults, operations);
    arena.mend();
    arena.quiet.cancel();
    settle(arena, clients).await
}

/// A task that panicked is the end of the run.
async fn all_of(tasks: &mut JoinSet<()>) {
    while let Some(ended) = tasks.join_next().await {
        if let Err(error) = ended {
            std::panic::resume_unwind(error.into_panic());
        }
    }
}

/// Until every client has heard the end of what it asked for, and every row is final. `None`: it takes too long.
async fn settle(arena: &Arena, clients: &mut JoinSet<()>) -> Option<Duration> {
    let begun = Instant::now();
    let settled = async {
        all_of(clients).await;
        while arena.unfinished().await != Some(0) {
            tokio::time::sleep(POLL).await;
        }
    };
    tokio::time::timeout(arena.options.settle, settled).await.ok().map(|()| begun.elapsed())
}
