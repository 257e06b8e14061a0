//! `eth_sendTransaction` compared with `POST /api/v1/tx`, both until the transactions are final: its answer needs a worker.

use std::time::{Duration, Instant};

use anyhow::Result;

use super::NAME;
use crate::bed::{Bed, CHAIN_ID, Key, keys};
use crate::chain::{Chain, Mining};
use crate::load::{self, Loaded, Until};
use crate::report::{GoalResult, Report, Row, Table};

const SUBMITTERS: usize = 500;
/// Fewer than submitters, each of which has one open transaction. The latency of an answer limits them: it waits for two
/// notifications of up to 100 ms each.
const CLIENTS: usize = 256;
const LIMIT: Duration = Duration::from_secs(300);
const GOAL: f64 = 0.8;

pub(super) async fn run(bed: &Bed, quick: bool, report: &mut Report) -> Result<()> {
    let count = if quick { 4_000 } else { 20_000 };
    let title = format!(
        "{count} transactions from request to final state, {CLIENTS} clients, {SUBMITTERS} submitters"
    );
    let mut table = Table::new(title);
    let mut rates = Vec::new();
    for (what, is_rpc) in [("POST /api/v1/tx", false), ("eth_sendTransaction", true)] {
        let keys = keys(SUBMITTERS);
        let chain = Chain::start(CHAIN_ID, Mining::AtOnce).await?;
        let mut run = bed.run("json-rpc", chain.url()).await?;
        run.set("api.json_rpc.enabled", true);
        let mut worker = run.start_worker(&keys).await?;
        let mut api = run.start_api().await?;
        send(api.port(), &keys, is_rpc, "first", SUBMITTERS).await?;
        run.wait_settled(LIMIT).await?;
        let (meter, begun) = (run.meter(&[&api], &[&worker]).await?, Instant::now());
        let mut loaded = send(api.port(), &keys, is_rpc, "b", count).await?;
        run.wait_settled(LIMIT).await?;
        let (rate, stopped) = (count as f64 / begun.elapsed().as_secs_f64(), meter.stop());
        worker.stop().await?;
        api.stop().await?;
        let usage = stopped.usage(&run.monitor).await?;
        run.finish().await?;
        let row = Row::default().text("what", what).number("per s", rate, 0);
        let row = loaded.latencies.columns(row).number("ms CPU/tx", usage.cpu_ms_per(count as f64), 3);
        table.rows.push(usage.columns(row, count as f64));
        rates.push(rate);
    }
    report.table(NAME, table);
    let ratio = rates[1] / rates[0];
    let measured = format!("{ratio:.2} × ({:.0}/s)", rates[1]);
    report.goal("eth_sendTransaction", format!("≥ {GOAL} × POST"), measured, GoalResult::of(ratio >= GOAL));
    Ok(())
}

async fn send(port: u16, keys: &[Key], is_rpc: bool, name: &'static str, count: usize) -> Result<Loaded> {
    let keys = keys.to_vec();
    if !is_rpc {
        let body = move |number: usize| keys[number % keys.len()].request(&format!("{name}-{number}"));
        return load::post(port, CLIENTS, Until::Count(count), body).await;
    }
    let body = move |number: usize| keys[number % keys.len()].rpc_call(number);
    let has_hash =
        |status: u16, answer: &[u8]| status == 200 && answer.windows(8).any(|part| part == b"\"result\"");
    load::post_to(port, format!("/rpc/{CHAIN_ID}"), CLIENTS, Until::Count(count), body, has_hash).await
}
