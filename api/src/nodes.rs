//! Read-only RPC clients for simulations: one per chain, created on first use. The API never sends a transaction.

use std::collections::BTreeMap;

use gapless_chain::evm::EvmClient;
use gapless_chain::fees::FeeSource;
use gapless_chain::{ChainConnector, RpcError};
use gapless_config::{ChainConfig, Config};
use gapless_domain::ChainId;
use tokio::sync::OnceCell;

use crate::error::ApiError;

#[derive(Debug)]
pub(crate) struct Nodes(BTreeMap<ChainId, Entry>);

#[derive(Debug)]
struct Entry {
    config: ChainConfig,
    node: OnceCell<Node>,
}

/// RPC client and fee source of a chain.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) client: EvmClient,
    pub(crate) fees: FeeSource,
    /// Applied to estimated gas, as the worker does.
    pub(crate) gas_limit_multiplier: f64,
}

impl Nodes {
    pub(crate) fn new(config: &Config) -> Nodes {
        let entry = |chain: &ChainConfig| Entry { config: chain.clone(), node: OnceCell::new() };
        Nodes(config.chains.values().map(|chain| (chain.id, entry(chain))).collect())
    }

    /// The client of a configured chain. Its chain id was checked.
    pub(crate) async fn get(&self, chain_id: ChainId) -> Result<&Node, ApiError> {
        let entry = self.0.get(&chain_id).ok_or(ApiError::UnknownChain(chain_id.0))?;
        if entry.config.urls.is_empty() {
            return Err(ApiError::SimulationDisabled);
        }
        entry.node.get_or_try_init(|| connect(&entry.config)).await
    }
}

async fn connect(config: &ChainConfig) -> Result<Node, ApiError> {
    let client = EvmClient::new(config).map_err(|error| {
        tracing::error!(chain.id = config.id.0, %error, "cannot create the RPC client of a chain");
        ApiError::Internal
    })?;
    let served = client.remote_chain_id().await?;
    if served != config.id {
        tracing::error!(chain.id = config.id.0, %served, "the node serves another chain");
        return Err(ApiError::NodeUnavailable);
    }
    Ok(Node {
        client,
        fees: FeeSource::new(&config.fees),
        gas_limit_multiplier: config.fees.gas_limit_multiplier,
    })
}

/// An RPC failure is not a result of the simulation.
impl From<RpcError> for ApiError {
    fn from(error: RpcError) -> Self {
        tracing::warn!(%error, "simulation refused: no node is available");
        ApiError::NodeUnavailable
    }
}
