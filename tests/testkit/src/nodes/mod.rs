//! Node programs: anvil by default; Hardhat and geth show that nothing depends on anvil.
//!
//! This module starts and stops them; `node.rs` has the operations for tests.

mod geth;
mod hardhat;
mod process;

use std::path::Path;

use gapless_localnet::{Anvil, AnvilOptions, Mining, StateFile};

pub(crate) use self::geth::HELD_BELOW_TIP;
use self::process::NodeProcess;
use crate::servers;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NodeKind {
    #[default]
    Anvil,
    /// In-memory: after a restart the chain is empty.
    Hardhat,
    /// Go-Ethereum with `--dev`: a real node with a real mempool. Its chain id is fixed.
    Geth,
}

/// Options of a chain.
#[derive(Clone, Debug)]
pub struct NodeOptions {
    pub chain_id: u64,
    pub mining: Mining,
    /// Number of anvil's well-known accounts whose keys the node has.
    pub accounts: u32,
    /// Additional command line arguments.
    pub extra: Vec<String>,
    pub env: Vec<(String, String)>,
}

impl NodeOptions {
    pub fn new(chain_id: u64, mining: Mining) -> NodeOptions {
        NodeOptions { chain_id, mining, accounts: 0, extra: Vec::new(), env: Vec::new() }
    }
}

/// A running node program.
#[derive(Debug)]
pub(crate) enum Server {
    Anvil(Box<Anvil>),
    Other(Box<NodeProcess>),
}

impl Server {
    pub(crate) async fn start(kind: NodeKind, options: &NodeOptions, log: &Path) -> Server {
        match kind {
            NodeKind::Anvil => Server::Anvil(Box::new(anvil(options, log).await)),
            NodeKind::Hardhat => Server::Other(Box::new(hardhat::start(options, log).await)),
            NodeKind::Geth => Server::Other(Box::new(geth::start(options, log).await)),
        }
    }

    pub(crate) fn url(&self) -> String {
        match self {
            Server::Anvil(anvil) => anvil.url(),
            Server::Other(node) => node.url(),
        }
    }

    pub(crate) fn kill9(&mut self) {
        match self {
            Server::Anvil(anvil) => anvil.kill9(),
            Server::Other(node) => node.kill9(),
        }
    }

    /// Stops it gracefully and starts it again at the same address.
    pub(crate) async fn restart(&mut self) {
        match self {
            Server::Anvil(anvil) => anvil.restart().await.expect("anvil starts again"),
            Server::Other(node) => node.restart().await,
        }
    }
}

async fn anvil(options: &NodeOptions, log: &Path) -> Anvil {
    assert!(options.env.is_empty(), "env is not supported for anvil");
    let options = AnvilOptions {
        chain_id: options.chain_id,
        mining: options.mining,
        accounts: options.accounts,
        state: Some(StateFile { path: log.with_extension("json"), every_secs: 3600 }),
        log: Some(log.to_owned()),
        extra: options.extra.clone(),
        ..AnvilOptions::default()
    };
    Anvil::start(servers::anvil_program().await, options).await.expect("anvil starts")
}
