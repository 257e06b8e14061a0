//! Polls for a condition with a time limit.

use std::fmt::Debug;
use std::time::{Duration, Instant};

/// Generous, so that tests pass on a loaded machine.
pub const LIMIT: Duration = Duration::from_secs(120);
const POLL: Duration = Duration::from_millis(20);

/// Polls `look` until it returns `Ok`. After `LIMIT` it panics with the last `Err`, which is the observed value.
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
