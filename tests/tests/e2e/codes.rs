//! Every intent that waits or ended without its effect has an error code.

use gapless_testkit::{Address, Fault, Mining, Stack, TxId, TxState, U256, eventually, payload};
use serde_json::{Value, json};

use crate::stack;

const SEND: &str = "eth_sendRawTransaction";

/// Waits until the API shows this code. Returns the error.
async fn wait_code(stack: &Stack, tx_id: TxId, code: &str) -> Value {
    eventually(&format!("{tx_id} says {code}"), async || {
        let seen = stack.get(tx_id).await;
        if seen["error"]["code"] == code { Ok(seen["error"].clone()) } else { Err(seen) }
    })
    .await
}

async fn cancel(stack: &Stack, tx_id: TxId, reason: &str) {
    let path = format!("/api/v1/tx/{tx_id}/cancel");
    let answer = stack.client().post_to(&path, &json!({ "reason": reason })).await;
    assert!(matches!(answer.status, 200 | 202), "{answer:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_waits_without_a_nonce_says_what_it_waits_for_and_then_how_it_ended() {
    let stack = stack().submitters(2).start().await;
    let away = stack.dir().join("signer-is-away");
    stack.start_api().await;
    stack.worker().env("GAPLESS_FAILPOINT_SIGNER", away.to_str().unwrap()).start().await;
    let (one, two, to) = (stack.submitter(0), stack.submitter(1), Address::repeat_byte(0xb1));

    let rich = json!({ "to": format!("{to:#x}"), "value": U256::exp10(30).to_string() });
    let rich = stack.create(one, "rich", &rich).await;
    wait_code(&stack, rich, "insufficient_funds").await;
    cancel(&stack, rich, "it was a dream").await;
    stack.wait_for(rich, TxState::Cancelled).await;
    let error = json!({ "code": "cancelled", "message": "it was a dream" });
    assert_eq!(stack.get(rich).await["error"], error);

    let cheap =
        json!({ "to": format!("{to:#x}"), "value": "1", "maxFeePerGas": "1", "maxPriorityFeePerGas": "1" });
    let cheap = stack.create(one, "cheap", &cheap).await;
    wait_code(&stack, cheap, "underpriced").await;
    cancel(&stack, cheap, "too dear").await;
    stack.wait_for(cheap, TxState::Cancelled).await;

    std::fs::write(&away, "").unwrap();
    let unsigned = stack.create(two, "unsigned", &payload(to, 1)).await;
    wait_code(&stack, unsigned, "signer_unavailable").await;
    std::fs::remove_file(&away).unwrap();
    stack.wait_for(unsigned, TxState::Confirmed).await;
    assert_eq!(stack.get(unsigned).await["error"], Value::Null, "the error is cleared");

    let huge = json!({ "to": format!("{to:#x}"), "gasLimit": "4000000000" });
    let huge = stack.create(two, "huge", &huge).await;
    stack.wait_for(huge, TxState::Failed).await;
    assert_eq!(stack.get(huge).await["error"]["code"], "invalid");
    stack.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_waits_to_be_taken_or_mined_says_what_the_node_said() {
    let stack = stack()
        .proxied()
        .mining(Mining::Manual)
        .set("resubmit.interval", "300ms")
        .set("stuck.after", "2s")
        .up()
        .await;
    let (submitter, to) = (stack.submitter(0), Address::repeat_byte(0xb2));
    stack.proxy().always(SEND, Fault::error("txpool is full"));
    let tx_id = stack.create(submitter, "slow", &payload(to, 1)).await;
    let error = wait_code(&stack, tx_id, "pool_full").await;
    assert!(error["message"].as_str().unwrap().contains("txpool is full"), "{error}");
    stack.proxy().clear();
    wait_code(&stack, tx_id, "stuck").await;
    assert_eq!(stack.row(tx_id).await.state, TxState::Stuck);
    stack.anvil().mine(1).await;
    stack.wait_for(tx_id, TxState::Confirmed).await;
    assert_eq!(stack.get(tx_id).await["error"], Value::Null, "the error is cleared");
    stack.finish().await;
}

/// The reason is stored: the worker that sees the placeholder mined may be another one.
#[tokio::test(flavor = "multi_thread")]
async fn why_an_intent_was_given_up_is_known_to_the_next_owner() {
    let stack = stack().short_lease().proxied().mining(Mining::Manual).submitters(2).start().await;
    stack.start_api().await;
    let doomed = stack.start_worker().await;
    let (late, refused, to) = (stack.submitter(0), stack.submitter(1), Address::repeat_byte(0xb3));
    stack.proxy().next(1, SEND, Fault::error("intrinsic gas too low"));
    let refused = stack.create(refused, "refused", &payload(to, 1)).await;
    stack.wait_attempts(refused, 2).await;
    let soon = stack.database_time_in("15 s").await;
    let limited = json!({ "to": format!("{to:#x}"), "value": "1", "deadline": soon });
    let late = stack.create(late, "late", &limited).await;
    let attempts = [stack.wait_attempts(late, 2).await, stack.wait_attempts(refused, 2).await];
    for attempts in attempts {
        assert_eq!(attempts[1].kind, "PLACEHOLDER");
        stack.wait_pooled(attempts[1].tx_hash).await;
    }
    doomed.kill9();
    stack.start_worker().await;
    stack.anvil().mine(1).await;
    stack.wait_for(late, TxState::Cancelled).await;
    stack.wait_for(refused, TxState::Failed).await;
    assert_eq!(stack.get(late).await["error"]["code"], "deadline_passed");
    assert_eq!(stack.get(refused).await["error"]["code"], "unmineable");
    assert_eq!(stack.anvil().balance(to).await, 0.into());
    stack.finish().await;
}
