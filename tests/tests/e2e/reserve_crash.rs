//! Workers that crash while a nonce is reserved, and a window with a reserved nonce in the middle.

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use gapless_domain::{RequestedTx, ReservationState};
use gapless_embed::{Accepted, NonceContext, WithNonceError};
use gapless_testkit::{Address, Mining, Service, Stack, TxState, eventually, payload};
use gapless_worker::failpoint::RESERVATION_POINTS;
use tokio::sync::Notify;

use crate::stack;
use crate::with_nonce::{failed_by_placeholder, send, transfer};

/// A new address per failpoint, so that its balance counts the effects.
fn target(index: usize) -> Address {
    Address::repeat_byte(0xc0 + index as u8)
}

type Called = Result<Accepted, WithNonceError<&'static str>>;

/// One worker per failpoint, with one key, is killed there during a call; then a worker with all keys continues.
async fn call_under_dying_workers(
    points: &[&str],
    handler: impl Fn(usize) -> Result<RequestedTx, &'static str>,
) -> (Stack, Vec<Called>) {
    let stack = stack().short_lease().confirmations(2).submitters(points.len());
    let stack = stack.mining(Mining::Interval(0.5)).start().await;
    stack.start_api().await;
    let doomed: Vec<Service> = join_all(
        points
            .iter()
            .enumerate()
            .map(|(index, point)| stack.worker().only_keys(&[index]).failpoint(point).start()),
    )
    .await;
    let gapless = stack.gapless().await;
    let calls = join_all((0..points.len()).map(|index| {
        let wanted = handler(index);
        // Longer than a takeover.
        let call = gapless.call(stack.key(index)).reserve_for(Duration::from_secs(55));
        let call = call.wait(Duration::from_secs(120));
        call.run(async move |_: NonceContext| wanted)
    }));
    let successor = async {
        for (point, worker) in points.iter().zip(&doomed) {
            worker.wait_exit().await;
            assert!(worker.log().contains("failpoint: killing"), "killed at {point}");
        }
        assert!(stack.verify().await.sound, "the state after the crash");
        stack.start_worker().await
    };
    let (called, _) = futures::join!(calls, successor);
    (stack, called)
}

/// Scenario 25, for reserved nonces: the client is not affected.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_killed_at_any_step_of_a_reservation_leaves_exactly_one_effect() {
    assert_eq!(RESERVATION_POINTS, ["reserved", "answered", "released"], "the last one is tested below");
    // Only failpoints that are certainly reached: on a slow machine SUBMITTED and TRACKING may never be written.
    let points = ["signed", "reserved", "answered", "prepared:2", "committed:2", "sent", "final"];
    let (stack, called) = call_under_dying_workers(&points, |index| Ok(transfer(target(index), 1))).await;
    for (index, (point, called)) in points.iter().zip(called).enumerate() {
        let accepted = called.unwrap_or_else(|error| panic!("{point}: {error}"));
        let row = stack.wait_for(accepted.tx_id, TxState::Confirmed).await;
        let kinds: Vec<String> = stack.attempts(accepted.tx_id).await.into_iter().map(|a| a.kind).collect();
        assert_eq!(
            (row.nonce, kinds),
            (Some(0), vec!["PLACEHOLDER".to_owned(), "ORIGINAL".to_owned()]),
            "{point}"
        );
        assert_eq!(stack.anvil().balance(target(index)).await, 1.into(), "after {point}: one effect");
    }
    stack.finish().await;
}

/// Scenarios 12 and 25: the handler fails, and the worker crashes while processing that.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_killed_over_a_handler_that_failed_leaves_exactly_one_placeholder() {
    let points = ["reserved", "released", "sent", "final"];
    let (stack, called) = call_under_dying_workers(&points, |_| Err("changed its mind")).await;
    for (point, called) in points.iter().zip(called) {
        let Err(WithNonceError::Handler { tx_id, .. }) = called else { panic!("{point}: {called:?}") };
        failed_by_placeholder(&stack, tx_id, "changed its mind").await;
    }
    for (index, point) in points.iter().enumerate() {
        let next = send(&stack, index, transfer(target(index), 1)).await.unwrap();
        assert_eq!(stack.wait_for(next.tx_id, TxState::Confirmed).await.nonce, Some(1), "after {point}");
    }
    stack.finish().await;
}

/// Scenario 26, for reserved nonces: the database crashes while the handler runs.
#[tokio::test(flavor = "multi_thread")]
async fn a_database_killed_while_a_nonce_is_held_loses_nothing() {
    let stack = stack().own_postgres().up().await;
    let to = target(0);
    let (gapless, key) = (stack.gapless().await, stack.key(0));
    let accepted = gapless
        .call(key)
        .reserve_for(Duration::from_secs(60))
        .run(async |_: NonceContext| {
            stack.kill_postgres().await;
            stack.restart_postgres().await;
            Ok::<_, String>(transfer(to, 1))
        })
        .await
        .unwrap();
    assert_eq!(stack.wait_for(accepted.tx_id, TxState::Confirmed).await.nonce, Some(0));
    assert_eq!(stack.anvil().balance(to).await, 1.into());
    stack.finish().await;
}

/// Scenario 13, for a reserved nonce: later intents have their nonces, and wait.
#[tokio::test(flavor = "multi_thread")]
async fn in_a_window_of_16_nothing_is_sent_above_a_held_nonce() {
    for fails in [false, true] {
        let stack = stack().proxied().window(16).up().await;
        let (submitter, to) = (stack.submitter(0), Address::repeat_byte(0xcf));
        let mut before = Vec::new();
        for number in 0..3 {
            before.push(stack.create(submitter, &format!("before-{number}"), &payload(to, 1)).await);
        }
        stack.wait_confirmed(&before).await;
        let (gapless, key, answer) = (stack.gapless().await, stack.key(0), Arc::new(Notify::new()));
        let answered = answer.clone();
        let call = tokio::spawn(async move {
            let call = gapless.call(key).reserve_for(Duration::from_secs(60));
            call.run(async |_: NonceContext| {
                answered.notified().await;
                if fails { Err("no more") } else { Ok(transfer(to, 10)) }
            })
            .await
        });
        let held = stack.wait_reservation(submitter, ReservationState::Reserved).await;
        let mut after = Vec::new();
        for number in 0..5 {
            after.push(stack.create(submitter, &format!("after-{number}"), &payload(to, 100)).await);
        }
        eventually("all have their nonces", async || {
            let cursor = stack.cursor(submitter).await;
            cursor.clone().filter(|cursor| cursor.next == 9).map(|_| ()).ok_or(cursor)
        })
        .await;
        for tx_id in &after {
            let row = stack.row(*tx_id).await;
            assert_eq!((row.state, row.submit_attempts), (TxState::InFlight, 1), "{row:?}");
        }
        let sent = stack.proxy().sent_by(submitter.address());
        assert!(
            sent.iter().all(|sent| sent.nonce < 3),
            "nothing was sent from the reserved nonce on: {sent:?}"
        );
        answer.notify_one();
        assert_eq!(call.await.unwrap().is_err(), fails);
        stack.wait_confirmed(&after).await;
        let row = stack.row(held.tx_id).await;
        assert_eq!(row.nonce, Some(3));
        assert_eq!(row.state, if fails { TxState::Failed } else { TxState::Confirmed }, "{row:?}");
        assert_eq!(stack.anvil().balance(to).await, if fails { 503 } else { 513 }.into());
        stack.finish().await;
    }
}
