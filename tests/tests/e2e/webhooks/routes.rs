//! The routes of webhooks: changes, tests, lists and limits.

use gapless_testkit::{Address, Reply, WebhookReceiver, ids_of, payload};
use serde_json::{Value, json};

use super::{ROUTE, Webhook, fake, publish, publish_one, requests_of, text, wait_released, with_webhooks};
use crate::stack;

#[tokio::test(flavor = "multi_thread")]
async fn a_webhook_is_listed_changed_disabled_enabled_and_deleted() {
    let stack = with_webhooks().up().await;
    let (first, second) = (WebhookReceiver::start().await, WebhookReceiver::start().await);
    let client = stack.client();
    let filter = json!({ "chainId": 31337, "submitter": fake(0xa).text() });
    let made = json!({ "url": first.url(), "description": "orders", "filter": filter });
    let webhook = Webhook::create_with(&client, &made).await;
    let got = webhook.get().await;
    for (member, expected) in [
        ("url", json!(first.url())),
        ("description", json!("orders")),
        ("filter", filter),
        ("status", json!("active")),
        ("eventsRecorded", json!(true)),
        ("webhookId", json!(webhook.id)),
    ] {
        assert_eq!(got[member], expected, "{got}");
    }
    assert!(!got.to_string().contains("whsec_"), "{got}");

    let ids = publish(&stack, &[0xa, 0xb], 3).await;
    first.wait_accepted(&ids[&0xa]).await;
    let types = json!({ "types": ["tx.confirmed"] });
    let changed = webhook.change(&json!({ "enabled": false, "filter": types })).await;
    assert_eq!(changed["filter"], types, "replaced as a whole");
    wait_released(&stack, &webhook).await;
    let tx_id = stack.create(stack.submitter(0), "one", &payload(Address::repeat_byte(0xa2), 1)).await;
    stack.wait_confirmed(&[tx_id]).await;
    webhook.change(&json!({ "enabled": true })).await;
    let confirmed = "tx.confirmed";
    let received =
        first.wait_for(confirmed, |received| received.iter().any(|one| one.kind() == confirmed)).await;
    assert_eq!(received.len(), 4, "nothing of another submitter, and one type: {received:?}");

    let changed = webhook.change(&json!({ "enabled": false, "filter": {}, "url": second.url() })).await;
    assert_eq!((&changed["status"], &changed["disabledReason"]), (&json!("disabled"), &json!("requested")));
    let refused = webhook.post("test", &json!({})).await;
    assert_eq!((refused.status, refused.code()), (409, "webhook_disabled"), "{refused:?}");
    wait_released(&stack, &webhook).await;
    let missed = publish_one(&stack, 0xb, 3).await;
    let changed = webhook.change(&json!({ "enabled": true })).await;
    assert_eq!((&changed["status"], &changed["disabledReason"]), (&json!("active"), &Value::Null));
    let received = second.wait_accepted(&missed).await;
    assert_eq!(ids_of(&requests_of(&received, 0xb)), missed, "what happened meanwhile is delivered");
    assert_eq!(first.count(), 4, "the former URL gets nothing");

    let count = second.count();
    assert_eq!(webhook.delete().await.status, 204);
    let gone = client.get(&webhook.path).await;
    assert_eq!((gone.status, gone.code()), (404, "webhook_not_found"), "{gone:?}");
    assert_eq!(webhook.delete().await.status, 404);
    // A second webhook shows when the events have been delivered.
    let other = Webhook::create(&client, &first).await;
    let after = publish_one(&stack, 0xb, 3).await;
    first.wait_accepted(&after).await;
    assert_eq!(second.count(), count, "nothing after the deletion");
    for table in ["outlet", "outlet_submitter", "webhook_replay"] {
        let column = if table.starts_with("outlet") { "outlet_id" } else { "webhook_id" };
        let statement = format!("SELECT count(*) FROM {table} WHERE {column}::TEXT <> $1");
        let left: i64 = sqlx::query_scalar(sqlx::AssertSqlSafe(statement))
            .bind(&other.id)
            .fetch_one(stack.db())
            .await
            .unwrap();
        assert_eq!(left, 0, "{table} has rows of a deleted webhook");
    }
    stack.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_test_event_is_delivered_and_its_answer_is_reported() {
    let stack = with_webhooks().set("events.webhook.timeout", "1s").start().await;
    stack.start_api().await;
    let receiver = WebhookReceiver::start().await;
    let webhook = Webhook::create(&stack.client(), &receiver).await;
    let waiting = webhook.post("test", &json!({})).await;
    assert_eq!(
        (waiting.status, &waiting.body["state"]),
        (200, &json!("pending")),
        "no worker runs: {waiting:?}"
    );
    stack.start_worker().await;
    receiver.wait_accepted(&[text(&waiting.body["eventId"])]).await;

    let tested = webhook.post("test", &json!({})).await;
    assert_eq!((tested.status, &tested.body["state"]), (200, &json!("delivered")), "{tested:?}");
    assert_eq!((&tested.body["type"], &tested.body["statusCode"]), (&json!("webhook.test"), &json!(200)));
    let received = receiver.received();
    let one = received.iter().find(|one| one.id() == text(&tested.body["eventId"])).unwrap();
    one.verify(&webhook.secret).unwrap();
    assert_eq!(one.header("webhook-id"), one.id());
    assert_eq!(one.event["source"], json!(format!("/webhooks/{}", webhook.id)));
    assert_eq!((&one.event["data"]["webhookId"], one.sequence()), (&json!(webhook.id), None));

    receiver.reply_to_next(1, Reply::Status(401));
    let failed = webhook.post("test", &json!({})).await;
    assert_eq!((failed.status, &failed.body["statusCode"]), (200, &json!(401)), "{failed:?}");
    assert!(text(&failed.body["error"]).contains("401"), "{failed:?}");
    stack.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_have_pages() {
    let stack = with_webhooks().up().await;
    let receiver = WebhookReceiver::start().await;
    let webhook = Webhook::create(&stack.client(), &receiver).await;
    let ids = publish_one(&stack, 0xa, 25).await;
    receiver.wait_accepted(&ids).await;
    webhook.wait_delivery(&ids[24], "delivered").await;
    let listed: Vec<String> =
        webhook.deliveries("limit=10").await.iter().map(|one| text(&one["eventId"])).collect();
    let newest_first: Vec<String> = ids.iter().rev().cloned().collect();
    assert_eq!(listed, newest_first, "each once, over three pages");
    assert_eq!(webhook.deliveries("limit=10&state=retrying").await, Vec::<Value>::new());
    for (query, field) in [("limit=0", "limit"), ("state=lost", "state"), ("cursor=x", "cursor")] {
        let refused = stack.client().get(&format!("{}/deliveries?{query}", webhook.path)).await;
        assert_eq!((refused.status, &refused.body["field"]), (400, &json!(field)), "{refused:?}");
    }
    let mut made = vec![webhook.id.clone()];
    for _ in 0..2 {
        made.push(Webhook::create(&stack.client(), &receiver).await.id);
    }
    let page = stack.client().get(&format!("{ROUTE}?limit=2")).await.body;
    let next = text(&page["nextCursor"]);
    let rest = stack.client().get(&format!("{ROUTE}?limit=2&cursor={next}")).await.body;
    assert!(rest["nextCursor"].is_null(), "{rest}");
    let items = [&page, &rest].map(|page| page["items"].as_array().unwrap().clone()).concat();
    let listed: Vec<String> = items.iter().map(|one| text(&one["webhookId"])).collect();
    assert_eq!(listed, made);
    stack.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn webhooks_need_a_key_file_and_have_a_limit() {
    let without = stack().set("events.mode", "mq_outbox").up().await;
    let refused = without.client().post_to(ROUTE, &json!({ "url": "https://example.com/" })).await;
    assert_eq!((refused.status, refused.code()), (503, "webhooks_not_configured"), "{refused:?}");
    without.finish().await;

    let stack = with_webhooks().set("api.max_webhooks", 2).up().await;
    let (client, receiver) = (stack.client(), WebhookReceiver::start().await);
    let first = Webhook::create(&client, &receiver).await;
    Webhook::create(&client, &receiver).await;
    let refused = client.post_to(ROUTE, &json!({ "url": receiver.url() })).await;
    assert_eq!((refused.status, refused.code()), (409, "too_many_webhooks"), "{refused:?}");
    assert_eq!(first.delete().await.status, 204);
    Webhook::create(&client, &receiver).await;
    for (body, field) in [
        (json!({ "url": "not a URL" }), "url"),
        (json!({ "url": "ftp://example.com/" }), "url"),
        (json!({ "url": "https://user:hunter2@example.com/" }), "url"),
        (json!({ "url": "https://example.com/", "secret": "whsec_short" }), "secret"),
        (json!({ "url": "https://example.com/", "filter": { "types": ["tx.unknown"] } }), "filter.types[0]"),
    ] {
        let refused = client.post_to(ROUTE, &body).await;
        assert_eq!((refused.status, &refused.body["field"]), (400, &json!(field)), "{refused:?}");
        assert!(!refused.body.to_string().contains("hunter2"), "{refused:?}");
    }
    stack.finish().await;
}
