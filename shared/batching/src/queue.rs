//! The waiting items, and which of them form the next batch. Data only; the flushers do the work.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

use crate::{Concurrency, MIN_PARALLEL_WEIGHT};

#[derive(Debug)]
pub(crate) struct Queue<T> {
    concurrency: Concurrency,
    max_batch: usize,
    slow_after: Duration,
    parts: Vec<Part<T>>,
    /// Weight of the waiting items.
    waiting: usize,
    /// Batches that are being processed.
    running: usize,
    /// A flusher was woken and has not decided yet.
    attended: bool,
}

#[derive(Debug)]
struct Part<T> {
    /// Weight and item.
    items: VecDeque<(usize, T)>,
    weight: usize,
    /// When the oldest waiting item arrived, or when the part was last taken from.
    since: Instant,
    /// A batch with items of this part is being processed. Only with `OrderedParts`.
    busy: bool,
}

#[derive(Debug)]
pub(crate) struct Batch<T> {
    pub(crate) items: Vec<T>,
    pub(crate) weight: usize,
    /// The parts that it keeps busy.
    parts: Vec<usize>,
}

#[derive(Debug)]
pub(crate) enum Next<T> {
    Batch(Batch<T>),
    /// A batch is running and too few items wait; look again at this time.
    NotBefore(Instant),
    Nothing,
}

impl<T> Queue<T> {
    pub(crate) fn new(concurrency: Concurrency, max_batch: usize, slow_after: Duration) -> Self {
        let parts = match concurrency {
            Concurrency::Unordered { .. } => 1,
            Concurrency::OrderedParts { parts } => parts,
        };
        let part = |_| Part { items: VecDeque::new(), weight: 0, since: Instant::now(), busy: false };
        Queue {
            concurrency,
            max_batch,
            slow_after,
            parts: (0..parts).map(part).collect(),
            waiting: 0,
            running: 0,
            attended: false,
        }
    }

    /// More flushers would have nothing to do.
    pub(crate) fn flushers(&self) -> usize {
        match self.concurrency {
            Concurrency::Unordered { flushers } => flushers,
            Concurrency::OrderedParts { parts } => parts,
        }
    }

    pub(crate) fn waiting(&self) -> usize {
        self.waiting
    }

    /// Returns whether a flusher must be woken.
    pub(crate) fn add(&mut self, part: usize, weight: usize, item: T, now: Instant) -> bool {
        let part = &mut self.parts[part];
        if part.items.is_empty() {
            part.since = now;
        }
        part.items.push_back((weight, item));
        part.weight += weight;
        let before = self.waiting;
        self.waiting += weight;
        // The flusher that attends may wait for enough items.
        let enough = self.enough_for_parallel();
        let has_now_enough = self.attended && before < enough && self.waiting >= enough;
        self.wants_flusher() || has_now_enough
    }

    fn enough_for_parallel(&self) -> usize {
        MIN_PARALLEL_WEIGHT.min(self.max_batch)
    }

    /// Whether a flusher must be woken: there is work, and none was woken for it.
    fn wants_flusher(&mut self) -> bool {
        let wanted =
            !self.attended && self.running < self.flushers() && self.parts.iter().any(Part::may_start);
        self.attended |= wanted;
        wanted
    }

    /// What to do next, and whether another flusher must be woken for the rest.
    pub(crate) fn take(&mut self, now: Instant) -> (Next<T>, bool) {
        if let Some(at) = self.not_before(now) {
            return (Next::NotBefore(at), false);
        }
        self.attended = false;
        let batch = self.take_batch(now);
        if batch.items.is_empty() {
            return (Next::Nothing, false);
        }
        self.running += 1;
        (Next::Batch(batch), self.wants_flusher())
    }

    /// `None`: a batch may start now.
    fn not_before(&self, now: Instant) -> Option<Instant> {
        let Concurrency::Unordered { .. } = self.concurrency else { return None };
        let too_few = 0 < self.waiting && self.waiting < self.enough_for_parallel();
        let slow_at = self.parts[0].since + self.slow_after;
        (too_few && self.running > 0 && now < slow_at).then_some(slow_at)
    }

    fn take_batch(&mut self, now: Instant) -> Batch<T> {
        let ordered = matches!(self.concurrency, Concurrency::OrderedParts { .. });
        let alone = self.parts.iter().position(|part| part.may_start() && part.weight >= MIN_PARALLEL_WEIGHT);
        let mut batch = Batch { items: Vec::new(), weight: 0, parts: Vec::new() };
        for (index, part) in self.parts.iter_mut().enumerate() {
            if part.may_start() && alone.is_none_or(|alone| alone == index) {
                part.busy = ordered;
                batch.parts.push(index);
                part.move_into(&mut batch, self.max_batch, now);
            }
        }
        self.waiting -= batch.weight;
        batch
    }

    pub(crate) fn finish(&mut self, batch: &Batch<T>) {
        self.running -= 1;
        for part in &batch.parts {
            self.parts[*part].busy = false;
        }
    }
}

impl<T> Part<T> {
    fn may_start(&self) -> bool {
        !self.busy && !self.items.is_empty()
    }

    fn move_into(&mut self, batch: &mut Batch<T>, max_batch: usize, now: Instant) {
        self.since = now;
        while batch.weight < max_batch
            && let Some((weight, item)) = self.items.pop_front()
        {
            self.weight -= weight;
            batch.weight += weight;
            batch.items.push(item);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX_BATCH: usize = 500;

    fn queue() -> Queue<usize> {
        Queue::new(Concurrency::OrderedParts { parts: 2 }, MAX_BATCH, Duration::from_secs(1))
    }

    /// Returns whether a flusher must be woken.
    fn add(queue: &mut Queue<usize>, part: usize, items: impl IntoIterator<Item = usize>) -> bool {
        items.into_iter().fold(false, |wake, item| queue.add(part, 1, item, Instant::now()) | wake)
    }

    /// The next batch, and whether another flusher must be woken.
    fn take(queue: &mut Queue<usize>) -> (Option<Batch<usize>>, bool) {
        match queue.take(Instant::now()) {
            (Next::Batch(batch), wake) => (Some(batch), wake),
            (_, wake) => (None, wake),
        }
    }

    #[test]
    fn waiting_items_form_one_batch_and_later_items_the_next() {
        let mut queue = queue();
        assert!(take(&mut queue).0.is_none());
        assert!(add(&mut queue, 0, [1]));
        assert!(!add(&mut queue, 1, [2]), "one was already woken");
        let (first, wake) = take(&mut queue);
        let first = first.unwrap();
        assert_eq!((&first.items[..], wake), (&[1, 2][..], false));
        assert!(!add(&mut queue, 0, [3]) && !add(&mut queue, 1, [4, 5]), "everything is busy");
        assert!(take(&mut queue).0.is_none());
        queue.finish(&first);
        assert_eq!(take(&mut queue).0.unwrap().items, [3, 4, 5]);
    }

    #[test]
    fn with_many_items_two_parts_are_processed_concurrently_and_none_is_starved() {
        let mut queue = queue();
        add(&mut queue, 0, 0..MIN_PARALLEL_WEIGHT);
        add(&mut queue, 1, [7, 8]);
        let (many, wake) = take(&mut queue);
        let many = many.unwrap();
        assert_eq!(many.items, (0..MIN_PARALLEL_WEIGHT).collect::<Vec<_>>());
        assert!(wake, "the other part does not wait");
        assert_eq!(take(&mut queue).0.unwrap().items, [7, 8]);
        add(&mut queue, 0, [9]);
        assert!(take(&mut queue).0.is_none(), "a part is never in two batches at once");
        queue.finish(&many);
        assert_eq!(take(&mut queue).0.unwrap().items, [9]);
    }

    #[test]
    fn a_batch_is_limited_by_weight() {
        let mut queue = queue();
        queue.add(0, MAX_BATCH - 1, 1, Instant::now());
        queue.add(0, 10, 2, Instant::now());
        queue.add(0, 1, 3, Instant::now());
        let first = take(&mut queue).0.unwrap();
        assert_eq!((&first.items[..], first.weight, queue.waiting()), (&[1, 2][..], MAX_BATCH + 9, 1));
    }

    #[test]
    fn an_unordered_queue_wakes_a_second_flusher_for_what_a_full_batch_leaves() {
        let mut queue = Queue::new(Concurrency::Unordered { flushers: 2 }, 2, Duration::from_secs(1));
        add(&mut queue, 0, 0..5);
        let (first, wake) = take(&mut queue);
        assert_eq!((first.unwrap().items, wake), (vec![0, 1], true));
        let (second, wake) = take(&mut queue);
        assert_eq!((second.unwrap().items, wake), (vec![2, 3], false), "both are busy");
    }
}
