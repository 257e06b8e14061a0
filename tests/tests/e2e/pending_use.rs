//! A pending external transaction: a reason for SUSPECT, but no evidence.

use gapless_testkit::{Fault, Mining, PENDING_COUNT, Stack, TxState, eventually, payload};

use crate::evidence::{seen, target, wait_suspect};
use crate::stack;

/// A sequence with nonces, on a chain with manual mining, without an owner.
async fn begun() -> Stack {
    let stack = stack()
        .proxied()
        .mining(Mining::Manual)
        .window(3)
        .set("resubmit.interval", "1s")
        .set("events.mode", "log")
        .up()
        .await;
    let first = stack.create(stack.submitter(0), "first", &payload(target(), 1)).await;
    stack.wait_for(first, TxState::Submitted).await;
    stack.anvil().mine(1).await;
    stack.wait_for(first, TxState::Confirmed).await;
    // The next lane checks before it assigns a nonce; a running one checks periodically.
    eventually("the lane ends", async || match stack.lease(stack.submitter(0)).await {
        Some(lease) if lease.owner.is_none() => Ok(()),
        lease => Err(lease),
    })
    .await;
    stack
}

/// An external transaction is pending at the next nonce of the sequence. It is detected, stops new nonces, and is
/// only a suspicion: it ends when the transaction is gone.
#[tokio::test(flavor = "multi_thread")]
async fn an_unmined_transaction_from_elsewhere_is_suspected_until_it_is_gone() {
    let stack = begun().await;
    let submitter = stack.submitter(0);
    submitter.spend_outside(stack.anvil(), Some(1)).await;
    let next = stack.create(submitter, "next", &payload(target(), 10)).await;
    let reason = wait_suspect(&stack, submitter).await;
    assert!(reason.contains("pool"), "{reason}");
    assert_eq!(stack.cursor(submitter).await.unwrap().protect_reason, None, "no evidence, no PROTECT");
    assert_eq!(stack.row(next).await.nonce, None, "it would compete");

    // The next owner reads it from the database, and an unreachable node changes nothing.
    stack.proxy().always(PENDING_COUNT, Fault::Error { code: -32005, message: "rate limit exceeded".into() });
    stack.workers()[0].kill9();
    stack.start_worker().await;
    let before = stack.proxy().calls(PENDING_COUNT);
    eventually("the next owner has looked twice", async || match stack.proxy().calls(PENDING_COUNT) {
        calls if calls >= before + 2 => Ok(()),
        calls => Err(calls),
    })
    .await;
    wait_suspect(&stack, submitter).await;
    assert_eq!(stack.row(next).await.nonce, None);
    stack.proxy().clear();

    stack.anvil().drop_all().await;
    assert_eq!(stack.wait_for(next, TxState::Submitted).await.nonce, Some(1));
    assert_eq!(seen(&stack, submitter).await["state"], "ACTIVE");
    stack.anvil().mine(1).await;
    stack.wait_for(next, TxState::Confirmed).await;
    assert_eq!(stack.anvil().balance(target()).await, 11.into());
    stack.finish().await;
}

/// The same transaction is mined: now there is evidence.
#[tokio::test(flavor = "multi_thread")]
async fn a_suspected_transaction_from_elsewhere_that_is_mined_is_external_use() {
    let stack = begun().await;
    let submitter = stack.submitter(0);
    submitter.spend_outside(stack.anvil(), Some(1)).await;
    let next = stack.create(submitter, "next", &payload(target(), 10)).await;
    wait_suspect(&stack, submitter).await;
    stack.anvil().mine(1).await;
    stack.wait_protected(submitter).await;
    assert_eq!(stack.submitter_action(submitter, "adopt", "sent by hand").await.status, 200);
    assert_eq!(stack.wait_for(next, TxState::Submitted).await.nonce, Some(2));
    stack.anvil().mine(1).await;
    stack.wait_for(next, TxState::Confirmed).await;
    stack.finish().await;
}

/// The control: a window of our own transactions is pending, before and after a takeover. A running lane detects the
/// first external one.
#[tokio::test(flavor = "multi_thread")]
async fn our_own_unmined_transactions_are_not_suspected_and_a_running_lane_notices_one_that_is_not_ours() {
    let stack = begun().await;
    let submitter = stack.submitter(0);
    let mut window = Vec::new();
    for request in ["one", "two", "three"] {
        window.push(stack.create(submitter, request, &payload(target(), 1)).await);
    }
    stack.wait_pending(3).await;
    stack.workers()[0].kill9();
    let worker = stack.start_worker().await;
    let before = stack.proxy().calls(PENDING_COUNT);
    eventually("the lane has looked several times", async || match stack.proxy().calls(PENDING_COUNT) {
        calls if calls >= before + 3 => Ok(()),
        calls => Err(calls),
    })
    .await;
    assert!(!worker.events().iter().any(|event| event["event"] == "submitter.suspect"));
    assert_eq!(seen(&stack, submitter).await["state"], "ACTIVE");

    submitter.spend_outside(stack.anvil(), Some(4)).await;
    wait_suspect(&stack, submitter).await;
    // Open transactions continue; the external one is mined with them.
    stack.anvil().mine(1).await;
    for tx_id in window {
        stack.wait_for(tx_id, TxState::Confirmed).await;
    }
    stack.wait_protected(submitter).await;
    assert_eq!(stack.submitter_action(submitter, "adopt", "sent by hand").await.status, 200);
    stack.finish().await;
}

/// If the node does not support the pending count, behaviour is unchanged.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_without_a_pending_count_is_no_reason_to_suspect() {
    let stack = stack().proxied().start().await;
    stack
        .proxy()
        .always(PENDING_COUNT, Fault::Error { code: -32602, message: "pending is not supported".into() });
    stack.start_api().await;
    stack.start_worker().await;
    let submitter = stack.submitter(0);
    let tx_id = stack.create(submitter, "usual", &payload(target(), 1)).await;
    stack.wait_for(tx_id, TxState::Confirmed).await;
    assert!(stack.proxy().calls(PENDING_COUNT) > 0, "it was asked");
    assert_eq!(seen(&stack, submitter).await["state"], "ACTIVE");
    stack.finish().await;
}
