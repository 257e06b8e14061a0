//! Queue limits of submitters, without counting the queue for every request.
//!
//! A queue is counted once, up to its limit. The count plus the rows this process inserted since is an upper bound,
//! because workers only shorten the queue. It is counted again when an eighth of the free capacity is used, so that
//! several API processes exceed the limit only slightly; a single process never does.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use gapless_config::Config;
use gapless_domain::SubmitterKey;
use gapless_store::{IntakeOutcome, NewIntent};
use parking_lot::{Mutex, MutexGuard};

use super::Answers;

/// A process uses this fraction (1/8) of the free capacity before it counts again.
const RECOUNT_DIVISOR: u64 = 8;
/// Shortest time between two counts of one queue.
const COUNT_INTERVAL: Duration = Duration::from_millis(100);

/// Queue limits in rows. 0: no limit.
#[derive(Clone, Debug, Default)]
pub(crate) struct QueueLimits {
    default: u64,
    per_submitter: HashMap<SubmitterKey, u64>,
}

impl QueueLimits {
    pub(crate) fn new(config: &Config) -> QueueLimits {
        let per_submitter = config.chains.values().flat_map(|chain| {
            chain.submitters.iter().filter_map(|(address, settings)| {
                let key = SubmitterKey { chain_id: chain.id, address: *address };
                settings.queue_limit.map(|limit| (key, limit))
            })
        });
        QueueLimits { default: config.api.queue_limit, per_submitter: per_submitter.collect() }
    }

    fn of(&self, submitter: &SubmitterKey) -> Option<u64> {
        Some(self.per_submitter.get(submitter).copied().unwrap_or(self.default)).filter(|limit| *limit > 0)
    }

    fn is_unlimited(&self) -> bool {
        self.default == 0 && self.per_submitter.is_empty()
    }
}

#[derive(Clone, Copy, Debug)]
struct QueueState {
    counted_at: Instant,
    /// Free capacity at `counted_at`.
    free: u64,
    /// Used by this process since then.
    used: u64,
}

#[derive(Debug)]
pub(super) struct QueueLimiter {
    limits: QueueLimits,
    queues: Mutex<HashMap<SubmitterKey, QueueState>>,
}

impl QueueLimiter {
    pub(super) fn new(limits: QueueLimits) -> QueueLimiter {
        QueueLimiter { limits, queues: Mutex::default() }
    }

    /// The queues to count before `reserve` is called for these rows, with their limits.
    pub(super) fn to_count(&self, rows: &[NewIntent], now: Instant) -> Vec<(SubmitterKey, u64)> {
        if self.limits.is_unlimited() {
            return Vec::new();
        }
        let mut wanted: HashMap<SubmitterKey, u64> = HashMap::new();
        for row in rows {
            *wanted.entry(row.submitter).or_default() += 1;
        }
        let queues = self.lock();
        let uncertain = wanted.into_iter().filter(|(key, wanted)| match queues.get(key) {
            None => true,
            Some(queue) => {
                queue.used + wanted > queue.free / RECOUNT_DIVISOR
                    && now.saturating_duration_since(queue.counted_at) >= COUNT_INTERVAL
            }
        });
        uncertain.filter_map(|(key, _)| Some((key, self.limits.of(&key)?))).collect()
    }

    pub(super) fn set_counts(&self, limits: &[(SubmitterKey, u64)], depths: &[u64], now: Instant) {
        let mut queues = self.lock();
        for ((key, limit), depth) in limits.iter().zip(depths) {
            queues.insert(*key, QueueState { counted_at: now, free: limit.saturating_sub(*depth), used: 0 });
        }
    }

    /// Reserves capacity for each row. `Err`: the queue is full; the value is its limit.
    pub(super) fn reserve(&self, rows: &[NewIntent]) -> Vec<Result<(), u64>> {
        if self.limits.is_unlimited() {
            return vec![Ok(()); rows.len()];
        }
        let mut queues = self.lock();
        rows.iter()
            .map(|row| match (queues.get_mut(&row.submitter), self.limits.of(&row.submitter)) {
                (Some(queue), Some(limit)) if queue.used >= queue.free => Err(limit),
                (Some(queue), Some(_)) => {
                    queue.used += 1;
                    Ok(())
                }
                _ => Ok(()),
            })
            .collect()
    }

    /// Releases capacity reserved for rows that were not inserted. Rows with an unknown result keep it.
    pub(super) fn release_unused(&self, rows: &[NewIntent], answers: &Answers) {
        if self.limits.is_unlimited() {
            return;
        }
        let mut queues = self.lock();
        for (row, answer) in rows.iter().zip(answers) {
            match answer {
                Ok(IntakeOutcome::Created(_)) | Err(_) => {}
                // Clients may send any address; unknown ones must not use memory.
                Ok(IntakeOutcome::UnknownSubmitter) => {
                    queues.remove(&row.submitter);
                }
                Ok(_) => {
                    if let Some(queue) = queues.get_mut(&row.submitter) {
                        queue.used = queue.used.saturating_sub(1);
                    }
                }
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<SubmitterKey, QueueState>> {
        self.queues.lock()
    }
}

#[cfg(test)]
mod tests {
    use gapless_domain::{Address, ChainId, Payload, TxId};

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

    fn limiter(default: u64, per_submitter: &[(u64, u64)]) -> QueueLimiter {
        let keyed = |(submitter, limit): &(u64, u64)| (key(*submitter), *limit);
        let per_submitter = per_submitter.iter().map(keyed).collect();
        QueueLimiter::new(QueueLimits { default, per_submitter })
    }

    /// Counts if due. Returns whether it counted, and how many rows were accepted.
    fn submit(limiter: &QueueLimiter, rows: &[NewIntent], depth: u64, now: Instant) -> (bool, usize) {
        let limits = limiter.to_count(rows, now);
        limiter.set_counts(&limits, &vec![depth; limits.len()], now);
        (!limits.is_empty(), limiter.reserve(rows).iter().filter(|result| result.is_ok()).count())
    }

    #[test]
    fn a_queue_is_filled_up_to_its_limit() {
        let (limiter, start) = (limiter(80, &[]), Instant::now());
        assert_eq!(submit(&limiter, &rows(1, 10), 0, start), (true, 10));
        assert_eq!(submit(&limiter, &rows(1, 60), 0, start), (false, 60), "counted a moment ago");
        assert_eq!(submit(&limiter, &rows(1, 20), 0, start), (false, 10), "the last ten of eighty");
        assert_eq!(submit(&limiter, &rows(1, 1), 0, start), (false, 0));
        let later = start + COUNT_INTERVAL;
        assert_eq!(submit(&limiter, &rows(1, 9), 75, later), (true, 5), "workers removed five");
        assert_eq!(submit(&limiter, &rows(2, 1), 0, later), (true, 1), "one queue per submitter");
    }

    #[test]
    fn a_queue_with_free_capacity_is_rarely_counted() {
        let (limiter, start) = (limiter(8_000, &[]), Instant::now());
        let mut counts = 0;
        for n in 0..1_000 {
            let now = start + COUNT_INTERVAL * n;
            counts += usize::from(submit(&limiter, &rows(1, 1), n.into(), now).0);
        }
        assert_eq!(counts, 1);
        let later = start + COUNT_INTERVAL * 1_000;
        assert!(submit(&limiter, &rows(1, 1), 1_000, later).0, "an eighth of the capacity is used");
    }

    #[test]
    fn rows_that_were_not_inserted_release_capacity_unless_the_result_is_unknown() {
        let (limiter, start) = (limiter(3, &[]), Instant::now());
        let three = rows(1, 3);
        assert_eq!(submit(&limiter, &three, 0, start), (true, 3));
        let id = TxId::new();
        limiter.release_unused(
            &three,
            &vec![
                Ok(IntakeOutcome::Created(id)),
                Ok(IntakeOutcome::Existing(id)),
                Err(IntakeError::Unavailable),
            ],
        );
        assert_eq!(submit(&limiter, &three, 0, start), (false, 1));
    }

    #[test]
    fn an_unknown_submitter_leaves_no_state() {
        let (limiter, start) = (limiter(3, &[]), Instant::now());
        let one = rows(1, 1);
        submit(&limiter, &one, 0, start);
        limiter.release_unused(&one, &vec![Ok(IntakeOutcome::UnknownSubmitter)]);
        assert!(limiter.lock().is_empty());
    }

    #[test]
    fn no_limit_needs_no_count_and_a_submitter_may_have_its_own_limit() {
        let start = Instant::now();
        let unlimited = limiter(0, &[(2, 1)]);
        assert_eq!(submit(&unlimited, &rows(1, 9), 0, start), (false, 9));
        assert_eq!(submit(&unlimited, &rows(2, 9), 0, start), (true, 1));
        let per_submitter = limiter(1, &[(2, 0)]);
        assert_eq!(submit(&per_submitter, &rows(1, 9), 0, start), (true, 1));
        assert_eq!(submit(&per_submitter, &rows(2, 9), 0, start), (false, 9));
    }
}
