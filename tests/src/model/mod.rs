//! A model of lease, fence and send, small enough that every interleaving of it is looked at.
//!
//! It has the parts that the promises rest on: the lease row and its lock, the cursor, intents, recorded attempts, workers
//! that read, sign, commit, send, stop for any time and die anywhere, answers that are lost, and a chain that takes one
//! transaction per nonce and may take it back. Replacements and placeholders compete for a nonce, and somebody else may use
//! the key. There is no clock in it: a takeover may happen at any moment, because expiry is liveness and not safety.
//!
//! It refuses to be the product: no prices, no depths. Whether the product does what the model does is
//! for the simulation and the end-to-end tests to say.

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

/// How a worker makes sure that a write is still its to make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fence {
    /// Locks the lease row, compares the lease on its newest version, keeps the lock until the commit.
    Lock,
    /// Compares the lease on a snapshot, and writes some time after.
    Exists,
    /// Does not look at the lease at all.
    Unchecked,
}

/// What is modelled: the product, or something that is broken on purpose.
#[derive(Clone, Copy, Debug)]
pub struct Model {
    pub fence: Fence,
    /// Whether a write names what it leaves (the cursor's nonce, the state), and is refused if that is not there. The
    /// second line of defence; the first must hold without it.
    pub guards: bool,
    /// Whether a worker that does not know what became of a commit passes the fence before it reads again.
    pub waits: bool,
    /// Whether signed bytes are sent before they are recorded.
    pub sends_drafts: bool,
    /// Whether an intent may get a replacement and a placeholder, one of each.
    pub replaces: bool,
    /// Broken: a replacement gets a nonce of its own.
    pub renonces: bool,
    /// How often somebody else uses the key.
    pub outside: u8,
    /// Broken: a consumed nonce is somebody else's if no transaction of ours is shown there, and nodes may show none.
    pub believes_silence: bool,
    pub workers: usize,
    pub intents: u8,
    /// How many periods of ownership there are at the most.
    pub tokens: u8,
    /// How many nonces may be open at once.
    pub window: usize,
    /// How many blocks may be taken back in all.
    pub reorgs: u8,
}

impl Model {
    /// What the product does, in a world of this size.
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

    /// Looks at every state that can be reached.
    pub fn explore(self) -> Explored {
        self.explored(self.checker())
    }

    /// Looks until this property is found broken, ever deeper: what is found is as short as can be. `None`: it holds.
    pub fn search(self, property: &'static str) -> Option<Explored> {
        let mut states = 0;
        for depth in 1.. {
            // Without a name to wait for, the search would go on for all other properties.
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

/// What a search came upon.
#[derive(Debug)]
pub struct Explored {
    /// Different states.
    pub states: usize,
    /// Steps of the longest shortest path.
    pub depth: usize,
    found: Vec<(&'static str, String)>,
}

impl Explored {
    /// The history that breaks a property of safety, or is the witness of a possibility.
    pub fn history(&self, property: &str) -> Option<&str> {
        self.found.iter().find(|(name, _)| *name == property).map(|(_, history)| history.as_str())
    }

    /// Every property of safety that was found broken.
    pub fn broken(&self) -> Vec<&'static str> {
        SAFETY.iter().copied().filter(|name| self.history(name).is_some()).collect()
    }
}

/// A transaction as bytes: other owners make other bytes of the same intent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tx {
    pub nonce: u8,
    pub intent: u8,
    pub token: u8,
    pub kind: Kind,
}

/// Why the bytes exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    Original,
    Replacement,
    /// Consumes the nonce, and does nothing else.
    Placeholder,
    /// Made by somebody else with the same key. It is of no intent.
    Outside,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Intent {
    Queued,
    InFlight,
    Confirmed,
    /// A placeholder took its nonce.
    Cancelled,
}

/// What is on disk, and what a worker remembers of it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Rows {
    cursor: u8,
    intents: Vec<Intent>,
    attempts: BTreeSet<Tx>,
    /// Attempts whose nonce is somebody else's.
    displaced: BTreeSet<Tx>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Write {
    /// Cursor, state and bytes together.
    Record(Tx),
    /// Other bytes for the nonce of an intent.
    Add(Tx),
    Confirm(u8),
    Cancel(u8),
    /// Its nonce is somebody else's: back to the queue, and the cursor behind all that is consumed.
    Displace {
        intent: u8,
        cursor: u8,
    },
}

/// Between the statement that locks the lease row and the end of the transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Transaction {
    token: u8,
    write: Write,
    /// Who will hear of its end. Nobody, if the worker is dead or the connection is.
    client: Option<usize>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Doing {
    /// Holds no lease, and knows nothing.
    Nothing,
    /// Believes to hold a lease, and has not read.
    Claimed,
    /// The same, and does not know what became of its last commit.
    Unsure,
    /// Has read, and acts on what it remembers.
    Ready,
    /// Wants something written.
    Wants(Write),
    /// Saw that the lease was its own, and has not written yet.
    Checked(Write),
    /// Has the lease row locked.
    Writing,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Worker {
    doing: Doing,
    /// The period of ownership it believes in.
    token: u8,
    memory: Option<Rows>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    /// The token of the newest lease.
    lease: u8,
    /// Who has the lease row locked.
    locked: Option<Transaction>,
    rows: Rows,
    workers: Vec<Worker>,
    pool: BTreeSet<Tx>,
    /// One transaction a block; the index is the nonce.
    chain: Vec<Tx>,
    /// So many of them are final.
    last: usize,
    reorgs: u8,
    /// So often did somebody else use the key.
    outside: u8,
    /// A write was committed by somebody who was not the owner any more.
    stale_write: bool,
    /// Somebody who was not the owner any more was refused.
    refused: bool,
}
