//! `gapless webhooks` and `gapless outlets`.

use gapless_testkit::{CliOutput, Reply, Stack, WebhookReceiver};
use serde_json::Value;

use super::{fake, publish_one, text, with_webhooks};

async fn run(stack: &Stack, args: &[&str]) -> CliOutput {
    let output = stack.cli(&[&["--json", "webhooks"], args].concat()).await;
    assert_eq!(output.code, 0, "{args:?}: {output:?}");
    output
}

/// The output as JSON. Lists are one line for each entry.
async fn json_of(stack: &Stack, args: &[&str]) -> Value {
    let output = run(stack, args).await;
    serde_json::from_str(&output.stdout).unwrap_or_else(|error| panic!("{args:?}: {error}: {output:?}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_webhook_is_managed_from_the_command_line() {
    let stack = with_webhooks().set("events.webhook.retry", vec!["0s"]).up().await;
    let receiver = WebhookReceiver::start().await;
    let (url, submitter) = (receiver.url(), fake(0xa).text());
    let made = json_of(&stack, &["create", &url, "--submitter", &submitter, "--description", "orders"]).await;
    let (id, secret) = (text(&made["webhook"]["webhookId"]), text(&made["secret"]));
    assert!(run(&stack, &["list"]).await.stdout.contains(&id));
    assert_eq!(json_of(&stack, &["show", &id]).await["description"], "orders");
    let tested = json_of(&stack, &["test", &id]).await;
    assert_eq!(tested["state"], "delivered", "{tested}");

    receiver.reply_to_next(1, Reply::Status(500));
    let ids = publish_one(&stack, 0xa, 2).await;
    let received = receiver.wait_accepted(&ids[1..]).await;
    received.iter().for_each(|one| one.verify(&secret).unwrap());
    let exhausted = gapless_testkit::eventually("it is listed", async || {
        let listed = run(&stack, &["deliveries", &id, "--state", "exhausted"]).await.stdout;
        if listed.contains(&ids[0]) { Ok(listed) } else { Err(listed) }
    })
    .await;
    assert!(!exhausted.contains(&ids[1]), "{exhausted}");
    run(&stack, &["replay", &id, "--event", &ids[0]]).await;
    receiver.wait_accepted(&ids).await;
    let from = stack.database_time_in("-1 hour").await;
    let count = receiver.count();
    run(&stack, &["replay", &id, "--from", &from]).await;
    receiver.wait_for("both again", |received| received.len() == count + 2).await;

    let rotated = json_of(&stack, &["rotate", &id]).await;
    assert_ne!(text(&rotated["secret"]), secret);
    let outlets = stack.cli(&["outlets"]).await;
    assert_eq!(outlets.code, 0, "{outlets:?}");
    assert!(outlets.stdout.contains(url.trim_end_matches("/events")), "{outlets:?}");
    let changed = json_of(&stack, &["update", &id, "--disable"]).await;
    assert_eq!(changed["status"], "disabled", "{changed}");
    let refused = stack.cli(&["webhooks", "test", &id]).await;
    assert!(refused.code != 0 && refused.stderr.contains("disabled"), "{refused:?}");
    run(&stack, &["delete", &id]).await;
    assert!(!run(&stack, &["list"]).await.stdout.contains(&id));
    stack.finish().await;
}
