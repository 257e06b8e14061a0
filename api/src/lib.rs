//! The REST API: takes intents and answers questions. It holds no lease and no key and never talks to a chain, so any
//! number of these processes can run side by side and each can answer every request.

mod app;
mod auth;
mod edge;
mod error;
mod intake;
mod notifier;
mod ready;
mod routes;
mod server;
mod settled;
mod wait;
mod wire;

pub use server::{run, spec_yaml};
