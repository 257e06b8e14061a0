//! Events that are delivered again because somebody asks.

use gapless_testkit::{Reply, WebhookReceiver, ids_of};
use serde_json::{Value, json};

use super::{Webhook, check_order, fake, publish, publish_one, requests_of, with_webhooks};
use crate::events::wait_ordered;

async fn replay(webhook: &Webhook, what: &Value, expected: usize) {
    let answer = webhook.post("replay", what).await;
    assert_eq!((answer.status, &answer.body["requested"]), (202, &json!(expected)), "{answer:?}");
}

/// Scenario 79.
#[tokio::test(flavor = "multi_thread")]
async fn a_replay_by_id_delivers_the_same_ids() {
    let stack = with_webhooks().set("events.webhook.retry", vec!["0s", "100ms"]).up().await;
    let receiver = WebhookReceiver::start().await;
    let webhook = Webhook::create(&stack.client(), &receiver).await;
    receiver.reply_to_next_of(&fake(0xa), 4, Reply::Status(500));
    let ids = publish(&stack, &[0xa, 0xb], 3).await;
    let of_a = &ids[&0xa];
    receiver.wait_accepted(&[&of_a[2..], &ids[&0xb]].concat()).await;
    webhook.wait_delivery(&of_a[1], "exhausted").await;
    assert_eq!(webhook.deliveries("state=exhausted").await.len(), 2);

    let before = receiver.count();
    replay(&webhook, &json!({ "eventIds": [of_a[0], of_a[1], ids[&0xb][2]] }), 3).await;
    receiver.wait_accepted(&of_a[..2]).await;
    let received = receiver.wait_for("three more requests", |received| received.len() == before + 3).await;
    received[before..].iter().for_each(|one| one.verify(&webhook.secret).unwrap());
    let again = ids_of(&requests_of(&received[before..], 0xa));
    assert_eq!(again, of_a[..2], "in the order of the log");
    assert_eq!(ids_of(&requests_of(&received[before..], 0xb)), ids[&0xb][2..]);
    webhook.wait_delivery(&of_a[0], "delivered").await;
    let delivery = webhook.wait_delivery(&of_a[1], "delivered").await;
    assert_eq!(delivery["attempts"], 3, "with those of the replay: {delivery}");
    assert_eq!(webhook.deliveries("state=exhausted").await, Vec::<Value>::new());
    stack.finish().await;
}

/// Scenario 79.
#[tokio::test(flavor = "multi_thread")]
async fn a_replay_of_a_window_delivers_the_same_ids_and_what_was_never_delivered() {
    let stack = with_webhooks().set("events.webhook.retry", vec!["0s"]).up().await;
    let receiver = WebhookReceiver::start().await;
    let before = publish_one(&stack, 0xa, 2).await;
    wait_ordered(&stack).await;
    let from = stack.database_time_in("0 seconds").await;
    // Before the webhook exists.
    let early = publish_one(&stack, 0xa, 2).await;
    wait_ordered(&stack).await;
    let filter = json!({ "chainId": 31337, "submitter": fake(0xa).text() });
    let made = json!({ "url": receiver.url(), "filter": filter });
    let webhook = Webhook::create_with(&stack.client(), &made).await;
    receiver.reply_to_next(1, Reply::Status(500));
    let ids = publish(&stack, &[0xa, 0xb], 3).await;
    receiver.wait_accepted(&ids[&0xa][1..]).await;
    webhook.wait_delivery(&ids[&0xa][0], "exhausted").await;
    let until = stack.database_time_in("0 seconds").await;
    let later = publish_one(&stack, 0xa, 2).await;
    receiver.wait_accepted(&later).await;

    let count = receiver.count();
    let window = json!({ "from": from, "until": until, "onlyFailed": true });
    replay(&webhook, &window, 1).await;
    receiver.wait_accepted(&ids[&0xa][..1]).await;
    assert_eq!(receiver.count(), count + 1);
    replay(&webhook, &json!({ "from": from, "until": until }), 5).await;
    let received = receiver.wait_for("five more", |received| received.len() == count + 6).await;
    let expected: Vec<String> = early.iter().chain(&ids[&0xa]).cloned().collect();
    assert_eq!(ids_of(&received[count + 1..]), expected, "the filter is applied, and the order kept");
    assert!(!ids_of(&received).iter().any(|id| before.contains(id)), "what is outside of the window");
    stack.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replay_that_cannot_be_done_is_refused() {
    let stack = with_webhooks().up().await;
    let receiver = WebhookReceiver::start().await;
    let webhook = Webhook::create_with(
        &stack.client(),
        &json!({ "url": receiver.url(), "filter": { "chainId": 31337, "submitter": fake(0xa).text() } }),
    )
    .await;
    let from = stack.database_time_in("-1 hour").await;
    let ids = publish(&stack, &[0xa, 0xb], 1).await;
    receiver.wait_accepted(&ids[&0xa]).await;
    // The filter does not allow the second.
    replay(&webhook, &json!({ "eventIds": [ids[&0xa][0], ids[&0xb][0]] }), 1).await;
    receiver.wait_for("the repetition", |received| received.len() == 2).await;
    for body in [json!({}), json!({ "from": from }), json!({ "eventIds": ["x"] }), json!({ "eventIds": [] })]
    {
        let refused = webhook.post("replay", &body).await;
        assert_eq!(refused.status, 400, "{body}: {refused:?}");
    }
    webhook.change(&json!({ "enabled": false })).await;
    publish_one(&stack, 0xa, 10_001).await;
    wait_ordered(&stack).await;
    let until = stack.database_time_in("1 hour").await;
    let refused = webhook.post("replay", &json!({ "from": from, "until": until })).await;
    assert_eq!((refused.status, refused.code()), (422, "too_many_events"), "{refused:?}");
    check_order(&receiver.received());
    stack.finish().await;
}
