//! A token bucket. The caller passes the current time.

use std::time::{Duration, Instant};

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Limit {
    /// Per second.
    pub(super) rate: f64,
    pub(super) burst: f64,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Bucket {
    limit: Limit,
    tokens: f64,
    filled_at: Instant,
}

impl Bucket {
    pub(super) fn full(limit: Limit, now: Instant) -> Bucket {
        Bucket { limit, tokens: limit.burst, filled_at: now }
    }

    /// Takes one token. `Err`: how long until one is available.
    pub(super) fn take(&mut self, now: Instant) -> Result<(), Duration> {
        let passed = now.saturating_duration_since(self.filled_at).as_secs_f64();
        self.tokens = (self.tokens + passed * self.limit.rate).min(self.limit.burst);
        self.filled_at = now;
        if self.tokens < 1.0 {
            return Err(Duration::from_secs_f64((1.0 - self.tokens) / self.limit.rate));
        }
        self.tokens -= 1.0;
        Ok(())
    }

    /// Returns one token.
    pub(super) fn refund(&mut self) {
        self.tokens = (self.tokens + 1.0).min(self.limit.burst);
    }

    pub(super) fn is_full(&self, now: Instant) -> bool {
        let passed = now.saturating_duration_since(self.filled_at).as_secs_f64();
        self.tokens + passed * self.limit.rate >= self.limit.burst
    }

    /// Takes more tokens after the first. The balance may become negative: otherwise a batch larger than the burst
    /// could never be accepted. Later requests wait until it is positive again.
    pub(super) fn charge(&mut self, tokens: usize) {
        self.tokens -= tokens as f64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Limit = Limit { rate: 2.0, burst: 3.0 };

    #[test]
    fn a_burst_is_allowed_and_then_the_rate_applies() {
        let start = Instant::now();
        let mut bucket = Bucket::full(LIMIT, start);
        assert!((0..3).all(|_| bucket.take(start).is_ok()));
        assert_eq!(bucket.take(start), Err(Duration::from_millis(500)));
        let later = start + Duration::from_millis(250);
        assert_eq!(bucket.take(later), Err(Duration::from_millis(250)), "a refused take costs nothing");
        let later = start + Duration::from_millis(500);
        assert!(bucket.take(later).is_ok());
        assert!(bucket.take(later).is_err());
        let much_later = start + Duration::from_secs(3600);
        assert_eq!((0..10).filter(|_| bucket.take(much_later).is_ok()).count(), 3, "no more than the burst");
    }

    #[test]
    fn a_batch_may_overdraw_and_later_requests_wait() {
        let start = Instant::now();
        let mut bucket = Bucket::full(LIMIT, start);
        bucket.take(start).unwrap();
        bucket.charge(9);
        assert_eq!(bucket.take(start), Err(Duration::from_secs(4)), "7 in debt, and one to take");
        assert!(bucket.take(start + Duration::from_secs(4)).is_ok());
    }
}
