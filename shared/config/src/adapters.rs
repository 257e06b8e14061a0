//! Selects custom adapters for a chain, in programs that embed the worker.

use serde::Deserialize;

/// Names of adapters registered with the worker's builder. Empty: the built-in implementation, as configured in the
/// other sections.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Adapters {
    pub connector: String,
    pub fee_policy: String,
    pub gas_bump_policy: String,
    pub stuck_policy: String,
    pub mempool_inspector: String,
}
