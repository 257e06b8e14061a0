//! Malicious nodes: responses that never end, are too large, too deeply nested, of wrong types, to other requests,
//! redirects, and lies. Nothing is falsely confirmed, nothing is sent twice, memory is bounded, and the worker
//! survives.

use gapless_testkit::{Address, Fault, H256, Mining, Proxy, Stack, TxState, eventually, payload};
use reqwest::redirect::Policy;
use serde_json::{Value, json};

use crate::stack;

const SEND: &str = "eth_sendRawTransaction";
const RECEIPT: &str = "eth_getTransactionReceipt";
const FLOOD_BYTES: usize = 100 << 20;
/// Additional memory of a worker because of a node: two large responses and their parsing.
const MEMORY_BOUND: u64 = 400 << 20;

fn flood(announced: bool) -> Fault {
    Fault::Flood { bytes: FLOOD_BYTES, announced }
}

/// A JSON-RPC response with the correct id and this text as its result.
fn result(text: &str) -> Fault {
    Fault::Body(format!(r#"{{"jsonrpc":"2.0","id":$id,"result":{text}}}"#))
}

/// Responses that no honest node sends.
fn answers() -> Vec<Fault> {
    let deep = format!("{}{}", "[".repeat(200_000), "]".repeat(200_000));
    let objects = format!("{}1{}", r#"{"a":"#.repeat(100_000), "}".repeat(100_000));
    let digits = "f".repeat(1 << 20);
    // None of them is a plausible lie: such a response would decide about a transaction.
    vec![
        flood(true),
        flood(false),
        result(&deep),
        result(&objects),
        result(&format!("[{}0]", "0,".repeat(5 << 20))),
        Fault::Body(format!(
            r#"[{}{{"id":$id,"result":"0xzz"}}]"#,
            r#"{"id":1000000000,"result":0},"#.repeat(500_000)
        )),
        Fault::Body(format!(r#"{{"id":$id,"error":{{"code":-32000,"message":"{digits}","data":{deep}}}}}"#)),
        Fault::Body(format!(r#"{{"id":{deep},"result":"0x1"}}"#)),
        Fault::Body(r#"{"id":$id,"result":"0x1","result":"0x2"}"#.into()),
        result(&format!(r#""0x{digits}""#)),
        result(r#""0x10000000000000000""#),
        result("-1"),
        result("1e400"),
        result("true"),
        result("{}"),
        result("[]"),
        result(r#""\u0000\ud800""#),
        result("null"),
        Fault::WrongId,
        // Not decompressed, so not JSON.
        Fault::Gzip(b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03".to_vec()),
        Fault::Drip,
    ]
}

/// Waits until the node has got this many more calls.
async fn wait_for_request(proxy: &Proxy, more: u64) {
    let begun = proxy.all_calls();
    eventually(&format!("{more} more calls"), async || {
        let calls = proxy.all_calls() - begun;
        if calls >= more { Ok(()) } else { Err(calls) }
    })
    .await;
}

/// Scenario: harmful responses of a node are survived, and cost neither a transaction nor much memory.
#[tokio::test(flavor = "multi_thread")]
async fn whatever_a_malicious_node_answers_it_is_sent_once_and_confirmed_by_an_honest_one() {
    // Without batches, so that a response belongs to one call.
    let stack = stack().proxied().submitters(4).set("rpc.timeout", "1s").set("rpc.max_batch", 1).up().await;
    let worker = stack.workers().remove(0);
    let to = Address::repeat_byte(0xa1);
    let before = worker.peak_memory_bytes();
    let answers = answers();
    for (index, answer) in answers.iter().enumerate() {
        stack.proxy().always("*", answer.clone());
        let mut tx_ids = Vec::new();
        for submitter in stack.submitters() {
            tx_ids.push(stack.create(submitter, &format!("hostile-{index}"), &payload(to, 1)).await);
        }
        wait_for_request(stack.proxy(), 6).await;
        for tx_id in &tx_ids {
            let row = stack.row(*tx_id).await;
            assert!(!row.state.is_terminal(), "answer {index}: {row:?}");
        }
        stack.proxy().clear();
        stack.wait_confirmed(&tx_ids).await;
        for tx_id in tx_ids {
            assert_eq!(stack.attempts(tx_id).await.len(), 1, "answer {index}");
        }
    }
    assert!(worker.is_running());
    let grown = worker.peak_memory_bytes() - before;
    assert!(grown < MEMORY_BOUND, "{} MiB more", grown >> 20);
    assert_eq!(stack.anvil().balance(to).await, (answers.len() * 4).into());
    stack.finish().await;
}

/// The negative control of the floods: reading to the end yields everything.
#[tokio::test(flavor = "multi_thread")]
async fn a_reader_without_a_limit_drowns() {
    let proxy = Proxy::start("http://127.0.0.1:1").await;
    for announced in [true, false] {
        proxy.always("*", flood(announced));
        let asked = gapless_http_client::client_builder()
            .build()
            .expect("a client")
            .post(proxy.url())
            .json(&json!({ "id": 1, "method": "eth_chainId" }));
        let body = asked.send().await.unwrap().bytes().await.unwrap();
        assert_eq!(body.len(), FLOOD_BYTES);
        proxy.clear();
    }
}

/// Scenario: redirects are not followed: signed transactions and credentials only go to the configured node.
#[tokio::test(flavor = "multi_thread")]
async fn nobody_is_followed_elsewhere() {
    let stack = stack().proxied().start().await;
    stack.start_api().await;
    let elsewhere = Proxy::start(stack.anvil().url()).await;
    let with_secret = stack.proxy().url().replace("http://", "http://user:secret@");
    let worker = stack.worker().rpc(&[&with_secret]).start().await;
    let to = Address::repeat_byte(0xa2);
    let first = stack.create(stack.submitter(0), "before", &payload(to, 1)).await;
    stack.wait_for(first, TxState::Confirmed).await;
    stack.proxy().always("*", Fault::Redirect(elsewhere.url().to_owned()));
    let second = stack.create(stack.submitter(0), "redirected", &payload(to, 1)).await;
    wait_for_request(stack.proxy(), 6).await;
    assert_eq!(elsewhere.all_calls(), 0);
    assert!(!stack.row(second).await.state.is_terminal());
    // The negative control: a client that follows redirects arrives there.
    let client = |policy| gapless_http_client::client_builder().redirect(policy).build().unwrap();
    let ask = json!({ "jsonrpc": "2.0", "id": 1, "method": "eth_chainId", "params": [] });
    client(Policy::limited(3)).post(stack.proxy().url()).json(&ask).send().await.unwrap();
    assert_eq!(elsewhere.all_calls(), 1);

    stack.proxy().clear();
    stack.wait_for(second, TxState::Confirmed).await;
    assert!(!worker.log().contains("secret"));
    assert_eq!(stack.anvil().balance(to).await, 2.into());
    stack.finish().await;
}

/// A receipt of success, for this transaction in this block.
fn forged(hash: H256, block: H256, number: u64) -> Value {
    json!({
        "transactionHash": hash, "transactionIndex": "0x0", "blockHash": block, "blockNumber": format!("{number:#x}"),
        "status": "0x1", "gasUsed": "0x5208", "effectiveGasPrice": "0x1", "contractAddress": null, "logs": [],
    })
}

/// A transaction that does not reach the node, which reports its nonce as used.
async fn kept_from_the_chain(stack: &Stack, to: Address) -> (gapless_testkit::TxId, H256) {
    stack.proxy().always(SEND, Fault::error("nonce too low: next nonce 1, tx nonce 0"));
    let tx_id = stack.create(stack.submitter(0), "lied-about", &payload(to, 7)).await;
    let hash = stack.wait_attempts(tx_id, 1).await[0].tx_hash;
    (tx_id, hash)
}

/// Scenario: a node lies about receipts: of other transactions, of blocks that are not in the chain. Nothing is
/// confirmed, and the transaction is mined once when the node is honest again.
#[tokio::test(flavor = "multi_thread")]
async fn a_lie_about_a_receipt_confirms_nothing() {
    for (what, of_another, block) in [
        ("the receipt of another transaction", true, H256::repeat_byte(0x77)),
        ("a block that is not in the chain", false, H256::repeat_byte(0x77)),
    ] {
        let stack = stack().proxied().mining(Mining::Manual).set("resubmit.interval", "1s").up().await;
        let to = Address::repeat_byte(0xa3);
        let (tx_id, hash) = kept_from_the_chain(&stack, to).await;
        let reported = if of_another { H256::repeat_byte(0x55) } else { hash };
        stack.proxy().always(RECEIPT, Fault::Result(forged(reported, block, 1)));
        stack.proxy().always("eth_getBlockReceipts", Fault::Result(json!([forged(reported, block, 1)])));
        eventually("it was lied to", async || {
            let calls = stack.proxy().calls(RECEIPT);
            if calls >= 2 { Ok(()) } else { Err(calls) }
        })
        .await;
        for _ in 0..3 {
            stack.anvil().mine(3).await;
            wait_for_request(stack.proxy(), 6).await;
        }
        let row = stack.row(tx_id).await;
        assert!(!row.state.is_terminal(), "{what}: {row:?}");
        assert_eq!(stack.anvil().balance(to).await, 0.into());

        stack.proxy().clear();
        stack.wait_pooled(hash).await;
        stack.anvil().mine(2).await;
        stack.wait_for(tx_id, TxState::Confirmed).await;
        assert_eq!(stack.attempts(tx_id).await.len(), 1, "{what}");
        assert_eq!(stack.anvil().balance(to).await, 7.into(), "{what}");
        stack.finish().await;
    }
}
