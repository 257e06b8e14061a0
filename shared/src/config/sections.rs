//! The sections of the file, each with its defaults and the reason for them.

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
use crate::domain::Finality;
use crate::domain::stuck::StuckAction;

#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Database {
    /// A PostgreSQL URL. A secret, because it usually carries a password.
    pub url: Secret,
    /// Connections of an API process for reads; it opens five more. A worker opens `worker.writers` and seven more.
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
    /// Names this process in leases and logs. Empty: host name, process id and a random part.
    pub id: String,
    /// Submitters this process may own at once.
    pub max_leases: usize,
    /// Claimed submitters per poll: bounds how long one claim holds its row locks.
    pub claim_batch: usize,
    /// Connections that commit fenced writes (2 to 4: more only contend for the same log).
    pub writers: usize,
    /// How often the database is asked for work; a notification only shortens the wait.
    #[serde(with = "humantime_serde")]
    pub poll_interval: Duration,
    /// How long a lane without work keeps its lease.
    #[serde(with = "humantime_serde")]
    pub linger: Duration,
    /// Where /metrics and /healthz of the worker listen; absent: nowhere.
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
    /// A lease is taken over only this long after it expired.
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
    /// Every database wait of a worker ends before a third of the lease is gone, so that a worker that waits
    /// still has time to renew, and a frozen one is cut off before its successor needs the rows.
    pub fn database_timeout(&self) -> Duration {
        self.duration.mul_f64(0.3)
    }
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Signer {
    /// Directory of V3 keystore files.
    pub keystore: Option<PathBuf>,
    /// File that holds the keystore password; its trailing newline is ignored.
    pub password_file: Option<PathBuf>,
    /// Environment variable that holds the keystore password.
    pub password_env: Option<String>,
    /// Environment variables that each hold one raw private key in hex. For development.
    pub raw_key_env: Vec<String>,
    /// Signers asked by `eth_signTransaction`.
    pub json_rpc: Vec<RemoteSigner>,
    /// Signers asked by Clef's `account_signTransaction`.
    pub clef: Vec<RemoteSigner>,
    /// Signing services, as docs/signing-service.md describes them.
    pub http: Vec<RemoteSigner>,
    /// Keys of AWS KMS.
    pub aws_kms: Vec<AwsKms>,
    /// Keys of Google Cloud KMS.
    pub gcp_kms: Vec<GcpKms>,
}

/// A key or password in the place of the variable that should hold it would be told to everybody as a name.
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
    /// Clients ask; nothing is written.
    #[default]
    Poll,
    /// Each event becomes a log line.
    Log,
    /// Written to `outbox_event` in the transaction of the state change; whoever delivers reads it from there.
    MqOutbox,
    /// As `mq_outbox`, delivered by HTTP. Refused until delivery exists.
    Webhook,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Events {
    pub mode: EventsMode,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Duties {
    /// Cron expressions with seconds: `sec min hour day month weekday`. Empty: the duty is off.
    pub prune: String,
    /// Finished rows older than this are removed by `prune`. Absent: kept for ever.
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
    /// Every node that answers at least now and then; the first success counts.
    #[default]
    All,
    /// The best node; another one when it cannot be asked.
    First,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Rpc {
    /// One URL; short for `urls = [url]`. Secrets, because providers put keys into them.
    pub url: Option<Secret>,
    pub urls: Vec<Secret>,
    /// Only with `rpc.url` and no `[chain.*]` table: the id of that one chain.
    pub chain_id: Option<u64>,
    /// PEM file of authorities that may vouch for a node beside those of the system: for nodes of one's own.
    pub ca_file: Option<PathBuf>,
    #[serde(with = "humantime_serde")]
    pub timeout: Duration,
    /// HTTP requests under way at once, each a batch.
    pub max_in_flight: usize,
    /// Calls in one batch at the most; halved by itself when a node finds it too large.
    pub max_batch: usize,
    /// How often the head is asked for when nobody expects a block.
    #[serde(with = "humantime_serde")]
    pub poll_interval: Duration,
    /// Who gets a transaction where there are several nodes.
    pub broadcast: Broadcast,
    /// A node whose head is further behind the best one is asked last.
    pub max_lag_blocks: u64,
    /// Extra wordings for error classes: `{ nonce_too_low = ["stale nonce"] }`.
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
    /// How old the chain's count may be when a nonce of a shared key is given. Zero: it is asked before every nonce.
    #[serde(with = "humantime_serde")]
    pub count_max_age: Duration,
    /// The chain's count a submitter must have at first use, unless an operator adopts it.
    pub start_from: u64,
    pub max_in_flight: u32,
    pub release_at: ReleaseAt,
    pub profile: Profile,
    /// The longest a caller outside may hold a nonce: its submitter sends nothing meanwhile.
    #[serde(with = "humantime_serde")]
    pub max_reservation: Duration,
    pub low_level: LowLevel,
}

/// Nonces by the low-level hook, and to no request of the queue.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LowLevel {
    pub enabled: bool,
}

/// How far Gapless may go to keep a sequence moving.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Profile {
    /// Replacements where they are switched on; placeholders where a nonce would otherwise stay unused.
    #[default]
    Standard,
    /// The bytes that were signed first, and no others: neither replacement nor placeholder, ever. A nonce that can
    /// never be consumed then stops its submitter until a person acts.
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

/// What becomes of a QUEUED intent that cannot be paid or priced for long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BlockedPolicy {
    /// It stays at the head, and everything behind it waits.
    #[default]
    Wait,
    /// Those behind it go first; it is tried again before each of them.
    Pass,
    /// It is FAILED.
    Fail,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Queue {
    /// For `waiting_funds` and `waiting_fee` alone: what a node or a signer owes ends nothing.
    pub blocked: BlockedPolicy,
    /// Blocked this long before `pass` or `fail` apply.
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
    /// An intent that is unmined this long after its nonce was given is called STUCK: an alarm, not an end.
    #[serde(with = "humantime_serde")]
    pub after: Duration,
    /// As `after`, by the number of sends. 0: however often.
    pub max_attempts: u32,
    /// What is done about it: wait, rebroadcast, bump, cancel or escalate.
    pub policy: StuckAction,
}

impl Default for Stuck {
    fn default() -> Self {
        Stuck { after: Duration::from_secs(30 * 60), max_attempts: 0, policy: StuckAction::Wait }
    }
}

/// Replacement of an unmined attempt by one with a higher price, at the same nonce.
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

/// Asking the nodes where an unmined transaction is. Advice only.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MempoolDiagnose {
    pub enabled: bool,
    /// An intent that is unmined this long is looked for, and again after as long. As `resubmit.interval`: most are mined
    /// before, and then nobody is asked anything.
    #[serde(with = "humantime_serde")]
    pub interval: Duration,
    /// Lets the answer bring forward what would be done later anyway: a resend, a look for what consumed the nonce, a higher price.
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
    /// Blocks, the transaction's own included, before an intent is final; or the chain's own word, `safe` or `finalized`.
    pub required: Finality,
    /// A mined intent that makes no progress for this long has its receipt read again.
    #[serde(with = "humantime_serde")]
    pub stale_receipt_timeout: Duration,
    /// Receipt look-ups under way at once, of lanes and watcher together; each is a batch of up to `rpc.max_batch` receipts.
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
    /// Wei, as a decimal string. Below it the balance duty warns. Empty: never.
    #[serde(deserialize_with = "super::text::text_or_number")]
    pub low: String,
}
