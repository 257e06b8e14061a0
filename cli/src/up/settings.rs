//! The configuration that `gapless up` writes for API and worker.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use anyhow::{Context, Result};
use gapless_webhook::new_key_line;
use serde_json::{Value, json};

use super::home::Home;

pub(super) const CHAIN_ID: u64 = 31337;
/// One block per second: a transaction is final within a few seconds, and its progress is visible.
pub(super) const BLOCK_SECONDS: f64 = 1.0;
const CONFIRMATIONS: u64 = 3;
/// Short, because a killed anvil loses its newest blocks and its mempool.
const RESUBMIT: &str = "5s";

/// Addresses of this run's processes.
#[derive(Clone, Debug)]
pub(super) struct Places {
    /// `None`: DATABASE_URL is set. The children inherit it; it may contain a password, so it is not written to a file.
    pub(super) database: Option<String>,
    pub(super) rpc: String,
    pub(super) api: u16,
    pub(super) worker: u16,
}

pub(super) fn write(home: &Home, places: &Places) -> Result<()> {
    keep_webhook_keys(&home.webhook_keys())?;
    let text = toml::to_string(&settings(home, places)).context("cannot serialise the configuration")?;
    let text = format!("# Written by `gapless up` at each start.\n\n{text}");
    write_private(&home.config(), &text)
}

fn settings(home: &Home, places: &Places) -> Value {
    let mut settings = json!({
        "api": {
            "bind": format!("127.0.0.1:{}", places.api),
            "admin_on_loopback": true,
            "json_rpc": { "enabled": true },
        },
        "worker": { "metrics_bind": format!("127.0.0.1:{}", places.worker) },
        "signer": { "keystore": home.keys(), "password_file": home.password_file() },
        "events": {
            "mode": "mq_outbox",
            // Receivers of a demo run on this machine.
            "webhook": { "key_file": home.webhook_keys(), "allow": ["127.0.0.0/8", "::1"] },
        },
        "log": { "format": "text" },
        "resubmit": { "interval": RESUBMIT },
        "chain": { "local": {
            "id": CHAIN_ID,
            "rpc": { "urls": [places.rpc] },
            "confirmations": { "required": CONFIRMATIONS },
        } },
    });
    if let Some(url) = &places.database {
        settings["database"] = json!({ "url": url });
    }
    settings
}

/// Creates a key unless there is one: without it, stored secrets could not be read any more. An empty file is left by a run
/// that was killed.
fn keep_webhook_keys(path: &Path) -> Result<()> {
    if std::fs::metadata(path).is_ok_and(|file| file.len() > 0) {
        return Ok(());
    }
    let line = new_key_line("up").context("cannot create a key for webhook secrets")?;
    write_private(path, &format!("{}\n", *line))
}

/// Replaces the file; only its owner may read it.
pub(super) fn write_private(path: &Path, text: &str) -> Result<()> {
    let file = OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(path);
    file.and_then(|mut file| file.write_all(text.as_bytes()))
        .with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use gapless_config::Config;

    use super::*;

    #[test]
    fn what_is_written_is_a_valid_configuration() {
        let dir = tempfile::tempdir().unwrap();
        let home = Home::open(dir.path()).unwrap();
        let places = Places {
            database: Some("postgres://gapless@127.0.0.1:1/gapless".into()),
            rpc: "http://127.0.0.1:2".into(),
            api: 3,
            worker: 4,
        };
        write(&home, &places).unwrap();
        let config = Config::load(Some(&home.config())).unwrap();
        assert_eq!(config.api.bind.port(), 3);
        assert!(config.api.json_rpc.enabled);
        assert_eq!(config.chains["local"].urls[0].expose(), "http://127.0.0.1:2");
        assert_eq!(
            config.chains["local"].confirmations.required,
            gapless_domain::Finality::Blocks(CONFIRMATIONS)
        );
        assert_eq!(config.signer.keystore, Some(home.keys()));
        assert!(config.events.mode.asks_for_recording());
        assert_eq!(config.events.webhook.key_file, Some(home.webhook_keys()));
        // Kept by the next run, and private.
        let keys = std::fs::read_to_string(home.webhook_keys()).unwrap();
        write(&home, &places).unwrap();
        assert_eq!(std::fs::read_to_string(home.webhook_keys()).unwrap(), keys);
        gapless_webhook::KeyRing::parse(&keys).unwrap();
        let mode = std::fs::metadata(home.webhook_keys()).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }
}
