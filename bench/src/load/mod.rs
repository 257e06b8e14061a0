//! HTTP load generator: closed loops over keep-alive connections, with little CPU usage of its own.

mod connection;
mod rpc;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use tokio::task::JoinSet;

pub(crate) use connection::Connection;
pub(crate) use rpc::Rpc;

use crate::measure::Latencies;

/// When to stop.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Until {
    Elapsed(Duration),
    /// After this many requests.
    Count(usize),
}

#[derive(Debug)]
pub(crate) struct Loaded {
    pub(crate) latencies: Latencies,
    pub(crate) elapsed: Duration,
}

impl Loaded {
    pub(crate) fn count(&self) -> f64 {
        self.latencies.len() as f64
    }

    pub(crate) fn rate(&self) -> f64 {
        self.count() / self.elapsed.as_secs_f64()
    }
}

/// Creates: each response must be 202.
pub(crate) async fn post<B>(port: u16, at_once: usize, until: Until, body: B) -> Result<Loaded>
where
    B: Fn(usize) -> String + Send + Sync + 'static,
{
    post_to(port, "/api/v1/tx".to_owned(), at_once, until, body, |status, _| status == 202).await
}

/// `at_once` clients post `body(n)` with a running number and wait for each response, which must be accepted.
pub(crate) async fn post_to<B>(
    port: u16,
    path: String,
    at_once: usize,
    until: Until,
    body: B,
    is_accepted: fn(u16, &[u8]) -> bool,
) -> Result<Loaded>
where
    B: Fn(usize) -> String + Send + Sync + 'static,
{
    let (body, next) = (Arc::new(body), Arc::new(AtomicUsize::new(0)));
    let mut connections = Vec::new();
    for _ in 0..at_once {
        connections.push(Connection::open(port).await?);
    }
    let begun = Instant::now();
    let mut clients = JoinSet::new();
    for mut connection in connections {
        let (path, body, next) = (path.clone(), body.clone(), next.clone());
        clients.spawn(async move {
            let mut latencies = Latencies::default();
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                let over = match until {
                    Until::Elapsed(limit) => begun.elapsed() >= limit,
                    Until::Count(count) => number >= count,
                };
                if over {
                    return Ok(latencies);
                }
                let text = body(number);
                let asked = Instant::now();
                let (status, answer) = connection.post(&path, &text).await?;
                latencies.add(asked.elapsed());
                if !is_accepted(status, &answer) {
                    bail!("{status}: {}", String::from_utf8_lossy(&answer));
                }
            }
        });
    }
    let mut latencies = Latencies::default();
    while let Some(client) = clients.join_next().await {
        latencies.extend(client??);
    }
    Ok(Loaded { latencies, elapsed: begun.elapsed() })
}
