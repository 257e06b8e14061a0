//! Types of a lane: its shared context, its commands and result, and its state.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use gapless_domain::{Policy, WorkerId};
use gapless_events::EventPublisher;
use gapless_signer::Signer;
use gapless_store::{Lease, LeaseTag};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::reader::Reader;
use crate::sequencer::RecordingHint;
use crate::watcher::{Inbox, Mailbox};
use crate::writer::Writer;

/// What all lanes of a process share.
#[derive(Debug)]
pub(crate) struct WorkerContext {
    pub(crate) worker_id: WorkerId,
    pub(crate) writer: Writer,
    pub(crate) reader: Reader,
    pub(crate) events: Arc<dyn EventPublisher>,
    pub(crate) recording: RecordingHint,
    pub(crate) linger: Duration,
}

/// Commands of the fleet to a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LaneCommand {
    Run,
    /// Stop and release the lease.
    HandOver,
    /// As `HandOver`: the lane's queue is blocked, and other submitters need the slot.
    ReleaseBlocked,
    /// The lease is lost: stop without releasing it.
    Abandon,
}

/// How a lane ended.
#[derive(Debug)]
pub(crate) struct Ended {
    /// The lease it had.
    pub(crate) tag: LeaseTag,
    /// To be released; `None` when it is lost.
    pub(crate) lease: Option<Lease>,
    /// The submitter may have work left for the next owner.
    pub(crate) handed_over: bool,
    /// Ended by `ReleaseBlocked`.
    pub(crate) was_blocked: bool,
}

/// What signs for the submitter.
#[derive(Debug)]
pub(crate) struct Signing {
    /// Wrapped in a `PolicySigner` if the submitter has a policy.
    pub(crate) signer: Arc<dyn Signer>,
    /// `None`: no restrictions.
    pub(crate) policy: Option<Arc<Policy>>,
}

/// How a lane learns of changes.
#[derive(Debug)]
pub(crate) struct Signals {
    /// Given to the watcher.
    pub(crate) mailbox: Mailbox,
    pub(super) inbox: Inbox,
    /// Changes when a node recovered.
    pub(super) recovered: watch::Receiver<u64>,
}

/// What the fleet sees of a running lane.
#[derive(Debug, Default)]
pub(crate) struct LaneStatus {
    /// The lane has nothing to do. The fleet only uses it to post work notifications early.
    pub(crate) idle: AtomicBool,
    /// The head of its queue is blocked, and no nonce is open.
    pub(crate) blocked: AtomicBool,
}

/// State of the lane's loop.
#[derive(Debug, Default)]
pub(super) struct Progress {
    /// An intent changed state during the step: another step may advance it further.
    pub(super) moved: bool,
    /// The rows are read again before the next step.
    pub(super) reload: bool,
    /// Queued intents may be late: looked for before anything that needs a node.
    pub(super) late: bool,
    /// Events were dropped: after the reload, the blocks of all receipts are checked.
    pub(super) missed_events: bool,
    /// The outcome of the last commit is unknown.
    pub(super) commit_unknown: bool,
    /// Pause before the rows are reloaded after an error; grows while errors last.
    pub(super) retry_pause: Duration,
    pub(super) idle_since: Option<Instant>,
    /// Since when the chain is halted.
    pub(super) halted_since: Option<Instant>,
}
