//! A chain as the worker runs it: its connector, its watcher, its prices, and whether it is still the same chain.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use gapless::chain::fees::FeeSource;
use gapless::chain::{ChainConnector, ChainIdentity, MempoolInspector, RpcError};
use gapless::config::ChainConfig;
use gapless::domain::bump::GasBumpPolicy;
use gapless::domain::stuck::StuckPolicy;
use gapless::domain::{Finality, WorkerId};
use gapless::store::{Store, StoreError};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::builder::ChainPorts;
use crate::receipts::Receipts;
use crate::watcher::{WatchTask, Watcher};

/// How often the nodes of a chain are asked who they are and how they do.
const IDENTITY_EVERY: Duration = Duration::from_secs(5);

/// The same while the chain is halted: the right one may be back any moment.
const IDENTITY_EVERY_HALTED: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) struct Chain {
    pub(crate) config: ChainConfig,
    pub(crate) connector: Arc<dyn ChainConnector>,
    pub(crate) watcher: Arc<Watcher>,
    pub(crate) fees: FeeSource,
    pub(crate) gas_bump: Arc<dyn GasBumpPolicy>,
    pub(crate) stuck: Arc<dyn StuckPolicy>,
    /// Only where `mempool.diagnose` is on.
    pub(crate) inspector: Option<Arc<dyn MempoolInspector>>,
    /// Why nothing may be sent. Starts as "not checked yet": lanes wait for the first check.
    halted: watch::Sender<Option<String>>,
    /// Why the node could not be asked the last time. Lanes meet that trouble themselves; this is for people.
    unreachable: Mutex<Option<String>>,
}

impl Chain {
    pub(crate) fn start(
        config: &ChainConfig,
        ports: ChainPorts,
        store: &Store,
        worker_id: &WorkerId,
        duty_duration: Duration,
        stop: &CancellationToken,
    ) -> Arc<Chain> {
        let chain = Chain::new(config, ports);
        let task = WatchTask::new(chain.watcher.clone(), store.clone(), worker_id.clone(), duty_duration);
        tokio::spawn(watch_once_checked(chain.clone(), task, stop.clone()));
        tokio::spawn(guard_identity(chain.clone(), store.clone(), stop.clone()));
        chain
    }

    /// Halted until its identity is checked, and watched by nobody yet.
    fn new(config: &ChainConfig, ports: ChainPorts) -> Arc<Chain> {
        let ChainPorts { connector, fees, gas_bump, stuck, inspector } = ports;
        let receipts = Receipts::new(connector.clone(), config);
        let (poll_interval, finality) = (config.rpc.poll_interval, config.confirmations.required);
        let watcher = Watcher::new(connector.clone(), receipts, poll_interval, finality);
        Arc::new(Chain {
            config: config.clone(),
            connector,
            watcher,
            fees,
            gas_bump,
            stuck,
            inspector,
            halted: watch::Sender::new(Some("its identity is not checked yet".to_owned())),
            unreachable: Mutex::new(None),
        })
    }

    /// A chain that is what it says, and whose watcher looks when it is told to.
    #[cfg(feature = "sim-driver")]
    pub(crate) fn sim_driver(
        config: &ChainConfig,
        connector: Arc<dyn ChainConnector>,
    ) -> (Arc<Chain>, WatchTask) {
        let chain = Chain::new(config, ChainPorts::built_in(config, connector));
        settle(&chain, None);
        (chain.clone(), WatchTask::unsaved(chain.watcher.clone()))
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

    /// When something counts as final.
    pub(crate) fn finality(&self) -> Finality {
        self.config.confirmations.required
    }
}

/// Blocks are read once it is known which nodes serve this chain: a head of another chain is no beginning.
async fn watch_once_checked(chain: Arc<Chain>, task: WatchTask, stop: CancellationToken) {
    tokio::select! {
        () = stop.cancelled() => return,
        () = chain.usable() => {}
    }
    task.run(stop).await;
}

/// Stops the chain when no node serves it, and lets it go on when one does again.
async fn guard_identity(chain: Arc<Chain>, store: Store, stop: CancellationToken) {
    let mut backoff = Duration::from_millis(200);
    loop {
        let wait = match check_identity(&chain, &store).await {
            Ok(verdict) => {
                backoff = Duration::from_millis(200);
                let wait = if verdict.is_none() { IDENTITY_EVERY } else { IDENTITY_EVERY_HALTED };
                settle(&chain, verdict);
                chain.note_unreachable(None);
                wait
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
    let known = store.known_genesis(chain.config.id).await?;
    match (chain.connector.identity(known).await?, known) {
        (ChainIdentity::External { problem }, _) => Ok(Some(problem)),
        (ChainIdentity::Ours { genesis: Some(genesis) }, None) => {
            // At first sight. Another worker may have seen another one at the same time: the database decides.
            let known = store.remember_genesis(chain.config.id, genesis).await?;
            match chain.connector.identity(Some(known)).await? {
                ChainIdentity::External { problem } => Ok(Some(problem)),
                ChainIdentity::Ours { .. } => Ok(None),
            }
        }
        (ChainIdentity::Ours { .. }, _) => Ok(None),
    }
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
            None => {
                tracing::info!(chain.id = chain.config.id.0, name = chain.config.name, "chain checked");
                chain.watcher.note_recovery();
            }
        }
        *current = verdict;
        true
    });
}
