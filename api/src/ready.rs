//! Readiness: checks of the database and its schema.

use gapless_store::{Store, StoreError};

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
