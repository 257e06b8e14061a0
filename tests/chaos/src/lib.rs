//! Fault injection on a complete stack under load, followed by an independent check of the result.
//!
//! `schedule` plans faults and operations, `faults` injects them, `operations` and `operator` simulate users and
//! operators, `clients` send requests, `sampler` samples every submitter, `history` records events, `evidence`
//! collects the final data, `checker` evaluates it, `report` prints the result. Runs with faulty workers
//! (`reference_worker`) are the negative controls of the checker. In an upgrade run, `upgrade` replaces the processes by
//! those of another version, and `v1_fields` checks the answers. See docs/internals/reliability.md.

pub mod checker;
mod clients;
mod consumer;
mod evidence;
mod faults;
mod history;
mod operations;
mod operator;
mod options;
mod receiver;
pub mod reference_worker;
mod report;
mod sampler;
mod schedule;
mod supervisor;
mod upgrade;
mod v1_fields;

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::join_all;
use gapless_localnet::Mining;
use gapless_testkit::{Stack, StackBuilder};
use serde_json::{Value, json};
use tokio::sync::Mutex;
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use self::checker::check;
use self::clients::Client;
use self::history::History;
use self::operations::SecondSender;
pub use self::options::{ConsumerCursor, Options, Upgrade};
pub use self::receiver::Receiver;
pub use self::report::Outcome;
use self::sampler::Sampler;
pub use self::schedule::{Kind, Operation, PER_HOUR};
pub use self::supervisor::Crew;
use self::supervisor::ProcessSlot;
use self::v1_fields::V1Fields;

/// Seconds between blocks.
const BLOCK_TIME: Duration = Duration::from_millis(250);
/// Longer than any fault keeps the node from mining.
const CHAIN_STALL: Duration = Duration::from_secs(20);
/// Wei. Lower than some of the base fees that `operations` sets.
const MAX_FEE: &str = "500000000000";
const PROGRESS_INTERVAL: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(50);

/// State of one chaos run.
#[derive(Debug)]
struct ChaosRun {
    options: Options,
    stack: Stack,
    apis: Vec<ProcessSlot>,
    workers: Vec<ProcessSlot>,
    history: History,
    sampler: Sampler,
    second_sender: SecondSender,
    /// Of upgrade runs.
    v1_fields: Option<V1Fields>,
    begun: Instant,
    /// Cancelled when fault injection ends.
    stop_faults: CancellationToken,
    /// Cancelled when clients must send no new requests.
    stop_requests: CancellationToken,
    /// Cancelled when clients must stop waiting for final states.
    abandon: CancellationToken,
    /// Held during a fault, so that only one fault at a time affects database connections, and one node connections.
    database_faults: Mutex<()>,
    node_faults: Mutex<()>,
    /// Held while anvil mines, reorganises or changes its state. Concurrent changes are the suspected reason why it has lost
    /// its newest block.
    chain: Mutex<()>,
}

impl ChaosRun {
    /// Waits until `at` after the start. `None`: fault injection has ended.
    async fn wait_until(&self, at: Duration) -> Option<Instant> {
        tokio::select! {
            () = tokio::time::sleep_until((self.begun + at).into()) => Some(Instant::now()),
            () = self.stop_faults.cancelled() => None,
        }
    }

    async fn open(options: Options) -> ChaosRun {
        let stack = build(&options).await;
        if let Crew::Reference(_) = options.crew {
            reference_worker::prepare(&stack).await;
        }
        if options.consumer == ConsumerCursor::OutboxId {
            consumer::copy_outbox(&stack).await;
        }
        // State that is set directly must be deeper than any reorg.
        stack.anvil().rpc("anvil_setCode", json!([clients::TRAP, "0x60006000fd"])).await;
        stack.anvil().mine(options.required + 2).await;
        let (mut apis, mut workers) = (Vec::new(), Vec::new());
        for index in 0..options.apis {
            apis.push(ProcessSlot::api(&stack, options.first(), index).await);
        }
        for index in 0..options.workers {
            let settings = roles(&options, &stack);
            workers.push(ProcessSlot::worker(&stack, options.first(), index, settings).await);
        }
        let history = History::begin(&stack.dir().join("history.jsonl"));
        let sampler = Sampler::default();
        let v1_fields = options.upgrade.as_ref().map(|upgrade| V1Fields::of_document(&upgrade.openapi));
        let (stop_faults, token) = (options.stop_faults.clone(), CancellationToken::new);
        let (stop_requests, abandon) = (token(), token());
        let (database_faults, node_faults, chain) = (Mutex::new(()), Mutex::new(()), Mutex::new(()));
        let begun = Instant::now();
        let mut run = ChaosRun {
            options,
            stack,
            apis,
            workers,
            history,
            sampler,
            second_sender: SecondSender::default(),
            v1_fields,
            begun,
            stop_faults,
            stop_requests,
            abandon,
            database_faults,
            node_faults,
            chain,
        };
        for slot in run.slots() {
            slot.open(&run.stack).await;
        }
        run.begun = Instant::now();
        run
    }

    /// Checks an answer of the v1 API, for example to `GET /api/v1/tx/{txId}`. Does nothing unless this is an upgrade run.
    fn check_fields(&self, operation: &str, status: u16, answer: &Value) {
        if let Some(fields) = &self.v1_fields {
            fields.check(operation, status, answer);
        }
    }

    fn slots(&self) -> Vec<&ProcessSlot> {
        self.apis.iter().chain(&self.workers).collect()
    }

    /// Ends all network and node faults.
    fn restore(&self) {
        for slot in self.slots() {
            slot.database_proxy.restore();
            for proxy in slot.proxies() {
                proxy.clear();
                proxy.thaw();
                proxy.agree();
                proxy.show_transactions();
                proxy.keep_all_states();
            }
        }
    }

    /// A call that changes the state of the chain. `None`: anvil refused it.
    async fn change_chain(&self, method: &str, params: Value) -> Option<Value> {
        let _one_at_a_time = self.chain.lock().await;
        self.stack.anvil().try_rpc(method, params).await.ok()
    }

    /// Anvil does not mine by itself, see `chain`.
    async fn mine(&self) {
        let mut ticks = tokio::time::interval(BLOCK_TIME);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let _ = self.change_chain("evm_mine", json!([])).await;
        }
    }

    /// Number of rows that are not final. `None`: the database is unreachable.
    async fn unfinished(&self) -> Option<i64> {
        let count = sqlx::query_scalar("SELECT count(*) FROM managed_tx WHERE finished_at IS NULL");
        count.fetch_one(self.stack.db()).await.ok()
    }

    async fn report_progress(&self) {
        loop {
            tokio::time::sleep(PROGRESS_INTERVAL).await;
            let unfinished = self.unfinished().await.map_or("?".to_owned(), |count| count.to_string());
            let line = report::progress(&self.history.entries(), self.begun.elapsed(), &unfinished);
            (self.options.on_progress)(&line);
        }
    }
}

/// Worker settings of single submitters. The API does not get the policy, so that forbidden requests reach the
/// workers.
fn roles(options: &Options, stack: &Stack) -> Vec<(String, Value)> {
    let key = |index: usize, name: &str| format!("submitter.{}.{name}", stack.submitter(index).text());
    let shared = options.shared().map(|index| (key(index, "nonce.strict.enabled"), json!(false)));
    let with_policy = options.with_policy().map(|index| {
        let policy =
            json!({ "allow": [{ "to": clients::SINK }], "max_value": clients::MOST_VALUE.to_string() });
        (key(index, "policy"), policy)
    });
    shared.into_iter().chain(with_policy).collect()
}

async fn build(options: &Options) -> Stack {
    let program = options.program.to_str().expect("a UTF-8 path");
    let seconds = |length: Duration| format!("{}ms", length.as_millis());
    let stack = StackBuilder::new(program)
        .own_postgres()
        .migrated_by(options.upgrade.as_ref().map(|upgrade| upgrade.previous.clone()))
        .submitters(options.submitters)
        .window(options.window)
        .confirmations(options.required)
        .mining(Mining::Manual)
        .set("lease.duration", seconds(options.lease))
        .set("lease.renew_interval", seconds(options.lease / 4))
        .set("resubmit.interval", "1s")
        .set("rpc.timeout", "2s")
        .set("confirmations.stale_receipt_timeout", "5s")
        .set("fees.max_fee_per_gas", MAX_FEE)
        .set("stuck.after", "5s")
        .set("events.mode", "mq_outbox")
        .set("log.level", "info");
    let stack = match options.records_events() {
        true => receiver::settings()
            .into_iter()
            .fold(stack.webhooks(), |stack, (key, value)| stack.set(key, value)),
        false => stack,
    };
    let settings = options.settings.iter();
    settings.fold(stack, |stack, (key, value)| stack.set(key, value.clone())).start().await
}

/// Executes a run. History, configuration and logs are retained if it fails.
pub async fn run(options: Options) -> Outcome {
    let run = Arc::new(ChaosRun::open(options).await);
    let webhook_receiver = match run.options.records_events() {
        true => Some(receiver::register(&run.apis).await),
        false => None,
    };
    let mut clients = JoinSet::new();
    for (submitter, number) in
        (0..run.options.submitters).flat_map(|s| (0..run.options.clients).map(move |n| (s, n)))
    {
        let run = Arc::clone(&run);
        clients.spawn(async move { Client::new(&run, submitter, number).work().await });
    }
    let consumers = webhook_receiver.map(|receiver| {
        let (following, receiving) = (Arc::clone(&run), Arc::clone(&run));
        let stream = tokio::spawn(async move { consumer::follow(&following).await });
        (stream, tokio::spawn(async move { receiver::receive(&receiving, receiver).await }))
    });
    let slots = run.slots();
    let settled = tokio::select! {
        settled = inject_faults(&run, &mut clients) => settled,
        () = supervisor::supervise(&run.stack, &slots) => unreachable!("it never ends"),
        () = run.mine() => unreachable!("it never ends"),
        () = run.report_progress() => unreachable!("it never ends"),
        () = sampler::watch(&run) => unreachable!("it never ends"),
        reason = chain_failure(&run) => panic!("the test chain failed, so this run proves nothing: {reason}"),
        () = operator::watch_and_act(&run) => unreachable!("it never ends"),
        () = operations::resend_unmined(&run) => unreachable!("it never ends"),
    };
    run.abandon.cancel();
    join_all_tasks(&mut clients).await;
    let consumers = match consumers {
        Some((stream, webhook)) => {
            let (stream, webhook) = tokio::join!(stream, webhook);
            Some(vec![
                stream.expect("the consumer does not panic"),
                webhook.expect("the receiver does not panic"),
            ])
        }
        None => None,
    };
    for slot in run.slots() {
        slot.close().await;
    }
    let evidence = evidence::gather(&run, consumers).await;
    let run = Arc::into_inner(run).expect("every client has ended");
    let audit = match run.options.crew {
        Crew::Product => Some(run.stack.verify().await),
        Crew::Reference(_) => None,
    };
    Outcome::new(run, &evidence, check(&evidence), audit, settled).await
}

/// Waits until the node itself, without a proxy, has no block at its head or mines no more. Not a fault of the product.
async fn chain_failure(run: &ChaosRun) -> String {
    let node = run.stack.anvil();
    let (mut last, mut since) = (Value::Null, Instant::now());
    loop {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let Ok(head) = node.try_rpc("eth_blockNumber", json!([])).await else { continue };
        if head != last {
            (last, since) = (head, Instant::now());
        } else if since.elapsed() > CHAIN_STALL {
            let block = node.try_rpc("eth_getBlockByNumber", json!([last, false])).await;
            let has_block = block.is_ok_and(|block| !block.is_null());
            return format!(
                "head {last} for {CHAIN_STALL:?}, block available: {has_block}\n{}",
                node.log_tail()
            );
        }
    }
}

/// Injects all planned faults and operations, rolls to another version if that is planned, ends all faults, and waits. Returns the time until everything was final.
async fn inject_faults(run: &ChaosRun, clients: &mut JoinSet<()>) -> Option<Duration> {
    let faults = join_all(Kind::ALL.map(|kind| faults::carry_out(run, kind)));
    let operations = join_all(Operation::ALL.map(|kind| operations::carry_out(run, kind)));
    tokio::join!(faults, operations, upgrade::carry_out(run));
    run.restore();
    run.stop_requests.cancel();
    settle(run, clients).await
}

/// Propagates a panic of a task.
async fn join_all_tasks(tasks: &mut JoinSet<()>) {
    while let Some(ended) = tasks.join_next().await {
        if let Err(error) = ended {
            std::panic::resume_unwind(error.into_panic());
        }
    }
}

/// Waits until every client has seen the final states of its requests and every row is final. `None`: time limit
/// exceeded.
async fn settle(run: &ChaosRun, clients: &mut JoinSet<()>) -> Option<Duration> {
    let begun = Instant::now();
    let settled = async {
        join_all_tasks(clients).await;
        while run.unfinished().await != Some(0) {
            tokio::time::sleep(POLL).await;
        }
    };
    tokio::time::timeout(run.options.settle, settled).await.ok().map(|()| begun.elapsed())
}
