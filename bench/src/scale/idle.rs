//! Idle cost of an API and a worker with many submitters.

use std::time::Duration;

use anyhow::Result;

use crate::args::Args;
use crate::bed::{Bed, CHAIN_ID, Key};
use crate::chain::{Chain, Mining};
use crate::report::{GoalResult, Report, Row, Table};

const GOAL_CORE: f64 = 0.02;
const GOAL_MB: f64 = 150.0;
/// A block per second: the chain also grows without transactions.
const BLOCKS: Duration = Duration::from_secs(1);
/// Time after which the start has no more effects.
const SETTLE: Duration = Duration::from_secs(3);

pub(super) async fn run(bed: &Bed, args: &Args, report: &mut Report, keys: &[Key]) -> Result<()> {
    let time = Duration::from_secs(if args.quick { 5 } else { 20 });
    let chain = Chain::start(CHAIN_ID, Mining::Every(BLOCKS)).await?;
    let run = bed.run("idle", chain.url()).await?;
    let mut api = run.start_api().await?;
    let mut worker = run.start_worker(keys).await?;
    tokio::time::sleep(SETTLE).await;
    let (meter, calls) = (run.meter(&[&api], &[&worker]).await?, chain.calls());
    tokio::time::sleep(time).await;
    let (stopped, calls) = (meter.stop(), chain.calls() - calls);
    // Read before the shutdown, which executes statements, too.
    let usage = stopped.usage(&run.monitor).await?;
    worker.stop().await?;
    api.stop().await?;
    run.finish().await?;

    let seconds = usage.wall.as_secs_f64();
    let core = (usage.api_cpu + usage.worker_cpu + usage.postgres_cpu) / seconds;
    let mut table = Table::new(format!("Scale: idle with {} submitters, {seconds:.0} s", keys.len()));
    table.rows.push(
        Row::default()
            .number("% of a core", core * 100.0, 2)
            .number("API %", usage.api_cpu / seconds * 100.0, 2)
            .number("worker %", usage.worker_cpu / seconds * 100.0, 2)
            .number("PG %", usage.postgres_cpu / seconds * 100.0, 2)
            .maybe("SQL/s", usage.statements.map(|statements| statements / seconds), 1)
            .number("RPC/s", calls / seconds, 1)
            .number("API MB", usage.api_mb, 0)
            .number("worker MB", usage.worker_mb, 0),
    );
    report.table("scale", table);
    report.goal(
        format!("idle, submitters: {}", keys.len()),
        format!("≤ {:.0} % of a core, worker ≤ {GOAL_MB} MB", GOAL_CORE * 100.0),
        format!("{:.1} %, {:.0} MB", core * 100.0, usage.worker_mb),
        GoalResult::of(core <= GOAL_CORE && usage.worker_mb <= GOAL_MB),
    );
    Ok(())
}
