//! Tells idle workers that there is work, after the commit and never more often than they could use it.

use std::sync::Arc;
use std::time::Duration;

use gapless::store::Store;
use tokio::sync::Notify;

/// Notifications take a database-wide lock at commit: one per group would undo the grouping.
const QUIET: Duration = Duration::from_millis(20);

#[derive(Clone, Debug)]
pub(crate) struct Notifier {
    pending: Arc<Notify>,
}

impl Notifier {
    /// `store` is the notifier's own, so that it never waits behind requests for a connection.
    pub(crate) fn start(store: Store) -> Notifier {
        let pending = Arc::new(Notify::new());
        tokio::spawn(run(store, pending.clone()));
        Notifier { pending }
    }

    /// Returns at once. Any number of calls become one notification.
    pub(crate) fn wake_workers(&self) {
        self.pending.notify_one();
    }
}

async fn run(store: Store, pending: Arc<Notify>) {
    loop {
        pending.notified().await;
        if let Err(error) = store.notify_work().await {
            // Workers poll; they only find the work a little later.
            tracing::debug!(%error, "workers were not notified");
        }
        tokio::time::sleep(QUIET).await;
    }
}
