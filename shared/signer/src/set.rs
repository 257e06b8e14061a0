//! All keys this process can sign with: local keys, read once at startup, and keys of remote signers.
//!
//! A key that cannot be read is reported and skipped. Keys of remote signers are added by `gapless-remote-signer`, also
//! later.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use sha2::{Digest, Sha256};

use super::Signer;
use gapless_config as config;
use gapless_domain::Address;

/// A key that could not be loaded, or an unreachable remote signer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignerProblem {
    /// A path, the name of an environment variable, or a configuration key.
    pub source: String,
    pub reason: String,
}

#[derive(Debug, Default)]
pub struct SignerSet {
    known: RwLock<Known>,
}

#[derive(Debug, Default)]
struct Known {
    signers: BTreeMap<Address, Arc<dyn Signer>>,
    problems: Vec<SignerProblem>,
}

impl SignerSet {
    /// Loads the configured local keys. Failures are in `problems` and in the log.
    pub async fn load(config: &config::Signer) -> SignerSet {
        let set = SignerSet::default();
        if let Some(dir) = &config.keystore {
            set.load_keystore(dir, config).await;
        }
        for name in &config.raw_key_env {
            set.load_raw_key(name);
        }
        set
    }

    fn known(&self) -> RwLockReadGuard<'_, Known> {
        self.known.read()
    }

    fn change(&self) -> RwLockWriteGuard<'_, Known> {
        self.known.write()
    }

    pub fn get(&self, address: &Address) -> Option<Arc<dyn Signer>> {
        self.known().signers.get(address).cloned()
    }

    /// In ascending order.
    pub fn addresses(&self) -> Vec<Address> {
        self.known().signers.keys().copied().collect()
    }

    pub fn len(&self) -> usize {
        self.known().signers.len()
    }

    pub fn is_empty(&self) -> bool {
        self.known().signers.is_empty()
    }

    /// Current problems; those of a remote signer are removed when it responds.
    pub fn problems(&self) -> Vec<SignerProblem> {
        self.known().problems.clone()
    }

    /// Equal for processes that can sign for the same addresses.
    pub fn fingerprint(&self) -> String {
        let mut digest = Sha256::new();
        for address in self.known().signers.keys() {
            digest.update(address.as_bytes());
        }
        hex::encode(digest.finalize())
    }

    /// Adds a custom signer. False: the address already has a signer.
    pub fn add(&self, signer: Arc<dyn Signer>) -> bool {
        self.add_from("custom signer", signer)
    }

    /// Like `add`. A problem is reported for `source`: a path, the name of an environment variable, or a configuration
    /// key.
    pub fn add_from(&self, source: &str, signer: Arc<dyn Signer>) -> bool {
        let address = signer.address();
        let mut known = self.change();
        if known.signers.contains_key(&address) {
            drop(known);
            self.report(source, format!("{address:#x} already has a signer"));
            return false;
        }
        known.signers.insert(address, signer);
        true
    }

    /// Logs a problem and adds it to the others of its source.
    pub fn report(&self, source: &str, reason: String) {
        tracing::error!(source, reason, "could not load a key; continuing with the others");
        self.change().problems.push(SignerProblem { source: source.to_owned(), reason });
    }

    /// Replaces the first problem of this source, or adds one. Not logged. False: the reason is the same as before.
    pub fn set_problem(&self, source: &str, reason: &str) -> bool {
        let mut known = self.change();
        match known.problems.iter_mut().find(|problem| problem.source == source) {
            Some(problem) if problem.reason == reason => return false,
            Some(problem) => reason.clone_into(&mut problem.reason),
            None => {
                known.problems.push(SignerProblem { source: source.to_owned(), reason: reason.to_owned() });
            }
        }
        true
    }

    /// Removes all problems of this source.
    pub fn clear_problems(&self, source: &str) {
        self.change().problems.retain(|problem| problem.source != source);
    }
}

#[cfg(test)]
#[path = "set_tests.rs"]
mod tests;
