//! When to say that nothing moves, and why. The saying itself is for whoever knows what is waited for.

use std::time::{Duration, Instant};

/// So long nothing may change without a word.
const AFTER: Duration = Duration::from_secs(5);
/// The same words again, for whoever looks only now.
const AGAIN: Duration = Duration::from_secs(15);

/// Watches one thing that should change.
#[derive(Debug)]
pub(super) struct Stall {
    since: Instant,
    said: Option<(String, Instant)>,
}

impl Stall {
    pub(super) fn new(now: Instant) -> Stall {
        Stall { since: now, said: None }
    }

    /// Something changed.
    pub(super) fn moved(&mut self, now: Instant) {
        *self = Stall::new(now);
    }

    /// Whether it is worth looking for a reason.
    pub(super) fn lasts(&self, now: Instant) -> bool {
        now.duration_since(self.since) >= AFTER
    }

    /// Whether to say the reason as it is now, and for how many seconds it has lasted; `None`: it was said.
    pub(super) fn due(&mut self, now: Instant, reason: &str) -> Option<u64> {
        if !self.lasts(now) {
            return None;
        }
        if let Some((said, at)) = &self.said
            && said == reason
            && now.duration_since(*at) < AGAIN
        {
            return None;
        }
        self.said = Some((reason.to_owned(), now));
        Some(now.duration_since(self.since).as_secs())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_said_once_until_it_changes_or_gets_old() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut stall = Stall::new(start);
        assert_eq!(stall.due(at(4), "a"), None, "things take a moment");
        assert_eq!(stall.due(at(5), "a"), Some(5));
        assert_eq!(stall.due(at(6), "a"), None);
        assert_eq!(stall.due(at(7), "b"), Some(7));
        assert_eq!(stall.due(at(21), "b"), None);
        assert!(stall.due(at(22), "b").is_some());
        stall.moved(at(23));
        assert_eq!(stall.due(at(24), "b"), None);
    }
}
