//! Unmined transactions: the alarm, the policy, the operator, and the profile that only resends.

use gapless_testkit::{Address, Behaviour, Fault, Mining, SigningService, TxState, eventually, payload};
use serde_json::json;

use crate::signers::wait_known;
use crate::stack;

const SEND: &str = "eth_sendRawTransaction";

#[tokio::test(flavor = "multi_thread")]
async fn a_policy_raises_the_price_of_what_is_stuck() {
    let stack =
        stack().mining(Mining::Manual).set("stuck.after", "1s").set("stuck.policy", "bump").up().await;
    let to = Address::repeat_byte(0xf1);
    let tx_id = stack.create(stack.submitter(0), "slow", &payload(to, 1)).await;
    stack.wait_for(tx_id, TxState::Stuck).await;
    let attempts = stack.wait_attempts(tx_id, 2).await;
    assert_eq!(attempts[1].kind, "REPLACEMENT");
    eventually("it is mined", async || {
        stack.anvil().mine(1).await;
        let row = stack.row(tx_id).await;
        if row.state == TxState::Confirmed { Ok(()) } else { Err(row) }
    })
    .await;
    assert_eq!(stack.anvil().balance(to).await, 1.into());
    stack.finish().await;
}

/// The decision of the policy survives a change of owner: the signer was unreachable, and the worker was killed
/// meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn a_higher_price_that_the_policy_wanted_survives_kill_9() {
    let stack = stack().short_lease().mining(Mining::Manual).set("stuck.after", "4s");
    let stack = stack.set("stuck.policy", "bump").start().await;
    stack.start_api().await;
    let (submitter, to) = (stack.submitter(0), Address::repeat_byte(0xf0));
    let service = SigningService::start(submitter, "token").await;
    let signer = json!([
        { "url": service.url(), "addresses": [submitter.text()], "token_env": "SIGNING_TOKEN" },
    ]);
    let worker =
        || stack.worker().only_keys(&[]).set("signer.http", signer.clone()).env("SIGNING_TOKEN", "token");
    let first = worker().start().await;
    wait_known(&stack, submitter).await;
    let tx_id = stack.create(submitter, "slow", &payload(to, 1)).await;
    stack.wait_attempts(tx_id, 1).await;
    service.set_behaviour(Behaviour::Away);
    stack.wait_for(tx_id, TxState::Stuck).await;
    first.kill9();
    assert_eq!(stack.attempts(tx_id).await.len(), 1, "no other could be signed");
    service.set_behaviour(Behaviour::Honest);
    worker().start().await;
    let attempts = stack.wait_attempts(tx_id, 2).await;
    assert_eq!(attempts[1].kind, "REPLACEMENT");
    stack.wait_pooled(attempts[1].tx_hash).await;
    stack.anvil().mine(1).await;
    stack.wait_for(tx_id, TxState::Confirmed).await;
    assert_eq!(stack.attempts(tx_id).await.len(), 2, "raised once");
    stack.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_finds_what_is_stuck_and_resolves_it() {
    let stack = stack()
        .mining(Mining::Manual)
        .set("stuck.max_attempts", 2)
        .set("resubmit.interval", "300ms")
        .up()
        .await;
    let to = Address::repeat_byte(0xf2);
    let tx_id = stack.create(stack.submitter(0), "slow", &payload(to, 1)).await;
    stack.wait_for(tx_id, TxState::Stuck).await;
    let list = stack.client().get("/api/v1/stuck").await;
    assert_eq!(list.body["items"][0]["txId"], json!(tx_id.to_string()), "{list:?}");
    let path = format!("/api/v1/tx/{tx_id}/resolve");
    let order = |action: &str| json!({ "action": action, "reason": "the customer asked" });
    assert_eq!(stack.client().post_to(&path, &order("cancel")).await.status, 401);
    assert_eq!(stack.client().admin_post(&path, &order("rebroadcast")).await.status, 200);
    assert_eq!(stack.client().admin_post(&path, &order("pray")).await.status, 400);
    assert_eq!(stack.client().admin_post(&path, &order("cancel")).await.status, 200);
    let attempts = stack.wait_attempts(tx_id, 2).await;
    stack.wait_pooled(attempts[1].tx_hash).await;
    stack.anvil().mine(1).await;
    stack.wait_for(tx_id, TxState::Cancelled).await;
    assert_eq!(stack.client().get("/api/v1/stuck").await.body["items"], json!([]));
    assert_eq!(stack.anvil().balance(to).await, 0.into());
    stack.finish().await;
}

/// Only the bytes that were signed first.
#[tokio::test(flavor = "multi_thread")]
async fn stability_first_makes_neither_replacement_nor_placeholder() {
    let stack = stack()
        .proxied()
        .set("nonce.profile", "stability_first")
        .set("stuck.after", "1s")
        .set("stuck.policy", "cancel")
        .set("resubmit.interval", "300ms")
        .up()
        .await;
    let to = Address::repeat_byte(0xf3);
    stack.proxy().always(SEND, Fault::error("intrinsic gas too low"));
    let tx_id = stack.create(stack.submitter(0), "firm", &payload(to, 1)).await;
    stack.wait_for(tx_id, TxState::Stuck).await;
    let answer = stack.client().post_to(&format!("/api/v1/tx/{tx_id}/cancel"), &json!({})).await;
    assert_eq!((answer.status, answer.code()), (409, "action_refused"), "{answer:?}");
    assert_eq!(stack.attempts(tx_id).await.len(), 1);
    stack.proxy().clear();
    stack.wait_for(tx_id, TxState::Confirmed).await;
    assert_eq!(stack.attempts(tx_id).await.len(), 1);
    assert_eq!(stack.anvil().balance(to).await, 1.into());
    stack.finish().await;
}
