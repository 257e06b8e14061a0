//! Waiting for the database at the start of a program, the same for API and worker.

use std::time::Duration;

use crate::{Store, StoreError};

const MIN_PAUSE: Duration = Duration::from_millis(200);
const MAX_PAUSE: Duration = Duration::from_secs(5);

impl Store {
    /// Checks of session and schema. The session check comes first: behind a pooler that shares sessions, the other is
    /// unreliable.
    pub async fn check_usable(&self) -> Result<(), StoreError> {
        self.check_session().await?;
        self.check_schema().await
    }

    /// Retries with exponential backoff until the database exists, is reachable and accepts this program; false if
    /// `stop` comes first. Fails on errors that need an operator, such as an old schema. Logs each change of the reason
    /// once, not each attempt. `meanwhile` says what the program does until then.
    pub async fn wait_until_usable(
        &self,
        meanwhile: &str,
        stop: impl Future<Output = ()>,
    ) -> Result<bool, StoreError> {
        tokio::pin!(stop);
        let mut pause = MIN_PAUSE;
        let mut reported: Option<String> = None;
        loop {
            match self.check_usable().await {
                Ok(()) => {
                    if reported.is_some() {
                        tracing::info!("the database is available");
                    }
                    return Ok(true);
                }
                Err(error) if error.needs_operator() => return Err(error),
                Err(error) => {
                    let reason = error.to_string();
                    if reported.as_ref() != Some(&reason) {
                        tracing::warn!(error = reason, meanwhile, "the database is unavailable; retrying");
                        reported = Some(reason);
                    }
                }
            }
            tokio::select! {
                () = &mut stop => return Ok(false),
                () = tokio::time::sleep(pause) => pause = (pause * 2).min(MAX_PAUSE),
            }
        }
    }
}
