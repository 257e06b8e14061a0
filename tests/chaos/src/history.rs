//! The totally ordered history of requests, responses and faults. In memory for the checker, on disk for people.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::time::Instant;

use parking_lot::{Mutex, MutexGuard};
use serde::Serialize;

use super::schedule::{Kind, Operation};
use super::supervisor::Signal;
use super::upgrade::phases::Phase;

/// Properties of a request that can justify a failed or cancelled end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RequestTraits {
    /// It calls a contract that always reverts.
    pub reverting: bool,
    /// It has a `deadline`.
    pub deadline: bool,
    /// The policy of its submitter forbids it.
    pub forbidden: bool,
}

/// What the reserving client does with its nonce.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ReservationPlan {
    /// Returns a transaction.
    Answer,
    /// Returns an error.
    Refuse,
    /// Does not return before the reservation expires.
    Hang,
    /// Is dropped while it waits for the nonce or has it reserved.
    Abandon,
}

/// Of a roll.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    /// To this version.
    Forward,
    /// To the previous version.
    Back,
}

impl Direction {
    pub fn name(self) -> &'static str {
        match self {
            Direction::Forward => "forward",
            Direction::Back => "back",
        }
    }
}

/// One event. `request` is the `requestId`, `op` identifies one try to submit it.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// A request is about to be sent.
    Submit { op: u64, request: String, submitter: String, api: usize, traits: RequestTraits },
    /// The response. 202 and 200 mean that the request was accepted.
    Answer { op: u64, request: String, status: u16, tx_id: Option<String>, code: Option<String> },
    /// No response: whether the request was accepted is unknown.
    NoAnswer { op: u64, request: String, error: String },
    /// The same `requestId` was sent with another payload; the response.
    ReusedId { request: String, status: u16 },
    /// A client is about to request cancellation.
    CancelRequested { request: String },
    /// The response to a cancellation.
    Cancel { request: String, status: u16 },
    /// The response to a speed-up.
    SpeedUp { request: String, status: u16 },
    /// A client read this state from the API.
    StateSeen { request: String, tx_id: String, state: String },
    /// The API did not find an accepted request, by its `txId` or its `requestId`.
    NotFound { request: String },
    /// The key of a submitter is used outside of Gapless. Recorded before the transaction is sent.
    Outside { submitter: String, nonce: u64, hash: String },
    /// An operator requested `release` or `adopt`; the result.
    Operator { submitter: String, action: String, by: String, outcome: String },
    /// A client is about to reserve a nonce: the `Submit` of a reservation.
    Reserve { request: String, submitter: String, plan: ReservationPlan },
    /// The result of the reservation. `bound`: the client's transaction was accepted for sending.
    Reserved { request: String, bound: bool, outcome: String },
    /// An operation has ended.
    Operation { kind: Operation, what: String, lasted_ms: u128 },
    /// A fault has ended.
    Fault { kind: Kind, what: String, lasted_ms: u128 },
    /// A phase of an upgrade run begins.
    Phase { phase: Phase },
    /// This version has migrated the schema.
    Migrated { added: i64, tries: u32, lasted_ms: u128 },
    /// A process was replaced by one of the other version. `started`: within the time limit.
    Rolled { process: String, direction: Direction, signal: Signal, started: bool, lasted_ms: u128 },
}

/// An event and its time since the start of the run.
#[derive(Clone, Debug, Serialize)]
pub struct Entry {
    pub at_ms: u128,
    #[serde(flatten)]
    pub event: Event,
}

#[derive(Debug)]
struct Journal {
    entries: Vec<Entry>,
    file: BufWriter<File>,
    next_op: u64,
}

#[derive(Debug)]
pub(crate) struct History {
    begun: Instant,
    journal: Mutex<Journal>,
}

impl History {
    pub(crate) fn begin(path: &Path) -> History {
        let file = BufWriter::new(File::create(path).expect("the history can be written"));
        let journal = Mutex::new(Journal { entries: Vec::new(), file, next_op: 0 });
        History { begun: Instant::now(), journal }
    }

    fn journal(&self) -> MutexGuard<'_, Journal> {
        self.journal.lock()
    }

    /// Appends an event. The order of entries is the order of these calls.
    pub(crate) fn record(&self, event: Event) {
        let mut journal = self.journal();
        let entry = Entry { at_ms: self.begun.elapsed().as_millis(), event };
        let line = serde_json::to_string(&entry).expect("plain data with string keys");
        writeln!(journal.file, "{line}").expect("the history can be written");
        journal.entries.push(entry);
    }

    pub(crate) fn next_op(&self) -> u64 {
        let mut journal = self.journal();
        journal.next_op += 1;
        journal.next_op
    }

    /// Number of entries so far.
    pub(crate) fn len(&self) -> usize {
        self.journal().entries.len()
    }

    /// The entries after the first `skipped`.
    pub(crate) fn since(&self, skipped: usize) -> Vec<Entry> {
        self.journal().entries[skipped..].to_vec()
    }

    /// All entries so far.
    pub(crate) fn entries(&self) -> Vec<Entry> {
        let mut journal = self.journal();
        journal.file.flush().expect("the history can be written");
        journal.entries.clone()
    }
}
