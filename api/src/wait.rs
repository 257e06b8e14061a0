//! Parses `?wait=30s`, and waits for a worker to handle a request.

use std::time::Duration;

use gapless_store::StoreError;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::app::App;
use crate::error::ApiError;

/// Default wait. A running lane handles a request within this time.
const WORKER_WAIT: Duration = Duration::from_secs(5);
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// `500ms`, `30s`, `2m`. Values above the configured maximum are reduced to it: the client polls again anyway.
pub(crate) fn parse_wait(text: Option<&str>, max: Duration) -> Result<Duration, ApiError> {
    let Some(text) = text else { return Ok(Duration::ZERO) };
    match humantime::parse_duration(text) {
        Ok(wait) => Ok(wait.min(max)),
        Err(_) => Err(ApiError::invalid("wait", "must be a duration, for example 500ms, 30s or 2m")),
    }
}

/// As `parse_wait`, for requests that a worker handles: if absent, `WORKER_WAIT`.
pub(crate) fn parse_worker_wait(text: Option<&str>, max: Duration) -> Result<Duration, ApiError> {
    if text.is_some() { parse_wait(text, max) } else { Ok(WORKER_WAIT) }
}

/// The row of a request once a worker has handled it, or its current state on timeout or shutdown.
pub(crate) async fn wait_until_handled<R, F: Future<Output = Result<R, StoreError>>>(
    app: &App,
    wait: Duration,
    read: impl Fn() -> F,
    is_done: impl Fn(&R) -> bool,
) -> Result<R, StoreError> {
    let until = Instant::now() + wait;
    let mut completions = app.completions.clone();
    loop {
        // Before reading the row, so that a later change wakes the wait below.
        completions.mark_unchanged();
        let row = read().await?;
        if is_done(&row) || Instant::now() >= until || app.shutdown.is_cancelled() {
            return Ok(row);
        }
        completion_or_timeout(&mut completions, POLL_INTERVAL).await;
    }
}

/// Returns on NOTIFY from a worker, or after `limit`.
pub(crate) async fn completion_or_timeout(completions: &mut watch::Receiver<bool>, limit: Duration) {
    let notified = async {
        if completions.changed().await.is_err() {
            // The sender lives as long as the server. If it were gone, the timeout would remain.
            std::future::pending::<()>().await;
        }
    };
    let _ = tokio::time::timeout(limit, notified).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_have_a_unit_and_a_maximum() {
        let parse = |text| parse_wait(Some(text), Duration::from_secs(60)).map_err(|error| error.to_string());
        assert_eq!(parse("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(parse("30s"), Ok(Duration::from_secs(30)));
        assert_eq!(parse("2m"), Ok(Duration::from_secs(60)));
        assert_eq!(parse_wait(None, Duration::MAX).unwrap(), Duration::ZERO);
        for bad in ["", "30", "-1s", "s", "forever"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
