//! Ingest: rate of `POST /api/v1/tx`, compared with single-row INSERTs and an empty handler; and of `eth_sendTransaction`.

mod empty;
mod inserts;
mod json_rpc;

use std::time::Duration;

use anyhow::Result;

pub(crate) use empty::serve_nothing;

use crate::args::Args;
use crate::bed::{Bed, CHAIN_ID, Key, Run, keys};
use crate::chain::{Chain, Mining};
use crate::load::{self, Loaded, Until};
use crate::measure::{Latencies, Usage};
use crate::report::{GoalResult, Report, Row, Table};

const NAME: &str = "ingest";
/// Concurrency at which the goals are evaluated.
const GOALS_AT: usize = 64;

/// Rate and latencies of one line.
#[derive(Debug)]
struct Taken {
    rate: f64,
    latencies: Latencies,
    usage: Usage,
    count: f64,
}

impl Taken {
    fn row(&mut self, what: &str, clients: usize, submitters: usize) -> Row {
        let row = Row::default().text("what", what).number("clients", clients as f64, 0);
        let row = row.number("submitters", submitters as f64, 0).number("per s", self.rate, 0);
        self.latencies.columns(row)
    }
}

pub(crate) async fn run(bed: &Bed, args: &Args, report: &mut Report) -> Result<()> {
    let levels: &[usize] = if args.quick { &[GOALS_AT] } else { &[1, 16, GOALS_AT, 256] };
    let time = Duration::from_secs(if args.quick { 2 } else { 3 });
    let all = keys(500);
    let mut empties = Vec::new();
    for &clients in levels {
        empties.push(empty::run(bed, clients, time).await?);
    }
    let mut table = Table::new("Ingest: POST, single-row INSERTs, and a handler that does nothing");
    for (index, submitters) in [1, all.len()].into_iter().enumerate() {
        let some = &all[..submitters];
        let chain = Chain::start(CHAIN_ID, Mining::AtOnce).await?;
        let ours = bed.run(&format!("ingest-{submitters}"), chain.url()).await?;
        let theirs = bed.run(&format!("inserts-{submitters}"), chain.url()).await?;
        ours.announce(some, false).await?;
        theirs.announce(some, false).await?;
        for (&clients, empty) in levels.iter().zip(&mut empties) {
            let mut bare = inserts::run(bed, &theirs, clients, submitters, time).await?;
            let mut gapless = post(&ours, some, clients, time).await?;
            let row = gapless.row("Gapless", clients, submitters);
            let row = row.number("× INSERT", gapless.rate / bare.rate, 2);
            let row = row.number("× empty", gapless.rate / empty.rate, 2);
            table.rows.push(gapless.usage.columns(row, gapless.count));
            let row = bare.row(inserts::driver(bed), clients, submitters);
            table.rows.push(bare.usage.columns(row, bare.count));
            if index == 0 {
                table.rows.push(empty.row("empty handler", clients, 0));
            }
            if clients == GOALS_AT {
                evaluate(report, submitters, &mut gapless, &mut bare, empty);
            }
        }
        ours.finish().await?;
        theirs.finish().await?;
    }
    report.table(NAME, table);
    json_rpc::run(bed, args.quick, report).await
}

fn evaluate(report: &mut Report, submitters: usize, gapless: &mut Taken, bare: &mut Taken, empty: &Taken) {
    let what = format!("ingest at {GOALS_AT}, submitters: {submitters}");
    let (of_bare, of_empty) = (gapless.rate / bare.rate, gapless.rate / empty.rate);
    report.goal(
        &what,
        "≥ 1.0 × single-row INSERTs, ≥ 0.5 × the empty handler",
        format!("{of_bare:.2} ×, {of_empty:.2} × ({:.0}/s)", gapless.rate),
        GoalResult::of(of_bare >= 1.0 && of_empty >= 0.5),
    );
    let (p99, bare_p99) = (gapless.latencies.percentile(0.99), bare.latencies.percentile(0.99));
    report.goal(
        format!("{what}: p99"),
        "≤ 2 × that of the INSERTs",
        format!("{:.2} × ({p99:.1} ms, {bare_p99:.1} ms)", p99 / bare_p99),
        GoalResult::of(p99 <= 2.0 * bare_p99),
    );
    if submitters > 1 {
        report.headline(format!("ingest {:.0}/s = {of_bare:.2} × INSERT", gapless.rate));
    }
}

/// A new API process per level, so that its sessions report their statistics.
async fn post(run: &Run<'_>, keys: &[Key], clients: usize, time: Duration) -> Result<Taken> {
    let mut api = run.start_api().await?;
    let loaded = {
        let keys = keys.to_vec();
        let body = move |number: usize| keys[number % keys.len()].request(&format!("c{clients}-{number}"));
        // Warm-up: database connections are opened by the first requests.
        load::post(api.port(), clients, Until::Elapsed(time / 10), {
            let body = body.clone();
            move |number| body(number + 1_000_000_000)
        })
        .await?;
        let meter = run.meter(&[&api], &[]).await?;
        let loaded: Loaded = load::post(api.port(), clients, Until::Elapsed(time), body).await?;
        (loaded, meter.stop())
    };
    api.stop().await?;
    let (loaded, stopped) = loaded;
    let usage = stopped.usage(&run.monitor).await?;
    Ok(Taken { rate: loaded.rate(), count: loaded.count(), latencies: loaded.latencies, usage })
}
