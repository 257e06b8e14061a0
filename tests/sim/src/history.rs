//! One history: operations chosen by a seed, then a phase without faults until everything is final.

mod chain;
mod clients;
mod ending;
mod features;
mod op;
mod reservation_clients;
mod script;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use ethers_signers::{LocalWallet, Signer as _};
use gapless_config::{self as config, ChainConfig, ReleaseAt};
use gapless_domain::{ChainId, Finality, SubmitterKey, WorkerId};
use gapless_store::notifier::Notifier;
use gapless_store::{Announced, Store};
use gapless_worker::sim_driver::Next;
use sqlx::PgPool;
use sqlx::types::chrono::NaiveDate;

use super::Sabotage;
use super::call_boundary::CallFault;
use super::clock;
use super::ledger::{Estimates, Ledger};
use super::log::Log;
use super::process::{Parts, Process, Stepped};
use super::rng::SeededRng;
pub(crate) use clients::Intent;
pub(crate) use features::{DAILY_LIMIT, Features};
use op::Op;
pub(crate) use reservation_clients::{AnswerKind, ReservationClient};

/// Leases expire by the database's clock, or when the seed decides.
pub(crate) const LEASE: config::Lease = config::Lease {
    duration: Duration::from_secs(10),
    renew_interval: Duration::from_secs(3),
    clock_skew: Duration::ZERO,
};
const PROCESSES: [char; 2] = ['A', 'B'];
/// Maximum steps of one lane before the next one.
const STEPS: u32 = 40;

/// Dependencies of a thread, shared by all its histories.
pub(crate) struct ThreadContext {
    pub(crate) store: Store,
    pub(crate) db: PgPool,
    pub(crate) notifier: Notifier,
    pub(crate) config: ChainConfig,
    pub(crate) sabotage: Sabotage,
}

pub(crate) struct History<'a> {
    pub(crate) context: &'a ThreadContext,
    pub(crate) key: SubmitterKey,
    pub(crate) intents: Vec<Intent>,
    pub(crate) features: Features,
    /// The database's date at the start.
    pub(crate) began: NaiveDate,
    pub(crate) log: Log,
    rng: SeededRng,
    parts: Parts,
    processes: Vec<Process>,
}

impl<'a> History<'a> {
    /// A history with only requests, workers and blocks.
    pub(crate) async fn begin_plain(context: &'a ThreadContext, seed: u64, is_shared: bool) -> History<'a> {
        let features = Features { is_shared, ..Features::default() };
        History::begin_with(context, seed, SeededRng::new(seed), features).await
    }

    /// A history with random features.
    pub(crate) async fn begin(context: &'a ThreadContext, seed: u64) -> History<'a> {
        let mut rng = SeededRng::new(seed);
        let features = Features::choose(&mut rng, context.sabotage);
        History::begin_with(context, seed, rng, features).await
    }

    async fn begin_with(
        context: &'a ThreadContext,
        seed: u64,
        mut rng: SeededRng,
        features: Features,
    ) -> History<'a> {
        let wallet = LocalWallet::from_bytes(&[7; 32]).expect("a key");
        // Its own chain id: histories are independent.
        let chain_id = ChainId(1_000 + seed);
        let mut config = ChainConfig { id: chain_id, ..context.config.clone() };
        config.confirmations.required = Finality::Blocks(2 + rng.below(3));
        config.nonce.max_in_flight = rng.pick(&[1, 1, 3]);
        config.nonce.release_at = rng.pick(&[ReleaseAt::Confirmed, ReleaseAt::Mined]);
        config.gasbump.enabled = rng.one_in(3);
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
        if features.has_policy && context.sabotage != Sabotage::NoPolicy {
            config.policies.insert(key.address, Arc::new(features::policy()));
        }
        let announced = Announced { key, signer: "raw_key", shared: features.is_shared, low_level: false };
        context.store.announce(&[announced]).await.unwrap();
        let mut ledger = Ledger::new(wallet.address(), seed);
        ledger.forges = context.sabotage == Sabotage::ForgedExternal;
        if context.sabotage == Sabotage::FalseReverts {
            ledger.estimates = Estimates::Reverted;
        }
        let ledger = Arc::new(Mutex::new(ledger));
        let (store, notifier) = (context.store.clone(), context.notifier.clone());
        let leaks = context.sabotage == Sabotage::SendBeforeCommit;
        let parts = Parts { config, ledger, wallet, store, notifier, log: log.clone(), leaks };
        let processes = PROCESSES.map(|name| Process::start(name, &parts)).into();
        History {
            context,
            key,
            intents: Vec::new(),
            features,
            began: clock::now(&context.db).await.date_naive(),
            log,
            rng,
            parts,
            processes,
        }
    }

    pub(crate) fn ledger(&self) -> std::sync::MutexGuard<'_, Ledger> {
        self.parts.ledger.lock().unwrap()
    }

    /// The random part.
    pub(crate) async fn run(&mut self) {
        self.apply(Op::Submit).await;
        self.apply(Op::Claim(0)).await;
        for _ in 0..15 + self.rng.below(25) + 4 * self.features.count() {
            let op = self.choose();
            self.apply(op).await;
        }
    }

    async fn apply(&mut self, op: Op) {
        match op {
            Op::Submit => self.submit().await,
            Op::Step { who, fault } => {
                if self.processes[who].has_lane() {
                    let faulty = fault.map(|fault| format!(", and {fault}")).unwrap_or_default();
                    self.log_event(format!("{} steps{faulty}", self.processes[who].name()));
                    self.step(who, fault).await;
                }
            }
            Op::PollHead { who, fails } => {
                self.log_event(format!("{} polls the head", self.processes[who].name()));
                self.processes[who].poll_head(fails).await;
            }
            Op::TakeOver(who) => {
                if !self.processes[who].has_lane() {
                    self.expire().await;
                    self.claim(who).await;
                }
            }
            Op::Claim(who) => self.claim(who).await,
            Op::Crash(who) => {
                self.log_event(format!("{} crashes", self.processes[who].name()));
                self.processes[who] = Process::start(self.processes[who].name(), &self.parts);
            }
            Op::Renew(who) => self.renew(who).await,
            Op::Advance(time) => {
                self.log_event(format!("{time:?} pass"));
                clock::advance(&self.context.db, time).await;
            }
            Op::TxAction(action) => self.tx_action(action).await,
            Op::OperatorAction(action, pointer) => self.operator_action(action, pointer).await,
            Op::Reserve => self.reserve().await,
            Op::PollReservation => self.poll_a_reservation_client().await,
            Op::Mine(_)
            | Op::Reorg { .. }
            | Op::Evict
            | Op::Lag(_)
            | Op::CountLag(_)
            | Op::Forget(_)
            | Op::Unfunded(_)
            | Op::BaseFee(_)
            | Op::Outage(_)
            | Op::Estimates(_)
            | Op::Backend(_)
            | Op::OutsidePending
            | Op::Outside => self.apply_to_chain(op),
        }
    }

    async fn step(&mut self, who: usize, fault: Option<CallFault>) -> Stepped {
        let (stepped, over) = self.processes[who].step(fault).await;
        if let Some(lease) = over {
            self.context.store.release(vec![lease]).await.unwrap();
        }
        self.log.add(format!("     {}: {}", self.processes[who].name(), describe(stepped)));
        stepped
    }

    async fn claim(&mut self, who: usize) {
        if self.processes[who].has_lane() {
            return;
        }
        let node = WorkerId(self.processes[who].name().to_string());
        if let Some(lease) = self.context.store.claim(&node, &[self.key], &LEASE).await.unwrap().pop() {
            self.log_event(format!("{node} claims the lease, token {}", lease.token().0));
            self.processes[who].add_lane(lease, &self.parts);
        }
    }

    async fn expire(&mut self) {
        sqlx::query(
            "UPDATE submitter_lease SET expires_at = '-infinity' WHERE chain_id = $1 AND submitter = $2",
        )
        .bind(self.key.chain_id.as_i64())
        .bind(self.key.address.as_bytes())
        .execute(&self.context.db)
        .await
        .unwrap();
    }

    async fn renew(&mut self, who: usize) {
        if let Some(tag) = self.processes[who].tag() {
            let lost = self.context.store.renew(&[tag], &LEASE).await.unwrap();
            let name = self.processes[who].name();
            if lost.is_empty() {
                self.log_event(format!("{name} renews"));
            } else {
                self.log_event(format!("{name} learns that the lease is lost"));
                self.processes[who].drop_lane(&self.parts);
            }
        }
    }

    fn log_event(&self, what: String) {
        self.log.add(format!("   - {what}"));
    }
}

/// Without durations, which differ between runs.
fn describe(stepped: Stepped) -> &'static str {
    match stepped {
        Stepped::To(Next::Again) => "continues",
        Stepped::To(Next::Wait(_)) => "waits",
        Stepped::To(Next::Pause(_)) => "starts over",
        Stepped::To(Next::Done) => "is done",
        Stepped::To(Next::Lost) => "has lost the lease",
        Stepped::Stopped => "is stopped",
        Stepped::Idle => "has no lane",
    }
}
