//! Hashes and receipts after replacements and cancellations.

use gapless_testkit::{Fault, Mining, TxState, eventually};
use serde_json::{Value, json};

use super::{REJECTED, SEND, call, failure, send, send_with_key, shown, transfer, tx_id_of, with_rpc};

const RECEIPT: &str = "eth_getTransactionReceipt";
const BY_HASH: &str = "eth_getTransactionByHash";

/// Scenario 90, first half.
#[tokio::test(flavor = "multi_thread")]
async fn the_first_hash_of_a_replaced_transaction_leads_to_the_mined_receipt() {
    let stack = with_rpc().mining(Mining::Manual).up().await;
    let first = send(&stack).await;
    let tx_id = stack.rows(stack.submitter(0)).await[0].tx_id;
    let path = format!("/api/v1/tx/{tx_id}/speed-up?wait=30s");
    assert_eq!(stack.client().admin_post(&path, &json!({ "reason": "test" })).await.status, 200);
    let attempts = stack.wait_attempts(tx_id, 2).await;
    stack.wait_pooled(attempts[1].tx_hash).await;
    assert_eq!(call(&stack, BY_HASH, json!([first])).await["hash"], json!(first), "no node has it any more");
    stack.anvil().mine(1).await;
    stack.wait_for(tx_id, TxState::Confirmed).await;
    let second = format!("{:#x}", attempts[1].tx_hash);
    let receipt = call(&stack, RECEIPT, json!([first])).await;
    assert_eq!(
        (&receipt["transactionHash"], &receipt["status"]),
        (&json!(second), &json!("0x1")),
        "{receipt}"
    );
    let tx = call(&stack, BY_HASH, json!([first])).await;
    assert_eq!((&tx["hash"], &tx["blockHash"]), (&json!(first), &receipt["blockHash"]), "{tx}");
    assert_eq!(call(&stack, RECEIPT, json!([second])).await, receipt);
    stack.finish().await;
}

/// Scenario 90, second half. The placeholder's receipt has status 1: it must not answer for the cancelled transaction.
#[tokio::test(flavor = "multi_thread")]
async fn the_hash_of_a_cancelled_transaction_never_leads_to_its_placeholder() {
    let stack = with_rpc().mining(Mining::Manual).up().await;
    let tx = transfer(&stack, json!({}));
    let sent = send_with_key(&stack, "cancelled", tx.clone()).await;
    let first = sent["result"].as_str().unwrap();
    let tx_id = stack.rows(stack.submitter(0)).await[0].tx_id;
    let path = format!("/api/v1/tx/{tx_id}/cancel?wait=30s");
    assert_eq!(stack.client().post_to(&path, &json!({ "reason": "test" })).await.status, 200);
    let attempts = stack.wait_attempts(tx_id, 2).await;
    assert_eq!(attempts[1].kind, "PLACEHOLDER");
    stack.wait_pooled(attempts[1].tx_hash).await;
    stack.anvil().mine(1).await;
    stack.wait_for(tx_id, TxState::Cancelled).await;
    let placeholder = format!("{:#x}", attempts[1].tx_hash);
    assert_eq!(call(&stack, RECEIPT, json!([placeholder])).await["status"], "0x1", "the trap");
    assert_eq!(call(&stack, RECEIPT, json!([first])).await, Value::Null);
    assert_eq!(call(&stack, BY_HASH, json!([first])).await, Value::Null);
    assert_eq!(shown(&stack, first).await["state"], "CANCELLED");
    // A repeated call says so too.
    let again = send_with_key(&stack, "cancelled", tx).await;
    assert_eq!(again["error"]["code"], REJECTED, "{again}");
    assert_eq!(tx_id_of(&again["error"]), tx_id);
    stack.finish().await;
}

/// The worker's nodes do not take it: only our rows have it.
#[tokio::test(flavor = "multi_thread")]
async fn what_no_node_has_is_answered_from_our_rows() {
    let stack = with_rpc().proxied().up().await;
    stack.proxy().always("eth_sendRawTransaction", Fault::Status(503, "away".to_owned()));
    let hash = send(&stack).await;
    let tx = call(&stack, BY_HASH, json!([hash])).await;
    assert_eq!(
        (&tx["hash"], &tx["blockHash"], &tx["nonce"], &tx["value"]),
        (&json!(hash), &Value::Null, &json!("0x0"), &json!("0x1")),
        "{tx}"
    );
    assert_eq!(tx["from"], stack.submitter(0).text().to_lowercase());
    stack.proxy().clear();
    eventually("it is mined", async || {
        let receipt = call(&stack, RECEIPT, json!([hash])).await;
        if receipt.is_null() { Err(receipt) } else { Ok(()) }
    })
    .await;
    stack.finish().await;
}

/// Init code that reverts with the bytes `deadbeef`.
const REVERTS: &str = "0x63deadbeef60e01b60005260046000fd";

#[tokio::test(flavor = "multi_thread")]
async fn a_revert_has_its_bytes_where_libraries_look() {
    // A revert counts when it is seen a second time, after three seconds.
    let stack = with_rpc().set("api.json_rpc.wait", "8s").up().await;
    let reverted =
        failure(&stack, SEND, json!([{ "from": stack.submitter(0).text(), "data": REVERTS }])).await;
    assert_eq!((&reverted["code"], &reverted["data"]["code"]), (&json!(REJECTED), &json!("would_revert")));
    assert_eq!(reverted["data"]["data"], "0xdeadbeef", "{reverted}");
    assert!(reverted["data"]["message"].as_str().unwrap().contains("revert"), "{reverted}");
    let row = stack.row(tx_id_of(&reverted)).await;
    assert_eq!((row.state, row.nonce), (TxState::Failed, None));
    let estimated =
        failure(&stack, "eth_estimateGas", json!([{ "from": stack.submitter(0).text(), "data": REVERTS }]))
            .await;
    assert_eq!(estimated["data"], "0xdeadbeef", "{estimated}");
    stack.finish().await;
}
