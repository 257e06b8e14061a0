//! Development target.
#![allow(clippy::unwrap_used)]

mod crash;
mod fence;
mod lease;
mod machine;

use gapless_tests::StackBuilder;

/// A stack of this build's processes.
fn stack() -> StackBuilder {
    StackBuilder::new(env!("CARGO_BIN_EXE_gapless-stack"))
}
