//! Everything that was asked, answered and broken, in one order. Kept in memory for the checker and on disk for people.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use serde::Serialize;

use super::schedule::{Kind, Operation};

/// What a request asks for, as far as that can end it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Asked {
    /// It calls a contract that refuses it.
    pub doomed: bool,
    /// It has a deadline for its nonce.
    pub deadline: bool,
    /// The policy of its submitter does not allow it.
    pub forbidden: bool,
}

/// What a caller does with the nonce that it is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum HoldPlan {
    /// Answers with a transaction.
    Answer,
    /// Says that it wants none.
    Refuse,
    /// Says nothing until its hold has ended.
    Hang,
    /// Is dropped while it holds the nonce, or while it waits for it.
    Vanish,
}

/// What happened. `request` is the client's id of a request, `op` one try at it.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// A request goes out.
    Submit { op: u64, request: String, submitter: String, api: usize, asked: Asked },
    /// It was answered. 202 and 200 are promises.
    Answer { op: u64, request: String, status: u16, tx_id: Option<String>, code: Option<String> },
    /// It was not answered: what became of it is unknown.
    NoAnswer { op: u64, request: String, error: String },
    /// The same id with another payload, and the answer to that.
    Impostor { request: String, status: u16 },
    /// A client asks to cancel.
    CancelAsked { request: String },
    /// The answer to that.
    Cancel { request: String, status: u16 },
    /// A client asked for a higher price; the answer.
    SpeedUp { request: String, status: u16 },
    /// A client was told this state.
    Told { request: String, tx_id: String, state: String },
    /// Somebody uses the key of a submitter outside of Gapless. Noted before the bytes leave.
    Outside { submitter: String, nonce: u64, hash: String },
    /// An operator asked for `release` or `adopt`; what came of it.
    Operator { submitter: String, action: String, by: String, outcome: String },
    /// A caller asks for a nonce. `Submit` of a reservation.
    Reserve { request: String, submitter: String, plan: HoldPlan },
    /// Its end. `bound`: the caller was told that its transaction will be sent.
    Reserved { request: String, bound: bool, outcome: String },
    /// Something was done besides requests.
    Operation { kind: Operation, what: String, lasted_ms: u128 },
    /// Something was broken, and is mended again.
    Fault { kind: Kind, what: String, lasted_ms: u128 },
}

/// An event and when it was, since the beginning of the run.
#[derive(Clone, Debug, Serialize)]
pub struct Entry {
    pub at_ms: u128,
    #[serde(flatten)]
    pub event: Event,
}

#[derive(Debug)]
struct Book {
    entries: Vec<Entry>,
    file: BufWriter<File>,
    next_op: u64,
}

#[derive(Debug)]
pub(super) struct History {
    begun: Instant,
    book: Mutex<Book>,
}

impl History {
    pub(super) fn begin(path: &Path) -> History {
        let file = BufWriter::new(File::create(path).expect("the history can be written"));
        let book = Mutex::new(Book { entries: Vec::new(), file, next_op: 0 });
        History { begun: Instant::now(), book }
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The order of the entries is the order of these calls: what was noted before another was sent came before it.
    pub(super) fn note(&self, event: Event) {
        let mut book = self.book();
        let entry = Entry { at_ms: self.begun.elapsed().as_millis(), event };
        let line = serde_json::to_string(&entry).expect("plain data with string keys");
        writeln!(book.file, "{line}").expect("the history can be written");
        book.entries.push(entry);
    }

    pub(super) fn next_op(&self) -> u64 {
        let mut book = self.book();
        book.next_op += 1;
        book.next_op
    }

    /// So far.
    pub(super) fn entries(&self) -> Vec<Entry> {
        let mut book = self.book();
        book.file.flush().expect("the history can be written");
        book.entries.clone()
    }
}
