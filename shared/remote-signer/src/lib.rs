//! Keys in other processes: JSON-RPC signers, Clef, signing services and, with the features `aws-kms` and `gcp-kms`, keys
//! of cloud services.
//!
//! These keys never enter this process.

mod cloud_keys;
mod discover;
#[cfg(any(feature = "aws-kms", feature = "gcp-kms"))]
mod kms;
mod remote;
mod remote_signer;
mod remote_signers;
mod transport;

#[cfg(test)]
mod testing;

pub use discover::SignerAnswer;
pub use remote_signers::RemoteSigners;
