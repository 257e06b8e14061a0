//! Signing secrets: signatures, rotation, and their encryption in the database.

use gapless_testkit::{
    Grep, Received, Reply, Stack, Unverified, WebhookReceiver, eventually, new_webhook_key,
};
use serde_json::{Value, json};

use super::{Webhook, publish_one, text, with_webhooks};

/// What another program generated.
const IMPORTED: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

fn is_forged(verified: &Result<(), Unverified>) -> bool {
    matches!(verified, Err(Unverified::InvalidSignature))
}

/// Publishes an event and returns its request.
async fn next_request(stack: &Stack, receiver: &WebhookReceiver) -> Received {
    let ids = publish_one(stack, 0xa, 1).await;
    let received = receiver.wait_accepted(&ids).await;
    let one = received.iter().find(|one| one.is_accepted() && one.id() == ids[0]).unwrap();
    (**one).clone()
}

/// Scenario 78.
#[tokio::test(flavor = "multi_thread")]
async fn a_changed_body_an_old_time_and_another_secret_do_not_verify() {
    let stack = with_webhooks().up().await;
    let receiver = WebhookReceiver::start().await;
    let webhook = Webhook::create(&stack.client(), &receiver).await;
    let made = json!({ "url": receiver.url(), "secret": IMPORTED });
    let imported = Webhook::create_with(&stack.client(), &made).await;
    assert_eq!(imported.secret, IMPORTED);
    let ids = publish_one(&stack, 0xa, 1).await;
    let received = receiver.wait_for("both requests", |received| received.len() == 2).await;
    let of = |secret: &str| {
        received.iter().find(|one| one.verify(secret).is_ok()).expect("one verifies with this secret")
    };
    of(IMPORTED);
    let (secret, one) = (webhook.secret.as_str(), of(&webhook.secret));
    assert_eq!(one.id(), ids[0]);
    assert!(is_forged(&one.verify(IMPORTED)), "signed with another secret");
    let mut body = one.body.clone();
    *body.last_mut().unwrap() = b' ';
    assert!(is_forged(&one.verify_as(secret, &body, &[])), "another body");
    let changed = |header, value| one.verify_as(secret, &one.body, &[(header, value)]);
    assert!(is_forged(&changed("webhook-id", imported.id.clone())), "another id");
    let sent: i64 = one.header("webhook-timestamp").parse().unwrap();
    assert!(is_forged(&changed("webhook-timestamp", (sent + 1).to_string())), "another time");
    let old = changed("webhook-timestamp", (sent - 3_600).to_string());
    assert!(matches!(old, Err(Unverified::TimestampTooOldError)), "{old:?}");
    stack.finish().await;
}

/// Scenario 78: in another language, with the library of the specification.
#[tokio::test(flavor = "multi_thread")]
async fn the_npm_package_of_the_specification_verifies_a_delivery_and_no_changed_one() {
    let stack = with_webhooks().up().await;
    let receiver = WebhookReceiver::start().await;
    let webhook = Webhook::create(&stack.client(), &receiver).await;
    let one = next_request(&stack, &receiver).await;
    assert_eq!(one.verify_in_node(&webhook.secret, &one.body).await.as_deref(), Ok(one.kind()));
    let mut body = one.body.clone();
    *body.last_mut().unwrap() = b' ';
    let refused = one.verify_in_node(&webhook.secret, &body).await.unwrap_err();
    assert!(refused.contains("WebhookVerificationError"), "{refused}");
    let other = one.verify_in_node(IMPORTED, &one.body).await.unwrap_err();
    assert!(other.contains("WebhookVerificationError"), "{other}");
    stack.finish().await;
}

/// Scenario 78.
#[tokio::test(flavor = "multi_thread")]
async fn after_a_rotation_both_secrets_verify_until_the_overlap_ends() {
    let stack = with_webhooks().up().await;
    let receiver = WebhookReceiver::start().await;
    let webhook = Webhook::create(&stack.client(), &receiver).await;
    let one = next_request(&stack, &receiver).await;
    assert_eq!(one.header("webhook-signature").split(' ').count(), 1);
    one.verify(&webhook.secret).unwrap();

    let rotated = webhook.post("rotate", &json!({})).await;
    assert_eq!(rotated.status, 200, "{rotated:?}");
    let second = text(&rotated.body["secret"]);
    assert_ne!(second, webhook.secret);
    assert!(rotated.body["webhook"]["previousSecretUntil"].is_string(), "{rotated:?}");
    wait_signed_by(&stack, &receiver, &[&second, &webhook.secret]).await;

    // The overlap ends.
    stack
        .sql("UPDATE webhook SET previous_secret_until = clock_timestamp() - INTERVAL '1 second', revision = revision + 1")
        .await;
    wait_signed_by(&stack, &receiver, &[&second]).await;
    assert!(webhook.get().await["previousSecretUntil"].is_null());

    // Only the last two secrets count.
    let third = text(&webhook.post("rotate", &json!({})).await.body["secret"]);
    let rotated = webhook.post("rotate", &json!({ "secret": IMPORTED })).await;
    assert_eq!(rotated.body["secret"], IMPORTED, "{rotated:?}");
    let last = wait_signed_by(&stack, &receiver, &[IMPORTED, &third]).await;
    assert!(is_forged(&last.verify(&second)), "a secret that was replaced twice");
    stack.finish().await;
}

/// Waits until deliveries are signed with exactly these secrets: workers follow a change within a second.
async fn wait_signed_by(stack: &Stack, receiver: &WebhookReceiver, secrets: &[&str]) -> Received {
    eventually("deliveries are signed with these secrets", async || {
        let one = next_request(stack, receiver).await;
        let signatures = one.header("webhook-signature").split(' ').count();
        let is_signed = secrets.iter().all(|secret| one.verify(secret).is_ok());
        if is_signed && signatures == secrets.len() { Ok(one) } else { Err(one) }
    })
    .await
}

/// Everything that the database stores about webhooks, as text.
async fn stored(stack: &Stack) -> String {
    let mut all = String::new();
    for table in ["webhook", "outlet", "webhook_delivery", "audit_log", "event_log"] {
        let statement = format!("SELECT to_jsonb(t)::TEXT FROM {table} AS t");
        let rows: Vec<String> =
            sqlx::query_scalar(sqlx::AssertSqlSafe(statement)).fetch_all(stack.db()).await.unwrap();
        all += &rows.join("\n");
        all.push('\n');
    }
    all
}

/// The bytes of a secret, in hex.
async fn bytes_of(stack: &Stack, secret: &str) -> String {
    sqlx::query_scalar("SELECT encode(decode($1, 'base64'), 'hex')")
        .bind(secret.trim_start_matches("whsec_"))
        .fetch_one(stack.db())
        .await
        .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn neither_the_database_nor_any_output_contains_a_secret_or_the_path_of_a_url() {
    const TOKEN: &str = "the-token-in-the-path-of-the-receiver";
    let stack = with_webhooks().set("log.level", "trace").up().await;
    let receiver = WebhookReceiver::start().await;
    let url = format!("{}/{TOKEN}", receiver.url());
    let webhook = Webhook::create_with(&stack.client(), &json!({ "url": url })).await;
    let rotated = webhook.post("rotate", &json!({})).await;
    let second = text(&rotated.body["secret"]);
    // Failures, whose errors are stored and logged.
    receiver.set_reply(Reply::Status(500));
    let ids = publish_one(&stack, 0xa, 1).await;
    webhook.wait_delivery(&ids[0], "exhausted").await;
    receiver.set_reply(Reply::Close);
    let ids = publish_one(&stack, 0xa, 1).await;
    webhook.wait_delivery(&ids[0], "exhausted").await;
    webhook.post("test", &json!({})).await;

    let mut secrets = Grep::default();
    for secret in [&webhook.secret, &second] {
        secrets.add("secret", &bytes_of(&stack, secret).await);
        secrets.add("secret as text", secret);
    }
    let database = stored(&stack).await;
    assert!(database.contains(TOKEN), "the URL is stored as it is");
    assert_eq!(secrets.find(&database), Vec::<String>::new());
    for line in stack.webhook_keys().lines() {
        secrets.add("key", line.split(' ').nth(1).unwrap());
    }
    secrets.add("path", TOKEN);
    let outlets = stack.client().admin_get("/api/v1/outlets").await.body.to_string();
    let mut outputs = vec![outlets, Value::Array(webhook.deliveries("").await).to_string()];
    for service in stack.services() {
        outputs.push(service.log());
        outputs.push(service.page("/metrics").await);
    }
    for output in &outputs {
        assert_eq!(secrets.find(output), Vec::<String>::new());
    }
    // The owner sees his URL.
    assert_eq!(webhook.get().await["url"], json!(url));
    stack.finish().await;
}

/// Restarts all processes, which then read the key file again.
async fn restart(stack: &Stack) {
    for service in stack.services().into_iter().filter(gapless_testkit::Service::is_running) {
        service.stop_sigterm().await;
    }
    stack.start_api().await;
    stack.start_worker().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_that_encrypt_secrets_are_rotated_without_a_new_secret() {
    let stack = with_webhooks().up().await;
    let receiver = WebhookReceiver::start().await;
    let old = Webhook::create(&stack.client(), &receiver).await;
    next_request(&stack, &receiver).await.verify(&old.secret).unwrap();
    let (first, second) = (stack.webhook_keys(), new_webhook_key("k2"));
    stack.set_webhook_keys(&[&second, &first]);
    restart(&stack).await;
    next_request(&stack, &receiver).await.verify(&old.secret).unwrap();
    let other = WebhookReceiver::start().await;
    let new = Webhook::create(&stack.client(), &other).await;
    next_request(&stack, &other).await.verify(&new.secret).unwrap();
    let key_ids = async || -> Vec<String> {
        let select = "SELECT secret_key_id FROM webhook ORDER BY webhook_id";
        sqlx::query_scalar(select).fetch_all(stack.db()).await.unwrap()
    };
    assert_eq!(key_ids().await, ["k1", "k2"], "new secrets are encrypted with the first key of the file");

    let resealed = stack.cli(&["webhooks", "reseal"]).await;
    assert_eq!(resealed.code, 0, "{resealed:?}");
    assert_eq!(key_ids().await, ["k2", "k2"]);
    stack.set_webhook_keys(&[&second]);
    restart(&stack).await;
    next_request(&stack, &receiver).await.verify(&old.secret).unwrap();
    next_request(&stack, &other).await.verify(&new.secret).unwrap();

    // The control: without its key a secret cannot be used, and the webhook says so.
    stack.set_webhook_keys(&[&new_webhook_key("k3")]);
    restart(&stack).await;
    let count = receiver.count();
    publish_one(&stack, 0xa, 1).await;
    let old = Webhook { client: stack.client(), ..old };
    let seen = old.wait_for("has an error", |one| one["health"]["lastError"].is_string()).await;
    assert!(text(&seen["health"]["lastError"]).contains("k2"), "{seen}");
    assert_eq!(receiver.count(), count, "nothing is sent without a signature");
    stack.finish().await;
}
