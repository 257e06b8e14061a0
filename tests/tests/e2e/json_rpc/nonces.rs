//! Nonces and fees in the call: some libraries fill them in.

use gapless_testkit::{Fault, Mining, TxState, eventually};
use serde_json::json;

use super::{REJECTED, SEND, call, failure, send, transfer, tx_id_of, with_rpc};

#[tokio::test(flavor = "multi_thread")]
async fn a_nonce_in_the_call_must_be_the_next_one() {
    let stack = with_rpc().window(8).set("api.json_rpc.wait", "1s").up().await;
    call(&stack, SEND, transfer(&stack, json!({ "nonce": "0x0" }))).await;
    let used = failure(&stack, SEND, transfer(&stack, json!({ "nonce": "0x0", "value": "0x9" }))).await;
    assert_eq!(
        (&used["code"], &used["data"]["code"]),
        (&json!(REJECTED), &json!("nonce_mismatch")),
        "{used}"
    );
    let row = stack.row(tx_id_of(&used)).await;
    assert_eq!((row.state, row.nonce), (TxState::Failed, None));
    let early = failure(&stack, SEND, transfer(&stack, json!({ "nonce": "0x5" }))).await;
    assert!(early["message"].as_str().unwrap().contains("not the next one"), "{early}");
    assert_eq!(stack.row(tx_id_of(&early)).await.nonce, None);
    for bad in ["0xffffffffffffffff", "0x8000000000000000", "7"] {
        let refused = failure(&stack, SEND, transfer(&stack, json!({ "nonce": bad }))).await;
        assert_eq!(refused["code"], -32602, "{refused}");
    }
    // The queue goes on.
    call(&stack, SEND, transfer(&stack, json!({ "nonce": "0x1" }))).await;
    call(&stack, SEND, transfer(&stack, json!({}))).await;
    assert_eq!(stack.cursor(stack.submitter(0)).await.unwrap().next, 3);
    stack.finish().await;
}

/// A library that counts nonces sends several at once, and they arrive in any order.
#[tokio::test(flavor = "multi_thread")]
async fn nonces_may_arrive_in_any_order() {
    let stack = with_rpc().window(32).set("nonce.release_at", "mined").up().await;
    let sends = (0..20_u64).rev().map(|nonce| {
        call(
            &stack,
            SEND,
            transfer(&stack, json!({ "nonce": format!("{nonce:#x}"), "value": format!("{nonce:#x}") })),
        )
    });
    let hashes = futures::future::join_all(sends).await;
    for (hash, nonce) in hashes.iter().zip((0..20_u64).rev()) {
        let tx = call(&stack, "eth_getTransactionByHash", json!([hash])).await;
        assert_eq!(
            (&tx["nonce"], &tx["value"]),
            (&json!(format!("{nonce:#x}")), &json!(format!("{nonce:#x}")))
        );
    }
    stack.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_pending_count_includes_what_no_node_has_yet() {
    let stack = with_rpc().window(8).mining(Mining::Manual).proxied().up().await;
    stack.proxy().always("eth_sendRawTransaction", Fault::Status(503, "away".to_owned()));
    send(&stack).await;
    let count = json!([stack.submitter(0).text(), "pending"]);
    assert_eq!(call(&stack, "eth_getTransactionCount", count.clone()).await, "0x1");
    send(&stack).await;
    assert_eq!(call(&stack, "eth_getTransactionCount", count).await, "0x2");
    let latest = json!([stack.submitter(0).text(), "latest"]);
    assert_eq!(call(&stack, "eth_getTransactionCount", latest).await, "0x0");
    let bare =
        stack.anvil().rpc("eth_getTransactionCount", json!([stack.submitter(0).text(), "pending"])).await;
    assert_eq!(bare, "0x0", "the node has none of them");
    stack.proxy().clear();
    stack.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nonces_can_be_ignored_and_fees_can_be_used() {
    let price =
        json!({ "nonce": "0x63", "maxFeePerGas": "0x77359400", "maxPriorityFeePerGas": "0x3b9aca00" });
    let stack = with_rpc().set("api.json_rpc.nonce", "ignore").set("api.json_rpc.fees", "use").up().await;
    let hash = call(&stack, SEND, transfer(&stack, price.clone())).await;
    let tx = call(&stack, "eth_getTransactionByHash", json!([hash])).await;
    assert_eq!((&tx["maxFeePerGas"], &tx["nonce"]), (&json!("0x77359400"), &json!("0x0")), "{tx}");
    stack.finish().await;
    let stack = with_rpc().set("api.json_rpc.nonce", "ignore").up().await;
    let hash = call(&stack, SEND, transfer(&stack, price)).await;
    let tx = call(&stack, "eth_getTransactionByHash", json!([hash])).await;
    assert_ne!(tx["maxFeePerGas"], "0x77359400", "{tx}");
    eventually("it is mined", async || {
        let receipt = call(&stack, "eth_getTransactionReceipt", json!([hash])).await;
        if receipt.is_null() { Err(receipt) } else { Ok(()) }
    })
    .await;
    stack.finish().await;
}
