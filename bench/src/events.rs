//! Cost of recorded events, their latency, and many streams on one API.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use chrono::{DateTime, Utc};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::args::Args;
use crate::bed::{Bed, CHAIN_ID, Key, keys};
use crate::chain::{Chain, Mining};
use crate::load::{self, Until};
use crate::measure::{Latencies, Usage, cpu_seconds};
use crate::report::{GoalResult, Report, Row, Table};

const NAME: &str = "events";
const CLIENTS: usize = 64;
const SUBMITTERS: usize = 500;
const STREAMS: usize = 2_000;
const EVENTS_PER_SECOND: u64 = 200;
const LIMIT: Duration = Duration::from_secs(600);
const GOAL_CPU: f64 = 1.3;
const GOAL_LATENCY_MS: f64 = 30.0;
const GOAL_CORES: f64 = 0.5;

pub(crate) async fn run(bed: &Bed, args: &Args, report: &mut Report) -> Result<()> {
    let (posted, seconds, lone) = if args.quick { (4_000, 5, 20) } else { (20_000, 15, 60) };
    lives(bed, posted, report).await?;
    latency(bed, lone, report).await?;
    many_streams(bed, seconds, report).await?;
    crate::webhooks::run(bed, args.quick, report).await
}

/// Whole lives of transactions under load, with recording off and on.
async fn lives(bed: &Bed, posted: usize, report: &mut Report) -> Result<()> {
    let mut table =
        Table::new(format!("Lives of {posted} transactions, {CLIENTS} clients, with and without events"));
    let mut cpu = Vec::new();
    for (what, is_on) in [("off", false), ("on, one stream", true)] {
        let (usage, count, received) = life(bed, posted, is_on).await?;
        cpu.push(usage.cpu_ms_per(count));
        let row = Row::default().text("events", what).number("ms CPU/tx", usage.cpu_ms_per(count), 3);
        let row = row.number("events/tx", received / count, 2);
        table.rows.push(usage.columns(row, count));
    }
    report.table(NAME, table);
    let ratio = cpu[1] / cpu[0];
    report.goal(
        "CPU of a life with events",
        format!("≤ {GOAL_CPU} × of off"),
        format!("{ratio:.2} ×"),
        GoalResult::of(ratio <= GOAL_CPU),
    );
    report.headline(format!("events {ratio:.2} × CPU"));
    Ok(())
}

async fn life(bed: &Bed, posted: usize, is_on: bool) -> Result<(Usage, f64, f64)> {
    let keys = keys(SUBMITTERS);
    let chain = Chain::start(CHAIN_ID, Mining::AtOnce).await?;
    let mut run = bed.run("events", chain.url()).await?;
    run.set("events.mode", if is_on { "mq_outbox" } else { "poll" });
    let mut worker = run.start_worker(&keys).await?;
    let mut api = run.start_api().await?;
    let received = Arc::new(AtomicU64::new(0));
    let mut streams = JoinSet::new();
    if is_on {
        let stream = open_stream(api.port(), "").await?;
        streams.spawn(count_events(stream, received.clone()));
    }
    load::post(api.port(), CLIENTS, Until::Count(posted / 10), body(&keys, "first")).await?;
    run.wait_settled(LIMIT).await?;
    let meter = run.meter(&[&api], &[&worker]).await?;
    let before = received.load(Ordering::Relaxed);
    load::post(api.port(), CLIENTS, Until::Count(posted), body(&keys, "b")).await?;
    run.wait_settled(LIMIT).await?;
    if is_on {
        wait_ordered(&run.db).await?;
    }
    let stopped = meter.stop();
    let received = received.load(Ordering::Relaxed) - before;
    streams.abort_all();
    worker.stop().await?;
    api.stop().await?;
    let usage = stopped.usage(&run.monitor).await?;
    run.finish().await?;
    Ok((usage, posted as f64, received as f64))
}

/// From the row of an event to its arrival at a client, on an idle system.
async fn latency(bed: &Bed, count: usize, report: &mut Report) -> Result<()> {
    let keys = keys(1);
    let chain = Chain::start(CHAIN_ID, Mining::AtOnce).await?;
    let mut run = bed.run("event-latency", chain.url()).await?;
    run.set("events.mode", "mq_outbox");
    let mut worker = run.start_worker(&keys).await?;
    let mut api = run.start_api().await?;
    let mut stream = open_stream(api.port(), "").await?;
    let (mut seen, mut text, mut buffer) = (Latencies::default(), String::new(), vec![0; 1 << 16]);
    for number in 0..count {
        load::post(api.port(), 1, Until::Count(1), body(&keys, &format!("e{number}"))).await?;
        loop {
            let read = tokio::time::timeout(Duration::from_secs(10), stream.read(&mut buffer)).await??;
            let now = Utc::now();
            text.push_str(&String::from_utf8_lossy(&buffer[..read]));
            let mut is_final = false;
            while let Some((message, rest)) = text.split_once("\n\n") {
                for event in message.lines().filter_map(|line| line.strip_prefix("data: ")) {
                    let event: Value = serde_json::from_str(event)?;
                    let written: DateTime<Utc> =
                        event["time"].as_str().context("an event has a time")?.parse()?;
                    // The first one includes the claim of the submitter.
                    if number > 0 {
                        seen.add((now - written).to_std().unwrap_or_default());
                    }
                    is_final |= event["type"] == "tx.confirmed";
                }
                text = rest.to_owned();
            }
            if is_final {
                break;
            }
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    worker.stop().await?;
    api.stop().await?;
    run.finish().await?;
    let mut table = Table::new(
        "Event written to its arrival at a client, idle system (times of events have milliseconds)",
    );
    table.rows.push(seen.columns(Row::default().text("what", "server-sent events")));
    report.table(NAME, table);
    let p50 = seen.percentile(0.5);
    report.goal(
        "commit to SSE",
        format!("p50 ≤ {GOAL_LATENCY_MS} ms"),
        format!("{p50:.1} ms"),
        GoalResult::of(p50 <= GOAL_LATENCY_MS),
    );
    Ok(())
}

/// CPU of an API with many streams: of one submitter each, and of all.
async fn many_streams(bed: &Bed, seconds: u64, report: &mut Report) -> Result<()> {
    let keys = keys(STREAMS);
    let chain = Chain::start(CHAIN_ID, Mining::AtOnce).await?;
    let mut run = bed.run("streams", chain.url()).await?;
    run.set("events.mode", "mq_outbox");
    run.announce(&keys, true).await?;
    let mut worker = run.start_worker(&keys[..1]).await?;
    let mut table =
        Table::new(format!("{STREAMS} streams on one API, {EVENTS_PER_SECOND} events/s, {seconds} s"));
    let mut worst = 0.0_f64;
    for (what, is_filtered) in [("one submitter each", true), ("all events each", false)] {
        let mut api = run.start_api().await?;
        let received = Arc::new(AtomicU64::new(0));
        let mut streams = JoinSet::new();
        for key in &keys {
            let query = match is_filtered {
                true => format!("?submitter={}", key.submitter().address_text()),
                false => String::new(),
            };
            streams.spawn(count_events(open_stream(api.port(), &query).await?, received.clone()));
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
        let (cpu, begun) = (cpu_seconds(api.pid()), Instant::now());
        let before = received.load(Ordering::Relaxed);
        for tick in 0..seconds * 20 {
            write_events(&run.db, &keys, tick).await?;
            tokio::time::sleep_until((begun + Duration::from_millis(50 * (tick + 1))).into()).await;
        }
        wait_ordered(&run.db).await?;
        tokio::time::sleep(Duration::from_secs(1)).await;
        let cores = (cpu_seconds(api.pid()) - cpu) / begun.elapsed().as_secs_f64();
        let sent = (received.load(Ordering::Relaxed) - before) as f64;
        let written = (seconds * EVENTS_PER_SECOND) as f64;
        let expected = written * if is_filtered { 1.0 } else { STREAMS as f64 };
        if sent < expected {
            bail!("{what}: {sent} of {expected} events arrived");
        }
        let row = Row::default().text("streams", what).number("cores of the API", cores, 2);
        table.rows.push(row.number("events sent/s", sent / seconds as f64, 0));
        worst = if is_filtered { cores } else { worst.max(cores) };
        if is_filtered {
            report.goal(
                "streams of one submitter each",
                format!("≤ {GOAL_CORES} cores for {STREAMS} at {EVENTS_PER_SECOND} events/s"),
                format!("{cores:.2}"),
                GoalResult::of(cores <= GOAL_CORES),
            );
        }
        streams.abort_all();
        api.stop().await?;
    }
    report.table(NAME, table);
    worker.stop().await?;
    run.finish().await
}

/// A twentieth of the events of a second.
async fn write_events(db: &sqlx::PgPool, keys: &[Key], tick: u64) -> Result<()> {
    let each = EVENTS_PER_SECOND / 20;
    let addresses: Vec<Vec<u8>> = (0..each)
        .map(|number| keys[((tick * each + number) as usize) % keys.len()].submitter().address.0.to_vec())
        .collect();
    sqlx::query(
        "INSERT INTO outbox_event (chain_id, submitter, kind, data)
         SELECT $1, u, 'submitter.unblocked', '{\"type\": \"submitter.unblocked\", \"reason\": \"bench\"}' FROM unnest($2::BYTEA[]) u",
    )
    .bind(i64::try_from(CHAIN_ID)?)
    .bind(addresses)
    .execute(db)
    .await?;
    sqlx::query("SELECT pg_notify('gapless_outbox', '')").execute(db).await?;
    Ok(())
}

async fn wait_ordered(db: &sqlx::PgPool) -> Result<()> {
    let until = Instant::now() + Duration::from_secs(60);
    while sqlx::query_scalar::<_, bool>("SELECT EXISTS (SELECT 1 FROM outbox_event)").fetch_one(db).await? {
        if Instant::now() > until {
            bail!("events are not ordered");
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Ok(())
}

/// Opens a stream and reads its first message, which every stream begins with.
async fn open_stream(port: u16, query: &str) -> Result<TcpStream> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
    let request =
        format!("GET /api/v1/events{query} HTTP/1.1\r\nhost: localhost\r\naccept: text/event-stream\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let (mut text, mut buffer) = (String::new(), [0; 4096]);
    while !text.contains("retry:") {
        let read = stream.read(&mut buffer).await?;
        text.push_str(&String::from_utf8_lossy(&buffer[..read]));
        if read == 0 || (text.len() > 12 && !text.starts_with("HTTP/1.1 200")) {
            bail!("no stream: {text}");
        }
    }
    Ok(stream)
}

/// Counts `data:` lines until the stream ends.
async fn count_events(mut stream: TcpStream, events: Arc<AtomicU64>) {
    let (mut buffer, mut last) = (vec![0; 1 << 16], [0_u8; 6]);
    while let Ok(read) = stream.read(&mut buffer).await {
        if read == 0 {
            return;
        }
        let bytes: Vec<u8> = last.iter().chain(&buffer[..read]).copied().collect();
        let found = bytes.windows(7).filter(|window| window == b"\ndata: ").count();
        events.fetch_add(found as u64, Ordering::Relaxed);
        last.copy_from_slice(&bytes[bytes.len() - 6..]);
    }
}

fn body(keys: &[Key], word: &str) -> impl Fn(usize) -> String + Send + Sync + 'static {
    let (keys, word) = (keys.to_vec(), word.to_owned());
    move |number| keys[number % keys.len()].request(&format!("{word}-{number}"))
}
