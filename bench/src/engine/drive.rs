//! One engine run: a full queue and worker processes, measured from the first nonce to the last confirmation.

use std::time::Duration;

use anyhow::Result;

use crate::bed::{Bed, CHAIN_ID, Key, Lifetimes, Run};
use crate::chain::{Calls, Chain, Mining};
use crate::measure::{Statement, Usage};
use crate::report::Row;
use crate::scale::Ballast;

/// Generous, for debug builds on a loaded machine.
const LIMIT: Duration = Duration::from_secs(900);

#[derive(Clone, Debug)]
pub(crate) struct Drive<'a> {
    pub(crate) name: &'a str,
    pub(crate) keys: &'a [Key],
    pub(crate) each: usize,
    pub(crate) window: u32,
    pub(crate) workers: usize,
    /// Additional rows in the tables.
    pub(crate) ballast: Ballast,
}

#[derive(Debug)]
pub(crate) struct Driven {
    pub(crate) count: f64,
    pub(crate) lifetimes: Lifetimes,
    pub(crate) usage: Usage,
    pub(crate) top: Vec<Statement>,
    pub(crate) calls: Calls,
}

impl<'a> Drive<'a> {
    /// One worker, the default window, no additional rows.
    pub(crate) fn new(name: &'a str, keys: &'a [Key], each: usize) -> Drive<'a> {
        Drive { name, keys, each, window: 1, workers: 1, ballast: Ballast::None }
    }
}

pub(crate) async fn drive(bed: &Bed, drive: Drive<'_>) -> Result<Driven> {
    let chain = Chain::start(CHAIN_ID, Mining::AtOnce).await?;
    let mut run = bed.run(drive.name, chain.url()).await?;
    configure(&mut run, &drive);
    // Paused until the workers have started: loading thousands of keys is not measured.
    run.announce(drive.keys, true).await?;
    run.fill(drive.keys, drive.each).await?;
    drive.ballast.put(&run.db, drive.keys).await?;
    let mut workers = Vec::new();
    for _ in 0..drive.workers {
        workers.push(run.start_worker(drive.keys).await?);
    }
    run.monitor.reset_statements().await?;
    let calls_before = chain.calls_by_method();
    let meter = run.meter(&[], &workers.iter().collect::<Vec<_>>()).await?;
    run.activate().await?;
    let wanted = drive.keys.len() * drive.each;
    chain.wait_mined(wanted, LIMIT).await?;
    if !drive.ballast.is_queued() {
        run.wait_settled(LIMIT).await?;
    }
    let (count, mut calls) = (chain.mined() as f64, chain.calls_by_method());
    for (method, before) in calls_before {
        calls.entry(method).and_modify(|count| *count -= before);
    }
    let stopped = meter.stop();
    for worker in &mut workers {
        worker.stop().await?;
    }
    let mut usage = stopped.usage(&run.monitor).await?;
    usage.rpc_calls = Some(calls.values().sum::<u64>() as f64);
    let confirmed = if drive.ballast.is_queued() { 1 } else { wanted };
    let top = run.monitor.top().await?;
    let driven = Driven { count, lifetimes: run.lifetimes(confirmed).await?, usage, top, calls };
    run.finish().await?;
    Ok(driven)
}

fn configure(run: &mut Run<'_>, drive: &Drive<'_>) {
    run.set("worker.max_leases", drive.keys.len().max(5_000));
    run.set("nonce.max_in_flight", drive.window);
    if drive.window > 1 {
        run.set("nonce.release_at", "mined");
    }
}

impl Driven {
    /// Per second, without the ramp-up and the end.
    pub(crate) fn rate(&self) -> f64 {
        self.lifetimes.sustained_rate()
    }

    /// Estimated rate if signing and the chain ran on other cores: the same CPU seconds, spent on
    /// the rest.
    pub(super) fn with_own_cores(&self, signing_ms: f64) -> f64 {
        let product = self.usage.worker_cpu + self.usage.postgres_cpu;
        let signing = (signing_ms * self.count / 1000.0).min(self.usage.worker_cpu * 0.95);
        self.rate() * (product + self.usage.bench_cpu) / (product - signing).max(1e-6)
    }

    pub(crate) fn row(&self, submitters: usize, each: usize) -> Row {
        let row = Row::default().text("what", "worker").number("submitters", submitters as f64, 0);
        let row = row.number("each", each as f64, 0).number("tx/s", self.rate(), 0);
        let row = row.number("tx/s with start and end", self.lifetimes.rate_of_work(), 0);
        let row = self.lifetimes.in_flight().columns(row);
        self.usage.columns(row, self.count)
    }
}
