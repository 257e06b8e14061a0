//! A minimal worker with its own SQL for the negative controls of the chaos runs. Not part of the product.
//!
//! One implementation with four fence strategies, of which one is correct. With the correct one it violates no rule
//! under the same faults, so any violation with another strategy is caused by that strategy. It pauses at the
//! vulnerable points, like a long garbage collection would.

mod fence_strategy;
mod lane;
mod pause;

use std::time::Duration;

use anyhow::{Context, Result};
use gapless_testkit::{Stack, Submitter};
use sqlx::PgPool;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use toml::Table;

pub use self::fence_strategy::FenceStrategy;
use self::lane::Lane;

/// Passes the strategy to the process.
pub(crate) const FENCE_STRATEGY_VAR: &str = "GAPLESS_FENCE_STRATEGY";

/// Connections and parameters of a lane.
#[derive(Clone, Debug)]
struct LaneContext {
    db: PgPool,
    rpc: String,
    http: reqwest::Client,
    chain_id: u64,
    strategy: FenceStrategy,
    /// Worker id.
    name: String,
    lease: Duration,
    required: u64,
}

/// Inserts the rows of the submitters and drops triggers and unique indexes, which would hide violations of the fence.
pub(crate) async fn prepare(stack: &Stack) {
    for statement in [
        "DROP TRIGGER managed_tx_guard ON managed_tx",
        "DROP TRIGGER submitter_nonce_cursor_guard ON submitter_nonce_cursor",
        "DROP INDEX managed_tx_nonce_is_unique",
        "DROP INDEX tx_attempt_original_is_unique",
    ] {
        stack.sql(statement).await;
    }
    let chain_id = i64::try_from(stack.anvil().chain_id()).expect("a small number");
    for submitter in stack.submitters() {
        for statement in [
            "INSERT INTO submitter (chain_id, submitter, signer) VALUES ($1, $2, 'raw_key')",
            "INSERT INTO submitter_lease (chain_id, submitter) VALUES ($1, $2)",
            "INSERT INTO submitter_nonce_cursor
                 (chain_id, submitter, start_nonce, next_nonce, max_in_flight, fencing_token)
             VALUES ($1, $2, 0, 0, 1, 0)",
        ] {
            let inserted = sqlx::query(statement).bind(chain_id).bind(submitter.bytes()).execute(stack.db());
            inserted.await.expect("a row of a submitter");
        }
    }
}

/// Runs the process with the configuration of a product worker.
pub async fn run(config: &str, strategy: FenceStrategy) -> Result<()> {
    let config: Table = config.parse()?;
    let text = |path: &[&str]| -> Result<String> {
        let value = look_up(&config, path)?;
        Ok(value.as_str().with_context(|| format!("{path:?} is not a string"))?.to_owned())
    };
    let rpc = look_up(&config, &["chain", "c0", "rpc", "urls"])?.get(0).and_then(|url| url.as_str());
    let number = |path: &[&str]| -> Result<u64> {
        look_up(&config, path)?.as_integer().and_then(|n| n.try_into().ok()).context("not a number")
    };
    let options: PgConnectOptions = text(&["database", "url"])?.parse()?;
    let pool = PgPoolOptions::new().max_connections(12).acquire_timeout(Duration::from_secs(2));
    let lease = text(&["lease", "duration"])?;
    let lease: u64 = lease.trim_end_matches("ms").parse().context("a lease in milliseconds")?;
    let context = LaneContext {
        db: pool.connect_lazy_with(options.application_name("reference-worker")),
        rpc: rpc.context("no node")?.to_owned(),
        http: gapless_http_client::client_builder().timeout(Duration::from_secs(2)).build()?,
        chain_id: number(&["chain", "c0", "id"])?,
        strategy,
        name: format!("reference-{}", std::process::id()),
        lease: Duration::from_millis(lease),
        required: number(&["confirmations", "required"])?,
    };
    let keys = (0..).map_while(|index| std::env::var(Stack::key_name(index)).ok());
    let lanes = keys.map(|key| Lane::new(context.clone(), Submitter::from_hex(&key)).work());
    tracing::info!("worker started");
    futures::future::join_all(lanes).await;
    Ok(())
}

fn look_up<'a>(config: &'a Table, path: &[&str]) -> Result<&'a toml::Value> {
    let (first, rest) = path.split_first().context("no key")?;
    let first = config.get(*first).with_context(|| format!("no {path:?}"))?;
    rest.iter().try_fold(first, |value, word| value.get(*word)).with_context(|| format!("no {path:?}"))
}
