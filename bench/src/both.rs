//! Both at once: ingest and engine on the same machine and the same rows, beside each of them alone.

use std::time::Duration;

use anyhow::Result;

use crate::args::Args;
use crate::bed::{Bed, CHAIN_ID, Key, keys};
use crate::chain::{Chain, Mining};
use crate::engine::{Drive, drive};
use crate::load::{self, Until};
use crate::machine::cores;
use crate::report::{Report, Row, Table, Verdict};

const NAME: &str = "both";
const CLIENTS: usize = 64;
const SUBMITTERS: usize = 1_000;
const LIMIT: Duration = Duration::from_secs(900);
const GOAL_EACH: f64 = 0.8;
/// With fewer, one takes from the other whatever the program does.
const CORES_FOR_BOTH: usize = 4;
const GOAL_COMMITS: f64 = 0.05;
const GOAL_RPC: f64 = 1.3;
const GOAL_WAL: f64 = 3_000.0;
const GOAL_CPU_MS: f64 = 0.6;

pub(crate) async fn run(bed: &Bed, args: &Args, report: &mut Report) -> Result<()> {
    let (time, each) = if args.quick { (Duration::from_secs(2), 4) } else { (Duration::from_secs(5), 15) };
    let keys = keys(SUBMITTERS);
    let ingest_alone = ingest_alone(bed, &keys, time).await?;
    let engine_alone = drive(bed, Drive::new("engine-alone", &keys, each)).await?.rate();

    let chain = Chain::start(CHAIN_ID, Mining::AtOnce).await?;
    let run = bed.run("both", chain.url()).await?;
    let mut worker = run.start_worker(&keys).await?;
    let mut api = run.start_api().await?;
    let meter = run.meter(&[&api], &[&worker]).await?;
    let (calls, begun) = (chain.calls(), run.now().await?);
    let loaded = load::post(api.port(), CLIENTS, Until::Elapsed(time), body(&keys)).await?;
    let ended = run.now().await?;
    // Until nothing is left, so that the cost is that of whole lives.
    run.wait_settled(LIMIT).await?;
    let (stopped, calls) = (meter.stop(), chain.calls() - calls);
    worker.stop().await?;
    api.stop().await?;
    let mut usage = stopped.usage(&run.monitor).await?;
    usage.rpc_calls = Some(calls);
    let count = loaded.count();
    let lifetimes = run.lifetimes(loaded.latencies.len()).await?;
    run.finish().await?;

    let engine = lifetimes.rate_between(begun, ended);
    let drained = lifetimes.sustained_rate();
    let mut table = Table::new("Both at once: ingest at 64, engine with 1,000 submitters");
    let line = |what: &str| Row::default().text("what", what);
    table.rows.push(line("ingest alone").number("per s", ingest_alone, 0));
    table.rows.push(line("engine alone").number("per s", engine_alone, 0));
    let ingest_share = loaded.rate() / ingest_alone;
    let engine_share = engine / engine_alone;
    table.rows.push(line("ingest, both").number("per s", loaded.rate(), 0).number(
        "× alone",
        ingest_share,
        2,
    ));
    table.rows.push(line("engine, both").number("per s", engine, 0).number("× alone", engine_share, 2));
    let row = line("whole lives").number("per s", drained, 0);
    table.rows.push(usage.columns(lifetimes.whole().columns(row), count));
    report.table(NAME, table);

    let verdict = match cores() >= CORES_FOR_BOTH {
        true => Verdict::of(ingest_share >= GOAL_EACH && engine_share >= GOAL_EACH),
        false => Verdict::Open("too few cores for both"),
    };
    let measured = format!("ingest {ingest_share:.2} ×, engine {engine_share:.2} ×");
    report.goal("ingest and engine at once", format!("≥ {GOAL_EACH} × of each alone"), measured, verdict);
    let (commits, wal) = (usage.commits_per(count), usage.wal_per(count));
    let (rpc, cpu) = (usage.rpc_per(count).unwrap_or_default(), usage.cpu_ms_per(count));
    let met = commits <= GOAL_COMMITS && rpc <= GOAL_RPC && wal <= GOAL_WAL && cpu <= GOAL_CPU_MS;
    report.goal(
        "under load, per tx",
        format!(
            "≤ {GOAL_COMMITS} commits, ≤ {GOAL_RPC} RPC calls, ≤ {GOAL_WAL} B WAL, ≤ {GOAL_CPU_MS} ms CPU"
        ),
        format!("{commits:.3}, {rpc:.2}, {wal:.0} B, {cpu:.3} ms"),
        Verdict::of(met),
    );
    Ok(())
}

fn body(keys: &[Key]) -> impl Fn(usize) -> String + Send + Sync + 'static {
    let keys = keys.to_vec();
    move |number| keys[number % keys.len()].request(&format!("b-{number}"))
}

async fn ingest_alone(bed: &Bed, keys: &[Key], time: Duration) -> Result<f64> {
    let chain = Chain::start(CHAIN_ID, Mining::AtOnce).await?;
    let run = bed.run("ingest-alone", chain.url()).await?;
    run.announce(keys, false).await?;
    let mut api = run.start_api().await?;
    let loaded = load::post(api.port(), CLIENTS, Until::Elapsed(time), body(keys)).await?;
    api.stop().await?;
    run.finish().await?;
    Ok(loaded.rate())
}
