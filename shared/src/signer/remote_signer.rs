//! Keys that others keep: what a keeper must be able to do, and the one way its answers become signed drafts.
//!
//! A keeper is not trusted: what it returns is compared with what was asked, field by field. Asking happens before
//! anything is committed, so that a slow, absent or lying keeper costs time and no nonce.

use std::sync::Arc;
use std::time::Instant;

use async_trait::async_trait;
use ethers_core::types::Bytes;

use super::check::checked;
use super::{Signer, SignerError};
use crate::domain::{Address, SignedDraft, UnsignedTx};
use crate::observe::metrics as m;

/// What a keeper says is kept and shown, within reason.
const MAX_SAID: usize = 300;

/// Somebody else who holds keys: a process, a service.
#[async_trait]
pub(super) trait RemoteSigner: Send + Sync + std::fmt::Debug {
    /// As in the configuration, in metrics and in the table of submitters.
    fn kind(&self) -> &'static str;
    /// Where it is, as far as logs may show it.
    fn shown(&self) -> &str;
    /// What it says it signs for.
    async fn addresses(&self) -> Result<Vec<Address>, String>;
    /// Signed bytes, which nobody has looked at.
    async fn raw(&self, tx: &UnsignedTx) -> Result<Bytes, NoAnswer>;
}

/// Why there are no signed bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NoAnswer {
    /// The keeper has decided: never.
    Refused(String),
    /// Nothing is known about this transaction; ask again.
    Unavailable(String),
    /// Another key signed, or nobody did. From a keeper that only sees digests this is no word about the transaction:
    /// ask again.
    External(String),
}

/// One address of a keeper.
#[derive(Debug)]
pub(super) struct RemoteKey {
    pub(super) address: Address,
    pub(super) remote_signer: Arc<dyn RemoteSigner>,
}

impl RemoteKey {
    /// The result, and the word for it in metrics.
    async fn ask(&self, tx: &UnsignedTx) -> (&'static str, Result<SignedDraft, SignerError>) {
        let address = self.address;
        let refused = |reason: String| SignerError::Refused { address, reason };
        let unavailable = |reason: String| SignerError::Unavailable { address, reason };
        if tx.from != address {
            return ("refused", Err(refused(format!("the transaction is from {:#x}", tx.from))));
        }
        let raw = match self.remote_signer.raw(tx).await {
            Ok(raw) => raw,
            Err(NoAnswer::Refused(reason)) => return ("refused", Err(refused(reason))),
            Err(NoAnswer::Unavailable(reason)) => return ("unavailable", Err(unavailable(reason))),
            Err(NoAnswer::External(reason)) => return ("different", Err(unavailable(reason))),
        };
        match checked(tx, raw) {
            Ok(draft) => ("signed", Ok(draft)),
            Err(difference) => {
                tracing::error!(
                    chain.id = tx.chain_id.0,
                    submitter = format!("{address:#x}"),
                    nonce = tx.nonce.0,
                    signer = self.kind(),
                    endpoint = self.remote_signer.shown(),
                    field = difference.0,
                    "a signer returned another transaction than it was asked for; refused, no nonce is used"
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
        let (outcome, result) = self.ask(tx).await;
        metrics::histogram!(m::SIGNER_REQUEST_SECONDS, "signer" => self.kind()).record(begun.elapsed());
        metrics::counter!(m::SIGNER_REQUESTS_TOTAL, "signer" => self.kind(), "result" => outcome)
            .increment(1);
        result
    }
}

/// A keeper's own words, short and on one line.
pub(super) fn cut(text: &str) -> String {
    text.chars().filter(|character| !character.is_control()).take(MAX_SAID).collect()
}
