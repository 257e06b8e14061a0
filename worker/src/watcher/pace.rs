//! When to look at the head again. Pure: instants go in, instants come out.
//!
//! Blocks come by the clock, and then one is awaited when it is expected; or they come because something was sent, and
//! then it is worth a look at once. Which of the two a chain does is learnt from it.

use std::time::Duration;

use tokio::time::Instant;

/// Bounds of the shortest pause between two looks, however eagerly lanes ask.
const MIN_GAP: Duration = Duration::from_millis(1);
const MAX_GAP: Duration = Duration::from_millis(50);
/// Longer silence says nothing about the time between blocks.
const LONGEST_INTERVAL: Duration = Duration::from_secs(15);
/// What is mined this soon after a node took it was mined because of it.
const AT_ONCE: Duration = Duration::from_millis(25);
/// How many looks in vain it takes to doubt that blocks come at once: after one that did, and at the most.
const BELIEF: u8 = 3;
const MOST_BELIEF: u8 = 12;
/// A node may say that it has something a moment before it mines it: the first looks in vain are repeated without a pause,
/// since the shortest one a timer keeps is longer than the block takes. Only for so few; where many were sent, others
/// wait for the same node.
const AGAIN: u32 = 4;
pub(super) const FEW: usize = 3;

#[derive(Debug)]
pub(super) struct Pace {
    /// The common interval, when nobody waits.
    poll: Duration,
    /// Mean time between blocks.
    interval: Duration,
    last_block: Instant,
    looked: Instant,
    /// Looks in a row, after a block was expected, that found none.
    misses: u32,
    /// Above zero: this chain makes a block when it is sent something.
    belief: u8,
    /// Looks in a row for something that was sent, in vain.
    vain: u32,
}

impl Pace {
    pub(super) fn new(poll: Duration, now: Instant) -> Pace {
        Pace { poll, interval: poll, last_block: now, looked: now, misses: 0, belief: BELIEF, vain: 0 }
    }

    /// Whether a block may be there as soon as a node has taken something.
    pub(super) fn is_at_once(&self) -> bool {
        self.belief > 0
    }

    /// The mean time between blocks.
    pub(super) fn block_time(&self) -> Duration {
        self.interval
    }

    /// No look before this: lanes ask with every send, and the answer changes once per block.
    pub(super) fn earliest(&self) -> Instant {
        let gap = if self.is_at_once() { MIN_GAP } else { self.gap() };
        self.looked + gap
    }

    /// When to look if nobody asks for it. `waiting`: somebody waits for a block. `sent`: so many for one that may be there.
    pub(super) fn next(&self, waiting: bool, sent: usize) -> Instant {
        let poll = self.looked + self.poll;
        if !waiting {
            return poll;
        }
        if sent > 0 && self.is_at_once() {
            let pause = match sent <= FEW && (1..=AGAIN).contains(&self.vain) {
                true => Duration::ZERO,
                false => doubled(MIN_GAP, self.vain.saturating_sub(AGAIN)),
            };
            return (self.looked + pause).min(poll);
        }
        self.expected().max(self.looked + doubled(self.gap(), self.misses)).min(poll)
    }

    /// A little early: a block that is seen late is expected late the next time.
    fn expected(&self) -> Instant {
        self.last_block + self.interval - self.interval / 16
    }

    fn gap(&self) -> Duration {
        (self.interval / 20).clamp(MIN_GAP, MAX_GAP)
    }

    /// A look is over: it found so many blocks.
    pub(super) fn looked(&mut self, blocks: usize, now: Instant) {
        self.looked = now;
        let Some(count) = u32::try_from(blocks).ok().filter(|count| *count > 0) else {
            self.misses += u32::from(now >= self.expected());
            return;
        };
        let since = now.duration_since(self.last_block) / count;
        self.interval = (self.interval * 3 + since.min(LONGEST_INTERVAL)) / 4;
        self.last_block = now;
        self.misses = 0;
    }

    /// A look could not be taken.
    pub(super) fn failed(&mut self, now: Instant) {
        self.looked = now;
        // So that the next one is at the common interval.
        (self.misses, self.vain) = (MOST_DOUBLED, MOST_DOUBLED);
    }

    /// What was sent is in a new block; the youngest of it was taken so long ago.
    pub(super) fn mined_after(&mut self, age: Duration) {
        self.vain = 0;
        if age <= AT_ONCE {
            self.belief = (self.belief + BELIEF).min(MOST_BELIEF);
        }
    }

    /// What was sent is in no block yet. Looks without a pause between them are one look.
    pub(super) fn in_vain(&mut self) {
        self.vain += 1;
        if self.vain == 1 || self.vain > AGAIN {
            self.belief = self.belief.saturating_sub(1);
        }
    }
}

/// Enough to make any pause longer than the common interval.
const MOST_DOUBLED: u32 = 20;

fn doubled(pause: Duration, times: u32) -> Duration {
    pause.saturating_mul(1 << times.min(MOST_DOUBLED))
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLL: Duration = Duration::from_millis(500);
    const SECOND: Duration = Duration::from_secs(1);

    fn by_the_second() -> (Pace, Instant) {
        let mut now = Instant::now();
        let mut pace = Pace::new(POLL, now);
        for _ in 0..40 {
            now += SECOND;
            pace.looked(1, now);
        }
        (pace, now)
    }

    #[test]
    fn a_block_is_awaited_when_it_is_expected_and_never_longer_than_the_common_interval() {
        let (mut pace, block) = by_the_second();
        assert_eq!(pace.next(true, 0), block + POLL);
        pace.looked(0, block + POLL);
        let next = pace.next(true, 0);
        assert!(next > block + SECOND * 9 / 10 && next < block + SECOND, "{:?}", next - block);
        pace.looked(0, next);
        let again = pace.next(true, 0);
        assert!(again - next <= MAX_GAP * 2, "{:?}", again - next);
        assert_eq!(pace.next(false, 0), next + POLL);
    }

    #[test]
    fn a_block_that_does_not_come_is_looked_for_ever_more_rarely() {
        let (mut pace, block) = by_the_second();
        let mut looks = Vec::new();
        while looks.len() < 12 {
            let next = pace.next(true, 0);
            pace.looked(0, next);
            looks.push(next - block);
        }
        assert!(looks.windows(2).skip(2).all(|pair| pair[1] > pair[0]));
        assert_eq!(looks[11] - looks[10], POLL);
        let mut failing = by_the_second().0;
        failing.failed(block);
        assert_eq!((failing.next(true, 0), failing.next(true, 1)), (block + POLL, block + POLL));
    }

    #[test]
    fn whether_blocks_come_at_once_is_learnt_and_forgotten() {
        let mut pace = Pace::new(POLL, Instant::now());
        assert!(pace.is_at_once(), "it is worth a try");
        (0..AGAIN + u32::from(BELIEF)).for_each(|_| pace.in_vain());
        assert!(!pace.is_at_once());
        pace.mined_after(AT_ONCE * 2);
        assert!(!pace.is_at_once(), "that was a block by the clock");
        pace.mined_after(Duration::ZERO);
        assert!(pace.is_at_once());
        (0..100).for_each(|_| pace.mined_after(Duration::ZERO));
        (0..AGAIN + u32::from(MOST_BELIEF)).for_each(|_| pace.in_vain());
        assert!(!pace.is_at_once());
    }

    #[test]
    fn a_chain_that_mines_at_once_is_looked_at_in_a_moment_and_another_not_with_every_send() {
        let (mut pace, block) = by_the_second();
        assert_eq!((pace.earliest(), pace.next(true, 1)), (block + MIN_GAP, block + MIN_GAP));
        for _ in 0..AGAIN {
            pace.in_vain();
            assert_eq!(pace.next(true, FEW), block, "it may be mined a moment after it was taken");
            assert_eq!(pace.next(true, FEW + 1), block + MIN_GAP, "others wait for the node");
        }
        assert!(pace.is_at_once(), "that was one look");
        pace.in_vain();
        assert_eq!(pace.next(true, 1), block + MIN_GAP * 2);
        (0..BELIEF).for_each(|_| pace.in_vain());
        assert!(pace.earliest() > block + MAX_GAP / 2 && pace.earliest() <= block + MAX_GAP);
        assert_eq!(pace.next(true, 1), block + POLL);
    }
}
