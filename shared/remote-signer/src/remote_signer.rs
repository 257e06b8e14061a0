//! Keys of remote signers: the interface of a remote signer, and the check of its responses.
//!
//! A remote signer is not trusted: its response is compared with the request field by field. Signing happens before
//! anything is committed, so that a slow, unreachable or faulty signer costs time but no nonce.

use std::sync::Arc;
use std::time::Instant;

use async_trait::async_trait;
use ethers_core::types::Bytes;

use gapless_domain::{Address, SignedDraft, UnsignedTx};
use gapless_signer::{Signer, SignerError, check_signed};
use gapless_telemetry::{metrics as m, register_counter};

/// Maximum length of a remote signer's message in characters.
const MAX_MESSAGE: usize = 300;

/// A process or service that holds keys.
#[async_trait]
pub(super) trait RemoteSigner: Send + Sync + std::fmt::Debug {
    /// The name used in the configuration, in metrics and in the table of submitters.
    fn kind(&self) -> &'static str;
    /// The endpoint without secrets, for logs.
    fn shown(&self) -> &str;
    /// The addresses it signs for.
    async fn addresses(&self) -> Result<Vec<Address>, String>;
    /// Signed bytes, unchecked.
    async fn raw(&self, tx: &UnsignedTx) -> Result<Bytes, SignFailure>;
}

/// Why there are no signed bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum SignFailure {
    /// Permanent refusal by the signer.
    Refused(String),
    /// Temporary; retry.
    Unavailable(String),
    /// The signature is invalid or of another key. A signer that only receives digests cannot refuse a transaction, so
    /// retry.
    #[cfg(any(feature = "aws-kms", feature = "gcp-kms"))]
    WrongKey(String),
}

impl SignFailure {
    pub(super) fn into_reason(self) -> String {
        match self {
            SignFailure::Refused(reason) | SignFailure::Unavailable(reason) => reason,
            #[cfg(any(feature = "aws-kms", feature = "gcp-kms"))]
            SignFailure::WrongKey(reason) => reason,
        }
    }
}

/// One address of a remote signer.
#[derive(Debug)]
pub(super) struct RemoteKey {
    pub(super) address: Address,
    pub(super) remote_signer: Arc<dyn RemoteSigner>,
}

impl RemoteKey {
    pub(super) fn new(address: Address, remote_signer: Arc<dyn RemoteSigner>) -> RemoteKey {
        let results = ["signed", "refused", "different", "unavailable"];
        let kind = [remote_signer.kind()];
        register_counter(m::SIGNER_REQUESTS_TOTAL, &[("signer", &kind[..]), ("result", &results[..])]);
        RemoteKey { address, remote_signer }
    }

    /// The metrics label and the result.
    async fn request_signature(&self, tx: &UnsignedTx) -> (&'static str, Result<SignedDraft, SignerError>) {
        let address = self.address;
        let refused = |reason: String| SignerError::Refused { address, reason };
        let unavailable = |reason: String| SignerError::Unavailable { address, reason };
        if tx.from != address {
            return ("refused", Err(refused(format!("the transaction is from {:#x}", tx.from))));
        }
        let raw = match self.remote_signer.raw(tx).await {
            Ok(raw) => raw,
            Err(SignFailure::Refused(reason)) => return ("refused", Err(refused(reason))),
            Err(SignFailure::Unavailable(reason)) => return ("unavailable", Err(unavailable(reason))),
            #[cfg(any(feature = "aws-kms", feature = "gcp-kms"))]
            Err(SignFailure::WrongKey(reason)) => return ("different", Err(unavailable(reason))),
        };
        match check_signed(tx, raw) {
            Ok(draft) => ("signed", Ok(draft)),
            Err(difference) => {
                tracing::error!(
                    chain.id = tx.chain_id.0,
                    submitter = format!("{address:#x}"),
                    nonce = tx.nonce.0,
                    signer = self.kind(),
                    endpoint = self.remote_signer.shown(),
                    field = difference.0,
                    "remote signer returned a different transaction; rejected, no nonce is used"
                );
                ("different", Err(refused(difference.to_string())))
            }
        }
    }
}

#[async_trait]
impl Signer for RemoteKey {
    fn address(&self) -> Address {
        self.address
    }

    fn kind(&self) -> &'static str {
        self.remote_signer.kind()
    }

    async fn sign(&self, tx: &UnsignedTx) -> Result<SignedDraft, SignerError> {
        let begun = Instant::now();
        let (outcome, result) = self.request_signature(tx).await;
        metrics::histogram!(m::SIGNER_REQUEST_SECONDS, "signer" => self.kind()).record(begun.elapsed());
        metrics::counter!(m::SIGNER_REQUESTS_TOTAL, "signer" => self.kind(), "result" => outcome)
            .increment(1);
        result
    }
}

/// A remote signer's message, shortened and without control characters.
pub(super) fn sanitize(text: &str) -> String {
    text.chars().filter(|character| !character.is_control()).take(MAX_MESSAGE).collect()
}
