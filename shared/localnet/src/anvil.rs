//! An anvil node, installed on this machine or from an npm package.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::free_port::Port;
use crate::lifeline::{Launch, Process};
use crate::npm;
pub use state::{StateFile, UnusableState};

mod state;

const START_LIMIT: Duration = Duration::from_secs(30);
/// Writing the state of a long chain takes a while.
const STOP_LIMIT: Duration = Duration::from_secs(30);
/// Path of the anvil program, or `npm`. Default: the PATH, else npm.
const CHOICE_VAR: &str = "GAPLESS_ANVIL";
/// Log line that anvil prints when it listens.
const LISTENING: &str = "Listening on 127.0.0.1:";
/// Another program may take the chosen port before anvil binds it.
const PORT_ATTEMPTS: u32 = 5;

/// Path of the anvil program.
#[derive(Clone, Debug)]
pub struct AnvilProgram(PathBuf);

impl AnvilProgram {
    pub fn obtain(say: fn(&str)) -> Result<AnvilProgram> {
        if let Some(path) = std::env::var_os(CHOICE_VAR).filter(|path| path != "npm") {
            return Ok(AnvilProgram(path.into()));
        }
        let path = std::env::var_os("PATH").unwrap_or_default();
        let mut on_path =
            std::env::split_paths(&path).map(|dir| dir.join("anvil")).filter(|program| program.is_file());
        if std::env::var_os(CHOICE_VAR).is_none()
            && let Some(program) = on_path.next()
        {
            return Ok(AnvilProgram(program));
        }
        let platform = match (std::env::consts::OS, std::env::consts::ARCH) {
            ("linux", "x86_64") => "linux-amd64",
            ("linux", "aarch64") => "linux-arm64",
            ("macos", "x86_64") => "darwin-amd64",
            ("macos", "aarch64") => "darwin-arm64",
            (os, arch) => bail!("anvil is not on the PATH and npm has no package for {os} on {arch}"),
        };
        // `@foundry-rs/anvil` is only a wrapper; the platform package contains the program.
        let package = npm::package(&format!("@foundry-rs/anvil-{platform}"), say)?;
        Ok(AnvilProgram(package.join("bin/anvil")))
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Mining {
    /// A block for every transaction.
    Instant,
    /// A block at this interval in seconds.
    Interval(f64),
    /// Only on `evm_mine`.
    Manual,
}

#[derive(Clone, Debug)]
pub struct AnvilOptions {
    pub chain_id: u64,
    /// `None`: any free port.
    pub port: Option<u16>,
    pub mining: Mining,
    pub state: Option<StateFile>,
    /// Number of funded development accounts with publicly known keys.
    pub accounts: u32,
    pub gas_limit: Option<u64>,
    /// Extra command line arguments: `--order fifo`, `--hardfork london`, …
    pub extra: Vec<String>,
    /// `None`: a temporary file.
    pub log: Option<PathBuf>,
}

impl Default for AnvilOptions {
    fn default() -> Self {
        AnvilOptions {
            chain_id: 31337,
            port: None,
            mining: Mining::Instant,
            state: None,
            accounts: 1,
            gas_limit: None,
            extra: Vec::new(),
            log: None,
        }
    }
}

impl AnvilOptions {
    fn args(&self, port: u16) -> Result<Vec<String>> {
        let mut args: Vec<String> = vec!["--host".into(), "127.0.0.1".into()];
        let mut pair = |name: &str, value: String| args.extend([name.to_owned(), value]);
        pair("--port", port.to_string());
        pair("--chain-id", self.chain_id.to_string());
        pair("--accounts", self.accounts.to_string());
        if let Some(limit) = self.gas_limit {
            pair("--gas-limit", limit.to_string());
        }
        if let Some(state) = &self.state {
            pair(
                "--state",
                state.path.to_str().context("the path of the state file is not UTF-8")?.to_owned(),
            );
            pair("--state-interval", state.every_secs.to_string());
            // Anvil creates block 0 at each start and adds it to the blocks of the file unless both are equal; with
            // several it serves any of them. They differ only in the timestamp, so reuse the timestamp of the file.
            let genesis = state.genesis_time()?;
            pair("--timestamp", genesis.map_or_else(unix_time, Ok)?.to_string());
        }
        match self.mining {
            Mining::Instant => {}
            Mining::Interval(seconds) => pair("--block-time", seconds.to_string()),
            Mining::Manual => args.push("--no-mining".into()),
        }
        args.extend(self.extra.iter().cloned());
        Ok(args)
    }
}

/// A running node. Dropping it kills it, without writing its state.
#[derive(Debug)]
pub struct Anvil {
    program: AnvilProgram,
    options: AnvilOptions,
    port: Port,
    process: Process,
    log: PathBuf,
    rpc: AnvilRpc,
    _temporary: Option<TempDir>,
}

impl Anvil {
    pub async fn start(program: &AnvilProgram, options: AnvilOptions) -> Result<Anvil> {
        let (log, temporary) = match &options.log {
            Some(log) => (log.clone(), None),
            None => {
                let dir = tempfile::Builder::new().prefix("gapless-anvil-").tempdir()?;
                (dir.path().join("anvil.log"), Some(dir))
            }
        };
        let mut attempt = 1;
        let (process, port) = loop {
            let port = options.port.map(Port::chosen).map_or_else(Port::claim, Ok)?;
            match launch(program, &options, &port, &log, temporary.as_ref()).await {
                Ok(process) => break (process, port),
                Err(_) if attempt < PORT_ATTEMPTS && options.port.is_none() => attempt += 1,
                Err(error) => return Err(error),
            }
        };
        let rpc = AnvilRpc { url: url(&port), http: gapless_http_client::client_builder().build()? };
        let anvil =
            Anvil { program: program.clone(), options, port, process, log, rpc, _temporary: temporary };
        anvil.prepare().await?;
        Ok(anvil)
    }

    pub fn port(&self) -> u16 {
        self.port.number()
    }

    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    pub fn url(&self) -> String {
        url(&self.port)
    }

    /// One JSON-RPC call; an error response is an error.
    pub async fn rpc(&self, method: &str, params: Value) -> Result<Value> {
        self.rpc.call(method, params).await
    }

    /// An RPC client that can outlive a borrow of the node.
    pub fn client(&self) -> AnvilRpc {
        self.rpc.clone()
    }

    async fn prepare(&self) -> Result<()> {
        // By default anvil logs every call.
        self.rpc("anvil_setLoggingEnabled", json!([false])).await?;
        if self.options.state.is_none() {
            return Ok(());
        }
        // `--timestamp` also sets anvil's clock, so new blocks would be as old as block 0. Set the clock to now, or to
        // after the newest block if that is in the future.
        let head = self.rpc("eth_getBlockByNumber", json!(["latest", false])).await?;
        let head = head["timestamp"]
            .as_str()
            .and_then(|hex| u64::from_str_radix(hex.trim_start_matches("0x"), 16).ok());
        let now = unix_time()?.max(head.context("anvil: the newest block has no timestamp")? + 1);
        self.rpc("evm_setTime", json!([now * 1000])).await.map(drop)
    }

    /// Simulates a crash: everything that is not in the state file is lost.
    pub fn kill9(&mut self) {
        self.process.kill9();
    }

    /// Restarts the node on the same port, from its state file if it has one.
    pub async fn restart(&mut self) -> Result<()> {
        self.stop().await?;
        self.process =
            launch(&self.program, &self.options, &self.port, &self.log, self._temporary.as_ref()).await?;
        self.prepare().await
    }

    /// Shuts the node down gracefully; it writes its state file.
    pub async fn stop(&mut self) -> Result<()> {
        self.process.stop(STOP_LIMIT).await?;
        Ok(())
    }
}

fn url(port: &Port) -> String {
    format!("http://127.0.0.1:{}", port.number())
}

/// JSON-RPC client of an anvil node.
#[derive(Clone, Debug)]
pub struct AnvilRpc {
    url: String,
    http: reqwest::Client,
}

impl AnvilRpc {
    pub async fn call(&self, method: &str, params: Value) -> Result<Value> {
        let body = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
        let response = self.http.post(&self.url).json(&body).send().await;
        let response = response.with_context(|| format!("anvil: {method}"))?;
        let mut response: Value = response.json().await.with_context(|| format!("anvil: {method}"))?;
        match response.get("error") {
            Some(error) => bail!("anvil: {method}: {error}"),
            None => Ok(response["result"].take()),
        }
    }
}

async fn launch(
    program: &AnvilProgram,
    options: &AnvilOptions,
    port: &Port,
    log: &Path,
    temporary: Option<&TempDir>,
) -> Result<Process> {
    // Truncate the log, so that it contains only output of this start.
    std::fs::write(log, "").with_context(|| format!("cannot write {}", log.display()))?;
    let mut launch = Launch::new("anvil", &program.0, log).args(options.args(port.number())?);
    launch.stop_signal = Signal::SIGINT;
    launch.remove_when_orphaned = temporary.map(|dir| dir.path().to_owned());
    let mut process = launch.spawn()?;
    let deadline = Instant::now() + START_LIMIT;
    loop {
        let printed = std::fs::read_to_string(log).unwrap_or_default();
        if printed.lines().any(|line| line.starts_with(LISTENING)) {
            return Ok(process);
        }
        if process.exited()?.is_some() {
            bail!("anvil exited during startup:\n{}", process.log_tail(20));
        }
        if Instant::now() > deadline {
            bail!("anvil does not listen after {START_LIMIT:?}:\n{}", process.log_tail(20));
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Unix time in seconds.
fn unix_time() -> Result<u64> {
    Ok(SystemTime::now().duration_since(UNIX_EPOCH).context("the system clock is before 1970")?.as_secs())
}
