//! Clients that do not read their responses. Other clients and workers are not affected, and slow readers are
//! disconnected.

use std::time::{Duration, Instant};

use futures::StreamExt;
use gapless_testkit::{Address, Client, Service, Stack, TxId, eventually, payload};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinSet;

use crate::stack;

/// Connections of each API.
const PLACES: usize = 240;
/// Requests per batch, and rows per page.
const POSTS: usize = 200;
/// Submitters of these requests.
const BUSY: usize = 8;
/// Long polls that start together.
const AT_ONCE: usize = 10;
/// Average memory of the API per slow reader. The system's own buffers come on top.
const KEPT_FOR_EACH_KB: u64 = 512;

/// Number of clients by behaviour.
#[derive(Clone, Copy)]
struct Crowd {
    /// Long-poll an intent that does not end.
    waiting: usize,
    /// Request page after page without reading.
    listing: usize,
    /// The same, reading a byte per second.
    slow: usize,
    /// Long polls may wait as long as they like.
    stays: bool,
}

impl Crowd {
    fn all(self) -> usize {
        self.waiting + self.listing + self.slow
    }
}

/// The connections stay open as long as this lives.
struct Readers {
    _waiting: Vec<TcpStream>,
    _tasks: JoinSet<()>,
}

impl Readers {
    async fn sit_down(api: &Service, endless: TxId, crowd: Crowd) -> Readers {
        let (mut waiting, mut tasks) = (Vec::new(), JoinSet::new());
        for _ in 0..crowd.waiting {
            let mut stream = connect(api).await;
            let request = format!("GET /api/v1/tx/{endless}?wait=1h HTTP/1.1\r\nhost: localhost\r\n\r\n");
            stream.write_all(request.as_bytes()).await.unwrap();
            waiting.push(stream);
            // Each first reads its row over the few sessions: on a busy machine, all at once would be rejected.
            if crowd.stays && waiting.len().is_multiple_of(AT_ONCE) {
                wait_polls(api, waiting.len()).await;
            }
        }
        for place in 0..crowd.listing + crowd.slow {
            let (mut from, mut to) = connect(api).await.into_split();
            tasks.spawn(async move {
                let request = format!("GET /api/v1/tx?limit={POSTS} HTTP/1.1\r\nhost: localhost\r\n\r\n");
                while to.write_all(request.as_bytes()).await.is_ok() {}
            });
            if place < crowd.slow {
                tasks.spawn(async move {
                    let mut pace = tokio::time::interval(Duration::from_secs(1));
                    while from.read_exact(&mut [0]).await.is_ok() {
                        pace.tick().await;
                    }
                });
            } else {
                // Kept open, and never read.
                tasks.spawn(async move {
                    let _open = from;
                    std::future::pending().await
                });
            }
        }
        Readers { _waiting: waiting, _tasks: tasks }
    }
}

/// Waits until the page requests get no more responses, because all buffers are full.
async fn wait_stalled(api: &Service) {
    let (mut last, mut since) = (0.0, Instant::now());
    eventually("those who do not read are stalled", async || {
        let pages = api.metric("gapless_http_request_seconds_count", &["route=\"listTx\""]).await;
        if pages != last {
            (last, since) = (pages, Instant::now());
        }
        if pages > 0.0 && since.elapsed() > Duration::from_secs(1) { Ok(()) } else { Err(pages) }
    })
    .await;
}

async fn connect(api: &Service) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    // As small as the system allows: its buffers shall not hide the slow reader.
    socket.set_recv_buffer_size(1).unwrap();
    socket.connect(api.url().trim_start_matches("http://").parse().unwrap()).await.unwrap()
}

/// Waits until this many long polls are waiting.
async fn wait_polls(api: &Service, count: usize) {
    eventually(&format!("{count} wait"), async || {
        let waiting = api.metric("gapless_long_polls", &[]).await;
        if waiting == count as f64 { Ok(()) } else { Err(waiting) }
    })
    .await;
}

/// Posts to all busy submitters in turn, some concurrently. Returns how long it took.
async fn post_all(stack: &Stack, client: &Client, round: &str) -> Duration {
    let transfer = payload(Address::repeat_byte(0x58), 1);
    let began = Instant::now();
    let posts = (0..POSTS).map(|n| {
        let (client, transfer, id) = (client.clone(), &transfer, format!("{round}-{n}"));
        async move { client.post(stack.submitter(n % BUSY), &id, transfer).await }
    });
    let answers: Vec<_> = futures::stream::iter(posts).buffer_unordered(16).collect().await;
    let took = began.elapsed();
    for answer in &answers {
        assert_eq!(answer.status, 202, "{answer:?}");
        stack.record_accepted(answer);
    }
    took
}

/// Waits until all requests of the busy submitters are CONFIRMED.
async fn wait_confirmed(stack: &Stack, count: usize) {
    eventually(&format!("{count} are CONFIRMED"), async || {
        let confirmed: i64 = sqlx::query_scalar("SELECT count(*) FROM managed_tx WHERE state = 'CONFIRMED'")
            .fetch_one(stack.db())
            .await
            .unwrap();
        if confirmed == count as i64 { Ok(()) } else { Err(confirmed) }
    })
    .await;
}

/// Waits until all database sessions of the APIs are idle, although the slow readers are still connected.
async fn wait_sessions_rest(stack: &Stack) {
    eventually("no session of an API does anything", async || {
        let busy: Vec<(String, String)> = sqlx::query_as(
            "SELECT coalesce(state, ''), query FROM pg_stat_activity
             WHERE datname = current_database() AND application_name LIKE 'gapless-api%' AND state <> 'idle'",
        )
        .fetch_all(stack.db())
        .await
        .unwrap();
        if busy.is_empty() { Ok(()) } else { Err(busy) }
    })
    .await;
}

fn resident_kb(service: &Service) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", service.pid())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("a process has memory");
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Scenario 58, for clients as consumers: slow readers do not keep other clients from submitting.
#[tokio::test(flavor = "multi_thread")]
async fn readers_who_stall_keep_nobody_from_submitting_and_lose_their_places() {
    // So few read sessions that a single blocked one would be noticed.
    let stack = stack().submitters(BUSY + 1).set("api.max_connections", PLACES as u64);
    let stack = stack.set("database.max_connections", 2).start().await;
    stack.start_worker().await;
    let without_limits = stack.api().set("api.send_timeout", "1h").set("api.header_timeout", "1h");
    let without_limits = without_limits.set("api.max_wait", "1h").start().await;
    let client = without_limits.client();
    stack.wait_announced(&client).await;
    let idle = stack.submitter(BUSY);
    assert_eq!(stack.submitter_action(idle, "pause", "so that nothing leaves the queue").await.status, 200);
    let endless = stack.create(idle, "endless", &payload(Address::repeat_byte(0x59), 1)).await;
    let alone = post_all(&stack, &client, "alone").await;
    wait_confirmed(&stack, POSTS).await;

    // With all slow readers, permanently: as fast, as far, and with no session and little memory for them.
    let before = resident_kb(&without_limits);
    let crowd = Crowd { waiting: 170, listing: 20, slow: 20, stays: true };
    let readers = Readers::sit_down(&without_limits, endless, crowd).await;
    wait_stalled(&without_limits).await;
    let beside = post_all(&stack, &client, "beside").await;
    assert!(beside < alone * 4 + Duration::from_secs(1), "{beside:?} beside them, {alone:?} alone");
    wait_confirmed(&stack, 2 * POSTS).await;
    wait_sessions_rest(&stack).await;
    let grown = resident_kb(&without_limits).saturating_sub(before);
    assert!(grown < crowd.all() as u64 * KEPT_FOR_EACH_KB, "{grown} kB for {} readers", crowd.all());

    // With a shorter timeout they are disconnected: a new client gets a connection although all were in use.
    let quick = stack.api().set("api.send_timeout", "1s").set("api.header_timeout", "2s");
    let quick = quick.set("api.max_wait", "200ms").start().await;
    let everywhere = Crowd { waiting: PLACES - 40, listing: 20, slow: 20, stays: false };
    let cut_off = Readers::sit_down(&quick, endless, everywhere).await;
    // Pages are still produced for clients that will not read them, over the two read sessions.
    post_all(&stack, &quick.client(), "after").await;
    eventually("those who did not read are gone", async || {
        // The metrics request has a connection, too.
        let open = quick.metric("gapless_api_connections", &[]).await;
        if open == 1.0 { Ok(()) } else { Err(open) }
    })
    .await;
    wait_confirmed(&stack, 3 * POSTS).await;
    // The control: the timeout disconnects them.
    let open = without_limits.metric("gapless_api_connections", &[]).await;
    assert!(open > crowd.all() as f64, "{open} connections of those who may stay");
    let waiting = without_limits.metric("gapless_long_polls", &[]).await;
    assert_eq!(waiting, crowd.waiting as f64, "they still wait");

    drop((readers, cut_off));
    assert_eq!(stack.submitter_action(idle, "resume", "go on").await.status, 200);
    stack.wait_all_terminal().await;
    stack.finish().await;
}
