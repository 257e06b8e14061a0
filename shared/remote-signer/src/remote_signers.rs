//! All configured remote signers, and the set of keys that they extend.
//!
//! Configured addresses are in the set from the start, even if the signer is unreachable. Other addresses are added when
//! the signer responds (`discover`).

use std::sync::Arc;

use super::cloud_keys::{self, CloudKeys};
use super::remote::{Protocol, Remote};
use super::remote_signer::{RemoteKey, RemoteSigner};
use gapless_config as config;
use gapless_domain::Address;
use gapless_signer::SignerSet;

/// A configured remote signer.
#[derive(Debug)]
pub(super) struct Source {
    /// Its configuration key.
    pub(super) name: String,
    pub(super) remote_signer: Arc<dyn RemoteSigner>,
    /// Configured addresses. Empty: the signer is queried.
    pub(super) listed: Vec<Address>,
}

#[derive(Debug)]
pub struct RemoteSigners {
    pub(super) signers: Arc<SignerSet>,
    pub(super) sources: Vec<Source>,
}

impl RemoteSigners {
    /// Adds the configured addresses to `signers`, without network access. Failures are in its `problems` and in the log.
    pub fn load(config: &config::Signer, signers: Arc<SignerSet>) -> RemoteSigners {
        let mut loaded = RemoteSigners { signers, sources: Vec::new() };
        for (protocol, remotes) in [
            (Protocol::JsonRpc, &config.json_rpc),
            (Protocol::Clef, &config.clef),
            (Protocol::Service, &config.http),
        ] {
            for (index, remote) in remotes.iter().enumerate() {
                let name = format!("signer.{}.{index}", protocol.name());
                match Remote::new(protocol, remote) {
                    Ok(remote_signer) => {
                        loaded.add_source(name, Arc::new(remote_signer), remote.addresses.clone())
                    }
                    Err(reason) => loaded.signers.report(&name, reason),
                }
            }
        }
        for (index, aws) in config.aws_kms.iter().enumerate() {
            loaded.add_cloud(format!("signer.aws_kms.{index}"), cloud_keys::of_aws(aws));
        }
        for (index, gcp) in config.gcp_kms.iter().enumerate() {
            loaded.add_cloud(format!("signer.gcp_kms.{index}"), cloud_keys::of_google(gcp));
        }
        loaded
    }

    fn add_cloud(&mut self, name: String, keys: Result<CloudKeys, String>) {
        match keys {
            Ok(keys) => {
                for (index, (key, address)) in keys.into_iter().enumerate() {
                    self.add_source(format!("{name}.keys.{index}"), key, Vec::from_iter(address));
                }
            }
            Err(reason) => self.signers.report(&name, reason),
        }
    }

    fn add_source(&mut self, name: String, remote_signer: Arc<dyn RemoteSigner>, listed: Vec<Address>) {
        let source = Source { name, remote_signer, listed };
        for address in &source.listed {
            self.add_address(&source, *address);
        }
        self.sources.push(source);
    }

    /// False: the address already has a signer.
    pub(super) fn add_address(&self, source: &Source, address: Address) -> bool {
        let key = RemoteKey::new(address, Arc::clone(&source.remote_signer));
        self.signers.add_from(&source.name, Arc::new(key))
    }

    /// Whether `discover` may still find addresses.
    pub fn may_grow(&self) -> bool {
        self.sources.iter().any(|source| source.listed.is_empty())
    }
}

#[cfg(test)]
#[path = "remote_signers_tests.rs"]
mod tests;
