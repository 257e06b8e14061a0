//! Batches the calls of many tasks into few flushes, without a timer.
//!
//! A flusher takes all waiting items, up to a limit, and processes them as one batch; items that arrive meanwhile form
//! the next one. A batch has one item when the process is idle and hundreds under load. `Concurrency` says when two
//! batches run at the same time.
//!
//! The queue is bounded: `call` waits for free capacity, because an item must not be lost, and `try_call` refuses. This
//! cannot deadlock as long as a flush never waits for a caller (ADR 0035).

mod bisect;
mod queue;

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use gapless_telemetry::metrics::INTERNAL_QUEUE_WAITS_TOTAL;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{Notify, Semaphore, TryAcquireError, oneshot};
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};

pub use bisect::Bisection;
use queue::{Batch, Next, Queue};

/// Weight that justifies a batch in parallel to another: below it, one batch of twice the size is cheaper than two.
const MIN_PARALLEL_WEIGHT: usize = 100;
/// A batch is closed after this many consecutive yields to the scheduler that added no item. They take some
/// microseconds when no task is ready.
const GATHER_YIELDS: usize = 4;
/// A flush that takes longer than this is blocked by a lock or the disk; items that arrived meanwhile do not wait for
/// it.
const SLOW_AFTER: Duration = Duration::from_millis(20);

/// When batches run at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Concurrency {
    /// Up to this many batches. A second one starts only when enough items wait, or when the running one is slow. Items
    /// are independent of each other.
    Unordered { flushers: usize },
    /// Every item belongs to a part, and a part is in at most one batch at a time, so its items are processed in order
    /// of arrival. Few waiting items form one batch; with many, each part forms its own.
    OrderedParts { parts: usize },
}

#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// For metrics and logs.
    pub name: &'static str,
    pub concurrency: Concurrency,
    /// A batch is full at this weight.
    pub max_batch: usize,
    /// Weight of all items that wait or are being processed.
    pub capacity: usize,
}

/// Why a call has no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The queue is full. Nothing was done. Only `try_call` returns it.
    #[error("too many waiting calls")]
    Full,
    /// The flush panicked. The item may have been processed.
    #[error("the flush ended without an answer")]
    NoAnswer,
}

/// An item of a batch and the channel to its caller.
#[derive(Debug)]
pub struct Request<Q, A> {
    pub item: Q,
    answer: oneshot::Sender<A>,
}

impl<Q, A> Request<Q, A> {
    /// Splits a batch into its items and the reply channels.
    pub fn split(batch: Vec<Request<Q, A>>) -> (Vec<Q>, Vec<Reply<A>>) {
        batch.into_iter().map(|request| (request.item, Reply(request.answer))).unzip()
    }
}

/// Reply channel to one caller.
#[derive(Debug)]
pub struct Reply<A>(oneshot::Sender<A>);

impl<A> Reply<A> {
    pub fn send(self, answer: A) {
        // Fails if the caller was dropped; it needs no answer then.
        let _ = self.0.send(answer);
    }
}

/// A handle to the queue. Its flushers end when the last handle is dropped and the queue is empty.
#[derive(Debug)]
pub struct Batcher<Q, A> {
    shared: Arc<Shared<Q, A>>,
    _closes: Arc<DropGuard>,
}

impl<Q, A> Clone for Batcher<Q, A> {
    fn clone(&self) -> Self {
        Batcher { shared: self.shared.clone(), _closes: self._closes.clone() }
    }
}

#[derive(Debug)]
struct Shared<Q, A> {
    options: Options,
    queue: Mutex<Queue<Request<Q, A>>>,
    capacity: Semaphore,
    /// Wakes a flusher.
    wake: Notify,
    closed: CancellationToken,
}

impl<Q: Send + 'static, A: Send + 'static> Batcher<Q, A> {
    /// Starts the flushers. Needs a Tokio runtime.
    pub fn start<F, R>(options: Options, flush: F) -> Self
    where
        F: Fn(Vec<Request<Q, A>>) -> R + Clone + Send + Sync + 'static,
        R: Future<Output = ()> + Send + 'static,
    {
        Batcher::with_slow_after(SLOW_AFTER, options, flush)
    }

    fn with_slow_after<F, R>(slow_after: Duration, options: Options, flush: F) -> Self
    where
        F: Fn(Vec<Request<Q, A>>) -> R + Clone + Send + Sync + 'static,
        R: Future<Output = ()> + Send + 'static,
    {
        let (queue, closed) =
            (Queue::new(options.concurrency, options.max_batch, slow_after), CancellationToken::new());
        let flushers = queue.flushers();
        let shared = Arc::new(Shared {
            options,
            queue: Mutex::new(queue),
            capacity: Semaphore::new(options.capacity),
            wake: Notify::new(),
            closed: closed.clone(),
        });
        for _ in 0..flushers {
            tokio::spawn(run_flusher(shared.clone(), flush.clone()));
        }
        Batcher { shared, _closes: Arc::new(closed.drop_guard()) }
    }

    /// Name of the queue, and the weight of the waiting items.
    pub fn depth(&self) -> (&'static str, usize) {
        (self.shared.options.name, self.shared.lock().waiting())
    }

    /// Waits while the queue is full.
    pub async fn call(&self, item: Q) -> Result<A, CallError> {
        let shared = &self.shared;
        if shared.acquire(1).is_err() {
            metrics::counter!(INTERNAL_QUEUE_WAITS_TOTAL, "queue" => shared.options.name).increment(1);
            // The semaphore is never closed.
            shared.capacity.acquire().await.map_err(|_| CallError::NoAnswer)?.forget();
        }
        shared.enqueue(0, 1, item).await.map_err(|_| CallError::NoAnswer)
    }

    /// Enqueues at once, or fails with `CallError::Full`. `part` counts from 0 and must be below the number of parts. The
    /// item is in the queue when this returns; the future waits for the answer.
    pub fn try_call(
        &self,
        part: usize,
        weight: usize,
        item: Q,
    ) -> Result<impl Future<Output = Result<A, CallError>> + use<Q, A>, CallError> {
        self.shared.acquire(weight).map_err(|_| CallError::Full)?;
        let answer = self.shared.enqueue(part, weight, item);
        Ok(async { answer.await.map_err(|_| CallError::NoAnswer) })
    }
}

impl<Q, A> Shared<Q, A> {
    fn lock(&self) -> MutexGuard<'_, Queue<Request<Q, A>>> {
        self.queue.lock()
    }

    /// Takes capacity, which the end of the item's batch gives back.
    fn acquire(&self, weight: usize) -> Result<(), TryAcquireError> {
        let weight = u32::try_from(weight).map_err(|_| TryAcquireError::NoPermits)?;
        self.capacity.try_acquire_many(weight).map(tokio::sync::SemaphorePermit::forget)
    }

    fn enqueue(&self, part: usize, weight: usize, item: Q) -> oneshot::Receiver<A> {
        let (answer, receiver) = oneshot::channel();
        let wake = self.lock().add(part, weight, Request { item, answer }, Instant::now());
        if wake {
            self.wake.notify_one();
        }
        receiver
    }

    /// Items of tasks that are ready to call join the batch.
    async fn gather(&self) {
        let (mut seen, mut empty_yields) = (self.lock().waiting(), 0);
        let enough = MIN_PARALLEL_WEIGHT.min(self.options.max_batch);
        while 0 < seen && seen < enough && empty_yields < GATHER_YIELDS {
            tokio::task::yield_now().await;
            let now = self.lock().waiting();
            empty_yields = if now == seen { empty_yields + 1 } else { 0 };
            seen = now;
        }
    }

    /// `None`: no batch can start.
    async fn next_batch(&self) -> Option<Batch<Request<Q, A>>> {
        loop {
            self.gather().await;
            let (next, wake_another) = self.lock().take(Instant::now());
            if wake_another {
                self.wake.notify_one();
            }
            match next {
                Next::Batch(batch) => return Some(batch),
                Next::Nothing => return None,
                Next::NotBefore(at) => tokio::select! {
                    () = self.wake.notified() => {}
                    () = tokio::time::sleep_until(at) => {}
                },
            }
        }
    }
}

async fn run_flusher<Q, A, F, R>(shared: Arc<Shared<Q, A>>, flush: F)
where
    F: Fn(Vec<Request<Q, A>>) -> R,
    R: Future<Output = ()>,
{
    let mut closed = false;
    loop {
        while let Some(mut batch) = shared.next_batch().await {
            let (items, requests) = (batch.items.len(), std::mem::take(&mut batch.items));
            // After a panic the replies are dropped, which answers the callers. The flusher must go on.
            if AssertUnwindSafe(async { flush(requests).await }).catch_unwind().await.is_err() {
                tracing::error!(queue = shared.options.name, items, "a flush panicked");
            }
            shared.capacity.add_permits(batch.weight);
            shared.lock().finish(&batch);
        }
        if closed {
            return;
        }
        tokio::select! {
            () = shared.wake.notified() => {}
            () = shared.closed.cancelled() => closed = true,
        }
    }
}

#[cfg(test)]
mod tests;
