//! Parameters of a run.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::receiver::Receiver;
use crate::reference_worker::FenceStrategy;
use crate::schedule::PER_HOUR;
use crate::supervisor::{Crew, Version};

/// The other version of an upgrade run.
#[derive(Clone, Debug)]
pub struct Upgrade {
    /// Path of the binary `gapless-stack` of the previous release.
    pub previous: PathBuf,
    /// Its workers. The reference worker, for negative controls.
    pub crew: Crew,
    /// Path of `openapi.yaml` of the previous release.
    pub openapi: PathBuf,
    /// Time limit for a phase to accept and finish a request, after its planned end.
    pub phase_limit: Duration,
}

impl Upgrade {
    pub fn new(previous: PathBuf, openapi: PathBuf) -> Upgrade {
        Upgrade { previous, crew: Crew::Product, openapi, phase_limit: Duration::from_secs(60) }
    }
}

/// What the consumer of events remembers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConsumerCursor {
    /// The position in the log, through the stream of the API.
    Position,
    /// Wrong, a negative control: the id of the outbox.
    OutboxId,
}

/// Parameters of a run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Path of the binary `gapless-stack`.
    pub program: PathBuf,
    pub seed: u64,
    /// Duration of fault injection.
    pub length: Duration,
    /// Faults of each kind per hour.
    pub per_hour: u64,
    pub crew: Crew,
    pub consumer: ConsumerCursor,
    /// Of webhooks.
    pub receiver: Receiver,
    /// Roll from another version, back, and forward again.
    pub(crate) upgrade: Option<Upgrade>,
    pub apis: usize,
    pub workers: usize,
    pub submitters: usize,
    /// Clients per submitter.
    pub clients: usize,
    /// Average pause between two requests of a client.
    pub think: Duration,
    /// Mix in requests that revert, are cancelled, are sped up or have a deadline, and run operations.
    pub varied: bool,
    /// `confirmations.required`. Reorgs are always shallower.
    pub required: u64,
    pub lease: Duration,
    /// `nonce.max_in_flight`.
    pub window: u32,
    /// Configuration keys for every process. They override the fields above.
    pub settings: Vec<(String, Value)>,
    /// Time limit for all transactions to become final after the last fault.
    pub settle: Duration,
    /// Keep history, configuration and logs even if the run passes.
    pub keep: bool,
    /// Cancelling it stops fault injection and ends the run early.
    pub stop_faults: CancellationToken,
    /// Receives progress lines.
    pub on_progress: fn(&str),
}

impl Options {
    /// Whether every program records events. Workers of the reference, and programs of an earlier version, may not.
    pub(crate) fn records_events(&self) -> bool {
        matches!(self.crew, Crew::Product) && self.upgrade.is_none()
    }

    /// The defaults of `make chaos`.
    pub fn new(program: PathBuf, seed: u64, length: Duration) -> Options {
        Options {
            program,
            seed,
            length,
            per_hour: PER_HOUR,
            crew: Crew::Product,
            consumer: ConsumerCursor::Position,
            receiver: Receiver::Reliable,
            upgrade: None,
            apis: 2,
            workers: 3,
            submitters: 8,
            clients: 2,
            think: Duration::from_millis(800),
            varied: true,
            required: 6,
            lease: Duration::from_secs(2),
            window: 4,
            settings: Vec::new(),
            settle: Duration::from_secs(180),
            keep: false,
            stop_faults: CancellationToken::new(),
            on_progress: |_| {},
        }
    }

    /// Makes this an upgrade run. In a control the previous version is the reference worker with the correct fence, and
    /// this version the one with the strategy of the control.
    pub fn upgrade(&mut self, mut upgrade: Upgrade) {
        if let Crew::Reference(_) = self.crew {
            upgrade.crew = Crew::Reference(FenceStrategy::LockThenWrite);
            // Faulty workers may finish nothing any more; the checker finds more than that.
            upgrade.phase_limit = Duration::from_secs(2);
            self.length = self.length.max(Duration::from_secs(20));
        }
        self.upgrade = Some(upgrade);
    }

    /// This version.
    pub(crate) fn present(&self) -> Version {
        Version { program: self.program.clone(), crew: self.crew }
    }

    /// The version that runs first.
    pub(crate) fn first(&self) -> Version {
        match &self.upgrade {
            Some(upgrade) => Version { program: upgrade.previous.clone(), crew: upgrade.crew },
            None => self.present(),
        }
    }

    /// Index of the submitter whose key is shared with a second sender, if any.
    pub(crate) fn shared(&self) -> Option<usize> {
        self.has_roles().then(|| self.submitters - 2)
    }

    /// Index of the submitter with a policy, if any.
    pub(crate) fn with_policy(&self) -> Option<usize> {
        self.has_roles().then(|| self.submitters - 1)
    }

    fn has_roles(&self) -> bool {
        self.crew == Crew::Product && self.varied && self.submitters >= 4
    }

    /// A short run with the reference worker. Faulty strategies leave requests that never become final, so the settle
    /// limit is short for them.
    pub fn control(program: PathBuf, seed: u64, strategy: FenceStrategy) -> Options {
        let settle = Duration::from_secs(if strategy == FenceStrategy::LockThenWrite { 120 } else { 5 });
        Options {
            crew: Crew::Reference(strategy),
            submitters: 4,
            clients: 1,
            think: Duration::from_millis(200),
            varied: false,
            required: 3,
            lease: Duration::from_secs(1),
            window: 1,
            settle,
            ..Options::new(program, seed, Duration::from_secs(12))
        }
    }
}
