use std::time::{Duration, Instant, SystemTime};

use reqwest::header::CONTENT_TYPE;
use serde_json::{Value, json};
use standardwebhooks::Webhook;

use super::*;

const SECRET: &str = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD";

fn event(id: &str, submitter: &Submitter) -> Value {
    let sequence = "0000000000000000042";
    let data = json!({ "submitter": submitter.text() });
    json!({ "id": id, "type": "tx.confirmed", "subject": "t1", "sequence": sequence, "data": data })
}

async fn send(
    receiver: &WebhookReceiver,
    event: &Value,
    age: Duration,
) -> reqwest::Result<reqwest::Response> {
    let body = event.to_string();
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap() - age;
    let (id, seconds) = (event["id"].as_str().unwrap(), i64::try_from(now.as_secs()).unwrap());
    let signature = Webhook::new(SECRET).unwrap().sign(id, seconds, body.as_bytes()).unwrap();
    let client = gapless_http_client::client_builder().redirect(reqwest::redirect::Policy::none()).build()?;
    let request = client.post(receiver.url()).timeout(Duration::from_secs(1)).body(body);
    let request = request.header("webhook-id", id).header("webhook-timestamp", seconds);
    request.header("webhook-signature", signature).header(CONTENT_TYPE, "application/json").send().await
}

async fn status(receiver: &WebhookReceiver, event: &Value) -> Option<u16> {
    send(receiver, event, Duration::ZERO).await.ok().map(|response| response.status().as_u16())
}

#[tokio::test]
async fn requests_are_kept_and_their_signatures_verified() {
    let receiver = WebhookReceiver::start().await;
    let submitter = Submitter::random();
    let sent = event("a", &submitter);
    assert_eq!(status(&receiver, &sent).await, Some(200));
    let old = event("b", &submitter);
    send(&receiver, &old, Duration::from_secs(600)).await.unwrap();
    let received = receiver.wait_for("two", |received| received.len() == 2).await;
    let first = &received[0];
    assert_eq!((first.id(), first.kind(), first.subject()), ("a", "tx.confirmed", "t1"));
    assert_eq!((first.sequence(), first.submitter()), (Some(42), Some(submitter.text().as_str())));
    assert_eq!((&first.event, first.line.as_str()), (&sent, "POST /events"));
    assert_eq!((first.header("content-type"), first.header("absent")), ("application/json", ""));
    assert!(first.is_accepted());
    first.verify(SECRET).unwrap();
    let changed = first.verify_as(SECRET, b"{}", &[]);
    assert!(matches!(changed, Err(Unverified::InvalidSignature)), "{changed:?}");
    let other = first.verify_as(SECRET, &first.body, &[("webhook-id", "b".to_owned())]);
    assert!(matches!(other, Err(Unverified::InvalidSignature)), "{other:?}");
    let old = received[1].verify(SECRET);
    assert!(matches!(old, Err(Unverified::TimestampTooOldError)), "{old:?}");
    assert_eq!(ids_of(&received), ["a", "b"]);
    status(&receiver, &sent).await;
    assert_eq!(ids_of(&first_arrivals(&receiver.received())), ["a", "b"]);
}

#[tokio::test]
async fn replies_change_while_it_runs() {
    let receiver = WebhookReceiver::start().await;
    let (one, other) = (Submitter::random(), Submitter::random());
    receiver.set_reply(Reply::Status(204));
    receiver.set_reply_of(&one, Some(Reply::Status(500)));
    receiver.reply_to_next(1, Reply::retry_after(7));
    let response = send(&receiver, &event("a", &other), Duration::ZERO).await.unwrap();
    assert_eq!(
        (response.status().as_u16(), &response.headers()["retry-after"]),
        (429, &"7".parse().unwrap())
    );
    assert_eq!(status(&receiver, &event("a", &one)).await, Some(500));
    assert_eq!(status(&receiver, &event("b", &other)).await, Some(204));
    receiver.reply_to_next_of(&other, 1, Reply::Status(404));
    assert_eq!(status(&receiver, &event("a", &one)).await, Some(500));
    assert_eq!(status(&receiver, &event("b", &other)).await, Some(404));
    receiver.set_reply_of(&one, None);
    assert_eq!(status(&receiver, &event("a", &one)).await, Some(204));
    receiver.set_reply(Reply::redirect("http://169.254.169.254/"));
    let response = send(&receiver, &event("c", &one), Duration::ZERO).await.unwrap();
    assert_eq!(response.headers()["location"], "http://169.254.169.254/");
    receiver.set_reply(Reply::Delayed(Duration::from_millis(50)));
    let begun = Instant::now();
    assert_eq!(status(&receiver, &event("d", &one)).await, Some(200));
    assert!(begun.elapsed() >= Duration::from_millis(50));
    receiver.set_reply(Reply::Close);
    assert!(!send(&receiver, &event("e", &one), Duration::ZERO).await.unwrap_err().is_timeout());
    receiver.set_reply(Reply::Hang);
    assert!(send(&receiver, &event("f", &one), Duration::ZERO).await.unwrap_err().is_timeout());
    let statuses: Vec<Option<u16>> = receiver.received().iter().map(|one| one.status).collect();
    let answered = [429, 500, 204, 500, 404, 204, 302, 200].map(Some);
    assert_eq!(statuses, [&answered[..], &[None, None]].concat(), "what is not answered is kept too");
}

#[tokio::test]
async fn the_port_is_the_same_after_a_restart() {
    let mut receiver = WebhookReceiver::start().await;
    let (url, submitter) = (receiver.url(), Submitter::random());
    assert_eq!(status(&receiver, &event("a", &submitter)).await, Some(200));
    receiver.stop().await;
    assert!(send(&receiver, &event("b", &submitter), Duration::ZERO).await.unwrap_err().is_connect());
    receiver.restart().await;
    assert_eq!(status(&receiver, &event("c", &submitter)).await, Some(200));
    assert_eq!((receiver.url(), receiver.count()), (url, 2));
}

#[tokio::test]
#[should_panic(expected = "the receiver has nothing at all; last seen: (1, [\"a tx.confirmed")]
async fn a_timeout_reports_what_was_received() {
    let receiver = WebhookReceiver::start().await;
    status(&receiver, &event("a", &Submitter::random())).await;
    receiver.wait_within(Duration::from_millis(40), "nothing at all", |received| received.is_empty()).await;
}
