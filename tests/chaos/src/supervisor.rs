//! Process slots. When the process of a slot ends, the supervisor starts another one in the same slot.
//!
//! Each slot has its own database proxy, node proxy and clock file, so that a fault can affect a single process.

use std::path::PathBuf;
use std::time::Duration;

use gapless_localnet::Port;
use gapless_testkit::{LIMIT, Part, Proxy, Service, ServiceBuilder, Stack, TcpProxy};
use parking_lot::Mutex as StdMutex;
use serde::Serialize;
use serde_json::Value;
use tokio::sync::Mutex;

use crate::reference_worker::{FENCE_STRATEGY_VAR, FenceStrategy};

const CLOCK_VAR: &str = "GAPLESS_TEST_CLOCK";
/// Time limit of a graceful shutdown; after it the process is killed.
const STOP_LIMIT: Duration = Duration::from_secs(10);
/// Time limit of a start of another version. Under faults it may take longer.
const START_LIMIT: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(20);
/// Interval of the check for ended processes.
const SUPERVISE_INTERVAL: Duration = Duration::from_millis(200);

/// Which worker implementation the run uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crew {
    /// The workers of Gapless.
    Product,
    /// `reference_worker` with this strategy: the negative controls.
    Reference(FenceStrategy),
}

/// What the processes of a slot run. It changes in upgrade runs only.
#[derive(Clone, Debug)]
pub(crate) struct Version {
    /// `gapless-stack`.
    pub program: PathBuf,
    pub crew: Crew,
}

/// How a process is ended for the start of another version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Signal {
    #[serde(rename = "SIGTERM")]
    Term,
    #[serde(rename = "SIGKILL")]
    Kill,
}

impl Signal {
    pub fn name(self) -> &'static str {
        match self {
            Signal::Term => "SIGTERM",
            Signal::Kill => "SIGKILL",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Api,
    Worker,
}

#[derive(Debug)]
pub(crate) struct ProcessSlot {
    role: Role,
    index: usize,
    /// Of the next process.
    version: StdMutex<Version>,
    pub database_proxy: TcpProxy,
    pub proxy: Proxy,
    /// A second node of the same chain; one worker has it.
    pub second: Option<Proxy>,
    clock: PathBuf,
    /// Configuration keys of this slot only.
    settings: Vec<(String, Value)>,
    /// The port of an API; every process of the slot uses the same one.
    port: Port,
    /// Locked while a fault acts on the process.
    process: Mutex<Option<Service>>,
}

impl ProcessSlot {
    pub(crate) async fn api(stack: &Stack, version: Version, index: usize) -> ProcessSlot {
        ProcessSlot::new(stack, Role::Api, version, index, Vec::new()).await
    }

    pub(crate) async fn worker(
        stack: &Stack,
        version: Version,
        index: usize,
        settings: Vec<(String, Value)>,
    ) -> ProcessSlot {
        ProcessSlot::new(stack, Role::Worker, version, index, settings).await
    }

    async fn new(
        stack: &Stack,
        role: Role,
        version: Version,
        index: usize,
        settings: Vec<(String, Value)>,
    ) -> ProcessSlot {
        let database_proxy = TcpProxy::start(stack.database_url()).await;
        let proxy = Proxy::start(stack.anvil().url()).await;
        let second = match (role, version.crew) {
            (Role::Worker, Crew::Product) if index == 0 => Some(Proxy::start(stack.anvil().url()).await),
            _ => None,
        };
        let kind = if role == Role::Api { "api" } else { "worker" };
        let clock = stack.dir().join(format!("clock-{kind}-{index}"));
        let port = Port::claim().expect("a free port");
        let slot = ProcessSlot {
            role,
            index,
            version: StdMutex::new(version),
            database_proxy,
            proxy,
            second,
            clock,
            settings,
            port,
            process: Mutex::new(None),
        };
        slot.set_clock(0);
        slot
    }

    /// `worker 2`, for the report.
    pub(crate) fn name(&self) -> String {
        match self.role {
            Role::Api => format!("API {}", self.index),
            Role::Worker => format!("worker {}", self.index),
        }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port.number())
    }

    fn version(&self) -> Version {
        self.version.lock().clone()
    }

    /// The `gapless-stack` of the next process.
    pub(crate) fn program(&self) -> PathBuf {
        self.version.lock().program.clone()
    }

    /// Metrics URL of the current worker process. `None`: a fault is acting on it.
    pub(crate) fn metrics_url(&self) -> Option<String> {
        let process = self.process.try_lock().ok()?;
        process.as_ref().map(|process| process.metrics_url().to_owned())
    }

    /// The proxies of all nodes that its configuration names.
    pub(crate) fn proxies(&self) -> impl Iterator<Item = &Proxy> {
        std::iter::once(&self.proxy).chain(&self.second)
    }

    /// Sets the offset of this slot's wall clock, in seconds.
    pub(crate) fn set_clock(&self, seconds: i64) {
        std::fs::write(&self.clock, seconds.to_string()).expect("the clock can be set");
    }

    async fn start(&self, stack: &Stack) -> Service {
        let version = self.version();
        let builder = match (self.role, version.crew) {
            (Role::Api, _) => stack.api().set("api.bind", format!("127.0.0.1:{}", self.port.number())),
            (Role::Worker, Crew::Product) => stack.worker(),
            (Role::Worker, Crew::Reference(strategy)) => {
                ServiceBuilder::new(stack, Part::ReferenceWorker).env(FENCE_STRATEGY_VAR, strategy.name())
            }
        };
        let clock = self.clock.to_str().expect("a UTF-8 path").to_owned();
        let builder = builder
            .program(&version.program)
            .rpc(&self.proxies().map(Proxy::url).collect::<Vec<_>>())
            .via(&self.database_proxy)
            .env(CLOCK_VAR, &clock);
        let settings = self.settings.iter();
        let builder = settings.fold(builder, |builder, (key, value)| builder.set(key, value.clone()));
        // A start may fail under faults; the supervisor retries it.
        builder.without_waiting().start().await
    }

    /// The first start. There are no faults yet, so it must succeed.
    pub(crate) async fn open(&self, stack: &Stack) {
        let mut process = self.process.lock().await;
        let service = self.start(stack).await;
        let started = wait_started(&service, LIMIT).await;
        assert!(started, "{} did not start:\n{}", self.name(), service.log());
        *process = Some(service);
    }

    /// `kill -9`, and a new process after `away`.
    pub(crate) async fn kill(&self, stack: &Stack, away: Duration) {
        let mut process = self.process.lock().await;
        if let Some(process) = process.as_ref() {
            process.kill9();
        }
        tokio::time::sleep(away).await;
        *process = Some(self.start(stack).await);
    }

    /// SIGSTOP for `length`, then SIGCONT. Connections stay open.
    pub(crate) async fn freeze(&self, length: Duration) {
        let process = self.process.lock().await;
        let Some(frozen) = process.as_ref() else { return };
        frozen.sigstop();
        tokio::time::sleep(length).await;
        frozen.sigcont();
    }

    /// Graceful restart. Returns whether the process exited within the time limit.
    pub(crate) async fn roll(&self, stack: &Stack) -> bool {
        let mut process = self.process.lock().await;
        let in_time = match process.as_ref() {
            Some(process) => stop(process).await,
            None => true,
        };
        *process = Some(self.start(stack).await);
        in_time
    }

    /// Ends the process and starts one of another version. Returns whether that has started within the time limit; if not,
    /// the supervisor goes on with the same version.
    pub(crate) async fn roll_to(&self, stack: &Stack, version: Version, signal: Signal) -> bool {
        let mut process = self.process.lock().await;
        match (process.as_ref(), signal) {
            (Some(process), Signal::Term) => {
                stop(process).await;
            }
            (Some(process), Signal::Kill) => process.kill9(),
            (None, _) => {}
        }
        *self.version.lock() = version;
        let service = self.start(stack).await;
        let started = wait_started(&service, START_LIMIT).await;
        *process = Some(service);
        started
    }

    /// Starts a new process if the current one has exited.
    async fn restart_if_ended(&self, stack: &Stack) {
        // The holder of the lock starts the next process itself.
        let Ok(mut process) = self.process.try_lock() else { return };
        if process.as_ref().is_some_and(|process| !process.is_running()) {
            *process = Some(self.start(stack).await);
        }
    }

    /// Kills the process without starting another.
    pub(crate) async fn close(&self) {
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

/// Waits for the end of the start, or of the process.
async fn wait_started(process: &Service, limit: Duration) -> bool {
    let waited = async {
        while process.is_running() && !process.has_started() {
            tokio::time::sleep(POLL).await;
        }
        process.has_started()
    };
    tokio::time::timeout(limit, waited).await.unwrap_or(false)
}

/// Restarts ended processes of these slots, forever.
pub(crate) async fn supervise(stack: &Stack, slots: &[&ProcessSlot]) {
    loop {
        for slot in slots {
            slot.restart_if_ended(stack).await;
        }
        tokio::time::sleep(SUPERVISE_INTERVAL).await;
    }
}
