//! The `[api]` section: listening address, authentication and limits.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;

use super::secret::Secret;

#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Api {
    pub bind: SocketAddr,
    /// Absent: plain HTTP, for loopback or behind a TLS proxy.
    pub tls: Option<ApiTls>,
    /// Has every scope. Empty: disabled.
    pub admin_token: Secret,
    /// Grants all scopes to requests without a key; only effective if `bind` is a loopback address.
    pub admin_on_loopback: bool,
    pub max_body_bytes: usize,
    pub max_batch: usize,
    #[serde(with = "humantime_serde")]
    pub max_wait: Duration,
    /// Maximum queued intents of one submitter. 0: unlimited.
    pub queue_limit: u64,
    /// Requests per second for each key in this process, unless the key has its own limit. 0: unlimited.
    pub rate_limit: f64,
    /// Burst size of the rate limiter.
    pub rate_burst: u32,
    /// Maximum open connections; further ones wait to be accepted.
    pub max_connections: usize,
    /// Maximum connections of one client address that have not sent an authenticated request. Above it, the oldest of
    /// them are closed.
    pub max_connections_per_address: usize,
    /// Maximum open event streams. They do not count as connections.
    pub max_event_streams: usize,
    /// Maximum webhooks of the whole deployment.
    pub max_webhooks: u32,
    /// Maximum size of the request line and all headers together.
    pub max_header_bytes: usize,
    /// From accepting the connection, or from the previous response, to the end of the request's headers; also the idle
    /// timeout. The TLS handshake has the same timeout.
    #[serde(with = "humantime_serde")]
    pub header_timeout: Duration,
    /// From the end of the headers to the end of the body.
    #[serde(with = "humantime_serde")]
    pub body_timeout: Duration,
    /// Write timeout: how long a client may read nothing of its response.
    #[serde(with = "humantime_serde")]
    pub send_timeout: Duration,
    pub json_rpc: JsonRpc,
}

/// The Ethereum JSON-RPC endpoint.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct JsonRpc {
    pub enabled: bool,
    /// How long `eth_sendTransaction` waits for the hash. No nonce is assigned after this time.
    #[serde(with = "humantime_serde")]
    pub wait: Duration,
    /// Accept a key as the last segment of the URL.
    pub key_in_path: bool,
    /// Maximum calls in one request.
    pub max_batch: usize,
    pub nonce: NonceInCall,
    pub fees: FeesInCall,
}

/// What a nonce in `eth_sendTransaction` means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NonceInCall {
    /// The transaction fails, without a nonce, if it would get another one.
    Check,
    Ignore,
}

/// What prices in `eth_sendTransaction` mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FeesInCall {
    /// Libraries fill them in, and they would be an upper limit for replacements.
    Ignore,
    Use,
}

impl Default for JsonRpc {
    fn default() -> Self {
        JsonRpc {
            enabled: false,
            // Libraries give up after 10 s, and some then send again.
            wait: Duration::from_secs(8),
            key_in_path: true,
            max_batch: 100,
            nonce: NonceInCall::Check,
            fees: FeesInCall::Ignore,
        }
    }
}

/// PEM files. Both are reloaded when they change.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ApiTls {
    /// The certificate and its chain.
    pub cert: PathBuf,
    pub key: PathBuf,
}

impl Default for Api {
    fn default() -> Self {
        Api {
            bind: SocketAddr::from(([127, 0, 0, 1], 8080)),
            tls: None,
            admin_token: Secret::default(),
            admin_on_loopback: false,
            // Init code is at most 48 KiB, twice that in hex; the rest is for access lists and batches.
            max_body_bytes: 1 << 20,
            max_batch: 500,
            max_wait: Duration::from_secs(60),
            // Days of work for a submitter with a window of 1. Counting that many rows takes milliseconds.
            queue_limit: 10_000,
            rate_limit: 0.0,
            rate_burst: 100,
            // At most 1 GiB of bodies; within the default limit of open files.
            max_connections: 1_000,
            // A tenth of all; more than probes, scrapers and browsers of one machine need.
            max_connections_per_address: 100,
            max_event_streams: 2_000,
            // Each has its own connections and position in the log.
            max_webhooks: 100,
            // Proxies and browsers need less than half of it.
            max_header_bytes: 16 << 10,
            header_timeout: Duration::from_secs(30),
            body_timeout: Duration::from_secs(30),
            send_timeout: Duration::from_secs(30),
            json_rpc: JsonRpc::default(),
        }
    }
}

impl Api {
    /// An error is the invalid key and the problem.
    pub(super) fn check(&self) -> Result<(), (&'static str, &'static str)> {
        for (key, time) in [
            ("api.header_timeout", self.header_timeout),
            ("api.body_timeout", self.body_timeout),
            ("api.send_timeout", self.send_timeout),
            ("api.json_rpc.wait", self.json_rpc.wait),
        ] {
            if time.is_zero() {
                return Err((key, "must be greater than 0"));
            }
        }
        if self.json_rpc.max_batch == 0 {
            return Err(("api.json_rpc.max_batch", "must be at least 1"));
        }
        if self.max_connections == 0 {
            return Err(("api.max_connections", "must be at least 1"));
        }
        if self.max_connections_per_address == 0 {
            return Err(("api.max_connections_per_address", "must be at least 1"));
        }
        // Room for a traceparent, a key and headers added by proxies.
        if self.max_header_bytes < 1_024 {
            return Err(("api.max_header_bytes", "must be at least 1024"));
        }
        if !self.rate_limit.is_finite() || self.rate_limit < 0.0 {
            return Err(("api.rate_limit", "must be a number of requests per second, or 0"));
        }
        if self.rate_burst == 0 {
            return Err(("api.rate_burst", "must be at least 1"));
        }
        Ok(())
    }
}
