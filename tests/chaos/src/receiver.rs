//! A receiver of webhooks that fails in every way: errors, redirects, no response, closed connections, restarts. What it
//! has acknowledged is what it received; the checker compares that with the log.

use std::time::{Duration, Instant};

use gapless_testkit::{Reply, WebhookReceiver};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::json;

use super::ChaosRun;
use super::checker::{Consumer, ReceivedEvent};
use super::supervisor::ProcessSlot;

/// Time to deliver the rest after everything is final.
const REST: Duration = Duration::from_secs(60);

/// Whether the receiver keeps what it acknowledges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Receiver {
    Reliable,
    /// Wrong, a negative control: it forgets some of what it has acknowledged.
    Forgetful,
}

/// Settings of all processes. No failure lasts long enough to give an event up.
pub(crate) fn settings() -> [(&'static str, serde_json::Value); 3] {
    let mut retry = vec!["300ms"; 1_000];
    retry[0] = "0s";
    [
        ("events.webhook.retry", json!(retry)),
        ("events.webhook.timeout", json!("2s")),
        ("events.webhook.max_in_flight", json!(4)),
    ]
}

/// A receiver and its webhook, from before the first request on.
pub(crate) async fn register(apis: &[ProcessSlot]) -> WebhookReceiver {
    let receiver = WebhookReceiver::start().await;
    let response = reqwest::Client::new()
        .post(format!("{}/api/v1/webhooks", apis[0].url()))
        .json(&json!({ "url": receiver.url() }))
        .send()
        .await
        .expect("the API answers");
    let status = response.status();
    assert_eq!(status, 201, "{}", response.text().await.unwrap_or_default());
    receiver
}

/// Fails until the run is over, then takes the rest.
pub(crate) async fn receive(run: &ChaosRun, mut receiver: WebhookReceiver) -> Consumer {
    let mut rng = StdRng::seed_from_u64(run.options.seed ^ 0x3eb);
    while !run.abandon.is_cancelled() {
        let pause = Duration::from_millis(rng.random_range(100..1_500));
        match rng.random_range(0..10) {
            0 => receiver.set_reply(Reply::Status(500)),
            1 => receiver.set_reply(Reply::redirect("http://127.0.0.1:1/")),
            2 => receiver.set_reply(Reply::Hang),
            3 => receiver.set_reply(Reply::Close),
            4 => receiver.set_reply(Reply::Delayed(Duration::from_millis(300))),
            5 => {
                receiver.stop().await;
                tokio::time::sleep(pause).await;
                receiver.restart().await;
            }
            _ => receiver.set_reply(Reply::Status(204)),
        }
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = run.abandon.cancelled() => {}
        }
    }
    receiver.set_reply(Reply::Status(204));
    let since = Instant::now();
    while !is_all(run).await && since.elapsed() < REST {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let mut consumer = Consumer::new("webhook");
    for received in receiver.received().iter().filter(|received| received.is_accepted()) {
        if run.options.receiver == Receiver::Forgetful && rng.random_bool(0.1) {
            continue;
        }
        let Some(sequence) = received.sequence() else {
            consumer.resets += usize::from(received.kind() == "events.reset");
            continue;
        };
        consumer.received.push(ReceivedEvent {
            id: received.id().to_owned(),
            kind: received.kind().to_owned(),
            sequence,
            content: received.event.to_string(),
        });
    }
    consumer
}

/// Whether the cursor is at the end of the log, no submitter is behind, and nothing waits for its position.
async fn is_all(run: &ChaosRun) -> bool {
    let query = "SELECT (SELECT min(position) FROM outlet) = gapless_event_position()
                    AND NOT EXISTS (SELECT 1 FROM outlet_submitter)
                    AND NOT EXISTS (SELECT 1 FROM outbox_event)";
    sqlx::query_scalar(query).fetch_one(run.stack.db()).await.unwrap_or(false)
}
