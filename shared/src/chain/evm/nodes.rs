//! The nodes of one chain and the order in which they are asked.
//!
//! Knows how well each node does, not what it is asked. A node that serves another chain is in no list it gives.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use super::health::{Identity, Turn};
use super::http::{Endpoint, EvmClientError, Http};
use crate::chain::port::RpcError;
use crate::config::ChainConfig;
use crate::domain::ChainId;
use crate::observe::metrics::{RPC_NODE_HEALTHY, RPC_NODE_LAG_BLOCKS};

#[derive(Debug)]
pub(super) struct Nodes {
    pub(super) http: Http,
    chain: ChainId,
    endpoints: Vec<Endpoint>,
    /// From the first check on, a node is used only once it was checked itself.
    guarded: AtomicBool,
    /// How often a node became well again.
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
            guarded: AtomicBool::new(false),
            recoveries: AtomicU64::new(0),
        })
    }

    /// How often one of several became well again. Of one alone whoever asks it knows.
    pub(super) fn recoveries(&self) -> u64 {
        if self.endpoints.len() > 1 { self.recoveries.load(Relaxed) } else { 0 }
    }

    /// All of them, in the order of the configuration.
    pub(super) fn all(&self) -> &[Endpoint] {
        &self.endpoints
    }

    /// Those that may serve our chain, for questions that every node must answer.
    pub(super) fn not_other_chain(&self) -> impl Iterator<Item = &Endpoint> {
        self.endpoints.iter().filter(|node| !matches!(node.health.identity(), Identity::External(_)))
    }

    pub(super) fn is_usable(&self, endpoint: &Endpoint) -> bool {
        match endpoint.health.identity() {
            Identity::Ours => true,
            Identity::Unchecked => !self.guarded.load(Relaxed),
            Identity::External(_) => false,
        }
    }

    /// Every usable node once, the best first; equals in the order of the configuration.
    pub(super) fn in_turn(&self) -> Vec<&Endpoint> {
        let now = Instant::now();
        let mut usable: Vec<&Endpoint> = self.endpoints.iter().filter(|node| self.is_usable(node)).collect();
        usable.sort_by_cached_key(|node| node.health.rank(now));
        usable
    }

    /// Who gets a transaction: the nodes to tell at once, and those to tell if none of these could be asked.
    pub(super) fn for_broadcast(&self) -> [Vec<&Endpoint>; 2] {
        let now = Instant::now();
        let (at_once, else_these) =
            self.in_turn().into_iter().partition(|node| node.health.answers_at_times(now));
        [at_once, else_these]
    }

    /// A request to this node ended, with an answer or without.
    pub(super) fn note(&self, endpoint: &Endpoint, answered: bool) {
        let turn = endpoint.health.asked(answered, Instant::now());
        self.tell(endpoint, turn, "requests fail");
    }

    /// Its head is this far behind the best.
    pub(super) fn note_lag(&self, endpoint: &Endpoint, blocks: u64) {
        let turn = endpoint.health.lags(blocks, Instant::now());
        self.tell(endpoint, turn, "its head is behind");
    }

    /// It was asked whose chain it serves.
    pub(super) fn note_identity(&self, endpoint: &Endpoint, identity: Identity) {
        let (before, turn) = endpoint.health.identified(identity.clone(), Instant::now());
        match &identity {
            Identity::External(problem) if before != identity => {
                tracing::error!(chain.id = self.chain.0, endpoint = %endpoint.shown, problem,
                    "a node serves another chain: it is not used");
            }
            _ => self.tell(endpoint, turn, ""),
        }
    }

    /// Nodes that were not checked are not used any more.
    pub(super) fn guard(&self) {
        self.guarded.store(true, Relaxed);
        self.gauge();
    }

    fn tell(&self, endpoint: &Endpoint, turn: Option<Turn>, reason: &str) {
        let Some(turn) = turn else { return };
        match turn {
            Turn::Sick => tracing::warn!(chain.id = self.chain.0, endpoint = %endpoint.shown,
                lag = endpoint.health.lag(), reason, "a node does badly: the others are asked first"),
            Turn::Well => {
                self.recoveries.fetch_add(1, Relaxed);
                tracing::info!(chain.id = self.chain.0, endpoint = %endpoint.shown, "a node does well again")
            }
        }
        self.gauge();
    }

    fn gauge(&self) {
        let now = Instant::now();
        for node in &self.endpoints {
            let healthy = self.is_usable(node) && node.health.well(now);
            let labels = [("chain", self.chain.to_string()), ("node", node.label.clone())];
            metrics::gauge!(RPC_NODE_HEALTHY, &labels).set(if healthy { 1.0 } else { 0.0 });
            metrics::gauge!(RPC_NODE_LAG_BLOCKS, &labels).set(node.health.lag() as f64);
        }
    }
}

/// There is nobody to ask.
pub(super) fn no_node(method: &'static str) -> RpcError {
    RpcError::Transport {
        method,
        endpoint: "no node".into(),
        reason: "no node is known to serve this chain".into(),
    }
}
