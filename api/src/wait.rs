//! `?wait=30s`, and the waiting for a worker.

use std::time::Duration;

use gapless::store::StoreError;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::app::App;
use crate::error::ApiError;

/// A lane that is awake carries a request out within this time.
const WORKER_WAIT: Duration = Duration::from_secs(5);
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// `500ms`, `30s`, `2m`. Longer than the configured maximum means the maximum: the client asks again anyway.
pub(crate) fn parse_wait(text: Option<&str>, max: Duration) -> Result<Duration, ApiError> {
    let Some(text) = text else { return Ok(Duration::ZERO) };
    match humantime::parse_duration(text) {
        Ok(wait) => Ok(wait.min(max)),
        Err(_) => Err(ApiError::InvalidRequest(format!(
            "wait: `{text}` is not a duration such as 500ms, 30s or 2m"
        ))),
    }
}

/// The same for what a worker has to carry out: absent means long enough for one that is awake.
pub(crate) fn parse_worker_wait(text: Option<&str>, max: Duration) -> Result<Duration, ApiError> {
    if text.is_some() { parse_wait(text, max) } else { Ok(WORKER_WAIT) }
}

/// The row of a request once a worker has dealt with it, or as it stands when the time is up or the server stops.
pub(crate) async fn dealt_with<R, F: Future<Output = Result<R, StoreError>>>(
    app: &App,
    wait: Duration,
    read: impl Fn() -> F,
    is_done: impl Fn(&R) -> bool,
) -> Result<R, StoreError> {
    let until = Instant::now() + wait;
    let mut endings = app.endings.clone();
    loop {
        // Before the row is read: what ends after that has somebody look again.
        endings.mark_unchanged();
        let row = read().await?;
        if is_done(&row) || Instant::now() >= until || app.shutdown.is_cancelled() {
            return Ok(row);
        }
        something_ended(&mut endings, LOOK_EVERY).await;
    }
}

/// Returns when workers say that something ended, or `limit` has passed.
pub(crate) async fn something_ended(endings: &mut watch::Receiver<bool>, limit: Duration) {
    let heard = async {
        if endings.changed().await.is_err() {
            // The sender lives as long as the server; were it gone, the clock would be left.
            std::future::pending::<()>().await;
        }
    };
    let _ = tokio::time::timeout(limit, heard).await;
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
