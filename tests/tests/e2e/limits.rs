//! Limits of the API: how they are reported, and that they do not affect other clients.

use std::time::Duration;

use futures::future::join_all;
use gapless_testkit::{Address, Answer, LIMIT, Mining, Service, Stack, TxState, eventually, payload};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::stack;

fn check_full(answer: &Answer, code: &str) {
    assert_eq!((answer.status, answer.code()), (429, code), "{answer:?}");
    let seconds: u64 = answer.headers["retry-after"].to_str().unwrap().parse().unwrap();
    assert!(seconds >= 1, "{answer:?}");
}

/// Scenario 6: queue limit reached: 429 with Retry-After; once the queue drains, requests are accepted again.
#[tokio::test(flavor = "multi_thread")]
async fn a_full_queue_refuses_what_is_new_and_takes_more_once_it_drains() {
    const ROOM: usize = 5;
    let stack = stack().submitters(2).set("api.queue_limit", ROOM as u64).up().await;
    let (submitter, other, client) = (stack.submitter(0), stack.submitter(1), stack.client());
    let transfer = payload(Address::repeat_byte(0x61), 1);
    assert_eq!(
        stack.submitter_action(submitter, "pause", "so that nothing leaves the queue").await.status,
        200
    );

    // Thirty concurrent requests in a few groups: exactly as many as fit are accepted. Another queue is not affected.
    let posts = (0..30).map(|n| {
        let (client, transfer) = (client.clone(), &transfer);
        async move {
            let ours = client.post(submitter, &format!("r{n}"), transfer).await;
            let theirs = match n < ROOM - 2 {
                true => Some(client.post(other, &format!("r{n}"), transfer).await),
                false => None,
            };
            (ours, theirs)
        }
    });
    let answers = join_all(posts).await;
    let (mut taken, mut refused) = (Vec::new(), Vec::new());
    for (n, (ours, theirs)) in answers.iter().enumerate() {
        stack.record_accepted(ours);
        if ours.status == 202 {
            taken.push(n)
        } else {
            refused.push(n)
        }
        if let Some(theirs) = theirs {
            assert_eq!(theirs.status, 202, "{theirs:?}");
            stack.record_accepted(theirs);
        }
    }
    assert_eq!(taken.len(), ROOM, "{answers:?}");
    for n in &refused {
        check_full(&answers[*n].0, "queue_full");
    }

    // Accepted requests are still answered, and conflicts are still reported.
    let again = client.post(submitter, &format!("r{}", taken[0]), &transfer).await;
    assert_eq!((again.status, again.tx_id()), (200, answers[taken[0]].0.tx_id()));
    let conflict = client.post(submitter, &format!("r{}", taken[0]), &payload(Address::zero(), 7)).await;
    assert_eq!((conflict.status, conflict.code()), (409, "request_id_conflict"));
    let item = |from: &str, id: &str| json!({ "submitter": from, "requestId": id, "payload": transfer });
    let (own, neighbour) = (submitter.text(), other.text());
    let items = [item(&own, "new"), item(&neighbour, "new"), item(&own, &format!("r{}", taken[1]))];
    let batch = client.post_to("/api/v1/tx/batch", &json!({ "items": items })).await;
    let results = batch.body["results"].as_array().unwrap();
    let statuses: Vec<_> = results.iter().map(|result| result["status"].as_u64().unwrap()).collect();
    assert_eq!(statuses, [429, 202, 200], "{batch:?}");
    assert_eq!(results[0]["problem"]["code"], "queue_full");
    let stored: i64 = sqlx::query_scalar("SELECT count(*) FROM managed_tx WHERE submitter = $1")
        .bind(submitter.bytes())
        .fetch_one(stack.db())
        .await
        .unwrap();
    assert_eq!(stored, ROOM as i64, "rejected ones were not stored");

    // It drains, and requests are accepted again.
    assert_eq!(stack.submitter_action(submitter, "resume", "go on").await.status, 200);
    let taken = eventually("there is room again", async || {
        let answer = client.post(submitter, &format!("r{}", refused[0]), &transfer).await;
        if answer.status == 202 {
            return Ok(answer);
        }
        check_full(&answer, "queue_full");
        Err(answer.status)
    })
    .await;
    stack.record_accepted(&taken);
    stack.wait_all_terminal().await;
    stack.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_submitter_may_have_a_queue_of_its_own_length() {
    let stack = stack().submitters(2).set("api.queue_limit", 1).start().await;
    stack.start_worker().await;
    let key = format!("chain.c0.submitter.{}.queue_limit", stack.submitter(1).text());
    stack.api().set(&key, 3).start().await;
    let transfer = payload(Address::repeat_byte(0x62), 1);
    for (submitter, room) in [(stack.submitter(0), 1), (stack.submitter(1), 3)] {
        assert_eq!(
            stack.submitter_action(submitter, "pause", "so that nothing leaves the queue").await.status,
            200
        );
        for n in 0..room {
            stack.create(submitter, &format!("r{n}"), &transfer).await;
        }
        check_full(&stack.post(submitter, "one-too-many", &transfer).await, "queue_full");
        // A key without a limit.
        let unlimited = stack.api().set("api.queue_limit", 0).start().await.client();
        let more = unlimited.post(submitter, "elsewhere", &transfer).await;
        assert_eq!(more.status, 202, "{more:?}");
        stack.record_accepted(&more);
        stack.submitter_action(submitter, "resume", "go on").await;
    }
    stack.wait_all_terminal().await;
    stack.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_key_has_a_rate_of_its_own_and_a_batch_counts_by_its_items() {
    // So slow that no tokens are refilled during the test.
    let slow = ["--rate", "0.001", "--burst"];
    let stack = stack().set("api.rate_limit", 0.001).set("api.rate_burst", 2).start().await;
    let (three, _) = stack.api_key(&[&slow[..], &["3"]].concat()).await;
    let (batches, _) = stack.api_key(&[&slow[..], &["4"]].concat()).await;
    let (common, _) = stack.api_key(&[]).await;
    let (fast, _) = stack.api_key(&["--rate", "1000000", "--burst", "1000000"]).await;
    stack.start_api().await;
    let [three, batches, common, fast] =
        [three, batches, common, fast].map(|key| stack.client().with_key(&key));
    let let_in = async |client: &gapless_testkit::Client| {
        let mut count = 0;
        loop {
            let answer = client.get("/api/v1/tx").await;
            if answer.status != 200 {
                check_full(&answer, "rate_limited");
                return count;
            }
            count += 1;
        }
    };
    assert_eq!(let_in(&three).await, 3);
    assert_eq!(let_in(&common).await, 2, "what the API is configured for");
    for _ in 0..50 {
        assert_eq!(fast.get("/api/v1/tx").await.status, 200, "others are not touched");
    }
    let items: Vec<_> = (0..9).map(|n| json!({ "requestId": n.to_string() })).collect();
    let batch = batches.post_to("/api/v1/tx/batch", &json!({ "items": items })).await;
    assert_eq!(batch.status, 200, "larger than the burst, but accepted: {batch:?}");
    let after = batches.get("/api/v1/tx").await;
    check_full(&after, "rate_limited");
    let wait: u64 = after.headers["retry-after"].to_str().unwrap().parse().unwrap();
    assert!(wait > 5_000, "all nine are paid for: {wait} s");
    // A client that knows only the id of a key uses up nothing.
    assert_eq!(stack.client().admin_get("/api/v1/tx").await.status, 200, "the operator's token has no limit");
    stack.finish().await;
}

/// Reads until the server closes; returns the response.
async fn until_closed(stream: &mut TcpStream) -> String {
    let mut received = Vec::new();
    let read = timeout(LIMIT, stream.read_to_end(&mut received)).await.expect("the server closes");
    // A server that closes while bytes are in flight sends a reset.
    if let Err(error) = read {
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{error}");
    }
    String::from_utf8_lossy(&received).into_owned()
}

/// Sends a byte now and then until the server closes; returns the response.
async fn trickle(api: &Service, beginning: &str) -> String {
    let mut stream = connect(api).await;
    stream.write_all(beginning.as_bytes()).await.unwrap();
    let (mut from, mut to) = stream.into_split();
    let (mut received, mut pace) = (Vec::new(), tokio::time::interval(Duration::from_millis(20)));
    let mut chunk = [0; 4096];
    let talk = async {
        loop {
            tokio::select! {
                read = from.read(&mut chunk) => match read {
                    Ok(0) | Err(_) => return,
                    Ok(count) => received.extend_from_slice(&chunk[..count]),
                },
                _ = pace.tick() => {
                    // The response may arrive although writes fail already.
                    let _ = to.write_all(b"x").await;
                }
            }
        }
    };
    timeout(LIMIT, talk).await.expect("the server gives up");
    String::from_utf8_lossy(&received).into_owned()
}

async fn connect(api: &Service) -> TcpStream {
    TcpStream::connect(api.url().trim_start_matches("http://")).await.unwrap()
}

async fn patient_api(stack: &Stack) -> Service {
    let api = stack.api().set("api.header_timeout", "300ms").set("api.body_timeout", "300ms");
    api.set("api.send_timeout", "300ms").start().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_is_too_slow_is_cut_off() {
    let stack = stack().start().await;
    let api = patient_api(&stack).await;
    // Headers that never end, a connection without a request, and an idle keep-alive connection.
    let received = trickle(&api, "GET /healthz HTTP/1.1\r\nhost: localhost\r\nx-slow: ").await;
    assert!(!received.contains("200 OK"), "{received}");
    assert_eq!(until_closed(&mut connect(&api).await).await, "");
    let mut idle = connect(&api).await;
    idle.write_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    assert!(until_closed(&mut idle).await.contains("200 OK"), "a response, then closed");
    // A body that never ends gets a response with the reason.
    let beginning = "POST /api/v1/tx HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 100000\r\n\r\n{";
    let received = trickle(&api, beginning).await;
    assert!(received.starts_with("HTTP/1.1 408") && received.contains("body_too_slow"), "{received}");
    // The control: the timeout makes the difference.
    let answer = stack.start_api().await.client().get("/healthz").await;
    assert_eq!(answer.status, 200);
    stack.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_never_reads_its_answers_is_cut_off() {
    let stack = stack().start().await;
    let api = patient_api(&stack).await;
    let mut stream = connect(&api).await;
    // More responses than the system buffers for a client that does not read. At some point requests are not read
    // either.
    let request = b"GET /openapi.yaml HTTP/1.1\r\nhost: localhost\r\n\r\n";
    let asked = async { while stream.write_all(request).await.is_ok() {} };
    timeout(LIMIT, asked).await.expect("the server gives up");
    eventually("its connection is gone", async || {
        // The metrics request has a connection, too.
        let open = api.metric("gapless_api_connections", &[]).await;
        if open == 1.0 { Ok(()) } else { Err(open) }
    })
    .await;
    stack.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_has_no_key_is_refused_before_the_body_is_read() {
    let stack = stack().start().await;
    let (key, id) = stack.api_key(&[]).await;
    let api = patient_api(&stack).await;
    let head = |key: &str| {
        format!(
            "POST /api/v1/tx HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {key}\r\n\
             content-type: application/json\r\ncontent-length: 1000000\r\n\r\n"
        )
    };
    for wrong in ["guess".to_owned(), guess(&key, &id, 1)] {
        let received = trickle(&api, &head(&wrong)).await;
        assert!(received.starts_with("HTTP/1.1 401") && received.contains("unauthorized"), "{received}");
    }
    // The control: a client with permission is waited for.
    let received = trickle(&api, &head(&key)).await;
    assert!(received.starts_with("HTTP/1.1 408") && received.contains("body_too_slow"), "{received}");
    stack.finish().await;
}

/// A key with a known id and a wrong secret.
fn guess(key: &str, id: &str, n: usize) -> String {
    let digits = key.rsplit('_').next().unwrap().len();
    format!("gpl_{id}_{n:0digits$x}")
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_tries_keys_is_slowed_down_and_whoever_has_one_is_not() {
    let stack = stack().start().await;
    let (key, id) = stack.api_key(&[]).await;
    let client = stack.start_api().await.client();
    let ours = client.with_key(&key);
    assert_eq!(ours.get("/api/v1/tx").await.status, 200);
    let mut tried = 0;
    loop {
        let answer = client.with_key(&guess(&key, &id, tried)).get("/api/v1/tx").await;
        if answer.status != 401 {
            check_full(&answer, "rate_limited");
            break;
        }
        tried += 1;
        assert!(tried < 1_000, "no request was limited");
    }
    assert!(tried >= 50, "typos: {tried}");
    // From the same address: a valid key that is cached is still looked up.
    for _ in 0..20 {
        assert_eq!(ours.get("/api/v1/tx").await.status, 200);
    }
    // A key that is new to the process is rate-limited like failed ones, but only briefly.
    let (new, _) = stack.api_key(&[]).await;
    eventually("a new key is let in", async || {
        let answer = client.with_key(&new).get("/api/v1/tx").await;
        if answer.status == 200 { Ok(()) } else { Err(answer.status) }
    })
    .await;
    stack.finish().await;
}

/// It has no important clients: a connection that is silent, never ends or does not read is closed, and others get
/// its slot.
#[tokio::test(flavor = "multi_thread")]
async fn the_port_of_a_worker_is_kept_by_nobody() {
    let stack = stack().start().await;
    let worker = stack.start_worker().await;
    let address = worker.metrics_url().trim_start_matches("http://").to_owned();
    // More than there are slots.
    let mut silent = Vec::new();
    for n in 0..50 {
        let mut stream = TcpStream::connect(&address).await.unwrap();
        if n % 2 == 0 {
            stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: localhost\r\nx-slow: ").await.unwrap();
        }
        silent.push(stream);
    }
    assert_eq!(worker.readiness().await.0, 200, "a new connection gets a slot after a while");
    for mut stream in silent {
        let received = until_closed(&mut stream).await;
        assert!(!received.contains("200 OK"), "{received}");
    }
    // One response, and the connection is closed.
    let mut served = TcpStream::connect(&address).await.unwrap();
    served.write_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    assert!(until_closed(&mut served).await.contains("200 OK"));
    stack.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn headers_and_bodies_have_a_size_and_a_batch_a_length() {
    let stack = stack().set("api.max_batch", 2).set("api.max_body_bytes", 4096).start().await;
    let api = stack.start_api().await;
    let client = api.client();
    let mut stream = connect(&api).await;
    let head =
        format!("GET /healthz HTTP/1.1\r\nhost: localhost\r\nx-large: {}\r\n\r\n", "x".repeat(1 << 20));
    // The server responds before it has read everything, and may close while we still write.
    let _ = stream.write_all(head.as_bytes()).await;
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"HTTP/1.1 431");
    let within = client.request(reqwest::Method::GET, "/healthz").header("x-large", "x".repeat(8 << 10));
    assert_eq!(client.ask(within).await.status, 200);

    let large = client.post_raw(&json!({ "requestId": "x".repeat(5_000) })).await;
    assert_eq!((large.status, large.code()), (413, "body_too_large"));
    let items = |count: usize| json!({ "items": vec![json!({}); count] });
    assert_eq!(client.post_to("/api/v1/tx/batch", &items(2)).await.status, 200);
    let long = client.post_to("/api/v1/tx/batch", &items(3)).await;
    assert_eq!((long.status, long.code()), (400, "invalid_request"));
    stack.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_comes_when_every_place_is_taken_waits_for_one() {
    let stack = stack().start().await;
    let api = stack.api().set("api.max_connections", 2).start().await;
    let mut taken = [connect(&api).await, connect(&api).await];
    for stream in &mut taken {
        stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
        stream.read_exact(&mut [0; 12]).await.unwrap();
    }
    let waiting = tokio::spawn({
        let client = api.client();
        async move { client.get("/healthz").await }
    });
    // Open connections are served, more than once, before the waiting one.
    for stream in &mut taken {
        for _ in 0..20 {
            stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
            stream.read_exact(&mut [0; 12]).await.unwrap();
        }
    }
    assert!(!waiting.is_finished());
    let [leaves, _stays] = taken;
    drop(leaves);
    assert_eq!(timeout(LIMIT, waiting).await.expect("a place is free").unwrap().status, 200);
    stack.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_waits_longer_than_the_server_lets_them() {
    let stack = stack().mining(Mining::Manual).set("api.max_wait", "200ms").up().await;
    let tx_id = stack.create(stack.submitter(0), "one", &payload(Address::repeat_byte(0x63), 1)).await;
    stack.wait_for(tx_id, TxState::Submitted).await;
    let path = format!("/api/v1/tx/{tx_id}?wait=1h");
    let client = stack.client();
    let answer = timeout(LIMIT, client.get(&path)).await.expect("not after an hour");
    assert_eq!((answer.status, &answer.body["state"]), (200, &json!("SUBMITTED")));
    stack.anvil().mine(1).await;
    stack.wait_for(tx_id, TxState::Confirmed).await;
    stack.finish().await;
}
