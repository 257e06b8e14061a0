//! Room in queues: a submitter's queue has a limit, and nobody counts it for every request.
//!
//! A queue is counted once, up to its limit. After that, what this process inserted since bounds it from above, because
//! workers only make it shorter. It is counted again when an eighth of the room that was found is taken, so that a few
//! processes that share a queue do not exceed its limit by much; one alone never does.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use gapless::config::Config;
use gapless::domain::SubmitterKey;
use gapless::store::{IntakeOutcome, NewIntent};

use super::Answers;

/// Of the room that was found, a process takes one part before it counts again.
const PARTS_OF_ROOM: u64 = 8;
/// Between two counts of one queue, however full it is.
const COUNT_EVERY: Duration = Duration::from_millis(100);

/// How long queues may be. 0 is any length.
#[derive(Clone, Debug, Default)]
pub(crate) struct QueueLimits {
    common: u64,
    own: HashMap<SubmitterKey, u64>,
}

impl QueueLimits {
    pub(crate) fn new(config: &Config) -> QueueLimits {
        let own = config.chains.values().flat_map(|chain| {
            chain.submitters.iter().filter_map(|(address, settings)| {
                let key = SubmitterKey { chain_id: chain.id, address: *address };
                settings.queue_limit.map(|limit| (key, limit))
            })
        });
        QueueLimits { common: config.api.queue_limit, own: own.collect() }
    }

    fn of(&self, submitter: &SubmitterKey) -> Option<u64> {
        Some(self.own.get(submitter).copied().unwrap_or(self.common)).filter(|limit| *limit > 0)
    }

    fn are_none(&self) -> bool {
        self.common == 0 && self.own.is_empty()
    }
}

#[derive(Clone, Copy, Debug)]
struct Seen {
    counted_at: Instant,
    /// When it was counted.
    room: u64,
    /// Since then, by this process.
    taken: u64,
}

#[derive(Debug)]
pub(super) struct QueueLimiter {
    limits: QueueLimits,
    seen: Mutex<HashMap<SubmitterKey, Seen>>,
}

impl QueueLimiter {
    pub(super) fn new(limits: QueueLimits) -> QueueLimiter {
        QueueLimiter { limits, seen: Mutex::default() }
    }

    /// The queues that must be counted before these rows are judged, with their limits.
    pub(super) fn to_count(&self, rows: &[NewIntent], now: Instant) -> Vec<(SubmitterKey, u64)> {
        if self.limits.are_none() {
            return Vec::new();
        }
        let mut wanted: HashMap<SubmitterKey, u64> = HashMap::new();
        for row in rows {
            *wanted.entry(row.submitter).or_default() += 1;
        }
        let seen = self.lock();
        let uncertain = wanted.into_iter().filter(|(key, wanted)| match seen.get(key) {
            None => true,
            Some(seen) => {
                seen.taken + wanted > seen.room / PARTS_OF_ROOM
                    && now.saturating_duration_since(seen.counted_at) >= COUNT_EVERY
            }
        });
        uncertain.filter_map(|(key, _)| Some((key, self.limits.of(&key)?))).collect()
    }

    pub(super) fn counted(&self, limits: &[(SubmitterKey, u64)], depths: &[u64], now: Instant) {
        let mut seen = self.lock();
        for ((key, limit), depth) in limits.iter().zip(depths) {
            seen.insert(*key, Seen { counted_at: now, room: limit.saturating_sub(*depth), taken: 0 });
        }
    }

    /// For each row whether there is room, which it then takes. `Err` is the limit.
    pub(super) fn judge(&self, rows: &[NewIntent]) -> Vec<Result<(), u64>> {
        if self.limits.are_none() {
            return vec![Ok(()); rows.len()];
        }
        let mut seen = self.lock();
        rows.iter()
            .map(|row| match (seen.get_mut(&row.submitter), self.limits.of(&row.submitter)) {
                (Some(seen), Some(limit)) if seen.taken >= seen.room => Err(limit),
                (Some(seen), Some(_)) => {
                    seen.taken += 1;
                    Ok(())
                }
                _ => Ok(()),
            })
            .collect()
    }

    /// Gives back what rows that were let in did not use. One whose fate is unknown may have used it.
    pub(super) fn settle(&self, rows: &[NewIntent], answers: &Answers) {
        if self.limits.are_none() {
            return;
        }
        let mut seen = self.lock();
        for (row, answer) in rows.iter().zip(answers) {
            match answer {
                Ok(IntakeOutcome::Created(_)) | Err(_) => {}
                // Anybody can make addresses up; they must not fill the memory.
                Ok(IntakeOutcome::UnknownSubmitter) => {
                    seen.remove(&row.submitter);
                }
                Ok(_) => {
                    if let Some(seen) = seen.get_mut(&row.submitter) {
                        seen.taken = seen.taken.saturating_sub(1);
                    }
                }
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<SubmitterKey, Seen>> {
        // The map is valid after every statement, so a panic elsewhere leaves nothing half done.
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use gapless::domain::{Address, ChainId, Payload, TxId};

    use super::super::IntakeError;
    use super::*;

    fn key(submitter: u64) -> SubmitterKey {
        SubmitterKey { chain_id: ChainId(1), address: Address::from_low_u64_be(submitter) }
    }

    fn rows(submitter: u64, count: usize) -> Vec<NewIntent> {
        let row = |n: usize| {
            NewIntent::new(key(submitter), n.to_string(), Payload::transfer(Address::zero(), 1.into()), None)
        };
        (0..count).map(row).collect()
    }

    fn limiter(common: u64, own: &[(u64, u64)]) -> QueueLimiter {
        let own = own.iter().map(|(submitter, limit)| (key(*submitter), *limit)).collect();
        QueueLimiter::new(QueueLimits { common, own })
    }

    /// Counts where that is due, and answers how many were let in; all of them are created.
    fn come(limiter: &QueueLimiter, rows: &[NewIntent], depth: u64, now: Instant) -> (bool, usize) {
        let limits = limiter.to_count(rows, now);
        limiter.counted(&limits, &vec![depth; limits.len()], now);
        (!limits.is_empty(), limiter.judge(rows).iter().filter(|judged| judged.is_ok()).count())
    }

    #[test]
    fn a_queue_is_filled_to_its_limit_and_not_beyond() {
        let (limiter, start) = (limiter(80, &[]), Instant::now());
        assert_eq!(come(&limiter, &rows(1, 10), 0, start), (true, 10));
        assert_eq!(come(&limiter, &rows(1, 60), 0, start), (false, 60), "counted a moment ago");
        assert_eq!(come(&limiter, &rows(1, 20), 0, start), (false, 10), "the last ten of eighty");
        assert_eq!(come(&limiter, &rows(1, 1), 0, start), (false, 0));
        let later = start + COUNT_EVERY;
        assert_eq!(come(&limiter, &rows(1, 9), 75, later), (true, 5), "five were taken away by workers");
        assert_eq!(come(&limiter, &rows(2, 1), 0, later), (true, 1), "others have queues of their own");
    }

    #[test]
    fn a_queue_with_room_is_rarely_counted() {
        let (limiter, start) = (limiter(8_000, &[]), Instant::now());
        let mut counts = 0;
        for n in 0..1_000 {
            let now = start + COUNT_EVERY * n;
            counts += usize::from(come(&limiter, &rows(1, 1), n.into(), now).0);
        }
        assert_eq!(counts, 1);
        assert!(come(&limiter, &rows(1, 1), 1_000, start + COUNT_EVERY * 1_000).0, "an eighth is used up");
    }

    #[test]
    fn what_was_not_inserted_gives_its_room_back_unless_nobody_knows() {
        let (limiter, start) = (limiter(3, &[]), Instant::now());
        let three = rows(1, 3);
        assert_eq!(come(&limiter, &three, 0, start), (true, 3));
        let id = TxId::new();
        limiter.settle(
            &three,
            &vec![
                Ok(IntakeOutcome::Created(id)),
                Ok(IntakeOutcome::Existing(id)),
                Err(IntakeError::Unavailable),
            ],
        );
        assert_eq!(come(&limiter, &three, 0, start), (false, 1));
    }

    #[test]
    fn a_made_up_submitter_leaves_nothing_behind() {
        let (limiter, start) = (limiter(3, &[]), Instant::now());
        let one = rows(1, 1);
        come(&limiter, &one, 0, start);
        limiter.settle(&one, &vec![Ok(IntakeOutcome::UnknownSubmitter)]);
        assert!(limiter.lock().is_empty());
    }

    #[test]
    fn no_limit_is_no_count_and_a_submitter_may_have_its_own() {
        let start = Instant::now();
        let unlimited = limiter(0, &[(2, 1)]);
        assert_eq!(come(&unlimited, &rows(1, 9), 0, start), (false, 9));
        assert_eq!(come(&unlimited, &rows(2, 9), 0, start), (true, 1));
        let own = limiter(1, &[(2, 0)]);
        assert_eq!(come(&own, &rows(1, 9), 0, start), (true, 1));
        assert_eq!(come(&own, &rows(2, 9), 0, start), (false, 9));
    }
}
