//! Workers that die or freeze, and a log that loses events.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use gapless_testkit::{
    HaPair, Received, Reply, Service, Stack, WebhookReceiver, eventually, first_arrivals, ids_of,
};
use serde_json::{Value, json};

use super::{Webhook, check_order, publish, publish_one, requests_of, text, with_webhooks};
use crate::events::{all_events, drop_all, lose_primary, wait_ordered};

/// The worker that delivers to the only webhook.
async fn owner(stack: &Stack, not: &str) -> String {
    eventually("a worker delivers", async || {
        let outlets = stack.client().admin_get("/api/v1/outlets").await;
        match outlets.body["items"][0]["worker"].as_str() {
            Some(worker) if worker != not => Ok(worker.to_owned()),
            _ => Err(outlets.body),
        }
    })
    .await
}

async fn start_workers(stack: &Stack, names: &[&str]) -> BTreeMap<String, Service> {
    let mut workers = BTreeMap::new();
    for name in names {
        let worker = stack.worker().set("worker.id", *name).start().await;
        workers.insert((*name).to_owned(), worker);
    }
    workers
}

fn all(ids: &BTreeMap<u8, Vec<String>>) -> Vec<String> {
    ids.values().flatten().cloned().collect()
}

/// Scenario 81: killed between the send and the commit of the cursor.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_sent_by_a_killed_worker_is_sent_again_with_the_same_id() {
    let stack = with_webhooks().short_lease().start().await;
    stack.start_api().await;
    let workers = start_workers(&stack, &["one", "two", "three"]).await;
    let receiver = WebhookReceiver::start().await;
    let webhook = Webhook::create(&stack.client(), &receiver).await;
    receiver.set_reply(Reply::Hang);
    let ids = publish(&stack, &[0xa, 0xb, 0xc], 10).await;
    let sent = receiver.wait_for("one request of each", |received| received.len() == 3).await;
    let killed = owner(&stack, "").await;
    workers[&killed].kill9();
    receiver.set_reply(Reply::Status(200));
    let received = receiver.wait_accepted(&all(&ids)).await;
    assert_eq!(received.len(), 33, "what was under way is repeated, nothing else");
    for one in &sent {
        let again: Vec<_> = received.iter().filter(|other| other.id() == one.id()).collect();
        assert_eq!((again.len(), &again[1].body), (2, &one.body), "the same event");
        again[1].verify(&webhook.secret).unwrap();
    }
    check_order(&received);
    for (submitter, ids) in &ids {
        assert_eq!(&ids_of(&requests_of(&first_arrivals(&received), *submitter)), ids, "all, in order");
    }
    assert_ne!(owner(&stack, "").await, killed);
    stack.finish().await;
}

/// Scenario 81: killed at any time, again and again.
#[tokio::test(flavor = "multi_thread")]
async fn no_event_is_missing_after_several_kills() {
    let stack = with_webhooks().short_lease().start().await;
    stack.start_api().await;
    let mut workers = start_workers(&stack, &["w0", "w1", "w2"]).await;
    let receiver = WebhookReceiver::start().await;
    Webhook::create(&stack.client(), &receiver).await;
    receiver.set_reply(Reply::Delayed(Duration::from_millis(20)));
    let submitters: Vec<u8> = (1..=10).collect();
    let ids = publish(&stack, &submitters, 40).await;
    for round in 0..3 {
        let arrived = receiver.count() + 60;
        receiver.wait_for("60 more requests", |received| received.len() >= arrived).await;
        let killed = owner(&stack, "").await;
        workers.remove(&killed).unwrap().kill9();
        workers.extend(start_workers(&stack, &[&format!("w{}", 3 + round)]).await);
    }
    let received = receiver.wait_accepted(&all(&ids)).await;
    check_order(&received);
    let distinct: BTreeSet<String> = ids_of(&received).into_iter().collect();
    assert_eq!(distinct, all(&ids).into_iter().collect(), "every id, and no other");
    // At most one delivery per submitter is under way when a worker dies; the rest of the repetitions was delivered,
    // but not committed yet.
    assert!(received.len() < 2 * distinct.len(), "{} requests for {} events", received.len(), distinct.len());
    stack.finish().await;
}

/// Scenario 81: a worker that is frozen for longer than its lease does not deliver after its successor.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_wakes_up_after_its_lease_disturbs_nothing() {
    let stack = with_webhooks().short_lease().start().await;
    stack.start_api().await;
    let workers = start_workers(&stack, &["one", "two"]).await;
    let receiver = WebhookReceiver::start().await;
    let webhook = Webhook::create(&stack.client(), &receiver).await;
    receiver.set_reply(Reply::Delayed(Duration::from_millis(20)));
    let submitters: Vec<u8> = (1..=5).collect();
    let mut ids = all(&publish(&stack, &submitters, 40).await);
    receiver.wait_for("30 requests", |received| received.len() >= 30).await;
    let frozen = owner(&stack, "").await;
    workers[&frozen].sigstop();
    let stopped_at = receiver.count();
    owner(&stack, &frozen).await;
    let taken_over = stopped_at + 30;
    receiver.wait_for("30 requests of the new owner", |received| received.len() >= taken_over).await;
    workers[&frozen].sigcont();
    ids.extend(all(&publish(&stack, &submitters, 20).await));
    let received = receiver.wait_accepted(&ids).await;
    check_order(&received);
    webhook.wait_for("has caught up", |one| one["health"]["lagEvents"] == 0).await;
    assert_ne!(owner(&stack, "").await, frozen);
    assert_eq!(ids_of(&first_arrivals(&received)).len(), ids.len(), "every id, and no other");
    stack.finish().await;
}

fn is_reset(one: &Received) -> bool {
    one.kind() == "events.reset"
}

/// Waits for the notice that events may be missing, and returns its index.
async fn wait_reset(receiver: &WebhookReceiver, webhook: &Webhook, reason: &str) -> usize {
    let received = receiver.wait_for("a reset", |received| received.iter().any(|one| is_reset(one))).await;
    let index = received.iter().position(|one| is_reset(one)).unwrap();
    let notice = &received[index];
    notice.verify(&webhook.secret).unwrap();
    assert_eq!(notice.header("webhook-id"), notice.id());
    assert_eq!(notice.event["source"], json!(format!("/webhooks/{}", webhook.id)));
    let data = &notice.event["data"];
    assert_eq!((&data["webhookId"], &data["reason"]), (&json!(webhook.id), &json!(reason)), "{data}");
    assert!(data["cursor"].is_string() && notice.sequence().is_none(), "{notice:?}");
    index
}

/// What each id was first received with. It never changes.
fn check_ids_are_stable(received: &[Arc<Received>]) {
    let mut seen: BTreeMap<&str, (&str, &Value)> = BTreeMap::new();
    for one in received {
        let what = (one.kind(), &one.event["data"]);
        assert_eq!(*seen.entry(one.id()).or_insert(what), what, "an id was used again");
    }
}

/// Scenario 81: a restored database.
#[tokio::test(flavor = "multi_thread")]
async fn a_new_epoch_is_announced_and_no_id_is_used_again() {
    let stack = with_webhooks().up().await;
    let receiver = WebhookReceiver::start().await;
    let webhook = Webhook::create(&stack.client(), &receiver).await;
    let before = publish(&stack, &[0xa, 0xb], 5).await;
    receiver.wait_accepted(&all(&before)).await;
    let reset = stack.cli(&["events", "reset", "--reason", "a restore", "--yes"]).await;
    assert_eq!(reset.code, 0, "{reset:?}");
    let index = wait_reset(&receiver, &webhook, "epoch").await;
    assert_eq!(index, 10, "after what was delivered before");
    let after = publish(&stack, &[0xa, 0xb], 5).await;
    let received = receiver.wait_accepted(&all(&after)).await;
    check_ids_are_stable(&received);
    let (old, new): (BTreeSet<_>, BTreeSet<_>) =
        (all(&before).into_iter().collect(), all(&after).into_iter().collect());
    assert!(old.is_disjoint(&new));
    assert_eq!(received.iter().filter(|one| is_reset(one)).count(), 1, "one notice");
    for submitter in [0xa, 0xb] {
        let arrived = ids_of(&requests_of(&first_arrivals(&received), submitter));
        assert_eq!(arrived, [&before[&submitter][..], &after[&submitter][..]].concat());
    }
    let epoch = text(&webhook.get().await["health"]["cursor"]);
    let head = text(&stack.client().get("/api/v1/events?after=end").await.body["nextCursor"]);
    assert_eq!(epoch.split('.').next(), head.split('.').next(), "the cursor belongs to the new epoch");
    stack.finish().await;
}

/// Scenario 81: a standby that lost its tail. The receiver has events that the log does not have any more.
#[tokio::test(flavor = "multi_thread")]
async fn a_failover_that_lost_events_is_announced_and_no_id_is_used_again() {
    let mut pair = HaPair::start(false).await;
    let stack = with_webhooks().database_at(&pair.url()).start().await;
    stack.start_api().await;
    let worker = stack.start_worker().await;
    let receiver = WebhookReceiver::start().await;
    let webhook = Webhook::create(&stack.client(), &receiver).await;
    let kept = publish_one(&stack, 0xa, 5).await;
    receiver.wait_accepted(&kept).await;
    worker.stop_sigterm().await;
    pair.wait_replayed().await;
    pair.stop_standby().await;
    // Only the primary has these.
    let worker = stack.start_worker().await;
    let lost = publish_one(&stack, 0xa, 20).await;
    receiver.wait_accepted(&lost).await;
    worker.stop_sigterm().await;

    lose_primary(&stack, &mut pair).await;
    stack.start_worker().await;
    let after = publish_one(&stack, 0xa, 40).await;
    let received = receiver.wait_accepted(&after).await;
    let index = wait_reset(&receiver, &webhook, "epoch").await;
    let first = received.iter().position(|one| one.id() == after[0]).unwrap();
    assert!(index < first, "it is announced before the first event that is new");
    check_ids_are_stable(&received);
    let positions = |ids: &[String]| -> BTreeSet<i64> {
        let of_ids = received.iter().filter(|one| ids.iter().any(|id| id == one.id()));
        of_ids.filter_map(|one| one.sequence()).collect()
    };
    assert!(!positions(&lost).is_disjoint(&positions(&after)), "the control: positions are used again");
    stack.finish().await;
}

/// A reset that cannot be delivered goes to the new URL as soon as there is one, and not to the old one again.
#[tokio::test(flavor = "multi_thread")]
async fn a_reset_follows_the_webhook_to_another_url() {
    let stack = with_webhooks().set("events.webhook.retry", vec!["0s", "1h"]).up().await;
    let (old, new) = (WebhookReceiver::start().await, WebhookReceiver::start().await);
    let webhook = Webhook::create(&stack.client(), &old).await;
    old.set_reply(Reply::Status(500));
    let reset = stack.cli(&["events", "reset", "--reason", "a restore", "--yes"]).await;
    assert_eq!(reset.code, 0, "{reset:?}");
    let ids = publish_one(&stack, 0xa, 1).await;
    old.wait_for("the reset", |received| received.iter().any(|one| is_reset(one))).await;
    webhook.wait_for("has an error", |one| one["health"]["lastError"].is_string()).await;
    webhook.change(&json!({ "url": new.url() })).await;
    wait_reset(&new, &webhook, "epoch").await;
    new.wait_accepted(&ids).await;
    assert_eq!(old.count(), 1, "no further request to the old URL");
    stack.finish().await;
}

/// Scenario 76: a webhook that was disabled for longer than events are kept.
#[tokio::test(flavor = "multi_thread")]
async fn a_webhook_behind_the_retention_is_told_and_goes_on() {
    let stack = with_webhooks().set("events.retention", "1s").up().await;
    let receiver = WebhookReceiver::start().await;
    let webhook = Webhook::create(&stack.client(), &receiver).await;
    let first = publish_one(&stack, 0xa, 1).await;
    receiver.wait_accepted(&first).await;
    let filter = json!({ "types": ["submitter.released"] });
    webhook.change(&json!({ "enabled": false, "filter": filter })).await;
    super::wait_released(&stack, &webhook).await;
    drop_all(&stack).await;
    webhook.change(&json!({ "enabled": true })).await;
    assert_eq!(wait_reset(&receiver, &webhook, "retention").await, 1);
    webhook.change(&json!({ "filter": {} })).await;
    let worker = &stack.workers()[0];
    eventually("the reset is counted", async || {
        let resets = worker.metric("gapless_event_resets_total", &["reason=\"retention\""]).await;
        if resets >= 1.0 { Ok(()) } else { Err(resets) }
    })
    .await;
    webhook.wait_for("has caught up", |one| one["health"]["lagEvents"] == 0).await;
    let next = publish_one(&stack, 0xa, 1).await;
    receiver.wait_accepted(&next).await;
    stack.finish().await;
}

/// Scenario 76: only one submitter is behind, because the receiver refuses its events.
#[tokio::test(flavor = "multi_thread")]
async fn a_submitter_behind_the_retention_is_told_and_goes_on() {
    let stack = with_webhooks()
        .set("events.retention", "1s")
        .set("events.webhook.retry", vec!["0s", "1h"])
        .up()
        .await;
    let receiver = WebhookReceiver::start().await;
    let webhook = Webhook::create(&stack.client(), &receiver).await;
    receiver.reply_to_next(1, Reply::Status(500));
    let failed = publish_one(&stack, 0xb, 2).await;
    webhook.wait_delivery(&failed[0], "retrying").await;
    drop_all(&stack).await;
    wait_ordered(&stack).await;
    // The next attempt is due now.
    stack.sql("UPDATE outlet_submitter SET next_attempt_at = clock_timestamp()").await;
    stack.workers()[0].stop_sigterm().await;
    stack.start_worker().await;
    wait_reset(&receiver, &webhook, "retention").await;
    let next = publish_one(&stack, 0xb, 1).await;
    receiver.wait_accepted(&next).await;
    assert!(all_events(&stack).await.iter().all(|event| event["id"] != failed[0].as_str()), "the control");
    stack.finish().await;
}
