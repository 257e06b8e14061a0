//! The engine: worker processes on a chain that mines at once, beside the same SQL without signing and RPC.

mod ceiling;
mod drive;

use anyhow::Result;

pub(crate) use drive::{Drive, Driven, drive};

use crate::args::Args;
use crate::bed::{Bed, Key, keys};
use crate::measure::{Statement, own_cpu_seconds};
use crate::report::{Report, Row, Table, Verdict};
use ceiling::Ceiling;

const NAME: &str = "engine";
/// From so many submitters on the goals apply.
const JUDGED_FROM: usize = 1_000;
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
    let signing_ms = signing_ms(&all);
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
        if submitters >= JUDGED_FROM || args.has_size() {
            judge(report, submitters, &driven, &ceiling, estimate);
        }
        top = Some((driven.count, driven.top));
    }
    report.table(NAME, table);
    if let Some((count, statements)) = top {
        report.table(NAME, top_table(&statements, count));
    }
    let mut table = Table::new("Signing: one signature and its check, on one core");
    table.rows.push(Row::default().number("ms", signing_ms, 3).number("per s", 1000.0 / signing_ms, 0));
    report.table(NAME, table);
    Ok(())
}

fn judge(report: &mut Report, submitters: usize, driven: &Driven, ceiling: &Ceiling, estimate: f64) {
    let what = format!("engine, submitters: {submitters}");
    let rate = driven.rate();
    report.goal(
        &what,
        format!("≥ {GOAL_RATE} tx/s on two cores"),
        format!("{rate:.0} tx/s on {} cores", crate::machine::cores()),
        Verdict::of(rate >= GOAL_RATE),
    );
    let cpu = driven.usage.cpu_ms_per(driven.count);
    report.goal(
        format!("{what}: worker and PostgreSQL"),
        format!("≤ {GOAL_CPU_MS} ms CPU per tx"),
        format!("{cpu:.3} ms (PostgreSQL for the SQL alone: {:.3} ms)", ceiling.postgres_ms()),
        Verdict::of(cpu <= GOAL_CPU_MS),
    );
    let share = estimate / ceiling.rate;
    report.goal(
        format!("{what}: signing and chain on cores of their own"),
        format!("≥ {GOAL_OF_CEILING} × the SQL alone"),
        format!("{share:.2} × (estimated from the CPU split)"),
        Verdict::of(share >= GOAL_OF_CEILING),
    );
    report.headline(format!("engine {submitters}: {rate:.0} tx/s at {cpu:.2} ms"));
}

/// Processor time of one signature as a worker makes it.
fn signing_ms(keys: &[Key]) -> f64 {
    /// Many ticks of the clock that counts it.
    const SECONDS: f64 = 0.3;
    let (begun, mut count) = (own_cpu_seconds(), 0u32);
    // Ends where processor time cannot be read, too.
    while own_cpu_seconds() - begun < SECONDS && count < 20_000 {
        count += (0..20).filter(|nonce| keys[0].sign_and_check(*nonce)).count() as u32;
    }
    (own_cpu_seconds() - begun) * 1000.0 / f64::from(count)
}

fn top_table(statements: &[Statement], count: f64) -> Table {
    let mut table = Table::new("Engine: where the database's time goes, in the last size");
    for statement in statements {
        table.rows.push(
            Row::default()
                .text("statement", &statement.name)
                .number("calls/tx", statement.calls / count, 4)
                .number("rows/tx", statement.rows / count, 2)
                .number("ms/tx", statement.exec_ms / count, 4)
                .number("WAL B/tx", statement.wal_bytes / count, 0),
        );
    }
    table
}
