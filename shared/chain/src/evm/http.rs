//! One HTTP POST to one node.

use std::sync::Arc;
use std::time::Duration;

use reqwest::header::{CONTENT_TYPE, HeaderValue};
use reqwest::redirect::Policy;
use reqwest::{Client, StatusCode, Url};
use serde_json::Value;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::health::Health;
use crate::port::RpcError;
use gapless_config::{ChainConfig, Secret};
use gapless_http_client::{client_builder, read_certificates};

/// Larger responses are refused. A full block's receipts are a few megabytes.
const MAX_RESPONSE_BYTES: usize = 64 << 20;

/// Nearly every response is smaller. At most `LARGE_AT_ONCE` larger ones are in memory at a time; otherwise a
/// malicious node could fill memory with `rpc.max_in_flight` maximal responses.
const SMALL_RESPONSE_BYTES: usize = 1 << 20;
const LARGE_AT_ONCE: usize = 2;

/// Shorter than the idle timeouts of common proxies, so that a connection is not closed during a request.
const POOL_IDLE: Duration = Duration::from_secs(30);

/// A chain's client could not be built. Messages never contain a URL, because URLs may contain API keys.
#[derive(Debug, thiserror::Error)]
pub enum EvmClientError {
    #[error("chain {chain}: rpc.url: no node is configured")]
    NoUrl { chain: String },
    #[error("chain {chain}: rpc.urls[{index}] is not an http or https URL")]
    BadUrl { chain: String, index: usize },
    #[error("chain {chain}: rpc.error_patterns: {problem}")]
    BadPatterns { chain: String, problem: String },
    #[error("chain {chain}: rpc.ca_file: {problem}")]
    BadAuthorities { chain: String, problem: String },
    #[error("chain {chain}: could not create the HTTP client")]
    Http { chain: String, source: reqwest::Error },
}

/// Why a request has no response body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PostError {
    Timeout(Duration),
    Transport(String),
    Status(u16),
    /// HTTP 413: the request is larger than the node accepts.
    TooLarge,
    /// The response is larger than `MAX_RESPONSE_BYTES`.
    Oversized,
}

impl PostError {
    /// Label of the error counter.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            PostError::Timeout(_) => "timeout",
            PostError::Transport(_) => "transport",
            PostError::Status(_) | PostError::TooLarge => "http",
            PostError::Oversized => "malformed",
        }
    }

    pub(super) fn for_call(&self, method: &'static str, endpoint: &Endpoint) -> RpcError {
        let endpoint = endpoint.shown.clone();
        match self.clone() {
            PostError::Timeout(timeout) => RpcError::Timeout { method, endpoint, timeout },
            PostError::Transport(reason) => RpcError::Transport { method, endpoint, reason },
            PostError::Status(status) => RpcError::Http { method, endpoint, status },
            PostError::TooLarge => RpcError::Http { method, endpoint, status: 413 },
            PostError::Oversized => {
                let reason = format!("larger than {MAX_RESPONSE_BYTES} bytes");
                RpcError::Malformed { method, endpoint, reason }
            }
        }
    }
}

/// One node.
pub(super) struct Endpoint {
    url: Url,
    /// Its index in the configuration.
    pub(super) index: usize,
    /// Scheme, host and port: for errors and logs, without secrets.
    pub(super) shown: String,
    /// Metric label: host and port, and the index if two nodes share them.
    pub(super) label: String,
    pub(super) health: Health,
    /// Parts of the URL to redact in the node's messages.
    secrets: Vec<Secret>,
}

/// Shorter parts of a URL are not secrets: `v3`, `mainnet`, `true`.
const SHORTEST_SECRET: usize = 8;

impl std::fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.shown)
    }
}

impl Endpoint {
    /// The nodes of a chain, at least one.
    pub(super) fn all(config: &ChainConfig) -> Result<Vec<Endpoint>, EvmClientError> {
        let chain = || config.name.clone();
        let mut endpoints: Vec<Endpoint> = Vec::new();
        for (index, url) in config.urls.iter().enumerate() {
            let parsed = Endpoint::parse(url.expose(), index, config.rpc.max_lag_blocks);
            let mut endpoint = parsed.ok_or_else(|| EvmClientError::BadUrl { chain: chain(), index })?;
            if endpoints.iter().any(|other| other.label == endpoint.label) {
                endpoint.label = format!("{}#{index}", endpoint.label);
            }
            endpoints.push(endpoint);
        }
        if endpoints.is_empty() {
            return Err(EvmClientError::NoUrl { chain: chain() });
        }
        Ok(endpoints)
    }

    fn parse(text: &str, index: usize, max_lag: u64) -> Option<Endpoint> {
        let url = Url::parse(text).ok().filter(|url| matches!(url.scheme(), "http" | "https"))?;
        let label = format!("{}:{}", url.host_str()?, url.port_or_known_default()?);
        let shown = format!("{}://{label}", url.scheme());
        let secrets = secrets(&url);
        Some(Endpoint { url, index, shown, label, health: Health::new(max_lag), secrets })
    }

    /// Redacts a node's message, which is logged, stored and shown. Some providers include the rejected API key in it.
    pub(super) fn without_secrets(&self, mut text: String) -> String {
        for secret in &self.secrets {
            if text.contains(secret.expose()) {
                text = text.replace(secret.expose(), "…");
            }
        }
        text
    }

    /// Like `without_secrets`, for every text and member name of a JSON value. A number that contains a secret becomes
    /// a text.
    pub(super) fn value_without_secrets(&self, value: Value) -> Value {
        match value {
            Value::String(text) => Value::String(self.without_secrets(text)),
            Value::Array(items) => items.into_iter().map(|item| self.value_without_secrets(item)).collect(),
            Value::Object(members) => members
                .into_iter()
                .map(|(name, item)| (self.without_secrets(name), self.value_without_secrets(item)))
                .collect(),
            Value::Number(number) if self.secrets.iter().any(|s| number.to_string().contains(s.expose())) => {
                Value::String(self.without_secrets(number.to_string()))
            }
            other => other,
        }
    }

    /// The environment's proxy is not used for local nodes.
    fn is_loopback(&self) -> bool {
        let host = self.url.host_str().unwrap_or_default().trim_matches(['[', ']']);
        host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
    }
}

/// The parts of the URL other than scheme, host and port that are long enough to be a key.
fn secrets(url: &Url) -> Vec<Secret> {
    let mut parts = vec![url.username().to_owned(), url.password().unwrap_or_default().to_owned()];
    parts.extend(url.path_segments().into_iter().flatten().map(str::to_owned));
    parts.extend(url.query_pairs().map(|(_, value)| value.into_owned()));
    parts.retain(|part| part.len() >= SHORTEST_SECRET);
    parts.into_iter().map(Secret::new).collect()
}

/// A response body. A large one holds its permit until dropped.
#[derive(Debug)]
pub(super) struct Body {
    pub(super) bytes: Vec<u8>,
    _large: Option<OwnedSemaphorePermit>,
}

/// The connections to the nodes of one chain.
#[derive(Debug)]
pub(super) struct Http {
    client: Client,
    timeout: Duration,
    large: Arc<Semaphore>,
}

impl Http {
    pub(super) fn new(config: &ChainConfig, endpoints: &[Endpoint]) -> Result<Http, EvmClientError> {
        let mut builder = client_builder()
            .timeout(config.rpc.timeout)
            .connect_timeout(config.rpc.timeout)
            .pool_idle_timeout(POOL_IDLE)
            // Signed bytes must only go to the configured node.
            .redirect(Policy::none());
        if endpoints.iter().all(Endpoint::is_loopback) {
            builder = builder.no_proxy();
        }
        if let Some(path) = &config.rpc.ca_file {
            let bad = |problem| EvmClientError::BadAuthorities { chain: config.name.clone(), problem };
            // In addition to the system's certificates: a chain may have a private node and a provider's.
            builder = builder.tls_certs_merge(read_certificates(path).map_err(bad)?);
        }
        let client =
            builder.build().map_err(|source| EvmClientError::Http { chain: config.name.clone(), source })?;
        Ok(Http { client, timeout: config.rpc.timeout, large: Arc::new(Semaphore::new(LARGE_AT_ONCE)) })
    }

    /// Timeout of one request.
    pub(super) fn timeout(&self) -> Duration {
        self.timeout
    }

    pub(super) async fn post(&self, endpoint: &Endpoint, body: Vec<u8>) -> Result<Body, PostError> {
        let request = self
            .client
            .post(endpoint.url.clone())
            .header(CONTENT_TYPE, HeaderValue::from_static("application/json"))
            .body(body);
        let mut response = request.send().await.map_err(|error| self.failed(error))?;
        match response.status() {
            StatusCode::OK => {}
            StatusCode::PAYLOAD_TOO_LARGE => return Err(PostError::TooLarge),
            status => return Err(PostError::Status(status.as_u16())),
        }
        // Too large by Content-Length: do not read it.
        if response.content_length().is_some_and(|length| length > MAX_RESPONSE_BYTES as u64) {
            return Err(PostError::Oversized);
        }
        let (mut bytes, mut large) = (Vec::new(), None);
        while let Some(chunk) = response.chunk().await.map_err(|error| self.failed(error))? {
            if bytes.len() + chunk.len() > MAX_RESPONSE_BYTES {
                return Err(PostError::Oversized);
            }
            if large.is_none() && bytes.len() + chunk.len() > SMALL_RESPONSE_BYTES {
                large = Some(self.large_answer().await?);
            }
            bytes.extend_from_slice(&chunk);
        }
        Ok(Body { bytes, _large: large })
    }

    /// Waits for a permit to read a large response, at most for the request timeout.
    async fn large_answer(&self) -> Result<OwnedSemaphorePermit, PostError> {
        let permit = tokio::time::timeout(self.timeout, Arc::clone(&self.large).acquire_owned()).await;
        permit.map_err(|_| PostError::Timeout(self.timeout)).map(|permit| permit.expect("it is never closed"))
    }

    fn failed(&self, error: reqwest::Error) -> PostError {
        if error.is_timeout() {
            return PostError::Timeout(self.timeout);
        }
        let error = error.without_url();
        // The outer message is only "error sending request"; the innermost has the cause.
        let mut cause: &dyn std::error::Error = &error;
        while let Some(inner) = cause.source() {
            cause = inner;
        }
        PostError::Transport(with_remedy(cause.to_string()))
    }
}

/// Adds a hint to the usual error of a private node with its own CA.
fn with_remedy(reason: String) -> String {
    match reason.contains("UnknownIssuer") {
        true => format!("{reason} (for a private CA, set rpc.ca_file)"),
        false => reason,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_url_is_shown_without_its_secrets() {
        let endpoint =
            Endpoint::parse("https://user:pass@rpc.example.org/v3/secret-key?token=x", 0, 5).unwrap();
        assert_eq!(format!("{endpoint:?}"), "https://rpc.example.org:443");
        assert_eq!(endpoint.label, "rpc.example.org:443");
        assert_eq!(Endpoint::parse("http://[::1]:8545/key", 0, 5).unwrap().shown, "http://[::1]:8545");
    }

    #[test]
    fn secrets_of_the_url_are_redacted_in_messages() {
        let url = "https://someuser:password@rpc.example.org/v3/secret-key?token=t0kent0ken&fast=true";
        let endpoint = Endpoint::parse(url, 0, 5).unwrap();
        let message = format!("v3: {url} is not true").replace("https://", "");
        let redacted = endpoint.without_secrets(message);
        assert_eq!(redacted, "v3: …:…@rpc.example.org/v3/…?token=…&fast=true is not true");
    }

    #[test]
    fn secrets_of_the_url_are_redacted_in_every_part_of_data() {
        let endpoint =
            Endpoint::parse("https://rpc.example.org/secret-key?project=1234567890", 0, 5).unwrap();
        let data = json!({
            "url": "https://rpc.example.org/secret-key",
            "secret-key": [{ "project": 1234567890, "code": 7, "retry": null }, "0x08c379a0"],
        });
        let redacted = json!({
            "url": "https://rpc.example.org/…",
            "…": [{ "project": "…", "code": 7, "retry": null }, "0x08c379a0"],
        });
        assert_eq!(endpoint.value_without_secrets(data), redacted);
    }

    #[test]
    fn only_http_urls_are_nodes() {
        for text in ["", "ws://node:8546", "file:///etc/passwd", "node:8545", "http://"] {
            assert!(Endpoint::parse(text, 0, 5).is_none(), "{text}");
        }
    }
}
