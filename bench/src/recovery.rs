//! Recovery: time without an owner after a crash, a shutdown, or a rebalancing.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use ethers_core::types::Address;

use crate::args::Args;
use crate::bed::{Bed, CHAIN_ID, Key, Run, keys};
use crate::chain::{Chain, Mining};
use crate::measure::Latencies;
use crate::report::{GoalResult, Report, Row, Table};

const SUBMITTERS: usize = 200;
/// Interval mining, so that the queues last for the duration of the benchmark.
const BLOCKS: Duration = Duration::from_millis(100);
const LIMIT: Duration = Duration::from_secs(60);
const GOAL_HAND_OVER_MS: f64 = 300.0;
const GOAL_AFTER_LEASE: Duration = Duration::from_secs(1);

pub(crate) async fn run(bed: &Bed, args: &Args, report: &mut Report) -> Result<()> {
    // The default, or shorter for a quick run.
    let lease = Duration::from_secs(if args.quick { 3 } else { 10 });
    let keys = keys(SUBMITTERS);
    let chain = Chain::start(CHAIN_ID, Mining::Every(BLOCKS)).await?;
    let mut run = bed.run("recovery", chain.url()).await?;
    if args.quick {
        run.set("lease.duration", "3s");
        run.set("lease.renew_interval", "1s");
        run.set("lease.clock_skew", "300ms");
    }
    run.announce(&keys, false).await?;
    run.fill(&keys, if args.quick { 150 } else { 500 }).await?;

    let mut first = run.start_worker_named(&keys, "first").await?;
    owners(&run, "first", SUBMITTERS).await?;
    let joined = Instant::now();
    let mut second = run.start_worker_named(&keys, "second").await?;
    let started = joined.elapsed();
    owners(&run, "second", SUBMITTERS / 2).await?;
    let share = joined.elapsed();

    // Half of the submitters are handed over gracefully.
    let (of_first, asked) = (owned_by(&run, "first", &keys).await?, Instant::now());
    first.sigterm()?;
    owners(&run, "second", SUBMITTERS).await?;
    let handed_over = asked.elapsed();
    let mut after_stop = sends_since(&chain, &of_first, asked).await?;
    first.stop().await?;

    // All of them are taken over after a kill, by a third worker that is running already.
    let mut third = run.start_worker_named(&keys, "third").await?;
    owners(&run, "third", SUBMITTERS / 2).await?;
    let (of_second, killed) = (owned_by(&run, "second", &keys).await?, Instant::now());
    second.kill9();
    let mut after_kill = sends_since(&chain, &of_second, killed).await?;
    second.check_log()?;
    third.stop().await?;
    // The rest stays queued: the audit checks that nothing was lost or duplicated.
    run.finish().await?;

    let mut table = Table::new(format!(
        "Recovery: {SUBMITTERS} busy submitters, lease {lease:?}, a block every {BLOCKS:?}"
    ));
    let line = |what: &str| Row::default().text("what", what);
    table.rows.push(line("a joining worker: started").number("ms", started.as_secs_f64() * 1000.0, 0));
    table.rows.push(line("a joining worker: has its half").number("ms", share.as_secs_f64() * 1000.0, 0));
    let handed_over_ms = handed_over.as_secs_f64() * 1000.0;
    table.rows.push(line("SIGTERM: all its submitters have a new owner").number("ms", handed_over_ms, 0));
    table.rows.push(after_stop.columns(line("SIGTERM: next broadcast of each, by anybody")));
    table.rows.push(after_kill.columns(line("kill -9: next broadcast of each")));
    report.table("recovery", table);
    report.goal(
        "hand-over on SIGTERM",
        format!("≤ {GOAL_HAND_OVER_MS} ms"),
        format!("{handed_over_ms:.0} ms"),
        GoalResult::of(handed_over_ms <= GOAL_HAND_OVER_MS),
    );
    let allowed = (lease + GOAL_AFTER_LEASE).as_secs_f64() * 1000.0;
    let (slowest, median) = (after_kill.percentile(1.0), after_kill.percentile(0.5));
    report.goal(
        "next broadcast after kill -9",
        format!("≤ lease + 1 s = {allowed:.0} ms"),
        format!("{median:.0} ms, the last {slowest:.0} ms"),
        GoalResult::of(slowest <= allowed),
    );
    report.headline(format!("hand-over {handed_over_ms:.0} ms"));
    Ok(())
}

/// Waits until a worker owns `count` submitters.
async fn owners(run: &Run<'_>, worker_id: &str, count: usize) -> Result<()> {
    let deadline = Instant::now() + LIMIT;
    loop {
        let owned: i64 = sqlx::query_scalar(
            "SELECT count(*) FROM submitter_lease WHERE owner = $1 AND expires_at > clock_timestamp()",
        )
        .bind(worker_id)
        .fetch_one(&run.db)
        .await?;
        if usize::try_from(owned)? >= count {
            return Ok(());
        }
        if Instant::now() > deadline {
            bail!("the {worker_id} worker owns {owned} submitters of {count} after {LIMIT:?}");
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn owned_by(run: &Run<'_>, worker_id: &str, keys: &[Key]) -> Result<Vec<Address>> {
    let owned: Vec<Vec<u8>> = sqlx::query_scalar("SELECT submitter FROM submitter_lease WHERE owner = $1")
        .bind(worker_id)
        .fetch_all(&run.db)
        .await?;
    Ok(keys
        .iter()
        .filter(|key| owned.iter().any(|own| own == key.address().as_bytes()))
        .map(Key::address)
        .collect())
}

/// Waits for a transaction of each sender after `since`.
async fn sends_since(chain: &Chain, senders: &[Address], since: Instant) -> Result<Latencies> {
    let deadline = Instant::now() + LIMIT;
    loop {
        let sent = chain.next_sends(senders, since);
        if sent.len() == senders.len() {
            let mut latencies = Latencies::default();
            sent.into_values().for_each(|after| latencies.add(after));
            return Ok(latencies);
        }
        if Instant::now() > deadline {
            bail!("{} of {} submitters have sent again after {LIMIT:?}", sent.len(), senders.len());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
