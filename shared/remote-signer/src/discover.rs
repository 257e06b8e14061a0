//! Queries remote signers for their addresses: until each has responded, or once.

use std::time::Duration;

use tokio::sync::mpsc;

use super::remote_signers::{RemoteSigners, Source};
use gapless_domain::Address;

/// Initial and maximum backoff between queries to a remote signer that does not respond.
const RETRY: Duration = Duration::from_millis(500);
const MAX_RETRY: Duration = Duration::from_secs(15);

/// The answer of a remote signer that was queried once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignerAnswer {
    /// Its configuration key.
    pub source: String,
    /// Its endpoint, without secrets.
    pub endpoint: String,
    /// Its addresses, or why there are none.
    pub addresses: Result<Vec<Address>, String>,
}

impl RemoteSigners {
    /// Queries every remote signer once, all at the same time. New addresses are usable at once, as with `discover`.
    pub async fn query_once(&self, limit: Duration) -> Vec<SignerAnswer> {
        let (found, _ignored) = mpsc::unbounded_channel();
        let queries = self.sources.iter().map(async |source| {
            let answer = tokio::time::timeout(limit, source.remote_signer.addresses()).await;
            let addresses = answer.unwrap_or_else(|_| Err(format!("it did not answer within {limit:?}")));
            if let Ok(addresses) = &addresses {
                self.add_addresses(source, addresses.clone(), &found);
            }
            SignerAnswer {
                source: source.name.clone(),
                endpoint: source.remote_signer.shown().to_owned(),
                addresses,
            }
        });
        futures::future::join_all(queries).await
    }

    /// Queries every remote signer for its addresses concurrently, each until it responds. New addresses are usable at
    /// once and are sent to `found`.
    pub async fn discover(&self, found: mpsc::UnboundedSender<Vec<Address>>) {
        let queries = self.sources.iter().map(|source| self.query(source, &found));
        futures::future::join_all(queries).await;
    }

    async fn query(&self, source: &Source, found: &mpsc::UnboundedSender<Vec<Address>>) {
        let mut pause = RETRY;
        loop {
            let reason = match source.remote_signer.addresses().await {
                Ok(addresses) if addresses.is_empty() && source.listed.is_empty() => {
                    "it has no addresses".to_owned()
                }
                Ok(addresses) => {
                    tracing::info!(
                        source = source.name,
                        endpoint = source.remote_signer.shown(),
                        addresses = addresses.len(),
                        "remote signer reachable"
                    );
                    self.signers.clear_problems(&source.name);
                    return self.add_addresses(source, addresses, found);
                }
                Err(reason) => reason,
            };
            self.set_problem(source, reason);
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(MAX_RETRY);
        }
    }

    /// A configured list is a restriction: no other addresses are added.
    fn add_addresses(
        &self,
        source: &Source,
        addresses: Vec<Address>,
        found: &mpsc::UnboundedSender<Vec<Address>>,
    ) {
        for missing in source.listed.iter().filter(|address| !addresses.contains(address)) {
            self.signers
                .report(&source.name, format!("it does not sign for {missing:#x}, which is configured"));
        }
        if !source.listed.is_empty() {
            return;
        }
        let new: Vec<Address> =
            addresses.into_iter().filter(|address| self.add_address(source, *address)).collect();
        // The receiver is gone only during shutdown.
        let _ = found.send(new);
    }

    /// Records and logs why a remote signer does not respond; logged once until the reason changes.
    fn set_problem(&self, source: &Source, reason: String) {
        if !self.signers.set_problem(&source.name, &reason) {
            return;
        }
        tracing::error!(
            source = source.name,
            endpoint = source.remote_signer.shown(),
            reason,
            "remote signer does not respond; retrying"
        );
    }
}
