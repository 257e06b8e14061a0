//! Many callers, few flushes: a queue that batches by itself.
//!
//! A flusher takes whatever waits, up to a limit, and runs it as one batch; the next batch is what came meanwhile. A second
//! flush beside one that is under way begins only when there is enough for it, or when that one takes unusually long.
//! No timer for what is lone: a batch of one when idle, of hundreds under load.
//!
//! The queue is bounded, and whoever asks waits for room in it: a question must not be lost. That cannot end in a standstill, because a
//! flush waits for the database alone, and that answers or is given up within a time. It waits for nobody who asks: answers go
//! through a channel that always has room, and news for lanes is posted without waiting (`watcher::mailbox`, ADR 0035).

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use gapless::observe::metrics as m;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{Mutex, Notify, mpsc, oneshot};

/// Full batches that may wait; whoever comes then waits to put its question in.
const BATCHES: usize = 4;
/// Enough for a flush beside another: below it, one flush of twice the size is cheaper than two.
const WORTH_A_FLUSH: usize = 100;
/// Before a batch is closed the flusher so often lets those run who are ready, as long as some of them join. It takes some
/// microseconds when there are none.
const GATHER_TURNS: usize = 4;
/// A flush that takes longer than this waits for something, a lock or the disk, and what came meanwhile need not wait for it.
const UNUSUAL: Duration = Duration::from_millis(20);

#[derive(Debug)]
pub(crate) struct Request<Q, A> {
    pub(crate) question: Q,
    answer: oneshot::Sender<A>,
}

impl<Q, A> Request<Q, A> {
    /// Splits a batch into its questions and the way back for the answers.
    pub(crate) fn split(batch: Vec<Request<Q, A>>) -> (Vec<Q>, Vec<Reply<A>>) {
        batch.into_iter().map(|request| (request.question, Reply(request.answer))).unzip()
    }
}

/// The way back to one caller.
#[derive(Debug)]
pub(crate) struct Reply<A>(oneshot::Sender<A>);

impl<A> Reply<A> {
    pub(crate) fn send(self, answer: A) {
        // The caller may be gone (lane dropped); then nobody misses the answer.
        let _ = self.0.send(answer);
    }
}

/// The funnel is closed: the process is stopping.
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
        Batcher::with_patience(name, UNUSUAL, flushers, limit, flush)
    }

    fn with_patience<F, R>(
        name: &'static str,
        unusual: Duration,
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
        let intake = Arc::new(Intake { waiting, busy, done, unusual });
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

    /// Its name, and how many questions wait.
    pub(crate) fn depth(&self) -> (&'static str, usize) {
        (self.name, self.queue.max_capacity() - self.queue.capacity())
    }

    pub(crate) async fn ask(&self, question: Q) -> Result<A, Closed> {
        let (answer, wait) = oneshot::channel();
        match self.queue.try_send(Request { question, answer }) {
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

/// Where the flushers of a funnel take their batches from, one at a time.
#[derive(Debug)]
struct Intake<Q, A> {
    waiting: Mutex<mpsc::Receiver<Request<Q, A>>>,
    /// Flushes under way.
    busy: AtomicUsize,
    /// One of them is done.
    done: Notify,
    unusual: Duration,
}

impl<Q, A> Intake<Q, A> {
    /// `None`: the funnel is closed.
    async fn next_batch(&self, limit: usize) -> Option<Vec<Request<Q, A>>> {
        let mut waiting = self.waiting.lock().await;
        let mut batch = Vec::new();
        if waiting.recv_many(&mut batch, limit).await == 0 {
            return None;
        }
        let unusual = tokio::time::Instant::now() + self.unusual;
        // Relaxed: a count that is a moment old only makes a batch a little smaller or later.
        while self.busy.load(Ordering::Relaxed) > 0 && batch.len() < WORTH_A_FLUSH.min(limit) {
            let room = limit - batch.len();
            tokio::select! {
                () = self.done.notified() => {}
                more = waiting.recv_many(&mut batch, room) => if more == 0 { break },
                () = tokio::time::sleep_until(unusual) => break,
            }
        }
        // Lanes that are ready write in the same moment: let them, until nobody else is coming.
        let mut in_vain = 0;
        while in_vain < GATHER_TURNS && batch.len() < WORTH_A_FLUSH.min(limit) {
            tokio::task::yield_now().await;
            let before = batch.len();
            while batch.len() < limit
                && let Ok(request) = waiting.try_recv()
            {
                batch.push(request);
            }
            in_vain = if batch.len() == before { in_vain + 1 } else { 0 };
        }
        self.busy.fetch_add(1, Ordering::Relaxed);
        Some(batch)
    }
}

/// Ends a flush, even one that panics.
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
    async fn what_waits_during_a_flush_is_the_next_batch() {
        let gate = Arc::new(Notify::new());
        let (sizes_in, mut sizes) = mpsc::unbounded_channel();
        let first = Arc::new(AtomicUsize::new(0));
        let (gate2, first2) = (gate.clone(), first.clone());
        let batcher: Batcher<u32, u32> = Batcher::start("test", 1, 100, move |batch| {
            let (gate, first, sizes_in) = (gate2.clone(), first2.clone(), sizes_in.clone());
            async move {
                sizes_in.send(batch.len()).unwrap();
                if first.fetch_add(1, Ordering::SeqCst) == 0 {
                    gate.notified().await;
                }
                let (questions, replies) = Request::split(batch);
                for (question, reply) in questions.into_iter().zip(replies) {
                    reply.send(question * 2);
                }
            }
        });
        let lone = tokio::spawn({
            let batcher = batcher.clone();
            async move { batcher.ask(1).await.unwrap() }
        });
        assert_eq!(sizes.recv().await, Some(1));
        let crowd: Vec<_> = (2..12)
            .map(|n| {
                let batcher = batcher.clone();
                tokio::spawn(async move { batcher.ask(n).await.unwrap() })
            })
            .collect();
        tokio::task::yield_now().await;
        gate.notify_one();
        assert_eq!(lone.await.unwrap(), 2);
        for (task, n) in crowd.into_iter().zip(2..) {
            assert_eq!(task.await.unwrap(), n * 2);
        }
        assert_eq!(sizes.recv().await, Some(10));
    }

    /// A funnel of two flushers whose first flush never ends; what comes back is the size of each batch.
    fn held_up(unusual: Duration) -> (Batcher<usize, ()>, mpsc::UnboundedReceiver<usize>) {
        let (sizes_in, sizes) = mpsc::unbounded_channel();
        let first = Arc::new(AtomicUsize::new(0));
        let batcher =
            Batcher::with_patience("test", unusual, 2, 500, move |batch: Vec<Request<usize, ()>>| {
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
        let mut asking = tokio::task::JoinSet::new();
        for number in 0..count {
            let batcher = batcher.clone();
            asking.spawn(async move { batcher.ask(number).await });
        }
        asking
    }

    #[tokio::test]
    async fn a_few_wait_for_the_flush_that_is_under_way_and_many_do_not() {
        let (batcher, mut sizes) = held_up(Duration::from_secs(3600));
        let _first = crowd(&batcher, 1);
        assert_eq!(sizes.recv().await, Some(1));
        let few = crowd(&batcher, WORTH_A_FLUSH - 1);
        // Every task has asked when all have run as far as they can: this one is the last in the line.
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        assert!(sizes.try_recv().is_err(), "too few for a flush of their own");
        let one_more = crowd(&batcher, 1);
        assert_eq!(sizes.recv().await, Some(WORTH_A_FLUSH));
        assert!(
            few.join_all().await.into_iter().chain(one_more.join_all().await).all(|answer| answer.is_ok())
        );
    }

    #[tokio::test]
    async fn nobody_waits_for_a_flush_that_is_held_up() {
        let (batcher, mut sizes) = held_up(Duration::from_millis(20));
        let _first = crowd(&batcher, 1);
        assert_eq!(sizes.recv().await, Some(1));
        assert!(crowd(&batcher, 3).join_all().await.into_iter().all(|answer| answer.is_ok()));
    }

    /// A flood waits outside of the queue, which stays as short as it was made, and everybody is answered in the end.
    #[tokio::test]
    async fn a_flood_waits_for_room_and_all_of_it_is_answered() {
        let gate = Arc::new(tokio::sync::Semaphore::new(0));
        let held = gate.clone();
        let batcher: Batcher<usize, usize> = Batcher::start("test", 2, 50, move |batch| {
            let gate = held.clone();
            async move {
                gate.acquire().await.unwrap().forget();
                let (questions, replies) = Request::split(batch);
                questions.into_iter().zip(replies).for_each(|(number, reply)| reply.send(number));
            }
        });
        let mut asking = tokio::task::JoinSet::new();
        for number in 0..10_000 {
            let batcher = batcher.clone();
            asking.spawn(async move { batcher.ask(number).await.unwrap() == number });
        }
        let mut deepest = 0;
        while let Some(answered) = {
            gate.add_permits(1);
            tokio::task::yield_now().await;
            deepest = deepest.max(batcher.depth().1);
            asking.join_next().await
        } {
            assert!(answered.unwrap());
        }
        assert_eq!(deepest, BATCHES * 50, "as many as fit, and no more");
    }

    /// A lane that waits for the writer does not read its mail. A flush that has news for it goes on all the same.
    #[tokio::test]
    async fn a_flush_that_posts_to_a_lane_that_waits_for_it_does_not_wait() {
        let (mailbox, mut inbox) = crate::watcher::Mailbox::new(1);
        let batcher: Batcher<(), ()> = Batcher::start("test", 1, 10, move |batch| {
            let mailbox = mailbox.clone();
            async move {
                (0..10_000).for_each(|_| mailbox.post(crate::watcher::LaneEvent::Deep));
                Request::split(batch).1.into_iter().for_each(|reply| reply.send(()));
            }
        });
        batcher.ask(()).await.unwrap();
        let mut last = None;
        while let Some(news) = inbox.try_recv() {
            last = Some(news);
        }
        assert!(matches!(last, Some(crate::watcher::LaneEvent::Missed)), "{last:?}");
    }
}
