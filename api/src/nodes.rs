//! Nodes for questions: a client per chain, made when it is first needed. Nothing is ever sent through it; the API has no
//! key and no attempt, and so nothing to send.

use std::collections::BTreeMap;

use gapless::chain::evm::EvmClient;
use gapless::chain::fees::FeeSource;
use gapless::chain::{ChainConnector, RpcError};
use gapless::config::{ChainConfig, Config};
use gapless::domain::ChainId;
use tokio::sync::OnceCell;

use crate::error::ApiError;

#[derive(Debug)]
pub(crate) struct Nodes(BTreeMap<ChainId, Entry>);

#[derive(Debug)]
struct Entry {
    config: ChainConfig,
    made: OnceCell<Node>,
}

/// A chain that can be asked.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) client: EvmClient,
    pub(crate) fees: FeeSource,
    /// Estimated gas is multiplied by this, as a worker does.
    pub(crate) gas_limit_multiplier: f64,
}

impl Nodes {
    pub(crate) fn new(config: &Config) -> Nodes {
        let entry = |chain: &ChainConfig| Entry { config: chain.clone(), made: OnceCell::new() };
        Nodes(config.chains.values().map(|chain| (chain.id, entry(chain))).collect())
    }

    /// The node of a configured chain, known to serve that chain.
    pub(crate) async fn get(&self, chain_id: ChainId) -> Result<&Node, ApiError> {
        let entry = self.0.get(&chain_id).ok_or(ApiError::UnknownChain(chain_id.0))?;
        if entry.config.urls.is_empty() {
            return Err(ApiError::SimulationDisabled);
        }
        entry.made.get_or_try_init(|| make(&entry.config)).await
    }
}

async fn make(config: &ChainConfig) -> Result<Node, ApiError> {
    let client = EvmClient::new(config).map_err(|error| {
        tracing::error!(chain.id = config.id.0, %error, "the nodes of a chain cannot be used");
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

/// A node that could not be asked says nothing about the transaction.
impl From<RpcError> for ApiError {
    fn from(error: RpcError) -> Self {
        tracing::warn!(%error, "a simulation was refused: the node cannot be asked");
        ApiError::NodeUnavailable
    }
}
