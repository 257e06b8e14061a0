//! Long polls without a query each: one statement asks for everybody who waits, when workers say that something ended
//! and, because words can be lost, by the clock.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use gapless::domain::TxId;
use gapless::observe::metrics::LONG_POLLS;
use gapless::store::Store;
use tokio::sync::{Notify, oneshot, watch};
use tokio::time::Instant;

use crate::wait::something_ended;

/// How late an answer may be if a word was lost.
const LISTENING: Duration = Duration::from_millis(500);
/// How late an answer may be while no word can come.
const DEAF: Duration = Duration::from_millis(75);
/// Between two looks, however many workers ring.
const MIN_GAP: Duration = Duration::from_millis(10);

type Waiters = HashMap<TxId, Vec<oneshot::Sender<()>>>;

#[derive(Clone, Debug)]
pub(crate) struct LongPolls {
    waiters: Arc<Mutex<Waiters>>,
    added: Arc<Notify>,
}

/// Somebody who waits. One that is dropped is swept out by the next look.
#[derive(Debug)]
pub(crate) struct Waiting(oneshot::Receiver<()>);

impl Waiting {
    /// Returns when the transaction is final, or gone, or `limit` has passed. The caller reads the row then.
    pub(crate) async fn ended(self, limit: Duration) {
        metrics::gauge!(LONG_POLLS).increment(1.0);
        let _counted = Counted;
        let _ = tokio::time::timeout(limit, self.0).await;
    }
}

/// Also when the client goes away or the server stops.
struct Counted;

impl Drop for Counted {
    fn drop(&mut self) {
        metrics::gauge!(LONG_POLLS).decrement(1.0);
    }
}

impl LongPolls {
    pub(crate) fn start(store: Store, endings: watch::Receiver<bool>) -> LongPolls {
        let settled = LongPolls { waiters: Arc::default(), added: Arc::default() };
        tokio::spawn(settled.clone().run(store, endings));
        settled
    }

    /// To be called before the row is read: what ends after this is told.
    pub(crate) fn enrol(&self, tx_id: TxId) -> Waiting {
        let (sender, receiver) = oneshot::channel();
        self.lock().entry(tx_id).or_default().push(sender);
        self.added.notify_one();
        Waiting(receiver)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Waiters> {
        // The map is valid after every statement, so a panic elsewhere leaves nothing half done.
        self.waiters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn waited_for(&self) -> Vec<TxId> {
        let mut waiters = self.lock();
        waiters.retain(|_, senders| {
            senders.retain(|sender| !sender.is_closed());
            !senders.is_empty()
        });
        waiters.keys().copied().collect()
    }

    async fn run(self, store: Store, mut endings: watch::Receiver<bool>) {
        loop {
            if self.lock().is_empty() {
                self.added.notified().await;
                continue;
            }
            // Everybody has just read their row, or was looked for by the round before.
            let interval = if *endings.borrow() { LISTENING } else { DEAF };
            something_ended(&mut endings, interval).await;
            let tx_ids = self.waited_for();
            if !tx_ids.is_empty() {
                let began = Instant::now();
                self.look(&store, &tx_ids).await;
                tokio::time::sleep(began.elapsed().max(MIN_GAP)).await;
            }
        }
    }

    async fn look(&self, store: &Store, tx_ids: &[TxId]) {
        match store.settled(tx_ids).await {
            Ok(settled) => {
                let mut waiters = self.lock();
                for sender in settled.iter().filter_map(|tx_id| waiters.remove(tx_id)).flatten() {
                    let _ = sender.send(());
                }
            }
            // Each waiter reads its row when its time is up and tells its client then.
            Err(error) => tracing::debug!(%error, "long polls could not look"),
        }
    }
}
