//! The fleet's view of one process: which submitters it owns, and the orders its lanes get.
//!
//! One loop asks the database for work, claims its share and hands surplus over; another renews, so that a slow
//! claim never costs a lease. Lanes that end give their lease back here.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use gapless::config::Config;
use gapless::domain::{ChainId, SubmitterKey};
use gapless::observe::metrics as m;
use gapless::signer::SignerSet;
use gapless::store::{Lease, LeaseTag, Store, StoreError, Work};
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::chains::Chain;
use crate::heartbeat::Heartbeat;
use crate::lane::{Ended, Lane, LaneCommand, WorkerContext};
use crate::lease_balance::{Decision, Facts, decide, fair_share};
use crate::watcher::{LaneEvent, Mailbox};

/// A lane from the outside.
#[derive(Debug)]
struct LaneHandle {
    tag: LeaseTag,
    mailbox: Mailbox,
    orders: watch::Sender<LaneCommand>,
    paused: bool,
    /// What its lane was last told of it.
    shared: Option<bool>,
    /// Had work at the last poll: counts towards the share.
    busy: bool,
    /// Has nothing to do, by its own word.
    idle: Arc<AtomicBool>,
    /// Can only wait, by its own word: the head of its queue is blocked.
    only_waits: Arc<AtomicBool>,
}

#[derive(Debug)]
pub(crate) struct Fleet {
    config: Arc<Config>,
    store: Store,
    /// Connections for renewals alone: nothing may delay them.
    lease_store: Store,
    context: Arc<WorkerContext>,
    chains: HashMap<ChainId, Arc<Chain>>,
    signers: Arc<SignerSet>,
    lanes: Mutex<HashMap<SubmitterKey, LaneHandle>>,
    ended: mpsc::Sender<Ended>,
    /// Something may be there to do: poll now.
    pub(crate) wake: Notify,
    heartbeat: Heartbeat,
}

/// Ended lanes that may wait to be collected, and are collected at once.
const ENDED: usize = 1_000;
/// A free submitter that nobody claims for this many poll intervals is taken by anyone: whoever it falls to may be
/// full, or lack the key.
const ORPHAN_POLLS: u32 = 3;
/// Between two polls, however many notifications come.
const MIN_GAP: Duration = Duration::from_millis(20);
/// The pause after a poll that took long, as a multiple of that: looking for work takes a tenth of the time at the most.
const PAUSE_FOR_POLL: u32 = 9;
/// A word to the others is not worth waiting longer.
const TELLING: Duration = Duration::from_millis(300);
/// So many idle lanes look for new work by themselves when there is word of some; of more it takes a poll to tell which.
const FEW: usize = 32;

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
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues inside this process and how much waits in each; of all mailboxes, in the fullest.
    pub(crate) fn queue_depths(&self) -> Vec<(&'static str, usize)> {
        let fullest = self.lanes().values().map(|lane| lane.mailbox.depth()).max();
        let ended = self.ended.max_capacity() - self.ended.capacity();
        let mut depths =
            vec![("mailbox", fullest.unwrap_or(0)), ("ended_lanes", ended), self.context.writer.depth()];
        depths.extend(self.context.reader.depths());
        depths
    }

    /// Asks for work until told to stop.
    pub(crate) async fn run(self: Arc<Self>, stop: CancellationToken) {
        let mut orphans: HashMap<SubmitterKey, Instant> = HashMap::new();
        let mut failing = false;
        loop {
            let started = Instant::now();
            let mut pause = self.config.worker.poll_interval;
            match self.poll(&mut orphans).await {
                Ok(due_in) => {
                    if failing {
                        tracing::info!(worker.id = %self.context.worker_id, "the database answers again");
                        failing = false;
                    }
                    pause = pause.min(due_in.unwrap_or(pause).max(MIN_GAP));
                }
                Err(error) => {
                    if !failing {
                        tracing::warn!(worker.id = %self.context.worker_id, error = %error, "cannot ask for work; trying on");
                    }
                    failing = true;
                }
            }
            // Notifications come with every burst of requests; polls must not take the database from those who work.
            let gap = (started.elapsed() * PAUSE_FOR_POLL).max(MIN_GAP);
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(pause) => {}
                () = async { tokio::join!(self.wake.notified(), tokio::time::sleep(gap)); } => {}
            }
        }
    }

    /// Answers when there is something to do that nobody will tell of: whoever died does not say so.
    async fn poll(
        self: &Arc<Self>,
        orphans: &mut HashMap<SubmitterKey, Instant>,
    ) -> Result<Option<Duration>, StoreError> {
        let lanes = self.lanes().len();
        metrics::gauge!(m::LANES).set(lanes as f64);
        let max_leases = self.config.worker.max_leases;
        let (serves, settings) = (self.serves(), &self.config.lease);
        // At once: what a client waits for is the work.
        let ((), peers, work) = tokio::try_join!(
            self.heartbeat.beat(&serves, lanes),
            self.heartbeat.peers(&serves, lanes),
            self.store.find_work(settings)
        )?;
        let ours: Vec<&Work> = work.iter().filter(|work| self.can_serve(&work.key)).collect();
        let held = self.tell_lanes(&ours);
        // Where there are slots for all, those that can only wait keep theirs, and go on without a delay.
        let slots: usize = peers.iter().map(|peer| peer.max_leases as usize).sum();
        let scarce = ours.iter().filter(|work| is_busy(work)).count() > slots.max(max_leases);
        let wants_slot = |work: &&&Work| is_busy(work) && !(scarce && work.asleep);
        let busy = ours.iter().filter(wants_slot).count();
        let share = fair_share(busy, peers.len());
        let facts = Facts {
            busy,
            workers: peers.len(),
            held,
            someone_has_room: peers.iter().any(|peer| {
                peer.worker_id != self.context.worker_id
                    && (peer.lanes as usize) < share.min(peer.max_leases as usize)
            }),
            max_leases,
        };
        let Decision { claim, shed } = decide(facts);
        let mut free: Vec<&&Work> = ours.iter().filter(wants_slot).filter(|work| work.claimable).collect();
        // First those that were not known to be blocked.
        free.sort_by_key(|work| work.was_blocked);
        let free = self.without_lane(free.into_iter().map(|work| work.key).collect());
        let wanted = self.choose(&free, claim, lanes, orphans);
        if !wanted.is_empty() {
            self.claim(&wanted).await?;
        }
        self.shed(shed);
        if lanes + wanted.len() >= max_leases {
            self.make_room(free.len().saturating_sub(wanted.len()));
        }
        let others = peers.iter().filter(|peer| peer.worker_id != self.context.worker_id);
        let lapse = others.map(|peer| peer.lapses_in).min();
        Ok(self.next_free(&ours).into_iter().chain(lapse).min())
    }

    /// When the first lease of another worker runs out. Those who live renew theirs long before, as they are heard of.
    fn next_free(&self, ours: &[&Work]) -> Option<Duration> {
        let lanes = self.lanes();
        let of_others = ours.iter().filter(|work| is_busy(work) && !lanes.contains_key(&work.key));
        of_others.filter_map(|work| work.free_in).min()
    }

    /// There is word of new work, and nobody said whose. Lanes that have nothing to do look for themselves, if they are
    /// few; a poll finds the rest.
    pub(crate) fn work_announced(&self) {
        let lanes = self.lanes();
        let idle = || lanes.values().filter(|lane| lane.idle.load(Ordering::Relaxed));
        if idle().take(FEW + 1).count() <= FEW {
            idle().for_each(|lane| lane.mailbox.post(LaneEvent::Look));
        }
        self.wake.notify_one();
    }

    /// Wakes the lanes that have something new; returns how many busy submitters this process owns.
    fn tell_lanes(&self, ours: &[&Work]) -> usize {
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
            if work.action {
                lane.mailbox.post(LaneEvent::Reload);
            } else if work.queued {
                lane.mailbox.post(LaneEvent::Work);
            }
        }
        lanes.values().filter(|lane| lane.busy).count()
    }

    /// The free submitters to claim now: as many as our share has room for, plus those that nobody took for a while.
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
        let patience = self.config.worker.poll_interval * ORPHAN_POLLS;
        let orphaned =
            rest.iter().filter(|key| orphans.get(key).is_some_and(|since| since.elapsed() > patience));
        own.iter().chain(orphaned).take(limit).copied().collect()
    }

    fn without_lane(&self, mut keys: Vec<SubmitterKey>) -> Vec<SubmitterKey> {
        let lanes = self.lanes();
        keys.retain(|key| !lanes.contains_key(key));
        keys
    }

    /// Starts lanes for submitters that have no work but deserve a look.
    pub(crate) async fn look_into(self: &Arc<Self>, keys: Vec<SubmitterKey>) -> Result<(), StoreError> {
        let keys = keys.into_iter().filter(|key| self.can_serve(key)).collect();
        self.claim(&self.without_lane(keys)).await
    }

    /// Whether this process has the chain and the key.
    pub(crate) fn can_serve(&self, key: &SubmitterKey) -> bool {
        self.chains.contains_key(&key.chain_id) && self.signers.get(&key.address).is_some()
    }

    /// Which chains and addresses this process serves; workers with the same share alike. Grows when a remote signer
    /// answers.
    pub(crate) fn serves(&self) -> String {
        let mut ids: Vec<u64> = self.chains.keys().map(|id| id.0).collect();
        ids.sort_unstable();
        format!("{}:{ids:?}", self.signers.fingerprint())
    }

    /// Takes leases and starts their lanes. Only for submitters that have no lane here.
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
        // Both were checked by `can_serve`; neither ever goes away.
        let (Some(chain), Some(signer)) = (self.chains.get(&key.chain_id), self.signers.get(&key.address))
        else {
            return;
        };
        tracing::info!(chain.id = key.chain_id.0, submitter = %key.address_text(), worker.id = %self.context.worker_id,
            fencing_token = lease.token().0, how = lease.acquired().as_str(), "lease acquired");
        let tag = lease.tag();
        let (lane, mailbox) = Lane::new(lease, self.context.clone(), chain.clone(), signer);
        let (idle, only_waits) = (lane.idle.clone(), lane.only_waits.clone());
        let (orders, obeyed) = watch::channel(LaneCommand::Run);
        let (ended, lease_tag) = (self.ended.clone(), tag.clone());
        self.lanes().insert(
            key,
            LaneHandle { tag, mailbox, orders, paused: false, shared: None, busy: true, idle, only_waits },
        );
        let running = tokio::spawn(lane.run(obeyed));
        tokio::spawn(async move {
            // A lane that panicked took its lease with it: it is renewed no longer and expires.
            let end = running.await.unwrap_or(Ended {
                tag: lease_tag,
                lease: None,
                handed_over: false,
                gave_way: false,
            });
            // The receiver lives until the process stops. This task holds nothing that whoever collects could wait for.
            let _ = ended.send(end).await;
        });
    }

    /// Asks some busy lanes to hand over. Any will do: a lane keeps nothing that its rows do not say.
    fn shed(&self, count: usize) {
        let lanes = self.lanes();
        for (key, lane) in lanes.iter().filter(|(_, lane)| lane.busy).take(count) {
            tracing::info!(chain.id = key.chain_id.0, submitter = %key.address_text(), worker.id = %self.context.worker_id,
                "handing over: another worker has room");
            lane.orders.send_replace(LaneCommand::HandOver);
        }
    }

    /// Others want slots: lanes that can only wait give theirs up, and are looked at again after a pause.
    fn make_room(&self, wanted: usize) {
        let lanes = self.lanes();
        let waiting = lanes.values().filter(|lane| lane.only_waits.load(Ordering::Relaxed));
        for lane in waiting.take(wanted) {
            lane.orders.send_replace(LaneCommand::GiveWay);
        }
    }

    /// Collects leases of ended lanes and gives them back, many at a time.
    pub(crate) async fn collect(self: Arc<Self>, mut endings: mpsc::Receiver<Ended>) {
        let mut batch = Vec::new();
        while endings.recv_many(&mut batch, ENDED).await > 0 {
            let tags: Vec<LeaseTag> = batch.iter().map(|ended| ended.tag.clone()).collect();
            let handed_over = batch.iter().any(|ended| ended.handed_over);
            let (gave_way, rest): (Vec<Ended>, Vec<Ended>) =
                batch.drain(..).partition(|ended| ended.gave_way);
            let blocked: Vec<Lease> = gave_way.into_iter().filter_map(|ended| ended.lease).collect();
            if !blocked.is_empty()
                && let Err(error) = self.store.release_blocked(blocked).await
            {
                tracing::warn!(error = %error, "could not release leases; they will expire");
            }
            let leases: Vec<Lease> = rest.into_iter().filter_map(|ended| ended.lease).collect();
            if !leases.is_empty()
                && let Err(error) = self.store.release(leases).await
            {
                tracing::warn!(error = %error, "could not release leases; they will expire");
            }
            // The others would find them at their next poll; that is a long time for whoever waits. Before the lanes are
            // forgotten: after the last of them the process ends.
            if handed_over {
                let told = tokio::time::timeout(TELLING, self.store.notify_work()).await;
                if !matches!(told, Ok(Ok(()))) {
                    tracing::debug!("the other workers were not told of released leases");
                }
            }
            // Only now may the submitter be claimed again: one lane per submitter and process.
            let mut lanes = self.lanes();
            for tag in tags {
                if lanes.get(&tag.key()).is_some_and(|lane| lane.tag.same_lease(&tag)) {
                    lanes.remove(&tag.key());
                }
            }
            self.wake.notify_one();
        }
    }

    /// Prolongs every lease, and dismisses the lanes whose lease is gone.
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
                    self.dismiss(&lost);
                }
                Err(error) => {
                    tracing::warn!(worker.id = %self.context.worker_id, leases = tags.len(), error = %error, "renewal failed");
                    next = Instant::now() + interval / 5;
                }
            }
        }
    }

    fn dismiss(&self, lost: &[LeaseTag]) {
        let lanes = self.lanes();
        for tag in lost {
            let key = tag.key();
            if let Some(lane) = lanes.get(&key).filter(|lane| lane.tag.same_lease(tag)) {
                metrics::counter!(m::LEASE_ACQUIRE_TOTAL, "result" => "lost").increment(1);
                tracing::info!(chain.id = key.chain_id.0, submitter = %key.address_text(),
                    worker.id = %self.context.worker_id, fencing_token = tag.token().0, "lease lost");
                lane.orders.send_replace(LaneCommand::Abandon);
            }
        }
    }

    /// Stops every lane where it is and gives all leases back.
    pub(crate) async fn hand_over(&self, limit: Duration) {
        for lane in self.lanes().values() {
            lane.orders.send_replace(LaneCommand::HandOver);
        }
        let give_up = Instant::now() + limit;
        while !self.lanes().is_empty() && Instant::now() < give_up {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}

/// A paused submitter with nothing open needs nobody.
fn is_busy(work: &Work) -> bool {
    work.queued || work.open || work.action
}
