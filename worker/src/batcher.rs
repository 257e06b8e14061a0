//! Batches the calls of many tasks into few flushes, without a timer.
//!
//! A flusher takes all waiting items, up to a limit, and processes them as one batch; items that arrive meanwhile form
//! the next one. A parallel flush starts only when enough items wait, or when the running one is slow. A batch has one
//! item when the worker is idle and hundreds under load.
//!
//! The queue is bounded and callers wait for free capacity, because an item must not be lost. This cannot deadlock: a
//! flush waits only for the database, which has timeouts, and never for a caller. Replies go through oneshot channels,
//! and events for lanes are posted without waiting (`watcher::mailbox`, ADR 0035).

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use gapless_telemetry::metrics as m;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{Mutex, Notify, mpsc, oneshot};

/// Queue capacity in full batches; beyond it callers wait to enqueue.
const BATCHES: usize = 4;
/// Items needed to start a flush in parallel to another: below it, one flush of twice the size is cheaper than two.
const MIN_PARALLEL_BATCH: usize = 100;
/// A batch is closed after this many consecutive yields to the scheduler that added no item. They take some
/// microseconds when no task is ready.
const GATHER_YIELDS: usize = 4;
/// A flush that takes longer than this is blocked by a lock or the disk; items that arrived meanwhile do not wait for
/// it.
const SLOW_AFTER: Duration = Duration::from_millis(20);

#[derive(Debug)]
pub(crate) struct Request<Q, A> {
    pub(crate) item: Q,
    answer: oneshot::Sender<A>,
}

impl<Q, A> Request<Q, A> {
    /// Splits a batch into its items and the reply channels.
    pub(crate) fn split(batch: Vec<Request<Q, A>>) -> (Vec<Q>, Vec<Reply<A>>) {
        batch.into_iter().map(|request| (request.item, Reply(request.answer))).unzip()
    }
}

/// Reply channel to one caller.
#[derive(Debug)]
pub(crate) struct Reply<A>(oneshot::Sender<A>);

impl<A> Reply<A> {
    pub(crate) fn send(self, answer: A) {
        // Fails if the caller (a lane) was dropped; it needs no answer then.
        let _ = self.0.send(answer);
    }
}

/// The batcher is closed: the process is stopping.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the worker is stopping")]
pub(crate) struct Closed;

#[derive(Debug)]
pub(crate) struct Batcher<Q, A> {
    /// For metrics.
    name: &'static str,
    queue: mpsc::Sender<Request<Q, A>>,
}

impl<Q, A> Clone for Batcher<Q, A> {
    fn clone(&self) -> Self {
        Batcher { name: self.name, queue: self.queue.clone() }
    }
}

impl<Q: Send + 'static, A: Send + 'static> Batcher<Q, A> {
    /// Starts `flushers` tasks that run batches of up to `limit`.
    pub(crate) fn start<F, R>(name: &'static str, flushers: usize, limit: usize, flush: F) -> Self
    where
        F: Fn(Vec<Request<Q, A>>) -> R + Clone + Send + Sync + 'static,
        R: Future<Output = ()> + Send,
    {
        Batcher::with_slow_after(name, SLOW_AFTER, flushers, limit, flush)
    }

    fn with_slow_after<F, R>(
        name: &'static str,
        slow_after: Duration,
        flushers: usize,
        limit: usize,
        flush: F,
    ) -> Self
    where
        F: Fn(Vec<Request<Q, A>>) -> R + Clone + Send + Sync + 'static,
        R: Future<Output = ()> + Send,
    {
        let (queue, waiting) = mpsc::channel(BATCHES * limit);
        let (waiting, busy, done) = (Mutex::new(waiting), AtomicUsize::new(0), Notify::new());
        let intake = Arc::new(Intake { waiting, busy, done, slow_after });
        for _ in 0..flushers {
            let (intake, flush) = (intake.clone(), flush.clone());
            tokio::spawn(async move {
                while let Some(batch) = intake.next_batch(limit).await {
                    let _flushed = Flushed(&intake);
                    flush(batch).await;
                }
            });
        }
        Batcher { name, queue }
    }

    /// Name of the queue, and the number of waiting items.
    pub(crate) fn depth(&self) -> (&'static str, usize) {
        (self.name, self.queue.max_capacity() - self.queue.capacity())
    }

    pub(crate) async fn call(&self, item: Q) -> Result<A, Closed> {
        let (answer, wait) = oneshot::channel();
        match self.queue.try_send(Request { item, answer }) {
            Ok(()) => {}
            Err(TrySendError::Full(request)) => {
                metrics::counter!(m::INTERNAL_QUEUE_WAITS_TOTAL, "queue" => self.name).increment(1);
                self.queue.send(request).await.map_err(|_| Closed)?;
            }
            Err(TrySendError::Closed(_)) => return Err(Closed),
        }
        wait.await.map_err(|_| Closed)
    }
}

/// The queue from which the flushers take their batches, one flusher at a time.
#[derive(Debug)]
struct Intake<Q, A> {
    waiting: Mutex<mpsc::Receiver<Request<Q, A>>>,
    /// Running flushes.
    busy: AtomicUsize,
    /// Notified when a flush ends.
    done: Notify,
    slow_after: Duration,
}

impl<Q, A> Intake<Q, A> {
    /// `None`: the batcher is closed.
    async fn next_batch(&self, limit: usize) -> Option<Vec<Request<Q, A>>> {
        let mut waiting = self.waiting.lock().await;
        let mut batch = Vec::new();
        if waiting.recv_many(&mut batch, limit).await == 0 {
            return None;
        }
        let slow_at = tokio::time::Instant::now() + self.slow_after;
        // Relaxed: a stale count only makes a batch slightly smaller or later.
        while self.busy.load(Ordering::Relaxed) > 0 && batch.len() < MIN_PARALLEL_BATCH.min(limit) {
            let room = limit - batch.len();
            tokio::select! {
                () = self.done.notified() => {}
                more = waiting.recv_many(&mut batch, room) => if more == 0 { break },
                () = tokio::time::sleep_until(slow_at) => break,
            }
        }
        // Lanes that are ready to write run now and join this batch.
        let mut empty_yields = 0;
        while empty_yields < GATHER_YIELDS && batch.len() < MIN_PARALLEL_BATCH.min(limit) {
            tokio::task::yield_now().await;
            let before = batch.len();
            while batch.len() < limit
                && let Ok(request) = waiting.try_recv()
            {
                batch.push(request);
            }
            empty_yields = if batch.len() == before { empty_yields + 1 } else { 0 };
        }
        self.busy.fetch_add(1, Ordering::Relaxed);
        Some(batch)
    }
}

/// Marks a flush as ended, even if it panics.
struct Flushed<'a, Q, A>(&'a Intake<Q, A>);

impl<Q, A> Drop for Flushed<'_, Q, A> {
    fn drop(&mut self) {
        self.0.busy.fetch_sub(1, Ordering::Relaxed);
        self.0.done.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use tokio::sync::Notify;

    #[tokio::test]
    async fn items_waiting_during_a_flush_form_the_next_batch() {
        let permit_flush = Arc::new(Notify::new());
        let (sizes_in, mut sizes) = mpsc::unbounded_channel();
        let first = Arc::new(AtomicUsize::new(0));
        let (permit_flush2, first2) = (permit_flush.clone(), first.clone());
        let batcher: Batcher<u32, u32> = Batcher::start("test", 1, 100, move |batch| {
            let (permit_flush, first, sizes_in) = (permit_flush2.clone(), first2.clone(), sizes_in.clone());
            async move {
                sizes_in.send(batch.len()).unwrap();
                if first.fetch_add(1, Ordering::SeqCst) == 0 {
                    permit_flush.notified().await;
                }
                let (items, replies) = Request::split(batch);
                for (item, reply) in items.into_iter().zip(replies) {
                    reply.send(item * 2);
                }
            }
        });
        let lone = tokio::spawn({
            let batcher = batcher.clone();
            async move { batcher.call(1).await.unwrap() }
        });
        assert_eq!(sizes.recv().await, Some(1));
        let crowd: Vec<_> = (2..12)
            .map(|n| {
                let batcher = batcher.clone();
                tokio::spawn(async move { batcher.call(n).await.unwrap() })
            })
            .collect();
        tokio::task::yield_now().await;
        permit_flush.notify_one();
        assert_eq!(lone.await.unwrap(), 2);
        for (task, n) in crowd.into_iter().zip(2..) {
            assert_eq!(task.await.unwrap(), n * 2);
        }
        assert_eq!(sizes.recv().await, Some(10));
    }

    /// A batcher with two flushers whose first flush never ends; the receiver gets the size of each batch.
    fn with_stuck_first_flush(slow_after: Duration) -> (Batcher<usize, ()>, mpsc::UnboundedReceiver<usize>) {
        let (sizes_in, sizes) = mpsc::unbounded_channel();
        let first = Arc::new(AtomicUsize::new(0));
        let batcher =
            Batcher::with_slow_after("test", slow_after, 2, 500, move |batch: Vec<Request<usize, ()>>| {
                let (first, sizes_in) = (first.clone(), sizes_in.clone());
                async move {
                    sizes_in.send(batch.len()).unwrap();
                    if first.fetch_add(1, Ordering::SeqCst) == 0 {
                        std::future::pending::<()>().await;
                    }
                    Request::split(batch).1.into_iter().for_each(|reply| reply.send(()));
                }
            });
        (batcher, sizes)
    }

    fn crowd(batcher: &Batcher<usize, ()>, count: usize) -> tokio::task::JoinSet<Result<(), Closed>> {
        let mut calls = tokio::task::JoinSet::new();
        for number in 0..count {
            let batcher = batcher.clone();
            calls.spawn(async move { batcher.call(number).await });
        }
        calls
    }

    #[tokio::test]
    async fn a_parallel_flush_starts_only_with_enough_items() {
        let (batcher, mut sizes) = with_stuck_first_flush(Duration::from_secs(3600));
        let _first = crowd(&batcher, 1);
        assert_eq!(sizes.recv().await, Some(1));
        let few = crowd(&batcher, MIN_PARALLEL_BATCH - 1);
        // Lets every spawned task run until it has enqueued its item.
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        assert!(sizes.try_recv().is_err(), "too few for a flush of their own");
        let one_more = crowd(&batcher, 1);
        assert_eq!(sizes.recv().await, Some(MIN_PARALLEL_BATCH));
        assert!(
            few.join_all().await.into_iter().chain(one_more.join_all().await).all(|answer| answer.is_ok())
        );
    }

    #[tokio::test]
    async fn a_parallel_flush_starts_when_the_first_is_slow() {
        let (batcher, mut sizes) = with_stuck_first_flush(Duration::from_millis(20));
        let _first = crowd(&batcher, 1);
        assert_eq!(sizes.recv().await, Some(1));
        assert!(crowd(&batcher, 3).join_all().await.into_iter().all(|answer| answer.is_ok()));
    }

    /// Callers beyond the queue's capacity wait, the queue stays bounded, and every call is answered.
    #[tokio::test]
    async fn calls_beyond_the_capacity_wait_and_are_answered() {
        let permit_flush = Arc::new(tokio::sync::Semaphore::new(0));
        let held = permit_flush.clone();
        let batcher: Batcher<usize, usize> = Batcher::start("test", 2, 50, move |batch| {
            let permit_flush = held.clone();
            async move {
                permit_flush.acquire().await.unwrap().forget();
                let (items, replies) = Request::split(batch);
                items.into_iter().zip(replies).for_each(|(number, reply)| reply.send(number));
            }
        });
        let mut calls = tokio::task::JoinSet::new();
        for number in 0..10_000 {
            let batcher = batcher.clone();
            calls.spawn(async move { batcher.call(number).await.unwrap() == number });
        }
        let mut deepest = 0;
        while let Some(answered) = {
            permit_flush.add_permits(1);
            tokio::task::yield_now().await;
            deepest = deepest.max(batcher.depth().1);
            calls.join_next().await
        } {
            assert!(answered.unwrap());
        }
        assert_eq!(deepest, BATCHES * 50, "the capacity is used and not exceeded");
    }

    /// A lane that waits for the writer does not read its mailbox. A flush that posts to it must not block.
    #[tokio::test]
    async fn a_flush_can_post_to_a_lane_that_waits_for_it() {
        let (mailbox, mut inbox) = crate::watcher::Mailbox::new(1);
        let batcher: Batcher<(), ()> = Batcher::start("test", 1, 10, move |batch| {
            let mailbox = mailbox.clone();
            async move {
                (0..10_000).for_each(|_| mailbox.post(crate::watcher::LaneEvent::HeightReached));
                Request::split(batch).1.into_iter().for_each(|reply| reply.send(()));
            }
        });
        batcher.call(()).await.unwrap();
        let mut last = None;
        while let Some(event) = inbox.try_recv() {
            last = Some(event);
        }
        assert!(matches!(last, Some(crate::watcher::LaneEvent::Missed)), "{last:?}");
    }
}
