//! Cost of a run: CPU time and memory of each process, and work of the database and the chain.

mod database;
mod latency;
mod process;

use std::time::{Duration, Instant};

use anyhow::Result;

pub(crate) use database::{Counters, Monitor, Statement, statements_table};
pub(crate) use latency::Latencies;
use process::resident_mb;
pub(crate) use process::{cpu_seconds, own_cpu_seconds};

use crate::report::Row;

/// Processes by kind.
#[derive(Clone, Debug, Default)]
pub(crate) struct Parties {
    pub(crate) api: Vec<u32>,
    pub(crate) worker: Vec<u32>,
    pub(crate) postgres: u32,
}

/// CPU seconds by kind so far.
#[derive(Clone, Copy, Debug, Default)]
struct Cpu {
    api: f64,
    worker: f64,
    postgres: f64,
    /// This program: the in-process chain and the load generator.
    bench: f64,
}

impl Parties {
    fn cpu(&self) -> Cpu {
        Cpu {
            api: self.api.iter().map(|pid| cpu_seconds(*pid)).sum(),
            worker: self.worker.iter().map(|pid| cpu_seconds(*pid)).sum(),
            postgres: cpu_seconds(self.postgres),
            bench: own_cpu_seconds(),
        }
    }
}

/// A running measurement.
#[derive(Debug)]
pub(crate) struct Meter {
    parties: Parties,
    begun: Instant,
    cpu: Cpu,
    counters: Counters,
}

/// A stopped measurement. The database statistics are read after its clients have disconnected: sessions report
/// them when they end.
#[derive(Debug)]
pub(crate) struct Stopped {
    meter: Meter,
    wall: Duration,
    cpu: Cpu,
    api_mb: f64,
    worker_mb: f64,
}

/// The result.
#[derive(Clone, Debug, Default)]
pub(crate) struct Usage {
    pub(crate) wall: Duration,
    pub(crate) api_cpu: f64,
    pub(crate) worker_cpu: f64,
    pub(crate) postgres_cpu: f64,
    pub(crate) bench_cpu: f64,
    pub(crate) api_mb: f64,
    pub(crate) worker_mb: f64,
    pub(crate) commits: f64,
    pub(crate) writes: f64,
    pub(crate) statements: Option<f64>,
    pub(crate) wal_bytes: f64,
    /// Set by the benchmark, if it counts them.
    pub(crate) rpc_calls: Option<f64>,
}

impl Meter {
    pub(crate) async fn begin(monitor: &Monitor, parties: Parties) -> Result<Meter> {
        let counters = monitor.counters().await?;
        Ok(Meter { begun: Instant::now(), cpu: parties.cpu(), parties, counters })
    }

    pub(crate) fn stop(self) -> Stopped {
        let memory = |pids: &[u32]| pids.iter().map(|pid| resident_mb(*pid)).sum();
        Stopped {
            wall: self.begun.elapsed(),
            cpu: self.parties.cpu(),
            api_mb: memory(&self.parties.api),
            worker_mb: memory(&self.parties.worker),
            meter: self,
        }
    }
}

impl Stopped {
    pub(crate) async fn usage(self, monitor: &Monitor) -> Result<Usage> {
        let (before, after) = (self.meter.counters, monitor.counters().await?);
        let statements = after.statements.zip(before.statements).map(|(after, before)| after - before);
        Ok(Usage {
            wall: self.wall,
            api_cpu: self.cpu.api - self.meter.cpu.api,
            worker_cpu: self.cpu.worker - self.meter.cpu.worker,
            postgres_cpu: self.cpu.postgres - self.meter.cpu.postgres,
            bench_cpu: self.cpu.bench - self.meter.cpu.bench,
            api_mb: self.api_mb,
            worker_mb: self.worker_mb,
            commits: after.commits - before.commits,
            writes: after.writes - before.writes,
            statements,
            wal_bytes: after.wal_bytes - before.wal_bytes,
            rpc_calls: None,
        })
    }
}

impl Usage {
    /// CPU milliseconds of the product and its database, per transaction.
    pub(crate) fn cpu_ms_per(&self, count: f64) -> f64 {
        (self.api_cpu + self.worker_cpu + self.postgres_cpu) * 1000.0 / count
    }

    pub(crate) fn commits_per(&self, count: f64) -> f64 {
        self.commits / count
    }

    pub(crate) fn wal_per(&self, count: f64) -> f64 {
        self.wal_bytes / count
    }

    pub(crate) fn rpc_per(&self, count: f64) -> Option<f64> {
        self.rpc_calls.map(|calls| calls / count)
    }

    /// The common columns of all benchmarks, per transaction.
    pub(crate) fn columns(&self, row: Row, count: f64) -> Row {
        let ms = |seconds: f64| seconds * 1000.0 / count;
        let mut row = row;
        if self.api_mb > 0.0 {
            row = row.number("API ms/tx", ms(self.api_cpu), 3);
        }
        if self.worker_mb > 0.0 {
            row = row.number("worker ms/tx", ms(self.worker_cpu), 3);
        }
        row = row
            .number("PG ms/tx", ms(self.postgres_cpu), 3)
            .number("bench ms/tx", ms(self.bench_cpu), 3)
            .number("commits/tx", self.commits_per(count), 3)
            .number("writing/tx", self.writes / count, 3)
            .maybe("SQL/tx", self.statements.map(|statements| statements / count), 3)
            .number("WAL B/tx", self.wal_per(count), 0);
        if self.rpc_calls.is_some() {
            row = row.maybe("RPC/tx", self.rpc_per(count), 2);
        }
        if self.api_mb > 0.0 {
            row = row.number("API MB", self.api_mb, 0);
        }
        if self.worker_mb > 0.0 {
            row = row.number("worker MB", self.worker_mb, 0);
        }
        row
    }
}
