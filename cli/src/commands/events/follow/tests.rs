//! Follows a server that sends what the test tells it to.

use clap::Parser as _;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::*;
use crate::args::{Cli, Command};

const STREAM: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n";

/// Answers one connection after the other with these texts and then refuses connections. Returns the requests.
async fn serve(answers: Vec<String>) -> (Api, tokio::task::JoinHandle<Vec<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let api = Api::new(&format!("http://{}", listener.local_addr().unwrap()), None, None).unwrap();
    let served = tokio::spawn(async move {
        let mut requests = Vec::new();
        for answer in answers {
            let (mut connection, _) = listener.accept().await.unwrap();
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                request.push(connection.read_u8().await.unwrap());
            }
            requests.push(String::from_utf8(request).unwrap().to_lowercase());
            connection.write_all(answer.as_bytes()).await.unwrap();
        }
        requests
    });
    (api, served)
}

fn refusal(status: &str, code: &str) -> String {
    let body = format!(r#"{{"title":"refused","code":"{code}"}}"#);
    let length = body.len();
    format!(
        "HTTP/1.1 {status}\r\ncontent-type: application/problem+json\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}"
    )
}

fn follower(words: &[&str]) -> Follower {
    let words = ["gapless", "events", "--follow"].iter().chain(words);
    match Cli::try_parse_from(words).unwrap().command {
        Command::Events(events) => Follower::new(&events.read),
        other => panic!("{other:?}"),
    }
}

/// The result, the printed events, and the messages.
async fn follow(follower: &mut Follower, api: &Api) -> (Result<End>, Vec<String>, Vec<String>) {
    let (mut printed, mut said) = (Vec::new(), Vec::new());
    let print = |event: &Value| {
        printed.push(event["n"].to_string());
        Ok(())
    };
    let end = follower.follow(api, print, |text| said.push(text.to_owned())).await;
    (end, printed, said)
}

#[tokio::test]
async fn a_lost_stream_goes_on_after_the_last_message() {
    let answers = vec![
        format!("{STREAM}retry: 10\nid: a.0\n\nid: a.1\ndata: {{\"n\":1}}\n\nid: a.2\ndata: {{\"n\":2}}\n"),
        refusal("503 Service Unavailable", "too_many_streams"),
        refusal("429 Too Many Requests", "rate_limited"),
        STREAM.to_owned(),
        format!("{STREAM}id: a.1\n\n: keep-alive\nid: a.7\n\n"),
        format!(
            "{STREAM}id: a.8\ndata: {{\"n\":8}}\n\nid: a.9\ndata: {{\"n\":9}}\n\nid: a.10\ndata: {{\"n\":10}}\n\n"
        ),
    ];
    let (api, served) = serve(answers).await;
    let mut follower = follower(&["--limit", "3", "--type", "tx.confirmed,tx.failed", "--chain", "1"]);
    let (end, printed, said) = follow(&mut follower, &api).await;
    assert_eq!(end.unwrap(), End::Finished);
    assert_eq!(printed, ["1", "8", "9"]);
    assert_eq!(follower.cursor.as_deref(), Some("a.9"));
    // Once for each time that it was lost, whatever the number of connections that failed.
    assert_eq!(said, ["the API ended the event stream; reconnecting"; 2]);
    let requests = served.await.unwrap();
    assert!(requests[0].starts_with("get /api/v1/events?type=tx.confirmed%2ctx.failed&chainid=1 http/1.1"));
    assert!(requests[0].contains("accept: text/event-stream"));
    assert!(!requests[0].contains("last-event-id"));
    for (number, id) in [(1, "a.1"), (2, "a.1"), (3, "a.1"), (4, "a.1"), (5, "a.7")] {
        assert!(requests[number].contains(&format!("\r\nlast-event-id: {id}\r\n")), "{}", requests[number]);
    }
}

#[tokio::test]
async fn a_refused_connection_is_an_error() {
    let answers =
        vec![format!("{STREAM}retry: 10\nid: a.0\n\n"), refusal("401 Unauthorized", "unauthorized")];
    let (api, _served) = serve(answers).await;
    let (end, printed, said) = follow(&mut follower(&["--after", "start"]), &api).await;
    assert_eq!(end.unwrap_err().to_string(), "401 refused (unauthorized)");
    assert_eq!((printed.len(), said.len()), (0, 1));
}

#[tokio::test]
async fn the_first_connection_is_not_repeated() {
    for answer in [refusal("503 Service Unavailable", "not_ready"), String::new()] {
        let (api, _served) = serve(vec![answer]).await;
        let (end, _, said) = follow(&mut follower(&[]), &api).await;
        assert!(end.is_err() && said.is_empty(), "{end:?} {said:?}");
    }
    let html = "HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 0\r\n\r\n";
    let (api, _served) = serve(vec![html.to_owned()]).await;
    let error = follow(&mut follower(&[]), &api).await.0.unwrap_err().to_string();
    assert!(error.contains("text/html"), "{error}");
}

#[tokio::test]
async fn a_reset_is_reported_and_the_stream_goes_on() {
    let answer = format!(
        "{STREAM}id: a.3\n\nevent: reset\nid: b.0\ndata: {{\"reason\":\"epoch\",\"cursor\":\"b.0\"}}\n\n\
         event: of_a_later_version\ndata: ?\n\nid: b.1\ndata: {{\"n\":1}}\n\n"
    );
    let (api, _served) = serve(vec![answer]).await;
    let mut follower = follower(&["--after", "a.3", "--limit", "1"]);
    let (end, printed, said) = follow(&mut follower, &api).await;
    assert_eq!(end.unwrap(), End::Finished);
    assert_eq!(printed, ["1"]);
    assert_eq!(follower.cursor.as_deref(), Some("b.1"));
    assert!(said.len() == 1 && said[0].starts_with("RESET: the database was restored"), "{said:?}");
    assert!(reset(r#"{"reason":"retention"}"#).contains("events.retention"));
    assert!(reset("").contains("may be missing"));
}

#[tokio::test]
async fn it_ends_when_nobody_reads_and_the_cursor_stays() {
    let answer = format!("{STREAM}id: a.0\n\nid: a.1\ndata: {{}}\n\n");
    let (api, _served) = serve(vec![answer]).await;
    let mut follower = follower(&[]);
    let unread = |_: &Value| Err(io::ErrorKind::BrokenPipe.into());
    assert_eq!(follower.follow(&api, unread, |_| {}).await.unwrap(), End::Unread);
    assert_eq!(follower.cursor.as_deref(), Some("a.0"));
}

#[tokio::test]
async fn what_is_not_an_event_is_an_error() {
    for message in ["data: <html>\n\n", "id: a\u{7}b\ndata: {}\n\n"] {
        let (api, _served) = serve(vec![format!("{STREAM}{message}")]).await;
        let (end, ..) = follow(&mut follower(&[]), &api).await;
        assert!(end.unwrap_err().to_string().starts_with("the API sent"), "{message}");
    }
}
