//! Ingest and engine at the same time on the same tables, compared with each of them alone.

use std::time::Duration;

use anyhow::Result;

use crate::args::Args;
use crate::bed::{Bed, CHAIN_ID, Key, keys};
use crate::chain::{Chain, Mining};
use crate::engine::{Drive, drive};
use crate::load::{self, Until};
use crate::machine::cores;
use crate::measure::statements_table;
use crate::report::{GoalResult, Report, Row, Table};

const NAME: &str = "both";
const CLIENTS: usize = 64;
const SUBMITTERS: usize = 1_000;
const LIMIT: Duration = Duration::from_secs(900);
/// PostgreSQL sessions report their statistics at most once per second.
const REPORTED: Duration = Duration::from_millis(1_100);
const GOAL_EACH: f64 = 0.8;
/// With fewer cores the two compete for CPU in any case.
const CORES_FOR_BOTH: usize = 4;
const GOAL_COMMITS: f64 = 0.05;
const GOAL_RPC: f64 = 1.3;
const GOAL_WAL: f64 = 3_000.0;
const GOAL_CPU_MS: f64 = 0.6;

pub(crate) async fn run(bed: &Bed, args: &Args, report: &mut Report) -> Result<()> {
    let (time, each, posted) = match args.quick {
        true => (Duration::from_secs(2), 6, 4_000),
        false => (Duration::from_secs(5), 20, 30_000),
    };
    let keys = keys(SUBMITTERS);
    let ingest_alone = ingest_alone(bed, &keys, time).await?;
    let engine_alone = drive(bed, Drive::new("engine-alone", &keys, each)).await?.rate();
    let (ingest, engine) = together(bed, &keys, time, each).await?;
    let (ingest_share, engine_share) = (ingest / ingest_alone, engine / engine_alone);
    let mut table =
        Table::new(format!("Both at once: ingest at {CLIENTS}, engine with {SUBMITTERS} submitters"));
    let line = |what: &str, alone: f64, both: f64| {
        let row = Row::default().text("what", what).number("alone, per s", alone, 0);
        row.number("both, per s", both, 0).number("× alone", both / alone, 2)
    };
    table.rows = vec![line("ingest", ingest_alone, ingest), line("engine", engine_alone, engine)];
    report.table(NAME, table);
    let result = match cores() >= CORES_FOR_BOTH {
        true => GoalResult::of(ingest_share >= GOAL_EACH && engine_share >= GOAL_EACH),
        false => GoalResult::Open("too few cores for both"),
    };
    let measured = format!("ingest {ingest_share:.2} ×, engine {engine_share:.2} ×");
    report.goal("ingest and engine at once", format!("≥ {GOAL_EACH} × of each alone"), measured, result);
    full_lifecycle(bed, &keys, posted, report).await
}

/// Posts requests while the worker is busy. Returns both rates over the same time.
async fn together(bed: &Bed, keys: &[Key], time: Duration, each: usize) -> Result<(f64, f64)> {
    let chain = Chain::start(CHAIN_ID, Mining::AtOnce).await?;
    let run = bed.run("together", chain.url()).await?;
    run.announce(keys, true).await?;
    run.fill(keys, each).await?;
    let mut worker = run.start_worker(keys).await?;
    let mut api = run.start_api().await?;
    run.activate().await?;
    // Once this many are mined, all submitters are claimed.
    chain.wait_mined(keys.len(), LIMIT).await?;
    let begun = run.now().await?;
    let loaded = load::post(api.port(), CLIENTS, Until::Elapsed(time), body(keys, "b")).await?;
    let ended = run.now().await?;
    run.wait_settled(LIMIT).await?;
    worker.stop().await?;
    api.stop().await?;
    let lifetimes = run.lifetimes(keys.len() * each).await?;
    run.finish().await?;
    Ok((loaded.rate(), lifetimes.rate_between(begun, ended)))
}

/// Cost of a transaction from its request to its end, under load.
async fn full_lifecycle(bed: &Bed, keys: &[Key], posted: usize, report: &mut Report) -> Result<()> {
    let chain = Chain::start(CHAIN_ID, Mining::AtOnce).await?;
    let run = bed.run("lives", chain.url()).await?;
    let mut worker = run.start_worker(keys).await?;
    let mut api = run.start_api().await?;
    // Warm-up: each connection prepares each statement once, which PostgreSQL counts as a transaction.
    let first = posted / 10;
    load::post(api.port(), CLIENTS, Until::Count(first), body(keys, "first")).await?;
    run.wait_settled(LIMIT).await?;
    // A session reports its statistics with the first transaction that ends a second after its last report.
    tokio::time::sleep(REPORTED).await;
    load::post(api.port(), CLIENTS, Until::Count(CLIENTS), body(keys, "report")).await?;
    run.wait_settled(LIMIT).await?;
    run.monitor.reset_statements().await?;
    let (meter, calls) = (run.meter(&[&api], &[&worker]).await?, chain.calls());
    let begun = run.now().await?;
    load::post(api.port(), CLIENTS, Until::Count(posted), body(keys, "b")).await?;
    run.wait_settled(LIMIT).await?;
    let (stopped, calls) = (meter.stop(), chain.calls() - calls);
    worker.stop().await?;
    api.stop().await?;
    let mut usage = stopped.usage(&run.monitor).await?;
    usage.rpc_calls = Some(calls);
    let lifetimes = run.lifetimes(first + CLIENTS + posted).await?.created_since(begun);
    let count = lifetimes.count();
    let statements = run.monitor.top().await?;
    run.finish().await?;

    let (commits, wal) = (usage.commits_per(count), usage.wal_per(count));
    let (rpc, cpu) = (usage.rpc_per(count).unwrap_or_default(), usage.cpu_ms_per(count));
    let mut table =
        Table::new(format!("Under load: whole lives of {posted} transactions, {CLIENTS} clients"));
    let row = Row::default().number("tx/s", lifetimes.rate_from_request(), 0).number("ms CPU/tx", cpu, 3);
    table.rows.push(usage.columns(lifetimes.whole().columns(row), count));
    report.table(NAME, table);
    report.table(
        NAME,
        statements_table("Under load: where the database's time and its commits go", &statements, count),
    );
    let met = commits <= GOAL_COMMITS && rpc <= GOAL_RPC && wal <= GOAL_WAL && cpu <= GOAL_CPU_MS;
    report.goal(
        "under load, per tx",
        format!(
            "≤ {GOAL_COMMITS} commits, ≤ {GOAL_RPC} RPC calls, ≤ {GOAL_WAL} B WAL, ≤ {GOAL_CPU_MS} ms CPU"
        ),
        format!("{commits:.3}, {rpc:.2}, {wal:.0} B, {cpu:.3} ms"),
        GoalResult::of(met),
    );
    report.headline(format!("a life {cpu:.2} ms CPU"));
    Ok(())
}

fn body(keys: &[Key], word: &'static str) -> impl Fn(usize) -> String + Send + Sync + 'static {
    let keys = keys.to_vec();
    move |number| keys[number % keys.len()].request(&format!("{word}-{number}"))
}

async fn ingest_alone(bed: &Bed, keys: &[Key], time: Duration) -> Result<f64> {
    let chain = Chain::start(CHAIN_ID, Mining::AtOnce).await?;
    let run = bed.run("ingest-alone", chain.url()).await?;
    run.announce(keys, false).await?;
    let mut api = run.start_api().await?;
    let loaded = load::post(api.port(), CLIENTS, Until::Elapsed(time), body(keys, "b")).await?;
    api.stop().await?;
    run.finish().await?;
    Ok(loaded.rate())
}
