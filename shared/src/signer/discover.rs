//! Asking keepers of keys, each until it has answered, what they sign for.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;

use super::remote_signer::{RemoteKey, RemoteSigner};
use super::set::{SignerProblem, SignerSet};
use crate::domain::Address;

/// Between two questions to a keeper that did not answer, at first and at the most.
const ASK_AGAIN: Duration = Duration::from_millis(500);
const ASK_AGAIN_AT_MOST: Duration = Duration::from_secs(15);

/// A keeper of the configuration.
#[derive(Debug)]
pub(super) struct Source {
    /// Its place in the configuration.
    pub(super) name: String,
    pub(super) remote_signer: Arc<dyn RemoteSigner>,
    /// Empty: it is asked.
    pub(super) listed: Vec<Address>,
}

impl SignerSet {
    /// Asks every remote signer what it signs for, each until it has answered; none waits for another. Addresses that
    /// come in are usable at once, and are told to `found`.
    pub async fn discover(&self, found: mpsc::UnboundedSender<Vec<Address>>) {
        let asking = self.sources.iter().map(|source| self.ask(source, &found));
        futures::future::join_all(asking).await;
    }

    async fn ask(&self, source: &Source, found: &mpsc::UnboundedSender<Vec<Address>>) {
        let mut pause = ASK_AGAIN;
        loop {
            let reason = match source.remote_signer.addresses().await {
                Ok(addresses) if addresses.is_empty() && source.listed.is_empty() => {
                    "it signs for no address".to_owned()
                }
                Ok(addresses) => {
                    tracing::info!(
                        source = source.name,
                        endpoint = source.remote_signer.shown(),
                        addresses = addresses.len(),
                        "a remote signer answers"
                    );
                    self.settle(source);
                    return self.take_over(source, addresses, found);
                }
                Err(reason) => reason,
            };
            self.complain(source, reason);
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(ASK_AGAIN_AT_MOST);
        }
    }

    /// What the configuration lists is not added to: a list is a restriction.
    fn take_over(
        &self,
        source: &Source,
        addresses: Vec<Address>,
        found: &mpsc::UnboundedSender<Vec<Address>>,
    ) {
        for missing in source.listed.iter().filter(|address| !addresses.contains(address)) {
            self.report(&source.name, format!("it does not sign for {missing:#x}, which is listed"));
        }
        if !source.listed.is_empty() {
            return;
        }
        let new: Vec<Address> =
            addresses.into_iter().filter(|address| self.insert_remote(source, *address)).collect();
        // Nobody listens any more: the process is about to stop.
        let _ = found.send(new);
    }

    /// False: another signer has it.
    pub(super) fn insert_remote(&self, source: &Source, address: Address) -> bool {
        let signer = RemoteKey { address, remote_signer: Arc::clone(&source.remote_signer) };
        self.insert(&source.name, signer)
    }

    /// A keeper did not answer: said once, until it does or until the reason is another.
    fn complain(&self, source: &Source, reason: String) {
        let mut known = self.change();
        match known.problems.iter_mut().find(|problem| problem.source == source.name) {
            Some(problem) if problem.reason == reason => return,
            Some(problem) => problem.reason.clone_from(&reason),
            None => {
                known.problems.push(SignerProblem { source: source.name.clone(), reason: reason.clone() });
            }
        }
        drop(known);
        tracing::error!(
            source = source.name,
            endpoint = source.remote_signer.shown(),
            reason,
            "a remote signer does not answer; it is asked again, the others are used"
        );
    }

    fn settle(&self, source: &Source) {
        self.change().problems.retain(|problem| problem.source != source.name);
    }
}
