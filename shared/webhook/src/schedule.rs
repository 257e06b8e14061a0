//! When a failed delivery is tried again.

use std::time::Duration;

use rand::Rng;
use thiserror::Error;

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(60 * 60);

/// Eight attempts within 28 hours, so that a receiver that fails in the evening can be repaired the next day.
const DEFAULT: [Duration; 8] = [
    Duration::ZERO,
    SECOND.saturating_mul(5),
    MINUTE.saturating_mul(5),
    MINUTE.saturating_mul(30),
    HOUR.saturating_mul(2),
    HOUR.saturating_mul(5),
    HOUR.saturating_mul(10),
    HOUR.saturating_mul(10),
];

#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("a retry schedule has at least one attempt")]
pub struct EmptySchedule;

/// The waits before each attempt, each counted from the attempt before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RetrySchedule(Vec<Duration>);

impl Default for RetrySchedule {
    fn default() -> Self {
        RetrySchedule(DEFAULT.into())
    }
}

impl RetrySchedule {
    /// The first wait is before the first attempt; usually it is zero.
    pub fn new(waits: Vec<Duration>) -> Result<RetrySchedule, EmptySchedule> {
        if waits.is_empty() { Err(EmptySchedule) } else { Ok(RetrySchedule(waits)) }
    }

    /// How long to wait before the next attempt: what the schedule says, or what the receiver asked for if that is
    /// longer. `None`: there is no further attempt.
    ///
    /// The schedule's wait is changed by up to a tenth, at random, so that deliveries that failed together are not
    /// repeated together.
    pub fn next(&self, attempts_made: usize, retry_after: Option<Duration>) -> Option<Duration> {
        let wait = *self.0.get(attempts_made)?;
        Some(jittered(wait, &mut rand::rng()).max(retry_after.unwrap_or_default()))
    }
}

fn jittered(wait: Duration, random: &mut impl Rng) -> Duration {
    let spread = wait / 10;
    random.random_range(wait - spread..=wait.saturating_add(spread))
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand::rngs::StdRng;

    use super::*;

    #[test]
    fn the_default_waits_are_the_documented_ones_within_a_tenth() {
        let schedule = RetrySchedule::default();
        let expected = [0, 5, 300, 1800, 7200, 18_000, 36_000, 36_000];
        for (made, seconds) in expected.into_iter().enumerate() {
            let wait = schedule.next(made, None).unwrap().as_secs_f64();
            let seconds = f64::from(seconds);
            assert!((seconds * 0.9..=seconds * 1.1).contains(&wait), "attempt {made}: {wait}");
        }
        assert_eq!(schedule.next(8, None), None);
        assert_eq!(schedule.next(usize::MAX, Some(SECOND)), None);
    }

    #[test]
    fn the_first_attempt_of_the_default_schedule_is_at_once() {
        assert_eq!(RetrySchedule::default().next(0, None), Some(Duration::ZERO));
    }

    #[test]
    fn the_later_of_schedule_and_retry_after_counts() {
        let schedule = RetrySchedule::new(vec![Duration::ZERO, MINUTE]).unwrap();
        assert_eq!(schedule.next(1, Some(HOUR)), Some(HOUR));
        assert_eq!(schedule.next(0, Some(SECOND)), Some(SECOND));
        let wait = schedule.next(1, Some(SECOND)).unwrap();
        assert!(wait >= MINUTE - MINUTE / 10, "{wait:?}");
        assert_eq!(schedule.next(2, Some(HOUR)), None);
    }

    #[test]
    fn waits_are_spread_over_a_tenth_in_both_directions() {
        let mut random = StdRng::seed_from_u64(7);
        let waits: Vec<Duration> = (0..1000).map(|_| jittered(HOUR, &mut random)).collect();
        let (least, most) = (waits.iter().min().unwrap(), waits.iter().max().unwrap());
        assert!(*least >= HOUR - HOUR / 10 && *least < HOUR - HOUR / 11, "{least:?}");
        assert!(*most <= HOUR + HOUR / 10 && *most > HOUR + HOUR / 11, "{most:?}");
    }

    #[test]
    fn an_empty_schedule_is_refused_and_the_longest_wait_does_not_overflow() {
        assert_eq!(RetrySchedule::new(Vec::new()), Err(EmptySchedule));
        assert!(RetrySchedule::new(vec![Duration::MAX]).unwrap().next(0, None).is_some());
    }
}
