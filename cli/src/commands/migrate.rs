//! `gapless migrate`: the schema, from the configuration or from DATABASE_URL alone.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use gapless::config::{Config, Secret};
use gapless::store::{Store, Timeouts, database_remarks};
use serde_json::json;

use crate::output;

/// A migration may rewrite a large table.
const STATEMENT_LIMIT: Duration = Duration::from_secs(3600);

pub async fn run(config: Option<&Path>, json: bool) -> Result<ExitCode> {
    migrate(&database_url(config)?).await?;
    if json {
        output::json(&json!({ "schema": "current" }));
    } else {
        output::line("the schema is current");
    }
    Ok(ExitCode::SUCCESS)
}

/// For commands that need the database and nothing else.
pub(super) fn database_url(config: Option<&Path>) -> Result<Secret> {
    let url = match (config, std::env::var("DATABASE_URL")) {
        (Some(path), _) => Config::load(Some(path))?.database.url,
        (None, Ok(url)) => Secret::new(url),
        (None, Err(_)) => Config::load(None).context("give --config or DATABASE_URL")?.database.url,
    };
    log_security_warnings(&url);
    Ok(url)
}

/// What about the way to the database is not as it should be.
pub(crate) fn log_security_warnings(url: &Secret) {
    for log_security_warnings in database_remarks(url) {
        output::say(&format!("not secure: {log_security_warnings}"));
    }
}

pub async fn migrate(url: &Secret) -> Result<()> {
    let timeouts = Timeouts { statement: STATEMENT_LIMIT, ..Timeouts::default() };
    let store = Store::new(url, "gapless-migrate", 1, timeouts)?;
    let outcome = async {
        // Migrations are kept apart by a lock that belongs to a session.
        store.check_session().await?;
        store.migrate().await
    };
    let outcome = outcome.await.context("cannot migrate the database");
    store.close().await;
    outcome
}
