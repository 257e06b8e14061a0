//! Signers that are other processes, asked over HTTP: JSON-RPC (`eth_signTransaction`, Clef) or a signing service.
//!
//! A remote signer is not trusted: what it returns is compared with what was asked, field by field. Asking happens
//! before anything is committed, so that a slow, absent or lying signer costs time and no nonce.

mod transport;
mod wire;

#[cfg(test)]
pub(super) mod testing;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use async_trait::async_trait;
use ethers_core::types::Bytes;
use reqwest::Method;
use serde_json::json;

use self::transport::Transport;
use self::wire::NoAnswer;
use super::check::checked;
use super::{Signer, SignerError};
use crate::config;
use crate::domain::{Address, SignedDraft, UnsignedTx};
use crate::observe::metrics as m;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protocol {
    JsonRpc,
    Clef,
    Service,
}

impl Protocol {
    /// As in the configuration, in metrics and in the table of submitters.
    pub(super) fn word(self) -> &'static str {
        match self {
            Protocol::JsonRpc => "json_rpc",
            Protocol::Clef => "clef",
            Protocol::Service => "http",
        }
    }
}

/// One process that signs, for one address or many.
#[derive(Debug)]
pub(super) struct Remote {
    protocol: Protocol,
    transport: Transport,
    calls: AtomicU64,
}

impl Remote {
    pub(super) fn new(protocol: Protocol, config: &config::RemoteSigner) -> Result<Remote, String> {
        Ok(Remote { protocol, transport: Transport::new(config)?, calls: AtomicU64::new(1) })
    }

    /// Where it is, as far as logs may show it.
    pub(super) fn shown(&self) -> &str {
        self.transport.shown()
    }

    /// What it says it signs for.
    pub(super) async fn addresses(&self) -> Result<Vec<Address>, String> {
        let listed = match self.protocol {
            Protocol::JsonRpc => self.call("eth_accounts", json!([])).await,
            Protocol::Clef => self.call("account_list", json!([])).await,
            Protocol::Service => match self.transport.send(Method::GET, Some("addresses"), None).await {
                Ok(reply) => wire::service_result(&reply).map(|mut body| body["addresses"].take()),
                Err(reason) => Err(NoAnswer::Unavailable(reason)),
            },
        };
        match listed {
            Ok(list) => wire::addresses(list),
            Err(NoAnswer::Refused(reason) | NoAnswer::Unavailable(reason)) => Err(reason),
        }
    }

    async fn raw(&self, tx: &UnsignedTx) -> Result<Bytes, NoAnswer> {
        let asked = wire::transaction(tx);
        let result = match self.protocol {
            Protocol::JsonRpc => self.call("eth_signTransaction", json!([asked])).await?,
            Protocol::Clef => self.call("account_signTransaction", json!([asked])).await?,
            Protocol::Service => {
                let sent = self.transport.send(Method::POST, Some("sign"), Some(&asked)).await;
                wire::service_result(&sent.map_err(NoAnswer::Unavailable)?)?
            }
        };
        wire::raw_bytes(result)
    }

    async fn call(&self, method: &str, params: serde_json::Value) -> Result<serde_json::Value, NoAnswer> {
        let id = self.calls.fetch_add(1, Relaxed);
        let call = wire::call(id, method, params);
        let reply = self.transport.send(Method::POST, None, Some(&call)).await;
        wire::rpc_result(&reply.map_err(NoAnswer::Unavailable)?, id)
    }
}

/// One address of a remote signer.
#[derive(Debug)]
pub(super) struct RemoteSigner {
    pub(super) address: Address,
    pub(super) remote: Arc<Remote>,
}

impl RemoteSigner {
    async fn ask(&self, tx: &UnsignedTx) -> (&'static str, Result<SignedDraft, SignerError>) {
        let address = self.address;
        let refused = |reason: String| SignerError::Refused { address, reason };
        if tx.from != address {
            return ("refused", Err(refused(format!("the transaction is from {:#x}", tx.from))));
        }
        let raw = match self.remote.raw(tx).await {
            Ok(raw) => raw,
            Err(NoAnswer::Refused(reason)) => return ("refused", Err(refused(reason))),
            Err(NoAnswer::Unavailable(reason)) => {
                return ("unavailable", Err(SignerError::Unavailable { address, reason }));
            }
        };
        match checked(tx, raw) {
            Ok(draft) => ("signed", Ok(draft)),
            Err(difference) => {
                tracing::error!(
                    chain.id = tx.chain_id.0,
                    submitter = format!("{address:#x}"),
                    nonce = tx.nonce.0,
                    signer = self.kind(),
                    endpoint = self.remote.shown(),
                    field = difference.0,
                    "a signer returned another transaction than it was asked for; refused, no nonce is used"
                );
                ("different", Err(refused(difference.to_string())))
            }
        }
    }
}

#[async_trait]
impl Signer for RemoteSigner {
    fn address(&self) -> Address {
        self.address
    }

    fn kind(&self) -> &'static str {
        self.remote.protocol.word()
    }

    async fn sign(&self, tx: &UnsignedTx) -> Result<SignedDraft, SignerError> {
        let begun = Instant::now();
        let (outcome, result) = self.ask(tx).await;
        metrics::histogram!(m::SIGNER_REQUEST_SECONDS, "signer" => self.kind()).record(begun.elapsed());
        metrics::counter!(m::SIGNER_REQUESTS_TOTAL, "signer" => self.kind(), "result" => outcome)
            .increment(1);
        result
    }
}

#[cfg(test)]
mod tests;
