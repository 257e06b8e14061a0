//! A chain as the worker runs it: its connector, its watcher, its prices, and whether it is still the same chain.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use gapless::chain::evm::EvmClient;
use gapless::chain::fees::FeeSource;
use gapless::chain::{ChainConnector, RpcError};
use gapless::config::ChainConfig;
use gapless::domain::NodeId;
use gapless::store::{Store, StoreError};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::watcher::{WatchTask, Watcher};

/// How often the chain is asked who it is.
const IDENTITY_EVERY: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(crate) struct Chain {
    pub(crate) config: ChainConfig,
    pub(crate) connector: Arc<dyn ChainConnector>,
    pub(crate) watcher: Arc<Watcher>,
    pub(crate) fees: FeeSource,
    /// Why nothing may be sent. Starts as "not checked yet": lanes wait for the first check.
    halted: watch::Sender<Option<String>>,
    /// Why the node could not be asked the last time. Lanes meet that trouble themselves; this is for people.
    unreachable: Mutex<Option<String>>,
}

impl Chain {
    pub(crate) fn start(
        config: &ChainConfig,
        store: &Store,
        node: &NodeId,
        duty_duration: Duration,
        stop: &CancellationToken,
    ) -> anyhow::Result<Arc<Chain>> {
        let connector: Arc<dyn ChainConnector> = Arc::new(EvmClient::new(config)?);
        let watcher = Watcher::new(connector.clone(), config.rpc.poll_interval);
        let chain = Arc::new(Chain {
            config: config.clone(),
            connector,
            watcher: watcher.clone(),
            fees: FeeSource::new(&config.fees),
            halted: watch::Sender::new(Some("its identity is not checked yet".to_owned())),
            unreachable: Mutex::new(None),
        });
        let task = WatchTask::new(watcher, store.clone(), node.clone(), duty_duration);
        tokio::spawn(task.run(stop.clone()));
        tokio::spawn(guard_identity(chain.clone(), store.clone(), stop.clone()));
        Ok(chain)
    }

    /// Why nothing may be sent to this chain, if so.
    pub(crate) fn halted(&self) -> Option<String> {
        self.halted.borrow().clone()
    }

    /// What is wrong with this chain, if anything: it is halted, or its node does not answer.
    pub(crate) fn trouble(&self) -> Option<String> {
        self.halted().or_else(|| self.unreachable.lock().unwrap_or_else(PoisonError::into_inner).clone())
    }

    fn note_unreachable(&self, problem: Option<String>) {
        *self.unreachable.lock().unwrap_or_else(PoisonError::into_inner) = problem;
    }

    /// Waits until the chain may be used.
    pub(crate) async fn usable(&self) {
        // Cannot fail: the sender lives as long as `self`.
        let _ = self.halted.subscribe().wait_for(Option::is_none).await;
    }

    /// The depth below the head at which something counts as final.
    pub(crate) fn finality_depth(&self) -> u64 {
        self.config.confirmations.required - 1
    }
}

/// Stops the chain when the node speaks of another one, and lets it go on when it is the right one again.
async fn guard_identity(chain: Arc<Chain>, store: Store, stop: CancellationToken) {
    let mut backoff = Duration::from_millis(200);
    loop {
        let wait = match check_identity(&chain, &store).await {
            Ok(verdict) => {
                backoff = Duration::from_millis(200);
                settle(&chain, verdict);
                chain.note_unreachable(None);
                IDENTITY_EVERY
            }
            Err(error) => {
                // Could not ask: what was known stays. Sends will meet the same trouble and retry.
                tracing::warn!(chain.id = chain.config.id.0, error = %error, retry_in = ?backoff,
                    "the chain's identity could not be checked");
                chain.note_unreachable(Some(error.to_string()));
                backoff = (backoff * 2).min(IDENTITY_EVERY);
                backoff
            }
        };
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(wait) => {}
            () = chain.watcher.strange_head() => {}
        }
    }
}

#[derive(Debug, thiserror::Error)]
enum IdentityError {
    #[error(transparent)]
    Rpc(#[from] RpcError),
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// `None`: it is the chain we know. `Some`: what is wrong.
async fn check_identity(chain: &Chain, store: &Store) -> Result<Option<String>, IdentityError> {
    let (wanted, found) = (chain.config.id, chain.connector.remote_chain_id().await?);
    if wanted != found {
        return Ok(Some(format!("the node serves chain {found}, configured is {wanted}")));
    }
    // Some nodes do not keep block 0; then the id has to do.
    let Some(genesis) = chain.connector.genesis_hash().await? else { return Ok(None) };
    let known = store.remember_genesis(wanted, genesis).await?;
    Ok((known != genesis)
        .then(|| format!("the chain was reset: block 0 is {genesis:#x}, this database knows {known:#x}")))
}

fn settle(chain: &Chain, verdict: Option<String>) {
    chain.halted.send_if_modified(|current| {
        if *current == verdict {
            return false;
        }
        match &verdict {
            Some(problem) => {
                tracing::error!(chain.id = chain.config.id.0, problem, "chain halted: nothing is sent")
            }
            None => tracing::info!(chain.id = chain.config.id.0, name = chain.config.name, "chain checked"),
        }
        *current = verdict;
        true
    });
}
