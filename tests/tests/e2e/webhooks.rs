//! Webhooks: what is delivered, and the routes. Signatures are verified with the crate `standardwebhooks`.

mod addresses;
mod command_line;
mod failures;
mod keys;
mod replays;
mod routes;
mod secrets;
mod takeover;

use std::collections::BTreeMap;
use std::sync::Arc;

use gapless_testkit::{
    Address, Answer, Client, Received, Stack, StackBuilder, Submitter, WebhookReceiver, eventually,
    first_arrivals, payload,
};
use reqwest::Method;
use serde_json::{Value, json};

use crate::events::all_events;
use crate::stack;

const ROUTE: &str = "/api/v1/webhooks";

/// A stack with webhooks. Three attempts, close together.
fn with_webhooks() -> StackBuilder {
    stack().webhooks().set("events.webhook.retry", vec!["0s", "200ms", "200ms"])
}

/// A webhook of a test. Requests are made with its client, which may have a key.
struct Webhook {
    client: Client,
    path: String,
    id: String,
    secret: String,
}

impl Webhook {
    /// For all events.
    async fn create(client: &Client, receiver: &WebhookReceiver) -> Webhook {
        Webhook::create_with(client, &json!({ "url": receiver.url() })).await
    }

    async fn create_with(client: &Client, body: &Value) -> Webhook {
        let made = client.post_to(ROUTE, body).await;
        assert_eq!(made.status, 201, "{made:?}");
        let id = made.body["webhook"]["webhookId"].as_str().unwrap().to_owned();
        let secret = made.body["secret"].as_str().unwrap().to_owned();
        Webhook { client: client.clone(), path: format!("{ROUTE}/{id}"), id, secret }
    }

    async fn get(&self) -> Value {
        let got = self.client.get(&self.path).await;
        assert_eq!(got.status, 200, "{got:?}");
        got.body
    }

    /// `POST …/{action}`.
    async fn post(&self, action: &str, body: &Value) -> Answer {
        self.client.post_to(&format!("{}/{action}", self.path), body).await
    }

    async fn try_change(&self, change: &Value) -> Answer {
        self.client.ask(self.client.request(Method::PATCH, &self.path).json(change)).await
    }

    async fn change(&self, change: &Value) -> Value {
        let changed = self.try_change(change).await;
        assert_eq!(changed.status, 200, "{changed:?}");
        changed.body
    }

    async fn delete(&self) -> Answer {
        self.client.ask(self.client.request(Method::DELETE, &self.path)).await
    }

    /// All pages of the list, newest first. `filter`: `state=exhausted`, or empty.
    async fn deliveries(&self, filter: &str) -> Vec<Value> {
        let (mut all, mut cursor) = (Vec::new(), String::new());
        loop {
            let page = self.client.get(&format!("{}/deliveries?{filter}{cursor}", self.path)).await;
            assert_eq!(page.status, 200, "{page:?}");
            all.extend(page.body["items"].as_array().unwrap().clone());
            match page.body["nextCursor"].as_str() {
                Some(next) => cursor = format!("&cursor={next}"),
                None => return all,
            }
        }
    }

    /// Waits until the webhook satisfies a condition.
    async fn wait_for(&self, what: &str, condition: impl Fn(&Value) -> bool) -> Value {
        eventually(&format!("the webhook {what}"), async || {
            let webhook = self.get().await;
            if condition(&webhook) { Ok(webhook) } else { Err(webhook) }
        })
        .await
    }

    /// Waits until the delivery of an event is in a state.
    async fn wait_delivery(&self, event_id: &str, state: &str) -> Value {
        eventually(&format!("{event_id} is {state}"), async || {
            let deliveries = self.deliveries("").await;
            let found = deliveries.iter().find(|delivery| delivery["eventId"] == event_id).cloned();
            found.filter(|delivery| delivery["state"] == state).ok_or(deliveries)
        })
        .await
    }

    async fn wait_disabled(&self, reason: &str) -> Value {
        let is_disabled = |webhook: &Value| webhook["status"] == "disabled";
        let webhook = self.wait_for("is disabled", is_disabled).await;
        assert_eq!(webhook["disabledReason"], reason, "{webhook}");
        assert!(webhook["disabledAt"].is_string(), "{webhook}");
        webhook
    }
}

/// A submitter that only has events: `publish` writes them.
fn fake(byte: u8) -> Submitter {
    Submitter::without_key(Address::repeat_byte(byte))
}

/// Writes events of fake submitters to the outbox in one commit, `count` each, in turns. Returns their ids by submitter.
async fn publish(stack: &Stack, submitters: &[u8], count: i64) -> BTreeMap<u8, Vec<String>> {
    let submitters: Vec<i32> = submitters.iter().map(|byte| i32::from(*byte)).collect();
    let mut written: Vec<(i64, i32, String)> = sqlx::query_as(
        "INSERT INTO outbox_event (chain_id, submitter, kind, data)
         SELECT 31337, decode(repeat(lpad(to_hex(byte), 2, '0'), 20), 'hex'), 'submitter.unblocked',
                jsonb_build_object('type', 'submitter.unblocked', 'reason', 'n' || n)
         FROM generate_series(1, $2) AS n, unnest($1::INT[]) AS byte
         ORDER BY n, byte
         RETURNING event_id, get_byte(submitter, 0), id::TEXT",
    )
    .bind(submitters)
    .bind(count)
    .fetch_all(stack.db())
    .await
    .unwrap();
    written.sort();
    let mut ids: BTreeMap<u8, Vec<String>> = BTreeMap::new();
    for (_, byte, id) in written {
        ids.entry(u8::try_from(byte).unwrap()).or_default().push(id);
    }
    ids
}

/// Writes events of one fake submitter.
async fn publish_one(stack: &Stack, submitter: u8, count: i64) -> Vec<String> {
    publish(stack, &[submitter], count).await.remove(&submitter).unwrap()
}

/// The requests for one fake submitter.
fn requests_of(received: &[Arc<Received>], submitter: u8) -> Vec<Arc<Received>> {
    let address = fake(submitter).text();
    received.iter().filter(|one| one.submitter() == Some(address.as_str())).cloned().collect()
}

/// The first arrivals of every submitter are in the order of the log.
fn check_order(received: &[Arc<Received>]) {
    let mut last: BTreeMap<&str, i64> = BTreeMap::new();
    let first = first_arrivals(received);
    for one in &first {
        let (Some(submitter), Some(position)) = (one.submitter(), one.sequence()) else { continue };
        let before = last.insert(submitter, position).unwrap_or_default();
        assert!(before < position, "{submitter}: {position} arrived after {before}");
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_else(|| panic!("not a text: {value}")).to_owned()
}

/// Scenario 78.
#[tokio::test(flavor = "multi_thread")]
async fn every_event_of_a_transaction_arrives_once_in_order_and_signed() {
    let stack = with_webhooks().submitters(2).up().await;
    let receiver = WebhookReceiver::start().await;
    let webhook = Webhook::create(&stack.client(), &receiver).await;
    let transfer = payload(Address::repeat_byte(0xa1), 1);
    let mut tx_ids = Vec::new();
    for number in 0..10 {
        tx_ids.push(stack.create(stack.submitter(number % 2), &format!("r{number}"), &transfer).await);
    }
    stack.wait_confirmed(&tx_ids).await;
    let events = all_events(&stack).await;
    let ids: Vec<String> = events.iter().map(|event| text(&event["id"])).collect();
    let received = receiver.wait_accepted(&ids).await;
    assert_eq!(received.len(), events.len(), "once each");
    check_order(&received);
    for one in &received {
        one.verify(&webhook.secret).unwrap_or_else(|error| panic!("{error}: {one:?}"));
        assert!(events.contains(&one.event), "the same text as in the list: {}", one.event);
        assert_eq!((one.header("webhook-id"), one.line.as_str()), (one.id(), "POST /events"));
        assert!(one.header("content-type").starts_with("application/cloudevents+json"), "{one:?}");
        assert!(one.header("user-agent").starts_with("gapless/"), "{one:?}");
    }
    for tx_id in &tx_ids {
        let own = received.iter().filter(|one| one.subject() == tx_id.to_string());
        let kinds: Vec<&str> = own.map(|one| one.kind()).collect();
        assert_eq!((kinds.first(), kinds.last()), (Some(&"tx.accepted"), Some(&"tx.confirmed")), "{kinds:?}");
    }
    let caught_up = webhook.wait_for("has caught up", |one| one["health"]["lagEvents"] == 0).await;
    let end = stack.client().get("/api/v1/events?after=end").await.body["nextCursor"].clone();
    let health = &caught_up["health"];
    assert_eq!((&health["cursor"], &health["submittersBehind"]), (&end, &json!(0)), "{caught_up}");
    assert!(health["lastSuccessAt"].is_string() && health["lastError"].is_null(), "{caught_up}");
    let delivered = webhook.deliveries("state=delivered").await;
    assert_eq!(delivered.len(), events.len());
    let [newest, oldest] = [&delivered[0], &delivered[delivered.len() - 1]];
    assert!(text(&oldest["firstAttemptAt"]) <= text(&newest["firstAttemptAt"]), "newest first");
    for (member, expected) in
        [("state", json!("delivered")), ("attempts", json!(1)), ("statusCode", json!(200))]
    {
        assert_eq!(newest[member], expected, "{newest}");
    }
    assert!(newest["durationMs"].is_u64() && newest["error"].is_null(), "{newest}");
    stack.finish().await;
}

/// Waits until no worker delivers for the webhook.
async fn wait_released(stack: &Stack, webhook: &Webhook) {
    eventually("no worker has the webhook", async || {
        let live: Option<String> = sqlx::query_scalar(
            "SELECT owner FROM outlet WHERE outlet_id::TEXT = $1 AND expires_at > clock_timestamp()",
        )
        .bind(&webhook.id)
        .fetch_optional(stack.db())
        .await
        .unwrap()
        .flatten();
        live.map_or(Ok(()), Err)
    })
    .await;
}
