//! The engine: worker processes on a chain with instant mining, compared with the same SQL without signing and RPC.

mod ceiling;
mod drive;

use anyhow::Result;
use ethers_core::types::H256;

pub(crate) use drive::{Drive, Driven, drive};

use crate::args::Args;
use crate::bed::{Bed, Key, keys};
use crate::chain::Calls;
use crate::measure::{own_cpu_seconds, statements_table};
use crate::report::{GoalResult, Report, Row, Table};
use ceiling::Ceiling;

const NAME: &str = "engine";
/// The goals apply from this many submitters on.
const GOALS_FROM: usize = 1_000;
const GOAL_RATE: f64 = 3_000.0;
const GOAL_CPU_MS: f64 = 0.4;
const GOAL_OF_CEILING: f64 = 0.6;

pub(crate) async fn run(bed: &Bed, args: &Args, report: &mut Report) -> Result<()> {
    let sizes: Vec<(usize, usize)> = match (args.has_size(), args.quick) {
        (true, _) => vec![args.size(1_000, 20)],
        (_, true) => vec![(1, 40), (1_000, 5)],
        _ => vec![(1, 300), (100, 50), (1_000, 20), (5_000, 6)],
    };
    let most = sizes.iter().map(|(submitters, _)| *submitters).max().unwrap_or(1);
    let all = keys(most);
    let (sign_ms, check_ms) = signing_ms(&all[0]);
    let signing_ms = sign_ms + check_ms;
    let mut table = Table::new("Engine: window 1, one confirmation, a chain that mines at once");
    let mut top = None;
    for (submitters, each) in sizes {
        let some = &all[..submitters];
        let ceiling = ceiling::measure(bed, some, each).await?;
        let driven = drive(bed, Drive::new(&format!("engine-{submitters}"), some, each)).await?;
        let estimate = driven.with_own_cores(signing_ms);
        let row = driven.row(submitters, each).number("× SQL only", driven.rate() / ceiling.rate, 2);
        table.rows.push(row.number("× with own cores", estimate / ceiling.rate, 2));
        table.rows.push(ceiling.row(submitters, each));
        if submitters >= GOALS_FROM || args.has_size() {
            evaluate(report, submitters, &driven, &ceiling, estimate);
        }
        top = Some((driven.count, driven.top, driven.calls));
    }
    report.table(NAME, table);
    if let Some((count, statements, calls)) = top {
        let title = "Engine: where the database's time goes, in the last size";
        report.table(NAME, statements_table(title, &statements, count));
        report.table(NAME, calls_table(&calls, count));
    }
    let mut table = Table::new("Signing: one signature and its check, on one core");
    let row = Row::default().number("signature ms", sign_ms, 3).number("check ms", check_ms, 3);
    table.rows.push(row.number("ms", signing_ms, 3).number("per s", 1000.0 / signing_ms, 0));
    report.table(NAME, table);
    Ok(())
}

fn evaluate(report: &mut Report, submitters: usize, driven: &Driven, ceiling: &Ceiling, estimate: f64) {
    let what = format!("engine, submitters: {submitters}");
    let rate = driven.rate();
    report.goal(
        &what,
        format!("≥ {GOAL_RATE} tx/s on two cores"),
        format!("{rate:.0} tx/s on {} cores", crate::machine::cores()),
        GoalResult::of(rate >= GOAL_RATE),
    );
    let cpu = driven.usage.cpu_ms_per(driven.count);
    report.goal(
        format!("{what}: worker and PostgreSQL"),
        format!("≤ {GOAL_CPU_MS} ms CPU per tx"),
        format!("{cpu:.3} ms (PostgreSQL for the SQL alone: {:.3} ms)", ceiling.postgres_ms()),
        GoalResult::of(cpu <= GOAL_CPU_MS),
    );
    let share = estimate / ceiling.rate;
    report.goal(
        format!("{what}: signing and chain on cores of their own"),
        format!("≥ {GOAL_OF_CEILING} × the SQL alone"),
        format!("{share:.2} × (estimated from the CPU split)"),
        GoalResult::of(share >= GOAL_OF_CEILING),
    );
    report.headline(format!("engine {submitters}: {rate:.0} tx/s at {cpu:.2} ms"));
}

/// CPU time of one signature of a worker, and of its verification.
fn signing_ms(key: &Key) -> (f64, f64) {
    let digest = |number: u32| H256::from_low_u64_be(u64::from(number) + 1);
    let sign_ms = cpu_ms(|number| key.signature(digest(number)).s.is_zero());
    let made = key.signature(digest(0));
    let check_ms = cpu_ms(|_| !key.check(digest(0), &made));
    (sign_ms, check_ms)
}

/// CPU time of one call. `true` means failure; returning it keeps the compiler from removing the call.
fn cpu_ms(mut call: impl FnMut(u32) -> bool) -> f64 {
    /// Long compared with a tick of the CPU clock.
    const SECONDS: f64 = 0.3;
    let (begun, mut count) = (own_cpu_seconds(), 0u32);
    // The count also ends the loop where CPU time cannot be read.
    while own_cpu_seconds() - begun < SECONDS && count < 50_000 {
        let failed = (count..count + 20).filter(|number| call(*number)).count();
        assert_eq!(failed, 0, "own signatures must verify");
        count += 20;
    }
    (own_cpu_seconds() - begun) * 1000.0 / f64::from(count)
}

fn calls_table(calls: &Calls, count: f64) -> Table {
    let mut table = Table::new("Engine: what the chain is asked, in the last size");
    for (method, calls) in calls {
        table.rows.push(Row::default().text("method", method).number("calls/tx", *calls as f64 / count, 4));
    }
    table
}
