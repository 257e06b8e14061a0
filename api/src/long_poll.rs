//! Batched long polls: one query checks all waiting requests, on NOTIFY from a worker and, because notifications can
//! be lost, at intervals.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use gapless_domain::{H256, TxId};
use gapless_store::Store;
use gapless_telemetry::metrics::LONG_POLLS;
use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot, watch};
use tokio::time::Instant;

use crate::wait::completion_or_timeout;

/// Poll interval while LISTEN works: the delay after a lost notification.
const POLL_LISTENING: Duration = Duration::from_millis(500);
/// Poll interval while LISTEN is down.
const POLL_NOT_LISTENING: Duration = Duration::from_millis(75);
/// Shortest time between two queries, however many notifications arrive.
const MIN_INTERVAL: Duration = Duration::from_millis(10);

/// What the requests wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Awaited {
    Final,
    /// The first hash, or a final state.
    Hash,
}

type Waiters = HashMap<TxId, Vec<oneshot::Sender<Option<H256>>>>;

#[derive(Clone, Debug)]
pub(crate) struct LongPolls {
    awaited: Awaited,
    waiters: Arc<Mutex<Waiters>>,
    added: Arc<Notify>,
}

/// A waiting request. A dropped one is removed before the next query.
#[derive(Debug)]
pub(crate) struct Waiting(oneshot::Receiver<Option<H256>>);

impl Waiting {
    /// Returns when the transaction is in the awaited state or deleted, or after `limit`. The caller then reads the row,
    /// unless it gets the hash that it waited for.
    pub(crate) async fn wait(self, limit: Duration) -> Option<H256> {
        metrics::gauge!(LONG_POLLS).increment(1.0);
        let _counted = Counted;
        tokio::time::timeout(limit, self.0).await.ok()?.ok()?
    }
}

/// Decrements the gauge however the wait ends.
struct Counted;

impl Drop for Counted {
    fn drop(&mut self) {
        metrics::gauge!(LONG_POLLS).decrement(1.0);
    }
}

impl LongPolls {
    pub(crate) fn start(store: Store, completions: watch::Receiver<bool>, awaited: Awaited) -> LongPolls {
        let long_polls = LongPolls { awaited, waiters: Arc::default(), added: Arc::default() };
        tokio::spawn(long_polls.clone().run(store, completions));
        long_polls
    }

    /// Call before reading the row, so that no later state change is missed.
    pub(crate) fn register(&self, tx_id: TxId) -> Waiting {
        let (sender, receiver) = oneshot::channel();
        self.lock().entry(tx_id).or_default().push(sender);
        self.added.notify_one();
        Waiting(receiver)
    }

    fn lock(&self) -> parking_lot::MutexGuard<'_, Waiters> {
        self.waiters.lock()
    }

    fn waiting_tx_ids(&self) -> Vec<TxId> {
        let mut waiters = self.lock();
        waiters.retain(|_, senders| {
            senders.retain(|sender| !sender.is_closed());
            !senders.is_empty()
        });
        waiters.keys().copied().collect()
    }

    async fn run(self, store: Store, mut completions: watch::Receiver<bool>) {
        loop {
            if self.lock().is_empty() {
                self.added.notified().await;
                continue;
            }
            // Wait first: every waiting request has just read its row or was checked by the previous query.
            let interval = if *completions.borrow() { POLL_LISTENING } else { POLL_NOT_LISTENING };
            completion_or_timeout(&mut completions, interval).await;
            let tx_ids = self.waiting_tx_ids();
            if !tx_ids.is_empty() {
                let began = Instant::now();
                self.check(&store, &tx_ids).await;
                tokio::time::sleep(began.elapsed().max(MIN_INTERVAL)).await;
            }
        }
    }

    async fn check(&self, store: &Store, tx_ids: &[TxId]) {
        let found = match self.awaited {
            Awaited::Final => {
                store.settled(tx_ids).await.map(|ids| ids.into_iter().map(|tx_id| (tx_id, None)).collect())
            }
            Awaited::Hash => store.started(tx_ids).await,
        };
        match found {
            Ok(found) => {
                let found: Vec<(TxId, Option<H256>)> = found;
                let mut waiters = self.lock();
                for (tx_id, hash) in found {
                    for sender in waiters.remove(&tx_id).into_iter().flatten() {
                        let _ = sender.send(hash);
                    }
                }
            }
            // Each waiting request reads its row when its time is up, and reports the error then.
            Err(error) => tracing::debug!(%error, "long poll query failed"),
        }
    }
}
