//! Why a transaction is not final yet: the one thing it waits for, since when, and what to do about it.
//!
//! The facts come from the database (`gapless_store::waiting`). What nobody has stated is no fact: a worker of an earlier
//! version does not say which chains it serves, and then nothing is concluded from it.

use chrono::{DateTime, Utc};

use super::blocked::BlockedReason;
use super::ids::ChainId;
use super::state::TxState;
use super::sub_state::SubState;

/// What a transaction waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WaitReason {
    /// Its submitter is paused by an operator.
    Paused,
    /// The submitter's key was used externally. An operator must act.
    Protect,
    /// A nonce of the submitter was consumed by a transaction that is not found yet.
    Suspect,
    Funds,
    Fee,
    Node,
    Signer,
    /// The nodes serve another chain than configured, or the chain was reset.
    ChainHalted,
    /// No running worker serves it.
    NoWorker,
    /// Its start time (`notBefore`).
    NotBefore,
    /// Earlier transactions of the same submitter.
    EarlierTransactions,
    /// The program that reserved its nonce.
    Client,
    /// It would revert now; that is checked once more.
    RevertCheck,
    /// No node accepts it: a replacement at the same nonce, or an operator.
    Rejected,
    /// A worker is about to continue with it.
    NextStep,
    /// It was sent: a block that contains it.
    Block,
    /// It is in a block: further blocks.
    Confirmations,
}

impl WaitReason {
    pub const ALL: [WaitReason; 17] = [
        WaitReason::Paused,
        WaitReason::Protect,
        WaitReason::Suspect,
        WaitReason::Funds,
        WaitReason::Fee,
        WaitReason::Node,
        WaitReason::Signer,
        WaitReason::ChainHalted,
        WaitReason::NoWorker,
        WaitReason::NotBefore,
        WaitReason::EarlierTransactions,
        WaitReason::Client,
        WaitReason::RevertCheck,
        WaitReason::Rejected,
        WaitReason::NextStep,
        WaitReason::Block,
        WaitReason::Confirmations,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            WaitReason::Paused => "paused",
            WaitReason::Protect => "protect",
            WaitReason::Suspect => "suspect",
            WaitReason::Funds => "funds",
            WaitReason::Fee => "fee",
            WaitReason::Node => "node",
            WaitReason::Signer => "signer",
            WaitReason::ChainHalted => "chain_halted",
            WaitReason::NoWorker => "no_worker",
            WaitReason::NotBefore => "not_before",
            WaitReason::EarlierTransactions => "earlier_transactions",
            WaitReason::Client => "client",
            WaitReason::RevertCheck => "revert_check",
            WaitReason::Rejected => "rejected",
            WaitReason::NextStep => "next_step",
            WaitReason::Block => "block",
            WaitReason::Confirmations => "confirmations",
        }
    }

    /// Whether it is part of the normal course of a transaction, which continues by itself.
    pub fn is_progress(self) -> bool {
        matches!(
            self,
            WaitReason::NotBefore
                | WaitReason::EarlierTransactions
                | WaitReason::RevertCheck
                | WaitReason::NextStep
                | WaitReason::Block
                | WaitReason::Confirmations
        )
    }
}

impl From<BlockedReason> for WaitReason {
    fn from(reason: BlockedReason) -> Self {
        match reason {
            BlockedReason::Funds => WaitReason::Funds,
            BlockedReason::Fee => WaitReason::Fee,
            BlockedReason::Node => WaitReason::Node,
            BlockedReason::Signer => WaitReason::Signer,
        }
    }
}

/// The answer to "why is this waiting?".
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    pub reason: WaitReason,
    /// By the database's clock. Does not change while the reason is the same.
    pub since: DateTime<Utc>,
    /// One sentence or two, the second says what to do.
    pub message: String,
}

/// A condition, since when, and the recorded text about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    pub since: DateTime<Utc>,
    pub text: Option<String>,
}

/// Whether a running worker serves the chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workers {
    /// At least one does.
    Serve,
    /// Workers run, and all of them state that they serve other chains.
    ServeOthers,
    /// None runs.
    None,
    /// Unknown: a worker that may run does not state it.
    NotStated,
}

/// What is known about a submitter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubmitterFacts {
    pub chain_id: ChainId,
    pub protect: Option<Condition>,
    pub paused: Option<Condition>,
    pub suspect: Option<Condition>,
    pub workers: Workers,
    /// The worker that owns it, or every worker of the chain, has halted the chain.
    pub halted: Option<Condition>,
    /// It has work, and no worker has taken it for longer than workers need for that.
    pub untaken: bool,
    /// When a worker last claimed, renewed or released it.
    pub served_at: DateTime<Utc>,
    /// Transactions in flight.
    pub in_flight: u64,
    /// No more may be in flight at once.
    pub window_full: bool,
    /// The first eligible transaction of the queue.
    pub head: Option<TxFacts>,
    /// The oldest transaction in flight.
    pub oldest_open: Option<TxFacts>,
    /// The first transaction of the queue, if its start time is in the future.
    pub next_start: Option<TxFacts>,
}

/// What is known about a transaction that is not final.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TxFacts {
    pub state: TxState,
    pub sub_state: Option<SubState>,
    pub error: Option<String>,
    pub created_at: DateTime<Utc>,
    /// Last change. While it is QUEUED only a new reason to wait changes it.
    pub updated_at: DateTime<Utc>,
    pub blocked_since: Option<DateTime<Utc>>,
    /// When it got its nonce.
    pub prepared_at: Option<DateTime<Utc>>,
    /// When TRACKING, STUCK or PROTECT was entered last.
    pub entered_at: Option<DateTime<Utc>>,
    /// Its start time, if that is in the future.
    pub not_before: Option<DateTime<Utc>>,
    /// It was cancelled or failed after it was sent: an empty transaction competes with it.
    pub ending: bool,
}

/// Queued transactions before one are counted up to this limit.
pub const AHEAD_CAP: u64 = 1_000;

impl SubmitterFacts {
    /// Why a transaction of this submitter waits. `ahead`: eligible transactions before it in the queue.
    pub fn waiting(&self, tx: &TxFacts, ahead: u64) -> Waiting {
        let mut waiting = self.of_tx(tx, ahead);
        // A pause that is older than the transaction: it waits since it exists.
        waiting.since = waiting.since.max(tx.created_at);
        waiting
    }

    /// Why the submitter sends nothing, or what the head of its queue waits for. `None`: it has nothing to do, and nothing
    /// would stop it.
    pub fn head_waiting(&self) -> Option<Waiting> {
        if let Some(first) = self.head.as_ref().or(self.oldest_open.as_ref()) {
            return Some(self.of_tx(first, 0));
        }
        self.stopped().or_else(|| self.next_start.as_ref().map(|next| self.of_tx(next, 0)))
    }

    /// Whether no running worker serves it. A blocked submitter may be without an owner on purpose, for a while.
    pub fn is_unserved(&self) -> bool {
        self.head_waiting().is_some_and(|waiting| waiting.reason == WaitReason::NoWorker)
    }

    fn of_tx(&self, tx: &TxFacts, ahead: u64) -> Waiting {
        match tx.state {
            TxState::Queued => self.of_queued(tx, ahead),
            // An intent of a shared key passes through PROTECT, its submitter does not.
            TxState::Protect => self.protected().unwrap_or_else(|| {
                let message = "A transaction from outside used its place. A worker gives it another.";
                Waiting { reason: WaitReason::Protect, since: entered(tx), message: message.to_owned() }
            }),
            // Receipts are followed in PROTECT too.
            TxState::Tracking => self.not_running().unwrap_or_else(|| tracked(tx)),
            _ => {
                let stopped = self.protected().or_else(|| self.not_running());
                stopped.unwrap_or_else(|| sent(tx, self.untaken.then(|| self.no_worker())))
            }
        }
    }

    fn of_queued(&self, tx: &TxFacts, ahead: u64) -> Waiting {
        if let Some(start) = tx.not_before {
            let message = format!("It starts at {}, as requested (notBefore).", start.to_rfc3339());
            return Waiting { reason: WaitReason::NotBefore, since: tx.created_at, message };
        }
        if let Some(waiting) = self.stopped().or_else(|| own_reason(tx)) {
            return waiting;
        }
        let blocked_head = self.head.as_ref().filter(|_| ahead > 0 && !self.window_full).and_then(own_reason);
        if let Some(head) = blocked_head {
            let message = format!(
                "The first transaction in the queue waits for {}: {}",
                noun(head.reason),
                head.message
            );
            return Waiting { message, ..head };
        }
        if self.untaken {
            return self.no_worker();
        }
        if ahead > 0 || self.window_full {
            let message = match (ahead, self.in_flight) {
                (0, sent) => format!(
                    "{} sent, and no more may be at once.",
                    counted(sent, "earlier transaction is", "earlier transactions are")
                ),
                (queued, 0) => format!("{} before it in the queue.", at_most(queued)),
                (queued, sent) => format!("{} before it in the queue, and {sent} sent.", at_most(queued)),
            };
            return Waiting { reason: WaitReason::EarlierTransactions, since: tx.created_at, message };
        }
        let message = "A worker takes it next.".to_owned();
        Waiting { reason: WaitReason::NextStep, since: tx.updated_at, message }
    }

    /// Why nothing new is sent.
    fn stopped(&self) -> Option<Waiting> {
        self.protected()
            .or_else(|| self.is_paused())
            .or_else(|| self.not_running())
            .or_else(|| self.suspected())
    }

    fn protected(&self) -> Option<Waiting> {
        let protect = self.protect.as_ref()?;
        let what = "The submitter is in PROTECT, because its key was used outside Gapless";
        let message =
            format!("{}. An operator must release or adopt it.", with_text(what, protect.text.as_deref()));
        Some(Waiting { reason: WaitReason::Protect, since: protect.since, message })
    }

    fn is_paused(&self) -> Option<Waiting> {
        let paused = self.paused.as_ref()?;
        let what = with_text("The submitter is paused", paused.text.as_deref());
        let message = format!("{what}. An operator must resume it.");
        Some(Waiting { reason: WaitReason::Paused, since: paused.since, message })
    }

    fn suspected(&self) -> Option<Waiting> {
        let suspect = self.suspect.as_ref()?;
        let what = "A transaction that is not found yet used a nonce of the submitter";
        let message = format!(
            "{}. Workers search for it; nothing new is sent meanwhile.",
            with_text(what, suspect.text.as_deref())
        );
        Some(Waiting { reason: WaitReason::Suspect, since: suspect.since, message })
    }

    /// No worker can work on the chain.
    fn not_running(&self) -> Option<Waiting> {
        if matches!(self.workers, Workers::None | Workers::ServeOthers) {
            return Some(self.no_worker());
        }
        let halted = self.halted.as_ref()?;
        let what = format!("The workers have halted chain {}", self.chain_id.0);
        let message =
            format!("{}. Correct rpc.urls, or the nodes.", with_text(&what, halted.text.as_deref()));
        Some(Waiting { reason: WaitReason::ChainHalted, since: halted.since, message })
    }

    fn no_worker(&self) -> Waiting {
        let chain = self.chain_id.0;
        let message = match self.workers {
            Workers::None => {
                "No worker is running, or none reaches the database. Start gapless-worker.".to_owned()
            }
            Workers::ServeOthers => {
                format!(
                    "Workers are running, but none serves chain {chain}. Configure the chain for a worker."
                )
            }
            Workers::Serve | Workers::NotStated => format!(
                "No worker has taken this submitter. Give a worker of chain {chain} its key, or raise worker.max_leases."
            ),
        };
        Waiting { reason: WaitReason::NoWorker, since: self.served_at, message }
    }
}

/// The reason that is recorded for a transaction of the queue.
fn own_reason(tx: &TxFacts) -> Option<Waiting> {
    let sub_state = tx.sub_state?;
    if let Some(reason) = BlockedReason::of_sub_state(sub_state) {
        return Some(blocked(reason, tx, tx.blocked_since.unwrap_or(tx.updated_at)));
    }
    let (reason, what) = match sub_state {
        SubState::WaitingClient => {
            (WaitReason::Client, "The program that requested it has stopped asking for it")
        }
        SubState::WaitingEarlier => {
            (WaitReason::EarlierTransactions, "It would revert now; an earlier transaction may change that")
        }
        SubState::CheckingRevert => {
            (WaitReason::RevertCheck, "It would revert now; that is checked once more at the next block")
        }
        _ => return None,
    };
    let message = format!("{}.", with_text(what, tx.error.as_deref()));
    Some(Waiting { reason, since: tx.updated_at, message })
}

fn blocked(reason: BlockedReason, tx: &TxFacts, since: DateTime<Utc>) -> Waiting {
    let (what, todo) = match reason {
        BlockedReason::Funds => ("The submitter has too little money for it", "Fund its address."),
        BlockedReason::Fee => (
            "Its fee limit is too low at present",
            "It continues when the price falls; or cancel it and allow more.",
        ),
        BlockedReason::Node => ("No node of the chain gives a usable answer", "Check the nodes (rpc.urls)."),
        BlockedReason::Signer => ("Its signer cannot sign at present", "Check the signer."),
    };
    let message = format!("{}. {todo}", with_text(what, tx.error.as_deref()));
    Waiting { reason: reason.into(), since, message }
}

/// A transaction that has its signed bytes and is in no block. `untaken`: no worker sends it again.
fn sent(tx: &TxFacts, untaken: Option<Waiting>) -> Waiting {
    let since = tx.prepared_at.unwrap_or(tx.created_at);
    if let Some(reason) = tx.sub_state.and_then(BlockedReason::of_sub_state) {
        return blocked(reason, tx, since);
    }
    let recorded = match tx.sub_state {
        Some(SubState::Reserved) => {
            Some((WaitReason::Client, "The program that reserved it has not answered yet"))
        }
        Some(SubState::LowerNonceMissing) => Some((
            WaitReason::EarlierTransactions,
            "The node lacks an earlier transaction, which is sent again",
        )),
        Some(SubState::DelegatedLimit) => Some((
            WaitReason::EarlierTransactions,
            "The account has delegated code: nodes accept one transaction at a time",
        )),
        Some(SubState::Rejected) => {
            Some((WaitReason::Rejected, "The nodes refuse it for good; an empty transaction takes its place"))
        }
        Some(SubState::NonceUsed) => {
            Some((WaitReason::Suspect, "A transaction that is not found yet used its nonce"))
        }
        _ => None,
    };
    if let Some((reason, what)) = recorded {
        return Waiting { reason, since, message: format!("{}.", with_text(what, tx.error.as_deref())) };
    }
    if let Some(untaken) = untaken {
        return untaken;
    }
    let (reason, message) = match tx.sub_state {
        _ if tx.ending => (
            WaitReason::Block,
            "An empty transaction was sent in its place; whichever is mined first counts.",
        ),
        Some(SubState::NotReplaced) => {
            (WaitReason::Block, "It was sent, and one with a higher fee cannot be sent (see lastError).")
        }
        _ if tx.state == TxState::InFlight => (WaitReason::NextStep, "It is signed; a worker sends it next."),
        _ => (WaitReason::Block, "It was sent and waits for a block."),
    };
    Waiting { reason, since, message: message.to_owned() }
}

fn tracked(tx: &TxFacts) -> Waiting {
    if tx.sub_state.and_then(BlockedReason::of_sub_state) == Some(BlockedReason::Node) {
        return blocked(BlockedReason::Node, tx, entered(tx));
    }
    let message = "It is in a block and waits for confirmations.".to_owned();
    Waiting { reason: WaitReason::Confirmations, since: entered(tx), message }
}

fn entered(tx: &TxFacts) -> DateTime<Utc> {
    tx.entered_at.or(tx.prepared_at).unwrap_or(tx.created_at)
}

/// `what (text)`, without the text's final period.
fn with_text(what: &str, text: Option<&str>) -> String {
    match text.map(|text| text.trim_end_matches('.')).filter(|text| !text.is_empty()) {
        Some(text) => format!("{what} ({text})"),
        None => what.to_owned(),
    }
}

fn noun(reason: WaitReason) -> &'static str {
    match reason {
        WaitReason::Funds => "funds",
        WaitReason::Fee => "a lower fee",
        WaitReason::Node => "a node",
        WaitReason::Signer => "its signer",
        WaitReason::Client => "a client",
        _ => "another check",
    }
}

fn counted(count: u64, one: &str, more: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { more })
}

fn at_most(count: u64) -> String {
    match count {
        AHEAD_CAP.. => format!("{AHEAD_CAP} transactions or more are"),
        count => counted(count, "transaction is", "transactions are"),
    }
}

#[cfg(test)]
#[path = "waiting_tests.rs"]
mod tests;
