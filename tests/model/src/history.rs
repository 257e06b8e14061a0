//! Prints a path of the model checker as a readable history.

use std::fmt::Write as _;

use stateright::Path;

use super::{Doing, Kind, State, Step, Tx, Write};

/// The steps in order, and the final state.
pub(crate) fn describe(path: Path<State, Step>) -> String {
    let mut text = String::new();
    let end = path.last_state().clone();
    for (number, (state, step)) in path.into_vec().into_iter().enumerate() {
        if let Some(step) = step {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{:>4}. {}", number + 1, describe_step(&state, step));
        }
    }
    let _ = writeln!(text, "      recorded: {}", list(end.rows.attempts.iter()));
    let _ = writeln!(text, "      in pools: {}", list(end.pool.iter()));
    let _ = writeln!(text, "      on chain: {}", list(end.chain.iter()));
    text
}

fn describe_step(state: &State, step: Step) -> String {
    let signed = |id: usize| match state.workers[id].doing {
        Doing::Wants(write) | Doing::Checked(write) => match write {
            Write::Record(tx) | Write::Add(tx) => tx.to_string(),
            Write::Confirm(intent) => format!("that intent {intent} is confirmed"),
            Write::Cancel(intent) => format!("that intent {intent} is cancelled"),
            Write::Displace { intent, .. } => format!("that intent {intent} is queued again"),
        },
        _ => "what it has open".to_owned(),
    };
    let name = |id: usize| format!("worker {} (token {})", letter(id), state.workers[id].token);
    let is_owner = |id: usize| state.workers[id].token == state.lease;
    match step {
        Step::TakeOver(id) => format!("worker {} claims the lease, token {}", letter(id), state.lease + 1),
        Step::Read(id) => format!("{} reads the rows", name(id)),
        Step::Sign(id, intent) => format!("{} signs intent {intent}", name(id)),
        Step::Replace(id, intent, kind) => format!("{} signs a {kind:?} of intent {intent}", name(id)),
        Step::Lose(id, intent) => {
            format!("{} treats the nonce of intent {intent} as consumed outside", name(id))
        }
        Step::SendDraft(id) => format!("{} sends {}, unrecorded", name(id), signed(id)),
        Step::See(id, intent) => format!("{} reads that intent {intent} is final", name(id)),
        Step::Lock(id) if is_owner(id) => format!("{} locks the lease row to write {}", name(id), signed(id)),
        Step::Pass(id) | Step::Lock(id) | Step::Check(id) if !is_owner(id) => {
            format!("{} learns that the lease is lost", name(id))
        }
        Step::Pass(id) => format!("{} passes the fence: its uncertain commit is decided", name(id)),
        Step::Lock(id) | Step::Check(id) => format!("{} checks that it owns the lease", name(id)),
        Step::Write(id) if is_owner(id) => format!("{} writes {}", name(id), signed(id)),
        Step::Write(id) => {
            format!("{} writes {}; the owner is token {}", name(id), signed(id), state.lease)
        }
        Step::Commit(id) => format!("{} commits", name(id)),
        Step::Sever(id) => format!("the server ends the session of {}; nothing is written", name(id)),
        Step::LoseAnswer(id) => format!("{} loses its connection before COMMIT returns", name(id)),
        Step::Send(id, tx) => format!("{} sends {tx}", name(id)),
        Step::Crash(id) => format!("{} crashes", name(id)),
        Step::Decide { commit: true } => "the abandoned transaction is committed".to_owned(),
        Step::Decide { commit: false } => "the abandoned transaction is rolled back".to_owned(),
        Step::Evict(tx) => format!("the mempool drops {tx}"),
        Step::Mine(tx) => format!("{tx} is mined"),
        Step::Outside => format!("an external transaction at nonce {} is mined", state.chain.len()),
        Step::Reorg => format!("a reorg removes block {}", state.chain.len()),
        Step::Finalize => format!("block {} is final", state.last + 1),
    }
}

impl std::fmt::Display for Tx {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.kind {
            Kind::Outside => write!(f, "external transaction at nonce {}", self.nonce),
            Kind::Original => {
                write!(f, "intent {} at nonce {} with token {}", self.intent, self.nonce, self.token)
            }
            kind => {
                write!(
                    f,
                    "{kind:?} of intent {} at nonce {} with token {}",
                    self.intent, self.nonce, self.token
                )
            }
        }
    }
}

fn letter(id: usize) -> char {
    char::from(b'A' + id as u8)
}

fn list<'a>(txs: impl Iterator<Item = &'a Tx>) -> String {
    let all: Vec<String> = txs.map(Tx::to_string).collect();
    if all.is_empty() { "nothing".to_owned() } else { all.join("; ") }
}
