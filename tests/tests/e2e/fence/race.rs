//! Owners that pause at critical moments, take over from each other and continue to write. With the fence the audit
//! finds nothing; with an EXISTS condition, under the same load, it must find violations.
//!
//! Triggers and the unique index are dropped for these tests, because they would hide violations of the fence.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use futures::future::join_all;
use gapless_config as config;
use gapless_domain::{Nonce, WorkerId};
use gapless_store::{Applied, Lease};
use gapless_testkit::{LIMIT, TxId};

use super::fixture::{Fixture, LEASE};

const OWNERS: usize = 6;
const SUBMITTERS: usize = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FenceStrategy {
    /// As in the product.
    LockThenWrite,
    /// Each statement checks with EXISTS whether the lease is still valid.
    Exists,
}

#[derive(Debug, Default)]
struct Tally {
    written: AtomicU32,
    refused: AtomicU32,
}

impl Tally {
    fn count(&self, written: bool) {
        let counter = if written { &self.written } else { &self.refused };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

/// Leases so short that a pause between two statements may outlast them.
fn short_lease() -> config::Lease {
    let duration = Duration::from_millis(rand::random_range(3..30));
    config::Lease { duration, ..LEASE }
}

async fn pause(longest_ms: u64) {
    tokio::time::sleep(Duration::from_millis(rand::random_range(0..=longest_ms))).await;
}

async fn remove_guards(fixture: &Fixture) {
    fixture.stack.sql("DROP TRIGGER managed_tx_guard ON managed_tx").await;
    fixture.stack.sql("DROP TRIGGER submitter_nonce_cursor_guard ON submitter_nonce_cursor").await;
    fixture.stack.sql("DROP INDEX managed_tx_nonce_is_unique").await;
    fixture
        .stack
        .sql(
            "INSERT INTO submitter_nonce_cursor
                 (chain_id, submitter, start_nonce, next_nonce, max_in_flight, fencing_token)
             SELECT chain_id, submitter, 0, 0, 1, 0 FROM submitter",
        )
        .await;
}

async fn next_nonce(fixture: &Fixture, submitter: usize) -> Nonce {
    Nonce(fixture.stack.cursor(fixture.stack.submitter(submitter)).await.expect("made before the race").next)
}

/// One owner: claims submitters, and writes until a lease is lost.
async fn owner(
    fixture: &Fixture,
    strategy: FenceStrategy,
    name: usize,
    tally: &Tally,
    over: &(dyn Fn() -> bool + Sync),
) {
    let node = WorkerId(format!("owner-{name}"));
    while !over() {
        let submitter = rand::random_range(0..SUBMITTERS);
        let claimed =
            fixture.store.claim(&node, &[fixture.key(submitter)], &short_lease()).await.unwrap().pop();
        let Some(lease) = claimed else {
            pause(4).await;
            continue;
        };
        for _ in 0..20 {
            let tx_id = fixture.queue(submitter, &TxId::new().to_string()).await;
            let next = next_nonce(fixture, submitter).await;
            // Signing takes time; the lease may expire meanwhile.
            pause(6).await;
            let written = match strategy {
                FenceStrategy::LockThenWrite => {
                    let write = fixture.give(&lease, submitter, tx_id, Some(next));
                    // No error is expected: the owner finds every row as it left it.
                    matches!(fixture.apply(write).await.unwrap(), Applied::Yes(_))
                }
                FenceStrategy::Exists => exists_write(fixture, &node, &lease, submitter, tx_id, next).await,
            };
            tally.count(written);
            if !written || over() {
                break;
            }
        }
    }
}

/// The same write with a condition instead of a lock. False: the condition failed.
async fn exists_write(
    fixture: &Fixture,
    node: &WorkerId,
    lease: &Lease,
    submitter: usize,
    tx_id: TxId,
    nonce: Nonce,
) -> bool {
    let (address, token) = (fixture.stack.submitter(submitter).bytes(), lease.token().as_i64());
    let mut tx = fixture.stack.db().begin().await.unwrap();
    let moved = sqlx::query(
        "UPDATE submitter_nonce_cursor
         SET next_nonce = $4 + 1, fencing_token = $3
         WHERE submitter = $1 AND EXISTS (
             SELECT FROM submitter_lease l
             WHERE l.submitter = $1 AND l.owner = $2 AND l.fencing_token = $3
               AND l.expires_at > clock_timestamp())",
    )
    .bind(&address)
    .bind(&node.0)
    .bind(token)
    .bind(nonce.as_i64())
    .execute(&mut *tx)
    .await
    .unwrap();
    if moved.rows_affected() == 0 {
        return false;
    }
    record(&mut tx, fixture, submitter, tx_id, nonce, token).await;
    tx.commit().await.unwrap();
    true
}

/// The rest of a write: the intent gets the nonce, and the attempt is stored.
async fn record(
    tx: &mut sqlx::Transaction<'_, sqlx::Postgres>,
    fixture: &Fixture,
    submitter: usize,
    tx_id: TxId,
    nonce: Nonce,
    token: i64,
) {
    let draft = fixture.sign(submitter, nonce, tx_id);
    sqlx::query("UPDATE managed_tx SET state = 'IN_FLIGHT', nonce = $2, tx_hash = $3, fencing_token = $4 WHERE tx_id = $1")
        .bind(tx_id.0)
        .bind(nonce.as_i64())
        .bind(draft.tx_hash.as_bytes())
        .bind(token)
        .execute(&mut **tx)
        .await
        .unwrap();
    sqlx::query(
        "INSERT INTO tx_attempt
             (attempt_id, tx_id, ordinal, chain_id, submitter, nonce, kind, raw_tx, tx_hash, gas_params, fencing_token)
         VALUES (gen_random_uuid(), $1, 1, $2, $3, $4, 'ORIGINAL', $5, $6, $8, $7)",
    )
    .bind(tx_id.0)
    .bind(fixture.key(submitter).chain_id.as_i64())
    .bind(fixture.stack.submitter(submitter).bytes())
    .bind(nonce.as_i64())
    .bind(draft.raw.to_vec())
    .bind(draft.tx_hash.as_bytes())
    .bind(token)
    .bind(draft.gas_params())
    .execute(&mut **tx)
    .await
    .unwrap();
}

async fn run(fixture: &Fixture, strategy: FenceStrategy, enough: impl Fn(&Tally) -> bool + Sync) -> Tally {
    let (tally, begun) = (Tally::default(), Instant::now());
    let over = || enough(&tally) || begun.elapsed() > LIMIT;
    join_all((0..OWNERS).map(|name| owner(fixture, strategy, name, &tally, &over))).await;
    tally
}

fn seen(counter: &AtomicU32) -> u32 {
    counter.load(Ordering::Relaxed)
}

/// The design of the fence, under a small load.
#[tokio::test(flavor = "multi_thread")]
async fn behind_the_fence_no_race_of_owners_writes_stale_or_uses_a_nonce_twice() {
    let fixture = Fixture::open(SUBMITTERS).await;
    remove_guards(&fixture).await;
    let tally = run(&fixture, FenceStrategy::LockThenWrite, |tally| {
        seen(&tally.written) > 200 && seen(&tally.refused) > 40
    })
    .await;
    let (written, refused) = (seen(&tally.written), seen(&tally.refused));
    assert!(written > 200 && refused > 40, "no race: {tally:?}");
    let mut total = 0;
    for submitter in 0..SUBMITTERS {
        let history: Vec<(i64, i64)> = sqlx::query_as(
            "SELECT nonce, fencing_token FROM tx_attempt WHERE submitter = $1 ORDER BY created_at",
        )
        .bind(fixture.stack.submitter(submitter).bytes())
        .fetch_all(fixture.stack.db())
        .await
        .unwrap();
        assert!(
            history.iter().map(|(nonce, _)| *nonce).eq(0..history.len() as i64),
            "0, 1, 2, …: {history:?}"
        );
        assert!(history.is_sorted_by_key(|(_, token)| *token), "a former owner wrote: {history:?}");
        total += history.len();
    }
    assert_eq!(total, written as usize, "every write that was reported is there");
    fixture.close().await;
}

/// Scenario 18: the audit finds the violations.
#[tokio::test(flavor = "multi_thread")]
async fn the_audit_catches_an_exists_condition_that_is_taken_for_a_fence() {
    let fixture = Fixture::open(SUBMITTERS).await;
    remove_guards(&fixture).await;
    let mut wanted = 0;
    loop {
        wanted += 200;
        run(&fixture, FenceStrategy::Exists, |tally| seen(&tally.written) > wanted).await;
        if !fixture.stack.verify().await.sound {
            break;
        }
        assert!(wanted < 4_000, "{wanted} writes and no stale one");
    }
    fixture.store.close().await;
    fixture.stack.finish_unsound("no nonce is used by two intents").await;
}

/// Scenario 18, deterministic: the first of the two races, as a schedule.
#[tokio::test(flavor = "multi_thread")]
async fn a_takeover_commits_under_an_open_write_that_only_asked_whether_the_lease_exists() {
    let fixture = Fixture::open(1).await;
    remove_guards(&fixture).await;
    let (first, second) = (fixture.queue(0, "first").await, fixture.queue(0, "second").await);
    let former = fixture.claim("former", 0).await.unwrap();
    let mut open = fixture.stack.db().begin().await.unwrap();
    let holds: bool =
        sqlx::query_scalar("SELECT EXISTS (SELECT FROM submitter_lease WHERE fencing_token = $1)")
            .bind(former.token().as_i64())
            .fetch_one(&mut *open)
            .await
            .unwrap();
    assert!(holds);
    record(&mut open, &fixture, 0, first, Nonce(0), former.token().as_i64()).await;
    fixture.expire_leases().await;
    let successor = fixture.claim("successor", 0).await.expect("nothing is locked");
    fixture.must_apply(fixture.give_nonce(&successor, 0, second).await).await;
    open.commit().await.expect("the commit succeeds");
    fixture.store.close().await;
    fixture.stack.finish_unsound("no nonce is used by two intents").await;
}
