//! The batcher against nodes that fail in various ways.

use std::time::Duration;

use ethers_core::types::Address;
use futures::future::join_all;
use serde_json::{Value, json};

use super::super::testing::{Act, Node, answer, client, config, replies, short_timeout_client};
use crate::evm::EvmClient;
use crate::port::{BlockTag, ChainConnector, RpcError};

/// The count of an address is its last byte, so that an answer to the wrong call is detected.
fn address(number: u64) -> Address {
    Address::from_low_u64_be(number)
}

fn count(call: &Value) -> Result<Value, Value> {
    let digits = call["params"][0].as_str().unwrap().trim_start_matches("0x").trim_start_matches('0');
    Ok(json!(format!("0x{}", if digits.is_empty() { "0" } else { digits })))
}

async fn ask(client: &EvmClient, number: u64) -> Result<u64, RpcError> {
    client.transaction_count(address(number), BlockTag::Latest).await
}

async fn ask_many(client: &EvmClient, many: u64) {
    let answers = join_all((1..=many).map(|number| ask(client, number))).await;
    for (number, answer) in (1..=many).zip(answers) {
        assert_eq!(answer.unwrap(), number, "every caller gets its own answer");
    }
}

#[tokio::test]
async fn an_idle_batcher_sends_a_single_call_as_a_plain_object() {
    let node = Node::start(|body| answer(body, count)).await;
    let client = client(&[&node]);
    for number in 1..=3 {
        assert_eq!(ask(&client, number).await.unwrap(), number);
    }
    assert_eq!(node.bodies().len(), 3);
    assert!(node.bodies().iter().all(Value::is_object));
}

/// Uses up all requests the batcher of reads may have in flight, so that all further calls are queued.
async fn occupy<'a>(
    client: &'a EvmClient,
    node: &Node,
) -> Vec<impl Future<Output = Result<u64, RpcError>> + 'a> {
    let before = node.bodies().len();
    let mut held = Vec::new();
    for number in 1..=4 {
        let mut asking = Box::pin(ask(client, number));
        assert!(futures::poll!(&mut asking).is_pending());
        node.until_seen(before + number as usize).await;
        held.push(asking);
    }
    held
}

#[tokio::test]
async fn calls_queued_during_a_request_are_batched() {
    let node = Node::gated(|body| answer(body, count)).await;
    let client = client(&[&node]);
    let held = occupy(&client, &node).await;
    let releasing = async {
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert_eq!(node.batches(), [1, 1, 1, 1], "a fifth request was sent");
        node.release();
    };
    tokio::join!(ask_many(&client, 150), join_all(held), releasing);
    assert_eq!(node.batches(), [1, 1, 1, 1, 100, 50]);
}

#[tokio::test]
async fn slow_reads_do_not_delay_estimates() {
    let node = Node::start(|body| match body["method"].as_str() {
        Some("eth_estimateGas") => answer(body, |_| Ok(json!("0x5208"))),
        _ => Act::Hang,
    })
    .await;
    let client = client(&[&node]);
    let held = occupy(&client, &node).await;
    let stuck = join_all((0..500).map(|number| ask(&client, number)));
    let quick = async {
        let payload = gapless_domain::Payload::transfer(address(1), 1.into());
        client.estimate_gas(address(2), &payload).await.unwrap();
    };
    tokio::select! {
        _ = stuck => panic!("the estimate should not have waited for the reads"),
        () = quick => {}
    }
    drop(held);
}

/// The first node does `act`, the second is healthy: all calls succeed, and only the second is used afterwards.
async fn fails_over(act: impl Fn(&Value) -> Act + Send + Sync + 'static) {
    let (bad, good) = (Node::start(act).await, Node::start(|body| answer(body, count)).await);
    let client = short_timeout_client(&[&bad, &good]);
    assert_eq!(ask(&client, 7).await.unwrap(), 7);
    let tried = bad.bodies().len();
    ask_many(&client, 50).await;
    assert_eq!(bad.bodies().len(), tried, "the last healthy node is preferred");
}

#[tokio::test]
async fn html_is_retried_at_the_next_node() {
    fails_over(|_| Act::Answer(200, "<html><body>502 Bad Gateway</body></html>".into())).await;
}

#[tokio::test]
async fn a_truncated_answer_is_retried_at_the_next_node() {
    fails_over(|body| Act::Truncate(replies(body, count).to_string())).await;
    fails_over(|body| {
        let text = replies(body, count).to_string();
        Act::Answer(200, text[..text.len() - 3].to_owned())
    })
    .await;
}

#[tokio::test]
async fn error_statuses_are_retried_at_the_next_node() {
    for status in [400, 401, 404, 408, 413, 429, 500, 502, 503] {
        fails_over(move |body| Act::Answer(status, replies(body, count).to_string())).await;
    }
}

#[tokio::test]
async fn a_redirect_is_not_followed() {
    fails_over(|_| Act::Answer(307, String::new())).await;
}

#[tokio::test]
async fn a_reset_is_retried_at_the_next_node() {
    fails_over(|_| Act::Reset).await;
}

#[tokio::test]
async fn a_time_out_is_retried_at_the_next_node() {
    fails_over(|_| Act::Hang).await;
}

#[tokio::test]
async fn a_wrong_id_is_retried_at_the_next_node() {
    fails_over(|body| {
        let mut reply = replies(body, count);
        reply["id"] = json!(body["id"].as_u64().unwrap() + 1);
        Act::Answer(200, reply.to_string())
    })
    .await;
}

#[tokio::test]
async fn an_unavailable_node_is_skipped() {
    fails_over(|body| answer(body, |_| Err(json!({ "code": -32005, "message": "rate limited" })))).await;
}

#[tokio::test]
async fn an_unreachable_node_is_skipped() {
    let good = Node::start(|body| answer(body, count)).await;
    let mut config = config(&[&good, &good]);
    config.urls[0] = gapless_config::Secret::new("http://127.0.0.1:1/");
    let client = EvmClient::new(&config).unwrap();
    ask_many(&client, 3).await;
}

#[tokio::test]
async fn after_one_round_the_error_is_returned_without_the_api_key() {
    let (one, two) =
        (Node::start(|_| Act::Reset).await, Node::start(|_| Act::Answer(500, String::new())).await);
    let client = client(&[&one, &two]);
    let error = ask(&client, 7).await.unwrap_err();
    assert!(matches!(error, RpcError::Http { status: 500, .. }), "{error}");
    assert!(!error.to_string().contains("key-in-path"), "{error}");
    assert_eq!((one.bodies().len(), two.bodies().len()), (1, 1));
    let error = EvmClient::new(&config(&[])).unwrap_err();
    assert!(error.to_string().contains("no node"));
}

/// All at once on a single-threaded runtime: they are queued before the batcher runs, and are sent in full batches.
async fn full_batches(act: impl Fn(&Value) -> Act + Send + Sync + 'static, many: u64) -> Node {
    let node = Node::start(act).await;
    ask_many(&client(&[&node]), many).await;
    node
}

#[tokio::test]
async fn one_call_without_an_answer_does_not_fail_its_neighbours() {
    let lossy = Node::start(|body| {
        let mut reply = replies(body, count);
        if let Some(replies) = reply.as_array_mut().filter(|replies| replies.len() > 2) {
            let twice = replies[0].clone();
            replies[1] = twice;
        }
        Act::Answer(200, reply.to_string())
    })
    .await;
    let client = client(&[&lossy]);
    let answers = join_all((1..=20).map(|number| ask(&client, number))).await;
    let failed: Vec<&RpcError> = answers.iter().filter_map(|answer| answer.as_ref().err()).collect();
    assert_eq!(failed.len(), 2, "the one answered twice and the one not answered: {failed:?}");
    assert!(failed.iter().all(|error| matches!(error, RpcError::Malformed { .. })));
}

fn too_large_over(limit: usize, refusal: impl Fn(&Value) -> Act) -> impl Fn(&Value) -> Act {
    move |body| match body.as_array() {
        Some(calls) if calls.len() > limit => refusal(body),
        _ => answer(body, count),
    }
}

#[tokio::test]
async fn a_batch_that_is_too_large_is_halved_and_all_are_answered() {
    let whole = r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"batch too large"}}"#;
    let refusals: [fn(&Value) -> Act; 4] = [
        |_| Act::Answer(413, "Request Entity Too Large".into()),
        |_| {
            Act::Answer(
                200,
                r#"{"id":null,"error":{"code":-32005,"message":"exceeds max batch size"}}"#.into(),
            )
        },
        // Geth: an array of one error with the first call's id.
        |body| {
            let error = json!({ "code": -32600, "message": "batch too large" });
            Act::Answer(200, json!([{ "jsonrpc": "2.0", "id": body[0]["id"], "error": error }]).to_string())
        },
        |body| answer(body, |_| Err(json!({ "code": -32003, "message": "response too large" }))),
    ];
    let node = full_batches(too_large_over(10, move |_| Act::Answer(200, whole.into())), 100).await;
    assert!(node.batches().iter().filter(|&&size| size > 10).count() <= 4, "{:?}", node.batches());
    for refusal in refusals {
        full_batches(too_large_over(10, refusal), 100).await;
    }
}

#[tokio::test]
async fn a_node_that_rejects_batches_gets_single_calls_and_more_in_parallel() {
    let gated = Node::gated(too_large_over(1, |_| Act::Answer(413, String::new()))).await;
    let client = client(&[&gated]);
    let learn = async {
        gated.until_seen(1).await;
        gated.release();
    };
    tokio::join!(ask_many(&client, 40), learn);
    let learnt = gated.batches().len();
    // Together with the calls before, too few for the limit to be raised again.
    ask_many(&client, 20).await;
    assert!(gated.batches()[learnt..].iter().all(|&size| size == 1), "{:?}", gated.batches());
}

#[tokio::test]
async fn a_timeout_of_a_batch_reduces_the_batch_size() {
    let node = Node::start(|body| match body.as_array() {
        Some(calls) if calls.len() > 30 => Act::Hang,
        _ => answer(body, count),
    })
    .await;
    let client = short_timeout_client(&[&node]);
    for _ in 0..5 {
        let answers = join_all((1..=200).map(|number| ask(&client, number))).await;
        if answers.iter().all(Result::is_ok) {
            return;
        }
    }
    panic!("the batches never became small enough: {:?}", node.batches());
}

#[tokio::test]
async fn a_call_is_not_sent_if_its_caller_has_stopped_waiting() {
    let node = Node::gated(|body| answer(body, count)).await;
    let client = client(&[&node]);
    let held = occupy(&client, &node).await;
    let leaving = async {
        let cancelled = tokio::time::timeout(Duration::from_millis(20), ask(&client, 99)).await;
        assert!(cancelled.is_err());
        node.release();
    };
    tokio::join!(join_all(held), leaving);
    ask_many(&client, 3).await;
    let asked = node.bodies().iter().any(|body| body.to_string().contains("0000063"));
    assert!(!asked, "the cancelled call was sent");
}
