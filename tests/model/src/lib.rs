//! A model of lease, fence and send, small enough for exhaustive model checking.
//!
//! It contains what the guarantees depend on: the lease row and its lock, the cursor, intents, recorded attempts,
//! workers that read, sign, commit, send, pause for any time and crash anywhere, lost responses, and a chain that
//! accepts one transaction per nonce and may reorg. Replacements and placeholders compete for a nonce, and there may
//! be external transactions of the same key. There is no clock: a takeover may happen at any time, because expiry
//! concerns liveness, not safety.
//!
//! It has no prices and no confirmation depths. The simulation and the end-to-end tests check that the product
//! behaves like the model.

mod history;
mod properties;
mod steps;

use std::collections::BTreeSet;

use stateright::{Checker, CheckerBuilder, HasDiscoveries, Model as _};

pub use properties::{
    NO_STALE_WRITE, ONE_EFFECT, OUTSIDE_WITNESSES, RECORDED_BEFORE_SENT, REPLACED_WITNESSES, SAFETY,
    WITNESSES,
};
pub use steps::Step;

/// How a worker verifies before a write that it still owns the lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fence {
    /// Locks the lease row, compares its newest version, and holds the lock until the commit.
    Lock,
    /// Compares the lease in a snapshot, and writes some time later.
    Exists,
    /// Does not check the lease.
    Unchecked,
}

/// A variant of the model: the product, or one with an intentional defect.
#[derive(Clone, Copy, Debug)]
pub struct Model {
    pub fence: Fence,
    /// Whether a write is conditional on the expected old values (the cursor's nonce, the state). The second line of
    /// defence; the fence must be sufficient without it.
    pub guards: bool,
    /// Whether a worker with an uncertain commit passes the fence before it reads again.
    pub waits: bool,
    /// Whether signed transactions are sent before they are recorded.
    pub sends_drafts: bool,
    /// Whether an intent may get one replacement and one placeholder.
    pub replaces: bool,
    /// Defect: a replacement gets another nonce.
    pub renonces: bool,
    /// Number of external transactions.
    pub outside: u8,
    /// Defect: a consumed nonce counts as external if the node shows no transaction of ours there, which nodes may
    /// fail to do.
    pub believes_silence: bool,
    pub workers: usize,
    pub intents: u8,
    /// Maximum number of lease claims.
    pub tokens: u8,
    /// Maximum number of open nonces.
    pub window: usize,
    /// Maximum number of reorged blocks.
    pub reorgs: u8,
}

impl Model {
    /// The product, with small limits.
    pub fn product() -> Model {
        Model {
            fence: Fence::Lock,
            guards: true,
            waits: true,
            sends_drafts: false,
            replaces: false,
            renonces: false,
            outside: 0,
            believes_silence: false,
            workers: 2,
            intents: 2,
            tokens: 2,
            window: 2,
            reorgs: 1,
        }
    }

    /// Explores all reachable states.
    pub fn explore(self) -> Explored {
        self.explored(self.checker())
    }

    /// Searches with increasing depth for the shortest violation of this property. `None`: it holds.
    pub fn search(self, property: &'static str) -> Option<Explored> {
        let mut states = 0;
        for depth in 1.. {
            // Otherwise the search would continue for all other properties.
            let named = HasDiscoveries::AllOf(BTreeSet::from([property]));
            let explored = self.explored(self.checker().target_max_depth(depth).finish_when(named));
            if explored.history(property).is_some() {
                return Some(explored);
            }
            if explored.states == states {
                return None;
            }
            states = explored.states;
        }
        None
    }

    fn explored(&self, search: CheckerBuilder<Model>) -> Explored {
        let checker = search.spawn_bfs().join();
        let found = checker.discoveries().into_iter().map(|(name, path)| (name, history::describe(path)));
        Explored { states: checker.unique_state_count(), depth: checker.max_depth(), found: found.collect() }
    }
}

/// Result of a search.
#[derive(Debug)]
pub struct Explored {
    /// Number of distinct states.
    pub states: usize,
    /// Length of the longest shortest path.
    pub depth: usize,
    found: Vec<(&'static str, String)>,
}

impl Explored {
    /// The history that violates a safety property, or witnesses a possibility.
    pub fn history(&self, property: &str) -> Option<&str> {
        self.found.iter().find(|(name, _)| *name == property).map(|(_, history)| history.as_str())
    }

    /// All violated safety properties.
    pub fn broken(&self) -> Vec<&'static str> {
        SAFETY.iter().copied().filter(|name| self.history(name).is_some()).collect()
    }
}

/// A signed transaction. Each owner signs different bytes for the same intent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tx {
    pub nonce: u8,
    pub intent: u8,
    pub token: u8,
    pub kind: Kind,
}

/// Kind of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    Original,
    Replacement,
    /// Consumes the nonce without an effect.
    Placeholder,
    /// An external transaction with the same key, without an intent.
    Outside,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Intent {
    Queued,
    InFlight,
    Confirmed,
    /// Its placeholder was mined.
    Cancelled,
}

/// The database rows, and a worker's copy of them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Rows {
    cursor: u8,
    intents: Vec<Intent>,
    attempts: BTreeSet<Tx>,
    /// Attempts whose nonce an external transaction consumed.
    displaced: BTreeSet<Tx>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Write {
    /// Cursor, state and attempt together.
    Record(Tx),
    /// Another attempt at the nonce of an intent.
    Add(Tx),
    Confirm(u8),
    Cancel(u8),
    /// Its nonce was consumed externally: back to the queue, with the cursor above all consumed nonces.
    Displace {
        intent: u8,
        cursor: u8,
    },
}

/// An open database transaction that holds the lock of the lease row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Transaction {
    token: u8,
    write: Write,
    /// The worker that gets its result. `None`: the worker crashed, or the connection is lost.
    client: Option<usize>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Doing {
    /// Has no lease and no memory.
    Nothing,
    /// Assumes to own a lease, and has not read the rows.
    Claimed,
    /// Like `Claimed`, and the result of its last commit is unknown.
    Unsure,
    /// Has read the rows, and acts on its memory.
    Ready,
    /// Is about to write.
    Wants(Write),
    /// Has checked the lease, and not written yet.
    Checked(Write),
    /// Has the lease row locked.
    Writing,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Worker {
    doing: Doing,
    /// The fencing token it assumes to own.
    token: u8,
    memory: Option<Rows>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    /// The token of the newest lease.
    lease: u8,
    /// The transaction that holds the lock of the lease row.
    locked: Option<Transaction>,
    rows: Rows,
    workers: Vec<Worker>,
    pool: BTreeSet<Tx>,
    /// One transaction a block; the index is the nonce.
    chain: Vec<Tx>,
    /// Number of final blocks.
    last: usize,
    reorgs: u8,
    /// Number of external transactions so far.
    outside: u8,
    /// A former owner has committed a write.
    stale_write: bool,
    /// A write of a former owner was rejected.
    refused: bool,
}
