//! Tests of the harness itself.

use std::time::Duration;

use gapless_testkit::{
    Address, Fault, Mining, Node, Proxy, SendsOf, Submitter, TxState, eventually, payload,
};
use serde_json::{Value, json};

use crate::stack;

#[tokio::test(flavor = "multi_thread")]
#[should_panic(expected = "without stack.finish()")]
async fn a_test_that_forgets_the_audit_fails() {
    let _stack = stack().start().await;
}

/// For responses that must not come. Long enough for a loaded machine to read the request.
async fn ask(url: &str, body: &Value) -> reqwest::Result<Value> {
    let client = gapless_http_client::client_builder().timeout(Duration::from_secs(2)).build()?;
    client.post(url).json(body).send().await?.json().await
}

/// For responses that must come, also on a loaded machine.
async fn ask_patiently(url: &str, body: &Value) -> Value {
    gapless_http_client::client_builder()
        .build()
        .expect("a client")
        .post(url)
        .json(body)
        .send()
        .await
        .unwrap()
        .json()
        .await
        .unwrap()
}

fn call(id: u64, method: &str, params: Value) -> Value {
    json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params })
}

#[tokio::test(flavor = "multi_thread")]
async fn the_proxy_breaks_what_it_is_told_to_and_passes_on_the_rest() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::start(4711, Mining::Manual, &dir.path().join("anvil.log")).await;
    let proxy = Proxy::start(node.url()).await;
    let chain_id = call(1, "eth_chainId", json!([]));
    assert_eq!(ask_patiently(proxy.url(), &chain_id).await["result"], "0x1267");

    for fault in [
        Fault::DropAnswer,
        Fault::Truncate,
        Fault::Corrupt,
        Fault::Close,
        Fault::Hang,
        Fault::Html("<html>502</html>".into()),
        Fault::Delay(Duration::from_secs(10)),
    ] {
        proxy.next(1, "eth_chainId", fault.clone());
        assert!(ask(proxy.url(), &chain_id).await.is_err(), "{fault:?}");
        assert_eq!(proxy.rules_left(), 0, "{fault:?}");
        assert_eq!(ask_patiently(proxy.url(), &chain_id).await["result"], "0x1267", "after {fault:?}");
    }
    proxy.next(1, "eth_chainId", Fault::WrongId);
    assert_ne!(ask_patiently(proxy.url(), &chain_id).await["id"], 1);

    proxy.next(1, "eth_chainId", Fault::Flip);
    assert_eq!(ask_patiently(proxy.url(), &chain_id).await["result"], "0x1260");

    // One call of a batch fails; the other is forwarded.
    proxy.next(2, "eth_blockNumber", Fault::error("header not found"));
    let batch = json!([chain_id, call(2, "eth_blockNumber", json!([]))]);
    let answers = ask_patiently(proxy.url(), &batch).await;
    assert_eq!(
        (&answers[0]["result"], &answers[1]["error"]["message"]),
        (&json!("0x1267"), &json!("header not found"))
    );
    assert_eq!(proxy.rules_left(), 1);
    proxy.clear();
    assert_eq!(proxy.calls("eth_blockNumber"), 1);

    node.mine(3).await;
    proxy.freeze_at(1);
    let head = call(3, "eth_blockNumber", json!([]));
    assert_eq!(ask_patiently(proxy.url(), &head).await["result"], "0x1");
    assert_eq!(
        ask_patiently(proxy.url(), &call(4, "eth_getBlockByNumber", json!(["0x2", false]))).await["result"],
        Value::Null
    );
    assert_eq!(
        ask_patiently(proxy.url(), &call(4, "eth_getBlockByNumber", json!(["latest", false]))).await["result"]
            ["number"],
        "0x1"
    );
    proxy.thaw();
    assert_eq!(ask_patiently(proxy.url(), &head).await["result"], "0x3");
}

/// Faults for sends of one address, or one nonce of it; and a transaction that is forwarded twice is already known
/// the second time.
#[tokio::test(flavor = "multi_thread")]
async fn the_proxy_tells_senders_apart_and_duplicates_what_it_passes_on() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::start(4713, Mining::Manual, &dir.path().join("anvil.log")).await;
    let proxy = Proxy::start(node.url()).await;
    let (one, two) = (Submitter::random(), Submitter::random());
    let send = async |who: &Submitter, nonce: u64| {
        let (hash, raw) = who.sign_transfer(4713, nonce, Address::repeat_byte(1), 1);
        let answer = ask_patiently(proxy.url(), &call(1, "eth_sendRawTransaction", json!([raw]))).await;
        (json!(hash), answer)
    };
    for who in [&one, &two] {
        node.set_balance(who.address(), 10u64.pow(18)).await;
    }
    proxy.always_to(SendsOf { from: one.address(), nonce: Some(1) }, Fault::error("nonce too high"));
    for (who, nonce, is_taken) in [(&one, 0, true), (&one, 1, false), (&two, 0, true), (&two, 1, true)] {
        let (hash, answer) = send(who, nonce).await;
        assert_eq!(answer["result"] == hash, is_taken, "{answer}");
    }
    assert_eq!(proxy.sent_by(one.address()).iter().map(|sent| sent.nonce).collect::<Vec<_>>(), [0, 1]);
    proxy.clear();
    proxy.next(1, "eth_sendRawTransaction", Fault::Twice);
    let (_, answer) = send(&one, 1).await;
    assert!(answer["error"]["message"].as_str().unwrap().contains("already"), "{answer}");
    assert_eq!(node.pending().await, 4, "stored once");

    let content = async |who: &Submitter| {
        ask_patiently(proxy.url(), &call(5, "txpool_contentFrom", json!([who.address()]))).await
    };
    assert_eq!(content(&one).await["error"]["code"], -32601, "anvil has no such method");
    proxy.show_pool();
    let pool = content(&one).await["result"].take();
    assert_eq!(pool["pending"].as_object().unwrap().len(), 2, "{pool}");
    assert_eq!(
        (pool["pending"]["0"]["nonce"].as_str(), &pool["queued"]),
        (Some("0x0"), &json!({})),
        "{pool}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chain_can_be_rewound_emptied_restarted_and_reset() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::start(4712, Mining::Manual, &dir.path().join("anvil.log")).await;
    let thief = Submitter::random();
    node.set_balance(thief.address(), 10u64.pow(18)).await;

    let first = thief.spend_outside(&node, None).await;
    assert_eq!(node.pending().await, 1);
    node.drop_transaction(first).await;
    assert_eq!(node.pending().await, 0);
    let first = thief.spend_outside(&node, None).await;
    node.mine(1).await;
    assert!(node.receipt(first).await.is_some());
    let second = thief.spend_outside(&node, None).await;
    node.mine(1).await;
    node.reorg(1).await;
    assert!(node.receipt(second).await.is_none(), "the reorg removed it");
    assert_eq!(node.count(thief.address(), "latest").await, 1);
    assert_eq!(node.mined_from(thief.address()).await.len(), 1);

    thief.spend_outside(&node, None).await;
    assert_eq!(node.pending().await, 1);
    let before = node.head().await;
    node.restart().await;
    assert_eq!(
        (node.head().await, node.pending().await),
        (before, 0),
        "the chain stays, the mempool is lost"
    );
    assert!(node.receipt(first).await.is_some());
    node.reset().await;
    assert_eq!(node.head().await, 0);
}

/// Anvil may strand a transaction that arrives while the previous nonce is mined. The same state, produced
/// explicitly: added too early, and due now.
#[tokio::test(flavor = "multi_thread")]
async fn what_anvil_strands_is_freed_and_what_waits_for_a_reason_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::start(4711, Mining::Instant, &dir.path().join("anvil.log")).await;
    let sender = Submitter::random();
    node.set_balance(sender.address(), 10_u64.pow(18)).await;
    let (hash, raw) = sender.sign_transfer(4711, 1, Address::repeat_byte(1), 1);
    node.rpc("eth_sendRawTransaction", json!([raw])).await;
    assert!(!node.free_stranded().await, "it waits for nonce 0");

    node.set_nonce(sender.address(), 1).await;
    node.mine(1).await;
    let again = node.try_rpc("eth_sendRawTransaction", json!([raw])).await;
    assert!(again.is_err(), "the same bytes do not help: {again:?}");
    assert_eq!(node.receipt(hash).await, None, "it is next, and it is not mined");
    assert!(node.free_stranded().await);
    node.rpc("eth_sendRawTransaction", json!([raw])).await;
    eventually("it is mined", async || node.receipt(hash).await.ok_or("it is not")).await;
    assert!(!node.free_stranded().await);
}

/// All processes use the same tables, for every chain.
#[tokio::test(flavor = "multi_thread")]
async fn two_chains_in_one_deployment_have_a_sequence_each() {
    let stack = stack().chains(2).up().await;
    let to = Address::repeat_byte(0x77);
    for index in 0..2 {
        let body = json!({
            "chainId": stack.chain(index).chain_id(),
            "submitter": stack.submitter(0).text(),
            "requestId": "the-same-on-both",
            "payload": payload(to, 3),
        });
        let answer = stack.client().post_raw(&body).await;
        stack.record_accepted(&answer);
        assert_eq!(answer.status, 202, "{}", answer.body);
        let row = stack.wait_for(answer.tx_id().parse().unwrap(), TxState::Confirmed).await;
        assert_eq!(row.nonce, Some(0));
        assert_eq!(stack.chain(index).balance(to).await, 3.into());
    }
    stack.finish().await;
}
