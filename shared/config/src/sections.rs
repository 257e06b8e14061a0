//! The sections of the configuration file and their defaults.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;

use super::chain::ReleaseAt;
use super::cloud_keys::{AwsKms, GcpKms};
use super::load::ConfigError;
use super::redact::{NOT_A_VARIABLE, is_variable_name};
use super::remote_signer::RemoteSigner;
use super::secret::Secret;
use super::webhook::Webhook;
use gapless_domain::Finality;
use gapless_domain::stuck::StuckAction;

#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Database {
    /// PostgreSQL URL. A secret, because it usually contains a password.
    pub url: Secret,
    /// Read connections of an API process, which opens six more. A worker opens `worker.writers` plus ten.
    pub max_connections: u32,
}

impl Default for Database {
    fn default() -> Self {
        Database { url: Secret::default(), max_connections: 10 }
    }
}

#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Worker {
    /// Worker id in leases and logs. Empty: host name, process id and a random part.
    pub id: String,
    /// Maximum submitters this process owns at the same time.
    pub max_leases: usize,
    /// Maximum submitters claimed per poll; limits how long a claim holds row locks.
    pub claim_batch: usize,
    /// Connections that commit fenced writes. More than 4 only contend for the WAL.
    pub writers: usize,
    /// Polling interval for work; NOTIFY only shortens the wait.
    #[serde(with = "humantime_serde")]
    pub poll_interval: Duration,
    /// How long an idle lane keeps its lease.
    #[serde(with = "humantime_serde")]
    pub linger: Duration,
    /// Listening address of the worker's /metrics and /healthz; absent: disabled.
    pub metrics_bind: Option<SocketAddr>,
}

impl Default for Worker {
    fn default() -> Self {
        Worker {
            id: String::new(),
            max_leases: 5_000,
            claim_batch: 500,
            writers: 3,
            poll_interval: Duration::from_secs(1),
            linger: Duration::from_secs(2),
            metrics_bind: None,
        }
    }
}

#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Lease {
    #[serde(with = "humantime_serde")]
    pub duration: Duration,
    #[serde(with = "humantime_serde")]
    pub renew_interval: Duration,
    /// An expired lease can be taken over only after this additional time.
    #[serde(with = "humantime_serde")]
    pub clock_skew: Duration,
}

impl Default for Lease {
    fn default() -> Self {
        Lease {
            duration: Duration::from_secs(10),
            renew_interval: Duration::from_secs(3),
            clock_skew: Duration::from_secs(1),
        }
    }
}

impl Lease {
    /// Database operations of a worker time out after less than a third of the lease duration, so that there is time to
    /// renew the lease, and a frozen worker's locks are gone before its successor needs the rows.
    pub fn database_timeout(&self) -> Duration {
        self.duration.mul_f64(0.3)
    }
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Signer {
    /// Directory of V3 keystore files.
    pub keystore: Option<PathBuf>,
    /// File with the keystore password; a trailing newline is ignored.
    pub password_file: Option<PathBuf>,
    /// Environment variable with the keystore password.
    pub password_env: Option<String>,
    /// Environment variables, each with one raw private key in hex. For development.
    pub raw_key_env: Vec<String>,
    /// Signers with the method `eth_signTransaction`.
    pub json_rpc: Vec<RemoteSigner>,
    /// Signers with Clef's method `account_signTransaction`.
    pub clef: Vec<RemoteSigner>,
    /// Signing services (docs/operate/signing-service.md).
    pub http: Vec<RemoteSigner>,
    /// Keys of AWS KMS.
    pub aws_kms: Vec<AwsKms>,
    /// Keys of Google Cloud KMS.
    pub gcp_kms: Vec<GcpKms>,
}

/// Rejects a key or password entered instead of a variable's name, because such names appear in messages.
pub(super) fn check_variables(signer: &Signer) -> Result<(), ConfigError> {
    let password = signer.password_env.iter().map(|name| ("signer.password_env", name));
    for (key, name) in password.chain(signer.raw_key_env.iter().map(|name| ("signer.raw_key_env", name))) {
        if !is_variable_name(name) {
            return Err(ConfigError::Invalid { key: key.into(), problem: NOT_A_VARIABLE.into() });
        }
    }
    Ok(())
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EventsMode {
    /// Asks for nothing: clients poll, or read events if an operator has enabled them.
    #[default]
    Poll,
    /// Each event of this process is a log line.
    Log,
    /// Asks for the recording of events in the event log.
    MqOutbox,
    /// The same as `mq_outbox`. Webhooks are delivered in every mode, if events are recorded.
    Webhook,
}

impl EventsMode {
    /// Whether events are to be recorded for the whole deployment.
    pub fn asks_for_recording(self) -> bool {
        matches!(self, EventsMode::MqOutbox | EventsMode::Webhook)
    }
}

#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Events {
    pub mode: EventsMode,
    /// Events are kept at least this long, whether read or not.
    #[serde(with = "humantime_serde")]
    pub retention: Duration,
    pub webhook: Webhook,
}

impl Default for Events {
    fn default() -> Self {
        Events {
            mode: EventsMode::default(),
            retention: Duration::from_secs(7 * 24 * 3600),
            webhook: Webhook::default(),
        }
    }
}

#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Duties {
    /// Cron expressions with seconds: `sec min hour day month weekday`. Empty: the duty is off.
    pub prune: String,
    /// `prune` removes final rows older than this. Absent: they are retained for ever.
    #[serde(with = "humantime_serde")]
    pub retention: Option<Duration>,
    pub audit_nonces: String,
    pub check_balances: String,
}

impl Default for Duties {
    fn default() -> Self {
        Duties {
            prune: "0 17 * * * *".into(),
            retention: None,
            audit_nonces: "0 */5 * * * *".into(),
            check_balances: "30 * * * * *".into(),
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    #[default]
    Json,
    Text,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Log {
    /// `tracing` filter, for example `info,gapless_worker=debug`.
    pub level: String,
    pub format: LogFormat,
}

impl Default for Log {
    fn default() -> Self {
        Log { level: "info".into(), format: LogFormat::Json }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Broadcast {
    /// All nodes that are not down; the first success counts.
    #[default]
    All,
    /// The best node; another one if it cannot be reached.
    First,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Rpc {
    /// Short for `urls = [url]`. A secret, because provider URLs contain API keys.
    pub url: Option<Secret>,
    pub urls: Vec<Secret>,
    /// The chain id, if there is no `[chain.*]` table.
    pub chain_id: Option<u64>,
    /// PEM file with extra CA certificates for nodes.
    pub ca_file: Option<PathBuf>,
    #[serde(with = "humantime_serde")]
    pub timeout: Duration,
    /// Maximum concurrent HTTP requests; each is a batch.
    pub max_in_flight: usize,
    /// Maximum calls per batch; halved automatically if a node rejects it as too large.
    pub max_batch: usize,
    /// Polling interval for the head block when no new block is expected.
    #[serde(with = "humantime_serde")]
    pub poll_interval: Duration,
    /// Which nodes a transaction is sent to.
    pub broadcast: Broadcast,
    /// A node whose head is further behind the best one is used last.
    pub max_lag_blocks: u64,
    /// Extra message patterns for error classes: `{ nonce_too_low = ["stale nonce"] }`.
    pub error_patterns: BTreeMap<String, Vec<String>>,
}

impl Default for Rpc {
    fn default() -> Self {
        Rpc {
            url: None,
            urls: Vec::new(),
            chain_id: None,
            ca_file: None,
            timeout: Duration::from_secs(10),
            max_in_flight: 100,
            max_batch: 100,
            poll_interval: Duration::from_millis(500),
            broadcast: Broadcast::All,
            max_lag_blocks: 5,
            error_patterns: BTreeMap::new(),
        }
    }
}

#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NonceStrict {
    pub enabled: bool,
}

impl Default for NonceStrict {
    fn default() -> Self {
        NonceStrict { enabled: true }
    }
}

#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Nonce {
    pub strict: NonceStrict,
    /// Maximum age of the transaction count when a nonce of a shared key is assigned. Zero: read before every nonce.
    #[serde(with = "humantime_serde")]
    pub count_max_age: Duration,
    /// The transaction count a submitter must have at first use, unless an operator adopts it.
    pub start_from: u64,
    pub max_in_flight: u32,
    pub release_at: ReleaseAt,
    pub profile: Profile,
    /// Maximum duration of a nonce reservation; the submitter sends nothing meanwhile.
    #[serde(with = "humantime_serde")]
    pub max_reservation: Duration,
    pub low_level: LowLevel,
}

/// If enabled, only the low-level API assigns nonces; queued requests get none.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LowLevel {
    pub enabled: bool,
}

/// Which transactions Gapless may add to keep a nonce sequence moving.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Profile {
    /// Replacements if enabled, and placeholders where a nonce would otherwise stay unused.
    #[default]
    Standard,
    /// Only the transaction signed first: no replacements and no placeholders. A nonce that cannot be consumed blocks
    /// its submitter until an operator acts.
    StabilityFirst,
}

impl Default for Nonce {
    fn default() -> Self {
        Nonce {
            strict: NonceStrict::default(),
            count_max_age: Duration::ZERO,
            start_from: 0,
            max_in_flight: 1,
            release_at: ReleaseAt::Confirmed,
            profile: Profile::Standard,
            max_reservation: Duration::from_secs(60),
            low_level: LowLevel::default(),
        }
    }
}

#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Resubmit {
    pub enabled: bool,
    #[serde(with = "humantime_serde")]
    pub interval: Duration,
}

impl Default for Resubmit {
    fn default() -> Self {
        Resubmit { enabled: true, interval: Duration::from_secs(60) }
    }
}

/// What happens to a QUEUED intent that stays unfunded or above the fee limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BlockedPolicy {
    /// It stays at the head of the queue and blocks the others.
    #[default]
    Wait,
    /// Later intents may pass it; it is retried before each of them.
    Pass,
    /// It is FAILED.
    Fail,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Queue {
    /// Applies to `waiting_funds` and `waiting_fee` only, not to node or signer failures.
    pub blocked: BlockedPolicy,
    /// Time after which `pass` or `fail` applies.
    #[serde(with = "humantime_serde")]
    pub blocked_after: Duration,
}

impl Default for Queue {
    fn default() -> Self {
        Queue { blocked: BlockedPolicy::Wait, blocked_after: Duration::from_secs(10 * 60) }
    }
}

#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Stuck {
    /// An intent unmined this long after its nonce was assigned becomes STUCK, which is not a final state.
    #[serde(with = "humantime_serde")]
    pub after: Duration,
    /// Like `after`, by the number of sends. 0: no limit.
    pub max_attempts: u32,
    /// Action on STUCK: wait, rebroadcast, bump, cancel or escalate.
    pub policy: StuckAction,
}

impl Default for Stuck {
    fn default() -> Self {
        Stuck { after: Duration::from_secs(30 * 60), max_attempts: 0, policy: StuckAction::Wait }
    }
}

/// Replacement of an unmined attempt by one with a higher gas price at the same nonce.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GasBump {
    pub enabled: bool,
    #[serde(with = "humantime_serde")]
    pub min_interval: Duration,
    pub max_attempts: u32,
    pub multiplier: f64,
}

impl Default for GasBump {
    fn default() -> Self {
        GasBump { enabled: false, min_interval: Duration::from_secs(60), max_attempts: 10, multiplier: 1.125 }
    }
}

/// Locates unmined transactions in the nodes' mempools. Advisory.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MempoolDiagnose {
    pub enabled: bool,
    /// An intent unmined this long is looked up, and again at this interval. The default equals `resubmit.interval`:
    /// most transactions are mined earlier and cause no calls.
    #[serde(with = "humantime_serde")]
    pub interval: Duration,
    /// Lets the result trigger a resend, a check for an external transaction or a gas bump earlier than scheduled.
    pub act: bool,
}

impl Default for MempoolDiagnose {
    fn default() -> Self {
        MempoolDiagnose { enabled: false, interval: Duration::from_secs(60), act: false }
    }
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Mempool {
    pub diagnose: MempoolDiagnose,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Confirmations {
    /// Confirmations (including the transaction's own block) before an intent is final, or `safe` or `finalized`.
    pub required: Finality,
    /// The receipt of a mined intent without progress for this long is read again.
    #[serde(with = "humantime_serde")]
    pub stale_receipt_timeout: Duration,
    /// Maximum concurrent receipt look-ups of lanes and watcher; each is a batch of up to `rpc.max_batch` receipts.
    pub receipt_workers: usize,
}

impl Default for Confirmations {
    fn default() -> Self {
        Confirmations {
            required: Finality::Blocks(20),
            stale_receipt_timeout: Duration::from_secs(60),
            receipt_workers: 10,
        }
    }
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Balance {
    /// Wei, as a decimal string. The balance duty warns below it. Empty: no warning.
    #[serde(deserialize_with = "super::text::text_or_number")]
    pub low: String,
}
