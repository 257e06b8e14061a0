//! The configuration that `gapless up` writes for API and worker.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use anyhow::{Context, Result};
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
    let text = toml::to_string(&settings(home, places)).context("cannot serialise the configuration")?;
    let text = format!("# Written by `gapless up` at each start.\n\n{text}");
    write_private(&home.config(), &text)
}

fn settings(home: &Home, places: &Places) -> Value {
    let mut settings = json!({
        "api": { "bind": format!("127.0.0.1:{}", places.api), "admin_on_loopback": true },
        "worker": { "metrics_bind": format!("127.0.0.1:{}", places.worker) },
        "signer": { "keystore": home.keys(), "password_file": home.password_file() },
        "events": { "mode": "mq_outbox" },
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

/// Replaces the file; only its owner may read it.
pub(super) fn write_private(path: &Path, text: &str) -> Result<()> {
    let file = OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(path);
    file.and_then(|mut file| file.write_all(text.as_bytes()))
        .with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
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
        assert_eq!(config.chains["local"].urls[0].expose(), "http://127.0.0.1:2");
        assert_eq!(
            config.chains["local"].confirmations.required,
            gapless_domain::Finality::Blocks(CONFIRMATIONS)
        );
        assert_eq!(config.signer.keystore, Some(home.keys()));
        assert!(config.events.mode.asks_for_recording());
    }
}
