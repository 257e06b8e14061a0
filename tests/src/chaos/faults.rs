//! How each kind of fault is carried out, and mended.

mod answers;

use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::json;

pub(super) use self::answers::calls_invalid;
use super::Arena;
use super::history::Event;
use super::schedule::{Kind, Planned, plan};
use super::supervisor::Supervised;
use crate::proxy::{Fault, Proxy};
use crate::tcp_proxy::Outage;

const SEND: &str = "eth_sendRawTransaction";
/// How long a backend that lags is the one that answers.
const FLAP: Duration = Duration::from_millis(150);
/// How long a fault waits for somebody it can hit: a send whose answer is dropped, a database that is there.
const PATIENCE: Duration = Duration::from_secs(15);
const POLL: Duration = Duration::from_millis(20);
/// Shorter runs have no faults that last.
const LONG_RUN: Duration = Duration::from_secs(60);
const HOUR_S: i64 = 3600;

/// Carries out the faults of one kind, one after the other, each at its time or as soon after it as it can be.
pub(super) async fn carry_out(arena: &Arena, kind: Kind) {
    let options = &arena.options;
    for planned in plan(options.seed, options.length, options.per_hour, kind) {
        let Some(begun) = arena.wait_until(planned.at).await else { return };
        // `None`: it could not be done, and does not count.
        if let Some(what) = one(arena, planned).await {
            arena.history.note(Event::Fault { kind, what, lasted_ms: begun.elapsed().as_millis() });
        }
    }
}

async fn one(arena: &Arena, planned: Planned<Kind>) -> Option<String> {
    let mut dice = StdRng::seed_from_u64(planned.dice);
    match planned.kind {
        Kind::KillWorker => Some(kill(arena, pick(&arena.workers, &mut dice), &mut dice).await),
        Kind::KillApi => Some(kill(arena, pick(&arena.apis, &mut dice), &mut dice).await),
        Kind::StopWorker => Some(stop(arena, &mut dice).await),
        Kind::RollWorkers => Some(roll(arena).await),
        Kind::MoveClock => Some(move_clock(arena, &mut dice)),
        Kind::TerminateSessions => terminate(arena, &mut dice).await,
        Kind::RestartPostgres => {
            arena.stack.restart_postgres_immediately().await;
            Some("immediate".to_owned())
        }
        Kind::CutDatabase => Some(cut_database(arena, &mut dice).await),
        Kind::SlowDatabase => Some(slow_database(arena, &mut dice).await),
        Kind::CutNode => Some(cut_node(arena, &mut dice).await),
        Kind::SlowNode => Some(slow_node(arena, &mut dice).await),
        Kind::DropAnswers => drop_answers(arena).await,
        Kind::Reorg => reorg(arena, &mut dice).await,
        Kind::EmptyMempool => empty_mempool(arena).await,
        Kind::WrongAnswers => Some(answers::wrong_answers(arena, &mut dice).await),
        Kind::HideTransactions => Some(hide_transactions(arena, &mut dice).await),
        Kind::LaggingNode => lagging_node(arena, &mut dice).await,
        Kind::PrunedNode => Some(pruned_node(arena, &mut dice).await),
        Kind::DisagreeingNodes => disagreeing_nodes(arena, &mut dice).await,
        Kind::FatalAnswers => Some(answers::fatal_answers(arena, &mut dice).await),
    }
}

fn pick<'a>(slots: &'a [Supervised], dice: &mut StdRng) -> &'a Supervised {
    &slots[dice.random_range(0..slots.len())]
}

fn anybody<'a>(arena: &'a Arena, dice: &mut StdRng) -> &'a Supervised {
    let slots = arena.slots();
    slots[dice.random_range(0..slots.len())]
}

pub(super) fn some_ms(dice: &mut StdRng, from: u64, to: u64) -> Duration {
    Duration::from_millis(dice.random_range(from..to))
}

async fn kill(arena: &Arena, process_slot: &Supervised, dice: &mut StdRng) -> String {
    let away = some_ms(dice, 0, 1500);
    process_slot.kill(&arena.stack, away).await;
    format!("{}, away for {away:?}", process_slot.name())
}

async fn stop(arena: &Arena, dice: &mut StdRng) -> String {
    let process_slot = pick(&arena.workers, dice);
    let length = arena.options.lease.mul_f64(1.3) + some_ms(dice, 0, 1500);
    process_slot.freeze(length).await;
    format!("{} for {length:?}", process_slot.name())
}

async fn roll(arena: &Arena) -> String {
    let mut by_force = 0;
    for worker in &arena.workers {
        by_force += usize::from(!worker.roll(&arena.stack).await);
    }
    format!("{} workers, {by_force} by force", arena.workers.len())
}

/// An hour ahead, an hour behind, or nearly right again. The one fault that stays when all others are mended.
fn move_clock(arena: &Arena, dice: &mut StdRng) -> String {
    let process_slot = anybody(arena, dice);
    let seconds = [-HOUR_S, HOUR_S, 0][dice.random_range(0..3)] + dice.random_range(-60..=60);
    process_slot.set_clock(seconds);
    format!("{} by {seconds} s", process_slot.name())
}

/// Every session of the programs, or half of them.
async fn terminate(arena: &Arena, dice: &mut StdRng) -> Option<String> {
    let (parts, salt): (i32, i64) = (dice.random_range(1..=2), dice.random_range(0..1_000));
    let deadline = Instant::now() + PATIENCE;
    // The database may be away for another reason just now.
    while Instant::now() < deadline {
        let ended = sqlx::query_scalar::<_, i64>(
            "SELECT count(pg_terminate_backend(pid))
             FROM pg_stat_activity
             WHERE datname = current_database() AND backend_type = 'client backend'
               AND (application_name LIKE 'gapless-%' OR application_name = 'plain-worker')
               AND (pid + $2) % $1 = 0",
        )
        .bind(parts)
        .bind(salt)
        .fetch_one(arena.stack.db())
        .await;
        if let Ok(ended @ 1..) = ended {
            return Some(format!("{ended} sessions"));
        }
        tokio::time::sleep(POLL).await;
    }
    None
}

async fn cut_database(arena: &Arena, dice: &mut StdRng) -> String {
    let outage = [Outage::Cut, Outage::Hole, Outage::AnswersLost][dice.random_range(0..3)];
    // Longer than a lease, sometimes: then the others must go on without it.
    on_wire(arena, anybody(arena, dice), outage, some_ms(dice, 200, 3500)).await
}

async fn slow_database(arena: &Arena, dice: &mut StdRng) -> String {
    let outage = Outage::Slow(some_ms(dice, 5, 150));
    on_wire(arena, anybody(arena, dice), outage, some_ms(dice, 1000, 3000)).await
}

async fn on_wire(arena: &Arena, process_slot: &Supervised, outage: Outage, length: Duration) -> String {
    // One fault of a line at a time: the second would mend the first.
    let _alone = arena.wires.lock().await;
    process_slot.wire.begin(outage);
    tokio::time::sleep(length).await;
    process_slot.wire.mend();
    format!("{}: {outage:?} for {length:?}", process_slot.name())
}

/// Of one worker for a moment, or of all of them so long that whoever waits must show it.
async fn cut_node(arena: &Arena, dice: &mut StdRng) -> String {
    let fault = if dice.random() { Fault::Close } else { Fault::Hang };
    if !lasts_long(arena, dice) {
        return on_node(arena, pick(&arena.workers, dice), fault, some_ms(dice, 200, 3000)).await;
    }
    let length = long(dice);
    let _alone = arena.nodes.lock().await;
    let proxies = || arena.workers.iter().flat_map(Supervised::proxies);
    proxies().for_each(|proxy| proxy.always("*", fault.clone()));
    tokio::time::sleep(length).await;
    proxies().for_each(Proxy::clear);
    format!("all workers: {fault:?} for {length:?}")
}

/// One in eight, in runs that are long enough for it.
pub(super) fn lasts_long(arena: &Arena, dice: &mut StdRng) -> bool {
    dice.random_bool(0.125) && arena.options.length >= LONG_RUN
}

/// Longer than the checker lets anybody stand still without a word.
pub(super) fn long(dice: &mut StdRng) -> Duration {
    some_ms(dice, 14_000, 26_000)
}

async fn slow_node(arena: &Arena, dice: &mut StdRng) -> String {
    let fault = Fault::Delay(some_ms(dice, 50, 1000));
    on_node(arena, pick(&arena.workers, dice), fault, some_ms(dice, 500, 2500)).await
}

async fn on_node(arena: &Arena, process_slot: &Supervised, fault: Fault, length: Duration) -> String {
    let _alone = arena.nodes.lock().await;
    process_slot.proxy.always("*", fault.clone());
    tokio::time::sleep(length).await;
    process_slot.proxy.clear();
    format!("{}: {fault:?} for {length:?}", process_slot.name())
}

/// Whoever sends next is not told that the node took it.
async fn drop_answers(arena: &Arena) -> Option<String> {
    let _alone = arena.nodes.lock().await;
    for worker in &arena.workers {
        worker.proxy.next(1, SEND, Fault::DropAnswer);
    }
    let deadline = Instant::now() + PATIENCE;
    let hit = loop {
        let hit = arena.workers.iter().find(|worker| worker.proxy.rules_left() == 0);
        if hit.is_some() || Instant::now() > deadline || arena.over.is_cancelled() {
            break hit.map(Supervised::name);
        }
        tokio::time::sleep(POLL).await;
    };
    arena.workers.iter().for_each(|worker| worker.proxy.clear());
    hit
}

/// One of them, or all.
fn some_workers<'a>(arena: &'a Arena, dice: &mut StdRng) -> Vec<&'a Supervised> {
    let one = pick(&arena.workers, dice);
    if dice.random() { arena.workers.iter().collect() } else { vec![one] }
}

fn names(slots: &[&Supervised]) -> String {
    slots.iter().map(|process_slot| process_slot.name()).collect::<Vec<_>>().join(", ")
}

/// `null` for receipts and transactions by hash, and half of the time for blocks with their transactions as well.
async fn hide_transactions(arena: &Arena, dice: &mut StdRng) -> String {
    let (whom, length, all) = (some_workers(arena, dice), some_ms(dice, 500, 5000), dice.random::<bool>());
    for process_slot in &whom {
        if all { process_slot.proxy.hide_transactions() } else { process_slot.proxy.show_blocks() }
    }
    tokio::time::sleep(length).await;
    whom.iter().for_each(|process_slot| process_slot.proxy.show_transactions());
    let what = if all { "no index, no blocks" } else { "no index" };
    format!("{}: {what} for {length:?}", names(&whom))
}

/// The chain as it was 1 to 3 blocks ago, for a while or again and again: a backend that follows late.
async fn lagging_node(arena: &Arena, dice: &mut StdRng) -> Option<String> {
    let (whom, blocks, length) =
        (some_workers(arena, dice), dice.random_range(1..=3), some_ms(dice, 500, 4000));
    let flaps = dice.random::<bool>();
    let until = Instant::now() + length;
    while Instant::now() < until {
        let head = arena.stack.anvil().head().await;
        whom.iter().for_each(|process_slot| process_slot.proxy.freeze_at(head.saturating_sub(blocks)));
        tokio::time::sleep(if flaps { FLAP } else { length }).await;
        if flaps {
            whom.iter().for_each(|process_slot| process_slot.proxy.thaw());
            tokio::time::sleep(FLAP).await;
        }
    }
    whom.iter().for_each(|process_slot| process_slot.proxy.thaw());
    let how = if flaps { "now and then " } else { "" };
    Some(format!("{}: {how}{blocks} behind for {length:?}", names(&whom)))
}

/// Two backends behind one address, one of them behind or on another fork. A worker with two nodes has the other one for itself.
async fn disagreeing_nodes(arena: &Arena, dice: &mut StdRng) -> Option<String> {
    let (whom, blocks, length) =
        (some_workers(arena, dice), dice.random_range(1..=3), some_ms(dice, 500, 4000));
    let (forks, salt, more) = (dice.random::<bool>(), dice.random::<u64>(), dice.random_range(0..=1));
    let node = arena.stack.anvil();
    let proxies =
        || whom.iter().map(|process_slot| process_slot.second.as_ref().unwrap_or(&process_slot.proxy));
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

/// Only the newest states are there, fewer than it takes to be final.
async fn pruned_node(arena: &Arena, dice: &mut StdRng) -> String {
    let (whom, length) = (some_workers(arena, dice), some_ms(dice, 1000, 6000));
    let keeps = dice.random_range(1..=arena.options.required);
    whom.iter().for_each(|process_slot| process_slot.proxy.keep_states(keeps));
    tokio::time::sleep(length).await;
    whom.iter().for_each(|process_slot| process_slot.proxy.keep_all_states());
    format!("{}: {keeps} states for {length:?}", names(&whom))
}

/// Never deep enough to reach what is final.
async fn reorg(arena: &Arena, dice: &mut StdRng) -> Option<String> {
    let depth = dice.random_range(1..arena.options.required);
    let done = arena.stack.anvil().try_rpc("anvil_reorg", json!([depth, []])).await;
    done.ok().map(|_| format!("{depth} deep"))
}

/// Waits until there is something in it.
async fn empty_mempool(arena: &Arena) -> Option<String> {
    let (node, deadline) = (arena.stack.anvil(), Instant::now() + PATIENCE);
    loop {
        let waiting = node.pending().await;
        if waiting > 0 {
            node.drop_all().await;
            return Some(format!("{waiting} transactions"));
        }
        if Instant::now() > deadline || arena.over.is_cancelled() {
            return None;
        }
        tokio::time::sleep(POLL).await;
    }
}
