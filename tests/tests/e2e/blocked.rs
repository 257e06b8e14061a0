//! Queues whose head cannot be paid or priced, or waits for a node: how they are reported.

use gapless_testkit::{
    Address, Fault, Mining, Service, Stack, Submitter, TxId, TxState, U256, eventually, payload,
};
use serde_json::{Value, json};

use crate::stack;

fn target() -> Address {
    Address::repeat_byte(0xb7)
}

/// 10^30 wei.
fn unaffordable() -> Value {
    json!({ "to": format!("{:#x}", target()), "value": U256::exp10(30).to_string() })
}

async fn seen(stack: &Stack, submitter: &Submitter) -> Value {
    let seen = stack.client().get(&format!("/api/v1/submitters/{}", submitter.text())).await;
    assert_eq!(seen.status, 200, "{}", seen.body);
    seen.body
}

async fn wait_state(stack: &Stack, submitter: &Submitter, state: &str, blocked_by: Option<&str>) -> Value {
    eventually(&format!("the submitter is {state} by {blocked_by:?}"), async || {
        let seen = seen(stack, submitter).await;
        if seen["state"] == state && seen["blockedBy"].as_str() == blocked_by { Ok(seen) } else { Err(seen) }
    })
    .await
}

async fn wait_event(worker: &Service, tx_id: TxId, name: &str) -> Value {
    eventually(&format!("{name} is logged"), async || {
        let events = worker.events();
        let wanted = |event: &&Value| event["event"] == name && event["tx.id"] == tx_id.to_string();
        events.iter().find(wanted).cloned().ok_or(events)
    })
    .await
}

/// Scenario 68. By default it waits, and the API shows that it waits, why, and since when.
#[tokio::test(flavor = "multi_thread")]
async fn a_head_that_cannot_be_paid_is_visible_at_once_and_waits() {
    let stack = stack().short_lease().set("events.mode", "log").start().await;
    stack.start_api().await;
    let worker = stack.start_worker().await;
    let submitter = stack.submitter(0);
    let head = stack.create(submitter, "head", &unaffordable()).await;
    let behind = stack.create(submitter, "behind", &payload(target(), 1)).await;
    let blocked = wait_state(&stack, submitter, "BLOCKED", Some("funds")).await;
    assert!(blocked["blockedReason"].as_str().is_some_and(|text| !text.is_empty()), "{blocked}");
    let since = blocked["blockedSince"].clone();
    assert!(since.is_string(), "{blocked}");
    let event = wait_event(&worker, head, "submitter.blocked").await;
    assert!(event.to_string().contains("insufficient_funds"), "{event}");
    let shown = stack.cli(&["submitters"]).await;
    assert!(shown.stdout.contains("BLOCKED") && shown.stdout.contains("needs up to"), "{}", shown.stdout);
    eventually("the metric shows it", async || {
        let seconds = worker.metric("gapless_lane_blocked_seconds", &["reason=\"funds\""]).await;
        if seconds > 0.0 { Ok(()) } else { Err(seconds) }
    })
    .await;
    assert_eq!(worker.metric("gapless_lane_blocked_seconds", &["reason=\"node\""]).await, 0.0);

    // It is stored: the next owner keeps the reason and the time.
    worker.kill9();
    let worker = stack.start_worker().await;
    stack.wait_owned(submitter, None).await;
    assert_eq!(wait_state(&stack, submitter, "BLOCKED", Some("funds")).await["blockedSince"], since);
    assert_eq!(stack.row(behind).await.state, TxState::Queued, "nothing overtakes it");
    let paused = stack.submitter_action(submitter, "pause", "PAUSED precedes BLOCKED").await;
    assert_eq!(paused.status, 200, "{}", paused.body);
    assert_eq!(seen(&stack, submitter).await["state"], "PAUSED");
    stack.submitter_action(submitter, "resume", "that was all").await;

    // Funded now.
    stack.anvil().set_balance(submitter.address(), U256::exp10(31)).await;
    stack.wait_confirmed(&[head, behind]).await;
    let active = wait_state(&stack, submitter, "ACTIVE", None).await;
    assert!(active["blockedReason"].is_null() && active["blockedSince"].is_null(), "{active}");
    wait_event(&worker, head, "submitter.unblocked").await;
    assert_eq!((stack.row(head).await.nonce, stack.row(behind).await.nonce), (Some(0), Some(1)));
    stack.finish().await;
}

/// A fee cap, a node error, and a blocked head that is cancelled.
#[tokio::test(flavor = "multi_thread")]
async fn a_head_that_waits_for_a_fee_or_a_node_is_visible_and_its_end_is_told() {
    let stack = stack().proxied().submitters(2).set("events.mode", "log").up().await;
    let (cheap, cut_off) = (stack.submitter(0), stack.submitter(1));
    let worker = stack.workers().remove(0);
    let low = json!({ "to": format!("{:#x}", target()), "value": "1", "maxFeePerGas": "1", "maxPriorityFeePerGas": "1" });
    let head = stack.create(cheap, "low", &low).await;
    wait_state(&stack, cheap, "BLOCKED", Some("fee")).await;
    let behind = stack.create(cheap, "behind", &payload(target(), 1)).await;
    let cancel = stack.client().post_to(&format!("/api/v1/tx/{head}/cancel"), &json!({})).await;
    assert_eq!(cancel.status, 200, "{}", cancel.body);
    wait_event(&worker, head, "submitter.unblocked").await;
    stack.wait_confirmed(&[behind]).await;
    wait_state(&stack, cheap, "ACTIVE", None).await;

    stack.proxy().always("eth_getBalance", Fault::Status(503, "away".to_owned()));
    let tx_id = stack.create(cut_off, "cut-off", &payload(target(), 1)).await;
    wait_state(&stack, cut_off, "BLOCKED", Some("node")).await;
    stack.proxy().clear();
    stack.wait_confirmed(&[tx_id]).await;
    wait_state(&stack, cut_off, "ACTIVE", None).await;
    wait_event(&worker, tx_id, "submitter.unblocked").await;
    stack.finish().await;
}

/// Scenario 68.
#[tokio::test(flavor = "multi_thread")]
async fn a_head_that_cannot_be_paid_is_passed_and_tried_first() {
    let stack =
        stack().short_lease().set("queue.blocked", "pass").set("queue.blocked_after", "2s").start().await;
    stack.start_api().await;
    let worker = stack.start_worker().await;
    let submitter = stack.submitter(0);
    let head = stack.create(submitter, "head", &unaffordable()).await;
    wait_state(&stack, submitter, "BLOCKED", Some("funds")).await;
    let behind = stack.create(submitter, "behind", &payload(target(), 1)).await;
    assert_eq!(stack.row(behind).await.state, TxState::Queued, "not before its time");
    stack.wait_confirmed(&[behind]).await;
    let row = stack.row(head).await;
    assert_eq!((row.state, row.sub_state.as_deref()), (TxState::Queued, Some("waiting_funds")));
    assert_eq!(seen(&stack, submitter).await["state"], "BLOCKED", "still blocked");

    // More than are read at once, with another unaffordable one among them, which has its own time limit.
    let second = stack.create(submitter, "second", &unaffordable()).await;
    let mut others = Vec::new();
    for number in 0..20 {
        others.push(stack.create(submitter, &format!("other-{number}"), &payload(target(), 1)).await);
    }
    stack.wait_confirmed(&others).await;
    worker.kill9();
    stack.start_worker().await;
    let after = stack.create(submitter, "after-the-crash", &payload(target(), 1)).await;
    stack.wait_confirmed(&[after]).await;
    for passed in [head, second] {
        assert_eq!(stack.row(passed).await.state, TxState::Queued);
    }

    // Tried first: of two affordable ones the earlier gets the earlier nonce.
    stack.anvil().set_balance(submitter.address(), U256::exp10(31)).await;
    stack.wait_confirmed(&[head, second]).await;
    assert!(stack.row(head).await.nonce < stack.row(second).await.nonce);
    assert_eq!(stack.row(behind).await.nonce, Some(0));
    wait_state(&stack, submitter, "ACTIVE", None).await;
    stack.finish().await;
}

/// Scenario 68.
#[tokio::test(flavor = "multi_thread")]
async fn a_head_that_cannot_be_paid_fails_where_the_operator_says_so() {
    let stack = stack().set("queue.blocked", "fail").set("queue.blocked_after", "2s").up().await;
    let submitter = stack.submitter(0);
    let head = stack.create(submitter, "head", &unaffordable()).await;
    let low = json!({ "to": format!("{:#x}", target()), "value": "1", "maxFeePerGas": "1", "maxPriorityFeePerGas": "1" });
    let low = stack.create(submitter, "low", &low).await;
    let behind = stack.create(submitter, "behind", &payload(target(), 1)).await;
    wait_state(&stack, submitter, "BLOCKED", Some("funds")).await;
    let row = stack.wait_for(head, TxState::Failed).await;
    assert_eq!((row.nonce, row.sub_state.as_deref()), (None, Some("blocked")));
    let shown = stack.get(head).await.to_string();
    assert!(shown.contains("insufficient_funds") && shown.contains("queue.blocked"), "{shown}");
    let row = stack.wait_for(low, TxState::Failed).await;
    assert_eq!((row.nonce, row.sub_state.as_deref()), (None, Some("blocked")));
    assert!(stack.get(low).await.to_string().contains("underpriced"));
    stack.wait_confirmed(&[behind]).await;
    assert_eq!(stack.row(behind).await.nonce, Some(0));
    wait_state(&stack, submitter, "ACTIVE", None).await;
    stack.finish().await;
}

/// The negative control: the policy applies to intents, not to nodes. The time without a node does not count.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_node_owes_fails_nothing() {
    let stack = stack().proxied().set("queue.blocked", "fail").set("queue.blocked_after", "2s").up().await;
    let submitter = stack.submitter(0);
    stack.proxy().always("eth_getBalance", Fault::Status(503, "away".to_owned()));
    let tx_id = stack.create(submitter, "head", &payload(target(), 1)).await;
    eventually("it waits for longer than any policy", async || {
        let long: Option<bool> = sqlx::query_scalar(
            "SELECT clock_timestamp() - blocked_since > INTERVAL '5 s' FROM managed_tx WHERE sub_state = 'waiting_node'",
        )
        .fetch_optional(stack.db())
        .await
        .unwrap()
        .flatten();
        if long == Some(true) { Ok(()) } else { Err(long) }
    })
    .await;
    assert_eq!(stack.row(tx_id).await.state, TxState::Queued);
    stack.proxy().clear();
    stack.wait_confirmed(&[tx_id]).await;
    stack.finish().await;
}

/// Events about waiting of a transaction, oldest first, from the rows that are committed with its sub-state.
async fn wait_events(stack: &Stack, tx_id: TxId) -> Vec<(String, Option<String>)> {
    sqlx::query_as(
        "SELECT kind, data ->> 'waitsFor' FROM v_event
         WHERE tx_id = $1 AND kind IN ('submitter.blocked', 'submitter.unblocked') ORDER BY position NULLS LAST, event_id",
    )
    .bind(tx_id.0)
    .fetch_all(stack.db())
    .await
    .unwrap()
}

/// Scenario 68. It has a nonce and is mined, so it can never be STUCK. The owner crashes, and the next owner
/// continues correctly.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_on_its_way_and_waits_for_a_node_is_told_as_an_event_and_so_is_the_end() {
    let stack = stack().proxied().set("events.mode", "mq_outbox").mining(Mining::Manual).confirmations(3);
    let stack = stack.short_lease().up().await;
    let tx_id = stack.create(stack.submitter(0), "mined", &payload(target(), 1)).await;
    stack.wait_for(tx_id, TxState::Submitted).await;
    assert_eq!(wait_events(&stack, tx_id).await, [], "nothing waits for a node");
    stack.anvil().mine(1).await;
    stack.wait_for(tx_id, TxState::Tracking).await;
    stack.proxy().always("*", Fault::Close);
    let blocked = ("submitter.blocked".to_owned(), Some("node".to_owned()));
    eventually("the wait event is emitted", async || match wait_events(&stack, tx_id).await {
        events if events == [blocked.clone()] => Ok(()),
        events => Err((events, stack.row(tx_id).await)),
    })
    .await;
    let row = stack.row(tx_id).await;
    assert_eq!((row.state, row.sub_state.as_deref()), (TxState::Tracking, Some("waiting_node")));
    stack.workers()[0].kill9();
    stack.proxy().clear();
    stack.start_worker().await;
    eventually("its final event is emitted", async || match wait_events(&stack, tx_id).await {
        events if events == [blocked.clone(), ("submitter.unblocked".to_owned(), None)] => Ok(()),
        events => Err((events, stack.row(tx_id).await)),
    })
    .await;
    stack.anvil().mine(3).await;
    stack.wait_for(tx_id, TxState::Confirmed).await;
    assert_eq!(wait_events(&stack, tx_id).await.len(), 2, "once each");
    stack.finish().await;
}

/// Scenario 68. The window is full, so no queue head can report it; and without a count nothing is sent.
#[tokio::test(flavor = "multi_thread")]
async fn a_full_window_whose_count_no_node_tells_says_that_it_waits() {
    let stack = stack().proxied().set("events.mode", "mq_outbox").mining(Mining::Manual).start().await;
    stack.start_api().await;
    let worker = stack.start_worker().await;
    let tx_id = stack.create(stack.submitter(0), "open", &payload(target(), 1)).await;
    stack.wait_for(tx_id, TxState::Submitted).await;
    worker.kill9();
    stack.anvil().drop_all().await;
    stack
        .proxy()
        .always("eth_getTransactionCount", Fault::Error { code: -32005, message: "rate limited".into() });
    stack.start_worker().await;
    eventually("it says why it waits", async || match stack.row(tx_id).await {
        row if row.sub_state.as_deref() == Some("waiting_node") => Ok(()),
        row => Err(row),
    })
    .await;
    assert_eq!(wait_events(&stack, tx_id).await, [("submitter.blocked".to_owned(), Some("node".to_owned()))]);
    stack.proxy().clear();
    stack.wait_pending(1).await;
    stack.anvil().mine(1).await;
    stack.wait_for(tx_id, TxState::Confirmed).await;
    assert_eq!(wait_events(&stack, tx_id).await.len(), 2, "and its end, once each");
    stack.finish().await;
}

/// Scenario 68. All nodes are unreachable while a worker starts, so it cannot verify its chain: sent and queued
/// intents both report that they wait for a node, and continue when one responds.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_cannot_check_its_chain_says_what_its_submitters_wait_for() {
    let stack = stack().proxied().submitters(3).confirmations(3).mining(Mining::Manual);
    let stack = stack.set("events.mode", "mq_outbox").start().await;
    stack.start_api().await;
    let worker = stack.start_worker().await;
    let mined = stack.create(stack.submitter(2), "mined", &payload(target(), 1)).await;
    stack.wait_for(mined, TxState::Submitted).await;
    stack.anvil().mine(1).await;
    stack.wait_for(mined, TxState::Tracking).await;
    let open = stack.create(stack.submitter(0), "open", &payload(target(), 1)).await;
    stack.wait_for(open, TxState::Submitted).await;
    worker.kill9();
    stack.proxy().always("*", Fault::Close);
    let queued = stack.create(stack.submitter(1), "queued", &payload(target(), 1)).await;
    stack.start_worker().await;
    for tx_id in [mined, open, queued] {
        eventually("it says why it waits", async || match stack.row(tx_id).await {
            row if row.sub_state.as_deref() == Some("waiting_node") => Ok(()),
            row => Err(row),
        })
        .await;
        let blocked = ("submitter.blocked".to_owned(), Some("node".to_owned()));
        assert_eq!(wait_events(&stack, tx_id).await, [blocked]);
    }
    stack.proxy().clear();
    for tx_id in [mined, open, queued] {
        eventually("it is mined", async || {
            stack.anvil().mine(1).await;
            let row = stack.row(tx_id).await;
            if row.state == TxState::Confirmed { Ok(()) } else { Err(row) }
        })
        .await;
    }
    assert_eq!(stack.anvil().balance(target()).await, 3.into());
    stack.finish().await;
}
