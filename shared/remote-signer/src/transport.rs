//! HTTP transport to remote signers, independent of the protocol.
//!
//! Error messages contain no URL path and no token: both may be secrets.

use std::path::{Path, PathBuf};
use std::time::Duration;

use reqwest::redirect::Policy;
use reqwest::{Client, Identity, Method, RequestBuilder, Url};
use tokio::sync::Semaphore;
use zeroize::Zeroizing;

use gapless_config::endpoint::is_loopback;
use gapless_http_client::{client_builder, read_certificates};

/// Mempools accept at most 128 KiB per transaction, twice that in hex; other responses are smaller.
const MAX_ANSWER_BYTES: usize = 1 << 20;
/// Shorter than the idle timeouts of common proxies, so that a pooled connection is not closed during a request.
pub(super) const POOL_IDLE: Duration = Duration::from_secs(30);

/// Connection settings of a server.
#[derive(Clone, Copy)]
pub(super) struct Route<'a> {
    pub(super) url: &'a str,
    pub(super) timeout: Duration,
    pub(super) max_in_flight: usize,
    pub(super) ca_file: Option<&'a PathBuf>,
    /// Client certificate and its key.
    pub(super) identity: Option<(&'a PathBuf, &'a PathBuf)>,
}

impl<'a> Route<'a> {
    pub(super) fn to(url: &'a str, timeout: Duration) -> Route<'a> {
        Route { url, timeout, max_in_flight: 1, ca_file: None, identity: None }
    }
}

pub(super) struct Transport {
    client: Client,
    url: Url,
    /// Scheme, host and port, for errors and logs.
    shown: String,
    slots: Semaphore,
    timeout: Duration,
}

/// A response with any status.
pub(super) struct Reply {
    pub(super) status: u16,
    pub(super) body: Zeroizing<Vec<u8>>,
}

impl std::fmt::Debug for Transport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.shown)
    }
}

impl Transport {
    pub(super) fn new(route: Route<'_>) -> Result<Transport, String> {
        let url = Url::parse(route.url).map_err(|_| "invalid url".to_owned())?;
        let host = url.host_str().ok_or("the url has no host")?;
        let port = url.port_or_known_default().unwrap_or_default();
        let shown = format!("{}://{host}:{port}", url.scheme());
        let mut builder = client_builder()
            .timeout(route.timeout)
            .connect_timeout(route.timeout)
            .pool_idle_timeout(POOL_IDLE)
            // Send tokens only to the configured server.
            .redirect(Policy::none());
        // Never use a proxy for loopback.
        if is_loopback(host) {
            builder = builder.no_proxy();
        }
        if let Some(path) = route.ca_file {
            builder = builder.tls_certs_only(read_certificates(path)?);
        }
        if let Some((cert, key)) = route.identity {
            let mut pem = read(cert)?;
            pem.push(b'\n');
            pem.extend_from_slice(&read(key)?);
            builder = builder.identity(Identity::from_pem(&pem).map_err(bad(cert))?);
        }
        let client = builder.build().map_err(|error| innermost(&error.without_url()))?;
        let slots = Semaphore::new(route.max_in_flight);
        Ok(Transport { client, url, shown, slots, timeout: route.timeout })
    }

    pub(super) fn shown(&self) -> &str {
        &self.shown
    }

    /// Appends the segments of `path` to the URL.
    pub(super) fn request(&self, method: Method, path: &[&str]) -> RequestBuilder {
        let mut url = self.url.clone();
        if let (false, Ok(mut segments)) = (path.is_empty(), url.path_segments_mut()) {
            segments.pop_if_empty().extend(path);
        }
        self.client.request(method, url)
    }

    pub(super) async fn send(&self, request: RequestBuilder) -> Result<Reply, String> {
        // Unwrap safety: the semaphore is never closed.
        let _slot = self.slots.acquire().await.expect("an open semaphore");
        let mut response = request.send().await.map_err(|error| self.failed(error))?;
        let status = response.status().as_u16();
        let mut body = Zeroizing::new(Vec::new());
        while let Some(chunk) = response.chunk().await.map_err(|error| self.failed(error))? {
            if body.len() + chunk.len() > MAX_ANSWER_BYTES {
                return Err(format!("the response has more than {MAX_ANSWER_BYTES} bytes"));
            }
            body.extend_from_slice(&chunk);
        }
        Ok(Reply { status, body })
    }

    fn failed(&self, error: reqwest::Error) -> String {
        if error.is_timeout() {
            return format!("no response within {:?}", self.timeout);
        }
        innermost(&error.without_url())
    }
}

fn read(path: &Path) -> Result<Zeroizing<Vec<u8>>, String> {
    std::fs::read(path).map(Zeroizing::new).map_err(|error| format!("{}: {error}", path.display()))
}

fn bad(path: &Path) -> impl Fn(reqwest::Error) -> String {
    let path = path.display().to_string();
    move |error| format!("{path}: {}", innermost(&error))
}

/// The innermost error; the outer one is only "error sending request".
fn innermost(error: &reqwest::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}
