//! What a lane is made of, and what it exchanges with the fleet.

use std::sync::Arc;
use std::time::Duration;

use gapless::domain::{Nonce, TxId, U256, WorkerId};
use gapless::events::EventPublisher;
use gapless::store::{ExternalNonces, Lease, LeaseTag, Move};
use tokio::time::Instant;

use crate::reader::Reader;
use crate::writer::Writer;

/// What all lanes of a process share.
#[derive(Debug)]
pub(crate) struct WorkerContext {
    pub(crate) worker_id: WorkerId,
    pub(crate) writer: Writer,
    pub(crate) reader: Reader,
    pub(crate) events: Arc<dyn EventPublisher>,
    pub(crate) linger: Duration,
}

/// What the fleet tells a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LaneCommand {
    Run,
    /// Stop where you are and give the lease back.
    HandOver,
    /// As `HandOver`: its queue is blocked, and others want the slot.
    GiveWay,
    /// The lease is someone else's. Stop where you are.
    Abandon,
}

/// How a lane ended.
#[derive(Debug)]
pub(crate) struct Ended {
    /// Which lease it had.
    pub(crate) tag: LeaseTag,
    /// To be released; `None` when it is lost.
    pub(crate) lease: Option<Lease>,
    /// There is work left for whoever takes it.
    pub(crate) handed_over: bool,
    /// It could only wait.
    pub(crate) gave_way: bool,
}

/// The sequence as the lane holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sequence {
    pub(crate) start: Nonce,
    pub(crate) next: Nonce,
    pub(crate) protect: Option<String>,
    pub(crate) max_in_flight: u32,
    pub(crate) in_flight: Option<(TxId, Nonce)>,
    /// No intent below it is open; `next` if none is.
    pub(crate) open_from: Nonce,
    /// The account has delegated code (EIP-7702): nodes take one transaction at a time.
    pub(crate) delegated: bool,
}

/// What the lane of a shared key knows of the others.
#[derive(Debug, Default)]
pub(crate) struct Sharing {
    /// Others use the key as well. Everything below is for that case alone.
    pub(crate) enabled: bool,
    /// Nonces that were left to others: the newest that are on disk, and those found since.
    pub(crate) known: Vec<ExternalNonces>,
    /// Found, and not on disk yet.
    pub(crate) found: Vec<ExternalNonces>,
    /// When the chain's counts were last asked for before a nonce was given, and believed.
    pub(crate) counted_at: Option<Instant>,
    /// A count far beyond the sequence, and when it was first seen.
    pub(crate) far: Option<(u64, Instant)>,
    /// A nonce of others that the node knows nothing of, and since when.
    pub(crate) vacant: Option<(Nonce, Instant)>,
    /// It stayed vacant: the next intent takes it, or all that is behind it waits for ever.
    pub(crate) free: Option<Nonce>,
    /// When what is unmined is held against the chain's counts again.
    pub(crate) look_at: Option<Instant>,
    /// The head at the last such look.
    pub(crate) looked_at_head: Option<u64>,
    /// When intents that lost their nonce are judged again; the pause grows.
    pub(crate) judge_at: Option<Instant>,
    pub(crate) judge_pause: Duration,
}

/// A change of an intent that has no nonce, and the trace it belongs to.
#[derive(Clone, Debug)]
pub(crate) struct QueuedMove {
    pub(crate) change: Move,
    pub(crate) trace: Option<String>,
}

/// What the sender can still spend, as last read and counted down since.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Funds {
    pub(crate) left: U256,
    pub(crate) read_at: Instant,
}
