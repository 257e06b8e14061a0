//! When to poll the head again. No I/O: takes and returns instants.
//!
//! A chain produces blocks periodically, and is polled when the next is expected; or it mines instantly when something
//! is sent, and is polled right after a send. Which of the two applies is detected from its behaviour.

use std::time::Duration;

use tokio::time::Instant;

/// Bounds of the shortest pause between two polls, however often lanes send.
const MIN_GAP: Duration = Duration::from_millis(1);
const MAX_GAP: Duration = Duration::from_millis(50);
/// Longer intervals without a block are clamped to this in the mean block time.
const LONGEST_INTERVAL: Duration = Duration::from_secs(15);
/// A transaction mined this soon after a node accepted it was mined instantly.
const INSTANT: Duration = Duration::from_millis(25);
/// Score for instant mining: an instantly mined transaction adds `SCORE_STEP`, up to `MAX_SCORE`; a poll that finds a
/// sent transaction unmined subtracts one. At zero the chain counts as periodic.
const SCORE_STEP: u8 = 3;
const MAX_SCORE: u8 = 12;
/// A node may accept a transaction a moment before it mines it: the first polls without a result are repeated without
/// a pause, because the shortest timer takes longer than the block. Only if few transactions were sent; with many,
/// other lanes need the node.
const IMMEDIATE_POLLS: u32 = 4;
pub(super) const FEW_SENT: usize = 3;

#[derive(Debug)]
pub(super) struct Pace {
    /// The polling interval if no lane waits.
    poll: Duration,
    /// Mean time between blocks.
    interval: Duration,
    last_block: Instant,
    polled: Instant,
    /// Consecutive polls after the expected time of a block that found none.
    misses: u32,
    /// Above zero: the chain mines instantly.
    instant_score: u8,
    /// Consecutive polls that found sent transactions unmined.
    sent_misses: u32,
}

impl Pace {
    pub(super) fn new(poll: Duration, now: Instant) -> Pace {
        Pace {
            poll,
            interval: poll,
            last_block: now,
            polled: now,
            misses: 0,
            instant_score: SCORE_STEP,
            sent_misses: 0,
        }
    }

    /// Whether the chain mines a transaction as soon as a node accepts it.
    pub(super) fn mines_instantly(&self) -> bool {
        self.instant_score > 0
    }

    /// The mean time between blocks.
    pub(super) fn block_time(&self) -> Duration {
        self.interval
    }

    /// No poll before this: every send triggers one, but the head changes only once per block.
    pub(super) fn earliest(&self) -> Instant {
        let gap = if self.mines_instantly() { MIN_GAP } else { self.gap() };
        self.polled + gap
    }

    /// When to poll without a trigger. `waiting`: a lane waits for a block. `sent`: number of transactions that may be
    /// mined instantly.
    pub(super) fn next(&self, waiting: bool, sent: usize) -> Instant {
        let poll = self.polled + self.poll;
        if !waiting {
            return poll;
        }
        if sent > 0 && self.mines_instantly() {
            let pause = match sent <= FEW_SENT && (1..=IMMEDIATE_POLLS).contains(&self.sent_misses) {
                true => Duration::ZERO,
                false => doubled(MIN_GAP, self.sent_misses.saturating_sub(IMMEDIATE_POLLS)),
            };
            return (self.polled + pause).min(poll);
        }
        self.expected().max(self.polled + doubled(self.gap(), self.misses)).min(poll)
    }

    /// Slightly early: a block that is seen late shifts the next expected time.
    fn expected(&self) -> Instant {
        self.last_block + self.interval - self.interval / 16
    }

    fn gap(&self) -> Duration {
        (self.interval / 20).clamp(MIN_GAP, MAX_GAP)
    }

    /// A poll found this many new blocks.
    pub(super) fn polled(&mut self, blocks: usize, now: Instant) {
        self.polled = now;
        let Some(count) = u32::try_from(blocks).ok().filter(|count| *count > 0) else {
            self.misses += u32::from(now >= self.expected());
            return;
        };
        let since = now.duration_since(self.last_block) / count;
        self.interval = (self.interval * 3 + since.min(LONGEST_INTERVAL)) / 4;
        self.last_block = now;
        self.misses = 0;
    }

    /// A poll failed.
    pub(super) fn failed(&mut self, now: Instant) {
        self.polled = now;
        // The next poll is after the full interval.
        (self.misses, self.sent_misses) = (MAX_DOUBLINGS, MAX_DOUBLINGS);
    }

    /// Sent transactions are in a new block; `age` is the time since the newest of them was accepted.
    pub(super) fn mined_after(&mut self, age: Duration) {
        self.sent_misses = 0;
        if age <= INSTANT {
            self.instant_score = (self.instant_score + SCORE_STEP).min(MAX_SCORE);
        }
    }

    /// Sent transactions are in no block yet. Immediate polls lower the score only once.
    pub(super) fn sent_not_mined(&mut self) {
        self.sent_misses += 1;
        if self.sent_misses == 1 || self.sent_misses > IMMEDIATE_POLLS {
            self.instant_score = self.instant_score.saturating_sub(1);
        }
    }
}

/// Enough to make any pause longer than the polling interval.
const MAX_DOUBLINGS: u32 = 20;

fn doubled(pause: Duration, times: u32) -> Duration {
    pause.saturating_mul(1 << times.min(MAX_DOUBLINGS))
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLL: Duration = Duration::from_millis(500);
    const SECOND: Duration = Duration::from_secs(1);

    fn one_block_per_second() -> (Pace, Instant) {
        let mut now = Instant::now();
        let mut pace = Pace::new(POLL, now);
        for _ in 0..40 {
            now += SECOND;
            pace.polled(1, now);
        }
        (pace, now)
    }

    #[test]
    fn polls_when_a_block_is_expected_and_at_least_every_interval() {
        let (mut pace, block) = one_block_per_second();
        assert_eq!(pace.next(true, 0), block + POLL);
        pace.polled(0, block + POLL);
        let next = pace.next(true, 0);
        assert!(next > block + SECOND * 9 / 10 && next < block + SECOND, "{:?}", next - block);
        pace.polled(0, next);
        let again = pace.next(true, 0);
        assert!(again - next <= MAX_GAP * 2, "{:?}", again - next);
        assert_eq!(pace.next(false, 0), next + POLL);
    }

    #[test]
    fn polls_for_an_overdue_block_back_off() {
        let (mut pace, block) = one_block_per_second();
        let mut polls = Vec::new();
        while polls.len() < 12 {
            let next = pace.next(true, 0);
            pace.polled(0, next);
            polls.push(next - block);
        }
        assert!(polls.windows(2).skip(2).all(|pair| pair[1] > pair[0]));
        assert_eq!(polls[11] - polls[10], POLL);
        let mut failing = one_block_per_second().0;
        failing.failed(block);
        assert_eq!((failing.next(true, 0), failing.next(true, 1)), (block + POLL, block + POLL));
    }

    #[test]
    fn instant_mining_is_detected_and_forgotten() {
        let mut pace = Pace::new(POLL, Instant::now());
        assert!(pace.mines_instantly(), "assumed at first");
        (0..IMMEDIATE_POLLS + u32::from(SCORE_STEP)).for_each(|_| pace.sent_not_mined());
        assert!(!pace.mines_instantly());
        pace.mined_after(INSTANT * 2);
        assert!(!pace.mines_instantly(), "that was a periodic block");
        pace.mined_after(Duration::ZERO);
        assert!(pace.mines_instantly());
        (0..100).for_each(|_| pace.mined_after(Duration::ZERO));
        (0..IMMEDIATE_POLLS + u32::from(MAX_SCORE)).for_each(|_| pace.sent_not_mined());
        assert!(!pace.mines_instantly());
    }

    #[test]
    fn sends_trigger_polls_only_on_chains_that_mine_instantly() {
        let (mut pace, block) = one_block_per_second();
        assert_eq!((pace.earliest(), pace.next(true, 1)), (block + MIN_GAP, block + MIN_GAP));
        for _ in 0..IMMEDIATE_POLLS {
            pace.sent_not_mined();
            assert_eq!(pace.next(true, FEW_SENT), block, "it may be mined a moment after it was accepted");
            assert_eq!(pace.next(true, FEW_SENT + 1), block + MIN_GAP, "other lanes need the node");
        }
        assert!(pace.mines_instantly(), "immediate polls count once");
        pace.sent_not_mined();
        assert_eq!(pace.next(true, 1), block + MIN_GAP * 2);
        (0..SCORE_STEP).for_each(|_| pace.sent_not_mined());
        assert!(pace.earliest() > block + MAX_GAP / 2 && pace.earliest() <= block + MAX_GAP);
        assert_eq!(pace.next(true, 1), block + POLL);
    }
}
