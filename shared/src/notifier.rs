//! Debounced words to other processes, and the ear for them. Never inside a transaction, never a reason to wait.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

use crate::store::{Channel, Store, StoreError};

/// Notifications take a database-wide lock at commit, and each has its hearers look: one per group would undo the
/// grouping. So the pause after one grows with what it told: a lone row is told at once, a flood ten times a second.
const PAUSE_PER_ROW: Duration = Duration::from_millis(2);
const SHORTEST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(100);
/// Between two tries to listen.
const RETRY: Duration = Duration::from_secs(1);

#[derive(Clone, Debug)]
pub struct Notifier {
    inner: Arc<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    /// Rows since the last word.
    rows: AtomicUsize,
    pending: Notify,
}

impl Notifier {
    /// `store` needs a connection to spare: a word that waits for one comes late.
    pub fn start(store: Store, channel: Channel) -> Notifier {
        let notifier = Notifier { inner: Arc::default() };
        tokio::spawn(notifier.clone().run(store, channel));
        notifier
    }

    /// There are so many new rows. Returns at once; any number of calls become one word.
    pub fn notify(&self, rows: usize) {
        if rows > 0 {
            self.inner.rows.fetch_add(rows, Ordering::Relaxed);
            self.inner.pending.notify_one();
        }
    }

    async fn run(self, store: Store, channel: Channel) {
        loop {
            self.inner.pending.notified().await;
            let rows = self.inner.rows.swap(0, Ordering::Relaxed);
            if let Err(error) = store.notify(channel).await {
                // Those who listen also poll; they only find out a little later.
                tracing::debug!(%error, ?channel, "a notification was not sent");
            }
            tokio::time::sleep(pause_after(rows)).await;
        }
    }
}

fn pause_after(rows: usize) -> Duration {
    let rows = u32::try_from(rows).unwrap_or(u32::MAX);
    PAUSE_PER_ROW.saturating_mul(rows).clamp(SHORTEST_PAUSE, LONGEST_PAUSE)
}

/// Listens for ever, over a connection of its own to the database of `store`; one that breaks or falls silent is replaced. Calls `notified` with true at every word, and whenever listening begins,
/// since words may have been missed; with false when it ends and only polling is left.
pub async fn listen(store: Store, channel: Channel, mut notified: impl FnMut(bool)) {
    loop {
        let Err(error) = listen_once(&store, channel, &mut notified).await;
        notified(false);
        tracing::info!(%error, ?channel, "the listening connection is lost and will be replaced; polling goes on");
        tokio::time::sleep(RETRY).await;
    }
}

async fn listen_once(
    store: &Store,
    channel: Channel,
    notified: &mut impl FnMut(bool),
) -> Result<std::convert::Infallible, StoreError> {
    let mut listener = store.listen(channel).await?;
    loop {
        notified(true);
        listener.heard().await?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lone_row_is_told_at_once_and_a_flood_ten_times_a_second() {
        assert_eq!(pause_after(1), SHORTEST_PAUSE);
        assert_eq!(pause_after(20), Duration::from_millis(40));
        assert_eq!(pause_after(500), LONGEST_PAUSE);
        assert_eq!(pause_after(usize::MAX), LONGEST_PAUSE);
    }
}
