//! Remote signers: they sign, are unreachable, recover, reject and return wrong signatures.

use std::time::Duration;

use gapless_testkit::{
    Address, Behaviour, Mining, Node, Service, SigningService, Stack, Submitter, TxId, TxState, U256,
    eventually, payload,
};
use serde_json::{Value, json};

use crate::stack;

const TOKEN: &str = "a-token-of-the-tests";

/// An anvil that only signs. The chain of the stack is another one.
async fn signing_node(stack: &Stack) -> Node {
    let log = stack.dir().join("signer.log");
    Node::with_accounts(1, stack.anvil().chain_id(), Mining::Manual, &log).await
}

async fn anvils_submitter(stack: &Stack) -> Submitter {
    let submitter = Submitter::first_of_anvil();
    stack.anvil().set_balance(submitter.address(), U256::exp10(20)).await;
    submitter
}

/// A worker with the signer and no local key.
async fn worker_with(stack: &Stack, kind: &str, signer: Value) -> Service {
    let key = format!("signer.{kind}");
    stack.worker().only_keys(&[]).set(&key, json!([signer])).start().await
}

pub(crate) async fn wait_known(stack: &Stack, submitter: &Submitter) -> Value {
    let text = submitter.text();
    eventually("the submitter is announced", async || {
        let answer = stack.client().get("/api/v1/submitters").await;
        let items = answer.body["items"].as_array().cloned().unwrap_or_default();
        let found = items
            .iter()
            .find(|item| item["address"].as_str().is_some_and(|have| have.eq_ignore_ascii_case(&text)));
        found.cloned().ok_or(answer.body)
    })
    .await
}

pub(crate) async fn wait_for_signer(stack: &Stack, tx_id: TxId) {
    eventually("it waits for its signer", async || {
        let row = stack.row(tx_id).await;
        if row.sub_state.as_deref() == Some("waiting_signer") { Ok(()) } else { Err(row) }
    })
    .await;
    let row = stack.row(tx_id).await;
    assert_eq!((row.state, row.nonce), (TxState::Queued, None));
    assert!(stack.attempts(tx_id).await.is_empty());
}

/// A key behind `eth_signTransaction`, discovered by `eth_accounts`: every type of transaction is mined.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_behind_json_rpc_is_found_and_signs_every_type() {
    let stack = stack().start().await;
    stack.start_api().await;
    let (node, submitter) = (signing_node(&stack).await, anvils_submitter(&stack).await);
    let worker = worker_with(&stack, "json_rpc", json!({ "url": node.url() })).await;
    let announced = wait_known(&stack, &submitter).await;
    assert_eq!(announced["signer"], "json_rpc", "{announced}");

    let to = Address::repeat_byte(0xa1);
    let list = json!([{ "address": to, "storageKeys": [format!("0x{}", "00".repeat(32))] }]);
    let mut requests = [payload(to, 1), payload(to, 2), payload(to, 3), payload(to, 4)];
    requests[1]["type"] = json!("legacy");
    requests[2]["type"] = json!("legacy");
    requests[2]["accessList"] = list.clone();
    requests[3]["accessList"] = list;
    requests[3]["data"] = json!("0x0102");
    let mut tx_ids = Vec::new();
    for (index, request) in requests.iter().enumerate() {
        tx_ids.push(stack.create(&submitter, &format!("r{index}"), request).await);
    }
    stack.wait_confirmed(&tx_ids).await;
    let mined = stack.anvil().mined_from(submitter.address()).await;
    let types: Vec<&str> = mined.iter().map(|tx| tx["type"].as_str().unwrap_or_default()).collect();
    assert_eq!(types, ["0x2", "0x0", "0x1", "0x2"]);
    assert_eq!(stack.anvil().balance(to).await, U256::from(10));
    assert_eq!(
        worker.metric("gapless_signer_requests_total", &["signer=\"json_rpc\"", "result=\"signed\""]).await,
        4.0
    );
    assert!(worker.metric("gapless_signer_request_seconds_count", &["signer=\"json_rpc\""]).await >= 4.0);
    stack.finish().await;
}

/// Scenario 11, with an unreachable signer: work waits without a nonce, other submitters continue, and it continues
/// by itself.
#[tokio::test(flavor = "multi_thread")]
async fn a_remote_signer_that_dies_delays_and_burns_no_nonce() {
    let stack = stack().start().await;
    stack.start_api().await;
    let (node, submitter) = (signing_node(&stack).await, anvils_submitter(&stack).await);
    let signer = json!({ "url": node.url(), "addresses": [submitter.text()], "timeout": "2s" });
    let worker = stack.worker().set("signer.json_rpc", json!([signer])).start().await;
    let to = Address::repeat_byte(0xa2);
    let first = stack.create(&submitter, "first", &payload(to, 1)).await;
    stack.wait_for(first, TxState::Confirmed).await;

    node.kill9().await;
    let waiting = stack.create(&submitter, "waiting", &payload(to, 1)).await;
    wait_for_signer(&stack, waiting).await;
    assert_eq!(stack.cursor(&submitter).await.map(|cursor| cursor.next), Some(1));
    let local = stack.create(stack.submitter(0), "local", &payload(to, 1)).await;
    stack.wait_for(local, TxState::Confirmed).await;
    assert!(worker.metric("gapless_signer_requests_total", &["result=\"unavailable\""]).await >= 1.0);

    node.restart().await;
    assert_eq!(stack.wait_for(waiting, TxState::Confirmed).await.nonce, Some(1));
    stack.finish().await;
}

/// A signer that is unreachable at the start: configured addresses are announced, addresses that must be queried come
/// later, and other keys do not wait.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_starts_without_its_remote_signers_and_finds_them_later() {
    let stack = stack().submitters(3).start().await;
    stack.start_api().await;
    let (local, listed, asked) = (stack.submitter(0), stack.submitter(1), stack.submitter(2));
    let services = [SigningService::start(listed, TOKEN).await, SigningService::start(asked, TOKEN).await];
    for service in &services {
        service.set_behaviour(Behaviour::Away);
    }
    let config = json!([
        { "url": services[0].url(), "addresses": [listed.text()], "token_env": "SIGNING_TOKEN" },
        { "url": services[1].url(), "token_env": "SIGNING_TOKEN" },
    ]);
    let worker =
        stack.worker().only_keys(&[0]).set("signer.http", config).env("SIGNING_TOKEN", TOKEN).start().await;
    let to = Address::repeat_byte(0xa3);
    let by_local = stack.create(local, "local", &payload(to, 1)).await;
    stack.wait_for(by_local, TxState::Confirmed).await;
    let by_listed = stack.create(listed, "listed", &payload(to, 1)).await;
    wait_for_signer(&stack, by_listed).await;
    assert_eq!(stack.client().post(asked, "asked", &payload(to, 1)).await.status, 404, "no signer yet");
    eventually("both signers are reported", async || {
        let (status, body) = worker.readiness().await;
        assert_eq!(status, 200, "{body}");
        if body["reasons"]["signer"] == 2 { Ok(()) } else { Err(body) }
    })
    .await;

    for service in &services {
        service.set_behaviour(Behaviour::Honest);
    }
    assert_eq!(wait_known(&stack, asked).await["signer"], "http");
    let by_asked = stack.create(asked, "asked", &payload(to, 1)).await;
    stack.wait_confirmed(&[by_listed, by_asked]).await;
    eventually("no signer is reported any more", async || match worker.readiness().await.1 {
        body if body["reasons"] == json!({}) => Ok(()),
        body => Err(body),
    })
    .await;
    assert!(!worker.log().contains(TOKEN), "a token is never logged");
    stack.finish().await;
}

/// A signing service that returns other transactions than requested: rejected with an error log, without a nonce.
#[tokio::test(flavor = "multi_thread")]
async fn a_lying_signing_service_costs_an_intent_and_no_nonce() {
    let stack = stack().start().await;
    stack.start_api().await;
    let (submitter, to) = (stack.submitter(0), Address::repeat_byte(0xa4));
    let service = SigningService::start(submitter, TOKEN).await;
    let token_file = stack.dir().join("token");
    std::fs::write(&token_file, TOKEN).unwrap();
    let signer = json!({ "url": service.url(), "token_file": token_file.to_str().unwrap() });
    let worker = worker_with(&stack, "http", signer).await;
    wait_known(&stack, submitter).await;
    let honest = stack.create(submitter, "honest", &payload(to, 1)).await;
    assert_eq!(stack.wait_for(honest, TxState::Confirmed).await.nonce, Some(0));

    let thief = Address::repeat_byte(0x66);
    let lies = [
        ("to", Behaviour::Lying("to", json!(thief))),
        ("value", Behaviour::Lying("value", json!("0xde0b6b3a7640000"))),
        ("data", Behaviour::Lying("data", json!("0xdeadbeef"))),
        ("nonce", Behaviour::Lying("nonce", json!("0x7"))),
        ("gas", Behaviour::Lying("gas", json!("0xffffff"))),
        ("maxFeePerGas", Behaviour::Lying("maxFeePerGas", json!("0xffffffffffff"))),
        ("chainId", Behaviour::Lying("chainId", json!("0x1"))),
        ("from", Behaviour::WithKeyOf(Submitter::random())),
    ];
    let count = lies.len();
    for (field, manner) in lies {
        service.set_behaviour(manner);
        let doomed = stack.create(submitter, &format!("doomed-{field}"), &payload(to, 1)).await;
        let row = stack.wait_for(doomed, TxState::Failed).await;
        assert_eq!((row.nonce, row.sub_state.as_deref()), (None, Some("signer_refused")), "{field}");
        assert!(row.last_error.is_some_and(|error| error.contains(&format!("`{field}`"))), "{field}");
        assert!(stack.attempts(doomed).await.is_empty());
    }
    service.set_behaviour(Behaviour::Refusing("over the daily limit"));
    let over = stack.create(submitter, "over", &payload(to, 1)).await;
    let row = stack.wait_for(over, TxState::Failed).await;
    assert!(row.last_error.is_some_and(|error| error.contains("over the daily limit")));

    service.set_behaviour(Behaviour::Honest);
    let next = stack.create(submitter, "next", &payload(to, 1)).await;
    assert_eq!(stack.wait_for(next, TxState::Confirmed).await.nonce, Some(1), "none of them used a nonce");
    assert_eq!(stack.anvil().balance(thief).await, U256::zero());
    let complaints: Vec<Value> = worker
        .log_lines()
        .into_iter()
        .filter(|line| line["message"].as_str().is_some_and(|text| text.contains("different transaction")))
        .collect();
    assert_eq!(complaints.len(), count, "{complaints:?}");
    assert!(complaints.iter().all(|line| line["level"] == "ERROR" && line["submitter"] == submitter.text()));
    assert_eq!(worker.metric("gapless_signer_requests_total", &["result=\"different\""]).await, count as f64);
    assert_eq!(worker.metric("gapless_signer_requests_total", &["result=\"refused\""]).await, 1.0);
    assert!(!worker.log().contains(TOKEN), "a token is never logged");
    stack.finish().await;
}

/// A signer that accepts the request and never responds: no database transaction is open meanwhile, other submitters
/// continue, and a shutdown does not wait for it.
#[tokio::test(flavor = "multi_thread")]
async fn a_silent_signer_holds_no_database_transaction_and_no_lease() {
    let stack = stack().submitters(2).start().await;
    stack.start_api().await;
    let (remote, local, to) = (stack.submitter(0), stack.submitter(1), Address::repeat_byte(0xa5));
    let service = SigningService::start(remote, TOKEN).await;
    service.set_behaviour(Behaviour::Silent);
    let signer = json!([
        { "url": service.url(), "addresses": [remote.text()], "token_env": "SIGNING_TOKEN", "timeout": "10m" },
    ]);
    let worker =
        || stack.worker().only_keys(&[1]).set("signer.http", signer.clone()).env("SIGNING_TOKEN", TOKEN);
    let first = worker().start().await;
    let held = stack.create(remote, "held", &payload(to, 1)).await;
    service.wait_for_request("POST /sign").await;
    let free = stack.create(local, "free", &payload(to, 1)).await;
    stack.wait_for(free, TxState::Confirmed).await;
    stack.wait_no_open_transaction().await;
    let row = stack.row(held).await;
    assert_eq!((row.state, row.nonce), (TxState::Queued, None));
    let took = first.stop_sigterm().await;
    assert!(took < Duration::from_secs(3), "{took:?}");

    service.set_behaviour(Behaviour::Honest);
    worker().start().await;
    assert_eq!(stack.wait_for(held, TxState::Confirmed).await.nonce, Some(0));
    stack.finish().await;
}
