//! Nodes that cannot show what they know: silence is no evidence, and only a transaction that is shown by name decides.

use gapless_tests::{Address, Stack, Submitter, TxState, eventually, payload};
use serde_json::Value;

use crate::stack;

/// A worker dies right after a send, and the transaction is mined. Whoever comes next asks a node that counts the nonce
/// and shows neither receipt nor transaction nor block.
async fn mined_and_hidden() -> (Stack, gapless_tests::TxId) {
    let stack = stack().proxied().set("resubmit.interval", "500ms").set("events.mode", "log").start().await;
    stack.start_api().await;
    let doomed = stack.worker().failpoint("sent").start().await;
    let tx_id = stack.create(stack.submitter(0), "once", &payload(target(), 1)).await;
    doomed.wait_exit().await;
    assert_eq!(stack.row(tx_id).await.state, TxState::InFlight);
    assert_eq!(stack.anvil().balance(target()).await, 1.into(), "it is mined");
    stack.anvil().mine(3).await;
    stack.proxy().hide_transactions();
    (stack, tx_id)
}

fn target() -> Address {
    Address::repeat_byte(0xb1)
}

async fn seen(stack: &Stack, submitter: &Submitter) -> Value {
    let seen = stack.client().admin_get(&format!("/api/v1/submitters/{}", submitter.text())).await;
    assert_eq!(seen.status, 200, "{}", seen.body);
    seen.body
}

async fn wait_suspect(stack: &Stack, submitter: &Submitter) -> String {
    eventually("the submitter is SUSPECT", async || {
        let seen = seen(stack, submitter).await;
        match (seen["state"].as_str(), seen["suspectReason"].as_str()) {
            (Some("SUSPECT"), Some(reason)) => Ok(reason.to_owned()),
            _ => Err(seen),
        }
    })
    .await
}

/// Scenario 60. It was executed twice: the node's silence was taken for somebody else's transaction, and adopted.
#[tokio::test(flavor = "multi_thread")]
async fn a_mined_transaction_that_no_node_shows_is_never_executed_twice() {
    let (stack, tx_id) = mined_and_hidden().await;
    let submitter = stack.submitter(0);
    let worker = stack.start_worker().await;
    let reason = wait_suspect(&stack, submitter).await;
    assert!(reason.contains(&tx_id.to_string()), "{reason}");
    assert_eq!(stack.cursor(submitter).await.unwrap().protect_reason, None);

    // It is an alarm, and not an end: requests are taken, and get no nonce.
    let next = stack.create(submitter, "next", &payload(target(), 10)).await;
    let refused = stack.operate(submitter, "adopt", "somebody must have").await;
    assert_eq!((refused.status, refused.code()), (409, "action_refused"), "{}", refused.body);
    assert!(refused.body["detail"].as_str().is_some_and(|text| text.contains("no node")), "{}", refused.body);
    eventually("the metric shows it", async || match worker.metric("suspect_submitters", &[]).await {
        1.0 => Ok(()),
        other => Err(other),
    })
    .await;
    assert!(worker.events().iter().any(|event| event["event"] == "submitter.suspect"));
    assert_eq!(stack.row(next).await.nonce, None, "no new nonce");

    // Another worker knows it from the database.
    worker.kill9();
    stack.start_worker().await;
    wait_suspect(&stack, submitter).await;
    assert_eq!(stack.row(tx_id).await.state, TxState::InFlight);

    // A node that shows the block is enough, even if it has no index of transactions.
    stack.proxy().show_blocks();
    stack.wait_for(tx_id, TxState::Confirmed).await;
    stack.wait_for(next, TxState::Confirmed).await;
    assert_eq!(seen(&stack, submitter).await["state"], "ACTIVE");
    assert_eq!(stack.attempts(tx_id).await.len(), 1, "nothing was signed anew");
    assert_eq!(stack.anvil().balance(target()).await, 11.into(), "each of them once");
    assert!(stack.verify().await.sound);
    stack.finish().await;
}
