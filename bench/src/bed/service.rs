//! A process of the product, started as an operator would.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use gapless_cli::localnet::{Launch, Port, Process};
use nix::sys::signal::Signal;

use crate::load::Connection;

/// Ten thousand keys are read before a worker has started, and builds may be slow.
const START_LIMIT: Duration = Duration::from_secs(120);
const STOP_LIMIT: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub(crate) struct Service {
    process: Process,
    /// Where an API serves, or a worker its metrics.
    port: Port,
}

/// Starts it and waits until its log holds `ready`.
pub(crate) async fn launched(launch: Launch, port: Port, ready: &str) -> Result<Service> {
    let log = launch.log.clone();
    let mut process = launch.spawn()?;
    let deadline = Instant::now() + START_LIMIT;
    while !read(&log).contains(ready) {
        if process.exited()?.is_some() {
            bail!("{} ended at its start:\n{}", process.name(), process.log_tail(20));
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

    /// Until its port takes connections.
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

    /// In good order. Its sessions with the database end, and report what they did.
    pub(crate) async fn stop(&mut self) -> Result<()> {
        if !self.process.stop(STOP_LIMIT).await? {
            bail!("{} did not stop:\n{}", self.process.name(), self.process.log_tail(20));
        }
        self.check_log()
    }

    /// A figure of a process that panicked is worth nothing.
    pub(crate) fn check_log(&self) -> Result<()> {
        let log = read(self.process.log());
        match log.lines().find(|line| line.contains("panicked at")) {
            Some(line) => bail!("{} panicked: {line}", self.process.name()),
            None => Ok(()),
        }
    }

    /// JSON-RPC calls so far, as a worker counts them: from its first one on.
    pub(crate) async fn rpc_calls(&self) -> Result<f64> {
        let mut connection = Connection::open(self.port()).await?;
        let (_, body) = connection.get("/metrics").await?;
        let body = String::from_utf8_lossy(&body).into_owned();
        let sum = body.lines().find_map(|line| line.strip_prefix("gapless_rpc_batch_size_sum"));
        let Some(value) = sum.and_then(|rest| rest.rsplit(' ').next()) else { return Ok(0.0) };
        value.parse().context("the worker's count of its calls is no number")
    }
}
