//! Keys of cloud key management services: AWS KMS and Google Cloud KMS.
//!
//! Such a service signs a digest and cannot refuse a transaction, so every failure is temporary and the intent waits.
//! The transaction is assembled here and then checked like that of any remote signer.

#[cfg(feature = "aws-kms")]
mod aws;
mod curve;
#[cfg(feature = "gcp-kms")]
mod google;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use ethers_core::types::{Bytes, H256, Signature};
use parking_lot::Mutex;

#[cfg(feature = "aws-kms")]
pub(super) use self::aws::AwsKms;
#[cfg(feature = "gcp-kms")]
pub(super) use self::google::GcpKms;
use super::remote_signer::{RemoteSigner, SignFailure, sanitize};
use gapless_domain::signature::v;
use gapless_domain::{Address, UnsignedTx};

/// Operations of a key management service.
#[async_trait]
pub(super) trait Cloud: Send + Sync + std::fmt::Debug {
    fn kind(&self) -> &'static str;
    fn shown(&self) -> &str;
    /// Timeout of one operation, including credentials.
    fn timeout(&self) -> Duration;
    /// SubjectPublicKeyInfo in DER (RFC 5280).
    async fn public_key(&self, key: &str) -> Result<Vec<u8>, Failure>;
    /// Signature in DER (RFC 3279).
    async fn sign(&self, key: &str, digest: H256) -> Result<Vec<u8>, Failure>;
}

/// A failed operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    /// Our message, visible to clients.
    reason: String,
    /// The service's message, which may name accounts and keys; only logged.
    said: Option<String>,
}

impl From<String> for Failure {
    fn from(reason: String) -> Self {
        Failure { reason, said: None }
    }
}

impl From<&str> for Failure {
    fn from(reason: &str) -> Self {
        Failure::from(reason.to_owned())
    }
}

impl Failure {
    /// The service's error code, its meaning, and the service's message.
    fn named(code: &str, meaning: Option<&str>, said: Option<&str>) -> Failure {
        let code = sanitize(code);
        let reason = match meaning {
            Some(meaning) => format!("{code}: {meaning}"),
            None => code,
        };
        Failure { reason, said: said.map(sanitize) }
    }
}

/// One key of a service.
#[derive(Debug)]
pub(super) struct CloudKey {
    cloud: Arc<dyn Cloud>,
    id: String,
    /// The last logged reason. A worker retries every second, but each reason is logged once.
    last_reason: Mutex<Option<String>>,
}

impl CloudKey {
    pub(super) fn new(cloud: Arc<dyn Cloud>, id: &str) -> CloudKey {
        CloudKey { cloud, id: id.to_owned(), last_reason: Mutex::default() }
    }

    /// Applies the timeout, which includes waiting for a slot and for credentials.
    async fn with_timeout<T>(&self, work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
        let limit = self.cloud.timeout();
        match tokio::time::timeout(limit, work).await {
            Ok(result) => result,
            Err(_) => Err(format!("no response within {limit:?}").into()),
        }
    }

    /// Records the reason; returns whether it changed.
    fn is_new(&self, reason: Option<&str>) -> bool {
        let mut last = self.last_reason.lock();
        let is_new = last.as_deref() != reason;
        *last = reason.map(str::to_owned);
        is_new
    }

    fn log_failure(&self, failure: &Failure) {
        if self.is_new(Some(&failure.reason)) {
            tracing::warn!(
                signer = self.cloud.kind(),
                endpoint = self.cloud.shown(),
                key = self.id,
                reason = failure.reason,
                said = failure.said,
                "cloud key unavailable; no nonce is used"
            );
        }
    }
}

#[async_trait]
impl RemoteSigner for CloudKey {
    fn kind(&self) -> &'static str {
        self.cloud.kind()
    }

    fn shown(&self) -> &str {
        self.cloud.shown()
    }

    async fn addresses(&self) -> Result<Vec<Address>, String> {
        let found = self.with_timeout(self.cloud.public_key(&self.id)).await;
        match found.and_then(|der| curve::address(&der).map_err(Failure::from)) {
            Ok(address) => Ok(vec![address]),
            Err(failure) => {
                self.log_failure(&failure);
                Err(failure.reason)
            }
        }
    }

    async fn raw(&self, tx: &UnsignedTx) -> Result<Bytes, SignFailure> {
        let typed = tx.typed();
        let digest = typed.sighash();
        let signed = match self.with_timeout(self.cloud.sign(&self.id, digest)).await {
            Ok(signed) => signed,
            Err(failure) => {
                self.log_failure(&failure);
                return Err(SignFailure::Unavailable(failure.reason));
            }
        };
        let Some(found) = curve::signature_of(tx.from, digest, &signed) else {
            let reason = "the signature is not from the submitter's key";
            if self.is_new(Some(reason)) {
                tracing::error!(
                    chain.id = tx.chain_id.0,
                    submitter = format!("{:#x}", tx.from),
                    signer = self.cloud.kind(),
                    endpoint = self.cloud.shown(),
                    key = self.id,
                    "key management service signed with another key; rejected, no nonce is used"
                );
            }
            return Err(SignFailure::WrongKey(reason.into()));
        };
        self.is_new(None);
        // A chain id that overflows `v` is rejected by the following check.
        let v = v(&typed, tx.chain_id, found.is_y_odd);
        Ok(typed.rlp_signed(&Signature { r: found.r, s: found.s, v }))
    }
}

#[cfg(test)]
mod tests;
