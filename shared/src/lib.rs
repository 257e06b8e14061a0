//! Gapless, the part both binaries share: what a transaction is, where it is stored, how a chain is asked.
//!
//! `domain` is plain data and functions; `store` holds every SQL statement; `chain` holds every RPC call;
//! `config` reads the one file. Nothing here runs a loop: loops live in the binaries.

pub mod chain;
pub mod config;
#[cfg(feature = "contract")]
pub mod contract;
pub mod domain;
pub mod embed;
pub mod events;
#[cfg(feature = "fuzz")]
pub mod fuzz_entry;
pub mod notifier;
pub mod observe;
pub mod secret_file;
pub mod shutdown;
pub mod signer;
pub mod store;
