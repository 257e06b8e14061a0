//! What may happen, and how a seed chooses.

use std::time::Duration;

use gapless::domain::Finality;
use gapless::store::{OperatorAction, TxAction};

use super::History;
use super::clients::Pointer;
use crate::sim::Sabotage;
use crate::sim::gate::Hitch;
use crate::sim::ledger::{Backend, Estimates};

/// What a node can have trouble with, by the names of `ports`.
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
        hitch: Option<Hitch>,
    },
    Look {
        who: usize,
        fails: bool,
    },
    /// The lease is over, and somebody else takes it while the last owner believes in it.
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
    /// The count at `latest` is that of so many blocks ago.
    CountLag(u64),
    /// There is an index of transactions, or none.
    Forget(bool),
    /// The account has nothing, or has enough.
    Broke(bool),
    /// So many times the usual base fee.
    BaseFee(u64),
    /// Questions of this kind are answered with the node's own trouble.
    Trouble(Option<&'static str>),
    Advance(Duration),
    Ask(TxAction),
    /// Somebody else uses the key.
    Outside,
    /// Somebody else's transaction is in the pool.
    OutsidePending,
    /// An operator decides what a used key means, and may name the transaction that used it.
    Operate(OperatorAction, Option<Pointer>),
    /// A caller asks for a nonce.
    Reserve,
    /// A caller says what it wants at its nonce, that it still waits, or nothing any more.
    HearCaller,
    Estimates(Estimates),
    /// A second backend, or none.
    Backend(Option<Backend>),
}

impl History<'_> {
    pub(super) fn choose(&mut self) -> Op {
        let who = self.dice.below(2) as usize;
        // Something that stands still is what all the rest is for; but not for ever.
        if self.processes[who].is_stopped() && self.dice.one_in(3) {
            return if self.dice.one_in(3) { Op::Crash(who) } else { Op::Step { who, hitch: self.hitch() } };
        }
        if let Some(op) = self.choose_by_features() {
            return op;
        }
        match self.dice.below(116) {
            112 => Op::Outside,
            113..=114 => Op::Operate(OperatorAction::Adopt, self.pointer()),
            115 => Op::Operate(OperatorAction::Release, None),
            100..=102 => Op::Trouble(self.dice.one_in(2).then(|| self.dice.pick(&QUESTIONS))),
            103..=104 => Op::Forget(self.dice.one_in(2)),
            105..=106 => Op::CountLag(self.dice.below(4)),
            107..=108 => Op::Broke(self.dice.one_in(2)),
            109..=110 => Op::BaseFee(self.dice.pick(&[1, 1, 2, 10])),
            111 => Op::Ask(TxAction::SpeedUp),
            0..=44 => Op::Step { who, hitch: self.hitch() },
            45..=56 => Op::Look { who, fails: self.dice.one_in(8) },
            57..=66 => Op::Mine(self.dice.below(3) as usize),
            67..=73 => Op::Submit,
            74..=78 => Op::TakeOver(who),
            79..=81 => Op::Claim(who),
            82..=84 => Op::Crash(who),
            85..=87 => Op::Renew(who),
            88..=89 => Op::Reorg { depth: self.depth_of_a_fork(), keep: self.dice.one_in(2) },
            90 => Op::Evict,
            91..=92 => Op::Lag(self.dice.below(3) as usize),
            93..=96 => Op::Advance(Duration::from_secs(self.dice.pick(&[1, 3, 9, 61]))),
            97..=98 => Op::Ask(TxAction::Cancel),
            _ => Op::Ask(TxAction::SpeedUp),
        }
    }

    /// What only some histories have.
    fn choose_by_features(&mut self) -> Option<Op> {
        let features = self.features;
        match self.dice.below(14) {
            0 if features.has_callers => Some(Op::Reserve),
            1..=2 if features.has_callers => Some(Op::HearCaller),
            3 if features.is_shared => {
                Some(if self.dice.one_in(3) { Op::Outside } else { Op::OutsidePending })
            }
            4 if features.has_backends => Some(Op::Backend(self.backend())),
            5 if features.has_contract => Some(Op::Estimates(self.dice.pick(&[
                Estimates::Answered,
                Estimates::Answered,
                Estimates::Refused,
                Estimates::Unwilling,
            ]))),
            6 if features.has_strangers => {
                Some(if self.dice.one_in(3) { Op::OutsidePending } else { Op::Outside })
            }
            7..=8 if features.has_strangers => Some(Op::Operate(OperatorAction::Adopt, self.pointer())),
            9 if features.has_strangers => Some(Op::Operate(OperatorAction::Release, None)),
            _ => None,
        }
    }

    fn pointer(&mut self) -> Option<Pointer> {
        let all =
            [Pointer::Right, Pointer::Right, Pointer::WrongBlock, Pointer::OurOwn, Pointer::NoTransaction];
        self.dice.one_in(2).then(|| self.dice.pick(&all))
    }

    fn backend(&mut self) -> Option<Backend> {
        let fork = self.depth_of_a_fork();
        match self.dice.below(5) {
            0 => None,
            1..=2 => Some(Backend::Behind(1 + self.dice.below(3) as usize)),
            3 => Some(Backend::EmptyFork(fork)),
            _ => Some(Backend::FullFork(fork)),
        }
    }

    /// Never as deep as what counts as final, but for one that is broken on purpose.
    fn depth_of_a_fork(&mut self) -> usize {
        let Finality::Blocks(depth) = self.parts.config.confirmations.required else {
            unreachable!("it counts blocks")
        };
        if self.bench.sabotage == Sabotage::DeepFork {
            return depth as usize + 3;
        }
        1 + self.dice.below(depth - 1) as usize
    }

    pub(super) fn hitch(&mut self) -> Option<Hitch> {
        self.dice.one_in(3).then(|| Hitch {
            at: self.dice.below(8),
            after: self.dice.one_in(2),
            stop: !self.dice.one_in(3),
        })
    }
}
