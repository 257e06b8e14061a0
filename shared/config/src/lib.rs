//! Configuration: one TOML file. Environment variables override every key; unknown keys are errors.
//!
//! `GAPLESS__LEASE__DURATION=10s` overrides `lease.duration`. `DATABASE_URL` overrides `database.url`.
//! The sections `rpc`, `nonce`, `fees`, `resubmit`, `queue`, `stuck`, `gasbump`, `mempool`, `confirmations`, `balance`,
//! `adapters` and `submitter` are defaults for every chain; a table `[chain.NAME]` defines a chain and may override any
//! of their keys for it.

mod adapters;
mod api;
mod chain;
mod cloud_keys;
pub mod endpoint;
mod fees;
mod load;
mod policy;
mod redact;
mod remote_signer;
#[cfg(test)]
mod sample_tests;
mod secret;
pub mod secret_file;
mod sections;
mod security_warnings;
mod submitter;
mod text;
mod traces;
mod webhook;

pub use adapters::Adapters;
pub use api::{Api, ApiTls, FeesInCall, JsonRpc, NonceInCall};
pub use chain::{ChainConfig, ReleaseAt};
pub use cloud_keys::{AwsCredentials, AwsKms, CloudKey, GcpKms};
pub use fees::{FeePolicyKind, Fees, FixedFees, GasStation, Multipliers, Percentiles, PricePaths, PriceUnit};
pub use load::ConfigError;
pub use policy::{AllowedCalls, PolicySettings};
pub use remote_signer::RemoteSigner;
pub use secret::Secret;
pub use sections::{
    Balance, BlockedPolicy, Broadcast, Confirmations, Database, Duties, Events, EventsMode, GasBump, Lease,
    Log, LogFormat, LowLevel, Mempool, MempoolDiagnose, Nonce, NonceStrict, Profile, Queue, Resubmit, Rpc,
    Signer, Stuck, Worker,
};
pub use submitter::{OwnSwitch, SubmitterNonce, SubmitterSettings};
pub use traces::Traces;
pub use webhook::Webhook;

use std::collections::BTreeMap;

use serde::Deserialize;

/// The complete configuration, with defaults applied and chains resolved.
#[derive(Clone, Debug)]
pub struct Config {
    pub database: Database,
    pub api: Api,
    pub worker: Worker,
    pub lease: Lease,
    pub signer: Signer,
    pub events: Events,
    pub duties: Duties,
    pub log: Log,
    pub traces: Traces,
    /// By name, as in `[chain.NAME]`. At least one.
    pub chains: BTreeMap<String, ChainConfig>,
}

/// The file as parsed: sections for all chains, and tables of single chains.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct File {
    database: Database,
    api: Api,
    worker: Worker,
    lease: Lease,
    signer: Signer,
    events: Events,
    duties: Duties,
    log: Log,
    traces: Traces,
    rpc: Rpc,
    nonce: Nonce,
    fees: Fees,
    resubmit: Resubmit,
    queue: Queue,
    stuck: Stuck,
    gasbump: GasBump,
    mempool: Mempool,
    confirmations: Confirmations,
    balance: Balance,
    adapters: Adapters,
    submitter: BTreeMap<String, SubmitterSettings>,
    chain: BTreeMap<String, ChainTable>,
}

/// A chain's table after the common sections were merged into it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ChainTable {
    id: u64,
    #[serde(default)]
    rpc: Rpc,
    #[serde(default)]
    nonce: Nonce,
    #[serde(default)]
    fees: Fees,
    #[serde(default)]
    resubmit: Resubmit,
    #[serde(default)]
    queue: Queue,
    #[serde(default)]
    stuck: Stuck,
    #[serde(default)]
    gasbump: GasBump,
    #[serde(default)]
    mempool: Mempool,
    #[serde(default)]
    confirmations: Confirmations,
    #[serde(default)]
    balance: Balance,
    #[serde(default)]
    adapters: Adapters,
    #[serde(default)]
    submitter: BTreeMap<String, SubmitterSettings>,
}

impl Config {
    /// Reads `path` (if given); environment variables override it.
    pub fn load(path: Option<&std::path::Path>) -> Result<Config, ConfigError> {
        load::load(path)
    }

    /// Insecure settings, one line each, to be logged at startup.
    pub fn security_warnings(&self) -> Vec<String> {
        security_warnings::security_warnings(self)
    }

    pub fn chain(&self, id: gapless_domain::ChainId) -> Option<&ChainConfig> {
        self.chains.values().find(|chain| chain.id == id)
    }
}
