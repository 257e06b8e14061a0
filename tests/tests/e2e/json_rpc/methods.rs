//! Which methods there are, batches and limits.

use gapless_testkit::{Answer, Stack};
use serde_json::{Value, json};

use super::{answer, call, failure, path, with_rpc};
use crate::stack;

async fn post(stack: &Stack, body: &Value) -> Answer {
    stack.client().post_to(&path(stack), body).await
}

#[tokio::test(flavor = "multi_thread")]
async fn own_methods_answer_reads_are_passed_on_and_the_rest_says_why_not() {
    let stack = with_rpc().submitters(2).up().await;
    assert_eq!(call(&stack, "eth_chainId", json!([])).await, "0x7a69");
    assert_eq!(call(&stack, "net_version", json!([])).await, "31337");
    let version = call(&stack, "web3_clientVersion", json!([])).await;
    assert!(version.as_str().unwrap().starts_with("Gapless/"), "{version}");
    let mut own = [0, 1].map(|index| stack.submitter(index).text().to_lowercase());
    own.sort_unstable();
    for method in ["eth_accounts", "eth_requestAccounts"] {
        let mut listed: Vec<String> = serde_json::from_value(call(&stack, method, json!([])).await).unwrap();
        listed.sort_unstable();
        assert_eq!(listed, own, "{method}");
    }
    let account = json!([stack.submitter(0).text(), "latest"]);
    for (method, params) in [
        ("eth_blockNumber", json!([])),
        ("eth_getBalance", account.clone()),
        ("eth_getTransactionCount", account.clone()),
        ("eth_getBlockByNumber", json!(["latest", false])),
        ("eth_feeHistory", json!(["0x1", "latest", [50]])),
    ] {
        let (here, there) =
            (call(&stack, method, params.clone()).await, stack.anvil().rpc(method, params).await);
        assert_eq!(here, there, "{method}");
    }
    // A node's error arrives unchanged.
    let refused = failure(&stack, "eth_getBalance", json!(["0x12", "latest"])).await;
    assert!(refused["code"].as_i64().is_some_and(|code| code < 0), "{refused}");
    for method in [
        "eth_sendRawTransaction",
        "wallet_sendTransaction",
        "personal_sign",
        "eth_sign",
        "eth_signTypedData_v4",
        "debug_traceTransaction",
        "admin_peers",
        "evm_mine",
        "eth_newFilter",
    ] {
        let refused = failure(&stack, method, json!([])).await;
        assert_eq!(refused["code"], -32601, "{refused}");
        let message = refused["message"].as_str().unwrap();
        assert!(message.starts_with(method) && message.len() > method.len() + 20, "{message}");
    }
    stack.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_is_answered_call_by_call_and_has_a_limit() {
    let stack = with_rpc().set("api.json_rpc.max_batch", 3).up().await;
    let one = |id: u64, method: &str| json!({ "jsonrpc": "2.0", "id": id, "method": method });
    let answered = post(&stack, &json!([one(7, "eth_chainId"), {"id": 8}, one(9, "nothing")])).await;
    assert_eq!(answered.status, 200);
    let answers = answered.body.as_array().unwrap();
    assert_eq!((&answers[0]["id"], &answers[0]["result"]), (&json!(7), &json!("0x7a69")));
    assert_eq!((&answers[1]["id"], &answers[1]["error"]["code"]), (&Value::Null, &json!(-32600)));
    assert_eq!((&answers[2]["id"], &answers[2]["error"]["code"]), (&json!(9), &json!(-32601)));
    let many: Vec<Value> = (0..4).map(|id| one(id, "eth_chainId")).collect();
    let refused = post(&stack, &json!(many)).await;
    assert_eq!(refused.body["error"]["code"], -32600, "{refused:?}");
    assert!(refused.body["error"]["message"].as_str().unwrap().contains("api.json_rpc.max_batch"));
    stack.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_endpoint_or_the_chain_there_is_no_route() {
    let off = stack().up().await;
    let chain_id = json!({ "jsonrpc": "2.0", "id": 1, "method": "eth_chainId" });
    let refused = post(&off, &chain_id).await;
    assert_eq!((refused.status, &refused.body["error"]["data"]["code"]), (404, &json!("unknown_route")));
    off.finish().await;
    let on = with_rpc().up().await;
    let refused = on.client().post_to("/rpc/5", &chain_id).await;
    assert_eq!((refused.status, &refused.body["error"]["data"]["code"]), (404, &json!("unknown_chain")));
    let refused = on.client().get(&path(&on)).await;
    assert_eq!((refused.status, refused.headers["allow"].to_str().unwrap()), (405, "POST"));
    let body = answer(&on.client(), &on, "eth_sendTransaction", json!([{ "to": "0x01" }])).await;
    assert_eq!(body["error"]["code"], -32602, "{body}");
    on.finish().await;
}
