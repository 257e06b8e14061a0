//! Waiting for something to become true, without ever sleeping for the sake of it.

use std::fmt::Debug;
use std::time::{Duration, Instant};

/// Generous: a loaded machine is no failure. What is wrong usually shows much sooner.
pub const LIMIT: Duration = Duration::from_secs(120);
const POLL: Duration = Duration::from_millis(20);

/// Looks until `look` answers `Ok`. `Err` is what it saw instead, and is shown when `LIMIT` is over.
pub async fn eventually<T, S: Debug>(what: &str, look: impl AsyncFnMut() -> Result<T, S>) -> T {
    eventually_within(LIMIT, what, look).await
}

pub async fn eventually_within<T, S: Debug>(
    limit: Duration,
    what: &str,
    mut look: impl AsyncFnMut() -> Result<T, S>,
) -> T {
    let deadline = Instant::now() + limit;
    loop {
        match look().await {
            Ok(seen) => return seen,
            Err(seen) if Instant::now() >= deadline => {
                panic!("not within {limit:?}: {what}; last seen: {seen:?}")
            }
            Err(_) => tokio::time::sleep(POLL).await,
        }
    }
}
