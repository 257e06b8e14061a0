//! Scale: cost of a transaction by table size and number of submitters and workers, and cost when idle.

mod ballast;
mod idle;

use anyhow::Result;

pub(crate) use ballast::Ballast;

use crate::args::Args;
use crate::bed::{Bed, Key, keys};
use crate::engine::{Drive, Driven, drive};
use crate::report::{GoalResult, Report, Row, Table};

const NAME: &str = "scale";
const GOAL_GROWTH: f64 = 1.3;
/// Large enough that few submitters keep the worker busy.
const WINDOW: u32 = 32;

pub(crate) async fn run(bed: &Bed, args: &Args, report: &mut Report) -> Result<()> {
    let most = if args.quick { 1_000 } else { 10_000 };
    let all = keys(most);
    submitters(bed, args, report, &all).await?;
    rows(bed, args, report, &all[..1_000]).await?;
    if !args.quick {
        workers(bed, report, &all[..1_000]).await?;
    }
    idle::run(bed, args, report, &all).await
}

fn row(what: String, driven: &Driven, base: Option<&Driven>) -> Row {
    let cost = driven.usage.cpu_ms_per(driven.count);
    let row = Row::default().text("what", what).number("tx/s", driven.rate(), 0).number("ms CPU/tx", cost, 3);
    let row = row.maybe("× the first", base.map(|base| growth(driven, base)), 2);
    driven.usage.columns(row, driven.count)
}

fn growth(driven: &Driven, base: &Driven) -> f64 {
    driven.usage.cpu_ms_per(driven.count) / base.usage.cpu_ms_per(base.count)
}

fn evaluate(report: &mut Report, what: String, driven: &Driven, base: &Driven) {
    let grown = growth(driven, base);
    let goal = format!("CPU per tx ≤ {GOAL_GROWTH} × the smallest");
    report.goal(what, goal, format!("{grown:.2} ×"), GoalResult::of(grown <= GOAL_GROWTH));
}

async fn submitters(bed: &Bed, args: &Args, report: &mut Report, all: &[Key]) -> Result<()> {
    let sizes: &[(usize, usize)] = if args.quick {
        &[(10, 400), (1_000, 4)]
    } else {
        &[(10, 1_500), (100, 150), (1_000, 20), (10_000, 5)]
    };
    let mut table = Table::new(format!("Scale: submitters, window {WINDOW}"));
    let mut base: Option<Driven> = None;
    for &(submitters, each) in sizes {
        let name = format!("submitters-{submitters}");
        let wide = Drive { window: WINDOW, ..Drive::new(&name, &all[..submitters], each) };
        let driven = drive(bed, wide).await?;
        table.rows.push(row(format!("{submitters} submitters × {each}"), &driven, base.as_ref()));
        match &base {
            None => base = Some(driven),
            Some(base) if (submitters, each) == sizes[sizes.len() - 1] => {
                evaluate(report, format!("growth: 10 to {submitters} submitters"), &driven, base);
            }
            Some(_) => {}
        }
    }
    report.table(NAME, table);
    Ok(())
}

async fn rows(bed: &Bed, args: &Args, report: &mut Report, keys: &[Key]) -> Result<()> {
    let (rows, each): (u64, usize) = if args.quick { (50_000, 4) } else { (1_000_000, 10) };
    let mut table = Table::new(format!("Scale: rows, {} submitters × {each}", keys.len()));
    let base = drive(bed, Drive::new("rows-none", keys, each)).await?;
    table.rows.push(row("nothing besides".to_owned(), &base, None));
    for (what, ballast) in [("queued", Ballast::Queued(rows)), ("finished", Ballast::Finished(rows))] {
        let driven = drive(bed, Drive { ballast, ..Drive::new(&format!("rows-{what}"), keys, each) }).await?;
        table.rows.push(row(format!("{rows} rows {what}"), &driven, Some(&base)));
        evaluate(report, format!("growth: {rows} rows {what}"), &driven, &base);
    }
    report.table(NAME, table);
    Ok(())
}

async fn workers(bed: &Bed, report: &mut Report, keys: &[Key]) -> Result<()> {
    let (counts, each) = ([1, 2, 4], 15);
    let mut table = Table::new(format!("Scale: workers, {} submitters × {each}", keys.len()));
    let mut base: Option<Driven> = None;
    for workers in counts {
        let name = format!("workers-{workers}");
        let driven = drive(bed, Drive { workers, ..Drive::new(&name, keys, each) }).await?;
        table.rows.push(row(format!("{workers} workers"), &driven, base.as_ref()));
        base.get_or_insert(driven);
    }
    report.table(NAME, table);
    Ok(())
}
