//! `gapless verify`: an independent audit that compares the database with the chain.
//!
//! Read-only. It shares no logic with the worker.

mod checks;
mod facts;
mod gather;
mod node;
mod report;

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use gapless_config::{ChainConfig, Config};
use gapless_store::{Store, Timeouts};

use self::checks::Rules;
use self::gather::Scan;
use self::node::Node;
use self::report::{ChainReport, Report};
use crate::args;
use crate::commands::migrate::log_security_warnings;

/// The snapshot reads every row of a chain.
const STATEMENT_LIMIT: Duration = Duration::from_secs(600);

pub async fn run(config: Option<&Path>, args: &args::Verify, json: bool) -> Result<ExitCode> {
    let config = Config::load(config)?;
    log_security_warnings(&config.database.url);
    let timeouts = Timeouts { statement: STATEMENT_LIMIT, ..Timeouts::default() };
    let store = Store::new(&config.database.url, "gapless-verify", 1, timeouts)?;
    store.check_schema().await?;
    let rules = Rules { all_final: args.all_final, pruned: config.duties.retention.is_some() };
    let mut chains = Vec::new();
    for chain in config.chains.values().filter(|chain| args.chain.is_none_or(|id| chain.id.0 == id)) {
        let audited = audit(chain, &store, args, rules).await;
        chains.push(audited.with_context(|| format!("chain {} ({})", chain.name, chain.id))?);
    }
    store.close().await;
    if chains.is_empty() {
        bail!("no matching chain is configured");
    }
    let report = Report { chains };
    report.print(json);
    Ok(if report.is_sound() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn audit(chain: &ChainConfig, store: &Store, args: &args::Verify, rules: Rules) -> Result<ChainReport> {
    let node = connect(chain).await?;
    let scan = match (args.scan, args.no_scan) {
        (true, _) => Scan::Always { from: args.from_block },
        (_, true) => Scan::Never,
        _ => Scan::IfShort { from: args.from_block },
    };
    let gathered = gather::gather(store, &node, chain.id, scan).await?;
    Ok(ChainReport::new(chain.name.clone(), gathered, rules))
}

/// Connects to the first node that responds and has this chain id.
async fn connect(chain: &ChainConfig) -> Result<Node> {
    let mut problem = anyhow::anyhow!("no rpc.urls are configured");
    for url in &chain.urls {
        match Node::connect(url, chain.rpc.ca_file.as_deref(), chain.id.0).await {
            Ok(node) => return Ok(node),
            Err(error) => problem = error,
        }
    }
    Err(problem.context("cannot connect to a node"))
}
