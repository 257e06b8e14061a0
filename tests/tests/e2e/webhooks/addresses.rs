//! Addresses that deliveries must not go to (server-side request forgery).

use gapless_testkit::{Reply, WebhookReceiver};
use serde_json::json;

use super::{ROUTE, Webhook, publish_one, text, with_webhooks};

/// Scenario 80: the literal, in every spelling.
#[tokio::test(flavor = "multi_thread")]
async fn an_address_that_is_not_public_is_refused() {
    let stack = with_webhooks().set("events.webhook.allow", Vec::<String>::new()).up().await;
    let client = stack.client();
    let webhook = Webhook::create_with(&client, &json!({ "url": "https://example.com/" })).await;
    for url in [
        "http://127.0.0.1/",
        "http://127.0.0.1:8080/events",
        "http://169.254.169.254/latest/meta-data/",
        "http://2130706433/",
        "http://0x7f.1/",
        "http://0/",
        "http://[::1]/",
        "http://[::ffff:127.0.0.1]/",
        "http://10.0.0.1/",
        "http://192.168.1.1/",
        "http://[fd00::1]/",
    ] {
        let refused = client.post_to(ROUTE, &json!({ "url": url })).await;
        let seen = (refused.status, refused.code(), &refused.body["field"]);
        assert_eq!(seen, (400, "invalid_request", &json!("url")), "{url}: {refused:?}");
        let refused = webhook.try_change(&json!({ "url": url })).await;
        assert_eq!((refused.status, &refused.body["field"]), (400, &json!("url")), "{url}: {refused:?}");
    }
    assert_eq!(webhook.get().await["url"], "https://example.com/");
    stack.finish().await;
}

/// Scenario 80: what counts is the address that the name has at the time of the delivery.
#[tokio::test(flavor = "multi_thread")]
async fn a_name_that_leads_to_this_machine_is_refused_when_it_is_used() {
    let stack = with_webhooks().set("events.webhook.allow", Vec::<String>::new()).up().await;
    let receiver = WebhookReceiver::start().await;
    let url = receiver.url_at("localhost");
    let webhook = Webhook::create_with(&stack.client(), &json!({ "url": url })).await;
    let ids = publish_one(&stack, 0xa, 1).await;
    let delivery = webhook.wait_delivery(&ids[0], "exhausted").await;
    assert_eq!(delivery["attempts"], 3, "{delivery}");
    assert!(text(&delivery["error"]).contains("loopback"), "{delivery}");
    let health = &webhook.get().await["health"];
    assert!(text(&health["lastError"]).contains("events.webhook.allow"), "{health}");
    let tested = webhook.post("test", &json!({})).await;
    assert!(text(&tested.body["error"]).contains("loopback"), "{tested:?}");
    assert_eq!(receiver.count(), 0, "nothing was sent");
    stack.finish().await;
}

/// An address that was allowed when the webhook was created, and is no longer.
#[tokio::test(flavor = "multi_thread")]
async fn an_address_is_checked_at_every_delivery() {
    let stack = with_webhooks().start().await;
    stack.start_api().await;
    let receiver = WebhookReceiver::start().await;
    let webhook = Webhook::create(&stack.client(), &receiver).await;
    stack.worker().set("events.webhook.allow", vec!["10.0.0.0/8"]).start().await;
    let ids = publish_one(&stack, 0xa, 1).await;
    let delivery = webhook.wait_delivery(&ids[0], "exhausted").await;
    assert!(text(&delivery["error"]).contains("127.0.0.1 is refused"), "{delivery}");
    assert_eq!(receiver.count(), 0, "nothing was sent");
    stack.finish().await;
}

/// Scenario 80: to an allowed address as well as to others.
#[tokio::test(flavor = "multi_thread")]
async fn a_redirect_is_not_followed() {
    let stack = with_webhooks().up().await;
    let (receiver, other) = (WebhookReceiver::start().await, WebhookReceiver::start().await);
    let webhook = Webhook::create(&stack.client(), &receiver).await;
    for location in [other.url(), other.url_at("localhost"), "http://169.254.169.254/latest/".to_owned()] {
        receiver.set_reply(Reply::redirect(&location));
        let ids = publish_one(&stack, 0xa, 1).await;
        let delivery = webhook.wait_delivery(&ids[0], "exhausted").await;
        assert_eq!(delivery["statusCode"], 302, "{delivery}");
        assert!(text(&delivery["error"]).contains("redirects are not followed"), "{delivery}");
    }
    assert_eq!((receiver.count(), other.count()), (9, 0));
    stack.finish().await;
}
