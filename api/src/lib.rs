//! The REST API: takes intents and answers questions. It holds no lease and no key and sends nothing to a chain (it asks one
//! only to simulate), so any number of these processes can run side by side and each can answer every request.

mod app;
mod auth;
mod body_limit;
mod connections;
mod document;
mod error;
#[cfg(feature = "fuzz")]
pub mod fuzz_entry;
mod intake;
mod long_poll;
mod middleware;
mod nodes;
mod ready;
mod routes;
mod server;
mod tls;
mod wait;
mod wire;
mod write_timeout;

pub use document::spec_yaml;
pub use server::run;
