//! Latency of one transaction on an idle system, compared with the two unavoidable round trips to the node.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use gapless_localnet::Mining;
use serde_json::Value;

use crate::args::Args;
use crate::bed::{Bed, keys};
use crate::end_to_end::{funded_anvil, send_and_see};
use crate::load::{Connection, Rpc};
use crate::measure::Latencies;
use crate::report::{GoalResult, Report, Row, Table};

/// Factor of the two round trips, and allowance in addition.
const GOAL_TIMES: f64 = 3.0;
const GOAL_MORE_MS: f64 = 10.0;
/// Pause between two transactions, so that the system is idle again.
const PAUSE: Duration = Duration::from_millis(150);

pub(crate) async fn run(bed: &Bed, args: &Args, report: &mut Report) -> Result<()> {
    let count = if args.quick { 10 } else { 30 };
    let keys = keys(2);
    let anvil = funded_anvil(Mining::Instant, None, &keys).await?;
    let run = bed.run("latency", &anvil.url()).await?;
    let mut api = run.start_api().await?;
    let mut worker = run.start_worker(&keys[..1]).await?;
    let mut client = Connection::open(api.port()).await?;
    let mut rpc = Rpc::open(anvil.port()).await?;
    let (mut seen, mut bare) = (Latencies::default(), Latencies::default());
    for number in 0..count {
        // Alternating, so that both run under the same conditions. The bare sender uses another key.
        let (hash, raw) = keys[1].sign(number);
        let begun = Instant::now();
        send_and_see(&mut rpc, hash, &raw).await?;
        bare.add(begun.elapsed());
        tokio::time::sleep(PAUSE).await;
        let begun = Instant::now();
        confirm(&mut client, &keys[0].request(&format!("l-{number}"))).await?;
        // The first one includes the claim of the submitter and is not counted.
        if number > 0 {
            seen.add(begun.elapsed());
        }
        tokio::time::sleep(PAUSE).await;
    }
    worker.stop().await?;
    api.stop().await?;
    let mut inside = run.lifetimes(usize::try_from(count)?).await?.whole();
    run.finish().await?;

    let mut table = Table::new("Latency of one, idle system, automine");
    table.rows.push(bare.columns(Row::default().text("what", "two bare round trips")));
    table.rows.push(inside.columns(Row::default().text("what", "row inserted to CONFIRMED")));
    table.rows.push(seen.columns(Row::default().text("what", "POST to the answer of a long poll")));
    report.table("latency", table);
    let (ours, theirs) = (seen.percentile(0.5), bare.percentile(0.5));
    let allowed = GOAL_TIMES * theirs + GOAL_MORE_MS;
    report.goal(
        "latency of one",
        format!("p50 ≤ {GOAL_TIMES} × two round trips + {GOAL_MORE_MS} ms"),
        format!("{ours:.1} ms, allowed {allowed:.1} ms"),
        GoalResult::of(ours <= allowed),
    );
    report.headline(format!("one in {ours:.0} ms"));
    Ok(())
}

/// Posts, and long-polls until CONFIRMED.
async fn confirm(client: &mut Connection, request: &str) -> Result<()> {
    let (status, body) = client.post("/api/v1/tx", request).await?;
    let accepted: Value = serde_json::from_slice(&body)?;
    let tx_id = accepted["txId"].as_str().with_context(|| format!("{status}: {accepted}"))?;
    let (_, body) = client.get(&format!("/api/v1/tx/{tx_id}?wait=30s")).await?;
    let seen: Value = serde_json::from_slice(&body)?;
    if seen["state"] != "CONFIRMED" {
        bail!("{seen}");
    }
    Ok(())
}
