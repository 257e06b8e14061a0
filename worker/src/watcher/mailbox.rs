//! A lane's mailbox: a bounded queue of events. Posting never waits.
//!
//! Events may be dropped, because everything in them can be read again from the database and the nodes. A full mailbox
//! drops the event and sets a flag; the lane then reloads its rows and looks up all of its hashes, as after a crash.
//! Posting must not wait: the watcher posts while it holds the lock of its registry, the fleet while it holds that of
//! its lanes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};

use gapless_domain::mempool::Diagnosis;
use gapless_domain::{Receipt, TxId};
use gapless_telemetry::metrics as m;
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;

/// Capacity beyond what the window can produce in one block. A lane reads all events in each step.
const BASE_CAPACITY: usize = 256;
/// Events for one nonce in one block: the reorg of the old block, and the inclusion in the new one.
const PER_NONCE: usize = 2;

/// Events that are posted to a lane.
#[derive(Clone, Debug)]
pub(crate) enum LaneEvent {
    /// There is new work.
    Work,
    /// There may be new work; posted to idle lanes.
    MaybeWork,
    /// There is a request of an operator or a client: reload the rows.
    Reload,
    /// A queued intent can no longer start.
    Late,
    /// Paused or resumed.
    Paused(bool),
    /// Whether the key is shared.
    Shared(bool),
    /// One of its hashes is in a canonical block.
    Included(Receipt),
    /// A height that the lane waits for was reached by the head or by finality; or the head became unreadable.
    HeightReached,
    /// Blocks from this height on were replaced.
    Reorged { from: u64 },
    /// Results of a mempool diagnosis.
    Diagnosed(Vec<(TxId, Diagnosis)>),
    /// Events were dropped because the mailbox was full.
    Missed,
}

/// The sending side.
#[derive(Clone, Debug)]
pub(crate) struct Mailbox {
    id: u64,
    sender: mpsc::Sender<LaneEvent>,
    missed: Arc<AtomicBool>,
}

/// The lane's side.
#[derive(Debug)]
pub(crate) struct Inbox {
    receiver: mpsc::Receiver<LaneEvent>,
    missed: Arc<AtomicBool>,
}

impl Mailbox {
    /// Sized for a lane with this window.
    pub(crate) fn new(window: u32) -> (Mailbox, Inbox) {
        let nonces = usize::try_from(window).unwrap_or(usize::MAX / 4).min(1 << 20);
        Mailbox::with_capacity(BASE_CAPACITY + PER_NONCE * nonces)
    }

    fn with_capacity(capacity: usize) -> (Mailbox, Inbox) {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let (sender, receiver) = mpsc::channel(capacity);
        let missed = Arc::new(AtomicBool::new(false));
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        (Mailbox { id, sender, missed: missed.clone() }, Inbox { receiver, missed })
    }

    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// Never waits. Events for an ended lane are discarded: the next owner loads the rows.
    pub(crate) fn post(&self, event: LaneEvent) {
        if let Err(TrySendError::Full(_)) = self.sender.try_send(event) {
            metrics::counter!(m::INTERNAL_QUEUE_DROPPED_TOTAL, "queue" => "mailbox").increment(1);
            self.missed.store(true, Ordering::Relaxed);
            // Either there is capacity now, and this event wakes the lane; or there is none, and the lane, which
            // drains the queue before it reads the flag, sees it set. The fence here and the one in `try_recv` exclude
            // a third case.
            fence(Ordering::SeqCst);
            let _ = self.sender.try_send(LaneEvent::HeightReached);
        }
    }

    /// Number of queued events.
    pub(crate) fn depth(&self) -> usize {
        self.sender.max_capacity() - self.sender.capacity()
    }
}

impl Inbox {
    /// The lane must call `try_recv` until it returns `None` before it waits again.
    pub(crate) async fn recv(&mut self) -> Option<LaneEvent> {
        self.receiver.recv().await
    }

    pub(crate) fn try_recv(&mut self) -> Option<LaneEvent> {
        if let Ok(event) = self.receiver.try_recv() {
            return Some(event);
        }
        fence(Ordering::SeqCst);
        let missed = self.missed.load(Ordering::Relaxed) && self.missed.swap(false, Ordering::Relaxed);
        missed.then_some(LaneEvent::Missed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drain(inbox: &mut Inbox) -> (usize, usize) {
        let (mut received, mut missed) = (0, 0);
        while let Some(event) = inbox.try_recv() {
            match event {
                LaneEvent::Missed => missed += 1,
                _ => received += 1,
            }
        }
        (received, missed)
    }

    #[tokio::test]
    async fn a_full_mailbox_drops_events_and_reports_missed_once() {
        let (mailbox, mut inbox) = Mailbox::new(1);
        let capacity = BASE_CAPACITY + PER_NONCE;
        for _ in 0..10_000 {
            mailbox.post(LaneEvent::Work);
            assert!(mailbox.depth() <= capacity);
        }
        assert_eq!(drain(&mut inbox), (capacity, 1));
        mailbox.post(LaneEvent::Work);
        assert_eq!(drain(&mut inbox), (1, 0), "it is over");
    }

    /// With any interleaving of posts and reads, a lane that has read everything has received the last event or
    /// `Missed`, and a waiting lane is woken.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn dropped_events_are_always_reported_as_missed() {
        for _ in 0..200 {
            let (mailbox, mut inbox) = Mailbox::with_capacity(2);
            let last = Arc::new(AtomicBool::new(false));
            let is_last = last.clone();
            let posting = tokio::task::spawn_blocking(move || {
                (0..50).for_each(|_| mailbox.post(LaneEvent::Work));
                is_last.store(true, Ordering::SeqCst);
                mailbox.post(LaneEvent::Reload);
                mailbox
            });
            let reading = tokio::time::timeout(std::time::Duration::from_secs(30), async {
                loop {
                    let mut event = inbox.recv().await;
                    while let Some(one) = event {
                        // `Missed` before the last post does not count: the last post must be received or missed
                        // again.
                        let missed = matches!(one, LaneEvent::Missed) && last.load(Ordering::SeqCst);
                        if missed || matches!(one, LaneEvent::Reload) {
                            return;
                        }
                        event = inbox.try_recv();
                    }
                }
            });
            reading.await.expect("the lane is woken");
            drop(posting.await.unwrap());
        }
    }

    /// A lane that waits for the writer does not read its mailbox. A flush that posts to it must not block.
    #[tokio::test]
    async fn a_flush_can_post_to_a_lane_that_waits_for_it() {
        let (mailbox, mut inbox) = Mailbox::new(1);
        let batcher: gapless_batching::Batcher<(), ()> =
            gapless_batching::Batcher::start(crate::writer::batching("test", 1), move |batch| {
                let mailbox = mailbox.clone();
                async move {
                    (0..10_000).for_each(|_| mailbox.post(LaneEvent::HeightReached));
                    gapless_batching::Request::split(batch).1.into_iter().for_each(|reply| reply.send(()));
                }
            });
        batcher.call(()).await.unwrap();
        let mut last = None;
        while let Some(event) = inbox.try_recv() {
            last = Some(event);
        }
        assert!(matches!(last, Some(LaneEvent::Missed)), "{last:?}");
    }
}
