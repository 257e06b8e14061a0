//! A process of the product.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use gapless_localnet::{Launch, Port, Process};
use nix::sys::signal::Signal;

use crate::load::Connection;

/// A worker loads ten thousand keys before it has started, and debug builds are slow.
const START_LIMIT: Duration = Duration::from_secs(120);
const STOP_LIMIT: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub(crate) struct Service {
    process: Process,
    /// Port of an API, or of a worker's metrics.
    port: Port,
}

/// Starts it and waits until its log contains `ready`.
pub(crate) async fn launched(launch: Launch, port: Port, ready: &str) -> Result<Service> {
    let log = launch.log.clone();
    // An earlier process may have written to the same file.
    let before = read(&log).matches(ready).count();
    let mut process = launch.spawn()?;
    let deadline = Instant::now() + START_LIMIT;
    while read(&log).matches(ready).count() <= before {
        if process.exited()?.is_some() {
            bail!("{} exited during its start:\n{}", process.name(), process.log_tail(20));
        }
        if Instant::now() > deadline {
            bail!("{} has not started:\n{}", process.name(), process.log_tail(20));
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(Service { process, port })
}

fn read(log: &Path) -> String {
    String::from_utf8_lossy(&std::fs::read(log).unwrap_or_default()).into_owned()
}

impl Service {
    pub(crate) fn pid(&self) -> u32 {
        self.process.pid()
    }

    pub(crate) fn port(&self) -> u16 {
        self.port.number()
    }

    /// Waits until its port accepts connections.
    pub(crate) async fn reachable(&self) -> Result<()> {
        let deadline = Instant::now() + START_LIMIT;
        while let Err(error) = Connection::open(self.port()).await {
            if Instant::now() > deadline {
                return Err(error);
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Ok(())
    }

    pub(crate) fn kill9(&mut self) {
        self.process.kill9();
    }

    pub(crate) fn sigterm(&mut self) -> Result<()> {
        self.process.signal(Signal::SIGTERM)
    }

    /// Stops it gracefully. Its database sessions end and report their statistics.
    pub(crate) async fn stop(&mut self) -> Result<()> {
        if !self.process.stop(STOP_LIMIT).await? {
            bail!("{} did not stop:\n{}", self.process.name(), self.process.log_tail(20));
        }
        self.check_log()
    }

    /// Fails if the process panicked.
    pub(crate) fn check_log(&self) -> Result<()> {
        let log = read(self.process.log());
        match log.lines().find(|line| line.contains("panicked at")) {
            Some(line) => bail!("{} panicked: {line}", self.process.name()),
            None => Ok(()),
        }
    }

    /// Number of JSON-RPC calls so far, from the worker's metrics.
    pub(crate) async fn rpc_calls(&self) -> Result<f64> {
        let mut connection = Connection::open(self.port()).await?;
        let (_, body) = connection.get("/metrics").await?;
        let body = String::from_utf8_lossy(&body).into_owned();
        let sum = body.lines().find_map(|line| line.strip_prefix("gapless_rpc_batch_size_sum"));
        let Some(value) = sum.and_then(|rest| rest.rsplit(' ').next()) else { return Ok(0.0) };
        value.parse().context("the worker's call count is not a number")
    }
}
