//! The lanes of this process: claims submitters, starts lanes, sends them commands, renews and releases their leases.
//!
//! One loop polls the database for work, claims this worker's share and releases surplus leases. A separate loop
//! renews, so that a slow claim never costs a lease. Leases of ended lanes are released in batches.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use gapless_config::Config;
use gapless_domain::{ChainId, SubmitterKey};
use gapless_signer::SignerSet;
use gapless_store::{Lease, LeaseTag, Store, StoreError, Work};
use gapless_telemetry::metrics as m;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use crate::chains::Chain;
use crate::heartbeat::Heartbeat;
use crate::lane::{Ended, Lane, LaneCommand, LaneStatus, WorkerContext};
use crate::lease_balance::{Decision, Facts, decide, fair_share};
use crate::watcher::{LaneEvent, Mailbox};

/// The fleet's handle to a lane.
#[derive(Debug)]
struct LaneHandle {
    tag: LeaseTag,
    mailbox: Mailbox,
    commands: watch::Sender<LaneCommand>,
    paused: bool,
    /// The shared-key setting last posted to the lane.
    shared: Option<bool>,
    /// Had work at the last poll: counts towards the share.
    busy: bool,
    /// Set by the lane.
    status: Arc<LaneStatus>,
}

#[derive(Debug)]
pub(crate) struct Fleet {
    config: Arc<Config>,
    store: Store,
    /// Own connection pool for renewals: nothing else may delay them.
    lease_store: Store,
    context: Arc<WorkerContext>,
    chains: HashMap<ChainId, Arc<Chain>>,
    signers: Arc<SignerSet>,
    lanes: Mutex<HashMap<SubmitterKey, LaneHandle>>,
    ended: mpsc::Sender<Ended>,
    /// Triggers a poll.
    pub(crate) wake: Notify,
    heartbeat: Heartbeat,
}

/// Capacity of the queue of ended lanes, and the batch size for collecting them.
const ENDED: usize = 1_000;
/// A free submitter that stays unclaimed for this many poll intervals may be claimed by any worker, beyond its share:
/// the workers with a free share may be full or lack the key.
const ORPHAN_POLLS: u32 = 3;
/// Shortest pause between two polls, however many notifications arrive.
const MIN_GAP: Duration = Duration::from_millis(20);
/// Shortest pause after a poll as a multiple of its duration: polling takes at most a tenth of the time.
const PAUSE_FOR_POLL: u32 = 9;
/// Time limit for notifying other workers of released leases.
const NOTIFY_TIMEOUT: Duration = Duration::from_millis(300);
/// Up to this many idle lanes read their queue on a work notification. With more, a poll finds out which have work.
const FEW: usize = 32;

/// Times at which nobody sends a notification.
struct NextPoll {
    /// The next lease or heartbeat of another worker expires.
    due_in: Option<Duration>,
    /// The next queued intent can no longer start.
    late_in: Option<Duration>,
}

impl Fleet {
    pub(crate) fn new(
        config: Arc<Config>,
        store: Store,
        lease_store: Store,
        context: Arc<WorkerContext>,
        chains: HashMap<ChainId, Arc<Chain>>,
        signers: Arc<SignerSet>,
    ) -> (Arc<Fleet>, mpsc::Receiver<Ended>) {
        let (ended, endings) = mpsc::channel(ENDED);
        let lanes = Mutex::new(HashMap::new());
        let heartbeat = Heartbeat::new(&config, store.clone(), context.worker_id.clone());
        (
            Arc::new(Fleet {
                config,
                store,
                lease_store,
                context,
                chains,
                signers,
                lanes,
                ended,
                wake: Notify::new(),
                heartbeat,
            }),
            endings,
        )
    }

    fn lanes(&self) -> MutexGuard<'_, HashMap<SubmitterKey, LaneHandle>> {
        self.lanes.lock()
    }

    /// Depth of each internal queue; for mailboxes, that of the fullest.
    pub(crate) fn queue_depths(&self) -> Vec<(&'static str, usize)> {
        let fullest = self.lanes().values().map(|lane| lane.mailbox.depth()).max();
        let ended = self.ended.max_capacity() - self.ended.capacity();
        let mut depths =
            vec![("mailbox", fullest.unwrap_or(0)), ("ended_lanes", ended), self.context.writer.depth()];
        depths.extend(self.context.reader.depths());
        depths
    }

    /// Polls for work until stopped.
    pub(crate) async fn run(self: Arc<Self>, stop: CancellationToken) {
        let mut orphans: HashMap<SubmitterKey, Instant> = HashMap::new();
        let mut failing = false;
        loop {
            let started = Instant::now();
            let mut pause = self.config.worker.poll_interval;
            match self.poll(&mut orphans).await {
                Ok(NextPoll { due_in, late_in }) => {
                    if failing {
                        tracing::info!(worker.id = %self.context.worker_id, "database reachable again");
                        failing = false;
                    }
                    pause = pause.min(due_in.unwrap_or(pause).max(MIN_GAP));
                    // Under load there is always one that is late soon.
                    let gap = (started.elapsed() * PAUSE_FOR_POLL).max(MIN_GAP);
                    pause = pause.min(late_in.unwrap_or(pause).max(gap));
                }
                Err(error) => {
                    if !failing {
                        tracing::warn!(worker.id = %self.context.worker_id, error = %error,
                            "could not poll for work; retrying");
                    }
                    failing = true;
                }
            }
            // Bursts of requests bring many notifications; polling must not compete with the lanes for the database.
            let gap = (started.elapsed() * PAUSE_FOR_POLL).max(MIN_GAP);
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(pause) => {}
                () = async { tokio::join!(self.wake.notified(), tokio::time::sleep(gap)); } => {}
            }
        }
    }

    /// Returns when nobody sends a notification, but there may be something to do.
    async fn poll(
        self: &Arc<Self>,
        orphans: &mut HashMap<SubmitterKey, Instant>,
    ) -> Result<NextPoll, StoreError> {
        let lanes = self.lanes().len();
        metrics::gauge!(m::LANES).set(lanes as f64);
        let max_leases = self.config.worker.max_leases;
        let (serves, settings) = (self.serves(), &self.config.lease);
        let chains: Vec<ChainId> = self.chains.keys().copied().collect();
        // Concurrently: clients wait for the work query.
        let ((), peers, work) = tokio::try_join!(
            self.heartbeat.beat(&serves, &chains, lanes, self.halts()),
            self.heartbeat.peers(&serves, lanes),
            self.store.find_work(settings)
        )?;
        let ours: Vec<&Work> = work.iter().filter(|work| self.can_serve(&work.key)).collect();
        let owned = self.notify_lanes(&ours);
        // If there are slots for all, blocked submitters keep theirs and continue without delay.
        let slots: usize = peers.iter().map(|peer| peer.max_leases as usize).sum();
        let scarce = ours.iter().filter(|work| is_busy(work)).count() > slots.max(max_leases);
        let wants_slot = |work: &&&Work| is_busy(work) && !(scarce && work.asleep);
        let busy = ours.iter().filter(wants_slot).count();
        let share = fair_share(busy, peers.len());
        let facts = Facts {
            busy,
            workers: peers.len(),
            owned,
            peer_below_share: peers.iter().any(|peer| {
                peer.worker_id != self.context.worker_id
                    && (peer.lanes as usize) < share.min(peer.max_leases as usize)
            }),
            max_leases,
        };
        let Decision { claim, shed } = decide(facts);
        let mut free: Vec<&&Work> = ours.iter().filter(wants_slot).filter(|work| work.claimable).collect();
        // Submitters not known to be blocked first.
        free.sort_by_key(|work| work.was_blocked);
        let free = self.without_lane(free.into_iter().map(|work| work.key).collect());
        let wanted = self.choose(&free, claim, lanes, orphans);
        if !wanted.is_empty() {
            self.claim(&wanted).await?;
        }
        self.shed(shed);
        if lanes + wanted.len() >= max_leases {
            self.free_slots(free.len().saturating_sub(wanted.len()));
        }
        let others = peers.iter().filter(|peer| peer.worker_id != self.context.worker_id);
        let lapse = others.map(|peer| peer.lapses_in).min();
        let late_in = work.iter().find_map(|work| work.next_start_by);
        Ok(NextPoll { due_in: self.next_free(&ours).into_iter().chain(lapse).min(), late_in })
    }

    /// Time until the first lease of another worker expires. Live workers renew theirs long before.
    fn next_free(&self, ours: &[&Work]) -> Option<Duration> {
        let lanes = self.lanes();
        let of_others = ours.iter().filter(|work| is_busy(work) && !lanes.contains_key(&work.key));
        of_others.filter_map(|work| work.free_in).min()
    }

    /// Handles a work notification, which does not name the submitter: idle lanes, if there are few, read their
    /// queues, and a poll finds the rest.
    pub(crate) fn work_announced(&self) {
        let lanes = self.lanes();
        let idle = || lanes.values().filter(|lane| lane.status.idle.load(Ordering::Relaxed));
        if idle().take(FEW + 1).count() <= FEW {
            idle().for_each(|lane| lane.mailbox.post(LaneEvent::MaybeWork));
        }
        self.wake.notify_one();
    }

    /// Posts new work and changed settings to the lanes; returns how many busy submitters this process owns.
    fn notify_lanes(&self, ours: &[&Work]) -> usize {
        let mut lanes = self.lanes();
        let mut busy: HashMap<SubmitterKey, &Work> = HashMap::new();
        for work in ours {
            busy.insert(work.key, work);
        }
        for (key, lane) in lanes.iter_mut() {
            let work = busy.get(key);
            lane.busy = work.is_some_and(|work| is_busy(work));
            let Some(work) = work else { continue };
            if work.paused != lane.paused {
                lane.paused = work.paused;
                lane.mailbox.post(LaneEvent::Paused(work.paused));
            }
            if lane.shared != Some(work.shared) {
                lane.shared = Some(work.shared);
                lane.mailbox.post(LaneEvent::Shared(work.shared));
            }
            if work.late {
                lane.mailbox.post(LaneEvent::Late);
            }
            if work.action {
                lane.mailbox.post(LaneEvent::Reload);
            } else if work.queued {
                lane.mailbox.post(LaneEvent::Work);
            }
        }
        lanes.values().filter(|lane| lane.busy).count()
    }

    /// The free submitters to claim now: up to this worker's share, plus those that stayed unclaimed for too long.
    fn choose(
        &self,
        free: &[SubmitterKey],
        room: usize,
        lanes: usize,
        orphans: &mut HashMap<SubmitterKey, Instant>,
    ) -> Vec<SubmitterKey> {
        let limit = self.config.worker.claim_batch.min(self.config.worker.max_leases.saturating_sub(lanes));
        let (own, rest) = free.split_at(room.min(free.len()));
        let now = Instant::now();
        *orphans = rest.iter().map(|key| (*key, orphans.get(key).copied().unwrap_or(now))).collect();
        let orphaned_after = self.config.worker.poll_interval * ORPHAN_POLLS;
        let orphaned =
            rest.iter().filter(|key| orphans.get(key).is_some_and(|since| since.elapsed() > orphaned_after));
        own.iter().chain(orphaned).take(limit).copied().collect()
    }

    fn without_lane(&self, mut keys: Vec<SubmitterKey>) -> Vec<SubmitterKey> {
        let lanes = self.lanes();
        keys.retain(|key| !lanes.contains_key(key));
        keys
    }

    /// Starts lanes for submitters that have no work but need a check.
    pub(crate) async fn claim_for_check(self: &Arc<Self>, keys: Vec<SubmitterKey>) -> Result<(), StoreError> {
        let keys = keys.into_iter().filter(|key| self.can_serve(key)).collect();
        self.claim(&self.without_lane(keys)).await
    }

    /// Whether this process has the chain and the key.
    pub(crate) fn can_serve(&self, key: &SubmitterKey) -> bool {
        self.chains.contains_key(&key.chain_id) && self.signers.get(&key.address).is_some()
    }

    /// Identifies the chains and addresses this process serves; workers with the same value share leases. Changes when
    /// a remote signer adds addresses.
    pub(crate) fn serves(&self) -> String {
        let mut ids: Vec<u64> = self.chains.keys().map(|id| id.0).collect();
        ids.sort_unstable();
        format!("{}:{ids:?}", self.signers.fingerprint())
    }

    /// The chains to which nothing is sent, and why.
    fn halts(&self) -> Vec<(ChainId, String)> {
        let halted = self.chains.iter().filter_map(|(id, chain)| Some((*id, chain.wrong_chain()?)));
        let mut halts: Vec<(ChainId, String)> = halted.collect();
        halts.sort_unstable();
        halts
    }

    /// Claims leases and starts their lanes. Only for submitters without a lane in this process.
    async fn claim(self: &Arc<Self>, wanted: &[SubmitterKey]) -> Result<(), StoreError> {
        let leases = match self.store.claim(&self.context.worker_id, wanted, &self.config.lease).await {
            Ok(leases) => leases,
            Err(error) => {
                metrics::counter!(m::LEASE_ACQUIRE_TOTAL, "result" => "error").increment(1);
                return Err(error);
            }
        };
        let refused = wanted.len().saturating_sub(leases.len());
        metrics::counter!(m::LEASE_ACQUIRE_TOTAL, "result" => "not_owner").increment(refused as u64);
        for lease in leases {
            metrics::counter!(m::LEASE_ACQUIRE_TOTAL, "result" => lease.acquired().as_str()).increment(1);
            self.start_lane(lease);
        }
        Ok(())
    }

    fn start_lane(self: &Arc<Self>, lease: Lease) {
        let key = lease.key();
        // Checked by `can_serve`; chains and signers are never removed.
        let (Some(chain), Some(signer)) = (self.chains.get(&key.chain_id), self.signers.get(&key.address))
        else {
            return;
        };
        tracing::info!(chain.id = key.chain_id.0, submitter = %key.address_text(), worker.id = %self.context.worker_id,
            fencing_token = lease.token().0, how = lease.acquired().as_str(), "lease acquired");
        let tag = lease.tag();
        let (lane, mailbox) = Lane::new(lease, self.context.clone(), chain.clone(), signer);
        let status = lane.status.clone();
        let (commands, command_receiver) = watch::channel(LaneCommand::Run);
        let (ended, lease_tag) = (self.ended.clone(), tag.clone());
        self.lanes().insert(
            key,
            LaneHandle { tag, mailbox, commands, paused: false, shared: None, busy: true, status },
        );
        let span = lane.span();
        let running = tokio::spawn(lane.run(command_receiver).instrument(span));
        tokio::spawn(async move {
            // The lease of a panicked lane is lost with it: it is not renewed and expires.
            let end = running.await.unwrap_or(Ended {
                tag: lease_tag,
                lease: None,
                handed_over: false,
                was_blocked: false,
            });
            // The receiver lives until the process stops. This task holds no lock that `collect` could wait for.
            let _ = ended.send(end).await;
        });
    }

    /// Makes some busy lanes release their lease. Any lane will do: all of its state is in the database.
    fn shed(&self, count: usize) {
        let lanes = self.lanes();
        for (key, lane) in lanes.iter().filter(|(_, lane)| lane.busy).take(count) {
            tracing::info!(chain.id = key.chain_id.0, submitter = %key.address_text(), worker.id = %self.context.worker_id,
                "releasing lease: another worker is below its share");
            lane.commands.send_replace(LaneCommand::HandOver);
        }
    }

    /// Makes blocked lanes release their slots to other submitters; they become claimable again after a pause.
    fn free_slots(&self, wanted: usize) {
        let lanes = self.lanes();
        let blocked = lanes.values().filter(|lane| lane.status.blocked.load(Ordering::Relaxed));
        for lane in blocked.take(wanted) {
            lane.commands.send_replace(LaneCommand::ReleaseBlocked);
        }
    }

    /// Releases the leases of ended lanes in batches.
    pub(crate) async fn collect(self: Arc<Self>, mut endings: mpsc::Receiver<Ended>) {
        let mut batch = Vec::new();
        while endings.recv_many(&mut batch, ENDED).await > 0 {
            let tags: Vec<LeaseTag> = batch.iter().map(|ended| ended.tag.clone()).collect();
            let handed_over = batch.iter().any(|ended| ended.handed_over);
            let (blocked, others): (Vec<Ended>, Vec<Ended>) =
                batch.drain(..).partition(|ended| ended.was_blocked);
            let blocked: Vec<Lease> = blocked.into_iter().filter_map(|ended| ended.lease).collect();
            if !blocked.is_empty()
                && let Err(error) = self.store.release_blocked(blocked).await
            {
                tracing::warn!(error = %error, "could not release leases; they will expire");
            }
            let leases: Vec<Lease> = others.into_iter().filter_map(|ended| ended.lease).collect();
            if !leases.is_empty()
                && let Err(error) = self.store.release(leases).await
            {
                tracing::warn!(error = %error, "could not release leases; they will expire");
            }
            // Without a notification other workers would find the leases only at their next poll. Sent before the
            // lanes are removed, because the process ends after the last one.
            if handed_over {
                let notified = tokio::time::timeout(NOTIFY_TIMEOUT, self.store.notify_work()).await;
                if !matches!(notified, Ok(Ok(()))) {
                    tracing::debug!("could not notify other workers of released leases");
                }
            }
            // The submitter may be claimed again only now: one lane per submitter and process.
            let mut lanes = self.lanes();
            for tag in tags {
                if lanes.get(&tag.key()).is_some_and(|lane| lane.tag.same_lease(&tag)) {
                    lanes.remove(&tag.key());
                }
            }
            self.wake.notify_one();
        }
    }

    /// Renews every lease, and stops the lanes whose lease is lost.
    pub(crate) async fn renew(self: Arc<Self>, stop: CancellationToken) {
        let interval = self.config.lease.renew_interval;
        let mut next = Instant::now() + interval;
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep_until(next) => {}
            }
            let tags: Vec<LeaseTag> = self.lanes().values().map(|lane| lane.tag.clone()).collect();
            next = Instant::now() + interval;
            if tags.is_empty() {
                continue;
            }
            match self.lease_store.renew(&tags, &self.config.lease).await {
                Ok(lost) => {
                    let renewed = tags.len().saturating_sub(lost.len());
                    metrics::counter!(m::LEASE_ACQUIRE_TOTAL, "result" => "renew").increment(renewed as u64);
                    self.stop_lost(&lost);
                }
                Err(error) => {
                    tracing::warn!(worker.id = %self.context.worker_id, leases = tags.len(), error = %error,
                        "lease renewal failed");
                    next = Instant::now() + interval / 5;
                }
            }
        }
    }

    fn stop_lost(&self, lost: &[LeaseTag]) {
        let lanes = self.lanes();
        for tag in lost {
            let key = tag.key();
            if let Some(lane) = lanes.get(&key).filter(|lane| lane.tag.same_lease(tag)) {
                metrics::counter!(m::LEASE_ACQUIRE_TOTAL, "result" => "lost").increment(1);
                tracing::info!(chain.id = key.chain_id.0, submitter = %key.address_text(),
                    worker.id = %self.context.worker_id, fencing_token = tag.token().0, "lease lost");
                lane.commands.send_replace(LaneCommand::Abandon);
            }
        }
    }

    /// Stops every lane and releases all leases, up to the time limit.
    pub(crate) async fn hand_over(&self, limit: Duration) {
        for lane in self.lanes().values() {
            lane.commands.send_replace(LaneCommand::HandOver);
        }
        let deadline = Instant::now() + limit;
        while !self.lanes().is_empty() && Instant::now() < deadline {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}

/// False for a paused submitter with nothing open: it needs no lane.
fn is_busy(work: &Work) -> bool {
    work.queued || work.open || work.action || work.late
}
