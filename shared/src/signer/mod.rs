//! Keys, and the one thing done with them: turning an unsigned transaction into signed bytes.
//!
//! A signer does not know nonces, queues or nodes, and never sends what it signed. Keys are read once at start, are
//! never written to a log, and leave the process only as signatures. Keys that live elsewhere never come here.

mod check;
mod discover;
pub mod keystore;
mod kms;
mod local;
mod own_keys;
mod policy_signer;
mod read;
mod remote;
mod remote_signer;
mod set;
mod signature;
mod transport;

#[cfg(test)]
mod testing;

use async_trait::async_trait;

pub use local::LocalSigner;
pub use policy_signer::PolicySigner;
pub use read::{ReadSigned, read_signed};
pub use set::{SignerProblem, SignerSet};
pub use signature::is_signature_of;

use crate::domain::{Address, SignedDraft, UnsignedTx};

/// Signs for one address.
#[async_trait]
pub trait Signer: Send + Sync + std::fmt::Debug {
    fn address(&self) -> Address;
    /// Where the key lives, in one word: `keystore`, `raw_key`, `json_rpc`, `clef`, `http`, `aws_kms` or
    /// `gcp_kms`.
    fn kind(&self) -> &'static str;
    async fn sign(&self, tx: &UnsignedTx) -> Result<SignedDraft, SignerError>;
}

/// Why there is no signature. The variant is the decision.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SignerError {
    /// Try later: the signer is away. No nonce is used up by waiting.
    #[error("the signer of {address:#x} is unavailable: {reason}")]
    Unavailable { address: Address, reason: String },
    /// Never: this transaction will not be signed, however often it is asked.
    #[error("the signer of {address:#x} refuses: {reason}")]
    Refused { address: Address, reason: String },
}
