//! The test harness: runs Gapless on a real PostgreSQL and a real chain. Tests can kill, stop and continue its
//! processes; every test ends with an audit.
//!
//! Tests run in parallel: each `Stack` has its own database, chain, ports and directory. There are no fixed sleeps;
//! every wait polls for a condition, and a timeout reports the last observed value.
//!
//! The harness panics on errors, so that the test fails at the calling line.
#![allow(clippy::unwrap_used)]

mod authority;
mod client;
#[cfg(feature = "cloud-keys")]
pub mod cloud;
mod collector;
mod database_clock;
mod event_stream;
mod eventually;
mod grep;
mod ha_pair;
mod node;
mod nodes;
mod plain_http;
mod policy;
mod pooler;
mod proxy;
mod python;
mod recording;
mod reservation_clients;
mod rows;
mod schemathesis;
pub mod servers;
mod service;
mod signing;
mod stack;
mod submitter;
mod switch;
mod tcp_proxy;
mod terminator;
mod tls_postgres;
mod trace_picture;
mod webhook_receiver;

pub use authority::{Authority, Identity};
pub use client::{Answer, Client};
pub use collector::{Collector, ExportedSpan};
pub use database_clock::{ClockedPostgres, DatabaseClock};
pub use event_stream::{EventStream, Message};
pub use eventually::{LIMIT, eventually, eventually_within};
pub use gapless_domain::{Address, H256, TxId, TxState, U256};
pub use gapless_localnet::Mining;
pub use grep::Grep;
pub use ha_pair::HaPair;
pub use node::Node;
pub use nodes::{NodeKind, NodeOptions};
pub use policy::{Permitted, PolicyRow};
pub use pooler::{Mode, Pooler, Unknown};
pub use proxy::{Fault, PENDING_COUNT, Proxy, Refused, SendsOf, Sent};
pub use recording::Recording;
pub use reservation_clients::{ReservationClient, ReservationRow};
pub use rows::{AttemptRow, CursorRow, LeaseRow, TxRow};
pub use schemathesis::Schemathesis;
pub use service::{ADMIN_TOKEN, Part, Service, ServiceBuilder};
pub use signing::{Behaviour, SigningService};
pub use stack::{AuditResult, CliOutput, Stack, StackBuilder, new_webhook_key};
pub use submitter::{Submitter, payload};
pub use switch::Switch;
pub use tcp_proxy::{Outage, TcpProxy};
pub use terminator::Terminator;
pub use tls_postgres::{CERTIFIED, TlsPostgres};
pub use trace_picture::trace_picture;
pub use webhook_receiver::{Received, Reply, Unverified, WebhookReceiver, first_arrivals, ids_of};
