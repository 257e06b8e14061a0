//! Resolves the names of receivers and checks the addresses.
//!
//! The HTTP client connects to exactly the addresses that were checked: it asks this resolver, and there is no second
//! lookup whose answer could be another (DNS rebinding). An open connection is used again without a lookup; its address
//! was checked when it was opened.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use async_trait::async_trait;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use thiserror::Error;
use tokio::sync::Semaphore;

use crate::address::AddressPolicy;

/// Finds the addresses of a name; tests give their own.
#[async_trait]
pub(crate) trait Lookup: Send + Sync {
    async fn lookup(&self, name: &str) -> io::Result<Vec<IpAddr>>;
}

/// Lookups of the operating system block a thread. A name server that does not answer must not take the threads of the
/// whole process.
static LOOKUPS: Semaphore = Semaphore::const_new(32);

/// The operating system's resolver, with its hosts file.
pub(crate) struct SystemLookup;

#[async_trait]
impl Lookup for SystemLookup {
    async fn lookup(&self, name: &str) -> io::Result<Vec<IpAddr>> {
        // The semaphore is never closed.
        let turn = LOOKUPS.acquire().await.map_err(io::Error::other)?;
        // Only addresses are needed; every port gives the same ones.
        let name = (name.to_owned(), 0);
        // A lookup occupies its thread also when nobody waits for it any more: so long it has its turn.
        let lookup = tokio::spawn(async move {
            let found = tokio::net::lookup_host(name).await;
            drop(turn);
            found.map(|found| found.map(|found| found.ip()).collect())
        });
        lookup.await.map_err(io::Error::other)?
    }
}

#[derive(Debug, Error)]
pub(crate) enum LookupError {
    #[error(transparent)]
    Failed(#[from] io::Error),
    #[error("the name has no address")]
    NoAddress,
}

pub(crate) struct CheckedResolver {
    pub(crate) lookup: Arc<dyn Lookup>,
    pub(crate) policy: Arc<AddressPolicy>,
}

impl Resolve for CheckedResolver {
    /// Fails with `RefusedAddress` if one of the addresses is refused: a name with a public and a private address is an
    /// attack or a mistake.
    fn resolve(&self, name: Name) -> Resolving {
        let (lookup, policy) = (self.lookup.clone(), self.policy.clone());
        Box::pin(async move {
            let addresses = lookup.lookup(name.as_str()).await.map_err(LookupError::Failed)?;
            if addresses.is_empty() {
                return Err(LookupError::NoAddress.into());
            }
            for address in &addresses {
                policy.check(*address)?;
            }
            // Port 0 is replaced by the URL's.
            let addresses: Addrs = Box::new(addresses.into_iter().map(|address| SocketAddr::new(address, 0)));
            Ok(addresses)
        })
    }
}
