#![allow(clippy::unwrap_used)]

mod confirmations;
mod funds;
mod node;
mod observe;
mod protect;

use gapless_tests::StackBuilder;

/// A stack of this build's processes.
fn stack() -> StackBuilder {
    StackBuilder::new(env!("CARGO_BIN_EXE_gapless-stack"))
}
