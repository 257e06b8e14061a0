//! Webhooks and API keys: what a webhook may see, and who may see a webhook.

use gapless_testkit::{Address, Client, Reply, Stack, WebhookReceiver, eventually, payload};
use reqwest::Method;
use serde_json::{Value, json};

use super::{ROUTE, Webhook, publish, text, with_webhooks};

const READ_AND_WRITE: [&str; 4] = ["--scope", "tx:read", "--scope", "tx:write"];

/// `--submitter`, for one of the stack's.
fn only(stack: &Stack, submitter: usize) -> String {
    format!("{}:{}", stack.anvil().chain_id(), stack.submitter(submitter).text())
}

async fn wait_keys_required(client: &Client) {
    eventually("keys are required", async || match client.get(ROUTE).await.status {
        401 => Ok(()),
        other => Err(other),
    })
    .await;
}

async fn transfer(stack: &Stack, client: &Client, submitter: usize, request_id: &str) {
    let made =
        client.post(stack.submitter(submitter), request_id, &payload(Address::repeat_byte(0xa4), 1)).await;
    stack.record_accepted(&made);
    assert_eq!(made.status, 202, "{made:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_webhook_gets_the_events_of_the_submitters_of_its_key() {
    let stack = with_webhooks().submitters(2).up().await;
    let (all_key, _) = stack.api_key(&READ_AND_WRITE).await;
    let own = only(&stack, 1);
    let (own_key, _) = stack.api_key(&[&READ_AND_WRITE[..], &["--submitter", &own]].concat()).await;
    wait_keys_required(&stack.client()).await;
    let [all, limited] = [&all_key, &own_key].map(|key| stack.client().with_key(key));
    let (of_all, of_own) = (WebhookReceiver::start().await, WebhookReceiver::start().await);
    Webhook::create(&all, &of_all).await;
    let webhook = Webhook::create(&limited, &of_own).await;
    let other = stack.submitter(0).text();
    let filter = json!({ "submitter": other });
    let refused = limited.post_to(ROUTE, &json!({ "url": of_own.url(), "filter": filter })).await;
    assert_eq!(refused.status, 403, "{refused:?}");
    let refused = webhook.try_change(&json!({ "filter": filter })).await;
    assert_eq!(refused.status, 403, "{refused:?}");

    transfer(&stack, &all, 0, "one").await;
    transfer(&stack, &all, 1, "two").await;
    stack.wait_all_terminal().await;
    let confirmed = |received: &[std::sync::Arc<gapless_testkit::Received>], count: usize| {
        received.iter().filter(|one| one.kind() == "tx.confirmed").count() == count
    };
    of_all.wait_for("both", |received| confirmed(received, 2)).await;
    let received = of_own.wait_for("its own", |received| confirmed(received, 1)).await;
    let own = stack.submitter(1).text();
    assert!(received.iter().all(|one| one.submitter() == Some(own.as_str())), "{received:?}");
    // A replay gives no more than that.
    let events = all.get("/api/v1/events?limit=200").await.body["items"].as_array().unwrap().clone();
    let ids: Vec<Value> = events.iter().map(|event| event["id"].clone()).collect();
    let replayed = webhook.post("replay", &json!({ "eventIds": ids })).await;
    assert_eq!(replayed.body["requested"], json!(received.len()), "{replayed:?}");
    let received = of_own.wait_for("its own again", |received| confirmed(received, 2)).await;
    assert!(received.iter().all(|one| one.submitter() == Some(own.as_str())), "{received:?}");
    stack.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_webhook_is_invisible_to_other_keys_and_visible_to_admins() {
    let stack = with_webhooks().up().await;
    let (mine, _) = stack.api_key(&READ_AND_WRITE).await;
    let (theirs, _) = stack.api_key(&READ_AND_WRITE).await;
    let (reader, _) = stack.api_key(&["--scope", "tx:read"]).await;
    let (writer, _) = stack.api_key(&["--scope", "tx:write"]).await;
    let nobody = stack.client();
    wait_keys_required(&nobody).await;
    let [mine, theirs, reader, writer] = [mine, theirs, reader, writer].map(|key| nobody.with_key(&key));
    let receiver = WebhookReceiver::start().await;
    let webhook = Webhook::create(&mine, &receiver).await;
    let id = &webhook.id;
    let body = json!({ "eventIds": ["01a1e293-2c1e-4a70-9f53-0d2b9d1c7a11"] });
    let requests = |client: &Client| {
        let path = |rest: &str| format!("{ROUTE}/{id}{rest}");
        [
            (false, client.request(Method::GET, &path(""))),
            (false, client.request(Method::GET, &path("/deliveries"))),
            (true, client.request(Method::PATCH, &path("")).json(&json!({ "enabled": true }))),
            (true, client.request(Method::POST, &path("/rotate")).json(&json!({}))),
            (true, client.request(Method::POST, &path("/test"))),
            (true, client.request(Method::POST, &path("/replay")).json(&body)),
            (true, client.request(Method::DELETE, &path(""))),
        ]
    };
    for (_, request) in requests(&theirs) {
        let refused = theirs.ask(request).await;
        assert_eq!((refused.status, refused.code()), (404, "webhook_not_found"), "{refused:?}");
    }
    for (_, request) in requests(&nobody) {
        assert_eq!(nobody.ask(request).await.status, 401);
    }
    for (is_write, client) in [(true, &reader), (false, &writer)] {
        for (_, request) in requests(client).into_iter().filter(|(writes, _)| *writes == is_write) {
            let refused = client.ask(request).await;
            assert_eq!((refused.status, refused.code()), (403, "scope_missing"), "{refused:?}");
        }
    }
    assert_eq!(reader.post_to(ROUTE, &json!({ "url": receiver.url() })).await.status, 403);
    let listed = async |client: &Client| client.get(ROUTE).await.body["items"].as_array().unwrap().len();
    assert_eq!((listed(&mine).await, listed(&theirs).await), (1, 0));
    let seen = nobody.admin_get(&webhook.path).await;
    assert_eq!((seen.status, &seen.body["webhookId"]), (200, &json!(id)), "the admin token: {seen:?}");
    assert_eq!(nobody.admin_get(ROUTE).await.body["items"].as_array().unwrap().len(), 1);

    for client in [&mine, &reader, &writer] {
        assert_eq!(client.get("/api/v1/outlets").await.status, 403);
    }
    let outlets = eventually("a worker delivers", async || {
        let outlets = nobody.admin_get("/api/v1/outlets").await;
        if outlets.body["items"][0]["worker"].is_string() { Ok(outlets) } else { Err(outlets) }
    })
    .await;
    let outlet = &outlets.body["items"][0];
    for (member, expected) in [
        ("outletId", json!(id)),
        ("kind", json!("webhook")),
        ("target", json!(receiver.url().trim_end_matches("/events"))),
        ("status", json!("active")),
    ] {
        assert_eq!(outlet[member], expected, "{outlet}");
    }
    assert_eq!(outlet["health"]["lagEvents"], 0, "{outlet}");
    stack.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_revoked_key_disables_its_webhooks() {
    let stack = with_webhooks().up().await;
    let (mine, mine_id) = stack.api_key(&READ_AND_WRITE).await;
    let (theirs, _) = stack.api_key(&READ_AND_WRITE).await;
    wait_keys_required(&stack.client()).await;
    let [mine, theirs] = [mine, theirs].map(|key| stack.client().with_key(&key));
    let (of_mine, of_theirs) = (WebhookReceiver::start().await, WebhookReceiver::start().await);
    let webhook = Webhook::create(&mine, &of_mine).await;
    Webhook::create(&theirs, &of_theirs).await;
    transfer(&stack, &mine, 0, "one").await;
    let confirmed = "tx.confirmed";
    of_mine.wait_for(confirmed, |received| received.iter().any(|one| one.kind() == confirmed)).await;
    let revoked = stack.cli(&["api-keys", "revoke", &mine_id]).await;
    assert_eq!(revoked.code, 0, "{revoked:?}");
    let disabled = eventually("the webhook is disabled", async || {
        let webhook = stack.client().admin_get(&webhook.path).await.body;
        if webhook["status"] == "disabled" { Ok(webhook) } else { Err(webhook) }
    })
    .await;
    assert_eq!(disabled["disabledReason"], "key_revoked", "{disabled}");
    let kind = "webhook.disabled";
    let received = of_theirs.wait_for(kind, |received| received.iter().any(|one| one.kind() == kind)).await;
    let told = received.iter().find(|one| one.kind() == kind).unwrap();
    assert_eq!(text(&told.event["data"]["reason"]), "key_revoked", "{told:?}");
    let count = of_mine.count();
    transfer(&stack, &theirs, 0, "two").await;
    let twice = |kinds: Vec<&str>| kinds.iter().filter(|kind| **kind == confirmed).count() == 2;
    of_theirs.wait_for("both", |received| twice(received.iter().map(|one| one.kind()).collect())).await;
    assert_eq!(of_mine.count(), count, "nothing after the revocation");
    stack.finish().await;
}

/// A key with a webhook, revoked while no worker runs. The admin token sees the webhook.
async fn revoked_without_a_worker(stack: &Stack, receiver: &WebhookReceiver) -> Webhook {
    stack.start_api().await;
    let (key, key_id) = stack.api_key(&READ_AND_WRITE).await;
    wait_keys_required(&stack.client()).await;
    let webhook = Webhook::create(&stack.client().with_key(&key), receiver).await;
    let revoked = stack.cli(&["api-keys", "revoke", &key_id]).await;
    assert_eq!(revoked.code, 0, "{revoked:?}");
    Webhook { client: stack.client().with_key(gapless_testkit::ADMIN_TOKEN), ..webhook }
}

/// The first worker that looks does not deliver what happened meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_was_revoked_while_no_worker_ran_gets_nothing() {
    let stack = with_webhooks().start().await;
    let receiver = WebhookReceiver::start().await;
    let webhook = revoked_without_a_worker(&stack, &receiver).await;
    publish(&stack, &[0xa, 0xb], 3).await;
    stack.start_worker().await;
    webhook.wait_disabled("key_revoked").await;
    assert_eq!(receiver.count(), 0, "{:?}", receiver.received());
    stack.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_revoked_key_disables_a_webhook_that_waits_to_deliver_a_reset() {
    let stack = with_webhooks().set("events.webhook.retry", vec!["0s", "1h"]).start().await;
    let receiver = WebhookReceiver::start().await;
    receiver.set_reply(Reply::Status(500));
    let webhook = revoked_without_a_worker(&stack, &receiver).await;
    let reset = stack.cli(&["events", "reset", "--reason", "a restore", "--yes"]).await;
    assert_eq!(reset.code, 0, "{reset:?}");
    stack.start_worker().await;
    webhook.wait_disabled("key_revoked").await;
    assert_eq!(receiver.count(), 0, "{:?}", receiver.received());
    stack.finish().await;
}
