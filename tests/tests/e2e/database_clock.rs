//! A database clock that is set back or forward during work. Times only schedule; they never order or decide.

use std::sync::Arc;
use std::time::{Duration, Instant};

use gapless_domain::ReservationState;
use gapless_embed::NonceContext;
use gapless_testkit::{
    Address, ClockedPostgres, DatabaseClock, Fault, HaPair, Mining, Service, Stack, TxId, TxState,
    eventually, payload,
};
use serde_json::json;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use crate::stack;
use crate::with_nonce::transfer;

const SEND: &str = "eth_sendRawTransaction";
/// Longer than any of these tests.
const LONG: Duration = Duration::from_secs(300);
const STEP_S: i64 = 10;

type Called = Result<gapless_embed::Accepted, gapless_embed::WithNonceError<String>>;

/// A client that reserves a nonce and returns a transfer of 1 on request.
async fn reserve_nonce(stack: &Stack, to: Address) -> (JoinHandle<Called>, Arc<Notify>, TxId) {
    let (gapless, key, answer) = (stack.gapless().await, stack.key(0), Arc::new(Notify::new()));
    let (answered, begun) = (answer.clone(), Arc::new(Notify::new()));
    let saw_it = begun.clone();
    let call = tokio::spawn(async move {
        let call = gapless.call(key).reserve_for(LONG).wait(LONG);
        call.run(async |_: NonceContext| {
            saw_it.notify_one();
            answered.notified().await;
            Ok(transfer(to, 1))
        })
        .await
    });
    let held = stack.wait_reservation(stack.submitter(0), ReservationState::Reserved).await;
    begun.notified().await;
    (call, answer, held.tx_id)
}

/// Kinds of an intent's attempts, ordered by their timestamps.
async fn by_time(stack: &Stack, tx_id: TxId) -> Vec<String> {
    sqlx::query_scalar("SELECT kind FROM tx_attempt WHERE tx_id = $1 ORDER BY created_at, attempt_id")
        .bind(tx_id.0)
        .fetch_all(stack.db())
        .await
        .unwrap()
}

async fn by_ordinal(stack: &Stack, tx_id: TxId) -> Vec<String> {
    stack.attempts(tx_id).await.into_iter().map(|attempt| attempt.kind).collect()
}

/// The client has answered, and its transaction is committed after the clock step; then the worker crashes before the
/// send, and another takes over. The client's transaction is mined, not the placeholder.
async fn the_client_wins(
    stack: &Stack,
    worker: &Service,
    held: (JoinHandle<Called>, Arc<Notify>, TxId),
    to: Address,
) {
    let (call, answer, tx_id) = held;
    stack.proxy().always(SEND, Fault::Close);
    answer.notify_one();
    let accepted = call.await.unwrap().unwrap();
    assert_eq!(accepted.tx_id, tx_id);
    let attempts = stack.wait_attempts(tx_id, 2).await;
    worker.kill9();
    // The negative control: by timestamp the placeholder is newer.
    assert_eq!(by_time(stack, tx_id).await, ["ORIGINAL", "PLACEHOLDER"], "the clock was not set back");
    assert_eq!(by_ordinal(stack, tx_id).await, ["PLACEHOLDER", "ORIGINAL"]);
    stack.proxy().clear();
    stack.start_worker().await;
    let row = stack.wait_for(tx_id, TxState::Confirmed).await;
    assert_eq!((row.nonce, row.tx_hash), (Some(0), Some(attempts[1].tx_hash)));
    assert_eq!(stack.anvil().balance(to).await, 1.into(), "the client's answer is binding");
}

/// Scenario 67: between the placeholder of a reserved nonce and the client's transaction.
#[tokio::test(flavor = "multi_thread")]
async fn a_clock_that_steps_back_between_two_attempts_does_not_change_their_order() {
    let database = ClockedPostgres::start().await;
    let stack = stack().proxied().short_lease().database_at(database.url()).start().await;
    stack.start_api().await;
    let worker = stack.start_worker().await;
    let to = Address::repeat_byte(0x67);
    let held = reserve_nonce(&stack, to).await;
    database.clock.set(-STEP_S);
    the_client_wins(&stack, &worker, held, to).await;
    stack.finish().await;
}

/// Scenario 67: the clock of the promoted standby is behind that of the failed primary.
#[tokio::test(flavor = "multi_thread")]
async fn a_failover_to_a_standby_that_is_behind_does_not_change_the_order_of_attempts() {
    let clock = DatabaseClock::new();
    clock.set(-STEP_S);
    let mut pair = HaPair::with_standby_clock(&clock).await;
    let stack = stack().proxied().short_lease().database_at(&pair.url()).start().await;
    stack.start_api().await;
    let worker = stack.start_worker().await;
    let to = Address::repeat_byte(0x68);
    let held = reserve_nonce(&stack, to).await;
    pair.fail_over().await;
    the_client_wins(&stack, &worker, held, to).await;
    stack.finish().await;
}

/// Scenario 67: after a takeover the newest price is sent.
#[tokio::test(flavor = "multi_thread")]
async fn a_replacement_made_after_the_clock_stepped_back_is_still_the_newest() {
    let database = ClockedPostgres::start().await;
    let stack = stack().proxied().short_lease().mining(Mining::Manual).database_at(database.url());
    let stack = stack.start().await;
    stack.start_api().await;
    let worker = stack.start_worker().await;
    let to = Address::repeat_byte(0x69);
    let tx_id = stack.create(stack.submitter(0), "dearer", &payload(to, 1)).await;
    stack.wait_for(tx_id, TxState::Submitted).await;
    database.clock.set(-STEP_S);
    stack.proxy().always(SEND, Fault::Close);
    let path = format!("/api/v1/tx/{tx_id}/speed-up?wait=60s");
    let answer = stack.client().admin_post(&path, &json!({ "reason": "a customer waits" })).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let attempts = stack.wait_attempts(tx_id, 2).await;
    worker.kill9();
    assert_eq!(by_time(&stack, tx_id).await, ["REPLACEMENT", "ORIGINAL"], "the clock was not set back");
    assert_eq!(by_ordinal(&stack, tx_id).await, ["ORIGINAL", "REPLACEMENT"]);
    stack.proxy().clear();
    stack.start_worker().await;
    stack.wait_pooled(attempts[1].tx_hash).await;
    stack.anvil().mine(1).await;
    assert_eq!(stack.wait_for(tx_id, TxState::Confirmed).await.tx_hash, Some(attempts[1].tx_hash));
    assert_eq!(stack.anvil().balance(to).await, 1.into());
    stack.finish().await;
}

/// Scenario 67: leases. The clock is set back right after the owner crashed: its lease lasts longer by the step, not
/// forever. Before that, a live owner keeps its lease across the step.
#[tokio::test(flavor = "multi_thread")]
async fn a_clock_that_steps_back_prolongs_a_lease_by_the_step_and_no_more() {
    let database = ClockedPostgres::start().await;
    let stack = stack().mining(Mining::Manual).database_at(database.url()).start().await;
    stack.start_api().await;
    let worker = stack.worker().set("worker.id", "first").start().await;
    let (submitter, to) = (stack.submitter(0), Address::repeat_byte(0x6a));
    let tx_id = stack.create(submitter, "orphan", &payload(to, 1)).await;
    stack.wait_for(tx_id, TxState::Submitted).await;
    let token = stack.lease(submitter).await.unwrap().fencing_token;
    stack.worker().set("worker.id", "second").start().await;
    database.clock.set(-STEP_S);
    // Renewed with the new time: the lease expires within its duration from now.
    eventually("the lease is renewed after the step", async || {
        let left: f64 = sqlx::query_scalar(
            "SELECT extract(epoch FROM expires_at - clock_timestamp())::FLOAT8 FROM submitter_lease",
        )
        .fetch_one(stack.db())
        .await
        .unwrap();
        if (0.0..=3.0).contains(&left) { Ok(()) } else { Err(left) }
    })
    .await;
    let lease = stack.lease(submitter).await.unwrap();
    assert_eq!((lease.owner.as_deref(), lease.fencing_token), (Some("first"), token), "no takeover");

    worker.kill9();
    let (died, lease_s, skew_s) = (Instant::now(), 3.0, 0.2);
    database.clock.set(-2 * STEP_S);
    let lease = stack.wait_owned(submitter, Some("first")).await;
    let unowned = died.elapsed().as_secs_f64();
    assert_eq!(lease.fencing_token, token + 1, "one owner after the other");
    // A busy machine checks a little later.
    let longest = lease_s + skew_s + STEP_S as f64 + 10.0;
    assert!(unowned <= longest, "no owner for {unowned} s");
    stack.anvil().mine(1).await;
    stack.wait_for(tx_id, TxState::Confirmed).await;
    assert_eq!(stack.anvil().balance(to).await, 1.into());
    stack.finish().await;
}

/// Scenario 67: steps in both directions, each longer than a lease, with two workers and many requests. Leases of
/// live owners are taken over; the fence keeps every nonce and every effect unique.
#[tokio::test(flavor = "multi_thread")]
async fn steps_in_both_directions_under_load_leave_one_effect_each() {
    const SUBMITTERS: usize = 3;
    const EACH: usize = 6;
    let database = ClockedPostgres::start().await;
    let stack = stack().submitters(SUBMITTERS).window(3).mining(Mining::Interval(0.5));
    let stack = stack.database_at(database.url()).start().await;
    stack.start_api().await;
    stack.worker().set("worker.id", "first").start().await;
    stack.worker().set("worker.id", "second").start().await;
    stack.wait_announced(&stack.client()).await;
    let to = Address::repeat_byte(0x6b);
    let mut all = Vec::new();
    for (round, off_by_s) in
        [0, STEP_S, -STEP_S, 3 * STEP_S, 0, -2 * STEP_S].into_iter().enumerate().take(EACH)
    {
        database.clock.set(off_by_s);
        for submitter in stack.submitters() {
            all.push(stack.create(submitter, &format!("r{round}"), &payload(to, 1)).await);
        }
        // Everyone has seen the step before the next one: something of this round has a nonce.
        let last = *all.last().unwrap();
        eventually("the newest request has a nonce", async || {
            let row = stack.row(last).await;
            if row.nonce.is_some() { Ok(()) } else { Err(row) }
        })
        .await;
    }
    stack.wait_confirmed(&all).await;
    assert_eq!(stack.anvil().balance(to).await, (SUBMITTERS * EACH).into(), "one effect each");
    stack.finish().await;
}

/// Scenario 67: a waiting client renews its request every few seconds. A clock step beyond its last renewal does not
/// expire the request.
#[tokio::test(flavor = "multi_thread")]
async fn a_caller_that_waits_is_not_given_up_when_the_clock_steps_forward() {
    let database = ClockedPostgres::start().await;
    let stack = stack().mining(Mining::Manual).database_at(database.url()).up().await;
    let (submitter, to) = (stack.submitter(0), Address::repeat_byte(0x6c));
    let first = stack.create(submitter, "first", &payload(to, 1)).await;
    stack.wait_for(first, TxState::Submitted).await;
    let (gapless, key) = (stack.gapless().await, stack.key(0));
    let call = tokio::spawn(async move {
        let call = gapless.call(key).reserve_for(LONG).wait(LONG);
        call.run(async |_: NonceContext| Ok::<_, String>(transfer(to, 1))).await
    });
    stack.wait_reservation(submitter, ReservationState::Requested).await;
    // Its nonce is due right after the step: the queue head is read before the next renewal.
    stack.anvil().set_automine(true).await;
    database.clock.set(60);
    stack.anvil().mine(1).await;
    let accepted = call.await.unwrap().unwrap();
    assert_eq!(stack.wait_for(accepted.tx_id, TxState::Confirmed).await.nonce, Some(1));
    assert_eq!(stack.anvil().balance(to).await, 2.into());
    stack.finish().await;
}
