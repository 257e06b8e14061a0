//! One worker process of a history: the product's worker by hand, a gate around it, and the step it is in.

use std::pin::Pin;
use std::sync::{Arc, Mutex};

use ethers_signers::LocalWallet;
use gapless::config::ChainConfig;
use gapless::domain::WorkerId;
use gapless::notifier::Notifier;
use gapless::store::{Lease, LeaseTag, Store};
use gapless_worker::sim_driver::{Next, SimLane, Worker};

use super::gate::{Gate, Hitch};
use super::ledger::Ledger;
use super::log::Log;
use super::ports::{Database, Key, Node};

type Stepping = Pin<Box<dyn Future<Output = (SimLane, Next)>>>;

/// What every process of a history is made of.
pub(super) struct Parts {
    pub(super) config: ChainConfig,
    pub(super) ledger: Arc<Mutex<Ledger>>,
    pub(super) wallet: LocalWallet,
    pub(super) store: Store,
    pub(super) notifier: Notifier,
    pub(super) log: Log,
    /// Broken on purpose: see `Key::leaks_to`.
    pub(super) leaks: bool,
}

/// How a step ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stepped {
    To(Next),
    /// It stands at a call, and goes on when it is told to.
    Stopped,
    /// It has no lane.
    Idle,
}

pub(super) struct Process {
    name: char,
    gate: Arc<Gate>,
    worker: Worker,
    lane: Option<SimLane>,
    stepping: Option<Stepping>,
    /// The last step ended in waiting: nothing comes of another before something happens.
    pub(super) waits: bool,
    tag: Option<LeaseTag>,
}

impl Process {
    pub(super) fn start(name: char, parts: &Parts) -> Process {
        let gate = Gate::new(name, parts.log.clone());
        let node = Node { chain_id: parts.config.id, ledger: parts.ledger.clone(), gate: gate.clone() };
        let database = Database { store: parts.store.clone(), gate: gate.clone() };
        let worker = Worker::new(
            WorkerId(name.to_string()),
            &parts.config,
            Arc::new(node),
            Arc::new(database),
            parts.store.clone(),
            parts.notifier.clone(),
        );
        Process { name, gate, worker, lane: None, stepping: None, waits: false, tag: None }
    }

    pub(super) fn name(&self) -> char {
        self.name
    }

    pub(super) fn own(&mut self, lease: Lease, parts: &Parts) {
        let leaks_to = parts.leaks.then(|| parts.ledger.clone());
        let key = Key { wallet: parts.wallet.clone(), gate: self.gate.clone(), leaks_to };
        self.tag = Some(lease.tag());
        self.lane = Some(self.worker.lane(lease, Arc::new(key)));
        self.waits = false;
    }

    /// It has a lane: it owns the submitter, or believes so.
    pub(super) fn has_lane(&self) -> bool {
        self.lane.is_some() || self.stepping.is_some()
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.stepping.is_some()
    }

    /// What a renewal needs.
    pub(super) fn tag(&self) -> Option<LeaseTag> {
        self.tag.clone().filter(|_| self.has_lane())
    }

    /// One step of the lane, with a hitch on the way; or on, from where it stands. A lane that is over hands its lease back.
    pub(super) async fn step(&mut self, hitch: Option<Hitch>) -> (Stepped, Option<Lease>) {
        self.gate.set(hitch);
        let mut stepping = match (self.stepping.take(), self.lane.take()) {
            (Some(stepping), _) => {
                self.gate.go_on();
                stepping
            }
            (None, Some(mut lane)) => Box::pin(async move {
                let next = lane.step().await;
                (lane, next)
            }),
            (None, None) => return (Stepped::Idle, None),
        };
        let ended = tokio::select! {
            biased;
            ended = &mut stepping => ended,
            () = self.gate.stopped() => {
                self.stepping = Some(stepping);
                return (Stepped::Stopped, None);
            }
        };
        // What did not come to pass in this step comes to pass in none.
        self.gate.set(None);
        let (lane, next) = ended;
        self.waits = matches!(next, Next::Wait(_));
        match next {
            Next::Done => return (Stepped::To(next), Some(lane.end())),
            Next::Lost => drop(lane.end()),
            _ => self.lane = Some(lane),
        }
        (Stepped::To(next), None)
    }

    /// The fleet sends the lane away: the lease is somebody else's. One that stands still takes its process with it, because
    /// whoever carried its call out stands still as well.
    pub(super) fn dismiss(&mut self, parts: &Parts) {
        if self.is_stopped() {
            *self = Process::start(self.name, parts);
        } else if let Some(lane) = self.lane.take() {
            drop(lane.end());
        }
    }

    /// The watcher looks once. It has the same node, and trouble of its own.
    pub(super) async fn look(&mut self, fails: bool) -> bool {
        if !self.is_stopped() {
            self.gate.set(fails.then_some(Hitch { at: 0, after: false, stop: false }));
        }
        let looked = self.worker.look().await.is_ok();
        if !self.is_stopped() {
            self.gate.set(None);
        }
        self.waits = false;
        looked
    }

    pub(super) fn announce_work(&mut self) {
        if let Some(lane) = &self.lane {
            lane.announce_work();
            self.waits = false;
        }
    }

    /// More news than fits. Answers how many wait.
    pub(super) fn flood(&mut self) -> usize {
        self.waits = false;
        self.lane.as_ref().map_or(0, |lane| {
            lane.flood();
            lane.waiting_events()
        })
    }

    pub(super) fn announce_requests(&mut self) {
        if let Some(lane) = &self.lane {
            lane.announce_requests();
            self.waits = false;
        }
    }
}
