//! Readiness: checks of the database and its schema.

use gapless_store::Store;
use parking_lot::Mutex;

/// The last error, which was logged.
#[derive(Debug, Default)]
pub(crate) struct Readiness(Mutex<Option<String>>);

impl Readiness {
    /// Empty when ready; otherwise `database` or `schema`. The response needs no key, so the details are in the log only:
    /// once for each error, not for each request.
    pub(crate) async fn missing(&self, store: &Store) -> Vec<String> {
        let error = store.check_schema().await.err();
        let reason = error.as_ref().map(|error| if error.is_schema() { "schema" } else { "database" });
        let error = error.map(|error| error.to_string());
        let mut logged = self.0.lock();
        if let Some(error) = error.as_ref().filter(|error| logged.as_ref() != Some(error)) {
            tracing::info!(error, "not ready");
        }
        *logged = error;
        reason.into_iter().map(str::to_owned).collect()
    }
}
