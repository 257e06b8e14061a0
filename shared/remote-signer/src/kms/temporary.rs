//! Caches temporary credentials, and corrects a wrong local clock.

use std::sync::atomic::{AtomicI64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use chrono::{DateTime, TimeDelta, Utc};
use tokio::sync::Mutex;

/// A credential is renewed after nine tenths of its lifetime, but at most this long before it expires.
const MAX_EARLY_RENEWAL: Duration = Duration::from_secs(300);
/// Backoff after a failed renewal while the old credential is still valid.
const RENEWAL_BACKOFF: Duration = Duration::from_secs(10);

/// Maximum cache time, whatever the lifetime of the credential.
const MAX_CACHED: Duration = Duration::from_secs(24 * 3600);

/// A credential that is fetched on demand, by one task at a time, and cached while it is valid.
#[derive(Debug)]
pub(super) struct Temporary<T>(Mutex<Option<Held<T>>>);

#[derive(Debug)]
struct Held<T> {
    value: T,
    renew_at: Instant,
    ends_at: Instant,
}

impl<T: Clone> Temporary<T> {
    pub(super) fn new() -> Temporary<T> {
        Temporary(Mutex::new(None))
    }

    /// `fetch` returns a credential and its lifetime.
    pub(super) async fn get(
        &self,
        fetch: impl Future<Output = Result<(T, Duration), String>>,
    ) -> Result<T, String> {
        let mut held = self.0.lock().await;
        if let Some(held) = &*held
            && Instant::now() < held.renew_at
        {
            return Ok(held.value.clone());
        }
        let requested_at = Instant::now();
        match (fetch.await, &mut *held) {
            (Ok((value, lasts)), _) => {
                let lasts = lasts.min(MAX_CACHED);
                let early = (lasts / 10).min(MAX_EARLY_RENEWAL);
                *held = Some(Held {
                    value: value.clone(),
                    renew_at: requested_at + (lasts - early),
                    ends_at: requested_at + lasts,
                });
                Ok(value)
            }
            (Err(_), Some(held)) if Instant::now() < held.ends_at => {
                held.renew_at = Instant::now() + RENEWAL_BACKOFF;
                Ok(held.value.clone())
            }
            (Err(reason), _) => Err(reason),
        }
    }

    /// Discards the credential after it was rejected; the next `get` fetches a new one.
    pub(super) async fn forget(&self) {
        *self.0.lock().await = None;
    }
}

/// Time of a service, from its `Date` headers. With a wrong local clock all requests would be rejected.
#[derive(Debug, Default)]
pub(super) struct ServiceClock {
    ahead_s: AtomicI64,
}

/// Smaller differences may be network latency. The services accept five minutes.
const IGNORED_S: i64 = 60;

impl ServiceClock {
    pub(super) fn now(&self) -> DateTime<Utc> {
        Utc::now() + TimeDelta::seconds(self.ahead_s.load(Relaxed))
    }

    pub(super) fn learn(&self, date: Option<DateTime<Utc>>) {
        if let Some(date) = date {
            let ahead = (date - Utc::now()).num_seconds();
            self.ahead_s.store(if ahead.abs() > IGNORED_S { ahead } else { 0 }, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(3600);

    async fn got(temporary: &Temporary<u32>, fetched: Result<(u32, Duration), &str>) -> Result<u32, String> {
        temporary.get(async { fetched.map_err(str::to_owned) }).await
    }

    #[tokio::test]
    async fn a_credential_is_cached_until_it_expires_or_is_rejected() {
        let temporary = Temporary::new();
        assert_eq!(got(&temporary, Err("away")).await, Err("away".into()));
        assert_eq!(got(&temporary, Ok((1, LONG))).await, Ok(1));
        assert_eq!(got(&temporary, Ok((2, LONG))).await, Ok(1));
        temporary.forget().await;
        assert_eq!(got(&temporary, Ok((3, Duration::ZERO))).await, Ok(3));
        assert_eq!(got(&temporary, Err("away")).await, Err("away".into()), "it has ended");
        assert_eq!(got(&temporary, Ok((4, LONG))).await, Ok(4));
    }

    #[tokio::test]
    async fn a_credential_that_cannot_be_renewed_is_used_until_it_expires() {
        let temporary = Temporary::new();
        assert_eq!(got(&temporary, Ok((1, LONG))).await, Ok(1));
        temporary.0.lock().await.as_mut().unwrap().renew_at = Instant::now();
        assert_eq!(got(&temporary, Err("away")).await, Ok(1));
        assert_eq!(got(&temporary, Ok((2, LONG))).await, Ok(1), "not asked again at once");
    }

    #[test]
    fn a_wrong_clock_is_corrected_by_the_service() {
        let clock = ServiceClock::default();
        let hour = TimeDelta::hours(1);
        clock.learn(Some(Utc::now() - hour));
        assert!((Utc::now() - clock.now() - hour).num_seconds().abs() <= 5);
        clock.learn(None);
        assert!(clock.now() < Utc::now() - TimeDelta::minutes(50));
        clock.learn(Some(Utc::now() + TimeDelta::seconds(20)));
        assert!((clock.now() - Utc::now()).num_seconds().abs() <= 5);
    }
}
