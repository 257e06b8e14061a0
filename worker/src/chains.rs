//! Per-chain state of the worker: connector, block watcher, fee source, and the periodic chain identity check.

use std::sync::Arc;
use std::time::Duration;

use gapless_chain::fees::FeeSource;
use gapless_chain::{ChainConnector, ChainIdentity, MempoolInspector, RpcError};
use gapless_config::ChainConfig;
use gapless_domain::bump::GasBumpPolicy;
use gapless_domain::stuck::StuckPolicy;
use gapless_domain::{Finality, WorkerId};
use gapless_store::{Store, StoreError};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::builder::ChainPorts;
use crate::health::UnreadyReason;
use crate::receipts::Receipts;
use crate::watcher::{WatchTask, Watcher};

/// How often the identity and health of a chain's nodes are checked.
const IDENTITY_EVERY: Duration = Duration::from_secs(5);

/// The same while the chain is halted.
const IDENTITY_EVERY_HALTED: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) struct Chain {
    pub(crate) config: ChainConfig,
    pub(crate) connector: Arc<dyn ChainConnector>,
    pub(crate) watcher: Arc<Watcher>,
    pub(crate) fees: FeeSource,
    pub(crate) gas_bump: Arc<dyn GasBumpPolicy>,
    pub(crate) stuck: Arc<dyn StuckPolicy>,
    /// Set if `mempool.diagnose` is enabled.
    pub(crate) inspector: Option<Arc<dyn MempoolInspector>>,
    /// Why nothing may be sent. Initially set: lanes wait for the first identity check.
    halted: watch::Sender<Option<Halt>>,
    /// Error of the last identity check, for `/readyz`. Lanes get the same errors from their own requests.
    unreachable: Mutex<Option<String>>,
}

/// Why nothing may be sent to a chain.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Halt {
    /// No node has answered since the start.
    NotChecked,
    /// The nodes serve another chain.
    WrongChain(String),
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
        tokio::spawn(monitor_identity(chain.clone(), store.clone(), stop.clone()));
        chain
    }

    /// Halted until its identity is checked; the watch task is not started.
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
            halted: watch::Sender::new(Some(Halt::NotChecked)),
            unreachable: Mutex::new(None),
        })
    }

    /// A chain that skips the identity check; the caller drives its watch task.
    #[cfg(feature = "sim-driver")]
    pub(crate) fn sim_driver(
        config: &ChainConfig,
        connector: Arc<dyn ChainConnector>,
    ) -> (Arc<Chain>, WatchTask) {
        let chain = Chain::new(config, ChainPorts::built_in(config, connector));
        set_halted(&chain, None);
        (chain.clone(), WatchTask::unsaved(chain.watcher.clone()))
    }

    /// Why nothing may be sent to this chain; `None` if it is usable.
    pub(crate) fn halted(&self) -> Option<String> {
        match self.halted.borrow().clone()? {
            Halt::WrongChain(problem) => Some(problem),
            Halt::NotChecked => Some(match self.unreachable() {
                Some(error) => format!("chain identity not checked yet: {error}"),
                None => "chain identity not checked yet".to_owned(),
            }),
        }
    }

    /// Why the chain is halted for a reason that its nodes gave: they serve another chain. For the heartbeat.
    pub(crate) fn wrong_chain(&self) -> Option<String> {
        match self.halted.borrow().clone()? {
            Halt::WrongChain(problem) => Some(problem),
            Halt::NotChecked => None,
        }
    }

    /// Why this chain is not ready, if it is not.
    pub(crate) fn unready(&self) -> Option<UnreadyReason> {
        match &*self.halted.borrow() {
            Some(Halt::WrongChain(_)) => Some(UnreadyReason::ChainHalted),
            Some(Halt::NotChecked) => Some(UnreadyReason::Node),
            None => self.unreachable().map(|_| UnreadyReason::Node),
        }
    }

    fn unreachable(&self) -> Option<String> {
        self.unreachable.lock().clone()
    }

    fn note_unreachable(&self, problem: Option<String>) {
        *self.unreachable.lock() = problem;
    }

    /// Waits until the chain may be used.
    pub(crate) async fn usable(&self) {
        // Cannot fail: the sender lives as long as `self`.
        let _ = self.halted.subscribe().wait_for(Option::is_none).await;
    }

    /// When a transaction counts as final.
    pub(crate) fn finality(&self) -> Finality {
        self.config.confirmations.required
    }
}

/// Starts the watch task after the identity check, so that it does not start from the head of another chain.
async fn watch_once_checked(chain: Arc<Chain>, task: WatchTask, stop: CancellationToken) {
    tokio::select! {
        () = stop.cancelled() => return,
        () = chain.usable() => {}
    }
    task.run(stop).await;
}

/// Halts the chain while no node serves it.
async fn monitor_identity(chain: Arc<Chain>, store: Store, stop: CancellationToken) {
    let mut backoff = Duration::from_millis(200);
    loop {
        let wait = match check_identity(&chain, &store).await {
            Ok(problem) => {
                backoff = Duration::from_millis(200);
                let wait = if problem.is_none() { IDENTITY_EVERY } else { IDENTITY_EVERY_HALTED };
                set_halted(&chain, problem.map(Halt::WrongChain));
                chain.note_unreachable(None);
                wait
            }
            Err(error) => {
                // The previous result stays in force. Sends fail with the same error and are retried.
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
            () = chain.watcher.unexpected_head() => {}
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

/// `None`: the chain is the expected one. `Some`: the problem.
async fn check_identity(chain: &Chain, store: &Store) -> Result<Option<String>, IdentityError> {
    let known = store.known_genesis(chain.config.id).await?;
    match (chain.connector.identity(known).await?, known) {
        (ChainIdentity::WrongChain { problem }, _) => Ok(Some(problem)),
        (ChainIdentity::Ours { genesis: Some(genesis) }, None) => {
            // First check ever. Another worker may store a different genesis concurrently: the stored one counts.
            let known = store.remember_genesis(chain.config.id, genesis).await?;
            match chain.connector.identity(Some(known)).await? {
                ChainIdentity::WrongChain { problem } => Ok(Some(problem)),
                ChainIdentity::Ours { .. } => Ok(None),
            }
        }
        (ChainIdentity::Ours { .. }, _) => Ok(None),
    }
}

fn set_halted(chain: &Chain, problem: Option<Halt>) {
    chain.halted.send_if_modified(|current| {
        if *current == problem {
            return false;
        }
        match &problem {
            Some(Halt::WrongChain(problem)) => {
                tracing::error!(chain.id = chain.config.id.0, problem, "chain halted: nothing is sent")
            }
            // Only the initial value.
            Some(Halt::NotChecked) => {}
            None => {
                tracing::info!(chain.id = chain.config.id.0, name = chain.config.name, "chain checked");
                chain.watcher.note_recovery();
            }
        }
        *current = problem;
        true
    });
}
