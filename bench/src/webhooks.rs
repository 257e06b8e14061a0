//! Rate of webhook deliveries, and whether a receiver that hangs slows another one down. Part of the benchmark `events`.

use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

use crate::bed::{Bed, CHAIN_ID, Key, Run, keys};
use crate::chain::{Chain, Mining};
use crate::report::{GoalResult, Report, Row, Table};

const NAME: &str = "events";
const SUBMITTERS: usize = 100;
/// How long the receiver takes.
const RESPONSE: Duration = Duration::from_millis(50);
/// `events.webhook.max_in_flight`.
const IN_FLIGHT: f64 = 32.0;
const GOAL_RATE: f64 = 500.0;
const GOAL_HANGING: f64 = 0.95;
const LIMIT: Duration = Duration::from_secs(120);

pub(crate) async fn run(bed: &Bed, is_quick: bool, report: &mut Report) -> Result<()> {
    let (events, rounds) = if is_quick { (2_000, 2) } else { (6_000, 3) };
    let keys = keys(SUBMITTERS);
    let chain = Chain::start(CHAIN_ID, Mining::AtOnce).await?;
    let mut run = bed.run("webhooks", chain.url()).await?;
    let key_file = tempfile::NamedTempFile::new()?;
    std::fs::write(key_file.path(), gapless_webhook::new_key_line("bench")?.as_bytes())?;
    std::fs::set_permissions(key_file.path(), PermissionsExt::from_mode(0o600))?;
    run.set("events.mode", "mq_outbox");
    run.set("events.webhook.key_file", key_file.path().to_str().context("a UTF-8 path")?);
    run.set("events.webhook.allow", vec!["127.0.0.1"]);
    run.announce(&keys, true).await?;
    let mut worker = run.start_worker(&keys[..1]).await?;
    let mut api = run.start_api().await?;

    let receiver = Receiver::start(Some(RESPONSE)).await?;
    let hanging = Receiver::start(None).await?;
    create(api.port(), &receiver.url()).await?;
    let webhook = create(api.port(), &hanging.url()).await?;
    let mut rates = [0.0, 0.0];
    // Warm-up; then in turns, so that both see the same machine.
    enable(api.port(), &webhook, false).await?;
    receiver.rate(&run, &keys, events / 4).await?;
    for _ in 0..rounds {
        for (index, is_hanging) in [(0, false), (1, true)] {
            enable(api.port(), &webhook, is_hanging).await?;
            // Its worker follows within a second.
            tokio::time::sleep(Duration::from_secs(2)).await;
            rates[index] += receiver.rate(&run, &keys, events).await? / f64::from(rounds);
        }
    }
    if hanging.received.load(Ordering::Relaxed) == 0 {
        bail!("nothing was sent to the receiver that hangs");
    }
    worker.stop().await?;
    api.stop().await?;
    run.finish().await?;

    let possible = IN_FLIGHT / RESPONSE.as_secs_f64();
    let mut table = Table::new(format!(
        "Webhook deliveries, {SUBMITTERS} submitters, the receiver takes {} ms ({possible:.0}/s are possible)",
        RESPONSE.as_millis()
    ));
    for (what, rate) in ["alone", "beside a receiver that hangs"].into_iter().zip(rates) {
        let row = Row::default().text("receiver", what).number("deliveries/s", rate, 0);
        table.rows.push(row.number("× possible", rate / possible, 2));
    }
    report.table(NAME, table);
    let goal = |is_met| GoalResult::of(is_met);
    report.goal(
        "webhook deliveries",
        format!("≥ {GOAL_RATE}/s"),
        format!("{:.0}/s", rates[0]),
        goal(rates[0] >= GOAL_RATE),
    );
    let ratio = rates[1] / rates[0];
    report.goal(
        "beside a receiver that hangs",
        format!("≥ {GOAL_HANGING} × of alone"),
        format!("{ratio:.2} ×"),
        goal(ratio >= GOAL_HANGING),
    );
    Ok(())
}

async fn create(port: u16, url: &str) -> Result<String> {
    let created = request(port, "POST", "/api/v1/webhooks", &json!({ "url": url })).await?;
    Ok(created["webhook"]["webhookId"].as_str().context("no webhookId")?.to_owned())
}

async fn enable(port: u16, webhook: &str, enabled: bool) -> Result<()> {
    request(port, "PATCH", &format!("/api/v1/webhooks/{webhook}"), &json!({ "enabled": enabled })).await?;
    Ok(())
}

async fn request(port: u16, method: &str, path: &str, body: &Value) -> Result<Value> {
    let body = body.to_string();
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json"
    );
    stream.write_all(format!("{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len()).as_bytes()).await?;
    let mut text = String::new();
    stream.read_to_string(&mut text).await?;
    let (head, body) = text.split_once("\r\n\r\n").context("no HTTP response")?;
    if !head.starts_with("HTTP/1.1 2") {
        bail!("{method} {path}: {text}");
    }
    Ok(serde_json::from_str(body)?)
}

/// A receiver on a port of its own.
struct Receiver {
    port: u16,
    received: Arc<AtomicU64>,
}

impl Receiver {
    /// Responds after `delay`; `None`: never.
    async fn start(delay: Option<Duration>) -> Result<Receiver> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let (port, received) = (listener.local_addr()?.port(), Arc::new(AtomicU64::new(0)));
        let counter = received.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, delay, counter.clone()));
            }
        });
        Ok(Receiver { port, received })
    }

    fn url(&self) -> String {
        format!("http://127.0.0.1:{}/", self.port)
    }

    /// Deliveries per second of this many events that are there at once.
    async fn rate(&self, run: &Run<'_>, keys: &[Key], events: u64) -> Result<f64> {
        let expected = self.received.load(Ordering::Relaxed) + events;
        write_events(run, keys, events).await?;
        let begun = Instant::now();
        while self.received.load(Ordering::Relaxed) < expected {
            if begun.elapsed() > LIMIT {
                bail!("{} of {expected} events arrived", self.received.load(Ordering::Relaxed));
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Ok(events as f64 / begun.elapsed().as_secs_f64())
    }
}

async fn serve(stream: TcpStream, delay: Option<Duration>, received: Arc<AtomicU64>) -> Option<()> {
    let mut stream = BufReader::new(stream);
    loop {
        let (mut head, mut length) = (String::new(), 0);
        while !head.ends_with("\r\n\r\n") {
            let from = head.len();
            if stream.read_line(&mut head).await.ok()? == 0 {
                return None;
            }
            let line = head[from..].to_ascii_lowercase();
            length =
                line.strip_prefix("content-length: ").map_or(length, |text| text.trim().parse().unwrap_or(0));
        }
        let mut body = vec![0; length];
        stream.read_exact(&mut body).await.ok()?;
        match delay {
            Some(delay) => tokio::time::sleep(delay).await,
            None => {
                received.fetch_add(1, Ordering::Relaxed);
                std::future::pending::<()>().await;
            }
        }
        received.fetch_add(1, Ordering::Relaxed);
        stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").await.ok()?;
    }
}

/// Events of all submitters in turn.
async fn write_events(run: &Run<'_>, keys: &[Key], count: u64) -> Result<()> {
    let addresses: Vec<Vec<u8>> = keys.iter().map(|key| key.submitter().address.0.to_vec()).collect();
    sqlx::query(
        "INSERT INTO outbox_event (chain_id, submitter, kind, data)
         SELECT $1, ($2::BYTEA[])[1 + n % cardinality($2)], 'submitter.unblocked',
                '{\"type\": \"submitter.unblocked\", \"reason\": \"bench\"}'
         FROM generate_series(1, $3) n",
    )
    .bind(i64::try_from(CHAIN_ID)?)
    .bind(addresses)
    .bind(i32::try_from(count)?)
    .execute(&run.db)
    .await?;
    sqlx::query("SELECT pg_notify('gapless_outbox', '')").execute(&run.db).await?;
    Ok(())
}
