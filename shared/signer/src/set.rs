//! All keys this process can sign with: local keys, read once at startup, and keys of remote signers.
//!
//! A key that cannot be read is reported and skipped. Configured addresses of remote signers are present from the
//! start, even if the signer is unreachable. Other addresses of remote signers are added when the signer responds
//! (`discover`).

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use sha2::{Digest, Sha256};

use super::Signer;
use super::discover::Source;
use super::kms::{AwsKms, Cloud, CloudKey, GcpKms};
use super::remote::{Protocol, Remote};
use super::remote_signer::RemoteSigner;
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
    pub(super) sources: Vec<Source>,
}

#[derive(Debug, Default)]
pub(super) struct Known {
    signers: BTreeMap<Address, Arc<dyn Signer>>,
    pub(super) problems: Vec<SignerProblem>,
}

impl SignerSet {
    /// Loads the configured keys without network access. Failures are in `problems` and in the log.
    pub async fn load(config: &config::Signer) -> SignerSet {
        let mut set = SignerSet::default();
        if let Some(dir) = &config.keystore {
            set.load_keystore(dir, config).await;
        }
        for name in &config.raw_key_env {
            set.load_raw_key(name);
        }
        for (protocol, remotes) in [
            (Protocol::JsonRpc, &config.json_rpc),
            (Protocol::Clef, &config.clef),
            (Protocol::Service, &config.http),
        ] {
            for (index, remote) in remotes.iter().enumerate() {
                let name = format!("signer.{}.{index}", protocol.name());
                match Remote::new(protocol, remote) {
                    Ok(remote_signer) => {
                        set.add_source(name, Arc::new(remote_signer), remote.addresses.clone())
                    }
                    Err(reason) => set.report(&name, reason),
                }
            }
        }
        for (index, aws) in config.aws_kms.iter().enumerate() {
            set.add_cloud(format!("signer.aws_kms.{index}"), AwsKms::new(aws), &aws.keys);
        }
        for (index, gcp) in config.gcp_kms.iter().enumerate() {
            set.add_cloud(format!("signer.gcp_kms.{index}"), GcpKms::new(gcp), &gcp.keys);
        }
        set
    }

    /// Each key is a separate source, so that a failing key does not affect the others.
    fn add_cloud(
        &mut self,
        name: String,
        cloud: Result<impl Cloud + 'static, String>,
        keys: &[config::CloudKey],
    ) {
        let cloud: Arc<dyn Cloud> = match cloud {
            Ok(cloud) => Arc::new(cloud),
            Err(reason) => return self.report(&name, reason),
        };
        for (index, key) in keys.iter().enumerate() {
            let remote_signer = CloudKey::new(Arc::clone(&cloud), &key.id);
            self.add_source(
                format!("{name}.keys.{index}"),
                Arc::new(remote_signer),
                Vec::from_iter(key.address),
            );
        }
    }

    fn add_source(&mut self, name: String, remote_signer: Arc<dyn RemoteSigner>, listed: Vec<Address>) {
        let source = Source { name, remote_signer, listed };
        for address in &source.listed {
            self.insert_remote(&source, *address);
        }
        self.sources.push(source);
    }

    fn known(&self) -> RwLockReadGuard<'_, Known> {
        self.known.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn change(&self) -> RwLockWriteGuard<'_, Known> {
        self.known.write().unwrap_or_else(PoisonError::into_inner)
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

    /// Whether `discover` may still find addresses.
    pub fn may_grow(&self) -> bool {
        self.sources.iter().any(|source| source.listed.is_empty())
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
        self.insert_shared("custom signer", signer)
    }

    /// False: the address already has a signer.
    pub(super) fn insert(&self, source: &str, signer: impl Signer + 'static) -> bool {
        self.insert_shared(source, Arc::new(signer))
    }

    fn insert_shared(&self, source: &str, signer: Arc<dyn Signer>) -> bool {
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

    pub(super) fn report(&self, source: &str, reason: String) {
        tracing::error!(source, reason, "could not load a key; continuing with the others");
        self.change().problems.push(SignerProblem { source: source.to_owned(), reason });
    }
}

#[cfg(test)]
#[path = "set_tests.rs"]
mod tests;
