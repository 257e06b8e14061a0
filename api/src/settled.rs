//! Long polls without a query each: one statement asks for everybody who waits.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use gapless::domain::TxId;
use gapless::store::Store;
use tokio::sync::{Notify, oneshot};

/// How late an answer may be. Blocks take longer than this on every chain but a developer's.
const INTERVAL: Duration = Duration::from_millis(75);

type Waiters = HashMap<TxId, Vec<oneshot::Sender<()>>>;

#[derive(Clone, Debug)]
pub(crate) struct Settled {
    waiters: Arc<Mutex<Waiters>>,
    added: Arc<Notify>,
}

impl Settled {
    pub(crate) fn start(store: Store) -> Settled {
        let settled = Settled { waiters: Arc::default(), added: Arc::default() };
        tokio::spawn(settled.clone().run(store));
        settled
    }

    /// Returns when the transaction is final, or gone, or `limit` has passed. The caller reads the row then.
    pub(crate) async fn wait(&self, tx_id: TxId, limit: Duration) {
        let (sender, receiver) = oneshot::channel();
        self.lock().entry(tx_id).or_default().push(sender);
        self.added.notify_one();
        // Either end is fine; a waiter that gives up closes its channel and is swept out by the next round.
        let _ = tokio::time::timeout(limit, receiver).await;
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

    async fn run(self, store: Store) {
        loop {
            let tx_ids = self.waited_for();
            if tx_ids.is_empty() {
                self.added.notified().await;
                continue;
            }
            match store.settled(&tx_ids).await {
                Ok(settled) => {
                    let mut waiters = self.lock();
                    for sender in settled.iter().filter_map(|tx_id| waiters.remove(tx_id)).flatten() {
                        let _ = sender.send(());
                    }
                }
                // Each waiter reads its row when its time is up and tells its client then.
                Err(error) => tracing::debug!(%error, "long polls could not look"),
            }
            tokio::time::sleep(INTERVAL).await;
        }
    }
}
