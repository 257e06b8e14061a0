//! `eth_sendTransaction`: the hash of committed bytes, or an error after which nothing is sent.

use std::time::{Duration, Instant};

use gapless_testkit::{Fault, Mining, Outage, Stack, TcpProxy, TxState, eventually};
use serde_json::{Value, json};

use super::{
    REJECTED, SEND, answer, call, failure, send, send_with_key, shown, transfer, tx_id_of, with_rpc,
};

/// A client that waits no longer sends again.
const CLIENTS_WAIT: Duration = Duration::from_secs(10);

#[tokio::test(flavor = "multi_thread")]
async fn a_send_is_answered_with_the_hash_of_committed_bytes() {
    // The node is slow: the answer does not wait for it.
    let stack = with_rpc().proxied().mining(Mining::Manual).up().await;
    let slow = Duration::from_secs(2);
    stack.proxy().next(1, "eth_sendRawTransaction", Fault::Delay(slow));
    let began = Instant::now();
    let hash = send(&stack).await;
    assert!(began.elapsed() < slow, "{:?}", began.elapsed());
    let row = stack.rows(stack.submitter(0)).await.remove(0);
    let attempts = stack.attempts(row.tx_id).await;
    assert_eq!(format!("{:#x}", attempts[0].tx_hash), hash);
    let pending = call(&stack, "eth_getTransactionByHash", json!([hash])).await;
    assert_eq!(pending["hash"], json!(hash));
    assert_eq!(call(&stack, "eth_getTransactionReceipt", json!([hash])).await, Value::Null);
    stack.wait_pooled(attempts[0].tx_hash).await;
    stack.anvil().mine(1).await;
    stack.wait_for(row.tx_id, TxState::Confirmed).await;
    let receipt = call(&stack, "eth_getTransactionReceipt", json!([hash])).await;
    assert_eq!((&receipt["status"], &receipt["logs"]), (&json!("0x1"), &json!([])), "{receipt}");
    assert_eq!(shown(&stack, &hash).await["state"], "CONFIRMED");
    assert_eq!(shown(&stack, &row.tx_id.to_string()).await["txId"], json!(row.tx_id.to_string()));
    stack.finish().await;
}

/// Scenario 89: the window is full. The error means that it will never be sent; the next one is refused at once.
#[tokio::test(flavor = "multi_thread")]
async fn an_error_means_that_nothing_will_be_sent() {
    let stack = with_rpc().mining(Mining::Manual).set("api.json_rpc.wait", "1s").up().await;
    let first = send(&stack).await;
    let began = Instant::now();
    let late = failure(&stack, SEND, transfer(&stack, json!({ "value": "0x2" }))).await;
    assert!(began.elapsed() < CLIENTS_WAIT);
    assert_eq!(
        (&late["code"], &late["data"]["code"]),
        (&json!(REJECTED), &json!("deadline_passed")),
        "{late}"
    );
    let row = stack.row(tx_id_of(&late)).await;
    assert_eq!((row.state, row.nonce), (TxState::Cancelled, None));
    let busy = failure(&stack, SEND, transfer(&stack, json!({}))).await;
    assert_eq!((&busy["code"], &busy["data"]["code"]), (&json!(-32005), &json!("submitter_busy")), "{busy}");
    assert_eq!(stack.rows(stack.submitter(0)).await.len(), 2, "the last one was not stored");
    stack.anvil().mine(1).await;
    eventually("the first one is confirmed", async || {
        let tx = shown(&stack, &first).await;
        if tx["state"] == "CONFIRMED" { Ok(()) } else { Err(tx) }
    })
    .await;
    let third = send(&stack).await;
    assert_ne!(third, first);
    stack.anvil().mine(1).await;
    stack.finish().await;
}

/// Its time passes between the draft and the commit: the commit refuses the nonce, and the lane goes on at once.
#[tokio::test(flavor = "multi_thread")]
async fn a_nonce_is_not_committed_after_the_time_and_others_do_not_wait_for_it() {
    let stack = with_rpc().proxied().set("api.json_rpc.wait", "1s").up().await;
    stack.proxy().next(1, "eth_estimateGas", Fault::Delay(Duration::from_millis(1_800)));
    let late = failure(&stack, SEND, transfer(&stack, json!({}))).await;
    assert_eq!(late["data"]["code"], "deadline_passed", "{late}");
    let row = stack.row(tx_id_of(&late)).await;
    assert_eq!((row.state, row.nonce), (TxState::Cancelled, None));
    let began = Instant::now();
    eventually("another one is sent", async || {
        let body = answer(&stack.client(), &stack, SEND, transfer(&stack, json!({}))).await;
        if body["result"].is_string() { Ok(()) } else { Err(body) }
    })
    .await;
    assert!(began.elapsed() < Duration::from_secs(8), "the lane was parked: {:?}", began.elapsed());
    stack.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_submitter_and_one_without_funds_end_in_time() {
    let stack = with_rpc().set("api.json_rpc.wait", "1s").submitters(2).up().await;
    let client = stack.client();
    assert_eq!(client.submitter_action(stack.submitter(1), "pause", "test").await.status, 200);
    let paused = transfer(&stack, json!({ "from": stack.submitter(1).text() }));
    // More than it has, and with a gas limit, so that no estimate refuses it.
    let poor = transfer(&stack, json!({ "value": "0xfffffffffffffffffffff", "gas": "0x5208" }));
    for tx in [paused, poor] {
        let late = failure(&stack, SEND, tx).await;
        assert_eq!(late["data"]["code"], "deadline_passed", "{late}");
        let row = stack.row(tx_id_of(&late)).await;
        assert_eq!((row.state, row.nonce), (TxState::Cancelled, None));
    }
    stack.finish().await;
}

/// Without a worker nothing decides. The answer does not claim to know, and the worker that comes back sends nothing.
#[tokio::test(flavor = "multi_thread")]
async fn without_a_worker_the_outcome_is_unknown_and_later_nothing_is_sent() {
    let stack = with_rpc().set("api.json_rpc.wait", "1s").up().await;
    stack.workers()[0].kill9();
    let unknown = failure(&stack, SEND, transfer(&stack, json!({}))).await;
    assert_eq!((&unknown["code"], &unknown["data"]["code"]), (&json!(REJECTED), &json!("outcome_unknown")));
    let tx_id = tx_id_of(&unknown);
    assert_eq!(stack.row(tx_id).await.state, TxState::Queued);
    stack.start_worker().await;
    stack.wait_for(tx_id, TxState::Cancelled).await;
    assert_eq!(stack.row(tx_id).await.nonce, None);
    assert_eq!(stack.cursor(stack.submitter(0)).await.map_or(0, |cursor| cursor.next), 0);
    stack.finish().await;
}

/// The database goes away after the insert: its connections are closed, or nothing arrives any more.
#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_goes_away_after_the_insert_gives_an_unknown_outcome_with_the_id() {
    for outage in [Outage::Cut, Outage::Hole] {
        goes_away_after_the_insert(outage).await;
    }
}

async fn goes_away_after_the_insert(outage: Outage) {
    let stack = with_rpc().start().await;
    let database = TcpProxy::start(stack.database_url()).await;
    let api = stack.api().via(&database).start().await;
    let worker = stack.start_worker().await;
    stack.wait_announced(&api.client()).await;
    worker.sigstop();
    let client = api.client();
    let tx = transfer(&stack, json!({}));
    let sent = async { answer(&client, &stack, SEND, tx).await["error"].clone() };
    let cut = async {
        eventually("the row is stored", async || match stack.rows(stack.submitter(0)).await.len() {
            1 => Ok(()),
            other => Err(other),
        })
        .await;
        database.begin(outage);
    };
    let began = Instant::now();
    let (unknown, ()) = tokio::join!(sent, cut);
    assert!(began.elapsed() < Duration::from_secs(6), "{outage:?}: {:?}", began.elapsed());
    assert_eq!(unknown["data"]["code"], "outcome_unknown", "{unknown}");
    let tx_id = tx_id_of(&unknown);
    assert_eq!(stack.rows(stack.submitter(0)).await[0].tx_id, tx_id, "the id leads to the row");
    database.restore();
    worker.sigcont();
    eventually("it has ended", async || {
        let row = stack.row(tx_id).await;
        if row.state.is_terminal() { Ok(()) } else { Err(row.state) }
    })
    .await;
    stack.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn equal_calls_are_two_transactions_and_an_idempotency_key_makes_them_one() {
    let stack = with_rpc().window(8).up().await;
    let (first, second) = tokio::join!(send(&stack), send(&stack));
    assert_ne!(first, second);
    let tx = transfer(&stack, json!({ "value": "0x7" }));
    let once = send_with_key(&stack, "payment-1", tx.clone()).await;
    let again = send_with_key(&stack, "payment-1", tx).await;
    assert!(once["result"].is_string(), "{once}");
    assert_eq!(once["result"], again["result"]);
    let other = send_with_key(&stack, "payment-1", transfer(&stack, json!({ "value": "0x8" }))).await;
    assert_eq!(other["error"]["code"], REJECTED, "{other}");
    assert_eq!(other["error"]["data"]["code"], "request_id_conflict");
    assert_eq!(stack.rows(stack.submitter(0)).await.len(), 3);
    let client = stack.client();
    let body = json!({ "id": 1, "method": SEND, "params": transfer(&stack, json!({})) });
    let request = client.request(reqwest::Method::POST, &super::path(&stack));
    let refused = client.ask(request.header("Idempotency-Key", &b"M\xfcller-42"[..]).json(&body)).await;
    assert_eq!(refused.body["error"]["code"], -32602, "{refused:?}");
    assert_eq!(stack.rows(stack.submitter(0)).await.len(), 3, "an unreadable key is not ignored");
    let batch: Vec<Value> =
        (1..3).map(|id| json!({ "id": id, "method": SEND, "params": transfer(&stack, json!({})) })).collect();
    let request = client.request(reqwest::Method::POST, &super::path(&stack));
    let refused = client.ask(request.header("Idempotency-Key", "k").json(&batch)).await;
    assert!(refused.body.as_array().unwrap().iter().all(|one| one["error"]["code"] == -32602), "{refused:?}");
    stack.finish().await;
}

/// Fifty at once, in one batch as ethers sends them, and in requests of their own.
#[tokio::test(flavor = "multi_thread")]
async fn fifty_sends_at_once_have_fifty_hashes() {
    let stack =
        with_rpc().window(64).set("nonce.release_at", "mined").set("api.json_rpc.wait", "8s").up().await;
    let tx = transfer(&stack, json!({}));
    let batch: Vec<Value> =
        (0..50).map(|id| json!({ "jsonrpc": "2.0", "id": id, "method": SEND, "params": tx })).collect();
    let batched = stack.client().post_to(&super::path(&stack), &json!(batch)).await;
    let singles = futures::future::join_all((0..50).map(|_| send(&stack))).await;
    let mut hashes: Vec<String> = singles;
    let mut nonces = Vec::new();
    for one in batched.body.as_array().unwrap() {
        let hash = one["result"].as_str().unwrap_or_else(|| panic!("{one}"));
        let tx = call(&stack, "eth_getTransactionByHash", json!([hash])).await;
        nonces.push(u64::from_str_radix(&tx["nonce"].as_str().unwrap()[2..], 16).unwrap());
        hashes.push(hash.to_owned());
    }
    assert!(nonces.is_sorted(), "sends of a batch keep their order: {nonces:?}");
    hashes.sort_unstable();
    hashes.dedup();
    assert_eq!(hashes.len(), 100);
    wait_all_confirmed(&stack, 100).await;
    stack.finish().await;
}

async fn wait_all_confirmed(stack: &Stack, count: usize) {
    eventually("all are confirmed", async || {
        let rows = stack.rows(stack.submitter(0)).await;
        let confirmed = rows.iter().filter(|row| row.state == TxState::Confirmed).count();
        if confirmed == count { Ok(()) } else { Err(confirmed) }
    })
    .await;
}
