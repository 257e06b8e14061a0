//! Event streams: resuming, filters, rights, limits.

use std::time::{Duration, Instant};

use gapless_testkit::{Address, EventStream, TxState, eventually, payload};
use serde_json::Value;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpSocket;

use super::{SOON, recorded, types_of, wait_ordered, write_events};

/// Scenario 75: at the exact position, through another API.
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_is_resumed_through_another_api_without_a_gap_or_a_repetition() {
    let stack = recorded().submitters(2).up().await;
    let other = stack.start_api().await;
    let transfer = payload(Address::repeat_byte(0x97), 1);
    let mut stream = EventStream::open(&stack.client(), "?after=start").await.unwrap();
    let mut tx_ids = Vec::new();
    let mut seen: Vec<Value> = Vec::new();
    for number in 0..10 {
        tx_ids.push(stack.create(stack.submitter(number % 2), &format!("r{number}"), &transfer).await);
        seen.push(stream.next().await.data);
        if number % 2 == 1 {
            let cursor = std::mem::take(&mut stream.cursor);
            drop(stream);
            let client = if number % 4 == 1 { other.client() } else { stack.client() };
            stream = EventStream::resume(&client, &cursor).await.unwrap();
        }
    }
    stack.wait_confirmed(&tx_ids).await;
    wait_ordered(&stack).await;
    let all = super::all_events(&stack).await;
    while seen.len() < all.len() {
        seen.push(stream.next().await.data);
    }
    assert_eq!(seen, all, "the same events, in the same order, as the list has");
    assert_eq!(stream.next_within(SOON).await, None);
    stack.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn filters_select_and_an_idle_filtered_stream_does_not_fall_behind() {
    let stack = recorded().submitters(2).up().await;
    let client = stack.client();
    let transfer = payload(Address::repeat_byte(0x98), 1);
    let second = stack.submitter(1).text();
    let mut finals = EventStream::open(&client, "?after=start&type=tx.confirmed,tx.failed").await.unwrap();
    let mut of_second =
        EventStream::open(&client, &format!("?after=start&submitter={second}")).await.unwrap();
    let first_tx = stack.create(stack.submitter(0), "a", &transfer).await;
    let second_tx = stack.create(stack.submitter(1), "b", &transfer).await;
    let mut of_tx = EventStream::open(&client, &format!("?after=start&txId={first_tx}")).await.unwrap();
    stack.wait_confirmed(&[first_tx, second_tx]).await;
    for _ in 0..2 {
        assert_eq!(finals.next().await.data["type"], "tx.confirmed");
    }
    for event in of_second.until("tx.confirmed").await {
        assert_eq!(event["data"]["submitter"], Value::from(second.clone()));
    }
    let events = of_tx.until("tx.confirmed").await;
    assert_eq!(types_of(&events, first_tx).len(), events.len());
    // The list has the same filters.
    let page = client.get(&format!("/api/v1/events?txId={first_tx}&type=tx.accepted")).await;
    assert_eq!(page.body["items"].as_array().unwrap().len(), 1, "{page:?}");
    for (query, field) in [
        ("type=tx.unknown", "type"),
        ("after=0", "after"),
        ("key=gpl_x", "key"),
        ("limit=0", "limit"),
        ("submitter=0x1", "submitter"),
    ] {
        let refused = client.get(&format!("/api/v1/events?{query}")).await;
        assert_eq!((refused.status, &refused.body["field"]), (400, &Value::from(field)), "{refused:?}");
    }
    // Nothing matches, and still the position advances with the comment.
    let mut idle = EventStream::open(&client, "?type=tx.stuck").await.unwrap();
    assert_eq!(idle.next_within(SOON).await, None);
    let at_start = idle.cursor.clone();
    let mut connection = stack.db().acquire().await.unwrap();
    write_events(&mut connection, 0xaa, 50).await;
    drop(connection);
    let advanced = idle.next_within(Duration::from_secs(18));
    assert_eq!(advanced.await, None);
    assert!(idle.comments > 0 && idle.cursor != at_start, "{idle:?}");
    let head: i64 =
        sqlx::query_scalar("SELECT gapless_event_position()").fetch_one(stack.db()).await.unwrap();
    assert!(idle.cursor.ends_with(&format!(".{head}")), "{idle:?} {head}");
    stack.finish().await;
}

/// A key sees its submitters only; once revoked, its streams end.
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_shows_what_its_key_may_see_and_ends_with_the_key() {
    let stack = recorded().submitters(2).up().await;
    let transfer = payload(Address::repeat_byte(0x99), 1);
    let own = stack.submitter(1);
    let submitter = format!("{}:{}", stack.anvil().chain_id(), own.text());
    let (all_key, all_id) = stack.api_key(&["--scope", "tx:read", "--scope", "tx:write"]).await;
    let (own_key, _) = stack.api_key(&["--scope", "tx:read", "--submitter", &submitter]).await;
    let (writer, _) = stack.api_key(&["--scope", "tx:write"]).await;
    let client = stack.client();
    eventually("keys are required", async || match client.get("/api/v1/events").await.status {
        401 => Ok(()),
        other => Err(other),
    })
    .await;
    assert_eq!(EventStream::open(&client, "").await.unwrap_err(), 401);
    assert_eq!(EventStream::open(&client.with_key(&writer), "").await.unwrap_err(), 403);
    let (mut all, mut of_own) = (
        EventStream::open(&client.with_key(&all_key), "?after=start").await.unwrap(),
        EventStream::open(&client.with_key(&own_key), "?after=start").await.unwrap(),
    );
    let other = stack.submitter(0).text();
    let refused = EventStream::open(&client.with_key(&own_key), &format!("?submitter={other}")).await;
    assert_eq!(refused.unwrap_err(), 403);
    for index in 0..2 {
        let made = client.with_key(&all_key).post(stack.submitter(index), "one", &transfer).await;
        stack.record_accepted(&made);
        assert_eq!(made.status, 202, "{made:?}");
    }
    for event in of_own.until("tx.confirmed").await {
        assert_eq!(event["data"]["submitter"], Value::from(own.text()));
    }
    all.until("tx.confirmed").await;
    all.until("tx.confirmed").await;
    let revoked = stack.cli(&["api-keys", "revoke", &all_id]).await;
    assert_eq!(revoked.code, 0, "{revoked:?}");
    let since = Instant::now();
    assert!(all.wait_end(Duration::from_secs(20)).await, "the stream of a revoked key ends");
    assert!(since.elapsed() < Duration::from_secs(5), "{:?}", since.elapsed());
    assert!(!of_own.wait_end(SOON).await, "others go on");
    stack.finish().await;
}

/// Streams have their own limit, and do not use up connections.
#[tokio::test(flavor = "multi_thread")]
async fn streams_have_a_limit_of_their_own() {
    let stack = recorded().start().await;
    let api = stack.api().set("api.max_event_streams", 4).set("api.max_connections", 4).start().await;
    stack.start_worker().await;
    let client = api.client();
    let mut streams = Vec::new();
    for _ in 0..4 {
        streams.push(EventStream::open(&client, "?after=start").await.unwrap());
    }
    let refused = client.get("/api/v1/events").await;
    assert_eq!(refused.status, 200, "other requests have all connections: {refused:?}");
    assert_eq!(EventStream::open(&client, "").await.unwrap_err(), 503);
    assert_eq!(api.metric("gapless_event_streams", &[]).await, 4.0);
    streams.clear();
    eventually("closed streams are not counted", async || {
        let open = api.metric("gapless_event_streams", &[]).await;
        if open == 0.0 { Ok(()) } else { Err(open) }
    })
    .await;
    EventStream::open(&client, "").await.unwrap();
    stack.finish().await;
}

/// Scenario 77. Its small buffer is full while 30,000 events happen.
#[tokio::test(flavor = "multi_thread")]
async fn a_slow_reader_is_disconnected_and_nobody_else_notices() {
    let stack = recorded().up().await;
    let api = stack.services().remove(0);
    let slow = TcpSocket::new_v4().unwrap();
    slow.set_recv_buffer_size(4096).unwrap();
    let address = api.url().trim_start_matches("http://").parse().unwrap();
    let mut slow = slow.connect(address).await.unwrap();
    slow.write_all(b"GET /api/v1/events HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n")
        .await
        .unwrap();
    let mut quick = EventStream::open(&stack.client(), "").await.unwrap();
    eventually("both streams are open", async || {
        let open = api.metric("gapless_event_streams", &[]).await;
        if open == 2.0 { Ok(()) } else { Err(open) }
    })
    .await;
    let before = api.peak_memory_bytes();
    let writing = async {
        let mut connection = stack.db().acquire().await.unwrap();
        for _ in 0..30 {
            write_events(&mut connection, 0xaa, 1_000).await;
            wait_ordered(&stack).await;
        }
    };
    let reading = async {
        let mut positions = Vec::new();
        while positions.len() < 30_000 {
            let event = quick.next().await.data;
            positions.push(event["sequence"].as_str().unwrap().parse::<i64>().unwrap());
        }
        positions
    };
    let ((), positions) = tokio::join!(writing, reading);
    assert!(positions.windows(2).all(|pair| pair[1] == pair[0] + 1), "every event, in order");
    eventually("the slow one is disconnected", async || {
        let ended = api.metric("gapless_event_streams_ended_total", &["reason=\"slow\""]).await;
        if ended == 1.0 { Ok(()) } else { Err(ended) }
    })
    .await;
    let grown = api.peak_memory_bytes().saturating_sub(before);
    assert!(grown < 100 << 20, "{grown} bytes more; nothing is stored for a slow reader");
    let tx_id = stack.create(stack.submitter(0), "after", &payload(Address::repeat_byte(0x9a), 1)).await;
    stack.wait_for(tx_id, TxState::Confirmed).await;
    stack.finish().await;
}
