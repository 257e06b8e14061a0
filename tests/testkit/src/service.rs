//! One process of the stack: an API or a worker.

use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::{Duration, Instant};

use gapless_http_client::client_builder;
use gapless_localnet::{Launch, Port, Process, Settings};
use nix::sys::signal::Signal;
use parking_lot::{Mutex, MutexGuard};
use serde_json::Value;

use crate::client::Client;
use crate::eventually::{LIMIT, eventually};
use crate::stack::Stack;
use crate::tcp_proxy::TcpProxy;

/// Token of admin routes.
pub const ADMIN_TOKEN: &str = "an-operator-of-the-tests";
const STOP_LIMIT: Duration = Duration::from_secs(20);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    Api,
    Worker,
    /// The example worker with custom adapters.
    CustomWorker,
    /// `gapless_chaos::reference_worker`, for negative controls.
    ReferenceWorker,
}

impl Part {
    fn name(self) -> &'static str {
        match self {
            Part::Api => "api",
            Part::Worker => "worker",
            Part::CustomWorker => "custom-worker",
            Part::ReferenceWorker => "reference-worker",
        }
    }

    /// Its database role, unless a test sets another `database.url`.
    fn role(self) -> &'static str {
        match self {
            Part::Api => "gapless_api",
            Part::Worker | Part::CustomWorker | Part::ReferenceWorker => "gapless_worker",
        }
    }

    /// The log message of a completed start.
    fn started(self) -> &'static str {
        match self {
            Part::Api => "the API is listening",
            Part::Worker | Part::CustomWorker | Part::ReferenceWorker => "worker started",
        }
    }
}

/// Configures a process before its start.
#[derive(Debug)]
pub struct ServiceBuilder<'a> {
    stack: &'a Stack,
    part: Part,
    settings: Settings,
    env: Vec<(String, String)>,
    metrics_port: Option<Port>,
    wait: bool,
    program: PathBuf,
}

impl<'a> ServiceBuilder<'a> {
    pub fn new(stack: &'a Stack, part: Part) -> ServiceBuilder<'a> {
        let mut settings = stack.settings().clone();
        settings.set("database.url", stack.database_url_as(part.role()));
        let metrics_port =
            matches!(part, Part::Worker | Part::CustomWorker).then(|| Port::claim().expect("a free port"));
        match &metrics_port {
            None if part == Part::Api => settings.set("api.bind", "127.0.0.1:0"),
            None => {}
            Some(port) => settings.set("worker.metrics_bind", format!("127.0.0.1:{}", port.number())),
        }
        let env = if part == Part::Api { Vec::new() } else { stack.key_env() };
        let program = stack.program().to_owned();
        ServiceBuilder { stack, part, settings, env, metrics_port, wait: true, program }
    }

    /// Sets a configuration key for this process only.
    pub fn set(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.settings.set(key, value);
        self
    }

    /// Runs this `gapless-stack`, for example that of the previous release.
    pub fn program(mut self, program: &Path) -> Self {
        self.program = program.to_owned();
        self
    }

    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.env.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Kills the process at this point of `gapless_worker::failpoint::POINTS`, or at its nth pass: `sent:3`.
    pub fn failpoint(self, point: &str) -> Self {
        self.env("GAPLESS_FAILPOINT", point)
    }

    /// Uses these nodes instead.
    pub fn rpc(self, urls: &[&str]) -> Self {
        let key = format!("chain.{}.rpc.urls", Stack::chain_name(0));
        self.set(&key, urls.iter().map(|url| Value::from(*url)).collect::<Vec<_>>())
    }

    /// Connects to the database through this proxy, with the same role.
    pub fn via(mut self, proxy: &TcpProxy) -> Self {
        let direct = self.settings.text("database.url").expect("set when the builder was made");
        let url = proxy.url(direct);
        self.settings.set("database.url", url);
        self
    }

    /// Has only the keys of these submitters.
    pub fn only_keys(self, submitters: &[usize]) -> Self {
        let names: Vec<Value> = submitters.iter().map(|index| Stack::key_name(*index).into()).collect();
        self.set("signer.raw_key_env", names)
    }

    /// `start` does not wait for a completed start: for starts that block or fail.
    pub fn without_waiting(mut self) -> Self {
        self.wait = false;
        self
    }

    pub async fn start(self) -> Service {
        let name = self.stack.next_name(self.part.name());
        let dir = self.stack.dir();
        let config = self.settings.write(&dir.join(format!("{name}.toml"))).unwrap();
        let log = dir.join(format!("{name}.log"));
        let mut launch = Launch::new(&name, &self.program, &log);
        launch = launch.args([self.part.name(), "--config", config.to_str().expect("a UTF-8 path")]);
        launch.env = self.env;
        let metrics = self.settings.text("worker.metrics_bind").map(|bind| format!("http://{bind}"));
        let process = Arc::new(Mutex::new(launch.spawn().expect("a process of the stack starts")));
        let _metrics_port = self.metrics_port.map(Arc::new);
        let uses_tls = self.settings.text("api.tls.cert").is_some();
        let (part, program) = (self.part, self.program);
        let service = Service { name, part, program, log, process, metrics, uses_tls, _metrics_port };
        self.stack.adopt(service.clone());
        if self.wait {
            service.wait_until_started().await;
        }
        service
    }
}

/// A handle of a process. Clones refer to the same process; the stack has one too and stops the process.
#[derive(Clone, Debug)]
pub struct Service {
    name: String,
    part: Part,
    program: PathBuf,
    log: PathBuf,
    process: Arc<Mutex<Process>>,
    metrics: Option<String>,
    /// Whether `api.tls` is set.
    uses_tls: bool,
    /// Keeps the port reserved while there is a handle.
    _metrics_port: Option<Arc<Port>>,
}

impl Service {
    fn process(&self) -> MutexGuard<'_, Process> {
        self.process.lock()
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// The `gapless-stack` that it runs.
    pub fn program(&self) -> &Path {
        &self.program
    }

    pub fn pid(&self) -> u32 {
        self.process().pid()
    }

    pub(crate) fn is_api(&self) -> bool {
        self.part == Part::Api
    }

    pub fn is_running(&self) -> bool {
        self.process().exited().expect("the process can be asked").is_none()
    }

    /// Sends SIGKILL and waits for the exit.
    pub fn kill9(&self) {
        self.process().kill9();
    }

    /// Sends SIGSTOP and waits until all threads are stopped, which can take a moment on a busy machine. Connections
    /// and locks stay.
    pub fn sigstop(&self) {
        self.process().signal(Signal::SIGSTOP).unwrap();
        let deadline = Instant::now() + LIMIT;
        while !all_threads_stopped(self.pid()) {
            assert!(Instant::now() < deadline, "{} does not stop", self.name);
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    pub fn sigcont(&self) {
        self.process().signal(Signal::SIGCONT).unwrap();
    }

    /// Sends SIGTERM without waiting.
    pub fn sigterm(&self) {
        self.process().signal(Signal::SIGTERM).unwrap();
    }

    /// Sends SIGTERM and waits for the exit. Returns how long that took.
    pub async fn stop_sigterm(&self) -> Duration {
        let begun = Instant::now();
        self.sigterm();
        self.wait_exit_within(STOP_LIMIT).await;
        begun.elapsed()
    }

    /// Waits until it has exited.
    pub async fn wait_exit(&self) -> ExitStatus {
        self.wait_exit_within(LIMIT).await
    }

    async fn wait_exit_within(&self, limit: Duration) -> ExitStatus {
        let what = format!("{} exits", self.name);
        crate::eventually::eventually_within(limit, &what, async || {
            self.process().exited().expect("the process can be asked").ok_or("running")
        })
        .await
    }

    pub fn log_path(&self) -> &Path {
        &self.log
    }

    pub fn log(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    /// The JSON lines of the log.
    pub fn log_lines(&self) -> Vec<Value> {
        self.log().lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    /// Events logged with `events.mode = log`, oldest first. `event` is the name, `tx.id` the transaction.
    pub fn events(&self) -> Vec<Value> {
        self.log_lines().into_iter().filter(|line| line["message"] == "domain event").collect()
    }

    /// Waits for a log line that contains `text`.
    pub async fn wait_for_log(&self, text: &str) -> String {
        eventually(&format!("{} logs `{text}`", self.name), async || {
            let log = self.log();
            log.lines().find(|line| line.contains(text)).map(str::to_owned).ok_or_else(|| last_line(&log))
        })
        .await
    }

    /// Whether it has logged that its start is complete.
    pub fn has_started(&self) -> bool {
        self.log().contains(self.part.started())
    }

    async fn wait_until_started(&self) {
        let started = self.part.started();
        eventually(&format!("{} logs `{started}`", self.name), async || {
            let log = self.log();
            // A failpoint may kill it before it logs its start.
            if log.contains(started) || log.contains("failpoint: killing") {
                return Ok(());
            }
            assert!(self.is_running(), "{} exited during its start:\n{log}", self.name);
            Err(last_line(&log))
        })
        .await;
    }

    /// Base URL of an API.
    pub fn url(&self) -> String {
        assert!(self.is_api(), "{} is not an API", self.name);
        let log = self.log();
        let line = log.lines().find(|line| line.contains(Part::Api.started())).expect("the API has started");
        let json: Value = serde_json::from_str(line).unwrap_or_default();
        // With `log.format = "text"`: `address=127.0.0.1:8080`.
        let in_text = line.split_whitespace().find_map(|word| word.strip_prefix("address="));
        let address = json["address"].as_str().or(in_text).expect("the line has the address");
        let scheme = if self.uses_tls { "https" } else { "http" };
        format!("{scheme}://{address}")
    }

    /// Base URL of a worker's metrics.
    pub fn metrics_url(&self) -> &str {
        self.metrics.as_deref().expect("only workers have a metrics port")
    }

    /// A client of this API.
    pub fn client(&self) -> Client {
        Client::new(self.url(), ADMIN_TOKEN)
    }

    /// Current value of a metric, summed over all label sets that contain `labels` (`result="ok"`). 0 if absent.
    pub async fn metric(&self, name: &str, labels: &[&str]) -> f64 {
        let base = if self.is_api() { self.url() } else { self.metrics.clone().expect("workers have it") };
        let text = get(format!("{base}/metrics")).await.expect("metrics").text().await.unwrap();
        let samples = text.lines().filter_map(|line| line.rsplit_once(' ')).filter(|(key, _)| {
            key.split('{').next() == Some(name) && labels.iter().all(|label| key.contains(label))
        });
        samples.map(|(_, value)| value.parse::<f64>().unwrap_or(0.0)).sum()
    }

    /// The body of a GET of this path.
    pub async fn page(&self, path: &str) -> String {
        let base = if self.is_api() { self.url() } else { self.metrics.clone().expect("workers have it") };
        get(format!("{base}{path}")).await.expect("it answers").text().await.unwrap_or_default()
    }

    /// Status and body of `/readyz`.
    pub async fn readiness(&self) -> (u16, Value) {
        self.try_readiness().await.expect("/readyz answers")
    }

    /// The same while it may not listen yet.
    pub async fn try_readiness(&self) -> reqwest::Result<(u16, Value)> {
        let base = if self.is_api() { self.url() } else { self.metrics.clone().expect("workers have it") };
        let response = get(format!("{base}/readyz")).await?;
        Ok((response.status().as_u16(), response.json().await.unwrap_or_default()))
    }

    /// Peak memory in bytes; 0 if unknown.
    pub fn peak_memory_bytes(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap_or_default();
        let kilobytes = status
            .lines()
            .find_map(|line| line.strip_prefix("VmHWM:")?.trim().split(' ').next()?.parse().ok());
        kilobytes.unwrap_or(0u64) * 1024
    }

    pub(crate) fn tail(&self, lines: usize) -> String {
        self.process().log_tail(lines)
    }
}

async fn get(url: String) -> reqwest::Result<reqwest::Response> {
    client_builder().build()?.get(url).send().await
}

/// From /proc; assumed true on systems without it.
fn all_threads_stopped(pid: u32) -> bool {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return true };
    let stat =
        |thread: std::fs::DirEntry| std::fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
    // `id (name) state …`; the name may contain any character.
    threads
        .flatten()
        .map(stat)
        .all(|stat| stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('T')))
}

fn last_line(log: &str) -> String {
    log.lines().last().unwrap_or("nothing").to_owned()
}
