//! Decides when to report missing progress.

use std::time::{Duration, Instant};

/// Report after this time without progress.
const AFTER: Duration = Duration::from_secs(5);
/// Repeat an unchanged reason after this time.
const AGAIN: Duration = Duration::from_secs(15);

/// Tracks the time since the last progress.
#[derive(Debug)]
pub(super) struct Stall {
    since: Instant,
    reported: Option<(String, Instant)>,
}

impl Stall {
    pub(super) fn new(now: Instant) -> Stall {
        Stall { since: now, reported: None }
    }

    /// Records progress.
    pub(super) fn moved(&mut self, now: Instant) {
        *self = Stall::new(now);
    }

    /// Whether it is time to look for a reason.
    pub(super) fn lasts(&self, now: Instant) -> bool {
        now.duration_since(self.since) >= AFTER
    }

    /// The seconds without progress, if `reason` is due to be reported now.
    pub(super) fn due(&mut self, now: Instant, reason: &str) -> Option<u64> {
        if !self.lasts(now) {
            return None;
        }
        if let Some((reported, at)) = &self.reported
            && reported == reason
            && now.duration_since(*at) < AGAIN
        {
            return None;
        }
        self.reported = Some((reason.to_owned(), now));
        Some(now.duration_since(self.since).as_secs())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_repeated_when_it_changes_or_after_a_while() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut stall = Stall::new(start);
        assert_eq!(stall.due(at(4), "a"), None, "too early");
        assert_eq!(stall.due(at(5), "a"), Some(5));
        assert_eq!(stall.due(at(6), "a"), None);
        assert_eq!(stall.due(at(7), "b"), Some(7));
        assert_eq!(stall.due(at(21), "b"), None);
        assert!(stall.due(at(22), "b").is_some());
        stall.moved(at(23));
        assert_eq!(stall.due(at(24), "b"), None);
    }
}
