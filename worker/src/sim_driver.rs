//! Drives a worker step by step for deterministic simulation: the test calls each lane step and each head poll. Uses
//! the product's lane, writer, reader and watcher without their loops.
//!
//! Compiled only with the feature `sim-driver`, which no product build enables. It does not bypass the fence: a lane
//! needs a lease, and only the store issues leases.

use std::sync::Arc;
use std::time::Duration;

use gapless_chain::{ChainConnector, RpcError};
use gapless_config::ChainConfig;
use gapless_domain::WorkerId;
use gapless_events::NoEvents;
use gapless_signer::Signer;
use gapless_store::notifier::Notifier;
use gapless_store::{Lease, LeaseTag, Store};

use crate::chains::Chain;
use crate::lane::{Lane, WorkerContext};
use crate::reader::Reader;
use crate::sequencer::{EventsWritten, RecordingHint};
use crate::watcher::{LaneEvent, Mailbox, WatchTask};
use crate::writer::Writer;

pub use crate::lane::Next;
pub use crate::writer::Commits;

/// The parts of a worker process that its lanes use.
#[derive(Debug)]
pub struct Worker {
    context: Arc<WorkerContext>,
    chain: Arc<Chain>,
    task: WatchTask,
}

impl Worker {
    pub fn new(
        worker_id: WorkerId,
        config: &ChainConfig,
        connector: Arc<dyn ChainConnector>,
        commits: Arc<dyn Commits>,
        reads: Store,
        notifier: Notifier,
    ) -> Worker {
        let (chain, task) = Chain::sim_driver(config, connector);
        let context = Arc::new(WorkerContext {
            writer: Writer::start(
                commits,
                1,
                notifier,
                EventsWritten::new(RecordingHint::default(), None),
                worker_id.clone(),
            ),
            worker_id,
            reader: Reader::start(reads),
            events: Arc::new(NoEvents),
            recording: RecordingHint::default(),
            linger: Duration::ZERO,
        });
        Worker { context, chain, task }
    }

    pub fn lane(&self, lease: Lease, signer: Arc<dyn Signer>) -> SimLane {
        let (lane, mailbox) = Lane::new(lease, self.context.clone(), self.chain.clone(), signer);
        SimLane { lane, mailbox }
    }

    /// Polls the head of the chain once and posts the resulting events to the lanes.
    pub async fn poll_head(&mut self) -> Result<(), RpcError> {
        self.task.poll_head().await
    }
}

/// A lane without its loop. Dropping it, even in the middle of a step, simulates a crash.
#[derive(Debug)]
pub struct SimLane {
    lane: Lane,
    mailbox: Mailbox,
}

impl SimLane {
    pub async fn step(&mut self) -> Next {
        self.lane.step().await
    }

    /// Ends a lane that is done or whose lease is lost. Releasing a lost lease has no effect.
    pub fn end(self) -> Lease {
        self.lane.into_lease()
    }

    /// For renewals.
    pub fn tag(&self) -> LeaseTag {
        self.lane.lease.tag()
    }

    /// Posts the event that the fleet posts for new work.
    pub fn announce_work(&self) {
        self.mailbox.post(LaneEvent::Work);
    }

    /// Posts more events than the mailbox holds.
    pub fn flood(&self) {
        for _ in 0..100_000 {
            self.mailbox.post(LaneEvent::MaybeWork);
        }
    }

    /// Number of events in the mailbox.
    pub fn waiting_events(&self) -> usize {
        self.mailbox.depth()
    }

    /// Posts the event that the fleet posts for requests of operators and clients.
    pub fn announce_requests(&self) {
        self.mailbox.post(LaneEvent::Reload);
    }
}
