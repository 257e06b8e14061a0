//! The harness of the end-to-end tests: a whole Gapless on a real PostgreSQL and a real chain, whose processes can be
//! killed, stopped and continued, and whose end is always the audit.
//!
//! Tests run in parallel: each `Stack` has a database, a chain, ports and a directory of its own. Nothing sleeps; every
//! wait is for something, and says what it last saw when it gives up.
//!
//! A harness fails by panicking, so that the line that failed is the test's.
#![allow(clippy::unwrap_used)]

mod authority;
mod callers;
pub mod chaos;
mod client;
pub mod cloud;
mod database_clock;
mod eventually;
mod grep;
mod ha_pair;
pub mod model;
mod node;
mod nodes;
mod plain_http;
mod policy;
mod pooler;
pub mod proxy;
mod python;
pub mod reference_worker;
mod rows;
mod schemathesis;
mod servers;
mod service;
mod signing;
pub mod sim;
mod stack;
mod submitter;
mod switch;
mod tcp_proxy;
mod terminator;
mod tls_postgres;

pub use authority::{Authority, Identity};
pub use callers::{Caller, ReservationRow};
pub use client::{Answer, Client};
pub use database_clock::{ClockedPostgres, DatabaseClock};
pub use eventually::{LIMIT, eventually, eventually_within};
pub use gapless::domain::{Address, H256, TxId, TxState, U256};
pub use gapless_cli::localnet::Mining;
pub use grep::Grep;
pub use ha_pair::HaPair;
pub use node::Node;
pub use nodes::{NodeKind, NodeOptions};
pub use policy::{Permitted, PolicyRow};
pub use pooler::{Mode, Pooler, Unknown};
pub use proxy::{Fault, PENDING_COUNT, Proxy, SendsOf, Sent};
pub use rows::{AttemptRow, CursorRow, LeaseRow, TxRow};
pub use schemathesis::Schemathesis;
pub use service::{Service, ServiceBuilder};
pub use signing::{Manner, SigningService};
pub use stack::{CliOutput, Stack, StackBuilder, Verdict};
pub use submitter::{Submitter, payload};
pub use switch::Switch;
pub use tcp_proxy::{Outage, TcpProxy};
pub use terminator::Terminator;
pub use tls_postgres::{CERTIFIED, TlsPostgres};
