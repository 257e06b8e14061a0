//! One history: what happens, chosen by a seed, and then the way to the end, on which nothing bad happens any more.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ethers_signers::{LocalWallet, Signer as _};
use gapless::bell::Bell;
use gapless::config::{self, ChainConfig, ReleaseAt};
use gapless::domain::{Address, ChainId, Finality, NodeId, Payload, SubmitterKey, TxId, U256};
use gapless::store::{
    Announced, IntakeOutcome, NewIntent, OperatorAction, OperatorOutcome, OperatorRequest, Store, TxAction,
};
use gapless_worker::by_hand::Next;
use sqlx::PgPool;

use super::clock;
use super::dice::Dice;
use super::gate::Hitch;
use super::ledger::{BASE_FEE, Ledger};
use super::log::Log;
use super::process::{Parts, Process, Stepped};

/// Leases run out by the database's clock, or whenever the seed says so.
pub(super) const LEASE: config::Lease = config::Lease {
    duration: Duration::from_secs(10),
    renew_interval: Duration::from_secs(3),
    clock_skew: Duration::ZERO,
};
const MOST_INTENTS: usize = 4;
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
const PROCESSES: [char; 2] = ['A', 'B'];
/// Rounds on the way to the end: far more than the longest way takes.
const ROUNDS: u32 = 200;
/// Steps of one lane in one of these rounds.
const STEPS: u32 = 40;

#[derive(Clone, Copy, Debug)]
enum Op {
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
    /// An operator decides what a used key means.
    Operate(OperatorAction),
}

/// What a thread has for all its histories.
pub(super) struct Bench {
    pub(super) store: Store,
    pub(super) db: PgPool,
    pub(super) bell: Bell,
    pub(super) config: ChainConfig,
    pub(super) leaks: bool,
}

pub(super) struct History<'a> {
    pub(super) bench: &'a Bench,
    pub(super) key: SubmitterKey,
    /// With the value that tells it on chain.
    pub(super) intents: Vec<(TxId, u64)>,
    /// Intents whose end by cancellation somebody asked for, by request or by deadline.
    pub(super) may_be_cancelled: HashSet<TxId>,
    pub(super) log: Log,
    /// Whether requests may have deadlines.
    limited: bool,
    dice: Dice,
    parts: Parts,
    processes: Vec<Process>,
}

impl<'a> History<'a> {
    pub(super) async fn begin(bench: &'a Bench, seed: u64) -> History<'a> {
        let mut dice = Dice::new(seed);
        let wallet = LocalWallet::from_bytes(&[7; 32]).expect("a key");
        // A chain of its own: no history knows of another.
        let chain_id = ChainId(1_000 + seed);
        let mut config = ChainConfig { id: chain_id, ..bench.config.clone() };
        config.confirmations.required = Finality::Blocks(2 + dice.below(2));
        config.nonce.max_in_flight = dice.pick(&[1, 1, 3]);
        config.nonce.release_at = dice.pick(&[ReleaseAt::Confirmed, ReleaseAt::Mined]);
        config.gasbump.enabled = dice.one_in(3);
        let log = Log::default();
        log.add(format!(
            "     window {}, released when {:?}, final after {:?}, gas bump {}",
            config.nonce.max_in_flight,
            config.nonce.release_at,
            config.confirmations.required,
            config.gasbump.enabled
        ));
        let key = SubmitterKey { chain_id, address: wallet.address() };
        let announced = Announced { key, signer: "raw_key", shared: false, low_level: false };
        bench.store.announce(&[announced]).await.unwrap();
        let ledger = Arc::new(Mutex::new(Ledger::new(wallet.address())));
        let (store, bell, leaks) = (bench.store.clone(), bench.bell.clone(), bench.leaks);
        let parts = Parts { config, ledger, wallet, store, bell, log: log.clone(), leaks };
        let processes = PROCESSES.map(|name| Process::start(name, &parts)).into();
        History {
            bench,
            key,
            intents: Vec::new(),
            may_be_cancelled: HashSet::new(),
            log,
            limited: false,
            dice,
            parts,
            processes,
        }
    }

    pub(super) fn ledger(&self) -> std::sync::MutexGuard<'_, Ledger> {
        self.parts.ledger.lock().unwrap()
    }

    /// The part that the seed decides.
    pub(super) async fn run(&mut self) {
        self.limited = true;
        self.happen(Op::Submit).await;
        self.happen(Op::Claim(0)).await;
        for _ in 0..15 + self.dice.below(25) {
            let op = self.choose();
            self.happen(op).await;
        }
    }

    fn choose(&mut self) -> Op {
        let who = self.dice.below(2) as usize;
        // Something that stands still is what all the rest is for; but not for ever.
        if self.processes[who].is_stopped() && self.dice.one_in(3) {
            return if self.dice.one_in(3) { Op::Crash(who) } else { Op::Step { who, hitch: self.hitch() } };
        }
        match self.dice.below(116) {
            112 => Op::Outside,
            113..=114 => Op::Operate(OperatorAction::Adopt),
            115 => Op::Operate(OperatorAction::Release),
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
            88..=89 => {
                // Never as deep as what counts as final.
                let Finality::Blocks(depth) = self.parts.config.confirmations.required else {
                    unreachable!("it counts blocks")
                };
                Op::Reorg { depth: 1 + self.dice.below(depth - 1) as usize, keep: self.dice.one_in(2) }
            }
            90 => Op::Evict,
            91..=92 => Op::Lag(self.dice.below(3) as usize),
            93..=96 => Op::Advance(Duration::from_secs(self.dice.pick(&[1, 3, 9, 61]))),
            97..=98 => Op::Ask(TxAction::Cancel),
            _ => Op::Ask(TxAction::SpeedUp),
        }
    }

    fn hitch(&mut self) -> Option<Hitch> {
        self.dice.one_in(3).then(|| Hitch {
            at: self.dice.below(8),
            after: self.dice.one_in(2),
            stop: !self.dice.one_in(3),
        })
    }

    async fn happen(&mut self, op: Op) {
        match op {
            Op::Submit => self.submit().await,
            Op::Step { who, hitch } => {
                if self.processes[who].has_lane() {
                    let hitched = hitch.map(|hitch| format!(", and {hitch}")).unwrap_or_default();
                    self.say(format!("{} steps{hitched}", self.processes[who].name()));
                    self.step(who, hitch).await;
                }
            }
            Op::Look { who, fails } => {
                self.say(format!("{} looks at the chain", self.processes[who].name()));
                self.processes[who].look(fails).await;
            }
            Op::TakeOver(who) => {
                if !self.processes[who].has_lane() {
                    self.expire().await;
                    self.claim(who).await;
                }
            }
            Op::Claim(who) => self.claim(who).await,
            Op::Crash(who) => {
                self.say(format!("{} dies", self.processes[who].name()));
                self.processes[who] = Process::start(self.processes[who].name(), &self.parts);
            }
            Op::Renew(who) => self.renew(who).await,
            Op::Advance(time) => {
                self.say(format!("{time:?} pass"));
                clock::advance(&self.bench.db, time).await;
            }
            Op::Ask(action) => self.ask(action).await,
            Op::Operate(action) => self.operate(action).await,
            Op::Mine(_)
            | Op::Reorg { .. }
            | Op::Evict
            | Op::Lag(_)
            | Op::CountLag(_)
            | Op::Forget(_)
            | Op::Broke(_)
            | Op::BaseFee(_)
            | Op::Trouble(_)
            | Op::Outside => self.befall_the_chain(op),
        }
    }

    fn befall_the_chain(&mut self, op: Op) {
        let mut ledger = self.parts.ledger.lock().unwrap();
        let told = match op {
            Op::Mine(most) => format!("a block of {}", ledger.mine(most)),
            Op::Reorg { depth, keep } => {
                let what = if keep { "back to the pool" } else { "and forgotten" };
                format!("{} blocks are replaced, {what}", ledger.reorg(depth, keep))
            }
            Op::Evict => format!("the pool forgets {}", ledger.evict()),
            Op::Lag(blocks) => {
                ledger.lag = blocks;
                format!("the node lags {blocks} blocks")
            }
            Op::CountLag(blocks) => {
                ledger.count_lag = blocks;
                format!("the count at latest is {blocks} blocks behind")
            }
            Op::Forget(forgets) => {
                ledger.forgets = forgets;
                format!("there is {} index", if forgets { "no" } else { "an" })
            }
            Op::Broke(broke) => {
                ledger.is_broke = broke;
                format!("the account has {}", if broke { "nothing" } else { "enough" })
            }
            Op::BaseFee(times) => {
                ledger.base_fee = BASE_FEE * times;
                format!("the base fee is {times} times the usual one")
            }
            Op::Outside => format!("somebody else consumes nonce {}", ledger.use_outside()),
            Op::Trouble(with) => {
                ledger.trouble = with;
                format!("trouble of the node: {with:?}")
            }
            _ => return,
        };
        self.log.add(format!("   * {told}"));
    }

    async fn submit(&mut self) {
        if self.intents.len() >= MOST_INTENTS {
            return;
        }
        let value = 10 * (1 + self.dice.below(5)) + self.intents.len() as u64;
        let mut payload = Payload::transfer(Address::repeat_byte(0x77), U256::from(value));
        if self.limited && self.dice.one_in(6) {
            let limit = Duration::from_secs(self.dice.pick(&[1, 10, 100]));
            payload.deadline = Some(clock::now(&self.bench.db).await + limit);
        }
        let is_limited = payload.deadline.is_some();
        let intent = NewIntent::new(self.key, format!("r{value}"), payload, None);
        match &self.bench.store.insert_group(&[intent], false).await.unwrap()[..] {
            [IntakeOutcome::Created(tx_id)] => {
                self.intents.push((*tx_id, value));
                if is_limited {
                    self.may_be_cancelled.insert(*tx_id);
                }
            }
            // A false alarm that has not ended yet.
            [IntakeOutcome::Protected { .. }] => return self.say("a request is refused".to_owned()),
            other => panic!("{other:?}"),
        }
        let heard = self.dice.one_in(2);
        let limited = if is_limited { ", with a deadline" } else { "" };
        self.say(format!("intent {value} is queued{limited}{}", if heard { ", and said so" } else { "" }));
        if heard {
            self.processes.iter_mut().for_each(Process::tell_of_work);
        }
    }

    async fn ask(&mut self, action: TxAction) {
        if self.intents.is_empty() {
            return;
        }
        let (tx_id, value) = self.intents[self.dice.below(self.intents.len() as u64) as usize];
        self.say(format!("{action:?} of intent {value} is asked for"));
        let request = OperatorRequest { actor: "simulation", reason: "the seed says so" };
        if action == TxAction::Cancel {
            self.may_be_cancelled.insert(tx_id);
        }
        self.bench.store.ask_about_tx(tx_id, action, request).await.unwrap();
        self.processes.iter_mut().for_each(Process::tell_of_requests);
    }

    /// Only about a key that was used outside: everything else must come right without anybody.
    async fn operate(&mut self, action: OperatorAction) {
        if !self.ledger().was_used_outside() {
            return;
        }
        let request = OperatorRequest { actor: "simulation", reason: "the seed says so" };
        let asked = self.bench.store.request_action(self.key, action, request, None).await.unwrap();
        if let OperatorOutcome::Recorded(_) = asked {
            self.say(format!("an operator asks for {action:?}"));
            self.processes.iter_mut().for_each(Process::tell_of_requests);
        }
    }

    async fn step(&mut self, who: usize, hitch: Option<Hitch>) -> Stepped {
        let (stepped, over) = self.processes[who].step(hitch).await;
        if let Some(lease) = over {
            self.bench.store.release(vec![lease]).await.unwrap();
        }
        self.log.add(format!("     {}: {}", self.processes[who].name(), in_words(stepped)));
        stepped
    }

    async fn claim(&mut self, who: usize) {
        if self.processes[who].has_lane() {
            return;
        }
        let node = NodeId(self.processes[who].name().to_string());
        if let Some(lease) = self.bench.store.claim(&node, &[self.key], &LEASE).await.unwrap().pop() {
            self.say(format!("{node} takes the lease, token {}", lease.token().0));
            self.processes[who].own(lease, &self.parts);
        }
    }

    async fn expire(&mut self) {
        sqlx::query(
            "UPDATE submitter_lease SET expires_at = '-infinity' WHERE chain_id = $1 AND submitter = $2",
        )
        .bind(self.key.chain_id.as_i64())
        .bind(self.key.address_text())
        .execute(&self.bench.db)
        .await
        .unwrap();
    }

    async fn renew(&mut self, who: usize) {
        if let Some(tag) = self.processes[who].tag() {
            let lost = self.bench.store.renew(&[tag], &LEASE).await.unwrap();
            let name = self.processes[who].name();
            if lost.is_empty() {
                self.say(format!("{name} renews"));
            } else {
                self.say(format!("{name} hears that the lease is lost"));
                self.processes[who].dismiss(&self.parts);
            }
        }
    }

    /// Three are sent; somebody else takes the nonce of the first, and the other two become final.
    pub(super) async fn lose_the_first_of_three(&mut self) {
        self.parts.config.nonce.max_in_flight = 3;
        self.processes[0] = Process::start('A', &self.parts);
        for _ in 0..3 {
            self.happen(Op::Submit).await;
        }
        self.happen(Op::Claim(0)).await;
        self.processes[0].look(false).await;
        for _ in 0..STEPS {
            if !matches!(self.step(0, None).await, Stepped::To(Next::Again)) {
                break;
            }
        }
        assert_eq!(self.ledger().arrived().len(), 3, "all of them are sent");
        self.befall_the_chain(Op::Outside);
        for _ in 0..5 {
            self.befall_the_chain(Op::Mine(10));
        }
    }

    /// A lane whose mailbox is full hears neither of the block that holds its transaction nor that it was replaced. No time
    /// passes, so no timer helps. Answers what does not hold.
    pub(super) async fn flood_the_mailbox(&mut self) -> Vec<String> {
        let mut problems = Vec::new();
        self.happen(Op::Submit).await;
        self.happen(Op::Claim(0)).await;
        self.processes[0].look(false).await;
        self.step_on(0).await;
        assert_eq!(self.ledger().arrived().len(), 1, "it is sent");
        let mined = Op::Mine(10);
        let replaced = Op::Reorg { depth: 1, keep: false };
        for (op, expected) in [(mined, "TRACKING"), (replaced, "SUBMITTED"), (mined, "TRACKING")] {
            let waiting = self.processes[0].flood();
            if waiting > 1_000 {
                problems.push(format!("{waiting} news wait for a lane that reads none"));
            }
            self.befall_the_chain(op);
            if matches!(op, Op::Reorg { .. }) {
                // Nobody calls a block replaced before another one is there.
                (0..2).for_each(|_| self.befall_the_chain(Op::Mine(0)));
            }
            self.processes[0].look(false).await;
            self.step_on(0).await;
            let state: String = sqlx::query_scalar("SELECT state FROM managed_tx WHERE chain_id = $1")
                .bind(self.key.chain_id.as_i64())
                .fetch_one(&self.bench.db)
                .await
                .unwrap();
            if state != expected {
                problems.push(format!("after {op:?} it is {state} and not {expected}"));
            }
        }
        problems
    }

    /// As far as the lane gets without news.
    async fn step_on(&mut self, who: usize) {
        for _ in 0..STEPS {
            if !matches!(self.step(who, None).await, Stepped::To(Next::Again)) {
                break;
            }
        }
    }

    /// Ten minutes of a node's trouble, with work before and during it. What ends or stops without saying why is a problem.
    pub(super) async fn trouble(&mut self, with: &'static str) -> Vec<String> {
        let mut problems = Vec::new();
        self.happen(Op::Submit).await;
        self.happen(Op::Claim(0)).await;
        self.processes[0].look(false).await;
        for ten_seconds in 0..60 {
            if ten_seconds == 1 {
                self.say(format!("`{with}` is refused: rate limit exceeded"));
                self.ledger().trouble = Some(with);
            }
            if ten_seconds == 1 || ten_seconds == 6 {
                self.happen(Op::Submit).await;
                self.processes[0].tell_of_work();
            }
            for _ in 0..4 {
                self.claim(0).await;
                self.befall_the_chain(Op::Mine(10));
                self.processes[0].look(false).await;
                for _ in 0..STEPS {
                    let stepped = self.step(0, None).await;
                    if !matches!(stepped, Stepped::To(Next::Again) | Stepped::Stopped) {
                        break;
                    }
                }
                clock::advance(&self.bench.db, Duration::from_millis(2_500)).await;
                self.renew(0).await;
            }
            if ten_seconds > 2 {
                problems.extend(self.silent().await);
            }
            if !problems.is_empty() {
                break;
            }
        }
        self.ledger().trouble = None;
        problems
    }

    /// Intents that failed or were cancelled, and the oldest open one if it does not say that it waits for a node.
    async fn silent(&self) -> Vec<String> {
        let rows: Vec<(String, String, Option<String>)> = sqlx::query_as(
            "SELECT tx_id::TEXT, state, sub_state FROM managed_tx
             WHERE chain_id = $1 AND state IN ('FAILED', 'CANCELLED') AND sub_state IS DISTINCT FROM 'reverted'
             UNION ALL
             SELECT tx_id::TEXT, state, sub_state
             FROM (SELECT * FROM managed_tx WHERE chain_id = $1 AND finished_at IS NULL ORDER BY seq LIMIT 1) oldest
             WHERE sub_state IS DISTINCT FROM 'waiting_node'",
        )
        .bind(self.key.chain_id.as_i64())
        .fetch_all(&self.bench.db)
        .await
        .unwrap();
        rows.iter().map(|row| format!("during the trouble: {row:?}")).collect()
    }

    /// Transfers that did not have their effect.
    pub(super) async fn unconfirmed(&self) -> Vec<String> {
        let rows: Vec<(String, Option<String>, Option<String>)> = sqlx::query_as(
            "SELECT state, sub_state, last_error FROM managed_tx
             WHERE chain_id = $1 AND state <> 'CONFIRMED' AND sub_state IS DISTINCT FROM 'reverted'",
        )
        .bind(self.key.chain_id.as_i64())
        .fetch_all(&self.bench.db)
        .await
        .unwrap();
        rows.iter().map(|row| format!("in the end: {row:?}")).collect()
    }

    /// Nothing bad happens any more. True: everything has ended.
    pub(super) async fn drain(&mut self) -> bool {
        self.say("from here on all is well".to_owned());
        self.ledger().mend();
        for round in 0..ROUNDS {
            // What a fleet does by the clock, and what its notifications may have failed to tell.
            if round % 4 == 0 {
                for who in 0..self.processes.len() {
                    self.renew(who).await;
                    self.processes[who].tell_of_work();
                    self.processes[who].tell_of_requests();
                }
                let action = if round % 12 == 8 { OperatorAction::Release } else { OperatorAction::Adopt };
                self.operate(action).await;
            }
            if !self.processes.iter().any(Process::has_lane) {
                self.expire().await;
                self.claim(0).await;
            }
            for who in 0..self.processes.len() {
                self.processes[who].look(false).await;
                for _ in 0..STEPS {
                    let stepped = self.step(who, None).await;
                    if !matches!(stepped, Stepped::To(Next::Again) | Stepped::Stopped) {
                        break;
                    }
                }
            }
            self.befall_the_chain(Op::Mine(10));
            if round >= 2 && self.is_over().await {
                return true;
            }
            // Long pauses now and then: timers of a minute come to pass as well.
            let pause = if round % 8 == 7 { 61 } else { 2 };
            clock::advance(&self.bench.db, Duration::from_secs(pause)).await;
        }
        false
    }

    /// What a person wants to see of a history that does not end.
    pub(super) async fn where_it_stands(&self) -> Vec<String> {
        sqlx::query_scalar(
            "SELECT 'the cursor: ' || to_jsonb(c)::TEXT FROM submitter_nonce_cursor c WHERE chain_id = $1
             UNION ALL
             (SELECT DISTINCT 'asked: ' || action || ', ' || coalesce(outcome, 'not answered') FROM audit_log
              WHERE chain_id = $1)
             UNION ALL
             SELECT concat_ws(' ', 'open:', value, state, sub_state, last_error)
             FROM (SELECT *, payload ->> 'value' AS value FROM managed_tx WHERE chain_id = $1 AND finished_at IS NULL) t",
        )
        .bind(self.key.chain_id.as_i64())
        .fetch_all(&self.bench.db)
        .await
        .unwrap()
    }

    async fn is_over(&self) -> bool {
        let open: bool = sqlx::query_scalar(
            "SELECT EXISTS (SELECT FROM managed_tx WHERE chain_id = $1 AND finished_at IS NULL)",
        )
        .bind(self.key.chain_id.as_i64())
        .fetch_one(&self.bench.db)
        .await
        .unwrap();
        !open
    }

    fn say(&self, what: String) {
        self.log.add(format!("   - {what}"));
    }
}

/// Without times: those are not the same twice.
fn in_words(stepped: Stepped) -> &'static str {
    match stepped {
        Stepped::To(Next::Again) => "goes on",
        Stepped::To(Next::Wait(_)) => "waits",
        Stepped::To(Next::Pause(_)) => "starts over",
        Stepped::To(Next::Done) => "is done",
        Stepped::To(Next::Lost) => "has lost the lease",
        Stepped::Stopped => "stands still",
        Stepped::Idle => "has no lane",
    }
}
