//! The Ethereum JSON-RPC endpoint: what it sends, what it answers, and that an error means that nothing will be sent.

mod hashes;
mod keys;
mod libraries;
mod methods;
mod nonces;
mod sends;

use gapless_testkit::{Client, Stack, StackBuilder, TxId};
use reqwest::Method;
use serde_json::{Value, json};

use crate::stack;

const SEND: &str = "eth_sendTransaction";
/// Libraries do not repeat a call after this error.
const REJECTED: i64 = -32003;

/// A stack whose API has the endpoint. The wait is short, so that tests of its end are.
fn with_rpc() -> StackBuilder {
    stack().set("api.json_rpc.enabled", true).set("api.json_rpc.wait", "3s")
}

fn path(stack: &Stack) -> String {
    format!("/rpc/{}", stack.anvil().chain_id())
}

/// The whole answer to one call.
async fn answer(client: &Client, stack: &Stack, method: &str, params: Value) -> Value {
    let call = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
    let answer = client.post_to(&path(stack), &call).await;
    assert_eq!(answer.status, 200, "{method}: {answer:?}");
    assert_eq!((&answer.body["jsonrpc"], &answer.body["id"]), (&json!("2.0"), &json!(1)), "{answer:?}");
    answer.body
}

/// The result of a call that must succeed.
async fn call(stack: &Stack, method: &str, params: Value) -> Value {
    let body = answer(&stack.client(), stack, method, params).await;
    assert!(body.get("error").is_none(), "{method}: {body}");
    body["result"].clone()
}

/// The error of a call that must fail.
async fn failure(stack: &Stack, method: &str, params: Value) -> Value {
    let body = answer(&stack.client(), stack, method, params).await;
    assert!(body.get("result").is_none(), "{method}: {body}");
    body["error"].clone()
}

/// A transfer of the first submitter, with more members.
fn transfer(stack: &Stack, more: Value) -> Value {
    let mut tx = json!({
        "from": stack.submitter(0).text(), "to": "0x00000000000000000000000000000000000000e5", "value": "0x1",
    });
    tx.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    json!([tx])
}

/// The hash of a transfer that must be accepted.
async fn send(stack: &Stack) -> String {
    let hash = call(stack, SEND, transfer(stack, json!({}))).await;
    hash.as_str().unwrap().to_owned()
}

async fn send_with_key(stack: &Stack, idempotency_key: &str, tx: Value) -> Value {
    let call = json!({ "jsonrpc": "2.0", "id": 1, "method": SEND, "params": tx });
    let client = stack.client();
    let request = client.request(Method::POST, &path(stack)).header("Idempotency-Key", idempotency_key);
    client.ask(request.json(&call)).await.body
}

fn tx_id_of(failure: &Value) -> TxId {
    failure["data"]["txId"].as_str().unwrap_or_else(|| panic!("no txId: {failure}")).parse().unwrap()
}

/// The transaction of a hash, as Gapless shows it.
async fn shown(stack: &Stack, hash: &str) -> Value {
    call(stack, "gapless_getTransaction", json!([hash])).await
}
