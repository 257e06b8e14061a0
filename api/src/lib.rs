//! The REST API: takes intents and answers questions. It holds no lease and no key and sends nothing to a chain (it asks one
//! only to simulate), so any number of these processes can run side by side and each can answer every request.

mod app;
mod auth;
mod connections;
mod document;
mod edge;
mod error;
#[cfg(feature = "hostile")]
pub mod hostile;
mod intake;
mod nodes;
mod ready;
mod routes;
mod server;
mod settled;
mod tls;
mod unstalled;
mod wait;
mod whole_body;
mod wire;

pub use document::spec_yaml;
pub use server::run;
