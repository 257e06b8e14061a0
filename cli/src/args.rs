//! The command line: names, help, examples. What the commands do is elsewhere.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use gapless::config::Secret;
use gapless::domain::hex_text::parse_address_any_case;
use gapless::domain::{ApiKeyId, ChainId, Scope, SubmitterKey, TxId};

#[derive(Debug, Parser)]
#[command(
    name = "gapless",
    version,
    about = "Gapless: transactions on EVM chains, each exactly once, in order, without a gap",
    after_help = "Exit status: 0 done; 1 done, and the answer is no (a transaction FAILED or was CANCELLED, an audit \
                  found a violation); 2 it could not be done."
)]
pub struct Cli {
    /// Configuration file, for the commands that read the database or the chain themselves
    #[arg(long, global = true, env = "GAPLESS_CONFIG", value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Print JSON for programs instead of text for people
    #[arg(long, global = true)]
    pub json: bool,
    /// Base address of the API
    #[arg(
        long,
        global = true,
        env = "GAPLESS_API",
        hide_env_values = true,
        value_name = "URL",
        default_value = "http://127.0.0.1:8080"
    )]
    pub api: String,
    /// PEM file of authorities that may vouch for the API beside those of the system
    #[arg(long, global = true, env = "GAPLESS_API_CA", value_name = "FILE")]
    pub api_ca: Option<PathBuf>,
    /// API key of a client; better given in the environment than on the command line
    #[arg(long, global = true, env = "GAPLESS_API_KEY", hide_env_values = true, value_name = "KEY")]
    pub api_key: Option<Secret>,
    /// Token for admin commands, if it is not the key; better given in the environment, too
    #[arg(long, global = true, env = "GAPLESS_ADMIN_TOKEN", hide_env_values = true, value_name = "TOKEN")]
    pub admin_token: Option<Secret>,
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Start everything on this machine: database, chain, API, worker; send a first transaction
    Up(Up),
    /// Bring the database schema up to this version
    #[command(after_help = "Example:\n  gapless --config gapless.toml migrate\n  \
                            DATABASE_URL=postgres://gapless@localhost/gapless gapless migrate")]
    Migrate,
    /// Ask for a transaction
    #[command(after_help = SUBMIT_EXAMPLES)]
    Submit(Box<Submit>),
    /// Show a transaction
    #[command(
        after_help = "Examples:\n  gapless status 0190a5c2-…\n  gapless status --from 0xAb… --request-id order-17\n  \
                      gapless status 0190a5c2-… --attempts"
    )]
    Status(Status),
    /// Follow a transaction until it is final
    #[command(after_help = "Example:\n  gapless watch 0190a5c2-… && echo confirmed")]
    Watch(Watch),
    /// Cancel a transaction: at once before it is sent, by an empty transaction at its nonce after that
    #[command(after_help = "On its way, what is mined decides: follow it with `gapless watch`. \
                            Example:\n  gapless cancel 0190a5c2-… --reason 'order withdrawn'")]
    Cancel(Ask),
    /// Raise the price of a transaction on its way, once (admin)
    SpeedUp(Ask),
    /// List submitters: state, queue, age of the oldest queued request
    Submitters(Submitters),
    /// Give a submitter no new nonces; what is under way goes on (admin)
    Pause(Admin),
    /// End a pause (admin)
    Resume(Admin),
    /// Let a submitter in PROTECT go on with its own sequence (admin)
    Release(Admin),
    /// Take the chain's count as the submitter's next nonce (admin)
    #[command(after_help = "For an address with history, or after somebody else used its key. \
                            Example:\n  gapless adopt 0xAb… --reason 'moved from the old service'")]
    Adopt(Adopt),
    /// Audit: hold the database against the chain; nothing is written
    #[command(
        after_help = "Reads every submitter's rows and the chain itself, and checks that nonces on chain are \
                            contiguous and ours, that no nonce carries two requests and no request has two effects, \
                            and that nothing is lost. Can run while workers work.\n\n\
                            Example:\n  gapless --config gapless.toml verify && echo sound"
    )]
    Verify(Verify),
    /// Show what policies of submitters refused, and what counted against a day's cap; asks the database itself
    #[command(after_help = "Examples:\n  gapless --config gapless.toml audit --refused\n  \
                            gapless --config gapless.toml audit --submitter 1:0xAb… --limit 1000\n  \
                            gapless --config gapless.toml --json audit --tx 0190a5c2-…")]
    Audit(Audit),
    /// Make or import keys for the worker's keystore
    #[command(subcommand)]
    Keys(Keys),
    /// Make, list and revoke keys of the API's clients; these ask the database itself
    #[command(subcommand)]
    ApiKeys(ApiKeys),
}

impl Command {
    /// What operators do: the admin token is for these.
    pub fn is_admin(&self) -> bool {
        matches!(
            self,
            Command::SpeedUp(_)
                | Command::Pause(_)
                | Command::Resume(_)
                | Command::Release(_)
                | Command::Adopt(_)
        )
    }
}

const SUBMIT_EXAMPLES: &str = "Examples:
  gapless submit --from 0xAb… --to 0xCd… --value 1000000000000000 --watch
  gapless submit --from 0xAb… --to 0xToken… --method 'transfer(address,uint256)' --arg 0xCd… --arg 250 --request-id order-17
  gapless submit --from 0xAb… --data 0x6080…          (no --to: deploys a contract)

The same --request-id with the same content is the same transaction, however often it is sent.";

/// Where `gapless up` keeps its data; the Makefile knows it too.
pub const DEFAULT_DIR: &str = ".gapless";

#[derive(Debug, Args)]
pub struct Up {
    /// Stop again once the first transaction is confirmed
    #[arg(long)]
    pub once: bool,
    /// Where database, chain, keys and logs are kept
    #[arg(long, value_name = "DIR", default_value = DEFAULT_DIR)]
    pub dir: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TxType {
    Legacy,
    Eip1559,
}

#[derive(Debug, Args)]
pub struct Ask {
    /// The transaction
    #[arg(value_name = "TX_ID")]
    pub tx_id: String,
    /// Why; kept with the request
    #[arg(long)]
    pub reason: Option<String>,
}

#[derive(Debug, Args)]
pub struct Submit {
    /// Submitter: the address that sends
    #[arg(long, value_name = "ADDRESS")]
    pub from: String,
    /// Chain id; needed when the deployment serves several chains
    #[arg(long, value_name = "ID")]
    pub chain: Option<u64>,
    /// Makes repeated requests one transaction; made up if absent
    #[arg(long, value_name = "TEXT")]
    pub request_id: Option<String>,
    /// Receiver or contract; absent: a contract is deployed
    #[arg(long, value_name = "ADDRESS")]
    pub to: Option<String>,
    /// Wei, decimal or 0x
    #[arg(long, value_name = "WEI")]
    pub value: Option<String>,
    /// Call data or init code, 0x
    #[arg(long, value_name = "HEX", conflicts_with_all = ["method", "args"])]
    pub data: Option<String>,
    /// Signature of the function to call, as 'transfer(address,uint256)'
    #[arg(long, value_name = "SIGNATURE")]
    pub method: Option<String>,
    /// One argument of --method; JSON for arrays and tuples
    #[arg(long = "arg", value_name = "VALUE", requires = "method", allow_hyphen_values = true)]
    pub args: Vec<String>,
    /// An error of the contract, as 'InsufficientBalance(uint256 available)': a revert is then told in its words
    #[arg(long = "error", value_name = "SIGNATURE")]
    pub errors: Vec<String>,
    #[arg(long, value_name = "GAS")]
    pub gas_limit: Option<String>,
    #[arg(long = "type", value_enum)]
    pub kind: Option<TxType>,
    /// Wei for each unit of gas, at the most
    #[arg(long, value_name = "WEI")]
    pub max_fee: Option<String>,
    #[arg(long, value_name = "WEI")]
    pub max_priority_fee: Option<String>,
    /// Of a legacy transaction
    #[arg(long, value_name = "WEI")]
    pub gas_price: Option<String>,
    /// slow, normal or fast: what the server's fee policy is asked for
    #[arg(long, value_name = "SPEED", conflicts_with = "gas_price")]
    pub speed: Option<String>,
    /// JSON: [{"address": "0x…", "storageKeys": ["0x…"]}]
    #[arg(long, value_name = "JSON")]
    pub access_list: Option<String>,
    /// RFC 3339; not sent before
    #[arg(long, value_name = "TIME")]
    pub not_before: Option<String>,
    /// RFC 3339; cancelled if it is not mined by then
    #[arg(long, value_name = "TIME")]
    pub deadline: Option<String>,
    /// Follow it until it is final
    #[arg(long)]
    pub watch: bool,
    /// Only try it: gas, fees and cost, or why it would not succeed; nothing is sent or stored
    #[arg(long, conflicts_with = "watch")]
    pub simulate: bool,
}

#[derive(Debug, Args)]
pub struct Status {
    /// txId, as `submit` printed it
    #[arg(value_name = "TX_ID", required_unless_present = "request_id")]
    pub tx_id: Option<String>,
    /// Look it up by its requestId instead
    #[arg(long, value_name = "TEXT", conflicts_with = "tx_id", requires = "from")]
    pub request_id: Option<String>,
    /// Submitter of --request-id
    #[arg(long, value_name = "ADDRESS")]
    pub from: Option<String>,
    /// Chain id of --request-id
    #[arg(long, value_name = "ID")]
    pub chain: Option<u64>,
    /// Also every attempt with its sends and answers, and every state with its time
    #[arg(long)]
    pub attempts: bool,
}

#[derive(Debug, Args)]
pub struct Watch {
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
    /// The submitter
    #[arg(value_name = "ADDRESS")]
    pub address: String,
    #[arg(long, value_name = "ID")]
    pub chain: Option<u64>,
    /// Kept in the audit log
    #[arg(long, value_name = "TEXT")]
    pub reason: String,
}

#[derive(Debug, Args)]
pub struct Adopt {
    #[command(flatten)]
    pub admin: Admin,
    /// The transaction that took a nonce of this submitter, where no node shows it by itself; the worker verifies it
    #[arg(long, value_name = "HASH", requires = "block")]
    pub taken_by: Option<String>,
    /// The block that holds it
    #[arg(long, value_name = "NUMBER", requires = "taken_by")]
    pub block: Option<u64>,
}

#[derive(Debug, Args)]
pub struct Verify {
    /// Only this chain
    #[arg(long, value_name = "ID")]
    pub chain: Option<u64>,
    /// Read every block for transactions of our addresses, however long the chain is
    #[arg(long, conflicts_with = "no_scan")]
    pub scan: bool,
    /// Read no blocks; by default they are read when there are fewer than 100,000
    #[arg(long)]
    pub no_scan: bool,
    /// First block to read
    #[arg(long, value_name = "BLOCK", default_value_t = 0, conflicts_with = "no_scan")]
    pub from_block: u64,
    /// Also insist that nothing is left unfinished
    #[arg(long)]
    pub all_final: bool,
}

#[derive(Debug, Args)]
pub struct Audit {
    /// Only this submitter, as CHAIN_ID:ADDRESS
    #[arg(long, value_name = "CHAIN:ADDRESS", value_parser = submitter)]
    pub submitter: Option<SubmitterKey>,
    /// Only this transaction
    #[arg(long, value_name = "TX_ID")]
    pub tx: Option<TxId>,
    /// Only what was refused
    #[arg(long)]
    pub refused: bool,
    /// So many entries at the most, the newest
    #[arg(long, value_name = "NUMBER", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    pub limit: u32,
}

#[derive(Debug, Subcommand)]
pub enum Keys {
    /// Make a new key
    #[command(after_help = "Example:\n  gapless keys new --keystore keys --password-file keys.password")]
    New(Keystore),
    /// Take over a private key, read as hex from standard input
    #[command(
        after_help = "Example:\n  gapless keys import --keystore keys --password-file keys.password < key.hex"
    )]
    Import(Keystore),
}

#[derive(Debug, Subcommand)]
pub enum ApiKeys {
    /// Make a key. It is shown this once, and kept as a hash
    #[command(after_help = "Examples:\n  \
                            gapless --config gapless.toml api-keys create --name billing\n  \
                            gapless --config gapless.toml api-keys create --name payouts --submitter 1:0xAb… \
                            --expires-in 90d --rate 50\n  \
                            gapless --config gapless.toml api-keys create --name ops --scope admin --scope tx:read")]
    Create(NewApiKey),
    /// List all keys, without their secrets
    List,
    /// Revoke a key: every request that comes later is refused
    #[command(after_help = "Example:\n  gapless --config gapless.toml api-keys revoke 3f9a1c2b4d5e6f70")]
    Revoke(RevokeApiKey),
}

#[derive(Debug, Args)]
pub struct NewApiKey {
    /// Whose it is; goes to the audit log
    #[arg(long, value_name = "TEXT")]
    pub name: String,
    /// tx:write, tx:read or admin; may be repeated
    #[arg(long = "scope", value_name = "SCOPE", default_values = ["tx:write", "tx:read"])]
    pub scopes: Vec<Scope>,
    /// The only submitters it is for, each as CHAIN_ID:ADDRESS; may be repeated. Absent: all
    #[arg(long = "submitter", value_name = "CHAIN:ADDRESS", value_parser = submitter)]
    pub submitters: Vec<SubmitterKey>,
    /// Refused after this time, for example 90d; absent: never
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    pub expires_in: Option<Duration>,
    /// Requests per second at each API process; absent: as the API is configured
    #[arg(long, value_name = "NUMBER")]
    pub rate: Option<f64>,
    /// Requests at once; absent: as the API is configured
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..))]
    pub burst: Option<u32>,
}

#[derive(Debug, Args)]
pub struct RevokeApiKey {
    /// The part of the key between the underscores
    #[arg(value_name = "KEY_ID")]
    pub key_id: ApiKeyId,
}

fn submitter(text: &str) -> Result<SubmitterKey, String> {
    let (chain, address) = text.split_once(':').ok_or("not CHAIN_ID:ADDRESS")?;
    let chain: u64 = chain.parse().map_err(|_| format!("`{chain}` is no chain id"))?;
    if chain == 0 || i64::try_from(chain).is_err() {
        return Err(format!("`{chain}` is no chain id"));
    }
    Ok(SubmitterKey { chain_id: ChainId(chain), address: parse_address_any_case(address)? })
}

#[derive(Debug, Args)]
pub struct Keystore {
    /// Directory of the keystore files; created if missing
    #[arg(long, value_name = "DIR")]
    pub keystore: PathBuf,
    /// File that holds the password
    #[arg(long, value_name = "FILE", required_unless_present = "password_env")]
    pub password_file: Option<PathBuf>,
    /// Environment variable that holds the password
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
    fn an_api_key_is_for_clients_unless_more_or_less_is_said() {
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
