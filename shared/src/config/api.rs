//! The section of the API: where it listens, who may come in, and how much of everything it takes.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;

use super::secret::Secret;

#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Api {
    pub bind: SocketAddr,
    /// Absent: HTTP in the clear, for this machine or for something in front that speaks TLS.
    pub tls: Option<ApiTls>,
    /// May do everything, like a key with every scope. Empty: there is none.
    pub admin_token: Secret,
    /// Lets anyone on this machine do everything without a key; only honoured on a loopback address.
    pub admin_on_loopback: bool,
    pub max_body_bytes: usize,
    pub max_batch: usize,
    #[serde(with = "humantime_serde")]
    pub max_wait: Duration,
    /// Intents of one submitter that may wait for a nonce. 0: any number.
    pub queue_limit: u64,
    /// Requests per second of one key at this process, unless the key has a limit of its own. 0: any number.
    pub rate_limit: f64,
    /// Requests of one key at once.
    pub rate_burst: u32,
    /// Connections at once; who comes later waits to be accepted.
    pub max_connections: usize,
    /// The request line and all headers together.
    pub max_header_bytes: usize,
    /// From the first moment, or the answer before, until a request's headers are there. So long may a connection be idle. A
    /// TLS handshake has as long before it.
    #[serde(with = "humantime_serde")]
    pub header_timeout: Duration,
    /// From its headers until a request's body is there.
    #[serde(with = "humantime_serde")]
    pub body_timeout: Duration,
    /// How long a client may take nothing of its answer.
    #[serde(with = "humantime_serde")]
    pub send_timeout: Duration,
}

/// PEM files. Both are read again when they change.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ApiTls {
    /// The certificate, and those that lead from it to an authority.
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
            // Init code may be 48 KiB, twice that in hex; the rest is room for access lists and batches.
            max_body_bytes: 1 << 20,
            max_batch: 500,
            max_wait: Duration::from_secs(60),
            // A submitter with a window of 1 works on that for days. Counting so many rows takes milliseconds.
            queue_limit: 10_000,
            rate_limit: 0.0,
            rate_burst: 100,
            // With bodies of the largest size, a gibibyte. Fits what systems let a process open by default.
            max_connections: 1_000,
            // Proxies and browsers stay below half of it.
            max_header_bytes: 16 << 10,
            header_timeout: Duration::from_secs(30),
            body_timeout: Duration::from_secs(30),
            send_timeout: Duration::from_secs(30),
        }
    }
}

impl Api {
    /// The key that makes no sense, and why.
    pub(super) fn check(&self) -> Result<(), (&'static str, &'static str)> {
        for (key, time) in [
            ("api.header_timeout", self.header_timeout),
            ("api.body_timeout", self.body_timeout),
            ("api.send_timeout", self.send_timeout),
        ] {
            if time.is_zero() {
                return Err((key, "must be longer than nothing"));
            }
        }
        if self.max_connections == 0 {
            return Err(("api.max_connections", "must be at least 1"));
        }
        // A traceparent, a key and what proxies add must fit.
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
