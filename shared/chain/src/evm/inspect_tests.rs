//! Valid and invalid mempool answers of a node.

use super::super::testing::{Act, Node, answer, client, config, short_timeout_client};
use super::*;

fn hash(n: u64) -> H256 {
    H256::from_low_u64_be(n)
}

async fn inspect(nodes: &[&Node], hashes: &[H256]) -> PoolSurvey {
    client(nodes).inspector(&config(nodes)).inspect(Address::zero(), hashes).await
}

/// A node with count 7 (pending: 8) that has hash 1 pooled and hash 2 mined; `content` is its `txpool_contentFrom`.
fn node(content: Result<Value, Value>) -> impl Fn(&Value) -> Act {
    move |body| {
        answer(body, |call| match (call["method"].as_str().unwrap(), &call["params"]) {
            ("eth_getTransactionCount", params) if params[1] == "latest" => Ok(json!("0x7")),
            ("eth_getTransactionCount", _) => Ok(json!("0x8")),
            ("eth_getTransactionByHash", params) if params[0] == json!(hash(1)) => {
                Ok(json!({ "hash": hash(1), "blockHash": null }))
            }
            ("eth_getTransactionByHash", params) if params[0] == json!(hash(2)) => {
                Ok(json!({ "hash": hash(2), "blockHash": hash(99) }))
            }
            ("eth_getTransactionByHash", _) => Ok(Value::Null),
            ("txpool_contentFrom", _) => content.clone(),
            (other, _) => panic!("unexpected call of {other}"),
        })
    }
}

#[tokio::test]
async fn hashes_counts_and_pool_are_one_view() {
    let tx = |n: u64, nonce: &str| json!({ "hash": hash(n), "nonce": nonce, "to": null, "value": "0x1" });
    let content = json!({ "pending": { "7": tx(1, "0x7") }, "queued": { "9": tx(5, "0x9") }, "baseFee": {} });
    let node = Node::start(node(Ok(content))).await;
    let survey = inspect(&[&node], &[hash(1), hash(2), hash(3)]).await;
    assert_eq!((survey.asked, survey.views.len()), (1, 1));
    let mut view = survey.views[0].clone();
    let known = [KnownTx { hash: hash(1), in_block: false }, KnownTx { hash: hash(2), in_block: true }];
    assert_eq!((view.known.as_slice(), view.mined_count, view.pending_count), (&known[..], 7, 8));
    let pool = view.pool.as_mut().unwrap();
    pool.sort_by_key(|pooled| pooled.nonce.0);
    let expected = [
        PooledTx { nonce: Nonce(7), hash: hash(1), queued: false },
        PooledTx { nonce: Nonce(9), hash: hash(5), queued: true },
    ];
    assert_eq!(pool.as_slice(), expected);
}

#[tokio::test]
async fn an_unsupported_txpool_method_is_called_once_and_does_not_affect_health() {
    let unsupported =
        json!({ "code": -32601, "message": "the method txpool_contentFrom does not exist/is not available" });
    let node = Node::start(node(Err(unsupported))).await;
    let client = client(&[&node]);
    let inspector = client.inspector(&config(&[&node]));
    for _ in 0..3 {
        let survey = inspector.inspect(Address::zero(), &[hash(1)]).await;
        assert_eq!((survey.views[0].pool.as_ref(), survey.views[0].known.len()), (None, 1));
    }
    let bodies = node.bodies();
    let asked = bodies.iter().flat_map(|body| body.as_array().cloned().unwrap_or_else(|| vec![body.clone()]));
    assert_eq!(asked.filter(|call| call["method"] == "txpool_contentFrom").count(), 1);
    assert!(client.shared.exchange.nodes.all()[0].health.is_healthy(std::time::Instant::now()));
}

#[tokio::test]
async fn a_malformed_pool_does_not_affect_the_rest_of_the_view() {
    for odd in [json!([1, 2]), json!({ "pending": { "7": "transfer" } }), Value::Null] {
        let node = Node::start(node(Ok(odd))).await;
        let view = inspect(&[&node], &[hash(1)]).await.views.remove(0);
        assert_eq!((view.pool, view.known.len()), (None, 1));
    }
}

#[tokio::test]
async fn a_node_that_does_not_answer_is_counted_and_the_others_are_used() {
    let (hangs, good) = (Node::start(|_| Act::Hang).await, Node::start(node(Ok(json!({})))).await);
    let client = short_timeout_client(&[&hangs, &good]);
    let survey = client.inspector(&config(&[&hangs, &good])).inspect(Address::zero(), &[hash(1)]).await;
    assert_eq!((survey.asked, survey.views.len()), (2, 1));
    let nodes = client.shared.exchange.nodes.all();
    assert!(nodes[0].health.is_healthy(std::time::Instant::now()), "the inspector does not affect health");
    let wrong = Node::start(|body| answer(body, |_| Ok(json!({ "hash": hash(8) })))).await;
    assert!(inspect(&[&wrong], &[hash(1)]).await.views.is_empty(), "an answer about another transaction");
}
