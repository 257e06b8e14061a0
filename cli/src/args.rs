//! The command line: options, help texts and examples. `commands/`, `doctor/`, `up/` and `verify/` implement the commands.

mod events;
mod webhooks;

pub use self::events::{EventFilterArgs, Events, EventsCommand, ReadEvents, ResetEvents};
pub use self::webhooks::{
    CreateWebhook, Deliveries, DeliveryState, ReplayWebhook, RotateWebhook, UpdateWebhook, WebhookArg,
    Webhooks,
};

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use gapless_config::Secret;
use gapless_domain::hex_text::parse_address_any_case;
use gapless_domain::{ApiKeyId, ChainId, Scope, SubmitterKey, TxId};

/// Heading that lists the global options after a command's own options.
const GLOBAL_OPTIONS: &str = "Global options";

#[derive(Debug, Parser)]
#[command(
    name = "gapless",
    version,
    about = "Gapless: sends transactions on EVM chains exactly once, in order and without nonce gaps",
    after_help = "Exit status: 0 success; 1 negative result (the transaction FAILED or was CANCELLED, a \
                  simulation did not succeed, verify found a violation, or doctor found a problem); 2 error."
)]
pub struct Cli {
    /// Configuration file; used by migrate, verify, doctor, audit, api-keys, the subcommands of events and webhooks reseal
    #[arg(long, global = true, help_heading = GLOBAL_OPTIONS, env = "GAPLESS_CONFIG", value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Print JSON instead of text
    #[arg(long, global = true, help_heading = GLOBAL_OPTIONS)]
    pub json: bool,
    /// Base URL of the API [default: the API of `gapless up` in this directory, or http://127.0.0.1:8080]
    #[arg(
        long,
        global = true,
        help_heading = GLOBAL_OPTIONS,
        env = "GAPLESS_API",
        hide_env_values = true,
        value_name = "URL"
    )]
    pub api: Option<String>,
    /// PEM file with extra CA certificates for the API, in addition to those of the system
    #[arg(long, global = true, help_heading = GLOBAL_OPTIONS, env = "GAPLESS_API_CA", value_name = "FILE")]
    pub api_ca: Option<PathBuf>,
    /// API key; prefer the environment variable, because other users can see the command line
    #[arg(
        long,
        global = true,
        help_heading = GLOBAL_OPTIONS,
        env = "GAPLESS_API_KEY",
        hide_env_values = true,
        value_name = "KEY"
    )]
    pub api_key: Option<Secret>,
    /// Admin token for admin commands, if different from the API key; prefer the environment variable
    #[arg(
        long,
        global = true,
        help_heading = GLOBAL_OPTIONS,
        env = "GAPLESS_ADMIN_TOKEN",
        hide_env_values = true,
        value_name = "TOKEN"
    )]
    pub admin_token: Option<Secret>,
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Start a local database, chain, API and worker, and send a test transaction
    Up(Up),
    /// Create the database schema or migrate it to this version. Programs of the previous version keep working
    #[command(after_help = "Examples:\n  gapless --config gapless.toml migrate\n  \
                            DATABASE_URL=postgres://gapless@localhost/gapless gapless migrate\n\n\
                            How to upgrade without downtime: docs/operate/upgrade.md")]
    Migrate {
        /// Also remove what only older programs used; refused while one of them is connected
        #[arg(long)]
        contract: bool,
    },
    /// Submit a transaction
    #[command(after_help = SUBMIT_EXAMPLES)]
    Submit(Box<Submit>),
    /// Show the current state of a transaction
    #[command(
        after_help = "Examples:\n  gapless status 0190a5c2-…\n  gapless status --from 0xAb… --request-id order-17\n  \
                      gapless status 0190a5c2-… --attempts"
    )]
    Status(Status),
    /// Follow a transaction until it is CONFIRMED, FAILED or CANCELLED
    #[command(after_help = "Example:\n  gapless watch 0190a5c2-… && echo confirmed")]
    Watch(Watch),
    /// Cancel a transaction
    #[command(after_help = "A transaction that was not sent yet is cancelled at once. Otherwise an empty \
                            transaction is sent at the same nonce, and whichever is mined first wins: use \
                            `gapless watch` to see the result.\n\n\
                            Example:\n  gapless cancel 0190a5c2-… --reason 'order withdrawn'")]
    Cancel(TxAction),
    /// Raise the gas price of a sent transaction once (admin)
    SpeedUp(TxAction),
    /// List submitters with their state, queue length and oldest queued transaction
    Submitters(Submitters),
    /// Stop assigning new nonces to a submitter; sent transactions continue (admin)
    Pause(Admin),
    /// Resume a paused submitter (admin)
    Resume(Admin),
    /// Leave PROTECT and continue the submitter's own nonce sequence (admin)
    Release(Admin),
    /// Set a submitter's next nonce to the chain's transaction count (admin)
    #[command(after_help = "Use it for an address with earlier transactions, or after its key was used \
                            outside Gapless.\n\n\
                            Example:\n  gapless adopt 0xAb… --reason 'moved from the old service'")]
    Adopt(Adopt),
    /// Compare the database with the chain and report violations; read-only
    #[command(
        after_help = "Reads every submitter's rows and the chain, and checks that the nonces on chain are \
                      contiguous and recorded, that no nonce was used for two requests, that no request took \
                      effect twice, and that no transaction is missing. Safe while workers are running.\n\n\
                      Example:\n  gapless --config gapless.toml verify && echo sound"
    )]
    Verify(Verify),
    /// Check a deployment from configuration to chain: what is wrong, and what to do; read-only
    #[command(
        after_help = "Checks the configuration, the database (connection, version, schema, rights, clock), every \
                      node (chain, sync, lag, state, transaction lookup, fees, batches), the signers, the funds and \
                      states of the submitters, the ports of API and worker, and the certificate. Writes nothing. \
                      Safe while workers are running. Exit status 1 if there is a problem.\n\n\
                      Examples:\n  gapless --config gapless.toml doctor\n  gapless --config gapless.toml --json doctor"
    )]
    Doctor,
    /// List policy decisions: refused transactions and amounts counted against daily limits; reads the database
    #[command(after_help = "Examples:\n  gapless --config gapless.toml audit --refused\n  \
                            gapless --config gapless.toml audit --submitter 1:0xAb… --limit 1000\n  \
                            gapless --config gapless.toml --json audit --tx 0190a5c2-…")]
    Audit(Audit),
    /// Read or follow events; with a subcommand: enable, disable or inspect their recording
    #[command(after_help = events::EXAMPLES)]
    Events(Box<Events>),
    /// Create, list, change, test and replay webhooks; create and replace the keys that encrypt their secrets
    #[command(subcommand, after_help = webhooks::EXAMPLES)]
    Webhooks(Webhooks),
    /// List what workers deliver events to, with lag and errors (admin)
    #[command(
        after_help = "LAG is the number of events after the last one that is delivered to all, and the age of the oldest. \
                            BEHIND is the number of submitters whose next event failed and is tried again.\n\n\
                            Examples:\n  gapless outlets\n  gapless --json outlets"
    )]
    Outlets,
    /// Create or import keys in the worker's keystore
    #[command(subcommand)]
    Keys(Keys),
    /// Create, list and revoke API keys; writes to the database directly
    #[command(subcommand)]
    ApiKeys(ApiKeys),
}

impl Command {
    /// Whether the command prefers the admin token to the API key.
    pub fn is_admin(&self) -> bool {
        matches!(
            self,
            Command::SpeedUp(_)
                | Command::Pause(_)
                | Command::Resume(_)
                | Command::Release(_)
                | Command::Adopt(_)
                | Command::Outlets
        )
    }
}

const SUBMIT_EXAMPLES: &str = "Examples:
  gapless submit --from 0xAb… --to 0xCd… --value 1000000000000000 --watch
  gapless submit --from 0xAb… --to 0xToken… --method 'transfer(address,uint256)' --arg 0xCd… --arg 250 --request-id order-17
  gapless submit --from 0xAb… --data 0x6080…          (no --to: deploys a contract)

Repeating a request with the same --request-id and the same content returns the same transaction.";

/// Data directory of `gapless up`. The Makefile uses the same default.
pub const DEFAULT_DIR: &str = ".gapless";

#[derive(Debug, Args)]
pub struct Up {
    /// Stop after the test transaction is confirmed
    #[arg(long)]
    pub once: bool,
    /// Directory for database, chain state, keys and logs
    #[arg(long, value_name = "DIR", default_value = DEFAULT_DIR)]
    pub dir: PathBuf,
    /// Port of the API; it must be free [default: 8080, or another one if it is in use]
    #[arg(long, value_name = "PORT")]
    pub api_port: Option<u16>,
    /// Port of the worker's metrics; it must be free [default: 9090, or another one]
    #[arg(long, value_name = "PORT")]
    pub worker_port: Option<u16>,
    /// Port of anvil; it must be free [default: 8545, or another one]
    #[arg(long, value_name = "PORT")]
    pub anvil_port: Option<u16>,
    /// Port of PostgreSQL, unless DATABASE_URL is set; it must be free [default: 54329, or another one]
    #[arg(long, value_name = "PORT")]
    pub postgres_port: Option<u16>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TxType {
    Legacy,
    Eip1559,
}

#[derive(Debug, Args)]
pub struct TxAction {
    /// Transaction id, as printed by `submit`
    #[arg(value_name = "TX_ID")]
    pub tx_id: String,
    /// Reason, stored with the request
    #[arg(long)]
    pub reason: Option<String>,
}

#[derive(Debug, Args)]
pub struct Submit {
    /// Submitter: the sending address
    #[arg(long, value_name = "ADDRESS")]
    pub from: String,
    /// Chain id; required if the deployment serves several chains
    #[arg(long, value_name = "ID")]
    pub chain: Option<u64>,
    /// Idempotency key: repeated requests are one transaction; generated if omitted
    #[arg(long, value_name = "TEXT")]
    pub request_id: Option<String>,
    /// Recipient or contract; omit to deploy a contract
    #[arg(long, value_name = "ADDRESS")]
    pub to: Option<String>,
    /// Amount in wei, decimal or 0x hex
    #[arg(long, value_name = "WEI")]
    pub value: Option<String>,
    /// Call data or init code, 0x hex
    #[arg(long, value_name = "HEX", conflicts_with_all = ["method", "args"])]
    pub data: Option<String>,
    /// Signature of the function to call, for example 'transfer(address,uint256)'
    #[arg(long, value_name = "SIGNATURE")]
    pub method: Option<String>,
    /// One argument of --method, in order; arrays and tuples as JSON; repeatable
    #[arg(long = "arg", value_name = "VALUE", requires = "method", allow_hyphen_values = true)]
    pub args: Vec<String>,
    /// Custom error for decoding reverts, for example 'InsufficientBalance(uint256 available)'; repeatable
    #[arg(long = "error", value_name = "SIGNATURE")]
    pub errors: Vec<String>,
    /// Gas limit; estimated if omitted
    #[arg(long, value_name = "GAS")]
    pub gas_limit: Option<String>,
    /// Transaction type
    #[arg(long = "type", value_enum)]
    pub kind: Option<TxType>,
    /// Maximum fee in wei per gas
    #[arg(long, value_name = "WEI")]
    pub max_fee: Option<String>,
    /// Maximum priority fee in wei per gas
    #[arg(long, value_name = "WEI")]
    pub max_priority_fee: Option<String>,
    /// Gas price in wei; legacy transactions only
    #[arg(long, value_name = "WEI")]
    pub gas_price: Option<String>,
    /// Fee level of the server's fee policy: slow, normal or fast
    #[arg(long, value_name = "SPEED", conflicts_with = "gas_price")]
    pub speed: Option<String>,
    /// Access list as JSON: [{"address": "0x…", "storageKeys": ["0x…"]}]
    #[arg(long, value_name = "JSON")]
    pub access_list: Option<String>,
    /// Earliest time to send it, RFC 3339
    #[arg(long, value_name = "TIME")]
    pub not_before: Option<String>,
    /// Cancel it if it is not mined by this time, RFC 3339
    #[arg(long, value_name = "TIME")]
    pub deadline: Option<String>,
    /// Follow the transaction until it is final
    #[arg(long)]
    pub watch: bool,
    /// Only simulate: print gas, fees and cost, or why it would fail; nothing is sent or stored
    #[arg(long, conflicts_with = "watch")]
    pub simulate: bool,
}

#[derive(Debug, Args)]
pub struct Status {
    /// Transaction id, as printed by `submit`
    #[arg(value_name = "TX_ID", required_unless_present = "request_id")]
    pub tx_id: Option<String>,
    /// Look up by request id instead
    #[arg(long, value_name = "TEXT", conflicts_with = "tx_id", requires = "from")]
    pub request_id: Option<String>,
    /// Submitter of --request-id
    #[arg(long, value_name = "ADDRESS")]
    pub from: Option<String>,
    /// Chain id of --request-id
    #[arg(long, value_name = "ID")]
    pub chain: Option<u64>,
    /// Also list every attempt with its sends and node responses, and every state change
    #[arg(long)]
    pub attempts: bool,
}

#[derive(Debug, Args)]
pub struct Watch {
    /// Transaction id, as printed by `submit`
    #[arg(value_name = "TX_ID")]
    pub tx_id: String,
}

#[derive(Debug, Args)]
pub struct Submitters {
    /// Only this address
    #[arg(value_name = "ADDRESS")]
    pub address: Option<String>,
    /// Only this chain
    #[arg(long, value_name = "ID")]
    pub chain: Option<u64>,
}

#[derive(Debug, Args)]
pub struct Admin {
    /// Address of the submitter
    #[arg(value_name = "ADDRESS")]
    pub address: String,
    /// Chain id; required if the deployment serves several chains
    #[arg(long, value_name = "ID")]
    pub chain: Option<u64>,
    /// Reason, stored in the audit log
    #[arg(long, value_name = "TEXT")]
    pub reason: String,
}

#[derive(Debug, Args)]
pub struct Adopt {
    #[command(flatten)]
    pub admin: Admin,
    /// External transaction that used the nonce, if no node returns it by itself; the worker verifies it
    #[arg(long, value_name = "HASH", requires = "block")]
    pub taken_by: Option<String>,
    /// Block number of that transaction
    #[arg(long, value_name = "NUMBER", requires = "taken_by")]
    pub block: Option<u64>,
}

#[derive(Debug, Args)]
pub struct Verify {
    /// Only this chain
    #[arg(long, value_name = "ID")]
    pub chain: Option<u64>,
    /// Scan every block for transactions of the submitters, whatever the length of the chain
    #[arg(long, conflicts_with = "no_scan")]
    pub scan: bool,
    /// Do not scan blocks; by default they are scanned if there are fewer than 100,000
    #[arg(long)]
    pub no_scan: bool,
    /// First block to scan
    #[arg(long, value_name = "BLOCK", default_value_t = 0, conflicts_with = "no_scan")]
    pub from_block: u64,
    /// Also report transactions that are not final
    #[arg(long)]
    pub all_final: bool,
}

#[derive(Debug, Args)]
pub struct Audit {
    /// Only this submitter
    #[arg(long, value_name = "CHAIN:ADDRESS", value_parser = submitter)]
    pub submitter: Option<SubmitterKey>,
    /// Only this transaction
    #[arg(long, value_name = "TX_ID")]
    pub tx: Option<TxId>,
    /// Only refusals
    #[arg(long)]
    pub refused: bool,
    /// Maximum number of entries; the newest are shown
    #[arg(long, value_name = "NUMBER", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    pub limit: u32,
}

#[derive(Debug, Subcommand)]
pub enum Keys {
    /// Create a new key
    #[command(after_help = "Example:\n  gapless keys new --keystore keys --password-file keys.password")]
    New(Keystore),
    /// Import a private key, read as hex from standard input
    #[command(
        after_help = "Example:\n  gapless keys import --keystore keys --password-file keys.password < key.hex"
    )]
    Import(Keystore),
}

#[derive(Debug, Subcommand)]
pub enum ApiKeys {
    /// Create a key and print it once; only its hash is stored
    #[command(after_help = "Examples:\n  \
                            gapless --config gapless.toml api-keys create --name billing\n  \
                            gapless --config gapless.toml api-keys create --name payouts --submitter 1:0xAb… \
                            --expires-in 90d --rate 50\n  \
                            gapless --config gapless.toml api-keys create --name ops --scope admin --scope tx:read")]
    Create(NewApiKey),
    /// List all keys without their secrets
    List,
    /// Revoke a key; later requests with it are rejected
    #[command(after_help = "Example:\n  gapless --config gapless.toml api-keys revoke 3f9a1c2b4d5e6f70")]
    Revoke(RevokeApiKey),
}

#[derive(Debug, Args)]
pub struct NewApiKey {
    /// Name of the key's owner, used in the audit log
    #[arg(long, value_name = "TEXT")]
    pub name: String,
    /// tx:write, tx:read or admin; repeatable
    #[arg(long = "scope", value_name = "SCOPE", default_values = ["tx:write", "tx:read"])]
    pub scopes: Vec<Scope>,
    /// Allowed submitter, as CHAIN_ID:ADDRESS; repeatable; all if omitted
    #[arg(long = "submitter", value_name = "CHAIN:ADDRESS", value_parser = submitter)]
    pub submitters: Vec<SubmitterKey>,
    /// Validity period, for example 90d; never expires if omitted
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    pub expires_in: Option<Duration>,
    /// Rate limit in requests per second for each API process; the API's default if omitted
    #[arg(long, value_name = "NUMBER")]
    pub rate: Option<f64>,
    /// Burst size of the rate limit in requests; the API's default if omitted
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..))]
    pub burst: Option<u32>,
}

#[derive(Debug, Args)]
pub struct RevokeApiKey {
    /// Key id: the part of the key between the underscores
    #[arg(value_name = "KEY_ID")]
    pub key_id: ApiKeyId,
}

fn submitter(text: &str) -> Result<SubmitterKey, String> {
    let (chain, address) = text.split_once(':').ok_or("expected CHAIN_ID:ADDRESS")?;
    let chain: u64 = chain.parse().map_err(|_| format!("invalid chain id `{chain}`"))?;
    if chain == 0 || i64::try_from(chain).is_err() {
        return Err(format!("invalid chain id `{chain}`"));
    }
    Ok(SubmitterKey { chain_id: ChainId(chain), address: parse_address_any_case(address)? })
}

#[derive(Debug, Args)]
pub struct Keystore {
    /// Directory of the keystore files; created if missing
    #[arg(long, value_name = "DIR")]
    pub keystore: PathBuf,
    /// File with the keystore password
    #[arg(long, value_name = "FILE", required_unless_present = "password_env")]
    pub password_file: Option<PathBuf>,
    /// Environment variable with the keystore password
    #[arg(long, value_name = "NAME", conflicts_with = "password_file")]
    pub password_env: Option<String>,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn data_and_method_exclude_each_other() {
        let words = ["gapless", "submit", "--from", "0x1", "--data", "0x", "--method", "f()"];
        assert!(Cli::try_parse_from(words).is_err());
    }

    #[test]
    fn an_api_key_has_client_scopes_by_default() {
        let words = ["gapless", "api-keys", "create", "--name", "n"];
        let parse = |more: &[&str]| Cli::try_parse_from(words.iter().chain(more)).map(|cli| cli.command);
        let Ok(Command::ApiKeys(ApiKeys::Create(plain))) = parse(&[]) else { panic!("no create") };
        assert_eq!(plain.scopes, [Scope::TxWrite, Scope::TxRead]);
        let own = format!("1:0x{}", "Ab".repeat(20));
        let Ok(Command::ApiKeys(ApiKeys::Create(limited))) =
            parse(&["--scope", "admin", "--submitter", &own, "--expires-in", "90d"])
        else {
            panic!("no create")
        };
        assert_eq!(limited.scopes, [Scope::Admin]);
        assert_eq!(limited.submitters[0].to_string(), own.to_lowercase());
        for bad in [["--scope", "tx"], ["--submitter", "0x12"], ["--submitter", "0:0x12"], ["--burst", "0"]] {
            assert!(parse(&bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_status_needs_an_id_or_a_request() {
        assert!(Cli::try_parse_from(["gapless", "status"]).is_err());
        assert!(Cli::try_parse_from(["gapless", "status", "--request-id", "a"]).is_err());
        assert!(Cli::try_parse_from(["gapless", "status", "--request-id", "a", "--from", "0x1"]).is_ok());
    }
}
