//! What expires: credentials that are fetched anew in time, and a clock that may be wrong.

use std::sync::atomic::{AtomicI64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use chrono::{DateTime, TimeDelta, Utc};
use tokio::sync::Mutex;

/// Before the end of a long-lived credential it is renewed this early; of a short-lived one, at nine tenths.
const RENEW_EARLY_AT_MOST: Duration = Duration::from_secs(300);
/// After a renewal failed and the old one still serves.
const RENEW_AGAIN: Duration = Duration::from_secs(10);

/// Whatever its issuer says.
const KEPT_AT_MOST: Duration = Duration::from_secs(24 * 3600);

/// A credential that is fetched when it is needed, by one asker at a time, and kept while it is good.
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

    /// `fetch` answers with a credential and how long it lasts.
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
        let asked = Instant::now();
        match (fetch.await, &mut *held) {
            (Ok((value, lasts)), _) => {
                let lasts = lasts.min(KEPT_AT_MOST);
                let early = (lasts / 10).min(RENEW_EARLY_AT_MOST);
                *held = Some(Held {
                    value: value.clone(),
                    renew_at: asked + (lasts - early),
                    ends_at: asked + lasts,
                });
                Ok(value)
            }
            (Err(_), Some(held)) if Instant::now() < held.ends_at => {
                held.renew_at = Instant::now() + RENEW_AGAIN;
                Ok(held.value.clone())
            }
            (Err(reason), _) => Err(reason),
        }
    }

    /// It was not accepted: the next one who asks fetches another.
    pub(super) async fn forget(&self) {
        *self.0.lock().await = None;
    }
}

/// The clock of a service, as far as its answers tell. A worker whose own is wrong would be refused for ever.
#[derive(Debug, Default)]
pub(super) struct ServiceClock {
    ahead_s: AtomicI64,
}

/// Below it the difference may be the journey. The services allow five minutes.
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
    async fn a_credential_is_fetched_once_and_again_when_it_is_over_or_was_refused() {
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
    async fn a_credential_that_cannot_be_renewed_serves_to_its_end() {
        let temporary = Temporary::new();
        assert_eq!(got(&temporary, Ok((1, LONG))).await, Ok(1));
        temporary.0.lock().await.as_mut().unwrap().renew_at = Instant::now();
        assert_eq!(got(&temporary, Err("away")).await, Ok(1));
        assert_eq!(got(&temporary, Ok((2, LONG))).await, Ok(1), "not asked again at once");
    }

    #[test]
    fn a_wrong_clock_follows_the_services() {
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
