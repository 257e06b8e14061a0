//! End-to-end tests on a real PostgreSQL and a real chain, one module per part of docs/internals/scenarios.md. The numbers in
//! comments are those of the scenarios.
#![allow(clippy::unwrap_used)]

mod answers;
mod api_keys;
mod blocked;
mod chains;
mod chaos;
mod cli;
mod clocks;
#[cfg(feature = "cloud-keys")]
mod cloud_keys;
mod codes;
mod confirmations;
mod connections;
mod crash;
mod database_clock;
mod dead_ends;
mod delegated;
mod doctor;
mod duties;
mod events;
mod evidence;
mod failover;
mod fees;
mod fence;
mod finality;
mod funds;
mod harness;
mod history;
mod ingest;
mod input;
mod json_rpc;
mod kept;
mod late_answers;
mod lease;
mod limits;
mod load;
mod low_level;
mod machine;
mod malicious_nodes;
mod mempool;
mod node;
mod nodes;
mod observe;
mod openapi;
mod payloads;
mod pending_use;
mod policy;
mod ports;
mod protect;
mod replacement;
mod reserve_crash;
mod reverts;
mod roles;
mod secrets;
mod sequence;
mod shared_keys;
mod signers;
mod silence;
mod simulate;
mod slow_readers;
mod starts;
mod stuck;
mod surface;
mod tls;
mod traces;
mod trouble;
mod unaffordable;
mod up;
mod upgrade;
mod urls;
mod waiting;
mod webhooks;
mod with_nonce;

use gapless_testkit::StackBuilder;

/// A stack of this build's processes.
fn stack() -> StackBuilder {
    StackBuilder::new(env!("CARGO_BIN_EXE_gapless-stack"))
}
