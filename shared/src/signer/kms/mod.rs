//! Keys of cloud key management services, which never leave them: AWS KMS and Google Cloud KMS.
//!
//! Such a service sees a digest and not a transaction. So nothing it says is a word about the transaction: whatever goes
//! wrong, the intent waits. The transaction is put together here, and then checked like that of any other keeper.

mod aws;
mod aws_credentials;
mod curve;
mod google;
mod google_token;
mod sigv4;
mod temporary;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use ethers_core::types::{Bytes, H256, Signature};

pub(super) use self::aws::AwsKms;
pub(super) use self::google::GcpKms;
use super::remote_signer::{NoAnswer, RemoteSigner, cut};
use super::signature::v;
use crate::domain::{Address, UnsignedTx};

/// Of the environment. Empty is as good as absent.
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// What is asked of a service.
#[async_trait]
pub(super) trait Cloud: Send + Sync + std::fmt::Debug {
    fn kind(&self) -> &'static str;
    fn shown(&self) -> &str;
    /// Of one question, whatever it takes to ask it.
    fn timeout(&self) -> Duration;
    /// In DER, as in RFC 5280.
    async fn public_key(&self, key: &str) -> Result<Vec<u8>, Failure>;
    /// A signature in DER, as in RFC 3279.
    async fn sign(&self, key: &str, digest: H256) -> Result<Vec<u8>, Failure>;
}

/// Why a service gave nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    /// In our words: clients read them.
    reason: String,
    /// In the service's, which name accounts and keys: for the log alone.
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
    /// The word a service has for it, what that means, and the sentence the service added.
    fn named(word: &str, meaning: Option<&str>, said: Option<&str>) -> Failure {
        let word = cut(word);
        let reason = match meaning {
            Some(meaning) => format!("{word}: {meaning}"),
            None => word,
        };
        Failure { reason, said: said.map(cut) }
    }
}

/// One key of a service.
#[derive(Debug)]
pub(super) struct CloudKey {
    cloud: Arc<dyn Cloud>,
    id: String,
    /// What was last complained about. A worker asks every second; the log says it once.
    trouble: Mutex<Option<String>>,
}

impl CloudKey {
    pub(super) fn new(cloud: Arc<dyn Cloud>, id: &str) -> CloudKey {
        CloudKey { cloud, id: id.to_owned(), trouble: Mutex::default() }
    }

    /// Waiting for a turn and for credentials included, so that one hanging server holds nobody for longer.
    async fn in_time<T>(&self, asking: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
        let limit = self.cloud.timeout();
        match tokio::time::timeout(limit, asking).await {
            Ok(result) => result,
            Err(_) => Err(format!("no answer within {limit:?}").into()),
        }
    }

    /// Whether this is news.
    fn is_news(&self, trouble: Option<&str>) -> bool {
        let mut last = self.trouble.lock().unwrap_or_else(PoisonError::into_inner);
        let news = last.as_deref() != trouble;
        *last = trouble.map(str::to_owned);
        news
    }

    fn complain(&self, failure: &Failure) {
        if self.is_news(Some(&failure.reason)) {
            tracing::warn!(
                signer = self.cloud.kind(),
                endpoint = self.cloud.shown(),
                key = self.id,
                reason = failure.reason,
                said = failure.said,
                "a cloud key cannot be used now; no nonce is used"
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
        let found = self.in_time(self.cloud.public_key(&self.id)).await;
        match found.and_then(|der| curve::address(&der).map_err(Failure::from)) {
            Ok(address) => Ok(vec![address]),
            Err(failure) => {
                self.complain(&failure);
                Err(failure.reason)
            }
        }
    }

    async fn raw(&self, tx: &UnsignedTx) -> Result<Bytes, NoAnswer> {
        let typed = tx.typed();
        let digest = typed.sighash();
        let signed = match self.in_time(self.cloud.sign(&self.id, digest)).await {
            Ok(signed) => signed,
            Err(failure) => {
                self.complain(&failure);
                return Err(NoAnswer::Unavailable(failure.reason));
            }
        };
        let Some(found) = curve::signature_of(tx.from, digest, &signed) else {
            let reason = "the signature is not one of the submitter's key";
            if self.is_news(Some(reason)) {
                tracing::error!(
                    chain.id = tx.chain_id.0,
                    submitter = format!("{:#x}", tx.from),
                    signer = self.cloud.kind(),
                    endpoint = self.cloud.shown(),
                    key = self.id,
                    "a key management service signed with another key; refused, no nonce is used"
                );
            }
            return Err(NoAnswer::External(reason.into()));
        };
        self.is_news(None);
        // Sums of a chain id that no signature could hold are refused by the check that follows.
        let v = v(&typed, tx.chain_id, found.is_y_odd);
        Ok(typed.rlp_signed(&Signature { r: found.r, s: found.s, v }))
    }
}

#[cfg(test)]
mod tests;
