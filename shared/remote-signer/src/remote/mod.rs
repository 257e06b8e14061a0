//! Remote signers over HTTP: JSON-RPC (`eth_signTransaction`, Clef) or a signing service.

mod wire;

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use async_trait::async_trait;
use ethers_core::types::Bytes;
use reqwest::Method;
use serde_json::{Value, json};
use zeroize::Zeroizing;

use super::remote_signer::{RemoteSigner, SignFailure};
use super::transport::{Reply, Route, Transport};
use gapless_config::{self as config, Secret};
use gapless_domain::{Address, UnsignedTx};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protocol {
    JsonRpc,
    Clef,
    Service,
}

impl Protocol {
    pub(super) fn name(self) -> &'static str {
        match self {
            Protocol::JsonRpc => "json_rpc",
            Protocol::Clef => "clef",
            Protocol::Service => "http",
        }
    }
}

/// A remote signer, for one or more addresses.
#[derive(Debug)]
pub(super) struct Remote {
    protocol: Protocol,
    transport: Transport,
    token: Token,
    calls: AtomicU64,
}

#[derive(Debug)]
enum Token {
    None,
    Fixed(Secret),
    File(PathBuf),
}

impl Remote {
    pub(super) fn new(protocol: Protocol, config: &config::RemoteSigner) -> Result<Remote, String> {
        let transport = Transport::new(Route {
            max_in_flight: config.max_in_flight,
            ca_file: config.ca_file.as_ref(),
            identity: config.client_cert_file.as_ref().zip(config.client_key_file.as_ref()),
            ..Route::to(config.url.expose(), config.timeout)
        })?;
        let token = match (&config.token_file, &config.token_env) {
            (Some(path), _) => Token::File(path.clone()),
            // The message omits the variable's name: it may be the token itself, entered by mistake.
            (None, Some(name)) => Token::Fixed(Secret::new(
                std::env::var(name).map_err(|_| "the environment variable of token_env is not set")?,
            )),
            (None, None) => Token::None,
        };
        Ok(Remote { protocol, transport, token, calls: AtomicU64::new(1) })
    }

    async fn send(&self, method: Method, path: &[&str], body: Option<&Value>) -> Result<Reply, SignFailure> {
        let mut request = self.transport.request(method, path);
        if let Some(token) = self.token().await.map_err(SignFailure::Unavailable)? {
            request = request.bearer_auth(token.expose());
        }
        if let Some(body) = body {
            request = request.json(body);
        }
        self.transport.send(request).await.map_err(SignFailure::Unavailable)
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

    async fn call(&self, method: &str, params: Value) -> Result<Value, SignFailure> {
        let id = self.calls.fetch_add(1, Relaxed);
        let call = wire::call(id, method, params);
        wire::rpc_result(&self.send(Method::POST, &[], Some(&call)).await?, id)
    }
}

#[async_trait]
impl RemoteSigner for Remote {
    fn kind(&self) -> &'static str {
        self.protocol.name()
    }

    fn shown(&self) -> &str {
        self.transport.shown()
    }

    async fn addresses(&self) -> Result<Vec<Address>, String> {
        let listed = match self.protocol {
            Protocol::JsonRpc => self.call("eth_accounts", json!([])).await,
            Protocol::Clef => self.call("account_list", json!([])).await,
            Protocol::Service => match self.send(Method::GET, &["addresses"], None).await {
                Ok(reply) => wire::service_result(&reply).map(|mut body| body["addresses"].take()),
                Err(error) => Err(error),
            },
        };
        wire::addresses(listed.map_err(SignFailure::into_reason)?)
    }

    async fn raw(&self, tx: &UnsignedTx) -> Result<Bytes, SignFailure> {
        let request = wire::transaction(tx);
        let result = match self.protocol {
            Protocol::JsonRpc => self.call("eth_signTransaction", json!([request])).await?,
            Protocol::Clef => self.call("account_signTransaction", json!([request])).await?,
            Protocol::Service => {
                wire::service_result(&self.send(Method::POST, &["sign"], Some(&request)).await?)?
            }
        };
        wire::raw_bytes(result)
    }
}

#[cfg(test)]
mod tests;
