//! Go-Ethereum with `--dev`. `make test-nodes` builds it if it is not installed.

use std::path::{Path, PathBuf};

use gapless_localnet::{Mining, npm};

use super::NodeOptions;
use super::process::{NodeProcess, Recipe};

/// Path of geth. Default: from PATH, otherwise the one that `make test-nodes` built.
const CHOICE_VAR: &str = "GAPLESS_GETH";
/// In wei. Mining cannot be paused in geth; with this minimum tip, transactions that offer less stay in the mempool
/// until the minimum is lowered.
pub(crate) const HELD_BELOW_TIP: u64 = 100_000_000_000;

pub(super) async fn start(options: &NodeOptions, log: &Path) -> NodeProcess {
    let data = log.with_extension("geth");
    let mut args: Vec<String> = ["--dev", "--http", "--http.addr", "127.0.0.1", "--ipcdisable"]
        .into_iter()
        .map(str::to_owned)
        .collect();
    let mut pair = |name: &str, value: &str| args.extend([name.to_owned(), value.to_owned()]);
    pair("--datadir", data.to_str().expect("a UTF-8 path"));
    pair("--http.api", "eth,net,web3,txpool,miner");
    pair("--authrpc.port", "0");
    // By default it stops by itself if less than 512 MiB of the disk are free. A test chain needs a few.
    pair("--datadir.minfreedisk", "0");
    // The usual block gas limit.
    pair("--dev.gaslimit", "60000000");
    // Without a journal, local transactions do not survive a restart.
    pair("--txpool.journal", "");
    match options.mining {
        Mining::Instant => {}
        Mining::Interval(seconds) => pair("--dev.period", &(seconds.ceil().max(1.0) as u64).to_string()),
        Mining::Manual => {
            pair("--dev.period", "1");
            pair("--miner.gasprice", &HELD_BELOW_TIP.to_string());
        }
    }
    args.extend(options.extra.iter().cloned());
    NodeProcess::start(Recipe {
        name: "geth",
        program: program(),
        args,
        port_option: "--http.port",
        env: options.env.clone(),
        log: log.to_owned(),
        listening: "HTTP server started",
    })
    .await
}

fn program() -> PathBuf {
    if let Some(path) = std::env::var_os(CHOICE_VAR) {
        return path.into();
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let built = npm::tools_dir().map(|tools| tools.join("geth/bin/geth")).ok();
    let mut places = std::env::split_paths(&path).map(|dir| dir.join("geth")).chain(built);
    places
        .find(|program| program.is_file())
        .expect("there is no geth; `make test-nodes` builds one if Go is installed, or set GAPLESS_GETH")
}
