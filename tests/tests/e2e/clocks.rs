//! Processes with a wrong wall clock. The database's time decides, and durations use the monotonic clock.

use std::path::PathBuf;

use gapless_testkit::{Address, Mining, Service, Stack, TxState, eventually, payload};

use crate::stack;

const CLOCK: &str = "GAPLESS_TEST_CLOCK";
const HOUR_S: i64 = 3600;

fn clock(stack: &Stack, name: &str, off_by_s: i64) -> PathBuf {
    let file = stack.dir().join(name);
    std::fs::write(&file, off_by_s.to_string()).unwrap();
    file
}

/// The clock offset of a process in seconds, from its newest log line.
async fn off_by_s(stack: &Stack, service: &Service) -> f64 {
    let line = service.log_lines().pop().expect("it has logged something");
    sqlx::query_scalar("SELECT extract(epoch FROM $1::TEXT::TIMESTAMPTZ - clock_timestamp())::FLOAT8")
        .bind(line["timestamp"].as_str())
        .fetch_one(stack.db())
        .await
        .unwrap()
}

/// Remaining time of the only lease, by the database's clock.
async fn lease_left_s(stack: &Stack) -> f64 {
    sqlx::query_scalar(
        "SELECT extract(epoch FROM expires_at - clock_timestamp())::FLOAT8 FROM submitter_lease",
    )
    .fetch_one(stack.db())
    .await
    .unwrap()
}

/// Waits until the same owner has renewed the lease `times` times.
async fn renewed(stack: &Stack, times: u32) {
    let token = stack.lease(stack.submitter(0)).await.expect("it is owned").fencing_token;
    for _ in 0..times {
        let expiry = "SELECT expires_at::TEXT FROM submitter_lease";
        let before: String = sqlx::query_scalar(expiry).fetch_one(stack.db()).await.unwrap();
        eventually("the lease is renewed", async || {
            let now: String = sqlx::query_scalar(expiry).fetch_one(stack.db()).await.unwrap();
            if now == before { Err(now) } else { Ok(()) }
        })
        .await;
    }
    assert_eq!(stack.lease(stack.submitter(0)).await.unwrap().fencing_token, token, "no takeover");
}

/// Scenario 24. One worker is an hour ahead, then an hour behind; the other is an hour behind, and the API an hour
/// ahead.
#[tokio::test(flavor = "multi_thread")]
async fn a_clock_that_is_an_hour_off_or_jumps_changes_nothing() {
    let stack = stack().mining(Mining::Manual).start().await;
    let (ahead, behind) = (clock(&stack, "ahead", HOUR_S), clock(&stack, "behind", -HOUR_S));
    stack.api().env(CLOCK, ahead.to_str().unwrap()).start().await;
    let worker = stack.worker().set("worker.id", "ahead").env(CLOCK, ahead.to_str().unwrap());
    let worker = worker.start().await;
    let (submitter, to) = (stack.submitter(0), Address::repeat_byte(0x24));
    let first = stack.create(submitter, "first", &payload(to, 1)).await;
    let second = stack.create(submitter, "second", &payload(to, 1)).await;
    stack.wait_for(first, TxState::Submitted).await;
    let off = off_by_s(&stack, &worker).await;
    assert!((off - 3600.0).abs() < 120.0, "clock offset of the worker: {off} s");
    let left = lease_left_s(&stack).await;
    assert!((-30.0..=3.0).contains(&left), "a lease of 3 s, by the database: {left}");

    // The other worker, an hour behind, sees no expired lease, also after the owner's clock jumps.
    let successor = stack.worker().set("worker.id", "behind").env(CLOCK, behind.to_str().unwrap());
    let successor = successor.start().await;
    let off = off_by_s(&stack, &successor).await;
    assert!((off + 3600.0).abs() < 120.0, "clock offset of the other worker: {off} s");
    clock(&stack, "ahead", -HOUR_S);
    renewed(&stack, 6).await;
    stack.anvil().mine(1).await;
    stack.wait_for(first, TxState::Confirmed).await;
    let token = stack.wait_for(second, TxState::Submitted).await.fencing_token;

    // A takeover happens after the lease duration, not an hour later.
    worker.kill9();
    let lease = stack.wait_owned(submitter, Some("ahead")).await;
    assert_eq!(Some(lease.fencing_token), token.map(|token| token + 1));
    stack.anvil().mine(1).await;
    stack.wait_for(second, TxState::Confirmed).await;
    let dated: i64 = sqlx::query_scalar(
        "SELECT count(*) FROM managed_tx
         WHERE created_at BETWEEN clock_timestamp() - INTERVAL '10 minutes' AND clock_timestamp()
           AND finished_at BETWEEN created_at AND clock_timestamp()",
    )
    .fetch_one(stack.db())
    .await
    .unwrap();
    assert_eq!(dated, 2, "all timestamps are from the database's clock");
    assert_eq!(stack.anvil().balance(to).await, 2.into(), "one effect each");
    stack.finish().await;
}
