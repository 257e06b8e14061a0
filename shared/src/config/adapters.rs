//! Which code serves a chain, where a program brings code of its own.

use serde::Deserialize;

/// Names of adapters that the program has registered with the worker's builder. Empty: what Gapless brings, as the other
/// sections set it.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Adapters {
    pub connector: String,
    pub fee_policy: String,
    pub gas_bump_policy: String,
    pub stuck_policy: String,
    pub mempool_inspector: String,
}
