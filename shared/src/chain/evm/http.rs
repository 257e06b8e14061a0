//! One HTTP POST to one node. Moves bytes; does not know what they mean.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use reqwest::header::{CONTENT_TYPE, HeaderValue};
use reqwest::redirect::Policy;
use reqwest::{Certificate, Client, StatusCode, Url};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::health::Health;
use crate::chain::port::RpcError;
use crate::config::{ChainConfig, Secret};

/// No honest answer is larger: a full block's receipts are a few megabytes.
const MAX_RESPONSE_BYTES: usize = 64 << 20;

/// Nearly every answer is smaller. Of larger ones so many are held at once, or a hostile node could have each of
/// `rpc.max_in_flight` requests fill the memory up to the limit.
const SMALL_RESPONSE_BYTES: usize = 1 << 20;
const LARGE_AT_ONCE: usize = 2;

/// Shorter than the idle limits of the usual proxies, so that a connection is not closed under a request.
const POOL_IDLE: Duration = Duration::from_secs(30);

/// A chain's client could not be built. No text of it holds a URL: URLs carry keys.
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
    #[error("chain {chain}: the HTTP client could not be set up")]
    Http { chain: String, source: reqwest::Error },
}

/// Why there is no body to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PostError {
    Timeout(Duration),
    Transport(String),
    Status(u16),
    /// HTTP 413: the request is larger than the node takes.
    TooLarge,
    /// The answer is larger than we take.
    Oversized,
}

impl PostError {
    /// The bounded label of the error counter.
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
                let reason = format!("more than {MAX_RESPONSE_BYTES} bytes");
                RpcError::Malformed { method, endpoint, reason }
            }
        }
    }
}

/// One node.
pub(super) struct Endpoint {
    url: Url,
    /// Its place in the configuration.
    pub(super) index: usize,
    /// Scheme, host and port: all that errors and logs may show.
    pub(super) shown: String,
    /// Names it in metrics: host and port, and its place where two nodes share them.
    pub(super) label: String,
    pub(super) health: Health,
    /// What of the URL must not come back in a node's words.
    secrets: Vec<Secret>,
}

/// Shorter parts of a URL are words: `v3`, `mainnet`, `true`.
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

    /// A node's words are logged, stored and shown. Providers are known to quote the key that they do not accept.
    pub(super) fn without_secrets(&self, mut text: String) -> String {
        for secret in &self.secrets {
            if text.contains(secret.expose()) {
                text = text.replace(secret.expose(), "…");
            }
        }
        text
    }

    /// A proxy from the environment is for the outside, never for a node on this machine.
    fn is_loopback(&self) -> bool {
        let host = self.url.host_str().unwrap_or_default().trim_matches(['[', ']']);
        host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
    }
}

/// Whatever stands beside scheme, host and port and is long enough to be a key.
fn secrets(url: &Url) -> Vec<Secret> {
    let mut parts = vec![url.username().to_owned(), url.password().unwrap_or_default().to_owned()];
    parts.extend(url.path_segments().into_iter().flatten().map(str::to_owned));
    parts.extend(url.query_pairs().map(|(_, value)| value.into_owned()));
    parts.retain(|part| part.len() >= SHORTEST_SECRET);
    parts.into_iter().map(Secret::new).collect()
}

/// The body of an answer. While it is there, a large one keeps others from being read.
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
        let mut builder = Client::builder()
            .timeout(config.rpc.timeout)
            .connect_timeout(config.rpc.timeout)
            .pool_idle_timeout(POOL_IDLE)
            // Signed bytes go to the configured node or nowhere.
            .redirect(Policy::none());
        if endpoints.iter().all(Endpoint::is_loopback) {
            builder = builder.no_proxy();
        }
        if let Some(path) = &config.rpc.ca_file {
            let bad = |problem| EvmClientError::BadAuthorities { chain: config.name.clone(), problem };
            // Beside those of the system: a chain may have a node of one's own and one of a provider.
            builder = builder.tls_certs_merge(authorities(path).map_err(bad)?);
        }
        let client =
            builder.build().map_err(|source| EvmClientError::Http { chain: config.name.clone(), source })?;
        Ok(Http { client, timeout: config.rpc.timeout, large: Arc::new(Semaphore::new(LARGE_AT_ONCE)) })
    }

    /// How long one request may take.
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
        // Said beforehand, it need not be read.
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

    /// Waits until another large answer may be read, for no longer than a request may take.
    async fn large_answer(&self) -> Result<OwnedSemaphorePermit, PostError> {
        let permit = tokio::time::timeout(self.timeout, Arc::clone(&self.large).acquire_owned()).await;
        permit.map_err(|_| PostError::Timeout(self.timeout)).map(|permit| permit.expect("it is never closed"))
    }

    fn failed(&self, error: reqwest::Error) -> PostError {
        if error.is_timeout() {
            return PostError::Timeout(self.timeout);
        }
        let error = error.without_url();
        // The outer text is only "error sending request"; the innermost says what happened.
        let mut cause: &dyn std::error::Error = &error;
        while let Some(inner) = cause.source() {
            cause = inner;
        }
        PostError::Transport(with_remedy(cause.to_string()))
    }
}

/// The certificates of a PEM file, at least one.
fn authorities(path: &Path) -> Result<Vec<Certificate>, String> {
    let at = |problem: String| format!("{}: {problem}", path.display());
    let pem = std::fs::read(path).map_err(|error| at(error.to_string()))?;
    match Certificate::from_pem_bundle(&pem) {
        Ok(found) if !found.is_empty() => Ok(found),
        _ => Err(at("holds no certificate in PEM".into())),
    }
}

/// Whoever runs a node of their own meets this one first.
fn with_remedy(reason: String) -> String {
    match reason.contains("UnknownIssuer") {
        true => format!("{reason} (if its authority is your own, name it in rpc.ca_file)"),
        false => reason,
    }
}

#[cfg(test)]
mod tests {
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
    fn a_node_that_quotes_its_url_is_not_repeated() {
        let url = "https://someuser:password@rpc.example.org/v3/secret-key?token=t0kent0ken&fast=true";
        let endpoint = Endpoint::parse(url, 0, 5).unwrap();
        let said = format!("v3: {url} is not true").replace("https://", "");
        let kept = endpoint.without_secrets(said);
        assert_eq!(kept, "v3: …:…@rpc.example.org/v3/…?token=…&fast=true is not true");
    }

    #[test]
    fn only_http_urls_are_nodes() {
        for text in ["", "ws://node:8546", "file:///etc/passwd", "node:8545", "http://"] {
            assert!(Endpoint::parse(text, 0, 5).is_none(), "{text}");
        }
    }
}
