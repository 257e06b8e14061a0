//! End to end on a real PostgreSQL and a real chain, one module for each part of the list of scenarios. The number in
//! a test's comment is the scenario's.
#![allow(clippy::unwrap_used)]

mod chains;
mod cli;
mod confirmations;
mod crash;
mod dead_ends;
mod duties;
mod fees;
mod fence;
mod finality;
mod funds;
mod harness;
mod ingest;
mod lease;
mod load;
mod machine;
mod node;
mod observe;
mod protect;
mod replacement;
mod sequence;
mod signers;
mod simulate;
mod stuck;
mod surface;
mod urls;

use gapless_tests::StackBuilder;

/// A stack of this build's processes.
fn stack() -> StackBuilder {
    StackBuilder::new(env!("CARGO_BIN_EXE_gapless-stack"))
}
