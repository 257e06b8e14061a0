//! What this process tells the others of itself, and who else is there.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use gapless::config::Config;
use gapless::domain::WorkerId;
use gapless::store::{Peer, Store, StoreError};
use tokio::time::Instant;

/// News of our lanes goes out this often at the most: the others share by what they hear of us.
const UPDATE_GAP: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(crate) struct Heartbeat {
    config: Arc<Config>,
    store: Store,
    worker_id: WorkerId,
    told: Mutex<Option<Told>>,
}

/// The last heartbeat.
#[derive(Clone, Copy, Debug)]
struct Told {
    at: Instant,
    lanes: usize,
}

impl Heartbeat {
    pub(crate) fn new(config: &Arc<Config>, store: Store, worker_id: WorkerId) -> Heartbeat {
        Heartbeat { config: config.clone(), store, worker_id, told: Mutex::default() }
    }

    fn told(&self) -> Option<Told> {
        *self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// By the clock, and when there is something to tell: a poll for a notification writes nothing.
    pub(crate) async fn beat(&self, serves: &str, lanes: usize) -> Result<(), StoreError> {
        let is_due = self.told().is_none_or(|told| {
            let wait = if told.lanes == lanes { self.config.worker.poll_interval / 2 } else { UPDATE_GAP };
            told.at.elapsed() >= wait
        });
        if !is_due {
            return Ok(());
        }
        let at = Instant::now();
        self.store.heartbeat(&self.worker_id, serves, lanes, self.config.worker.max_leases).await?;
        *self.told.lock().unwrap_or_else(PoisonError::into_inner) = Some(Told { at, lanes });
        Ok(())
    }

    /// Everyone who serves the same, this process included even before its first heartbeat.
    pub(crate) async fn peers(&self, serves: &str, lanes: usize) -> Result<Vec<Peer>, StoreError> {
        let alive_within = self.config.lease.duration.max(self.config.worker.poll_interval * 3);
        let mut peers = self.store.peers(serves, alive_within).await?;
        if peers.iter().all(|peer| peer.worker_id != self.worker_id) {
            let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
            let (lanes, max_leases) = (count(lanes), count(self.config.worker.max_leases));
            peers.push(Peer {
                worker_id: self.worker_id.clone(),
                lanes,
                max_leases,
                lapses_in: alive_within,
            });
        }
        Ok(peers)
    }
}
