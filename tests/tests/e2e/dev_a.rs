//! Development target of some modules of the end-to-end tests.
#![allow(clippy::unwrap_used)]

mod chains;
mod duties;
mod ingest;
mod sequence;
mod surface;

use gapless_tests::StackBuilder;

/// A stack of this build's processes.
fn stack() -> StackBuilder {
    StackBuilder::new(env!("CARGO_BIN_EXE_gapless-stack"))
}
