//! Places for processes: a seat stays when its process dies, and the next one sits down on it.
//!
//! A seat has a line to the database, one to the node and a clock of its own, so that a fault can hit one process alone.

use std::path::PathBuf;
use std::time::Duration;

use gapless_cli::localnet::Port;
use serde_json::Value;
use tokio::sync::Mutex;

use crate::proxy::Proxy;
use crate::reference_worker::{FENCE_STRATEGY_VAR, FenceStrategy};
use crate::service::{Part, Service, ServiceBuilder};
use crate::stack::Stack;
use crate::tcp_proxy::TcpProxy;

const CLOCK_VAR: &str = "GAPLESS_TEST_CLOCK";
/// How long a process may take over its stop before it is killed.
const STOP_LIMIT: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(20);
/// How soon somebody notices that a process has ended.
const SUPERVISED_EVERY: Duration = Duration::from_millis(200);

/// Who carries requests to the chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crew {
    /// The product's workers.
    Product,
    /// The harness's own, right or wrong on purpose: the negative controls.
    Plain(FenceStrategy),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Api,
    Worker(Crew),
}

#[derive(Debug)]
pub(super) struct Supervised {
    role: Role,
    index: usize,
    pub wire: TcpProxy,
    pub proxy: Proxy,
    /// Of one worker: another node of the same chain.
    pub second: Option<Proxy>,
    clock: PathBuf,
    /// Configuration keys of its own.
    settings: Vec<(String, Value)>,
    /// Where an API listens, whichever process it is.
    port: Port,
    /// Locked by whoever does something to the process.
    process: Mutex<Option<Service>>,
}

impl Supervised {
    pub(super) async fn api(stack: &Stack, index: usize) -> Supervised {
        Supervised::new(stack, Role::Api, index, Vec::new()).await
    }

    pub(super) async fn worker(
        stack: &Stack,
        crew: Crew,
        index: usize,
        settings: Vec<(String, Value)>,
    ) -> Supervised {
        Supervised::new(stack, Role::Worker(crew), index, settings).await
    }

    async fn new(stack: &Stack, role: Role, index: usize, settings: Vec<(String, Value)>) -> Supervised {
        let wire = TcpProxy::start(stack.database_url()).await;
        let proxy = Proxy::start(stack.anvil().url()).await;
        let second = match role {
            Role::Worker(Crew::Product) if index == 0 => Some(Proxy::start(stack.anvil().url()).await),
            _ => None,
        };
        let word = if role == Role::Api { "api" } else { "worker" };
        let clock = stack.dir().join(format!("clock-{word}-{index}"));
        let port = Port::claim().expect("a free port");
        let process_slot =
            Supervised { role, index, wire, proxy, second, clock, settings, port, process: Mutex::new(None) };
        process_slot.set_clock(0);
        process_slot
    }

    /// `worker 2`, for the report.
    pub(super) fn name(&self) -> String {
        match self.role {
            Role::Api => format!("API {}", self.index),
            Role::Worker(_) => format!("worker {}", self.index),
        }
    }

    pub(super) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port.number())
    }

    /// Where the worker that sits here has its metrics. `None`: something is being done to it.
    pub(super) fn metrics_url(&self) -> Option<String> {
        let process = self.process.try_lock().ok()?;
        process.as_ref().map(|process| process.metrics_url().to_owned())
    }

    /// Every node that it is told of.
    pub(super) fn proxies(&self) -> impl Iterator<Item = &Proxy> {
        std::iter::once(&self.proxy).chain(&self.second)
    }

    /// By so many seconds is the clock of this seat off.
    pub(super) fn set_clock(&self, seconds: i64) {
        std::fs::write(&self.clock, seconds.to_string()).expect("the clock can be set");
    }

    async fn start(&self, stack: &Stack) -> Service {
        let builder = match self.role {
            Role::Api => stack.api().set("api.bind", format!("127.0.0.1:{}", self.port.number())),
            Role::Worker(Crew::Product) => stack.worker(),
            Role::Worker(Crew::Plain(strategy)) => {
                ServiceBuilder::new(stack, Part::PlainWorker).env(FENCE_STRATEGY_VAR, strategy.word())
            }
        };
        let clock = self.clock.to_str().expect("a UTF-8 path").to_owned();
        let builder = builder
            .rpc(&self.proxies().map(Proxy::url).collect::<Vec<_>>())
            .over(&self.wire)
            .env(CLOCK_VAR, &clock);
        let settings = self.settings.iter();
        let builder = settings.fold(builder, |builder, (key, value)| builder.set(key, value.clone()));
        // Nobody waits for a start under faults: the supervisor sees to it.
        builder.without_waiting().start().await
    }

    /// The first start, before anything is broken: it must succeed.
    pub(super) async fn open(&self, stack: &Stack) {
        let mut process = self.process.lock().await;
        let service = self.start(stack).await;
        let started = if self.role == Role::Api { "the API is listening" } else { "worker started" };
        service.wait_for_log(started).await;
        *process = Some(service);
    }

    /// `kill -9`; another process takes the seat after a while.
    pub(super) async fn kill(&self, stack: &Stack, away: Duration) {
        let mut process = self.process.lock().await;
        if let Some(process) = process.as_ref() {
            process.kill9();
        }
        tokio::time::sleep(away).await;
        *process = Some(self.start(stack).await);
    }

    /// Frozen for a while: it keeps its connections and does nothing.
    pub(super) async fn freeze(&self, length: Duration) {
        let process = self.process.lock().await;
        let Some(frozen) = process.as_ref() else { return };
        frozen.sigstop();
        tokio::time::sleep(length).await;
        frozen.sigcont();
    }

    /// Ends in good order, and another takes the seat. Answers whether it ended by itself in time.
    pub(super) async fn roll(&self, stack: &Stack) -> bool {
        let mut process = self.process.lock().await;
        let in_time = match process.as_ref() {
            Some(process) => stop(process).await,
            None => true,
        };
        *process = Some(self.start(stack).await);
        in_time
    }

    /// A process that has ended by itself is replaced, as by any supervisor.
    async fn look_after(&self, stack: &Stack) {
        // Whoever holds it will start another.
        let Ok(mut process) = self.process.try_lock() else { return };
        if process.as_ref().is_some_and(|process| !process.is_running()) {
            *process = Some(self.start(stack).await);
        }
    }

    /// Ends what sits here; nobody follows.
    pub(super) async fn close(&self) {
        if let Some(process) = self.process.lock().await.take() {
            process.kill9();
        }
    }
}

async fn stop(process: &Service) -> bool {
    process.sigterm();
    let waited = async {
        while process.is_running() {
            tokio::time::sleep(POLL).await;
        }
    };
    let in_time = tokio::time::timeout(STOP_LIMIT, waited).await.is_ok();
    if !in_time {
        process.kill9();
    }
    in_time
}

/// Looks after these seats, for ever.
pub(super) async fn look_after(stack: &Stack, slots: &[&Supervised]) {
    loop {
        for process_slot in slots {
            process_slot.look_after(stack).await;
        }
        tokio::time::sleep(SUPERVISED_EVERY).await;
    }
}
