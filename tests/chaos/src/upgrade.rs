//! An upgrade run: the schema of the previous release, then the migration and the roll of every process to this version,
//! back, and forward again, while clients send requests and faults are injected.
//!
//! The steps are at fixed fractions of the run. A phase lasts longer if no request was accepted and none became final in
//! it, up to a limit; then the checker reports it.

pub(crate) mod phases;

use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};

use self::phases::{Phase, count};
use super::ChaosRun;
use super::history::{Direction, Event};
use super::options::Upgrade;
use super::supervisor::{ProcessSlot, Signal};

const POLL: Duration = Duration::from_millis(250);
/// Time limit of the migration. Faults may interrupt it, then it is repeated.
const MIGRATION_LIMIT: Duration = Duration::from_secs(120);

/// Passes through all phases. Does nothing unless this is an upgrade run; returns early if fault injection ends.
pub(crate) async fn carry_out(run: &ChaosRun) {
    if let Some(upgrade) = &run.options.upgrade {
        // `None`: the checker reports the missing steps.
        let _ = roll(run, upgrade).await;
    }
}

async fn roll(run: &ChaosRun, upgrade: &Upgrade) -> Option<()> {
    let mut rng = StdRng::seed_from_u64(run.options.seed ^ 0x0005_e710_ca7e);
    for (number, phase) in Phase::ALL.into_iter().enumerate() {
        if phase == Phase::Migrated {
            migrate(run).await;
        }
        let first_event = run.history.len();
        run.history.record(Event::Phase { phase });
        say(run, phase.label());
        let begin = run.options.length.mul_f64(phase.begin());
        let end = run.options.length.mul_f64(Phase::ALL.get(number + 1).map_or(1.0, |next| next.begin()));
        let busy = async || wait_busy(run, first_event, upgrade.phase_limit).await;
        match phase.direction() {
            None => {
                run.wait_until(end).await?;
                busy().await?;
            }
            Some(direction) => {
                let plan = plan(run, &mut rng);
                let last = plan.len() - 1;
                for (index, (slot, signal)) in plan.into_iter().enumerate() {
                    run.wait_until(begin + (end - begin).mul_f64(index as f64 / last.max(1) as f64)).await?;
                    // The last process ends the mixture of versions.
                    if index == last {
                        busy().await?;
                    }
                    replace(run, slot, direction, signal).await;
                }
            }
        }
    }
    Some(())
}

fn say(run: &ChaosRun, what: &str) {
    (run.options.on_progress)(&format!("{:>5} s  upgrade: {what}", run.begun.elapsed().as_secs()));
}

/// All processes in random order, half of them to be ended by each signal.
fn plan<'a>(run: &'a ChaosRun, rng: &mut StdRng) -> Vec<(&'a ProcessSlot, Signal)> {
    let mut slots = run.slots();
    slots.shuffle(rng);
    let first = if rng.random() { [Signal::Term, Signal::Kill] } else { [Signal::Kill, Signal::Term] };
    slots.into_iter().zip(first.into_iter().cycle()).collect()
}

async fn replace(run: &ChaosRun, slot: &ProcessSlot, direction: Direction, signal: Signal) {
    let begun = Instant::now();
    let version = match direction {
        Direction::Forward => run.options.present(),
        Direction::Back => run.options.first(),
    };
    let started = slot.roll_to(&run.stack, version, signal).await;
    let (process, lasted_ms) = (slot.name(), begun.elapsed().as_millis());
    let outcome = if started { "started" } else { "not started yet" };
    let (to, by) = (direction.name(), signal.name());
    say(run, &format!("{process} rolled {to} ({by}), {outcome} after {lasted_ms} ms"));
    run.history.record(Event::Rolled { process, direction, signal, started, lasted_ms });
}

/// With this version's program, while the previous version runs. Repeated if a fault interrupts it, as an operator would.
async fn migrate(run: &ChaosRun) {
    let begun = Instant::now();
    let before = applied(run).await;
    let mut tries = 1;
    loop {
        let output = run.stack.migrate_by(&run.options.program).await;
        if output.code == 0 {
            break;
        }
        assert!(begun.elapsed() < MIGRATION_LIMIT, "the migration failed {tries} times: {output:?}");
        tries += 1;
        tokio::time::sleep(POLL).await;
    }
    let (added, lasted_ms) = (applied(run).await - before, begun.elapsed().as_millis());
    say(run, &format!("schema migrated: {added} migrations added, tries: {tries}"));
    run.history.record(Event::Migrated { added, tries, lasted_ms });
}

/// Number of applied migrations.
async fn applied(run: &ChaosRun) -> i64 {
    gapless_testkit::eventually("the database answers", async || {
        let count = sqlx::query_scalar("SELECT count(*) FROM _sqlx_migrations WHERE success");
        count.fetch_one(run.stack.db()).await.map_err(|error| error.to_string())
    })
    .await
}

/// Waits until a request was accepted and one became final since this event, or the limit. `None`: fault injection has
/// ended.
async fn wait_busy(run: &ChaosRun, first_event: usize, limit: Duration) -> Option<()> {
    let deadline = Instant::now() + limit;
    loop {
        let is_busy = count(&run.history.since(first_event)).iter().all(|phase| phase.is_busy());
        if is_busy || Instant::now() > deadline {
            return Some(());
        }
        tokio::select! {
            () = tokio::time::sleep(POLL) => {}
            () = run.stop_faults.cancelled() => return None,
        }
    }
}
