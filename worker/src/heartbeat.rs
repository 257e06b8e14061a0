//! This worker's heartbeat row, and the live workers that serve the same submitters.

use std::sync::Arc;
use std::time::Duration;

use gapless_config::Config;
use gapless_domain::{ChainId, WorkerId};
use gapless_store::{Beat, Peer, Store, StoreError};
use parking_lot::Mutex;
use tokio::time::Instant;

/// Shortest time between two heartbeats when the number of lanes changes. Other workers balance leases by that number.
const UPDATE_GAP: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(crate) struct Heartbeat {
    config: Arc<Config>,
    store: Store,
    worker_id: WorkerId,
    last: Mutex<Option<LastBeat>>,
}

/// The last heartbeat that was written.
#[derive(Clone, Debug)]
struct LastBeat {
    at: Instant,
    lanes: usize,
    halts: Vec<(ChainId, String)>,
}

impl Heartbeat {
    pub(crate) fn new(config: &Arc<Config>, store: Store, worker_id: WorkerId) -> Heartbeat {
        Heartbeat { config: config.clone(), store, worker_id, last: Mutex::default() }
    }

    fn last(&self) -> Option<LastBeat> {
        self.last.lock().clone()
    }

    /// How long a worker counts as live after a heartbeat.
    fn alive_for(&self) -> Duration {
        self.config.lease.duration.max(self.config.worker.poll_interval * 3)
    }

    /// Writes the heartbeat at intervals and when the number of lanes or the halted chains changed. A poll caused by a
    /// notification usually writes nothing.
    pub(crate) async fn beat(
        &self,
        serves: &str,
        chains: &[ChainId],
        lanes: usize,
        halts: Vec<(ChainId, String)>,
    ) -> Result<(), StoreError> {
        let last = self.last();
        let same_halts = last.as_ref().is_some_and(|last| last.halts == halts);
        let is_due = last.is_none_or(|last| {
            let unchanged = last.lanes == lanes && same_halts;
            let wait = if unchanged { self.config.worker.poll_interval / 2 } else { UPDATE_GAP };
            last.at.elapsed() >= wait
        });
        if !is_due {
            return Ok(());
        }
        let (at, max_leases) = (Instant::now(), self.config.worker.max_leases);
        let beat = Beat { signer_set: serves, chains, lanes, max_leases, alive_for: self.alive_for() };
        self.store.heartbeat(&self.worker_id, &beat).await?;
        // Also with the first heartbeat: an earlier process with the same worker.id may have left rows.
        if !same_halts || !halts.is_empty() {
            self.store.note_halts(&self.worker_id, &halts).await?;
        }
        *self.last.lock() = Some(LastBeat { at, lanes, halts });
        Ok(())
    }

    /// Live workers with the same chains and keys, including this one even before its first heartbeat.
    pub(crate) async fn peers(&self, serves: &str, lanes: usize) -> Result<Vec<Peer>, StoreError> {
        let alive_within = self.alive_for();
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
