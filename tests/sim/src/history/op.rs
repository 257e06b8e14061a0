//! Operations, and their random choice.

use std::time::Duration;

use gapless_domain::Finality;
use gapless_store::{OperatorAction, TxAction};

use super::History;
use super::clients::Pointer;
use crate::Sabotage;
use crate::call_boundary::CallFault;
use crate::ledger::{Backend, Estimates};

/// Kinds of calls that a node can reject, by the names in `ports`.
const QUESTIONS: [&str; 12] = [
    "*",
    "estimate",
    "estimate at a block",
    "fee history",
    "balance",
    "broadcast",
    "receipts",
    "transaction",
    "transaction count",
    "transaction count at a block",
    "blocks",
    "block by hash",
];

#[derive(Clone, Copy, Debug)]
pub(super) enum Op {
    Submit,
    Step {
        who: usize,
        fault: Option<CallFault>,
    },
    PollHead {
        who: usize,
        fails: bool,
    },
    /// The lease expires, and the other worker claims it while the previous owner still assumes to own it.
    TakeOver(usize),
    Claim(usize),
    Crash(usize),
    Renew(usize),
    Mine(usize),
    Reorg {
        depth: usize,
        keep: bool,
    },
    Evict,
    Lag(usize),
    /// The count at `latest` lags by this many blocks.
    CountLag(u64),
    /// Whether the transaction index is missing.
    Forget(bool),
    /// Whether the balance is zero.
    Unfunded(bool),
    /// Multiple of the usual base fee.
    BaseFee(u64),
    /// The node rejects calls of this kind with a temporary error.
    Outage(Option<&'static str>),
    Advance(Duration),
    TxAction(TxAction),
    /// An external transaction is mined.
    Outside,
    /// An external transaction is pending.
    OutsidePending,
    /// An operator adopts or releases, optionally with the external transaction.
    OperatorAction(OperatorAction, Option<Pointer>),
    /// A client reserves a nonce.
    Reserve,
    /// A reserving client answers, keeps waiting, or disappears.
    PollReservation,
    Estimates(Estimates),
    /// A second backend, or none.
    Backend(Option<Backend>),
}

impl History<'_> {
    pub(super) fn choose(&mut self) -> Op {
        let who = self.rng.below(2) as usize;
        // A stopped process stays stopped for a while, but not forever.
        if self.processes[who].is_stopped() && self.rng.one_in(3) {
            return if self.rng.one_in(3) { Op::Crash(who) } else { Op::Step { who, fault: self.fault() } };
        }
        if let Some(op) = self.choose_by_features() {
            return op;
        }
        match self.rng.below(116) {
            112 => Op::Outside,
            113..=114 => Op::OperatorAction(OperatorAction::Adopt, self.pointer()),
            115 => Op::OperatorAction(OperatorAction::Release, None),
            100..=102 => Op::Outage(self.rng.one_in(2).then(|| self.rng.pick(&QUESTIONS))),
            103..=104 => Op::Forget(self.rng.one_in(2)),
            105..=106 => Op::CountLag(self.rng.below(4)),
            107..=108 => Op::Unfunded(self.rng.one_in(2)),
            109..=110 => Op::BaseFee(self.rng.pick(&[1, 1, 2, 10])),
            111 => Op::TxAction(TxAction::SpeedUp),
            0..=44 => Op::Step { who, fault: self.fault() },
            45..=56 => Op::PollHead { who, fails: self.rng.one_in(8) },
            57..=66 => Op::Mine(self.rng.below(3) as usize),
            67..=73 => Op::Submit,
            74..=78 => Op::TakeOver(who),
            79..=81 => Op::Claim(who),
            82..=84 => Op::Crash(who),
            85..=87 => Op::Renew(who),
            88..=89 => Op::Reorg { depth: self.depth_of_a_fork(), keep: self.rng.one_in(2) },
            90 => Op::Evict,
            91..=92 => Op::Lag(self.rng.below(3) as usize),
            93..=96 => Op::Advance(Duration::from_secs(self.rng.pick(&[1, 3, 9, 61]))),
            97..=98 => Op::TxAction(TxAction::Cancel),
            _ => Op::TxAction(TxAction::SpeedUp),
        }
    }

    /// Operations of optional features.
    fn choose_by_features(&mut self) -> Option<Op> {
        let features = self.features;
        match self.rng.below(14) {
            0 if features.has_reservations => Some(Op::Reserve),
            1..=2 if features.has_reservations => Some(Op::PollReservation),
            3 if features.is_shared => {
                Some(if self.rng.one_in(3) { Op::Outside } else { Op::OutsidePending })
            }
            4 if features.has_backends => Some(Op::Backend(self.backend())),
            5 if features.has_contract => Some(Op::Estimates(self.rng.pick(&[
                Estimates::Answered,
                Estimates::Answered,
                Estimates::Refused,
                Estimates::Unwilling,
            ]))),
            6 if features.has_external_use => {
                Some(if self.rng.one_in(3) { Op::OutsidePending } else { Op::Outside })
            }
            7..=8 if features.has_external_use => {
                Some(Op::OperatorAction(OperatorAction::Adopt, self.pointer()))
            }
            9 if features.has_external_use => Some(Op::OperatorAction(OperatorAction::Release, None)),
            _ => None,
        }
    }

    fn pointer(&mut self) -> Option<Pointer> {
        let all =
            [Pointer::Right, Pointer::Right, Pointer::WrongBlock, Pointer::OurOwn, Pointer::NoTransaction];
        self.rng.one_in(2).then(|| self.rng.pick(&all))
    }

    fn backend(&mut self) -> Option<Backend> {
        let fork = self.depth_of_a_fork();
        match self.rng.below(5) {
            0 => None,
            1..=2 => Some(Backend::Behind(1 + self.rng.below(3) as usize)),
            3 => Some(Backend::EmptyFork(fork)),
            _ => Some(Backend::FullFork(fork)),
        }
    }

    /// Always shallower than finality, except with `Sabotage::DeepFork`.
    fn depth_of_a_fork(&mut self) -> usize {
        let Finality::Blocks(depth) = self.parts.config.confirmations.required else {
            unreachable!("it counts blocks")
        };
        if self.context.sabotage == Sabotage::DeepFork {
            return depth as usize + 3;
        }
        1 + self.rng.below(depth - 1) as usize
    }

    pub(super) fn fault(&mut self) -> Option<CallFault> {
        self.rng.one_in(3).then(|| CallFault {
            at: self.rng.below(8),
            after: self.rng.one_in(2),
            stop: !self.rng.one_in(3),
        })
    }
}
