//! Whether this process can do its work, and what it lacks.

use std::time::Duration;

use gapless::store::{Store, StoreError};
use tokio_util::sync::CancellationToken;

const FIRST_DELAY: Duration = Duration::from_millis(250);
const LAST_DELAY: Duration = Duration::from_secs(10);

/// Empty when ready; else one line for each thing that is missing.
pub(crate) async fn missing(store: &Store) -> Vec<String> {
    match store.check_schema().await {
        Ok(()) => Vec::new(),
        Err(error @ StoreError::SchemaTooOld { .. }) => vec![format!("schema: {error}")],
        Err(error) => vec![format!("database: cannot be used ({error})")],
    }
}

/// What a start needs of the database. Sessions first: through a pooler that shares them nothing else can be asked.
pub(crate) async fn check(store: &Store) -> Result<(), StoreError> {
    store.check_session().await?;
    store.check_schema().await
}

/// Waits for the database with growing patience. What does not heal by waiting, such as an older schema, is an error.
pub(crate) async fn wait_for_database(store: &Store, shutdown: &CancellationToken) -> Result<(), StoreError> {
    let mut delay = FIRST_DELAY;
    loop {
        match check(store).await {
            Ok(()) => return Ok(()),
            Err(error) if error.is_for_people() => return Err(error),
            Err(error) => {
                tracing::warn!(%error, retry_in = ?delay, "the database cannot be used; requests are answered with 503");
            }
        }
        tokio::select! {
            () = tokio::time::sleep(delay) => delay = (delay * 2).min(LAST_DELAY),
            () = shutdown.cancelled() => return Ok(()),
        }
    }
}
