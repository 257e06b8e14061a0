//! One history: what happens, chosen by a seed, and then the way to the end, on which nothing bad happens any more.

mod callers;
mod chain;
mod clients;
mod ending;
mod features;
mod op;
mod script;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use ethers_signers::{LocalWallet, Signer as _};
use gapless::config::{self, ChainConfig, ReleaseAt};
use gapless::domain::{ChainId, Finality, SubmitterKey, WorkerId};
use gapless::notifier::Notifier;
use gapless::store::{Announced, Store};
use gapless_worker::sim_driver::Next;
use sqlx::PgPool;
use sqlx::types::chrono::NaiveDate;

use super::Sabotage;
use super::clock;
use super::dice::Dice;
use super::gate::Hitch;
use super::ledger::{Estimates, Ledger};
use super::log::Log;
use super::process::{Parts, Process, Stepped};
pub(super) use callers::Said;
pub(super) use clients::Intent;
pub(super) use features::{Features, VALUE_OF_A_DAY};
use op::Op;

/// Leases run out by the database's clock, or whenever the seed says so.
pub(super) const LEASE: config::Lease = config::Lease {
    duration: Duration::from_secs(10),
    renew_interval: Duration::from_secs(3),
    clock_skew: Duration::ZERO,
};
const PROCESSES: [char; 2] = ['A', 'B'];
/// Steps of one lane before it is another's turn.
const STEPS: u32 = 40;

/// What a thread has for all its histories.
pub(super) struct Bench {
    pub(super) store: Store,
    pub(super) db: PgPool,
    pub(super) notifier: Notifier,
    pub(super) config: ChainConfig,
    pub(super) sabotage: Sabotage,
}

pub(super) struct History<'a> {
    pub(super) bench: &'a Bench,
    pub(super) key: SubmitterKey,
    pub(super) intents: Vec<Intent>,
    pub(super) features: Features,
    /// The database's day at the beginning.
    pub(super) began: NaiveDate,
    pub(super) log: Log,
    dice: Dice,
    parts: Parts,
    processes: Vec<Process>,
}

impl<'a> History<'a> {
    /// One that has nothing but requests, workers and blocks.
    pub(super) async fn begin_plain(bench: &'a Bench, seed: u64, is_shared: bool) -> History<'a> {
        let features = Features { is_shared, ..Features::default() };
        History::begin_with(bench, seed, Dice::new(seed), features).await
    }

    /// One that may have everything.
    pub(super) async fn begin(bench: &'a Bench, seed: u64) -> History<'a> {
        let mut dice = Dice::new(seed);
        let features = Features::choose(&mut dice, bench.sabotage);
        History::begin_with(bench, seed, dice, features).await
    }

    async fn begin_with(bench: &'a Bench, seed: u64, mut dice: Dice, features: Features) -> History<'a> {
        let wallet = LocalWallet::from_bytes(&[7; 32]).expect("a key");
        // A chain of its own: no history knows of another.
        let chain_id = ChainId(1_000 + seed);
        let mut config = ChainConfig { id: chain_id, ..bench.config.clone() };
        config.confirmations.required = Finality::Blocks(2 + dice.below(3));
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
        log.add(format!("     {features:?}"));
        let key = SubmitterKey { chain_id, address: wallet.address() };
        if features.has_policy && bench.sabotage != Sabotage::NoPolicy {
            config.policies.insert(key.address, Arc::new(features::policy()));
        }
        let announced = Announced { key, signer: "raw_key", shared: features.is_shared, low_level: false };
        bench.store.announce(&[announced]).await.unwrap();
        let mut ledger = Ledger::new(wallet.address(), seed);
        ledger.forges = bench.sabotage == Sabotage::ForgedTaker;
        if bench.sabotage == Sabotage::FalseReverts {
            ledger.estimates = Estimates::Reverted;
        }
        let ledger = Arc::new(Mutex::new(ledger));
        let (store, notifier) = (bench.store.clone(), bench.notifier.clone());
        let leaks = bench.sabotage == Sabotage::SendBeforeCommit;
        let parts = Parts { config, ledger, wallet, store, notifier, log: log.clone(), leaks };
        let processes = PROCESSES.map(|name| Process::start(name, &parts)).into();
        History {
            bench,
            key,
            intents: Vec::new(),
            features,
            began: clock::now(&bench.db).await.date_naive(),
            log,
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
        self.happen(Op::Submit).await;
        self.happen(Op::Claim(0)).await;
        for _ in 0..15 + self.dice.below(25) + 4 * self.features.count() {
            let op = self.choose();
            self.happen(op).await;
        }
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
            Op::Operate(action, pointer) => self.operate(action, pointer).await,
            Op::Reserve => self.reserve().await,
            Op::HearCaller => self.hear_a_caller().await,
            Op::Mine(_)
            | Op::Reorg { .. }
            | Op::Evict
            | Op::Lag(_)
            | Op::CountLag(_)
            | Op::Forget(_)
            | Op::Broke(_)
            | Op::BaseFee(_)
            | Op::Trouble(_)
            | Op::Estimates(_)
            | Op::Backend(_)
            | Op::OutsidePending
            | Op::Outside => self.befall_the_chain(op),
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
        let node = WorkerId(self.processes[who].name().to_string());
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
