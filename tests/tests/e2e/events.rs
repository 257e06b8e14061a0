//! Events: the switch, the order, cursors, and streams.

mod cursors;
mod order;
mod streams;

use std::collections::BTreeMap;
use std::time::Duration;

use gapless_testkit::{
    Address, EventStream, HaPair, Mining, Stack, StackBuilder, TxId, TxState, eventually, payload,
};
use serde_json::{Value, json};

use crate::stack;

const FINAL: [&str; 3] = ["tx.confirmed", "tx.failed", "tx.cancelled"];

/// A stack that records events.
fn recorded() -> StackBuilder {
    stack().set("events.mode", "mq_outbox")
}

/// All events of the log, from the API. Waits until the outbox is empty.
pub(super) async fn all_events(stack: &Stack) -> Vec<Value> {
    wait_ordered(stack).await;
    let (mut events, mut cursor) = (Vec::new(), "start".to_owned());
    loop {
        let page = stack.client().get(&format!("/api/v1/events?limit=200&after={cursor}")).await;
        assert_eq!(page.status, 200, "{page:?}");
        let items = page.body["items"].as_array().unwrap().clone();
        page.body["nextCursor"].as_str().unwrap().clone_into(&mut cursor);
        if items.is_empty() {
            return events;
        }
        events.extend(items);
    }
}

pub(super) async fn wait_ordered(stack: &Stack) {
    eventually("the outbox is empty", async || {
        let left: i64 =
            sqlx::query_scalar("SELECT count(*) FROM outbox_event").fetch_one(stack.db()).await.unwrap();
        if left == 0 { Ok(()) } else { Err(left) }
    })
    .await;
}

fn types_of(events: &[Value], tx_id: TxId) -> Vec<&str> {
    let own = events.iter().filter(|event| event["subject"] == json!(tx_id.to_string()));
    own.map(|event| event["type"].as_str().unwrap()).collect()
}

/// Rows of the outbox as another program would write them: `count` for a submitter. Returns their ids.
async fn write_events(connection: &mut sqlx::PgConnection, submitter: u8, count: i64) -> Vec<i64> {
    sqlx::query_scalar(
        "INSERT INTO outbox_event (chain_id, submitter, kind, data)
         SELECT 31337, decode(repeat(lpad(to_hex($1), 2, '0'), 20), 'hex'), 'submitter.unblocked',
                jsonb_build_object('type', 'submitter.unblocked', 'reason', 'n' || n)
         FROM generate_series(1, $2) AS n
         RETURNING event_id",
    )
    .bind(i32::from(submitter))
    .bind(count)
    .fetch_all(connection)
    .await
    .unwrap()
}

/// Issue 17, point 1: whoever accepts or sends follows the stored switch from the next commit on.
#[tokio::test(flavor = "multi_thread")]
async fn one_switch_decides_for_all_programs() {
    let stack = stack().up().await;
    stack.start_worker().await;
    let (submitter, transfer) = (stack.submitter(0), payload(Address::repeat_byte(0x91), 1));
    let before = stack.create(submitter, "before", &transfer).await;
    stack.wait_for(before, TxState::Confirmed).await;
    assert_eq!(all_events(&stack).await, Vec::<Value>::new(), "off by default");

    let switched = stack.cli(&["events", "enable"]).await;
    assert_eq!(switched.code, 0, "{switched:?}");
    // No pause: nothing has notified the processes.
    let during = stack.create(submitter, "during", &transfer).await;
    stack.wait_for(during, TxState::Confirmed).await;
    let events = all_events(&stack).await;
    let types = types_of(&events, during);
    assert_eq!(types.first(), Some(&"tx.accepted"), "{events:#?}");
    assert_eq!(types.last(), Some(&"tx.confirmed"), "{events:#?}");
    assert_eq!(events[0]["data"]["requestId"], "during", "{events:#?}");

    let switched = stack.cli(&["events", "disable"]).await;
    assert_eq!(switched.code, 0, "{switched:?}");
    let after = stack.create(submitter, "after", &transfer).await;
    stack.wait_for(after, TxState::Confirmed).await;
    assert_eq!(types_of(&all_events(&stack).await, after), Vec::<&str>::new());
    // An operator has decided: a configuration that asks does not change it.
    let asking = stack.worker().set("events.mode", "mq_outbox").start().await;
    asking.wait_for_log("worker started").await;
    let status = stack.cli(&["events", "status", "--json"]).await;
    assert!(status.stdout.contains("\"recording\":false"), "{status:?}");
    stack.finish().await;
}

/// Scenario 83. A reorg: exactly one final event for each intent, nothing after it, and `newFork` as the source documents
/// define it.
#[tokio::test(flavor = "multi_thread")]
async fn a_reorg_is_announced_and_each_intent_has_one_final_event() {
    let stack =
        recorded().confirmations(4).mining(Mining::Manual).set("resubmit.interval", "500ms").up().await;
    let submitter = stack.submitter(0);
    let tx_id = stack.create(submitter, "one", &payload(Address::repeat_byte(0x92), 1)).await;
    let mut stream = EventStream::open(&stack.client(), "?after=start").await.unwrap();
    stream.until("tx.submitted").await;
    stack.anvil().mine(2).await;
    let mut blocks: Vec<Value> = Vec::new();
    let apply = |blocks: &mut Vec<Value>, event: &Value| {
        if event["data"]["newFork"] == true {
            blocks.clear();
        }
        blocks.extend(event["data"]["blocks"].as_array().into_iter().flatten().cloned());
    };
    for event in stream.until("tx.confirmations").await {
        apply(&mut blocks, &event);
    }
    stack.anvil().reorg(2).await;
    for event in stream.until("tx.reorged").await {
        apply(&mut blocks, &event);
    }
    stack.anvil().mine(6).await;
    let rest = stream.until("tx.confirmed").await;
    for event in &rest {
        apply(&mut blocks, event);
    }
    let confirmed = &rest.last().unwrap()["data"];
    assert_eq!(&json!(blocks), &confirmed["blocks"], "replace on newFork, append otherwise");
    assert_eq!(confirmed["txHash"], json!(stack.row(tx_id).await.tx_hash));
    check_final(&stack, &[tx_id]).await;
    stack.finish().await;
}

/// Every one of these intents has exactly one final event, and it is the last one.
async fn check_final(stack: &Stack, tx_ids: &[TxId]) {
    let events = all_events(stack).await;
    for tx_id in tx_ids {
        let types = types_of(&events, *tx_id);
        let finals = types.iter().filter(|kind| FINAL.contains(kind)).count();
        assert_eq!((finals, types.last().is_some_and(|kind| FINAL.contains(kind))), (1, true), "{types:?}");
    }
    let mut ids: BTreeMap<&str, usize> = BTreeMap::new();
    events.iter().for_each(|event| *ids.entry(event["id"].as_str().unwrap()).or_default() += 1);
    assert!(ids.values().all(|count| *count == 1), "ids are unique");
}

/// Scenario 58. Whatever holds the log, no transaction waits for it.
#[tokio::test(flavor = "multi_thread")]
async fn a_log_that_cannot_be_written_stops_no_transaction() {
    let stack = recorded().up().await;
    let submitter = stack.submitter(0);
    let mut holder = stack.db().begin().await.unwrap();
    sqlx::query("LOCK TABLE event_log, event_head IN ACCESS EXCLUSIVE MODE")
        .execute(&mut *holder)
        .await
        .unwrap();
    let transfer = payload(Address::repeat_byte(0x93), 1);
    let mut tx_ids = Vec::new();
    for number in 0..20 {
        tx_ids.push(stack.create(submitter, &format!("r{number}"), &transfer).await);
    }
    stack.wait_confirmed(&tx_ids).await;
    holder.rollback().await.unwrap();
    check_final(&stack, &tx_ids).await;
    stack.finish().await;
}

/// The sequencer is killed at any time: another one goes on, and nothing is lost or repeated.
#[tokio::test(flavor = "multi_thread")]
async fn another_worker_orders_the_events_after_a_kill() {
    let stack = recorded().short_lease().submitters(3).window(8).start().await;
    stack.start_api().await;
    let transfer = payload(Address::repeat_byte(0x94), 1);
    let mut tx_ids = Vec::new();
    for round in 0..3 {
        let worker = stack.start_worker().await;
        for number in 0..10 {
            let submitter = stack.submitter(number % 3);
            tx_ids.push(stack.create(submitter, &format!("r{round}-{number}"), &transfer).await);
        }
        let wanted = tx_ids[tx_ids.len() - 5];
        stack.wait_for(wanted, TxState::Confirmed).await;
        worker.kill9();
    }
    stack.start_worker().await;
    stack.wait_confirmed(&tx_ids).await;
    check_final(&stack, &tx_ids).await;
    stack.finish().await;
}

/// Old events are dropped, and a consumer that is behind is reset.
pub(super) async fn drop_all(stack: &Stack) {
    let mut connection = stack.db().acquire().await.unwrap();
    write_events(&mut connection, 0xaa, 2_500).await;
    eventually("old partitions are dropped", async || {
        let first: i64 =
            sqlx::query_scalar("SELECT first_position FROM event_head").fetch_one(stack.db()).await.unwrap();
        if first > 1_000 { Ok(()) } else { Err(first) }
    })
    .await;
}

/// A time limit for what must not happen.
/// The primary dies, and the standby, as far as it had come, takes its place.
pub(super) async fn lose_primary(stack: &Stack, pair: &mut HaPair) {
    pair.kill_primary();
    pair.start_standby().await;
    pair.fail_over().await;
    eventually("the API has found the new primary", async || {
        let ready = stack.client().get("/readyz").await;
        if ready.status == 200 { Ok(()) } else { Err(ready.body) }
    })
    .await;
}

pub(super) const SOON: Duration = Duration::from_millis(300);
