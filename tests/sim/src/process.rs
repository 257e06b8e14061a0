//! One worker process of a history: the product's worker, driven step by step, and its call boundary.

use std::pin::Pin;
use std::sync::{Arc, Mutex};

use ethers_signers::LocalWallet;
use gapless_config::ChainConfig;
use gapless_domain::WorkerId;
use gapless_store::notifier::Notifier;
use gapless_store::{Lease, LeaseTag, Store};
use gapless_worker::sim_driver::{Next, SimLane, Worker};

use super::call_boundary::{CallBoundary, CallFault};
use super::ledger::Ledger;
use super::log::Log;
use super::ports::{Database, Key, Node};

type Stepping = Pin<Box<dyn Future<Output = (SimLane, Next)>>>;

/// Dependencies shared by the processes of a history.
pub(crate) struct Parts {
    pub(crate) config: ChainConfig,
    pub(crate) ledger: Arc<Mutex<Ledger>>,
    pub(crate) wallet: LocalWallet,
    pub(crate) store: Store,
    pub(crate) notifier: Notifier,
    pub(crate) log: Log,
    /// Intentional defect: see `Key::leaks_to`.
    pub(crate) leaks: bool,
}

/// How a step ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stepped {
    To(Next),
    /// It is stopped at a call until the next step.
    Stopped,
    /// It has no lane.
    Idle,
}

pub(crate) struct Process {
    name: char,
    boundary: Arc<CallBoundary>,
    worker: Worker,
    lane: Option<SimLane>,
    stepping: Option<Stepping>,
    /// The last step ended in waiting; another step has no effect before an event.
    pub(crate) waits: bool,
    tag: Option<LeaseTag>,
}

impl Process {
    pub(crate) fn start(name: char, parts: &Parts) -> Process {
        let boundary = CallBoundary::new(name, parts.log.clone());
        let node =
            Node { chain_id: parts.config.id, ledger: parts.ledger.clone(), boundary: boundary.clone() };
        let database = Database { store: parts.store.clone(), boundary: boundary.clone() };
        let worker = Worker::new(
            WorkerId(name.to_string()),
            &parts.config,
            Arc::new(node),
            Arc::new(database),
            parts.store.clone(),
            parts.notifier.clone(),
        );
        Process { name, boundary, worker, lane: None, stepping: None, waits: false, tag: None }
    }

    pub(crate) fn name(&self) -> char {
        self.name
    }

    pub(crate) fn add_lane(&mut self, lease: Lease, parts: &Parts) {
        let leaks_to = parts.leaks.then(|| parts.ledger.clone());
        let key = Key { wallet: parts.wallet.clone(), boundary: self.boundary.clone(), leaks_to };
        self.tag = Some(lease.tag());
        self.lane = Some(self.worker.lane(lease, Arc::new(key)));
        self.waits = false;
    }

    /// Whether it has a lane, i.e. owns the submitter or assumes so.
    pub(crate) fn has_lane(&self) -> bool {
        self.lane.is_some() || self.stepping.is_some()
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.stepping.is_some()
    }

    /// The lease tag, for a renewal.
    pub(crate) fn tag(&self) -> Option<LeaseTag> {
        self.tag.clone().filter(|_| self.has_lane())
    }

    /// One step of the lane, optionally with a fault; or the rest of a stopped step. A lane that has ended returns
    /// its lease.
    pub(crate) async fn step(&mut self, fault: Option<CallFault>) -> (Stepped, Option<Lease>) {
        self.boundary.set(fault);
        let mut stepping = match (self.stepping.take(), self.lane.take()) {
            (Some(stepping), _) => {
                self.boundary.go_on();
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
            () = self.boundary.stopped() => {
                self.stepping = Some(stepping);
                return (Stepped::Stopped, None);
            }
        };
        // A fault that did not occur in this step is discarded.
        self.boundary.set(None);
        let (lane, next) = ended;
        self.waits = matches!(next, Next::Wait(_));
        match next {
            Next::Done => return (Stepped::To(next), Some(lane.end())),
            Next::Lost => drop(lane.end()),
            _ => self.lane = Some(lane),
        }
        (Stepped::To(next), None)
    }

    /// Ends the lane after its lease was lost. If it is stopped at a call, the whole process is restarted, because
    /// the call cannot complete.
    pub(crate) fn drop_lane(&mut self, parts: &Parts) {
        if self.is_stopped() {
            *self = Process::start(self.name, parts);
        } else if let Some(lane) = self.lane.take() {
            drop(lane.end());
        }
    }

    /// One poll of the watcher, on the same node, with its own fault.
    pub(crate) async fn poll_head(&mut self, fails: bool) -> bool {
        if !self.is_stopped() {
            self.boundary.set(fails.then_some(CallFault { at: 0, after: false, stop: false }));
        }
        let polled = self.worker.poll_head().await.is_ok();
        if !self.is_stopped() {
            self.boundary.set(None);
        }
        self.waits = false;
        polled
    }

    pub(crate) fn announce_work(&mut self) {
        if let Some(lane) = &self.lane {
            lane.announce_work();
            self.waits = false;
        }
    }

    /// Sends more events than fit into the mailbox. Returns how many are waiting.
    pub(crate) fn flood(&mut self) -> usize {
        self.waits = false;
        self.lane.as_ref().map_or(0, |lane| {
            lane.flood();
            lane.waiting_events()
        })
    }

    pub(crate) fn announce_requests(&mut self) {
        if let Some(lane) = &self.lane {
            lane.announce_requests();
            self.waits = false;
        }
    }
}
