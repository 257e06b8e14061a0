//! One HTTP request to one signer. Moves bytes; does not know what they mean.
//!
//! No text of it holds a URL or a token: both may be secrets.

use std::path::{Path, PathBuf};
use std::time::Duration;

use reqwest::redirect::Policy;
use reqwest::{Certificate, Client, Identity, Method, Url};
use serde_json::Value;
use tokio::sync::Semaphore;
use zeroize::Zeroizing;

use crate::config::{self, Secret};

/// A signed transaction that pools would take is 128 KiB, twice that in hex; lists of addresses are smaller.
const MAX_ANSWER_BYTES: usize = 1 << 20;
/// Shorter than the idle limits of the usual proxies, so that a connection is not closed under a request.
const POOL_IDLE: Duration = Duration::from_secs(30);

pub(super) struct Transport {
    client: Client,
    url: Url,
    /// Scheme, host and port: all that errors and logs may show.
    shown: String,
    token: Token,
    slots: Semaphore,
    timeout: Duration,
}

enum Token {
    None,
    Fixed(Secret),
    File(PathBuf),
}

/// What came back, whatever its status.
pub(super) struct Reply {
    pub(super) status: u16,
    pub(super) body: Vec<u8>,
}

impl std::fmt::Debug for Transport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.shown)
    }
}

impl Transport {
    pub(super) fn new(config: &config::RemoteSigner) -> Result<Transport, String> {
        let url = Url::parse(config.url.expose()).map_err(|_| "its url cannot be read".to_owned())?;
        let host = url.host_str().ok_or("its url names no host")?;
        let port = url.port_or_known_default().unwrap_or_default();
        let shown = format!("{}://{host}:{port}", url.scheme());
        let token = match (&config.token_file, &config.token_env) {
            (Some(path), _) => Token::File(path.clone()),
            (None, Some(name)) => Token::Fixed(Secret::new(
                std::env::var(name).map_err(|_| format!("the environment variable {name} is not set"))?,
            )),
            (None, None) => Token::None,
        };
        let mut builder = Client::builder()
            .timeout(config.timeout)
            .connect_timeout(config.timeout)
            .pool_idle_timeout(POOL_IDLE)
            // The token goes to the configured signer or nowhere.
            .redirect(Policy::none());
        if is_loopback(host) {
            builder = builder.no_proxy();
        }
        if let Some(path) = &config.ca_file {
            let authorities = Certificate::from_pem_bundle(&read(path)?).map_err(bad(path))?;
            if authorities.is_empty() {
                return Err(format!("{}: holds no certificate", path.display()));
            }
            builder = builder.tls_certs_only(authorities);
        }
        if let (Some(cert), Some(key)) = (&config.client_cert_file, &config.client_key_file) {
            let mut pem = read(cert)?;
            pem.push(b'\n');
            pem.extend_from_slice(&read(key)?);
            builder = builder.identity(Identity::from_pem(&pem).map_err(bad(cert))?);
        }
        let client = builder.build().map_err(|error| innermost(&error.without_url()))?;
        let slots = Semaphore::new(config.max_in_flight);
        Ok(Transport { client, url, shown, token, slots, timeout: config.timeout })
    }

    pub(super) fn shown(&self) -> &str {
        &self.shown
    }

    /// `path` is added to that of the URL.
    pub(super) async fn send(
        &self,
        method: Method,
        path: Option<&str>,
        body: Option<&Value>,
    ) -> Result<Reply, String> {
        let mut url = self.url.clone();
        if let (Some(path), Ok(mut segments)) = (path, url.path_segments_mut()) {
            segments.pop_if_empty().push(path);
        }
        let mut request = self.client.request(method, url);
        if let Some(token) = self.token().await? {
            request = request.bearer_auth(token.expose());
        }
        if let Some(body) = body {
            request = request.json(body);
        }
        // Unwrap safety: the semaphore is never closed.
        let _slot = self.slots.acquire().await.expect("an open semaphore");
        let mut response = request.send().await.map_err(|error| self.failed(error))?;
        let status = response.status().as_u16();
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(|error| self.failed(error))? {
            if body.len() + chunk.len() > MAX_ANSWER_BYTES {
                return Err(format!("its answer has more than {MAX_ANSWER_BYTES} bytes"));
            }
            body.extend_from_slice(&chunk);
        }
        Ok(Reply { status, body })
    }

    async fn token(&self) -> Result<Option<Secret>, String> {
        match &self.token {
            Token::None => Ok(None),
            Token::Fixed(token) => Ok(Some(token.clone())),
            Token::File(path) => {
                let text = tokio::fs::read_to_string(path).await.map(Zeroizing::new);
                let text = text.map_err(|error| format!("{}: {error}", path.display()))?;
                Ok(Some(Secret::new(text.trim())))
            }
        }
    }

    fn failed(&self, error: reqwest::Error) -> String {
        if error.is_timeout() {
            return format!("no answer within {:?}", self.timeout);
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

/// A proxy from the environment is for the outside, never for a signer on this machine.
fn is_loopback(host: &str) -> bool {
    let host = host.trim_matches(['[', ']']);
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// The outer text is only "error sending request"; the innermost says what happened.
fn innermost(error: &reqwest::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}
