//! Database connections that become silent without being closed: the server host is gone, or a firewall has dropped
//! the connection. There is never an error; only timeouts help.

use std::time::{Duration, Instant};

use gapless_testkit::{
    Address, Mining, Service, Stack, Submitter, TcpProxy, TxId, TxState, eventually, payload,
};

use crate::stack;

const SUBMITTERS: usize = 12;
const EACH: usize = 5;

/// Scenario: under load all connections of an API and a worker become silent forever. New ones work. Both processes
/// recover by themselves, and everything happens once.
#[tokio::test(flavor = "multi_thread")]
async fn connections_that_fall_silent_for_ever_are_given_up() {
    let stack = stack().submitters(SUBMITTERS).mining(Mining::Interval(1.0)).start().await;
    let wire = TcpProxy::start(stack.database_url()).await;
    let api = stack.api().via(&wire).start().await;
    stack.worker().via(&wire).start().await;
    stack.wait_announced(&api.client()).await;
    let transfer = payload(Address::repeat_byte(0x71), 1);
    let mut all = Vec::new();
    for n in 0..EACH {
        for submitter in stack.submitters() {
            all.push(stack.create(submitter, &format!("r{n}"), &transfer).await);
        }
    }
    stack.wait_for(all[0], TxState::Confirmed).await;
    let left = all.len() - confirmed(&stack).await;
    assert!(left > 0, "the flood is over before the silence begins");
    wire.silence();

    all.push(accepted(&stack, &api, stack.submitter(0), "late").await);
    stack.wait_confirmed(&all).await;
    stack.finish().await;
}

/// Scenario: every connection becomes silent when the driver returns it to the pool: the statement was answered, the
/// ping is not. Such a connection is dropped; its slot in the pool is not.
#[tokio::test(flavor = "multi_thread")]
async fn connections_that_fall_silent_when_they_are_given_back_are_given_up() {
    let stack = stack().submitters(SUBMITTERS).mining(Mining::Interval(1.0)).start().await;
    let wire = TcpProxy::start(stack.database_url()).await;
    let api = stack.api().via(&wire).start().await;
    stack.worker().via(&wire).start().await;
    stack.wait_announced(&api.client()).await;
    let transfer = payload(Address::repeat_byte(0x72), 1);
    let mut all = Vec::new();
    for submitter in stack.submitters() {
        all.push(stack.create(submitter, "before", &transfer).await);
    }
    wire.silence_at_ping();
    for submitter in stack.submitters() {
        all.push(accepted(&stack, &api, submitter, "after").await);
    }
    stack.wait_confirmed(&all).await;
    stack.finish().await;
}

/// Retries the same request, because it may have been accepted without a response.
async fn accepted(stack: &Stack, api: &Service, submitter: &Submitter, request: &str) -> TxId {
    eventually("the API takes something again", async || {
        let answer = api.client().post(submitter, request, &payload(Address::repeat_byte(0x72), 1)).await;
        stack.record_accepted(&answer);
        if matches!(answer.status, 200 | 202) {
            Ok(answer.tx_id().parse().unwrap())
        } else {
            Err(answer.status)
        }
    })
    .await
}

async fn confirmed(stack: &Stack) -> usize {
    let mut count = 0;
    for submitter in stack.submitters() {
        count += stack.rows(submitter).await.iter().filter(|row| row.state == TxState::Confirmed).count();
    }
    count
}

/// LISTEN sessions of a program, as the server sees them.
async fn listeners(stack: &Stack, program: &str) -> Vec<i32> {
    sqlx::query_scalar(
        "SELECT pid FROM pg_stat_activity
         WHERE datname = current_database() AND application_name LIKE $1 || '%listener' ORDER BY pid",
    )
    .bind(program)
    .fetch_all(stack.db())
    .await
    .unwrap()
}

/// Scenario 73. The worker polls every ten minutes, so anything faster is caused by NOTIFY. Its LISTEN connection
/// becomes silent without being closed; it is replaced, missed notifications are caught up, and later ones are
/// received.
#[tokio::test(flavor = "multi_thread")]
async fn a_listening_connection_that_falls_silent_is_replaced() {
    let stack = stack().set("worker.poll_interval", "10m").start().await;
    let wire = TcpProxy::start(stack.database_url()).await;
    let api = stack.api().via(&wire).start().await;
    stack.worker().via(&wire).start().await;
    stack.wait_announced(&api.client()).await;
    let (submitter, to) = (stack.submitter(0), Address::repeat_byte(0x73));
    let first = stack.create(submitter, "heard", &payload(to, 1)).await;
    stack.wait_for(first, TxState::Confirmed).await;
    // The notifying process is another one, with working connections.
    let other = stack.start_api().await;
    let programs = ["gapless-api-notify", "gapless-worker fleet"];
    let before = [listeners(&stack, programs[0]).await, listeners(&stack, programs[1]).await];
    wire.silence();

    let answer = other.client().post(submitter, "unheard", &payload(to, 1)).await;
    stack.record_accepted(&answer);
    let unheard: TxId = answer.tx_id().parse().unwrap();
    stack.wait_for_within(Duration::from_secs(60), unheard, TxState::Confirmed).await;
    for (program, before) in programs.into_iter().zip(before) {
        eventually(&format!("{program} listens anew"), async || {
            let now = listeners(&stack, program).await;
            let new = now.iter().any(|pid| !before.contains(pid));
            if new { Ok(()) } else { Err((before.clone(), now)) }
        })
        .await;
    }
    let begun = Instant::now();
    let answer = other.client().post(submitter, "heard-again", &payload(to, 1)).await;
    stack.record_accepted(&answer);
    stack.wait_for(answer.tx_id().parse().unwrap(), TxState::Confirmed).await;
    assert!(begun.elapsed() < Duration::from_secs(60), "by NOTIFY, not by a poll");
    assert_eq!(stack.anvil().balance(to).await, 3.into());
    stack.finish().await;
}
