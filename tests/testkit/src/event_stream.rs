//! A client of event streams.

use std::collections::VecDeque;
use std::time::Duration;

use reqwest::Method;
use reqwest::header::ACCEPT;
use serde_json::Value;

use crate::client::Client;
use crate::eventually::LIMIT;

/// One message of a stream.
#[derive(Clone, Debug, PartialEq)]
pub struct Message {
    /// The cursor.
    pub id: String,
    /// `reset`; empty for events.
    pub event: String,
    /// Null: a message that only has an id.
    pub data: Value,
}

#[derive(Debug)]
pub struct EventStream {
    response: reqwest::Response,
    /// The beginning of a message.
    bytes: Vec<u8>,
    received: VecDeque<Message>,
    /// Id of the last message that was taken, or of one without data after it.
    pub cursor: String,
    /// Comments received.
    pub comments: usize,
}

impl EventStream {
    /// `query`: `?after=start&type=tx.confirmed`, or empty. An error is the status of the response.
    pub async fn open(client: &Client, query: &str) -> Result<EventStream, u16> {
        let request = client.request(Method::GET, &format!("/api/v1/events{query}"));
        Self::send(request.header(ACCEPT, "text/event-stream")).await
    }

    /// Goes on after a cursor, as browsers do.
    pub async fn resume(client: &Client, cursor: &str) -> Result<EventStream, u16> {
        let request = client.request(Method::GET, "/api/v1/events");
        Self::send(request.header(ACCEPT, "text/event-stream").header("Last-Event-ID", cursor)).await
    }

    /// A stream of the API at this address, after a cursor.
    pub async fn connect(base: &str, cursor: &str) -> Result<EventStream, u16> {
        let http = gapless_http_client::client_builder().build().expect("a client");
        let request = http.get(format!("{base}/api/v1/events?after={cursor}"));
        Self::send(request.header(ACCEPT, "text/event-stream")).await
    }

    async fn send(request: reqwest::RequestBuilder) -> Result<EventStream, u16> {
        let response = request.send().await.map_err(|_| 0_u16)?;
        if !response.status().is_success() {
            return Err(response.status().as_u16());
        }
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        Ok(EventStream {
            response,
            bytes: Vec::new(),
            received: VecDeque::new(),
            cursor: String::new(),
            comments: 0,
        })
    }

    /// The next message with data. `None`: the stream has ended, or has nothing within the time limit.
    pub async fn next_within(&mut self, limit: Duration) -> Option<Message> {
        let next = async {
            loop {
                if let Some(message) = self.received.pop_front() {
                    message.id.clone_into(&mut self.cursor);
                    return Some(message);
                }
                let chunk = self.response.chunk().await.ok().flatten()?;
                self.add(&chunk);
            }
        };
        tokio::time::timeout(limit, next).await.ok().flatten()
    }

    pub async fn next(&mut self) -> Message {
        self.next_within(LIMIT).await.expect("the stream goes on")
    }

    /// The next events up to the first with this type.
    pub async fn until(&mut self, kind: &str) -> Vec<Value> {
        let mut events = Vec::new();
        loop {
            events.push(self.next().await.data);
            if events.last().is_some_and(|event| event["type"] == kind) {
                return events;
            }
        }
    }

    /// Waits for the end of the stream.
    pub async fn wait_end(&mut self, limit: Duration) -> bool {
        let end = async { while let Ok(Some(_)) = self.response.chunk().await {} };
        tokio::time::timeout(limit, end).await.is_ok()
    }

    fn add(&mut self, chunk: &[u8]) {
        self.bytes.extend_from_slice(chunk);
        let Some(end) = self.bytes.windows(2).rposition(|pair| pair == b"\n\n") else { return };
        let complete: Vec<u8> = self.bytes.drain(..end + 2).collect();
        for block in String::from_utf8(complete).expect("UTF-8").split_terminator("\n\n") {
            let message = self.read(block);
            if !message.data.is_null() {
                self.received.push_back(message);
            }
        }
    }

    fn read(&mut self, block: &str) -> Message {
        let mut message = Message { id: String::new(), event: String::new(), data: Value::Null };
        for line in block.lines() {
            match line.split_once(": ") {
                Some(("id", id)) => id.clone_into(&mut message.id),
                Some(("event", event)) => message.event = event.to_owned(),
                Some(("data", data)) => message.data = serde_json::from_str(data).expect("JSON"),
                Some(("", _)) => self.comments += 1,
                Some(("retry", _)) => {}
                _ => panic!("{line}"),
            }
        }
        if message.data.is_null() && !message.id.is_empty() && self.received.is_empty() {
            message.id.clone_into(&mut self.cursor);
        }
        message
    }
}
