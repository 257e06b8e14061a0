//! Receivers that fail: retries, their order, and whom they affect.

use std::time::Duration;

use gapless_testkit::{Address, Reply, WebhookReceiver, eventually, ids_of, payload};
use serde_json::{Value, json};

use super::{Webhook, check_order, fake, publish, publish_one, requests_of, text, with_webhooks};
use crate::events::all_events;

/// The shortest wait of a schedule with 300 ms, which may vary by a tenth.
const SHORTEST: Duration = Duration::from_millis(270);

/// Two attempts fail in this way, the third succeeds.
async fn retried(reply: Reply, error: &str) {
    let stack = with_webhooks()
        .set("events.webhook.retry", vec!["0s", "300ms", "300ms"])
        .set("events.webhook.timeout", "1s")
        .up()
        .await;
    let receiver = WebhookReceiver::start().await;
    let webhook = Webhook::create(&stack.client(), &receiver).await;
    receiver.reply_to_next_of(&fake(0xa), 2, reply.clone());
    let ids = publish(&stack, &[0xa, 0xb], 3).await;
    receiver.wait_accepted(&[&ids[&0xa][..], &ids[&0xb][..]].concat()).await;
    let received = receiver.received();
    let requests = requests_of(&received, 0xa);
    let [first, second, third] = [0, 1, 2].map(|index| ids[&0xa][index].clone());
    assert_eq!(ids_of(&requests), [first.clone(), first.clone(), first.clone(), second, third], "{reply:?}");
    assert_eq!(ids_of(&requests_of(&received, 0xb)), ids[&0xb], "{reply:?}: others are sent once");
    for pair in requests[..3].windows(2) {
        let gap = pair[1].at - pair[0].at;
        assert!(gap >= SHORTEST, "{reply:?}: {gap:?}");
    }
    // Each attempt is signed at its own time.
    received.iter().for_each(|one| one.verify(&webhook.secret).unwrap());
    let delivery = webhook.wait_delivery(&first, "delivered").await;
    assert_eq!((&delivery["attempts"], &delivery["error"]), (&json!(3), &Value::Null), "{delivery}");
    let health = webhook.wait_for("has caught up", |one| one["health"]["lagEvents"] == 0).await;
    assert!(text(&health["health"]["lastError"]).contains(error), "{health}");
    assert!(health["health"]["failingSince"].is_null(), "{health}");
    stack.finish().await;
}

/// Scenario 79.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_error_is_retried_by_schedule_and_in_order() {
    retried(Reply::Status(500), "500").await;
}

/// Scenario 79: only 2xx is a success.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_error_is_retried_by_schedule_and_in_order() {
    retried(Reply::Status(404), "404").await;
}

/// Scenario 79.
#[tokio::test(flavor = "multi_thread")]
async fn a_redirect_is_retried_by_schedule_and_in_order() {
    let other = WebhookReceiver::start().await;
    retried(Reply::redirect(&other.url()), "redirects are not followed").await;
    assert_eq!(other.count(), 0, "a redirect is not followed");
}

/// Scenario 79.
#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_that_hangs_is_retried_by_schedule_and_in_order() {
    retried(Reply::Hang, "did not respond within 1s").await;
}

/// Scenario 79.
#[tokio::test(flavor = "multi_thread")]
async fn a_closed_connection_is_retried_by_schedule_and_in_order() {
    retried(Reply::Close, "the connection to the receiver failed").await;
}

/// A receiver that is away refuses connections, and gets everything when it is back.
#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_that_restarts_misses_nothing() {
    let stack = with_webhooks().set("events.webhook.retry", vec!["200ms"; 50]).up().await;
    let mut receiver = WebhookReceiver::start().await;
    let webhook = Webhook::create(&stack.client(), &receiver).await;
    receiver.stop().await;
    let ids = publish(&stack, &[0xa, 0xb], 10).await;
    let failing = |one: &Value| one["health"]["failingSince"].is_string();
    let failed = webhook.wait_for("is failing", failing).await;
    assert!(text(&failed["health"]["lastError"]).contains("connection"), "{failed}");
    receiver.restart().await;
    let received = receiver.wait_accepted(&[&ids[&0xa][..], &ids[&0xb][..]].concat()).await;
    check_order(&received);
    webhook.wait_for("recovers", |one| one["health"]["failingSince"].is_null()).await;
    stack.finish().await;
}

/// Scenarios 59 and 79. The next attempt of the failing submitter is hours away: whatever arrives did not wait for it.
#[tokio::test(flavor = "multi_thread")]
async fn a_failing_submitter_delays_no_other_submitter_and_no_other_webhook() {
    let stack = with_webhooks().set("events.webhook.retry", vec!["0s", "1h"]).up().await;
    let (failing, sound) = (WebhookReceiver::start().await, WebhookReceiver::start().await);
    failing.set_reply_of(&fake(0xa), Some(Reply::Status(500)));
    let webhook = Webhook::create(&stack.client(), &failing).await;
    Webhook::create(&stack.client(), &sound).await;
    for _ in 0..3 {
        let ids = publish(&stack, &[0xa, 0xb, 0xc], 10).await;
        failing.wait_accepted(&[&ids[&0xb][..], &ids[&0xc][..]].concat()).await;
        sound.wait_accepted(&ids.values().flatten().cloned().collect::<Vec<_>>()).await;
    }
    let requests = requests_of(&failing.received(), 0xa);
    assert_eq!(requests.len(), 1, "the events after a failed one wait for it");
    for receiver in [&failing, &sound] {
        check_order(&receiver.received());
    }
    let delivery = webhook.wait_delivery(requests[0].id(), "retrying").await;
    for (member, expected) in [
        ("attempts", json!(1)),
        ("statusCode", json!(500)),
        ("type", json!("submitter.unblocked")),
        ("submitter", json!(fake(0xa).text())),
        ("chainId", json!(31337)),
    ] {
        assert_eq!(delivery[member], expected, "{delivery}");
    }
    assert!(text(&delivery["error"]).contains("500") && delivery["nextAttemptAt"].is_string(), "{delivery}");
    let is_behind = |one: &Value| {
        let health = &one["health"];
        (&health["submittersBehind"], &health["lagEvents"]) == (&json!(1), &json!(0))
    };
    webhook.wait_for("has one submitter behind, and the others are up to date", is_behind).await;
    stack.finish().await;
}

/// Scenarios 58, 59 and 79. Every delivery of one receiver hangs, also more of them than may be in flight.
#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_that_hangs_delays_no_transaction_and_no_other_webhook() {
    let stack = with_webhooks()
        .set("events.webhook.timeout", "10m")
        .set("events.webhook.max_in_flight", 8)
        .submitters(2)
        .up()
        .await;
    let (hanging, sound) = (WebhookReceiver::start().await, WebhookReceiver::start().await);
    hanging.set_reply(Reply::Hang);
    Webhook::create(&stack.client(), &hanging).await;
    Webhook::create(&stack.client(), &sound).await;
    let many: Vec<u8> = (1..=40).collect();
    publish(&stack, &many, 5).await;
    hanging.wait_for("8 requests in flight", |received| received.len() == 8).await;
    let transfer = payload(Address::repeat_byte(0xa3), 1);
    let mut tx_ids = Vec::new();
    for number in 0..20 {
        tx_ids.push(stack.create(stack.submitter(number % 2), &format!("r{number}"), &transfer).await);
    }
    stack.wait_confirmed(&tx_ids).await;
    let ids: Vec<String> = all_events(&stack).await.iter().map(|event| text(&event["id"])).collect();
    let received = sound.wait_accepted(&ids).await;
    assert_eq!(received.len(), ids.len());
    check_order(&received);
    assert_eq!(hanging.count(), 8, "no more than events.webhook.max_in_flight");
    // A worker that stops does not wait for the receiver.
    let took = stack.workers()[0].stop_sigterm().await;
    assert!(took < Duration::from_secs(10), "{took:?}");
    stack.finish().await;
}

/// Scenario 79: after the last attempt the delivery is exhausted, and the submitter's next event is delivered.
#[tokio::test(flavor = "multi_thread")]
async fn an_exhausted_delivery_is_listed_and_the_next_event_goes_on() {
    let stack = with_webhooks().up().await;
    let receiver = WebhookReceiver::start().await;
    let webhook = Webhook::create(&stack.client(), &receiver).await;
    receiver.reply_to_next_of(&fake(0xa), 3, Reply::Status(503));
    let ids = publish_one(&stack, 0xa, 3).await;
    let received = receiver.wait_accepted(&ids[1..]).await;
    let [first, second, third] = [0, 1, 2].map(|index| ids[index].clone());
    let expected = [first.clone(), first.clone(), first.clone(), second, third];
    assert_eq!(ids_of(&received), expected, "three attempts, and then the next ones");
    webhook.wait_delivery(&first, "exhausted").await;
    let exhausted = webhook.deliveries("state=exhausted").await;
    assert_eq!(exhausted.len(), 1, "{exhausted:?}");
    for (member, expected) in [
        ("eventId", json!(first)),
        ("attempts", json!(3)),
        ("statusCode", json!(503)),
        ("nextAttemptAt", Value::Null),
    ] {
        assert_eq!(exhausted[0][member], expected, "{exhausted:?}");
    }
    assert!(text(&exhausted[0]["error"]).contains("503"), "{exhausted:?}");
    let worker = &stack.workers()[0];
    for (result, expected) in [("delivered", 2.0), ("failed", 2.0), ("exhausted", 1.0)] {
        let label = format!("result=\"{result}\"");
        let counted = worker.metric("gapless_webhook_deliveries_total", &[&label]).await;
        assert_eq!(counted, expected, "{result}");
    }
    stack.finish().await;
}

/// Scenario 79.
#[tokio::test(flavor = "multi_thread")]
async fn gone_disables_the_webhook_and_an_event_says_so() {
    let stack = with_webhooks().up().await;
    let (gone, other) = (WebhookReceiver::start().await, WebhookReceiver::start().await);
    let webhook = Webhook::create(&stack.client(), &gone).await;
    let told = Webhook::create(&stack.client(), &other).await;
    gone.set_reply(Reply::Status(410));
    let ids = publish(&stack, &[0xa, 0xb], 2).await;
    let disabled = webhook.wait_disabled("gone").await;
    assert!(text(&disabled["health"]["lastError"]).contains("410"), "{disabled}");
    let is_notice = |one: &gapless_testkit::Received| one.kind() == "webhook.disabled";
    let received =
        other.wait_for("webhook.disabled", |received| received.iter().any(|one| is_notice(one))).await;
    let notice = received.iter().find(|one| is_notice(one)).unwrap();
    notice.verify(&told.secret).unwrap();
    assert_eq!(notice.event["source"], json!(format!("/webhooks/{}", webhook.id)));
    let data = &notice.event["data"];
    assert_eq!((&data["webhookId"], &data["reason"]), (&json!(webhook.id), &json!("gone")));
    assert!(text(&data["lastError"]).contains("410") && data["submitter"].is_null(), "{data}");
    let logged = all_events(&stack).await;
    assert!(logged.contains(&notice.event), "it is in the log");
    let worker = &stack.workers()[0];
    assert_eq!(worker.metric("gapless_webhooks_disabled_total", &["reason=\"gone\""]).await, 1.0);
    other.wait_accepted(&ids.values().flatten().cloned().collect::<Vec<_>>()).await;

    let count = gone.count();
    let after = publish_one(&stack, 0xa, 2).await;
    other.wait_accepted(&after).await;
    assert_eq!(gone.count(), count, "nothing after 410");
    gone.set_reply(Reply::Status(200));
    webhook.change(&json!({ "enabled": true })).await;
    gone.wait_accepted(&[&ids[&0xa][..], &ids[&0xb][..], &after[..]].concat()).await;
    check_order(&gone.received());
    stack.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_webhook_that_fails_for_long_is_disabled() {
    let stack = with_webhooks()
        .set("events.webhook.disable_after", "2s")
        .set("events.webhook.retry", vec!["0s", "300ms"])
        .up()
        .await;
    let receiver = WebhookReceiver::start().await;
    let webhook = Webhook::create(&stack.client(), &receiver).await;
    receiver.set_reply(Reply::Status(500));
    publish_one(&stack, 0xa, 50).await;
    let disabled = webhook.wait_disabled("failing").await;
    assert!(disabled["health"]["failingSince"].is_string(), "{disabled}");
    eventually("an event says so", async || {
        let events = all_events(&stack).await;
        let told = events
            .iter()
            .any(|event| event["type"] == "webhook.disabled" && event["data"]["reason"] == "failing");
        if told { Ok(()) } else { Err(events) }
    })
    .await;
    stack.finish().await;
}

/// `Retry-After` is longer than the schedule says.
#[tokio::test(flavor = "multi_thread")]
async fn retry_after_is_honoured() {
    let stack = with_webhooks().set("events.webhook.retry", vec!["0s", "100ms"]).up().await;
    let receiver = WebhookReceiver::start().await;
    let webhook = Webhook::create(&stack.client(), &receiver).await;
    receiver.reply_to_next(1, Reply::retry_after(2));
    let ids = publish_one(&stack, 0xa, 1).await;
    webhook.wait_delivery(&ids[0], "retrying").await;
    let received = receiver.wait_accepted(&ids).await;
    let gap = received[1].at - received[0].at;
    assert!(received.len() == 2 && gap >= Duration::from_millis(1_900), "{gap:?}");
    stack.finish().await;
}

/// The events of a submitter that is behind are read later, with the filter of then.
#[tokio::test(flavor = "multi_thread")]
async fn a_changed_filter_also_applies_to_a_submitter_that_is_behind() {
    let stack = with_webhooks().set("events.webhook.retry", vec!["0s", "1s", "1s"]).up().await;
    let receiver = WebhookReceiver::start().await;
    let webhook = Webhook::create(&stack.client(), &receiver).await;
    receiver.reply_to_next_of(&fake(0xa), 1, Reply::retry_after(4));
    let ids = publish(&stack, &[0xa, 0xb], 2).await;
    receiver.wait_accepted(&ids[&0xb]).await;
    webhook.wait_delivery(&ids[&0xa][0], "retrying").await;
    let filter = json!({ "chainId": 31337, "submitter": fake(0xb).text() });
    webhook.change(&json!({ "filter": filter })).await;
    let is_up_to_date = |one: &Value| one["health"]["submittersBehind"] == 0;
    webhook.wait_for("has no submitter behind", is_up_to_date).await;
    let after = publish(&stack, &[0xa, 0xb], 2).await;
    let received = receiver.wait_accepted(&after[&0xb]).await;
    assert_eq!(requests_of(&received, 0xa).len(), 1, "only the attempt before the change");
    stack.finish().await;
}
