//! The EVM adapter: JSON-RPC over HTTP, batched.
//!
//! `client` speaks the port. It puts calls into a `batcher`, which batches them by itself and fails over between
//! nodes; `broadcast` tells a transaction to all of them; `exchange` takes one set of calls to one node; `http` moves
//! bytes; `nodes` orders the nodes by their `health`, which `survey` asks for; `inspect` looks into their pools; `taker`
//! finds who consumed a nonce; `wire`, `decode`, `revert` and `answer` know the formats. None of it remembers a
//! transaction: asking twice is always allowed.

mod answer;
mod batcher;
mod broadcast;
mod client;
mod consumer;
mod decode;
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

pub use client::EvmClient;
pub use http::EvmClientError;
pub use inspect::EvmInspector;
