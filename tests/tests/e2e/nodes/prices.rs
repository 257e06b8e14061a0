//! Prices in mempools, and gas limits of chains.

use gapless_testkit::{Address, NodeKind, TxState, U256, eventually, payload};
use serde_json::json;

use super::held;
use crate::stack;

/// EIP-7825.
const MOST_OF_ONE: u64 = 1 << 24;

/// Scenario 39: every mempool requires 10 % more for a replacement.
pub(super) async fn a_replacement_is_taken_and_mined(kind: NodeKind) {
    let stack = held(kind)
        .set("gasbump.enabled", true)
        .set("gasbump.min_interval", "500ms")
        .set("gasbump.max_attempts", 1)
        .set("gasbump.multiplier", 1.1)
        .up()
        .await;
    let to = Address::repeat_byte(0xe2);
    let tx_id = stack.create(stack.submitter(0), "bumped", &payload(to, 3)).await;
    let attempts = stack.wait_attempts(tx_id, 2).await;
    assert_eq!((attempts[1].kind.as_str(), attempts[1].nonce), ("REPLACEMENT", attempts[0].nonce));
    stack.wait_pooled(attempts[1].tx_hash).await;
    assert_eq!(stack.chain(0).pending().await, 1, "one per nonce");
    stack.chain(0).release().await;
    let row = stack.wait_for(tx_id, TxState::Confirmed).await;
    assert_eq!(row.tx_hash, Some(attempts[1].tx_hash), "the mined one");
    assert_eq!(stack.chain(0).balance(to).await, 3.into());
    stack.finish().await;
}

/// Scenario 42, in flight.
pub(super) async fn a_cancelled_transaction_is_replaced_by_a_placeholder(kind: NodeKind) {
    let stack = held(kind).up().await;
    let (submitter, to) = (stack.submitter(0), Address::repeat_byte(0xe5));
    let tx_id = stack.create(submitter, "cancelled", &payload(to, 1)).await;
    let follower = stack.create(submitter, "follower", &payload(to, 20)).await;
    stack.wait_for(tx_id, TxState::Submitted).await;
    let answer = stack.client().post_to(&format!("/api/v1/tx/{tx_id}/cancel"), &json!({})).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let attempts = stack.wait_attempts(tx_id, 2).await;
    assert_eq!((attempts[1].kind.as_str(), attempts[1].nonce), ("PLACEHOLDER", 0));
    stack.wait_pooled(attempts[1].tx_hash).await;
    stack.chain(0).release().await;
    let row = stack.wait_for(tx_id, TxState::Cancelled).await;
    assert_eq!((row.nonce, row.tx_hash), (Some(0), Some(attempts[1].tx_hash)));
    assert_eq!(stack.wait_for(follower, TxState::Confirmed).await.nonce, Some(1));
    assert_eq!(stack.chain(0).balance(to).await, 20.into());
    stack.finish().await;
}

/// Scenario 43, with a node that enforces a limit: the chain's rule is only known from the node's response.
pub(super) async fn more_gas_than_one_transaction_may_have_fails_with_the_reason(kind: NodeKind) {
    let stack = stack().node(kind).up().await;
    let (submitter, to) = (stack.submitter(0), Address::repeat_byte(0xe7));
    let greedy = json!({ "to": format!("{to:#x}"), "value": "1", "gasLimit": (MOST_OF_ONE + 1).to_string() });
    let tx_id = stack.create(submitter, "greedy", &greedy).await;
    let follower = stack.create(submitter, "follower", &payload(to, 30)).await;
    let row = stack.wait_for(tx_id, TxState::Failed).await;
    let error = row.last_error.clone().unwrap();
    assert!(error.starts_with("rejected: ") && error.contains("gas"), "{row:?}");
    assert_eq!(stack.wait_for(follower, TxState::Confirmed).await.nonce, Some(1));
    let kinds: Vec<String> = stack.attempts(tx_id).await.into_iter().map(|attempt| attempt.kind).collect();
    assert_eq!(kinds, ["ORIGINAL", "PLACEHOLDER"]);
    assert_eq!(stack.chain(0).balance(to).await, 30.into());
    stack.finish().await;
}

/// 15 million gas are allowed, 15 million with the usual margin are not.
pub(super) async fn an_estimate_near_the_limit_of_one_transaction_is_not_lifted_above_it(kind: NodeKind) {
    let stack = stack().node(kind).up().await;
    // PUSH1 1, PUSH3 2752512, MSTORE, STOP: this much memory costs 14.7 million gas, and little time.
    let busy = stack.chain(0).deploy("0x6001622a00005200").await;
    let tx_id = stack.create(stack.submitter(0), "busy", &payload(busy, 0)).await;
    let row = stack.wait_for(tx_id, TxState::Confirmed).await;
    let mined = stack.chain(0).rpc("eth_getTransactionByHash", json!([row.tx_hash])).await;
    assert_eq!(mined["gas"], format!("{MOST_OF_ONE:#x}"), "up to its limit");
    stack.finish().await;
}

/// Scenario 41: an unaffordable transaction is not sent to a node.
pub(super) async fn a_submitter_without_funds_waits_until_it_has_some(kind: NodeKind) {
    let stack = stack().node(kind).balance(1_000).up().await;
    let (submitter, to) = (stack.submitter(0), Address::repeat_byte(0xe9));
    let tx_id = stack.create(submitter, "poor", &payload(to, 5)).await;
    eventually("it waits for funds", async || {
        let row = stack.row(tx_id).await;
        if row.sub_state.as_deref() == Some("waiting_funds") { Ok(()) } else { Err(row) }
    })
    .await;
    stack.chain(0).set_balance(submitter.address(), U256::exp10(18)).await;
    assert_eq!(stack.wait_for(tx_id, TxState::Confirmed).await.nonce, Some(0));
    assert_eq!(stack.chain(0).balance(to).await, 5.into());
    stack.finish().await;
}
