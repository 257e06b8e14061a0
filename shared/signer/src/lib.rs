//! Signers: turn an unsigned transaction into signed bytes.
//!
//! A signer does not manage nonces or queues and never sends a transaction. Local keys are read once at startup and
//! never logged. Remote signers are in `gapless-remote-signer`.

mod check;
pub mod keystore;
mod local;
mod own_keys;
mod policy_signer;
mod read;
mod set;

#[cfg(any(test, feature = "testing"))]
pub mod testing;

use async_trait::async_trait;

pub use check::{Difference, check_signed};
pub use local::LocalSigner;
pub use policy_signer::PolicySigner;
pub use read::{ReadSigned, read_signed};
pub use set::{SignerProblem, SignerSet};

use gapless_domain::{Address, SignedDraft, UnsignedTx};

/// Signs for one address.
#[async_trait]
pub trait Signer: Send + Sync + std::fmt::Debug {
    fn address(&self) -> Address;
    /// The kind of key store: `keystore`, `raw_key`, `json_rpc`, `clef`, `http`, `aws_kms` or `gcp_kms`.
    fn kind(&self) -> &'static str;
    async fn sign(&self, tx: &UnsignedTx) -> Result<SignedDraft, SignerError>;
}

/// Why there is no signature. The variant decides whether the caller retries.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SignerError {
    /// Temporary: retry later. No nonce is consumed meanwhile.
    #[error("the signer of {address:#x} is unavailable: {reason}")]
    Unavailable { address: Address, reason: String },
    /// Permanent: the signer will never sign this transaction.
    #[error("the signer of {address:#x} refuses: {reason}")]
    Refused { address: Address, reason: String },
}
