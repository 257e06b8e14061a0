//! The REST API: takes intents and answers questions. It holds no lease and no key and sends nothing to a chain (it asks one
//! only to simulate), so any number of these processes can run side by side and each can answer every request.

mod app;
mod auth;
mod connections;
mod document;
mod middleware;
mod error;
#[cfg(feature = "fuzz")]
pub mod fuzz_entry;
mod intake;
mod nodes;
mod ready;
mod routes;
mod server;
mod long_poll;
mod tls;
mod write_timeout;
mod wait;
mod body_limit;
mod wire;

pub use document::spec_yaml;
pub use server::run;
