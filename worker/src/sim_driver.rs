//! A worker whose every move a test makes: a lane takes one step when it is told to, the watcher looks once when it is told
//! to, and nothing happens by itself. It is the product's own lane, writer, reader and watcher; only their loops are missing.
//!
//! Compiled in only with the feature `by-hand`, which no product build turns on. It opens no way around the fence: a lane
//! needs a lease, and only the store gives those.

use std::sync::Arc;
use std::time::Duration;

use gapless::chain::{ChainConnector, RpcError};
use gapless::config::ChainConfig;
use gapless::domain::WorkerId;
use gapless::events::Silent;
use gapless::notifier::Notifier;
use gapless::signer::Signer;
use gapless::store::{Lease, LeaseTag, Store};

use crate::chains::Chain;
use crate::lane::{Lane, WorkerContext};
use crate::reader::Reader;
use crate::watcher::{LaneEvent, Mailbox, WatchTask};
use crate::writer::Writer;

pub use crate::lane::Next;
pub use crate::writer::Commits;

/// One process, as far as its lanes are concerned.
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
            writer: Writer::start(commits, 1, notifier, worker_id.clone()),
            worker_id,
            reader: Reader::start(reads),
            events: Arc::new(Silent),
            linger: Duration::ZERO,
        });
        Worker { context, chain, task }
    }

    pub fn lane(&self, lease: Lease, signer: Arc<dyn Signer>) -> SimLane {
        let (lane, mailbox) = Lane::new(lease, self.context.clone(), self.chain.clone(), signer);
        SimLane { lane, mailbox }
    }

    /// One look at the head of the chain. Lanes hear of what is new.
    pub async fn look(&mut self) -> Result<(), RpcError> {
        self.task.look().await
    }
}

/// A lane without its loop. Dropping it, in the middle of a step too, is what a crash does to it.
#[derive(Debug)]
pub struct SimLane {
    lane: Lane,
    mailbox: Mailbox,
}

impl SimLane {
    pub async fn step(&mut self) -> Next {
        self.lane.step().await
    }

    /// Ends a lane that is done, or whose lease is lost. What was lost cannot be released; trying to is harmless.
    pub fn end(self) -> Lease {
        self.lane.into_lease()
    }

    /// For renewals.
    pub fn tag(&self) -> LeaseTag {
        self.lane.lease.tag()
    }

    /// What the fleet says when there is new work.
    pub fn announce_work(&self) {
        self.mailbox.post(LaneEvent::Work);
    }

    /// More news than its mailbox holds.
    pub fn flood(&self) {
        for _ in 0..100_000 {
            self.mailbox.post(LaneEvent::Look);
        }
    }

    /// News that wait in its mailbox.
    pub fn waiting_events(&self) -> usize {
        self.mailbox.depth()
    }

    /// What the fleet says when somebody asked for something.
    pub fn announce_requests(&self) {
        self.mailbox.post(LaneEvent::Reload);
    }
}
