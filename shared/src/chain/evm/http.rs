//! One HTTP POST to one node, and the list of nodes of a chain. Moves bytes; does not know what they mean.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use reqwest::header::{CONTENT_TYPE, HeaderValue};
use reqwest::redirect::Policy;
use reqwest::{Client, StatusCode, Url};

use crate::chain::port::RpcError;
use crate::config::ChainConfig;

/// No honest answer is larger: a full block's receipts are a few megabytes.
const MAX_RESPONSE_BYTES: usize = 64 << 20;

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
    /// Scheme, host and port: all that errors and logs may show.
    pub(super) shown: String,
}

impl std::fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.shown)
    }
}

impl Endpoint {
    fn parse(text: &str) -> Option<Endpoint> {
        let url = Url::parse(text).ok().filter(|url| matches!(url.scheme(), "http" | "https"))?;
        let shown = format!("{}://{}:{}", url.scheme(), url.host_str()?, url.port_or_known_default()?);
        Some(Endpoint { url, shown })
    }

    /// A proxy from the environment is for the outside, never for a node on this machine.
    fn is_loopback(&self) -> bool {
        let host = self.url.host_str().unwrap_or_default().trim_matches(['[', ']']);
        host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
    }
}

/// The nodes of one chain, and which of them answered last.
#[derive(Debug)]
pub(super) struct Nodes {
    client: Client,
    endpoints: Vec<Endpoint>,
    preferred: AtomicUsize,
    timeout: Duration,
}

impl Nodes {
    pub(super) fn new(config: &ChainConfig) -> Result<Nodes, EvmClientError> {
        let chain = || config.name.clone();
        let endpoints = config
            .urls
            .iter()
            .enumerate()
            .map(|(index, url)| {
                Endpoint::parse(url.expose()).ok_or(EvmClientError::BadUrl { chain: chain(), index })
            })
            .collect::<Result<Vec<Endpoint>, _>>()?;
        if endpoints.is_empty() {
            return Err(EvmClientError::NoUrl { chain: chain() });
        }
        let mut builder = Client::builder()
            .timeout(config.rpc.timeout)
            .connect_timeout(config.rpc.timeout)
            .pool_idle_timeout(POOL_IDLE)
            // Signed bytes go to the configured node or nowhere.
            .redirect(Policy::none());
        if endpoints.iter().all(Endpoint::is_loopback) {
            builder = builder.no_proxy();
        }
        let client = builder.build().map_err(|source| EvmClientError::Http { chain: chain(), source })?;
        Ok(Nodes { client, endpoints, preferred: AtomicUsize::new(0), timeout: config.rpc.timeout })
    }

    /// Every node once, the last good one first.
    pub(super) fn round(&self) -> impl Iterator<Item = &Endpoint> {
        let start = self.preferred.load(Relaxed);
        self.endpoints.iter().cycle().skip(start).take(self.endpoints.len())
    }

    /// From now on this one is asked first. It stays so until it fails in its turn.
    pub(super) fn prefer(&self, endpoint: &Endpoint) {
        if let Some(index) = self.endpoints.iter().position(|known| std::ptr::eq(known, endpoint))
            && self.preferred.swap(index, Relaxed) != index
        {
            tracing::info!(endpoint = %endpoint.shown, "another node of the chain is used from now on");
        }
    }

    pub(super) async fn post(&self, endpoint: &Endpoint, body: Vec<u8>) -> Result<Vec<u8>, PostError> {
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
        let mut answer = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(|error| self.failed(error))? {
            if answer.len() + chunk.len() > MAX_RESPONSE_BYTES {
                return Err(PostError::Oversized);
            }
            answer.extend_from_slice(&chunk);
        }
        Ok(answer)
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
        PostError::Transport(cause.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_shown_without_its_secrets() {
        let endpoint = Endpoint::parse("https://user:pass@rpc.example.org/v3/secret-key?token=x").unwrap();
        assert_eq!(format!("{endpoint:?}"), "https://rpc.example.org:443");
        assert_eq!(Endpoint::parse("http://[::1]:8545/key").unwrap().shown, "http://[::1]:8545");
    }

    #[test]
    fn only_http_urls_are_nodes() {
        for text in ["", "ws://node:8546", "file:///etc/passwd", "node:8545", "http://"] {
            assert!(Endpoint::parse(text).is_none(), "{text}");
        }
    }
}
