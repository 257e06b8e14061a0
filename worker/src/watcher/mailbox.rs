//! A lane's mailbox: bounded, and whoever posts never waits.
//!
//! News may be lost, because everything in it is said again by the rows and the nodes. So a full mailbox drops what does not fit and
//! raises a flag; the lane that finds it raised reads its rows again and looks all of its hashes up, as after a crash. Nobody who posts
//! holds anything up: the watcher posts under the lock of its registry, the fleet under that of its lanes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};

use gapless::domain::mempool::Diagnosis;
use gapless::domain::{Receipt, TxId};
use gapless::observe::metrics as m;
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;

/// News that may wait beyond what the window can bring at once. A lane reads all of it in each turn.
const ROOM: usize = 256;
/// News of one nonce in one block: it is in it, and before that the block was replaced.
const FOR_EACH_NONCE: usize = 2;

/// What a lane hears from outside.
#[derive(Clone, Debug)]
pub(crate) enum LaneEvent {
    /// There is new work.
    Work,
    /// There may be new work, for whoever has none.
    Look,
    /// An operator asked for something: read the rows again.
    Reload,
    /// Paused or resumed.
    Paused(bool),
    /// Whether others use the key as well.
    Shared(bool),
    /// One of its hashes is in a canonical block.
    Included(Receipt),
    /// A height it waited for is reached, by the head or by what is final; or no head can be read.
    Deep,
    /// Blocks from this height on were replaced.
    Reorged { from: u64 },
    /// What a look into the nodes' pools has shown.
    Diagnosed(Vec<(TxId, Diagnosis)>),
    /// Some of all this did not fit.
    Missed,
}

/// From the sending side.
#[derive(Clone, Debug)]
pub(crate) struct Mailbox {
    id: u64,
    sender: mpsc::Sender<LaneEvent>,
    missed: Arc<AtomicBool>,
}

/// From the lane's side.
#[derive(Debug)]
pub(crate) struct Inbox {
    receiver: mpsc::Receiver<LaneEvent>,
    missed: Arc<AtomicBool>,
}

impl Mailbox {
    /// For a lane whose window is so wide.
    pub(crate) fn new(window: u32) -> (Mailbox, Inbox) {
        let nonces = usize::try_from(window).unwrap_or(usize::MAX / 4).min(1 << 20);
        Mailbox::with_room(ROOM + FOR_EACH_NONCE * nonces)
    }

    fn with_room(room: usize) -> (Mailbox, Inbox) {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let (sender, receiver) = mpsc::channel(room);
        let missed = Arc::new(AtomicBool::new(false));
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        (Mailbox { id, sender, missed: missed.clone() }, Inbox { receiver, missed })
    }

    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// Never waits. A lane that is gone needs no news: whoever comes next reads the rows.
    pub(crate) fn post(&self, news: LaneEvent) {
        if let Err(TrySendError::Full(_)) = self.sender.try_send(news) {
            metrics::counter!(m::INTERNAL_QUEUE_DROPPED_TOTAL, "queue" => "mailbox").increment(1);
            self.missed.store(true, Ordering::Relaxed);
            // Either there is room now, and this wakes the lane; or there is none, and the lane, which makes room before it
            // looks at the flag, sees it raised. The fence here and the one in `try_recv` leave no third case.
            fence(Ordering::SeqCst);
            let _ = self.sender.try_send(LaneEvent::Deep);
        }
    }

    /// News that wait.
    pub(crate) fn depth(&self) -> usize {
        self.sender.max_capacity() - self.sender.capacity()
    }
}

impl Inbox {
    /// The lane calls `try_recv` until there is nothing left before it waits again.
    pub(crate) async fn recv(&mut self) -> Option<LaneEvent> {
        self.receiver.recv().await
    }

    pub(crate) fn try_recv(&mut self) -> Option<LaneEvent> {
        if let Ok(news) = self.receiver.try_recv() {
            return Some(news);
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
        let (mut heard, mut missed) = (0, 0);
        while let Some(news) = inbox.try_recv() {
            match news {
                LaneEvent::Missed => missed += 1,
                _ => heard += 1,
            }
        }
        (heard, missed)
    }

    #[tokio::test]
    async fn a_flooded_mailbox_keeps_what_fits_and_says_once_that_there_was_more() {
        let (mailbox, mut inbox) = Mailbox::new(1);
        let room = ROOM + FOR_EACH_NONCE;
        for _ in 0..10_000 {
            mailbox.post(LaneEvent::Work);
            assert!(mailbox.depth() <= room);
        }
        assert_eq!(drain(&mut inbox), (room, 1));
        mailbox.post(LaneEvent::Work);
        assert_eq!(drain(&mut inbox), (1, 0), "it is over");
    }

    /// However posts and reads fall together, a lane that has read everything has heard the last post or that it missed some;
    /// and one that waits is woken.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn nothing_is_lost_without_a_word_while_the_lane_reads() {
        for _ in 0..200 {
            let (mailbox, mut inbox) = Mailbox::with_room(2);
            let last = Arc::new(AtomicBool::new(false));
            let is_last = last.clone();
            let posting = tokio::task::spawn_blocking(move || {
                (0..50).for_each(|_| mailbox.post(LaneEvent::Work));
                is_last.store(true, Ordering::SeqCst);
                mailbox.post(LaneEvent::Reload);
                mailbox
            });
            let told = tokio::time::timeout(std::time::Duration::from_secs(30), async {
                loop {
                    let mut news = inbox.recv().await;
                    while let Some(one) = news {
                        // A lane that misses some before the last post reads its rows, and hears of that post in one way or the other.
                        let missed = matches!(one, LaneEvent::Missed) && last.load(Ordering::SeqCst);
                        if missed || matches!(one, LaneEvent::Reload) {
                            return;
                        }
                        news = inbox.try_recv();
                    }
                }
            });
            told.await.expect("the lane is woken");
            drop(posting.await.unwrap());
        }
    }
}
