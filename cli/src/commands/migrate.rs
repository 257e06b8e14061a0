//! `gapless migrate`: migrates the schema of the database given by the configuration or by DATABASE_URL.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use gapless_config::{Config, Secret};
use gapless_store::{Contract, Migrated, Store, Timeouts, database_warnings};
use serde_json::json;

use crate::output;

/// A migration may rewrite a large table.
const STATEMENT_LIMIT: Duration = Duration::from_secs(3600);

pub async fn run(config: Option<&Path>, contract: bool, json: bool) -> Result<ExitCode> {
    let contract = if contract { Contract::Now } else { Contract::Later };
    let done = migrate(&database_url(config)?, contract).await?;
    if json {
        let waiting: Vec<_> = done.waiting.iter().map(|(version, _)| version).collect();
        output::json(&json!({ "schema": "current", "applied": done.applied, "waiting": waiting }));
    } else {
        output::line("the database schema is up to date");
        // The newest program that any of them needs.
        if let Some(oldest) = done.waiting.iter().map(|(_, oldest)| oldest).max() {
            output::line(format!(
                "{} migrations that older programs could not work with are left: run `gapless migrate --contract` once \
                 all programs are version {oldest} or newer",
                done.waiting.len()
            ));
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Database URL for commands that need nothing else from the configuration.
pub(super) fn database_url(config: Option<&Path>) -> Result<Secret> {
    let url = match (config, std::env::var("DATABASE_URL")) {
        (Some(path), _) => Config::load(Some(path))?.database.url,
        (None, Ok(url)) => Secret::new(url),
        (None, Err(_)) => Config::load(None).context("--config or DATABASE_URL is required")?.database.url,
    };
    log_security_warnings(&url);
    Ok(url)
}

/// Prints a warning for each insecure setting of the database connection.
pub(crate) fn log_security_warnings(url: &Secret) {
    for warning in database_warnings(url) {
        output::say(&format!("not secure: {warning}"));
    }
}

pub async fn migrate(url: &Secret, contract: Contract) -> Result<Migrated> {
    let timeouts = Timeouts { statement: STATEMENT_LIMIT, ..Timeouts::default() };
    let store = Store::new(url, "gapless-migrate", 1, timeouts)?;
    let outcome = async {
        // An advisory lock serialises migrations; it needs a session, not a transaction-pooled connection.
        store.check_session().await?;
        store.migrate(contract).await
    };
    let outcome = outcome.await.context("cannot migrate the database");
    store.close().await;
    outcome
}
