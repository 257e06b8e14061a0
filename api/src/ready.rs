//! Readiness: checks of the database and its schema.

use std::time::Duration;

use gapless_store::{Store, StoreError};
use tokio_util::sync::CancellationToken;

const MIN_RETRY_DELAY: Duration = Duration::from_millis(250);
const MAX_RETRY_DELAY: Duration = Duration::from_secs(10);

/// Empty when ready; otherwise one line per problem.
pub(crate) async fn missing(store: &Store) -> Vec<String> {
    match store.check_schema().await {
        Ok(()) => Vec::new(),
        Err(error @ (StoreError::SchemaTooOld { .. } | StoreError::SchemaUnreleased { .. })) => {
            vec![format!("schema: {error}")]
        }
        Err(error) => vec![format!("database: unavailable ({error})")],
    }
}

/// Start-up checks. The session check comes first: behind a pooler that shares sessions, the others are unreliable.
pub(crate) async fn check(store: &Store) -> Result<(), StoreError> {
    store.check_session().await?;
    store.check_schema().await
}

/// Retries with exponential backoff until the database is usable. Fails on errors that need an operator, such as an
/// old schema.
pub(crate) async fn wait_for_database(store: &Store, shutdown: &CancellationToken) -> Result<(), StoreError> {
    let mut delay = MIN_RETRY_DELAY;
    loop {
        match check(store).await {
            Ok(()) => return Ok(()),
            Err(error) if error.needs_operator() => return Err(error),
            Err(error) => {
                tracing::warn!(%error, retry_in = ?delay,
                    "the database is unavailable; requests are answered with 503");
            }
        }
        tokio::select! {
            () = tokio::time::sleep(delay) => delay = (delay * 2).min(MAX_RETRY_DELAY),
            () = shutdown.cancelled() => return Ok(()),
        }
    }
}
