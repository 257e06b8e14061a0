//! The nodes of one chain and the order in which they are used.
//!
//! Tracks the health of each node. A node that serves another chain is never returned for use.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use super::health::{HealthChange, Identity};
use super::http::{Endpoint, EvmClientError, Http};
use crate::port::RpcError;
use gapless_config::ChainConfig;
use gapless_domain::ChainId;
use gapless_telemetry::metrics::{RPC_NODE_HEALTHY, RPC_NODE_LAG_BLOCKS};

#[derive(Debug)]
pub(super) struct Nodes {
    pub(super) http: Http,
    chain: ChainId,
    endpoints: Vec<Endpoint>,
    /// Set by the first survey: from then on, only nodes with a checked identity are used.
    identity_required: AtomicBool,
    /// How often a node recovered.
    recoveries: AtomicU64,
}

impl Nodes {
    pub(super) fn new(config: &ChainConfig) -> Result<Nodes, EvmClientError> {
        let endpoints = Endpoint::all(config)?;
        let http = Http::new(config, &endpoints)?;
        Ok(Nodes {
            http,
            chain: config.id,
            endpoints,
            identity_required: AtomicBool::new(false),
            recoveries: AtomicU64::new(0),
        })
    }

    /// How often one of several nodes recovered. Always 0 with a single node: its callers notice the recovery
    /// themselves.
    pub(super) fn recoveries(&self) -> u64 {
        if self.endpoints.len() > 1 { self.recoveries.load(Relaxed) } else { 0 }
    }

    /// All nodes, in configuration order.
    pub(super) fn all(&self) -> &[Endpoint] {
        &self.endpoints
    }

    /// The nodes that may serve our chain, for queries to every node.
    pub(super) fn not_wrong_chain(&self) -> impl Iterator<Item = &Endpoint> {
        self.endpoints.iter().filter(|node| !matches!(node.health.identity(), Identity::WrongChain(_)))
    }

    pub(super) fn is_usable(&self, endpoint: &Endpoint) -> bool {
        match endpoint.health.identity() {
            Identity::Ours => true,
            Identity::Unchecked => !self.identity_required.load(Relaxed),
            Identity::WrongChain(_) => false,
        }
    }

    /// Every usable node, best first; equal ones in configuration order.
    pub(super) fn by_preference(&self) -> Vec<&Endpoint> {
        let now = Instant::now();
        let mut usable: Vec<&Endpoint> = self.endpoints.iter().filter(|node| self.is_usable(node)).collect();
        usable.sort_by_cached_key(|node| node.health.rank(now));
        usable
    }

    /// The nodes for a broadcast: those to use first, and the fallback if none of the first could be reached.
    pub(super) fn for_broadcast(&self) -> [Vec<&Endpoint>; 2] {
        let now = Instant::now();
        let (first, fallback) =
            self.by_preference().into_iter().partition(|node| node.health.is_responsive(now));
        [first, fallback]
    }

    /// Records whether a request to this node was answered.
    pub(super) fn note(&self, endpoint: &Endpoint, answered: bool) {
        let change = endpoint.health.record_request(answered, Instant::now());
        self.report(endpoint, change, "requests fail");
    }

    /// Records how many blocks its head is behind the best node.
    pub(super) fn note_lag(&self, endpoint: &Endpoint, blocks: u64) {
        let change = endpoint.health.record_lag(blocks, Instant::now());
        self.report(endpoint, change, "its head is behind");
    }

    /// Records which chain it serves.
    pub(super) fn note_identity(&self, endpoint: &Endpoint, identity: Identity) {
        let (before, change) = endpoint.health.set_identity(identity.clone(), Instant::now());
        match &identity {
            Identity::WrongChain(problem) if before != identity => {
                tracing::error!(chain.id = self.chain.0, endpoint = %endpoint.shown, problem,
                    "node serves another chain; not used");
            }
            _ => self.report(endpoint, change, ""),
        }
    }

    /// From now on, nodes with an unchecked identity are not used.
    pub(super) fn require_identity(&self) {
        self.identity_required.store(true, Relaxed);
        self.set_gauges();
    }

    fn report(&self, endpoint: &Endpoint, change: Option<HealthChange>, reason: &str) {
        let Some(change) = change else { return };
        match change {
            HealthChange::Degraded => tracing::warn!(chain.id = self.chain.0, endpoint = %endpoint.shown,
                lag = endpoint.health.lag(), reason, "node unhealthy; other nodes are preferred"),
            HealthChange::Recovered => {
                self.recoveries.fetch_add(1, Relaxed);
                tracing::info!(chain.id = self.chain.0, endpoint = %endpoint.shown, "node recovered")
            }
        }
        self.set_gauges();
    }

    fn set_gauges(&self) {
        let now = Instant::now();
        for node in &self.endpoints {
            let healthy = self.is_usable(node) && node.health.is_healthy(now);
            let labels = [("chain", self.chain.to_string()), ("node", node.label.clone())];
            metrics::gauge!(RPC_NODE_HEALTHY, &labels).set(if healthy { 1.0 } else { 0.0 });
            metrics::gauge!(RPC_NODE_LAG_BLOCKS, &labels).set(node.health.lag() as f64);
        }
    }
}

/// The error if no node is usable.
pub(super) fn no_node(method: &'static str) -> RpcError {
    RpcError::Transport {
        method,
        endpoint: "no node".into(),
        reason: "no node is known to serve this chain".into(),
    }
}
