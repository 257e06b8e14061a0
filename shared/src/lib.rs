//! Gapless, the library that all binaries share: domain types, database access, chain access, signers, configuration.
//!
//! `domain` has plain data and functions; `store` has all SQL statements; `chain` has all RPC calls; `config` reads
//! the configuration file; `embed` is the API for programs that link this crate. The main loops are in the binaries.

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
