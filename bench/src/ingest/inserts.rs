//! PostgreSQL alone: prepared single-row INSERTs into the same table, one commit each. With pgbench, or with
//! our own connections if pgbench is not installed.

use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use sqlx::postgres::PgPoolOptions;
use tokio::task::JoinSet;
use uuid::Uuid;

use super::Taken;
use crate::bed::{Bed, CHAIN_ID, GAS, Run};
use crate::machine::cores;
use crate::measure::Latencies;

pub(super) fn driver(bed: &Bed) -> &'static str {
    if bed.pgbench().is_some() { "pgbench INSERT" } else { "INSERT" }
}

pub(super) async fn run(
    bed: &Bed,
    run: &Run<'_>,
    clients: usize,
    submitters: usize,
    time: Duration,
) -> Result<Taken> {
    let meter = run.meter(&[], &[]).await?;
    let (latencies, elapsed) = match bed.pgbench() {
        Some(pgbench) => by_pgbench(bed, &pgbench, run.database(), clients, submitters, time).await?,
        None => by_ourselves(&run.url(), clients, submitters, time).await?,
    };
    let usage = meter.stop().usage(&run.monitor).await?;
    let count = latencies.len() as f64;
    Ok(Taken { rate: count / elapsed.as_secs_f64(), count, latencies, usage })
}

fn payload() -> String {
    let address = format!("0x{}", "5a".repeat(20));
    format!(r#"{{"to":"{address}","value":"0x1","data":"0x","gasLimit":"{GAS:#x}","type":"eip1559"}}"#)
}

/// Ids increase with each client's counter, so that they have the same locality in the index as ours.
fn script(submitters: usize) -> String {
    let (payload, most, hash) = (payload(), submitters - 1, "ab".repeat(32));
    // A colon before a name is a variable in pgbench, so colons in the JSON are replaced by chr(58).
    let payload = payload.replace(':', "' || chr(58) || '");
    format!(
        "\\set n :n + 1\n\
         \\set s random(0, {most})\n\
         INSERT INTO managed_tx (tx_id, chain_id, submitter, request_id, payload, payload_hash) VALUES (\
         (lpad(to_hex(:level::BIGINT * 1000 + :client_id::BIGINT), 8, '0') || lpad(to_hex(:n::BIGINT), 24, '0'))::UUID, \
         {CHAIN_ID}, decode(lpad(to_hex(:s::BIGINT), 40, '0'), 'hex'), \
         'c' || :level::TEXT || '-' || :client_id::TEXT || '-' || :n::TEXT, \
         ('{payload}')::JSONB, '\\x{hash}'::BYTEA);\n"
    )
}

async fn by_pgbench(
    bed: &Bed,
    pgbench: &Path,
    database: &str,
    clients: usize,
    submitters: usize,
    time: Duration,
) -> Result<(Latencies, Duration)> {
    let dir = bed.dir().join(format!("{database}-{clients}"));
    std::fs::create_dir_all(&dir)?;
    let file = dir.join("insert.sql");
    std::fs::write(&file, script(submitters))?;
    let threads = clients.min(cores());
    let output = tokio::process::Command::new(pgbench)
        .current_dir(&dir)
        .args(["--no-vacuum", "--protocol=prepared", "--log", "--log-prefix=tx", "--host=127.0.0.1"])
        .args(["--username=gapless", "--define=n=0", &format!("--define=level={clients}")])
        .arg(format!("--port={}", bed.postgres_port()))
        .arg(format!("--client={clients}"))
        .arg(format!("--jobs={threads}"))
        .arg(format!("--time={}", time.as_secs().max(1)))
        .arg("--file")
        .arg(&file)
        .arg(database)
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
        .context("pgbench")?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        bail!("pgbench: {text}{}", String::from_utf8_lossy(&output.stderr));
    }
    let latencies = logged(&dir)?;
    // pgbench's figure excludes the time for connecting, as ours does.
    let rate =
        text.lines().find_map(|line| line.strip_prefix("tps = ")?.split(' ').next()?.parse::<f64>().ok());
    let rate = rate.with_context(|| format!("no rate in the output of pgbench: {text}"))?;
    let elapsed = Duration::from_secs_f64(latencies.len() as f64 / rate);
    Ok((latencies, elapsed))
}

/// The third field of each line is the time of one transaction in microseconds.
fn logged(dir: &Path) -> Result<Latencies> {
    let mut micros = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        if path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with("tx.")) {
            let text = std::fs::read_to_string(&path)?;
            micros.extend(text.lines().filter_map(|line| line.split(' ').nth(2)?.parse::<u64>().ok()));
        }
    }
    Ok(Latencies::of(micros))
}

/// The same address as in the script: a number in 20 bytes.
fn address(number: usize) -> [u8; 20] {
    let mut bytes = [0; 20];
    bytes[12..].copy_from_slice(&(number as u64).to_be_bytes());
    bytes
}

async fn by_ourselves(
    url: &str,
    clients: usize,
    submitters: usize,
    time: Duration,
) -> Result<(Latencies, Duration)> {
    let most = u32::try_from(clients)?;
    let pool = PgPoolOptions::new().min_connections(most).max_connections(most).connect(url).await?;
    let begun = Instant::now();
    let mut inserting = JoinSet::new();
    for client in 0..clients {
        let mut connection = pool.acquire().await?;
        inserting.spawn(async move {
            let (mut latencies, payload) =
                (Latencies::default(), serde_json::from_str::<serde_json::Value>(&payload())?);
            for number in 0u64.. {
                let asked = Instant::now();
                if asked.duration_since(begun) >= time {
                    break;
                }
                sqlx::query(
                    "INSERT INTO managed_tx (tx_id, chain_id, submitter, request_id, payload, payload_hash)
                     VALUES ($1, $2, $3, $4, $5, $6)",
                )
                .bind(Uuid::now_v7())
                .bind(i64::try_from(CHAIN_ID)?)
                .bind(address((number as usize * clients + client) % submitters))
                .bind(format!("c{clients}-{client}-{number}"))
                .bind(&payload)
                .bind(&[0xab_u8; 32][..])
                .execute(&mut *connection)
                .await?;
                latencies.add(asked.elapsed());
            }
            anyhow::Ok(latencies)
        });
    }
    let mut latencies = Latencies::default();
    while let Some(client) = inserting.join_next().await {
        latencies.extend(client??);
    }
    let elapsed = begun.elapsed();
    pool.close().await;
    Ok((latencies, elapsed))
}
