//! Loads and validates the configuration. Errors name the key and where it was set.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use figment::Figment;
use figment::providers::{Env, Format, Serialized, Toml};
use figment::value::{Dict, Value};

use super::chain::ChainConfig;
use super::secret::Secret;
use super::{ChainTable, Config, File, redact};

/// Sections that a `[chain.NAME]` table may override key by key.
const PER_CHAIN: [&str; 12] = [
    "rpc",
    "nonce",
    "fees",
    "resubmit",
    "queue",
    "stuck",
    "gasbump",
    "mempool",
    "confirmations",
    "balance",
    "adapters",
    "submitter",
];

const MAX_RETENTION: Duration = Duration::from_secs(10 * 366 * 24 * 3600);

#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("{0}: configuration file not found")]
    Missing(PathBuf),
    /// Names the key and its file or variable; does not contain configured values.
    #[error("configuration: {0}")]
    Parse(String),
    #[error("configuration: {key}: {problem}")]
    Invalid { key: String, problem: String },
}

impl From<figment::Error> for ConfigError {
    fn from(error: figment::Error) -> Self {
        ConfigError::Parse(redact::redacted(error, ""))
    }
}

pub(super) fn load(path: Option<&Path>) -> Result<Config, ConfigError> {
    let mut figment = Figment::new();
    if let Some(path) = path {
        if !path.is_file() {
            return Err(ConfigError::Missing(path.to_owned()));
        }
        figment = figment.merge(Toml::file_exact(path));
    }
    figment = figment.merge(Env::prefixed(redact::ENV_PREFIX).split("__"));
    if let Ok(url) = std::env::var("DATABASE_URL") {
        figment = figment.merge(Serialized::default("database.url", url));
    }
    resolve(figment)
}

fn resolve(figment: Figment) -> Result<Config, ConfigError> {
    checked(&figment).map_err(|error| located(&figment, error))
}

/// Adds where the invalid key was set. A chain's value may come from its table or from the common section; the key is
/// named as it is written.
fn located(figment: &Figment, error: ConfigError) -> ConfigError {
    let ConfigError::Invalid { key, problem } = error else { return error };
    let common = key.strip_prefix("chain.").and_then(|rest| rest.split_once('.')).map(|(_, key)| key);
    let written = [Some(key.as_str()), common].into_iter().flatten();
    let mut found = written.filter_map(|key| figment.find_metadata(key).map(|place| (place, key)));
    let key = match found.next() {
        Some((place, written)) => format!("{}: {written}", redact::place(place, written)),
        None => key.clone(),
    };
    ConfigError::Invalid { key, problem }
}

fn checked(figment: &Figment) -> Result<Config, ConfigError> {
    let file: File = figment.extract()?;
    let mut chains = BTreeMap::new();
    for name in file.chain.keys() {
        let mut table = Figment::new();
        for section in PER_CHAIN {
            if let Ok(common) = figment.find_value(section) {
                table = table.merge(Serialized::default(section, without_single_chain_keys(section, common)));
            }
        }
        let section = format!("chain.{name}");
        let own: Dict = figment.extract_inner(&section)?;
        let merged = table.merge(Serialized::defaults(own)).extract::<ChainTable>();
        let merged = merged.map_err(|error| ConfigError::Parse(redact::redacted(error, &section)))?;
        chains.insert(name.clone(), ChainConfig::from_table(name.clone(), merged)?);
    }
    if chains.is_empty() {
        chains.extend(single_chain(figment, &file)?);
    }
    let config = Config {
        database: file.database,
        api: file.api,
        worker: file.worker,
        lease: file.lease,
        signer: file.signer,
        events: file.events,
        duties: file.duties,
        log: file.log,
        traces: file.traces,
        chains,
    };
    check(&config)?;
    Ok(config)
}

/// `rpc.url`, `rpc.urls` and `rpc.chain_id` describe a single chain; they are not defaults for `[chain.*]` tables.
fn without_single_chain_keys(section: &str, value: Value) -> Value {
    match value {
        Value::Dict(tag, mut dict) if section == "rpc" => {
            dict.remove("url");
            dict.remove("urls");
            dict.remove("chain_id");
            Value::Dict(tag, dict)
        }
        other => other,
    }
}

fn single_chain(figment: &Figment, file: &File) -> Result<Option<(String, ChainConfig)>, ConfigError> {
    let Some(id) = file.rpc.chain_id else { return Ok(None) };
    let mut table = Figment::from(Serialized::default("id", id));
    for section in PER_CHAIN {
        if let Ok(common) = figment.find_value(section) {
            table = table.merge(Serialized::default(section, common));
        }
    }
    let name = "default".to_owned();
    Ok(Some((name.clone(), ChainConfig::from_table(name, table.extract()?)?)))
}

fn check(config: &Config) -> Result<(), ConfigError> {
    let bad =
        |key: &str, problem: &str| Err(ConfigError::Invalid { key: key.into(), problem: problem.into() });
    if config.database.url == Secret::default() {
        return bad("database.url", "missing; set it in the file or in DATABASE_URL");
    }
    if config.chains.is_empty() {
        return bad("chain", "no chain is configured; add a [chain.NAME] table with an id and rpc.urls");
    }
    let mut ids: Vec<_> = config.chains.values().map(|chain| chain.id).collect();
    ids.sort();
    ids.dedup();
    if ids.len() != config.chains.len() {
        return bad("chain", "two tables have the same id");
    }
    if config.lease.renew_interval.is_zero() {
        return bad("lease.renew_interval", "must be greater than 0");
    }
    if let Err((key, problem)) = config.api.check() {
        return bad(key, problem);
    }
    if config.worker.poll_interval.is_zero() {
        return bad("worker.poll_interval", "must be greater than 0");
    }
    if config.lease.renew_interval * 2 > config.lease.duration {
        return bad(
            "lease.renew_interval",
            "must be at most half of lease.duration, otherwise one slow renewal loses the lease",
        );
    }
    if !(Duration::from_secs(1)..=MAX_RETENTION).contains(&config.events.retention) {
        return bad("events.retention", "must be 1s to 10 years");
    }
    config.events.webhook.check()?;
    config.traces.check()?;
    super::sections::check_variables(&config.signer)?;
    super::remote_signer::check(&config.signer)?;
    super::cloud_keys::check(&config.signer)?;
    if !(1..=8).contains(&config.worker.writers) {
        return bad("worker.writers", "must be between 1 and 8");
    }
    for (key, expression) in [
        ("duties.prune", &config.duties.prune),
        ("duties.audit_nonces", &config.duties.audit_nonces),
        ("duties.check_balances", &config.duties.check_balances),
    ] {
        if !expression.is_empty()
            && let Err(error) = expression.parse::<cron::Schedule>()
        {
            return Err(ConfigError::Invalid {
                key: key.into(),
                problem: format!("`{expression}`: {error}"),
            });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use gapless_domain::Finality;

    fn parse(toml: &str) -> Result<Config, ConfigError> {
        resolve(Figment::from(Toml::string(toml)))
    }

    const MINIMAL: &str = r#"
        database.url = "postgres://u:hunter2@h/db"
        confirmations.required = 3
        [chain.a]
        id = 1
        rpc.urls = ["http://a"]
        [chain.b]
        id = 2
        rpc.urls = ["http://b"]
        confirmations.required = 7
    "#;

    #[test]
    fn a_chain_overrides_the_common_sections_for_itself_alone() {
        let config = parse(MINIMAL).unwrap();
        assert_eq!(config.chains["a"].confirmations.required, Finality::Blocks(3));
        assert_eq!(config.chains["b"].confirmations.required, Finality::Blocks(7));
        assert_eq!(config.chains["b"].urls[0].expose(), "http://b");
    }

    #[test]
    fn finality_may_be_a_block_tag() {
        let config =
            parse(&format!("{MINIMAL}\n[chain.c]\nid = 3\nconfirmations.required = \"finalized\"")).unwrap();
        assert_eq!(config.chains["c"].confirmations.required, Finality::Finalized);
        let error = parse(&format!("{MINIMAL}\n[chain.c]\nid = 3\nconfirmations.required = \"soon\""))
            .unwrap_err()
            .to_string();
        assert!(error.contains("required") && error.contains("finalized"), "{error}");
    }

    #[test]
    fn an_unknown_key_is_named() {
        let error = parse(&format!("lease.durration = \"1s\"\n{MINIMAL}")).unwrap_err().to_string();
        assert!(error.contains("durration"), "{error}");
    }

    #[test]
    fn an_error_names_the_file_the_key_as_written_and_what_is_expected() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("gapless.toml");
        for (setting, expected) in [
            ("api.bnd = \"x\"", ": api.bnd: unknown key; did you mean `bind`?"),
            ("apii.bind = \"x\"", ": apii: unknown key; did you mean `api`?"),
            (
                "chain.c.id = 3\nchain.c.nonce.max_inflight = 1",
                ": chain.c.nonce.max_inflight: unknown key; did you mean `max_in_flight`?",
            ),
            ("api.nonsense = 1", ": api.nonsense: unknown key; known here: "),
            ("api.bind = \"hunter2\"", ": api.bind: expected an address with a port"),
            ("api.bind = 8080", ": api.bind: expected an address with a port"),
            (
                "api.max_batch = \"hunter2\"",
                ": api.max_batch: expected a whole number that is not negative, found a text",
            ),
            ("api.max_batch = -1", ": api.max_batch: expected a whole number that is not negative, found -1"),
            ("lease.duration = \"hunter2\"", ": lease.duration: expected a duration such as \"10s\""),
            ("lease.duration = 10", ": lease.duration: expected a duration such as \"10s\", found 10"),
            ("resubmit.enabled = \"hunter2\"", ": resubmit.enabled: expected true or false, found a text"),
            ("log.format = \"hunter2\"", ": log.format: expected `"),
            ("rpc.urls = \"http://hunter2\"", ": rpc.urls: expected a list"),
            ("database = \"hunter2\"", ": database: expected a table, found a text"),
            ("chain.c.name = 3", ": chain.c"),
        ] {
            std::fs::write(
                &path,
                format!("{setting}\n{MINIMAL}").replace("database.url = \"postgres://u:hunter2@h/db\"", ""),
            )
            .unwrap();
            let error = resolve(Figment::from(Toml::file_exact(&path))).unwrap_err().to_string();
            println!("{error}");
            assert!(error.contains(&format!("gapless.toml{expected}")), "{error}");
            assert!(!error.contains("default.") && !error.contains("hunter2"), "{error}");
        }
    }

    #[test]
    fn a_wrong_value_names_its_key() {
        let error = parse(&format!("lease.duration = \"soon\"\n{MINIMAL}")).unwrap_err().to_string();
        assert!(error.contains("lease.duration"), "{error}");
    }

    #[test]
    fn an_invalid_value_names_its_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("gapless.toml");
        // `MINIMAL` ends in the table of chain b.
        for (common, of_b, key) in [
            ("nonce.max_in_flight = 0", "", ": nonce.max_in_flight"),
            ("", "nonce.max_in_flight = 0", "chain.b.nonce.max_in_flight"),
            ("confirmations.receipt_workers = 0", "", ": confirmations.receipt_workers"),
            ("lease.renew_interval = \"1h\"", "", "lease.renew_interval"),
            ("duties.prune = \"daily\"", "", "duties.prune"),
            ("api.header_timeout = \"0s\"", "", "api.header_timeout"),
            ("api.rate_limit = -1.0", "", "api.rate_limit"),
            ("api.max_connections = 0", "", "api.max_connections"),
            ("api.max_connections_per_address = 0", "", "api.max_connections_per_address"),
            ("events.webhook.max_in_flight = 0", "", "events.webhook.max_in_flight"),
        ] {
            std::fs::write(&path, format!("{common}\n{MINIMAL}\n{of_b}")).unwrap();
            let error = resolve(Figment::from(Toml::file_exact(&path))).unwrap_err().to_string();
            assert!(error.contains(key) && error.contains("gapless.toml"), "{error}");
        }
    }

    #[test]
    fn a_single_chain_needs_no_table() {
        let config =
            parse("database.url = \"postgres://h\"\nrpc.url = \"http://n\"\nrpc.chain_id = 5\nnonce.max_in_flight = 4").unwrap();
        assert_eq!(config.chains["default"].id.0, 5);
        assert_eq!(config.chains["default"].nonce.max_in_flight, 4);
    }

    #[test]
    fn secrets_are_not_printed() {
        assert!(!format!("{:?}", parse(MINIMAL).unwrap()).contains("hunter2"));
    }

    #[test]
    fn a_key_instead_of_a_variable_name_is_rejected_and_not_printed() {
        let key = "ac0974bec39a17e36ba4a6b4d238ff944bacb478cbed5efcae784d7bf4f2ff80";
        for (setting, named) in [
            (format!("signer.raw_key_env = [\"0x{key}\"]"), "signer.raw_key_env"),
            (format!("signer.raw_key_env = [\"{key}\"]"), "signer.raw_key_env"),
            ("signer.password_env = \"correct horse\"".to_owned(), "signer.password_env"),
        ] {
            let error = parse(&format!("{setting}\n{MINIMAL}")).unwrap_err().to_string();
            assert!(
                error.contains(named) && !error.contains("ac0974") && !error.contains("horse"),
                "{error}"
            );
        }
    }

    #[test]
    fn a_secret_of_digits_is_taken_as_text() {
        let config = parse(&format!("api.admin_token = 12345\nbalance.low = 5000\n{MINIMAL}")).unwrap();
        assert_eq!(config.api.admin_token.expose(), "12345");
        assert_eq!(config.chains["a"].low_balance, Some(5000.into()));
    }

    #[test]
    fn a_submitter_may_be_shared_alone_on_one_chain_or_everywhere() {
        let one = "0x00000000000000000000000000000000000000Ab";
        let address = one.parse().unwrap();
        let shared = |config: &Config| ["a", "b"].map(|chain| config.chains[chain].is_shared(&address));
        assert_eq!(shared(&parse(MINIMAL).unwrap()), [false, false]);
        let off = "nonce.strict.enabled = false";
        assert_eq!(shared(&parse(&format!("{off}\n{MINIMAL}")).unwrap()), [true, true]);
        let of_b = format!("{MINIMAL}\n{off}");
        assert_eq!(shared(&parse(&of_b).unwrap()), [false, true]);
        let alone = format!("{MINIMAL}\n[submitter.{one}]\n{off}");
        assert_eq!(shared(&parse(&alone).unwrap()), [true, true]);
        let on_one_chain = format!("{MINIMAL}\n[chain.b.submitter.{one}]\n{off}");
        assert_eq!(shared(&parse(&on_one_chain).unwrap()), [false, true]);
        let strict_alone = format!("{of_b}\n[submitter.{one}]\nnonce.strict.enabled = true");
        assert_eq!(shared(&parse(&strict_alone).unwrap()), [false, false]);
    }

    #[test]
    fn a_submitter_may_have_a_queue_of_its_own_length() {
        let one = "0x00000000000000000000000000000000000000Ab";
        let config = parse(&format!("{MINIMAL}\n[chain.b.submitter.{one}]\nqueue_limit = 7")).unwrap();
        let limits = ["a", "b"].map(|chain| config.chains[chain].queue_limit(&one.parse().unwrap()));
        assert_eq!(limits, [None, Some(7)]);
    }

    #[test]
    fn a_submitter_may_have_a_policy_everywhere_or_on_one_chain() {
        let one = "0x00000000000000000000000000000000000000Ab";
        let address = one.parse().unwrap();
        let limits = |toml: &str| {
            let config = parse(&format!("{MINIMAL}\n{toml}")).unwrap();
            ["a", "b"].map(|chain| config.chains[chain].policies.get(&address).and_then(|own| own.max_value))
        };
        let everywhere = format!("[submitter.{one}.policy]\nmax_value = 7");
        assert_eq!(limits(""), [None, None]);
        assert_eq!(limits(&everywhere), [Some(7.into()), Some(7.into())]);
        let on_b = format!("[chain.b.submitter.{one}.policy]\nmax_value = \"0x8\"");
        assert_eq!(limits(&on_b), [None, Some(8.into())]);
        assert_eq!(limits(&format!("{everywhere}\n{on_b}")), [Some(7.into()), Some(8.into())]);
        let slip = format!("{MINIMAL}\n[chain.b.submitter.{one}.policy]\nallow = []");
        let error = parse(&slip).unwrap_err().to_string();
        assert!(error.contains(&format!("chain.b.submitter.{address:#x}.policy.allow")), "{error}");
        assert!(parse(&slip.replace("allow", "alow")).unwrap_err().to_string().contains("alow"));
    }

    #[test]
    fn a_submitter_that_is_no_address_or_has_two_tables_is_refused() {
        let error = parse(&format!("{MINIMAL}\n[submitter.bob]")).unwrap_err().to_string();
        assert!(error.contains("submitter.bob"), "{error}");
        let (upper, lower) = ("AB".repeat(20), "ab".repeat(20));
        let twice = format!("{MINIMAL}\n[submitter.0x{upper}]\n[submitter.0x{lower}]");
        assert!(parse(&twice).unwrap_err().to_string().contains("two tables"));
    }

    #[test]
    fn mempool_diagnosis_is_off_by_default_and_its_interval_positive() {
        assert!(!parse(MINIMAL).unwrap().chains["a"].mempool.diagnose.enabled);
        let config = parse(&format!("{MINIMAL}\nmempool.diagnose.enabled = true")).unwrap();
        assert!(config.chains["b"].mempool.diagnose.enabled && !config.chains["a"].mempool.diagnose.enabled);
        assert!(parse(&format!("mempool.diagnose.interval = \"0s\"\n{MINIMAL}")).is_err());
    }
}
