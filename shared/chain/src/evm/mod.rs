//! The EVM adapter: batched JSON-RPC over HTTP.
//!
//! `client` implements the port. It queues calls in a `batcher`, which batches them and fails over between nodes.
//! `broadcast` sends a transaction to all nodes; `exchange` sends a set of calls to one node; `http` does the HTTP
//! request; `nodes` orders the nodes by their `health`, which `survey` updates; `inspect` reads mempools; `diagnosis`
//! queries one node by itself; `consumer` finds the transaction that consumed a nonce; `wire`, `decode`, `revert` and `answer` parse the formats. The adapter
//! stores no transaction state: every call can be repeated.

mod answer;
mod batcher;
mod broadcast;
mod client;
mod consumer;
mod decode;
mod diagnosis;
mod exchange;
#[cfg(feature = "fuzz")]
pub(crate) mod fuzz_entry;
mod health;
mod http;
mod inspect;
mod mined_tx;
mod nodes;
mod revert;
mod survey;
#[cfg(test)]
mod testing;
mod wire;

pub use client::{EvmClient, NodeRefusal};
pub use diagnosis::{BlockTime, SingleNode, SyncProgress};
pub use http::EvmClientError;
pub use inspect::EvmInspector;
