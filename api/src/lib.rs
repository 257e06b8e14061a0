//! The REST API: accepts intents and serves queries. It has no lease and no signing key and sends nothing to a chain
//! (it calls a node only to simulate), so any number of API processes can run and each can serve every request.

mod app;
mod auth;
mod document;
mod error;
mod events;
#[cfg(feature = "fuzz")]
pub mod fuzz_entry;
mod intake;
mod json_rpc;
mod long_poll;
mod middleware;
mod nodes;
mod query;
mod ready;
mod routes;
mod server;
mod wait;
mod webhooks;
mod wire;

pub use document::spec_yaml;
pub use server::run;
