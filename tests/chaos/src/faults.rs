//! Injects and ends each kind of fault.

mod answers;

use std::time::{Duration, Instant};

use gapless_testkit::{Fault, Outage, Proxy};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::json;

pub(crate) use self::answers::calls_invalid;
use super::ChaosRun;
use super::history::Event;
use super::schedule::{Kind, Planned, plan};
use super::supervisor::ProcessSlot;

const SEND: &str = "eth_sendRawTransaction";
/// Interval at which a lagging backend and the current one alternate.
const FLAP: Duration = Duration::from_millis(150);
/// How long a fault waits for a target, for example a send whose response can be dropped.
const TIMEOUT: Duration = Duration::from_secs(15);
const POLL: Duration = Duration::from_millis(20);
/// Shorter runs have no long faults.
const LONG_RUN: Duration = Duration::from_secs(60);
const HOUR_S: i64 = 3600;

/// Injects the faults of one kind, one after the other, each at its planned time or as soon as possible after it.
pub(crate) async fn carry_out(run: &ChaosRun, kind: Kind) {
    let options = &run.options;
    for planned in plan(options.seed, options.length, options.per_hour, kind) {
        let Some(begun) = run.wait_until(planned.at).await else { return };
        // `None`: it could not be injected and is not counted.
        if let Some(what) = one(run, planned).await {
            run.history.record(Event::Fault { kind, what, lasted_ms: begun.elapsed().as_millis() });
        }
    }
}

async fn one(run: &ChaosRun, planned: Planned<Kind>) -> Option<String> {
    let mut rng = StdRng::seed_from_u64(planned.seed);
    match planned.kind {
        Kind::KillWorker => Some(kill(run, pick(&run.workers, &mut rng), &mut rng).await),
        Kind::KillApi => Some(kill(run, pick(&run.apis, &mut rng), &mut rng).await),
        Kind::StopWorker => Some(stop(run, &mut rng).await),
        Kind::RollWorkers => Some(roll(run).await),
        Kind::MoveClock => Some(move_clock(run, &mut rng)),
        Kind::TerminateSessions => terminate(run, &mut rng).await,
        Kind::RestartPostgres => {
            run.stack.restart_postgres_immediately().await;
            Some("immediate".to_owned())
        }
        Kind::CutDatabase => Some(cut_database(run, &mut rng).await),
        Kind::SlowDatabase => Some(slow_database(run, &mut rng).await),
        Kind::CutNode => Some(cut_node(run, &mut rng).await),
        Kind::SlowNode => Some(slow_node(run, &mut rng).await),
        Kind::DropAnswers => drop_answers(run).await,
        Kind::Reorg => reorg(run, &mut rng).await,
        Kind::EmptyMempool => empty_mempool(run).await,
        Kind::WrongAnswers => Some(answers::wrong_answers(run, &mut rng).await),
        Kind::HideTransactions => Some(hide_transactions(run, &mut rng).await),
        Kind::LaggingNode => lagging_node(run, &mut rng).await,
        Kind::PrunedNode => Some(pruned_node(run, &mut rng).await),
        Kind::DisagreeingNodes => disagreeing_nodes(run, &mut rng).await,
        Kind::FatalAnswers => Some(answers::fatal_answers(run, &mut rng).await),
    }
}

fn pick<'a>(slots: &'a [ProcessSlot], rng: &mut StdRng) -> &'a ProcessSlot {
    &slots[rng.random_range(0..slots.len())]
}

fn any_process<'a>(run: &'a ChaosRun, rng: &mut StdRng) -> &'a ProcessSlot {
    let slots = run.slots();
    slots[rng.random_range(0..slots.len())]
}

pub(crate) fn some_ms(rng: &mut StdRng, from: u64, to: u64) -> Duration {
    Duration::from_millis(rng.random_range(from..to))
}

async fn kill(run: &ChaosRun, slot: &ProcessSlot, rng: &mut StdRng) -> String {
    let away = some_ms(rng, 0, 1500);
    slot.kill(&run.stack, away).await;
    format!("{}, away for {away:?}", slot.name())
}

async fn stop(run: &ChaosRun, rng: &mut StdRng) -> String {
    let slot = pick(&run.workers, rng);
    let length = run.options.lease.mul_f64(1.3) + some_ms(rng, 0, 1500);
    slot.freeze(length).await;
    format!("{} for {length:?}", slot.name())
}

async fn roll(run: &ChaosRun) -> String {
    let mut by_force = 0;
    for worker in &run.workers {
        by_force += usize::from(!worker.roll(&run.stack).await);
    }
    format!("{} workers, {by_force} killed", run.workers.len())
}

/// An hour ahead, an hour behind, or nearly correct. The only fault that remains when all others have ended.
fn move_clock(run: &ChaosRun, rng: &mut StdRng) -> String {
    let slot = any_process(run, rng);
    let seconds = [-HOUR_S, HOUR_S, 0][rng.random_range(0..3)] + rng.random_range(-60..=60);
    slot.set_clock(seconds);
    format!("{} by {seconds} s", slot.name())
}

/// All database sessions of the processes, or half of them.
async fn terminate(run: &ChaosRun, rng: &mut StdRng) -> Option<String> {
    let (parts, salt): (i32, i64) = (rng.random_range(1..=2), rng.random_range(0..1_000));
    let deadline = Instant::now() + TIMEOUT;
    // Another fault may have made the database unreachable.
    while Instant::now() < deadline {
        let ended = sqlx::query_scalar::<_, i64>(
            "SELECT count(pg_terminate_backend(pid))
             FROM pg_stat_activity
             WHERE datname = current_database() AND backend_type = 'client backend'
               AND (application_name LIKE 'gapless-%' OR application_name = 'reference-worker')
               AND (pid + $2) % $1 = 0",
        )
        .bind(parts)
        .bind(salt)
        .fetch_one(run.stack.db())
        .await;
        if let Ok(ended @ 1..) = ended {
            return Some(format!("{ended} sessions"));
        }
        tokio::time::sleep(POLL).await;
    }
    None
}

async fn cut_database(run: &ChaosRun, rng: &mut StdRng) -> String {
    let outage = [Outage::Cut, Outage::Hole, Outage::AnswersLost][rng.random_range(0..3)];
    // Sometimes longer than a lease: then other workers must take over.
    on_wire(run, any_process(run, rng), outage, some_ms(rng, 200, 3500)).await
}

async fn slow_database(run: &ChaosRun, rng: &mut StdRng) -> String {
    let outage = Outage::Slow(some_ms(rng, 5, 150));
    on_wire(run, any_process(run, rng), outage, some_ms(rng, 1000, 3000)).await
}

async fn on_wire(run: &ChaosRun, slot: &ProcessSlot, outage: Outage, length: Duration) -> String {
    // One fault at a time: the end of a second one would also end the first.
    let _alone = run.database_faults.lock().await;
    slot.database_proxy.begin(outage);
    tokio::time::sleep(length).await;
    slot.database_proxy.restore();
    format!("{}: {outage:?} for {length:?}", slot.name())
}

/// Of one worker for up to 3 s, or of all workers so long that the stall must be reported.
async fn cut_node(run: &ChaosRun, rng: &mut StdRng) -> String {
    let fault = if rng.random() { Fault::Close } else { Fault::Hang };
    if !lasts_long(run, rng) {
        return on_node(run, pick(&run.workers, rng), fault, some_ms(rng, 200, 3000)).await;
    }
    let length = long(rng);
    let _alone = run.node_faults.lock().await;
    let proxies = || run.workers.iter().flat_map(ProcessSlot::proxies);
    proxies().for_each(|proxy| proxy.always("*", fault.clone()));
    tokio::time::sleep(length).await;
    proxies().for_each(Proxy::clear);
    format!("all workers: {fault:?} for {length:?}")
}

/// One in eight, in runs of at least `LONG_RUN`.
pub(crate) fn lasts_long(run: &ChaosRun, rng: &mut StdRng) -> bool {
    rng.random_bool(0.125) && run.options.length >= LONG_RUN
}

/// Longer than the checker allows for a stall that is not reported.
pub(crate) fn long(rng: &mut StdRng) -> Duration {
    some_ms(rng, 14_000, 26_000)
}

async fn slow_node(run: &ChaosRun, rng: &mut StdRng) -> String {
    let fault = Fault::Delay(some_ms(rng, 50, 1000));
    on_node(run, pick(&run.workers, rng), fault, some_ms(rng, 500, 2500)).await
}

async fn on_node(run: &ChaosRun, slot: &ProcessSlot, fault: Fault, length: Duration) -> String {
    let _alone = run.node_faults.lock().await;
    slot.proxy.always("*", fault.clone());
    tokio::time::sleep(length).await;
    slot.proxy.clear();
    format!("{}: {fault:?} for {length:?}", slot.name())
}

/// The node accepts the next send of a worker, and the response is dropped.
async fn drop_answers(run: &ChaosRun) -> Option<String> {
    let _alone = run.node_faults.lock().await;
    for worker in &run.workers {
        worker.proxy.next(1, SEND, Fault::DropAnswer);
    }
    let deadline = Instant::now() + TIMEOUT;
    let hit = loop {
        let hit = run.workers.iter().find(|worker| worker.proxy.rules_left() == 0);
        if hit.is_some() || Instant::now() > deadline || run.stop_faults.is_cancelled() {
            break hit.map(ProcessSlot::name);
        }
        tokio::time::sleep(POLL).await;
    };
    run.workers.iter().for_each(|worker| worker.proxy.clear());
    hit
}

/// One worker, or all.
fn some_workers<'a>(run: &'a ChaosRun, rng: &mut StdRng) -> Vec<&'a ProcessSlot> {
    let one = pick(&run.workers, rng);
    if rng.random() { run.workers.iter().collect() } else { vec![one] }
}

fn names(slots: &[&ProcessSlot]) -> String {
    slots.iter().map(|slot| slot.name()).collect::<Vec<_>>().join(", ")
}

/// `null` for receipts and transactions by hash; in half of the cases also for blocks with their transactions.
async fn hide_transactions(run: &ChaosRun, rng: &mut StdRng) -> String {
    let (whom, length, all) = (some_workers(run, rng), some_ms(rng, 500, 5000), rng.random::<bool>());
    for slot in &whom {
        if all { slot.proxy.hide_transactions() } else { slot.proxy.show_blocks() }
    }
    tokio::time::sleep(length).await;
    whom.iter().for_each(|slot| slot.proxy.show_transactions());
    let what = if all { "no index, no blocks" } else { "no index" };
    format!("{}: {what} for {length:?}", names(&whom))
}

/// The node shows the chain 1 to 3 blocks behind, continuously or alternating with the current head.
async fn lagging_node(run: &ChaosRun, rng: &mut StdRng) -> Option<String> {
    let (whom, blocks, length) = (some_workers(run, rng), rng.random_range(1..=3), some_ms(rng, 500, 4000));
    let flaps = rng.random::<bool>();
    let until = Instant::now() + length;
    while Instant::now() < until {
        let head = run.stack.anvil().head().await;
        whom.iter().for_each(|slot| slot.proxy.freeze_at(head.saturating_sub(blocks)));
        tokio::time::sleep(if flaps { FLAP } else { length }).await;
        if flaps {
            whom.iter().for_each(|slot| slot.proxy.thaw());
            tokio::time::sleep(FLAP).await;
        }
    }
    whom.iter().for_each(|slot| slot.proxy.thaw());
    let how = if flaps { "alternately " } else { "" };
    Some(format!("{}: {how}{blocks} behind for {length:?}", names(&whom)))
}

/// Two backends behind one address, one of them lagging or on another fork. A worker with two nodes keeps one correct
/// node.
async fn disagreeing_nodes(run: &ChaosRun, rng: &mut StdRng) -> Option<String> {
    let (whom, blocks, length) = (some_workers(run, rng), rng.random_range(1..=3), some_ms(rng, 500, 4000));
    let (forks, salt, more) = (rng.random::<bool>(), rng.random::<u64>(), rng.random_range(0..=1));
    let node = run.stack.anvil();
    let proxies = || whom.iter().map(|slot| slot.second.as_ref().unwrap_or(&slot.proxy));
    if forks {
        let place = format!("{:#x}", node.head().await.saturating_sub(blocks));
        let base = node.try_rpc("eth_getBlockByNumber", json!([place, false])).await.ok()?;
        if !proxies().all(|proxy| proxy.disagree_by_fork(&base, blocks + more, salt)) {
            return None;
        }
        tokio::time::sleep(length).await;
    } else {
        let until = Instant::now() + length;
        while Instant::now() < until {
            let head = node.head().await;
            proxies().for_each(|proxy| proxy.disagree_behind(head.saturating_sub(blocks)));
            tokio::time::sleep(FLAP).await;
        }
    }
    proxies().for_each(Proxy::agree);
    let how = if forks { "a fork from" } else { "one" };
    Some(format!("{}: {how} {blocks} behind for {length:?}", names(&whom)))
}

/// Only the newest states are available, at most `confirmations.required` of them.
async fn pruned_node(run: &ChaosRun, rng: &mut StdRng) -> String {
    let (whom, length) = (some_workers(run, rng), some_ms(rng, 1000, 6000));
    let keeps = rng.random_range(1..=run.options.required);
    whom.iter().for_each(|slot| slot.proxy.keep_states(keeps));
    tokio::time::sleep(length).await;
    whom.iter().for_each(|slot| slot.proxy.keep_all_states());
    format!("{}: {keeps} states for {length:?}", names(&whom))
}

/// Always shallower than `confirmations.required`.
async fn reorg(run: &ChaosRun, rng: &mut StdRng) -> Option<String> {
    let depth = rng.random_range(1..run.options.required);
    let done = run.change_chain("anvil_reorg", json!([depth, []])).await;
    done.map(|_| format!("{depth} deep"))
}

/// Waits until the mempool is not empty, and drops everything in it.
async fn empty_mempool(run: &ChaosRun) -> Option<String> {
    let (node, deadline) = (run.stack.anvil(), Instant::now() + TIMEOUT);
    loop {
        let waiting = node.pending().await;
        if waiting > 0 {
            node.drop_all().await;
            return Some(format!("{waiting} transactions"));
        }
        if Instant::now() > deadline || run.stop_faults.is_cancelled() {
            return None;
        }
        tokio::time::sleep(POLL).await;
    }
}
