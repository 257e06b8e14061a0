//! Builds a worker with custom adapters: chain connector, signers, fee policy, bump and stuck policies, event
//! publisher.
//!
//! Adapters are registered by name; a chain's configuration selects them (`adapters.*`). The contract of each adapter
//! is documented at its trait, and `gapless_contract` tests it.

use std::collections::BTreeMap;
use std::fmt::{self, Debug, Formatter};
use std::sync::Arc;

use anyhow::Context;
use gapless_chain::evm::EvmClient;
use gapless_chain::fees::FeeSource;
use gapless_chain::{ChainConnector, FeePolicy, MempoolInspector};
use gapless_config::{ChainConfig, Config};
use gapless_domain::bump::{GasBumpPolicy, Multiply};
use gapless_domain::stuck::{Always, StuckPolicy};
use gapless_events::{self as events, EventPublisher};
use gapless_signer::Signer;
use tokio_util::sync::CancellationToken;

/// The worker: leases submitters and submits their intents to the chain.
#[derive(Debug)]
pub struct Worker;

impl Worker {
    /// A worker with this configuration. Nothing starts before `run`.
    pub fn builder(config: Config) -> WorkerBuilder {
        WorkerBuilder { config, signers: Vec::new(), events: None, registry: Registry::default() }
    }
}

#[derive(Debug)]
pub struct WorkerBuilder {
    config: Config,
    signers: Vec<Arc<dyn Signer>>,
    events: Option<Arc<dyn EventPublisher>>,
    registry: Registry,
}

impl WorkerBuilder {
    /// Connector factory for chains with `adapters.connector = name`; called once per such chain when the worker
    /// starts.
    pub fn chain<F>(mut self, name: &str, make: F) -> Self
    where
        F: Fn(&ChainConfig) -> anyhow::Result<Arc<dyn ChainConnector>> + Send + Sync + 'static,
    {
        self.registry.connectors.insert(name.to_owned(), Factory(Box::new(make)));
        self
    }

    /// Adds a key to those of the configuration. If both have a signer for an address, the configuration's is used.
    pub fn signer(mut self, signer: Arc<dyn Signer>) -> Self {
        self.signers.push(signer);
        self
    }

    /// For chains with `adapters.fee_policy = name`. `fees.policy` still selects what is read from the nodes for it,
    /// and `fees.max_fee_per_gas` still limits its result.
    pub fn fee_policy(mut self, name: &str, policy: Arc<dyn FeePolicy>) -> Self {
        self.registry.fee_policies.insert(name.to_owned(), policy);
        self
    }

    /// For chains with `adapters.gas_bump_policy = name`.
    pub fn gas_bump_policy(mut self, name: &str, policy: Arc<dyn GasBumpPolicy>) -> Self {
        self.registry.gas_bump_policies.insert(name.to_owned(), policy);
        self
    }

    /// For chains with `adapters.stuck_policy = name`.
    pub fn stuck_policy(mut self, name: &str, policy: Arc<dyn StuckPolicy>) -> Self {
        self.registry.stuck_policies.insert(name.to_owned(), policy);
        self
    }

    /// Factory for chains with `adapters.mempool_inspector = name`, if `mempool.diagnose.enabled`.
    pub fn mempool_inspector<F>(mut self, name: &str, make: F) -> Self
    where
        F: Fn(&ChainConfig) -> anyhow::Result<Arc<dyn MempoolInspector>> + Send + Sync + 'static,
    {
        self.registry.inspectors.insert(name.to_owned(), Factory(Box::new(make)));
        self
    }

    /// Overrides `events.mode`.
    pub fn event_publisher(mut self, publisher: Arc<dyn EventPublisher>) -> Self {
        self.events = Some(publisher);
        self
    }

    /// Runs until `stop`, then releases every lease. Fails immediately if a chain selects an adapter that is not
    /// registered.
    pub async fn run(self, stop: CancellationToken) -> anyhow::Result<()> {
        let mut ports = BTreeMap::new();
        for chain in self.config.chains.values() {
            self.registry.check(chain)?;
        }
        // Connectors spawn tasks, so all names are checked before any connector is created.
        for (name, chain) in &self.config.chains {
            ports.insert(name.clone(), self.registry.ports(chain)?);
        }
        let events = self.events.unwrap_or_else(|| events::publisher(self.config.events.mode));
        crate::run::run(self.config, Ports { chains: ports, signers: self.signers, events }, stop).await
    }
}

/// The adapters of a worker.
#[derive(Debug)]
pub(crate) struct Ports {
    /// By chain name.
    pub(crate) chains: BTreeMap<String, ChainPorts>,
    /// In addition to those of the configuration.
    pub(crate) signers: Vec<Arc<dyn Signer>>,
    pub(crate) events: Arc<dyn EventPublisher>,
}

/// The adapters of one chain.
#[derive(Debug)]
pub(crate) struct ChainPorts {
    pub(crate) connector: Arc<dyn ChainConnector>,
    pub(crate) fees: FeeSource,
    pub(crate) gas_bump: Arc<dyn GasBumpPolicy>,
    pub(crate) stuck: Arc<dyn StuckPolicy>,
    /// Set if `mempool.diagnose` is enabled.
    pub(crate) inspector: Option<Arc<dyn MempoolInspector>>,
}

impl ChainPorts {
    /// This connector with the built-in policies and no inspector.
    pub(crate) fn built_in(config: &ChainConfig, connector: Arc<dyn ChainConnector>) -> ChainPorts {
        ChainPorts {
            connector,
            fees: FeeSource::new(&config.fees),
            gas_bump: Arc::new(Multiply(config.gasbump.multiplier)),
            stuck: Arc::new(Always(config.stuck.policy)),
            inspector: None,
        }
    }
}

/// Creates an adapter for one chain.
type Make<T> = dyn Fn(&ChainConfig) -> anyhow::Result<Arc<T>> + Send + Sync;

struct Factory<T: ?Sized>(Box<Make<T>>);

impl<T: ?Sized> Debug for Factory<T> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("Factory")
    }
}

/// The registered adapters, by name.
#[derive(Debug, Default)]
struct Registry {
    connectors: BTreeMap<String, Factory<dyn ChainConnector>>,
    fee_policies: BTreeMap<String, Arc<dyn FeePolicy>>,
    gas_bump_policies: BTreeMap<String, Arc<dyn GasBumpPolicy>>,
    stuck_policies: BTreeMap<String, Arc<dyn StuckPolicy>>,
    inspectors: BTreeMap<String, Factory<dyn MempoolInspector>>,
}

impl Registry {
    /// Checks that every adapter selected by this chain is registered.
    fn check(&self, chain: &ChainConfig) -> anyhow::Result<()> {
        let named = &chain.adapters;
        selected(chain, "connector", &named.connector, &self.connectors)?;
        selected(chain, "fee_policy", &named.fee_policy, &self.fee_policies)?;
        selected(chain, "gas_bump_policy", &named.gas_bump_policy, &self.gas_bump_policies)?;
        selected(chain, "stuck_policy", &named.stuck_policy, &self.stuck_policies)?;
        selected(chain, "mempool_inspector", &named.mempool_inspector, &self.inspectors)?;
        Ok(())
    }

    fn ports(&self, chain: &ChainConfig) -> anyhow::Result<ChainPorts> {
        let named = &chain.adapters;
        let (connector, client) = match self.connectors.get(&named.connector) {
            Some(factory) => {
                let connector = (factory.0)(chain).with_context(|| format!("chain {}", chain.name))?;
                anyhow::ensure!(
                    connector.chain_id() == chain.id,
                    "chain {}: its connector serves chain id {}, expected {}",
                    chain.name,
                    connector.chain_id(),
                    chain.id
                );
                (connector, None)
            }
            None => {
                let client = Arc::new(evm_client(chain)?);
                (client.clone() as Arc<dyn ChainConnector>, Some(client))
            }
        };
        let mut ports = ChainPorts::built_in(chain, connector);
        if chain.mempool.diagnose.enabled {
            ports.inspector = Some(self.inspector(chain, client)?);
        }
        if let Some(policy) = self.fee_policies.get(&named.fee_policy) {
            ports.fees = FeeSource::with_policy(&chain.fees, policy.clone());
        }
        if let Some(policy) = self.gas_bump_policies.get(&named.gas_bump_policy) {
            ports.gas_bump = policy.clone();
        }
        if let Some(policy) = self.stuck_policies.get(&named.stuck_policy) {
            ports.stuck = policy.clone();
        }
        Ok(ports)
    }

    /// The built-in inspector uses `rpc.urls`, whatever connector the chain has.
    fn inspector(
        &self,
        chain: &ChainConfig,
        client: Option<Arc<EvmClient>>,
    ) -> anyhow::Result<Arc<dyn MempoolInspector>> {
        if let Some(factory) = self.inspectors.get(&chain.adapters.mempool_inspector) {
            return (factory.0)(chain).with_context(|| format!("chain {}", chain.name));
        }
        let inspector = match client {
            Some(client) => client.inspector(chain),
            None => evm_client(chain)?.inspector(chain),
        };
        Ok(Arc::new(inspector))
    }
}

fn evm_client(chain: &ChainConfig) -> anyhow::Result<EvmClient> {
    anyhow::ensure!(!chain.urls.is_empty(), "configuration: chain.{}.rpc.urls: missing", chain.name);
    EvmClient::new(chain).with_context(|| format!("chain {}", chain.name))
}

/// An empty name selects the built-in adapter; any other must be registered.
fn selected<T>(
    chain: &ChainConfig,
    port: &str,
    name: &str,
    registered: &BTreeMap<String, T>,
) -> anyhow::Result<()> {
    if name.is_empty() || registered.contains_key(name) {
        return Ok(());
    }
    let known: Vec<&str> = registered.keys().map(String::as_str).collect();
    let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
    anyhow::bail!(
        "configuration: chain.{}.adapters.{port}: no adapter named `{name}` (registered: {known})",
        chain.name
    )
}
