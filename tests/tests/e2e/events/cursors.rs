//! Cursors: retention, epochs, and how a consumer is notified of a reset.

use std::collections::BTreeSet;
use std::time::Duration;

use gapless_testkit::{Address, EventStream, HaPair, TxState, payload};
use serde_json::Value;

use super::{all_events, drop_all, lose_primary, recorded, wait_ordered, write_events};

fn ids(events: &[Value]) -> BTreeSet<String> {
    events.iter().map(|event| event["id"].as_str().unwrap().to_owned()).collect()
}

/// Scenario 76.
#[tokio::test(flavor = "multi_thread")]
async fn a_cursor_behind_the_retention_is_reset() {
    let stack = recorded().set("events.retention", "1s").up().await;
    let api = stack.services().remove(0);
    let tx_id = stack.create(stack.submitter(0), "one", &payload(Address::repeat_byte(0x95), 1)).await;
    stack.wait_for(tx_id, TxState::Confirmed).await;
    wait_ordered(&stack).await;
    let page = stack.client().get("/api/v1/events?limit=1").await;
    let cursor = page.body["nextCursor"].as_str().unwrap().to_owned();
    drop_all(&stack).await;

    let refused = stack.client().get(&format!("/api/v1/events?after={cursor}")).await;
    assert_eq!((refused.status, refused.code()), (410, "events_reset"), "{refused:?}");
    assert!(refused.body["detail"].as_str().unwrap().contains("events.retention"), "{refused:?}");
    let next = refused.body["cursor"].as_str().unwrap();
    assert_eq!(stack.client().get(&format!("/api/v1/events?after={next}")).await.status, 200);

    let mut stream = EventStream::resume(&stack.client(), &cursor).await.unwrap();
    let first = stream.next().await;
    assert_eq!((first.event.as_str(), &first.data["reason"]), ("reset", &Value::from("retention")));
    let second = stream.next().await;
    assert_eq!(second.event, "", "it goes on with the oldest event");
    assert_eq!(api.metric("gapless_event_resets_total", &["reason=\"retention\""]).await, 2.0);
    stack.finish().await;
}

/// Scenario 81: a standby that lost its tail. Positions are assigned again, ids never, and consumers are notified.
#[tokio::test(flavor = "multi_thread")]
async fn a_standby_that_lost_its_tail_resets_every_cursor_and_reuses_no_id() {
    let mut pair = HaPair::start(false).await;
    let stack = recorded().database_at(&pair.url()).start().await;
    stack.start_api().await;
    let worker = stack.start_worker().await;
    let transfer = payload(Address::repeat_byte(0x96), 1);
    let kept = stack.create(stack.submitter(0), "kept", &transfer).await;
    stack.wait_for(kept, TxState::Confirmed).await;
    wait_ordered(&stack).await;
    worker.stop_sigterm().await;
    pair.wait_replayed().await;
    pair.stop_standby().await;
    // Events that only the primary has.
    let mut connection = stack.db().acquire().await.unwrap();
    write_events(&mut connection, 0xaa, 20).await;
    drop(connection);
    let worker = stack.start_worker().await;
    let before = all_events(&stack).await;
    let mut stream = EventStream::open(&stack.client(), "?after=start").await.unwrap();
    for _ in &before {
        stream.next().await;
    }
    let cursor = stream.cursor.clone();
    worker.stop_sigterm().await;

    lose_primary(&stack, &mut pair).await;
    stack.start_worker().await;
    // More events than were lost, so that the position of the cursor exists again.
    let mut connection = stack.db().acquire().await.unwrap();
    write_events(&mut connection, 0xbb, 60).await;
    drop(connection);
    let refused = stack.client().get(&format!("/api/v1/events?after={cursor}")).await;
    assert_eq!((refused.status, refused.code()), (410, "events_reset"), "{refused:?}");
    // The open stream too.
    let told = stream.next_within(Duration::from_secs(30)).await;
    assert_eq!(
        told.map(|told| (told.event, told.data["reason"].clone())),
        Some(("reset".to_owned(), "epoch".into()))
    );

    let after = all_events(&stack).await;
    let lost: BTreeSet<String> = ids(&before).difference(&ids(&after)).cloned().collect();
    assert_eq!(lost.len(), 20, "the tail is lost");
    let new: Vec<&Value> =
        after.iter().filter(|event| !ids(&before).contains(event["id"].as_str().unwrap())).collect();
    assert!(new.len() >= 60, "{}", new.len());
    let position = |event: &Value| event["sequence"].as_str().unwrap().to_owned();
    let reused = new.iter().filter(|event| before.iter().any(|old| position(old) == position(event))).count();
    assert!(reused >= 20, "positions are assigned again: {reused}");
    stack.finish().await;
}

/// A copy of the disk that is older, which PostgreSQL does not see: a process that knows a later position does.
#[tokio::test(flavor = "multi_thread")]
async fn a_log_that_went_back_under_a_running_api_begins_a_new_epoch() {
    let stack = recorded().up().await;
    let mut connection = stack.db().acquire().await.unwrap();
    write_events(&mut connection, 0xaa, 20).await;
    wait_ordered(&stack).await;
    let mut stream = EventStream::open(&stack.client(), "?after=start").await.unwrap();
    for _ in 0..20 {
        stream.next().await;
    }
    let cursor = stream.cursor.clone();
    // As if restored to a moment before the last ten events.
    sqlx::raw_sql("DELETE FROM event_log WHERE position > 10").execute(&mut *connection).await.unwrap();
    drop(connection);
    let told = stream.next().await;
    assert_eq!((told.event.as_str(), &told.data["reason"]), ("reset", &Value::from("epoch")));
    let refused = stack.client().get(&format!("/api/v1/events?after={cursor}")).await;
    assert_eq!((refused.status, refused.code()), (410, "events_reset"), "{refused:?}");
    stack.finish().await;
}
