//! The possible steps and their effects. Every step is atomic; any other step may happen between two of them.

use std::collections::BTreeSet;

use super::{Doing, Fence, Intent, Kind, Model, Rows, State, Transaction, Tx, Worker, Write};

/// One step. The `usize` is the worker's index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Claims the lease with the next token, regardless of its owner.
    TakeOver(usize),
    Read(usize),
    Sign(usize, u8),
    /// Signs another attempt at the nonce of an intent.
    Replace(usize, u8, Kind),
    /// Sends a signed transaction before it is recorded.
    SendDraft(usize),
    /// Reads on chain that an intent is final, and is about to record it.
    See(usize, u8),
    /// Reads that an external transaction finally consumed the nonce of an intent, and is about to displace it.
    Lose(usize, u8),
    /// Locks the lease row if it owns the lease; otherwise learns that it does not.
    Lock(usize),
    /// Passes the fence without a write; afterwards its uncertain commit is decided.
    Pass(usize),
    /// Compares the lease without a lock.
    Check(usize),
    /// Writes without a lock.
    Write(usize),
    Commit(usize),
    /// The server ends the session during the transaction; the worker gets an error.
    Sever(usize),
    /// The connection is lost; the result of the commit is unknown.
    LoseAnswer(usize),
    Send(usize, Tx),
    Crash(usize),
    /// An abandoned database transaction is committed, or rolled back.
    Decide {
        commit: bool,
    },
    Evict(Tx),
    Mine(Tx),
    /// An external transaction with the same key is mined.
    Outside,
    /// The newest block is reorged, and its transaction is dropped.
    Reorg,
    Finalize,
}

impl Model {
    pub(crate) fn first(&self) -> State {
        let rows = Rows {
            cursor: 0,
            intents: vec![Intent::Queued; self.intents.into()],
            attempts: BTreeSet::new(),
            displaced: BTreeSet::new(),
        };
        State {
            lease: 0,
            locked: None,
            rows,
            workers: vec![Worker::without_lease(); self.workers],
            pool: BTreeSet::new(),
            chain: Vec::new(),
            last: 0,
            reorgs: 0,
            outside: 0,
            stale_write: false,
            refused: false,
        }
    }

    /// All possible steps of a state.
    pub(crate) fn possible(&self, state: &State, steps: &mut Vec<Step>) {
        for (id, worker) in state.workers.iter().enumerate() {
            self.possible_for(state, id, worker, steps);
        }
        if state.locked.is_some_and(|open| open.client.is_none()) {
            steps.extend([Step::Decide { commit: true }, Step::Decide { commit: false }]);
        }
        for tx in &state.pool {
            steps.push(Step::Evict(*tx));
            if usize::from(tx.nonce) == state.chain.len() {
                steps.push(Step::Mine(*tx));
            }
        }
        if state.outside < self.outside {
            steps.push(Step::Outside);
        }
        if state.chain.len() > state.last {
            steps.push(Step::Finalize);
            if state.reorgs < self.reorgs {
                steps.push(Step::Reorg);
            }
        }
    }

    fn possible_for(&self, state: &State, id: usize, worker: &Worker, steps: &mut Vec<Step>) {
        match worker.doing {
            // A claim waits for the lock of the lease row.
            Doing::Nothing => {
                if state.locked.is_none() && state.lease < self.tokens {
                    steps.push(Step::TakeOver(id));
                }
                return;
            }
            Doing::Claimed => steps.push(Step::Read(id)),
            Doing::Unsure => {
                if state.locked.is_none() {
                    steps.push(Step::Pass(id));
                }
            }
            Doing::Ready => self.possible_when_ready(state, id, worker, steps),
            Doing::Wants(write) => {
                if let (true, Write::Record(tx)) = (self.sends_drafts, write)
                    && !state.pool.contains(&tx)
                    && state.takes(tx)
                {
                    steps.push(Step::SendDraft(id));
                }
                match self.fence {
                    Fence::Lock if state.locked.is_none() => steps.push(Step::Lock(id)),
                    Fence::Lock => {}
                    Fence::Exists => steps.push(Step::Check(id)),
                    Fence::Unchecked => steps.push(Step::Write(id)),
                }
            }
            Doing::Checked(_) => steps.push(Step::Write(id)),
            Doing::Writing => steps.extend([Step::Commit(id), Step::Sever(id), Step::LoseAnswer(id)]),
        }
        steps.push(Step::Crash(id));
    }

    fn possible_when_ready(&self, state: &State, id: usize, worker: &Worker, steps: &mut Vec<Step>) {
        let Some(memory) = &worker.memory else { return };
        let open = memory.intents.iter().filter(|intent| **intent == Intent::InFlight).count();
        for intent in 0..self.intents {
            match memory.intents[usize::from(intent)] {
                // Any queued intent may be the head, because intents before it may fail, wait or be cancelled.
                Intent::Queued if open < self.window => steps.push(Step::Sign(id, intent)),
                Intent::InFlight if state.final_of(memory, intent).is_some() => {
                    steps.push(Step::See(id, intent));
                }
                _ => {}
            }
            if memory.intents[usize::from(intent)] == Intent::InFlight {
                if self.replaces {
                    let wanted = [Kind::Replacement, Kind::Placeholder].into_iter();
                    let missing = wanted.filter(|kind| !memory.has(intent, *kind));
                    steps.extend(missing.map(|kind| Step::Replace(id, intent, kind)));
                }
                if self.is_lost(state, memory, intent) {
                    steps.push(Step::Lose(id, intent));
                }
            }
        }
        for tx in &memory.attempts {
            if !state.pool.contains(tx) && state.takes(*tx) {
                steps.push(Step::Send(id, *tx));
            }
        }
    }

    /// The state after a possible step.
    pub(crate) fn after(&self, state: &State, step: Step) -> State {
        let mut next = state.clone();
        match step {
            Step::TakeOver(id) => {
                next.lease += 1;
                next.workers[id] = Worker { doing: Doing::Claimed, token: next.lease, memory: None };
            }
            Step::Read(id) => {
                next.workers[id].memory = Some(next.rows.clone());
                next.workers[id].doing = Doing::Ready;
            }
            Step::Sign(id, intent) => {
                let worker = &mut next.workers[id];
                let nonce = worker.memory.as_ref().map_or(0, |memory| memory.cursor);
                let (token, kind) = (worker.token, Kind::Original);
                worker.doing = Doing::Wants(Write::Record(Tx { nonce, intent, token, kind }));
            }
            Step::SendDraft(id) => {
                if let Doing::Wants(Write::Record(tx)) = next.workers[id].doing {
                    next.pool.insert(tx);
                }
            }
            Step::Replace(id, intent, kind) => {
                let worker = &mut next.workers[id];
                let memory = worker.memory.as_ref();
                let own = memory.and_then(|memory| memory.nonce_of(intent)).unwrap_or_default();
                let nonce = if self.renonces { memory.map_or(0, |memory| memory.cursor) } else { own };
                worker.doing = Doing::Wants(Write::Add(Tx { nonce, intent, token: worker.token, kind }));
            }
            Step::See(id, intent) => {
                let memory = next.workers[id].memory.clone();
                let mined = memory.and_then(|memory| next.final_of(&memory, intent));
                let is_placeholder = mined.is_some_and(|tx| tx.kind == Kind::Placeholder);
                let write = if is_placeholder { Write::Cancel(intent) } else { Write::Confirm(intent) };
                next.workers[id].doing = Doing::Wants(write);
            }
            Step::Lose(id, intent) => {
                let cursor = next.workers[id].memory.as_ref().map_or(0, |memory| memory.cursor);
                let counted = u8::try_from(next.chain.len()).unwrap_or(u8::MAX);
                next.workers[id].doing =
                    Doing::Wants(Write::Displace { intent, cursor: cursor.max(counted) });
            }
            Step::Pass(_) | Step::Lock(_) | Step::Check(_) | Step::Write(_) => self.write(&mut next, step),
            Step::Commit(_) | Step::Sever(_) | Step::LoseAnswer(_) | Step::Crash(_) | Step::Decide { .. } => {
                self.end(&mut next, step);
            }
            Step::Send(_, tx) => {
                next.pool.insert(tx);
            }
            Step::Evict(tx) => {
                next.pool.remove(&tx);
            }
            Step::Mine(tx) => {
                next.chain.push(tx);
                // Other transactions with this nonce can never be mined: the node drops them.
                next.pool.retain(|other| other.nonce > tx.nonce);
            }
            Step::Outside => {
                let nonce = u8::try_from(next.chain.len()).unwrap_or(u8::MAX);
                next.chain.push(Tx { nonce, intent: u8::MAX, token: 0, kind: Kind::Outside });
                next.pool.retain(|other| other.nonce > nonce);
                next.outside += 1;
            }
            Step::Reorg => {
                next.chain.pop();
                next.reorgs += 1;
            }
            Step::Finalize => next.last += 1,
        }
        next
    }

    /// Steps of a database write.
    fn write(&self, next: &mut State, step: Step) {
        match step {
            Step::Pass(id) | Step::Lock(id) | Step::Check(id) if next.workers[id].token != next.lease => {
                next.workers[id] = Worker::without_lease();
                next.refused = true;
            }
            Step::Pass(id) => next.workers[id].start_over(),
            Step::Lock(id) => {
                let worker = &mut next.workers[id];
                if let Doing::Wants(write) = worker.doing {
                    next.locked = Some(Transaction { token: worker.token, write, client: Some(id) });
                    worker.doing = Doing::Writing;
                }
            }
            Step::Check(id) => {
                if let Doing::Wants(write) = next.workers[id].doing {
                    next.workers[id].doing = Doing::Checked(write);
                }
            }
            Step::Write(id) => {
                if let Doing::Wants(write) | Doing::Checked(write) = next.workers[id].doing {
                    let token = next.workers[id].token;
                    let written = self.commit(next, token, write);
                    next.workers[id].apply_result(written, write);
                }
            }
            _ => {}
        }
    }

    /// The end of a transaction that has the lease row locked.
    fn end(&self, next: &mut State, step: Step) {
        match step {
            Step::Commit(id) => {
                if let Some(open) = next.locked.take() {
                    let written = self.commit(next, open.token, open.write);
                    next.workers[id].apply_result(written, open.write);
                }
            }
            Step::Sever(id) => {
                next.locked = None;
                next.workers[id].start_over();
            }
            Step::LoseAnswer(id) => {
                next.leave_open(id);
                next.workers[id].start_over();
                if self.waits {
                    next.workers[id].doing = Doing::Unsure;
                }
            }
            Step::Crash(id) => {
                next.leave_open(id);
                next.workers[id] = Worker::without_lease();
            }
            Step::Decide { commit } => {
                let open = next.locked.take();
                if let Some(open) = open.filter(|_| commit) {
                    self.commit(next, open.token, open.write);
                }
            }
            _ => {}
        }
    }

    /// Whether a worker treats the nonce of an intent as consumed externally: the consuming transaction in a final
    /// block is external. With the defect `believes_silence`, a missing response of the node is enough.
    fn is_lost(&self, state: &State, memory: &Rows, intent: u8) -> bool {
        let Some(nonce) = memory.nonce_of(intent) else { return false };
        let consumer = state.chain[..state.last].get(usize::from(nonce));
        consumer.is_some_and(|tx| tx.kind == Kind::Outside || self.believes_silence)
    }

    /// False: a row differs from the writer's memory, and nothing is written.
    fn commit(&self, next: &mut State, token: u8, write: Write) -> bool {
        if self.guards && !next.rows.match_memory(write) {
            return false;
        }
        next.stale_write |= token != next.lease;
        next.rows.apply(write);
        true
    }
}

impl State {
    fn takes(&self, tx: Tx) -> bool {
        usize::from(tx.nonce) >= self.chain.len()
    }

    /// The transaction of an intent that is final, if one is.
    fn final_of(&self, memory: &Rows, intent: u8) -> Option<Tx> {
        let mut last = self.chain[..self.last].iter();
        last.find(|tx| tx.intent == intent && memory.attempts.contains(tx)).copied()
    }

    /// The worker's transaction is abandoned; the server decides its result.
    fn leave_open(&mut self, id: usize) {
        if let Some(open) = self.locked.as_mut().filter(|open| open.client == Some(id)) {
            open.client = None;
        }
    }
}

impl Worker {
    fn without_lease() -> Worker {
        Worker { doing: Doing::Nothing, token: 0, memory: None }
    }

    /// Discards its memory and reads again. It keeps its lease.
    fn start_over(&mut self) {
        self.memory = None;
        self.doing = Doing::Claimed;
    }

    /// Applies the result of a commit to its memory, so that it need not read again.
    fn apply_result(&mut self, written: bool, write: Write) {
        match &mut self.memory {
            Some(memory) if written => {
                memory.apply(write);
                self.doing = Doing::Ready;
            }
            _ => self.start_over(),
        }
    }
}

impl Rows {
    fn match_memory(&self, write: Write) -> bool {
        match write {
            Write::Record(tx) => {
                self.cursor == tx.nonce && self.intents[usize::from(tx.intent)] == Intent::Queued
            }
            Write::Add(tx) => self.intents[usize::from(tx.intent)] == Intent::InFlight,
            Write::Confirm(intent) | Write::Cancel(intent) | Write::Displace { intent, .. } => {
                self.intents[usize::from(intent)] == Intent::InFlight
            }
        }
    }

    fn apply(&mut self, write: Write) {
        match write {
            Write::Record(tx) => {
                self.cursor = tx.nonce + 1;
                self.intents[usize::from(tx.intent)] = Intent::InFlight;
                self.attempts.insert(tx);
            }
            Write::Add(tx) => {
                self.cursor = self.cursor.max(tx.nonce + 1);
                self.attempts.insert(tx);
            }
            Write::Confirm(intent) => self.intents[usize::from(intent)] = Intent::Confirmed,
            Write::Cancel(intent) => self.intents[usize::from(intent)] = Intent::Cancelled,
            Write::Displace { intent, cursor } => {
                self.cursor = cursor;
                self.intents[usize::from(intent)] = Intent::Queued;
                let (dead, alive) = self.attempts.iter().partition(|tx| tx.intent == intent);
                self.attempts = alive;
                self.displaced.extend::<BTreeSet<Tx>>(dead);
            }
        }
    }

    fn nonce_of(&self, intent: u8) -> Option<u8> {
        self.attempts.iter().find(|tx| tx.intent == intent).map(|tx| tx.nonce)
    }

    fn has(&self, intent: u8, kind: Kind) -> bool {
        self.attempts.iter().any(|tx| tx.intent == intent && tx.kind == kind)
    }
}
