//! One request of a webhook. Signatures are verified with the library of Standard Webhooks, never with our own code.

use std::collections::BTreeSet;
use std::fmt;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Instant;

use gapless_localnet::npm;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use serde_json::{Map, Value, json};
use standardwebhooks::Webhook;
pub use standardwebhooks::WebhookError as Unverified;
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

use crate::plain_http::Request;

#[derive(Clone)]
pub struct Received {
    /// Method and path: `POST /events`.
    pub line: String,
    pub headers: HeaderMap,
    pub body: Vec<u8>,
    /// The body as JSON; null if it is not JSON.
    pub event: Value,
    pub at: Instant,
    /// What the receiver responded; `None` if nothing.
    pub status: Option<u16>,
}

impl Received {
    pub(super) fn new(request: Request, at: Instant) -> Received {
        let headers = request.headers.iter().map(|(name, value)| {
            let name: HeaderName = name.parse().expect("the name of a header");
            (name, HeaderValue::from_str(value).expect("the value of a header"))
        });
        Received {
            headers: headers.collect(),
            event: request.json(),
            line: request.line,
            body: request.body,
            at,
            status: None,
        }
    }

    /// Empty if the header is absent.
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }

    fn text(&self, member: &str) -> &str {
        self.event[member].as_str().unwrap_or_default()
    }

    /// `id` of the event, which is also the header `webhook-id`.
    pub fn id(&self) -> &str {
        self.text("id")
    }

    /// `type` of the event: `tx.confirmed`.
    pub fn kind(&self) -> &str {
        self.text("type")
    }

    /// `subject` of the event, which is the transaction's id.
    pub fn subject(&self) -> &str {
        self.text("subject")
    }

    /// Position in the log; `None` for notices, which are not in it.
    pub fn sequence(&self) -> Option<i64> {
        self.text("sequence").parse().ok()
    }

    pub fn submitter(&self) -> Option<&str> {
        self.event["data"]["submitter"].as_str()
    }

    /// Whether the receiver responded with 2xx.
    pub fn is_accepted(&self) -> bool {
        self.status.is_some_and(|status| (200..300).contains(&status))
    }

    /// Checks signature and time.
    pub fn verify(&self, secret: &str) -> Result<(), Unverified> {
        self.verify_as(secret, &self.body, &[])
    }

    /// The same with another body and other headers, as an attacker would change them.
    pub fn verify_as(
        &self,
        secret: &str,
        body: &[u8],
        changed: &[(&'static str, String)],
    ) -> Result<(), Unverified> {
        let mut headers = self.headers.clone();
        for (name, value) in changed {
            headers.insert(*name, value.parse().expect("the value of a header"));
        }
        Webhook::new(secret)?.verify(body, &headers)
    }

    /// Verifies the signature of `body` with the npm package of the specification. Returns what it printed.
    pub async fn verify_in_node(&self, secret: &str, body: &[u8]) -> Result<String, String> {
        let project = npm::tools_dir().expect("tools/ is in the repository").join("webhooks");
        let install = project.clone();
        let installed = move || npm::installed(&install, "standardwebhooks", |_| ());
        tokio::task::spawn_blocking(installed).await.unwrap().expect("npm installs standardwebhooks");
        let names = ["webhook-id", "webhook-timestamp", "webhook-signature"];
        let headers: Map<String, Value> =
            names.iter().map(|name| ((*name).to_owned(), self.header(name).into())).collect();
        let input = json!({ "secret": secret, "headers": headers, "body": String::from_utf8_lossy(body) });
        let mut node = Command::new("node");
        node.arg("verify.mjs").current_dir(project).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut node = node.stderr(Stdio::piped()).spawn().expect("Node.js runs");
        node.stdin.take().unwrap().write_all(input.to_string().as_bytes()).await.unwrap();
        let output = node.wait_with_output().await.unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
        if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
    }

    pub(super) fn summary(&self) -> String {
        let status = self.status.map_or_else(|| "nothing".to_owned(), |status| status.to_string());
        let submitter = self.submitter().unwrap_or("-");
        format!("{} {} {submitter} at {:?} → {status}", self.id(), self.kind(), self.sequence())
    }
}

/// Without the bytes of the body.
impl fmt::Debug for Received {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?} {}", self.summary(), self.headers, self.event)
    }
}

/// The first request of each id, in the order of their arrival.
pub fn first_arrivals(received: &[Arc<Received>]) -> Vec<Arc<Received>> {
    let mut seen = BTreeSet::new();
    received.iter().filter(|one| seen.insert(one.id().to_owned())).cloned().collect()
}

pub fn ids_of(received: &[Arc<Received>]) -> Vec<String> {
    received.iter().map(|one| one.id().to_owned()).collect()
}
