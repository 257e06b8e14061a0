//! End to end on anvil: from the first POST to the last confirmation, compared with a bare sender.

mod bare;

pub(crate) use bare::send_and_see;

use std::time::Duration;

use anyhow::{Result, ensure};
use ethers_core::types::U256;
use gapless_localnet::{Anvil, AnvilOptions, Mining};
use serde_json::{Value, json};

use crate::args::Args;
use crate::bed::{Bed, CHAIN_ID, Key, Lifetimes, keys};
use crate::load::{self, Rpc, Until};
use crate::machine::cores;
use crate::measure::{Usage, cpu_seconds};
use crate::report::{GoalResult, Report, Row, Table};

const NAME: &str = "anvil";
const LIMIT: Duration = Duration::from_secs(900);
/// Concurrent clients.
const CLIENTS: usize = 64;
/// Maximum tries of the bare sender.
const BARE_TRIES: u32 = 3;
const GOAL_OF_BARE: f64 = 0.7;
const GOAL_OF_WAITING: f64 = 0.5;

#[derive(Clone, Copy, Debug)]
struct Case {
    mining: Mining,
    window: u32,
    submitters: usize,
    each: usize,
    gas_limit: Option<u64>,
    judged: bool,
}

fn instant(submitters: usize, each: usize, judged: bool) -> Case {
    Case { mining: Mining::Instant, window: 1, submitters, each, gas_limit: None, judged }
}

fn by_second(submitters: usize, each: usize, gas_limit: Option<u64>, judged: bool) -> Case {
    Case { mining: Mining::Interval(1.0), window: 32, submitters, each, gas_limit, judged }
}

fn cases(args: &Args) -> Vec<Case> {
    /// Room for ten thousand transfers in a block.
    const WIDE: Option<u64> = Some(300_000_000);
    if args.has_size() {
        let (submitters, each) = args.size(50, 20);
        return vec![instant(submitters, each, true), by_second(submitters, each, WIDE, true)];
    }
    if args.quick {
        return vec![instant(1, 50, false), instant(50, 20, true), by_second(100, 20, WIDE, false)];
    }
    vec![
        instant(1, 500, false),
        instant(50, 20, true),
        instant(200, 20, false),
        by_second(1, 500, None, false),
        by_second(50, 20, None, false),
        by_second(500, 20, WIDE, true),
    ]
}

pub(crate) async fn run(bed: &Bed, args: &Args, report: &mut Report) -> Result<()> {
    let mut table = Table::new("End to end on anvil, one confirmation");
    for case in cases(args) {
        let keys = keys(case.submitters);
        let bare = bare(&case, &keys).await?;
        let waiting = match case.submitters == 1 && case.mining == Mining::Instant {
            true => {
                let anvil = start_anvil(&case, &keys).await?;
                Some(bare::send_and_wait(anvil.port(), &keys[0], case.each).await?)
            }
            false => None,
        };
        let ours = gapless(bed, &case, &keys).await?;
        table.rows.push(row(&case, &ours, &bare, waiting));
        evaluate(report, &case, &ours, &bare, waiting);
    }
    report.table(NAME, table);
    Ok(())
}

fn describe(case: &Case) -> String {
    let blocks = if case.mining == Mining::Instant { "automine" } else { "1 s blocks" };
    format!("{}×{}, {blocks}, window {}", case.submitters, case.each, case.window)
}

fn row(case: &Case, ours: &Ours, bare: &Bare, waiting: Option<f64>) -> Row {
    let (rate, count) = (ours.rate(), ours.lifetimes.count());
    let row = Row::default().text("what", describe(case)).number("tx/s", rate, 0);
    let row = row.number("bare tx/s", bare.rate, 0).number("× bare", rate / bare.rate, 2);
    let row = row.number("at most", ours.most_on(cores(), bare) / bare.rate, 2);
    let row = row.maybe("bare, waiting tx/s", waiting, 0);
    let row = row.maybe("× waiting", waiting.map(|waiting| rate / waiting), 2);
    let row = row.number("anvil ms/tx", ours.anvil_ms, 3).number("bare: anvil ms/tx", bare.anvil_ms, 3);
    ours.usage.columns(ours.lifetimes.whole().columns(row), count)
}

fn evaluate(report: &mut Report, case: &Case, ours: &Ours, bare: &Bare, waiting: Option<f64>) {
    let (rate, what) = (ours.rate(), format!("end to end, {}", describe(case)));
    if case.judged {
        let share = rate / bare.rate;
        let most = ours.most_on(cores(), bare) / bare.rate;
        let measured = format!(
            "{share:.2} × ({rate:.0} of {:.0} tx/s; {} cores allow {most:.2} × at most)",
            bare.rate,
            cores()
        );
        report.goal(
            &what,
            format!("≥ {GOAL_OF_BARE} × the bare sender"),
            measured,
            GoalResult::of(share >= GOAL_OF_BARE),
        );
        report.headline(format!("{} {share:.2} × bare", describe(case)));
    }
    if let Some(waiting) = waiting {
        let share = rate / waiting;
        let goal = format!("≥ {GOAL_OF_WAITING} × a bare sender that waits for each receipt");
        report.goal(what, goal, format!("{share:.2} ×"), GoalResult::of(share >= GOAL_OF_WAITING));
    }
}

async fn start_anvil(case: &Case, keys: &[Key]) -> Result<Anvil> {
    funded_anvil(case.mining, case.gas_limit, keys).await
}

/// A new chain on which the keys have a thousand ether each.
pub(crate) async fn funded_anvil(mining: Mining, gas_limit: Option<u64>, keys: &[Key]) -> Result<Anvil> {
    let program = Bed::anvil_program().await?;
    let options =
        AnvilOptions { chain_id: CHAIN_ID, mining, gas_limit, accounts: 0, ..AnvilOptions::default() };
    let anvil = Anvil::start(&program, options).await?;
    let mut rpc = Rpc::open(anvil.port()).await?;
    for some in keys.chunks(100) {
        let params: Vec<Value> = some.iter().map(|key| json!([key.address(), U256::exp10(21)])).collect();
        rpc.batch("anvil_setBalance", &params).await?;
    }
    Ok(anvil)
}

/// The bare sender's run.
struct Bare {
    rate: f64,
    anvil_ms: f64,
}

/// Because of a race in anvil, a transaction may stay queued forever if the nonce before it is mined while it is
/// added. Such a run is repeated.
async fn bare(case: &Case, keys: &[Key]) -> Result<Bare> {
    let mut tries = 1;
    loop {
        match bare_once(case, keys).await {
            Err(error) if tries < BARE_TRIES => eprintln!("the bare sender is retried: {error:#}"),
            measured => return measured,
        }
        tries += 1;
    }
}

async fn bare_once(case: &Case, keys: &[Key]) -> Result<Bare> {
    let anvil = start_anvil(case, keys).await?;
    let before = cpu_seconds(anvil.pid());
    let rate = bare::send_all(anvil.port(), keys, case.each, case.mining == Mining::Instant).await?;
    let spent = cpu_seconds(anvil.pid()) - before;
    Ok(Bare { rate, anvil_ms: spent * 1000.0 / (keys.len() * case.each) as f64 })
}

/// Gapless's run.
struct Ours {
    lifetimes: Lifetimes,
    usage: Usage,
    anvil_ms: f64,
}

impl Ours {
    fn rate(&self) -> f64 {
        self.lifetimes.rate_from_request()
    }

    /// Upper bound of the rate on these cores without idle time: CPU time of all processes per transaction, of
    /// anvil's only the part for sending.
    fn most_on(&self, cores: usize, bare: &Bare) -> f64 {
        let own = self.usage.cpu_ms_per(self.lifetimes.count())
            + self.usage.bench_cpu * 1000.0 / self.lifetimes.count();
        cores as f64 * 1000.0 / (own + bare.anvil_ms)
    }
}

async fn gapless(bed: &Bed, case: &Case, keys: &[Key]) -> Result<Ours> {
    let anvil = start_anvil(case, keys).await?;
    let mut run = bed.run(&format!("anvil-{}-{}", case.submitters, case.window), &anvil.url()).await?;
    run.set("nonce.max_in_flight", case.window);
    if case.window > 1 {
        run.set("nonce.release_at", "mined");
    }
    let mut api = run.start_api().await?;
    let mut worker = run.start_worker(keys).await?;
    let calls = worker.rpc_calls().await?;
    let (meter, anvil_before) = (run.meter(&[&api], &[&worker]).await?, cpu_seconds(anvil.pid()));
    let count = case.submitters * case.each;
    let senders = keys.to_vec();
    let body = move |number: usize| senders[number % senders.len()].request(&format!("a-{number}"));
    load::post(api.port(), CLIENTS.min(count), Until::Count(count), body).await?;
    run.wait_settled(LIMIT).await?;
    let (stopped, anvil_cpu) = (meter.stop(), cpu_seconds(anvil.pid()) - anvil_before);
    let calls = worker.rpc_calls().await? - calls;
    ensure!(calls >= count as f64, "the worker counts {calls} calls for {count} transactions");
    worker.stop().await?;
    api.stop().await?;
    let mut usage = stopped.usage(&run.monitor).await?;
    usage.rpc_calls = Some(calls);
    let lifetimes = run.lifetimes(count).await?;
    run.finish().await?;
    Ok(Ours { lifetimes, usage, anvil_ms: anvil_cpu * 1000.0 / count as f64 })
}
