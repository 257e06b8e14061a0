//! The clock of the service. AWS rejects requests whose clock is more than five minutes off; the SDK takes the time of
//! this machine and does not correct it.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};
use std::time::{Duration, SystemTime};

use aws_sdk_kms::primitives::{DateTime, DateTimeFormat};
use aws_smithy_async::time::TimeSource;

/// Smaller differences may be network latency.
const IGNORED_S: i64 = 60;

/// The time of this machine, corrected by the `Date` header of a rejection.
#[derive(Clone, Debug, Default)]
pub(super) struct ServiceClock {
    ahead_s: Arc<AtomicI64>,
}

impl ServiceClock {
    /// `date`: the header of a response.
    pub(super) fn learn(&self, date: Option<&str>) {
        let date = date.and_then(|text| DateTime::from_str(text, DateTimeFormat::HttpDate).ok());
        if let Some(date) = date {
            let ahead = date.secs() - DateTime::from(SystemTime::now()).secs();
            self.ahead_s.store(if ahead.abs() > IGNORED_S { ahead } else { 0 }, Relaxed);
        }
    }
}

impl TimeSource for ServiceClock {
    fn now(&self) -> SystemTime {
        let (now, ahead_s) = (SystemTime::now(), self.ahead_s.load(Relaxed));
        let difference = Duration::from_secs(ahead_s.unsigned_abs());
        let corrected = if ahead_s < 0 { now.checked_sub(difference) } else { now.checked_add(difference) };
        corrected.unwrap_or(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_clock_is_corrected_by_the_service() {
        let clock = ServiceClock::default();
        let behind = || SystemTime::now().duration_since(clock.now()).unwrap_or_default().as_secs();
        let date = |ago: u64| {
            let at = SystemTime::now() - Duration::from_secs(ago);
            DateTime::from(at).fmt(DateTimeFormat::HttpDate).unwrap()
        };
        clock.learn(Some(&date(3600)));
        assert!((3595..=3605).contains(&behind()), "{}", behind());
        for nothing in [None, Some("yesterday")] {
            clock.learn(nothing);
            assert!(behind() >= 3595, "{nothing:?}: {}", behind());
        }
        clock.learn(Some(&date(20)));
        assert_eq!(behind(), 0, "a small difference is ignored");
    }
}
