//! Hardhat's node, from its npm package at the version locked in `tools/hardhat`.

use std::path::{Path, PathBuf};

use gapless_localnet::{Mining, npm};
use serde_json::{Value, json};
use tokio::sync::OnceCell;

use super::NodeOptions;
use super::process::{NodeProcess, Recipe};

pub(super) async fn start(options: &NodeOptions, log: &Path) -> NodeProcess {
    let mut args = vec![start_script().await.to_str().expect("a UTF-8 path").to_owned(), "node".to_owned()];
    args.extend(["--hostname".to_owned(), "127.0.0.1".to_owned()]);
    args.extend(options.extra.iter().cloned());
    let mut env = vec![
        ("GAPLESS_HARDHAT_NETWORK".to_owned(), network(options).to_string()),
        // It would ask interactively for consent to telemetry.
        ("HARDHAT_DISABLE_TELEMETRY_PROMPT".to_owned(), "true".to_owned()),
    ];
    env.extend(options.env.iter().cloned());
    NodeProcess::start(Recipe {
        name: "hardhat",
        program: "node".into(),
        args,
        port_option: "--port",
        env,
        log: log.to_owned(),
        listening: "JSON-RPC server at",
    })
    .await
}

/// `networks.hardhat` of its configuration.
fn network(options: &NodeOptions) -> Value {
    let mining = match options.mining {
        Mining::Instant => json!({ "auto": true }),
        Mining::Interval(seconds) => json!({ "auto": false, "interval": (seconds * 1000.0) as u64 }),
        Mining::Manual => json!({ "auto": false, "interval": 0 }),
    };
    json!({ "chainId": options.chain_id, "mining": mining, "accounts": { "count": 1 } })
}

/// Located, and installed if necessary, once.
async fn start_script() -> &'static PathBuf {
    static FOUND: OnceCell<PathBuf> = OnceCell::const_new();
    let find = || async {
        let found = tokio::task::spawn_blocking(|| {
            let project = npm::tools_dir()?.join("hardhat");
            npm::installed(&project, "hardhat", |_| ())?;
            anyhow::Ok(project.join("start.js"))
        });
        found.await.unwrap().expect("these tests need Hardhat: install Node.js to fetch it")
    };
    FOUND.get_or_init(find).await
}
