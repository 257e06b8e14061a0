//! Debounced NOTIFY, and the LISTEN loop that receives it. Never inside a transaction; callers never wait for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

use crate::{Channel, Store, StoreError};

/// NOTIFY takes a database-wide lock at commit, and each one makes all listeners poll: one per group commit would
/// undo the grouping. So the pause after a NOTIFY grows with the number of rows: a single row is notified at once, a
/// burst ten times a second.
const PAUSE_PER_ROW: Duration = Duration::from_millis(2);
const MIN_PAUSE: Duration = Duration::from_millis(10);
const MAX_PAUSE: Duration = Duration::from_millis(100);
/// Between two tries to LISTEN.
const RETRY: Duration = Duration::from_secs(1);

#[derive(Clone, Debug)]
pub struct Notifier {
    inner: Arc<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    /// Rows since the last NOTIFY.
    rows: AtomicUsize,
    pending: Notify,
}

impl Notifier {
    /// `store` should have a free connection: a NOTIFY that waits for one is late.
    pub fn start(store: Store, channel: Channel) -> Notifier {
        let notifier = Notifier { inner: Arc::default() };
        tokio::spawn(notifier.clone().run(store, channel));
        notifier
    }

    /// Schedules a NOTIFY for this many new rows. Returns at once; calls during the pause are merged into one NOTIFY.
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
                // Listeners also poll: they see the rows a little later.
                tracing::debug!(%error, ?channel, "NOTIFY failed");
            }
            tokio::time::sleep(pause_after(rows)).await;
        }
    }
}

fn pause_after(rows: usize) -> Duration {
    let rows = u32::try_from(rows).unwrap_or(u32::MAX);
    PAUSE_PER_ROW.saturating_mul(rows).clamp(MIN_PAUSE, MAX_PAUSE)
}

/// Listens forever, on a separate connection to the database of `store`; a broken or unresponsive one is replaced.
/// Calls `notified(true)` for every notification and whenever LISTEN starts, because notifications may have been
/// missed; calls `notified(false)` when the connection is lost and only polling is left. Logs that once, and not at all
/// before the first LISTEN: the program reports a database that is missing at its start.
pub async fn listen(store: Store, channel: Channel, mut notified: impl FnMut(bool)) {
    let mut was_listening = false;
    loop {
        let Err(error) = listen_once(&store, channel, &mut |listening| {
            was_listening = true;
            notified(listening);
        })
        .await;
        notified(false);
        if std::mem::take(&mut was_listening) {
            tracing::info!(%error, ?channel, "LISTEN connection lost; reconnecting, polling continues");
        }
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
        listener.recv().await?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pause_grows_with_the_rows_up_to_a_tenth_of_a_second() {
        assert_eq!(pause_after(1), MIN_PAUSE);
        assert_eq!(pause_after(20), Duration::from_millis(40));
        assert_eq!(pause_after(500), MAX_PAUSE);
        assert_eq!(pause_after(usize::MAX), MAX_PAUSE);
    }
}
