//! Broadcasts to nodes with different answers.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use ethers_core::types::{Address, Bytes, U256};
use serde_json::{Value, json};

use super::super::client::EvmClient;
use super::super::testing::{Act, Node, answer, client, config, short_timeout_client};
use super::*;
use crate::port::{BlockTag, ChainConnector};

fn hash() -> H256 {
    H256::from_low_u64_be(7)
}

fn fails(code: i64, message: &'static str) -> impl Fn(&Value) -> Act {
    move |body| answer(body, |_| Err(json!({ "code": code, "message": message })))
}

fn accepts() -> impl Fn(&Value) -> Act {
    |body| answer(body, |_| Ok(json!(hash())))
}

async fn send(client: &EvmClient) -> SendResult {
    client.send_raw(&Bytes::from_static(&[1, 2, 3]), hash()).await
}

async fn class(nodes: &[&Node]) -> SubmitClass {
    send(&client(nodes)).await.unwrap().class
}

/// Scenario 34.
#[tokio::test]
async fn an_acceptance_by_one_node_outweighs_all_other_answers() {
    let good = Node::start(accepts()).await;
    for (code, message) in [
        (-32000, "nonce too low"),
        (-32000, "insufficient funds for gas * price + value"),
        (-32000, "transaction underpriced"),
        (-32000, "txpool is full"),
        (-32000, "intrinsic gas too low"),
        (-32603, "the moon is in the wrong house"),
        (-32005, "slow down"),
    ] {
        let bad = Node::start(fails(code, message)).await;
        assert_eq!(class(&[&bad, &good]).await, SubmitClass::Accepted, "{message}, then accepted");
        assert_eq!(class(&[&good, &bad]).await, SubmitClass::Accepted, "accepted, then {message}");
    }
    for act in [|| Act::Reset, || Act::Answer(500, String::new()), || Act::Answer(200, "<html>".into())] {
        let broken = Node::start(move |_| act()).await;
        assert_eq!(class(&[&broken, &good]).await, SubmitClass::Accepted);
    }
    let known = Node::start(fails(-32000, "already known")).await;
    let low = Node::start(fails(-32000, "nonce too low")).await;
    assert_eq!(class(&[&low, &known]).await, SubmitClass::AlreadyKnown);
}

/// Hardhat's answer to a transaction that it mined and that reverted.
#[tokio::test]
async fn an_error_with_our_hash_means_that_the_node_has_the_transaction() {
    let with_hash = |hash: H256| {
        move |body: &Value| {
            let text = "Error: VM Exception while processing transaction: execution reverted: nonce too low";
            let error =
                json!({ "code": -32603, "message": text, "data": { "message": text, "txHash": hash } });
            answer(body, |_| Err(error.clone()))
        }
    };
    assert_eq!(class(&[&Node::start(with_hash(hash())).await]).await, SubmitClass::AlreadyKnown);
    let other = Node::start(with_hash(H256::zero())).await;
    assert_eq!(class(&[&other]).await, SubmitClass::Fatal, "another hash is ignored");
}

#[tokio::test]
async fn every_node_gets_the_same_bytes_once() {
    let (one, two) = (Node::start(accepts()).await, Node::start(accepts()).await);
    assert_eq!(class(&[&one, &two]).await, SubmitClass::Accepted);
    one.until_seen(1).await;
    two.until_seen(1).await;
    assert_eq!(one.bodies()[0]["params"], two.bodies()[0]["params"]);
    assert_eq!((one.bodies().len(), two.bodies().len()), (1, 1));
}

#[tokio::test]
async fn a_slow_node_gets_its_copies_in_the_background() {
    let (quick, slow) = (Node::start(accepts()).await, Node::gated(accepts()).await);
    let client = client(&[&slow, &quick]);
    for _ in 0..5 {
        assert_eq!(send(&client).await.unwrap().class, SubmitClass::Accepted);
    }
    slow.until_seen(2).await;
    assert_eq!(slow.batches(), [1, 1], "at most two requests in flight");
    slow.release();
    slow.until_seen(3).await;
    assert_eq!(slow.batches(), [1, 1, 3], "the others were batched, although no caller waits");
}

#[tokio::test]
async fn a_rejection_does_not_wait_for_a_hanging_node() {
    let (low, hangs) = (Node::start(fails(-32000, "nonce too low")).await, Node::start(|_| Act::Hang).await);
    let class = tokio::time::timeout(Duration::from_secs(5), class(&[&low, &hangs])).await;
    assert_eq!(class.expect("long before the timeout of the other"), SubmitClass::NonceTooLow);
}

#[tokio::test]
async fn fatal_requires_an_answer_of_every_node() {
    let fatal = || fails(-32000, "intrinsic gas too low");
    let (one, two) = (Node::start(fatal()).await, Node::start(fatal()).await);
    assert_eq!(class(&[&one, &two]).await, SubmitClass::Fatal);
    let full = Node::start(fails(-32000, "txpool is full")).await;
    assert_eq!(class(&[&one, &full]).await, SubmitClass::PoolFull);
    let failing = Node::start(|_| Act::Answer(500, "oops".into())).await;
    assert_eq!(class(&[&one, &failing]).await, SubmitClass::Unknown, "the other may have accepted it");
    let slow = Node::gated(accepts()).await;
    let client = client(&[&one, &slow]);
    let late = async {
        slow.until_seen(1).await;
        tokio::time::sleep(SECOND_OPINION * 3 / 2).await;
        slow.release();
    };
    let (result, ()) = tokio::join!(send(&client), late);
    assert_eq!(result.unwrap().class, SubmitClass::Accepted, "waits for the other node");
}

/// An unresponsive node is tried before a fatal error is accepted, and no answer does not confirm it.
#[tokio::test]
async fn fatal_requires_an_answer_of_unresponsive_nodes_too() {
    let fatal = || fails(-32000, "intrinsic gas too low");
    let silence = |client: &EvmClient, place: usize| {
        let nodes = &client.shared.exchange.nodes;
        (0..4).for_each(|_| nodes.note(&nodes.all()[place], false));
    };
    let (one, hangs) = (Node::start(fatal()).await, Node::start(|_| Act::Hang).await);
    let client = short_timeout_client(&[&one, &hangs]);
    silence(&client, 1);
    assert_eq!(send(&client).await.unwrap().class, SubmitClass::Unknown, "it may have accepted it");
    let good = Node::start(accepts()).await;
    let client = short_timeout_client(&[&one, &good]);
    silence(&client, 1);
    assert_eq!(send(&client).await.unwrap().class, SubmitClass::Accepted, "it accepted it");
    for (broadcast, wanted) in
        [(Broadcast::First, SubmitClass::Accepted), (Broadcast::All, SubmitClass::Accepted)]
    {
        let mut config = config(&[&one, &good]);
        config.rpc.broadcast = broadcast;
        let client = EvmClient::new(&config).unwrap();
        assert_eq!(send(&client).await.unwrap().class, wanted, "{broadcast:?}");
    }
}

#[tokio::test]
async fn a_rejection_by_a_lagging_node_counts_last() {
    let behind = Node::start(fails(-32000, "insufficient funds for gas * price + value")).await;
    let high = Node::start(fails(-32000, "nonce too high")).await;
    let client = client(&[&behind, &high]);
    assert_eq!(send(&client).await.unwrap().class, SubmitClass::InsufficientFunds);
    let nodes = &client.shared.exchange.nodes;
    nodes.note_lag(&nodes.all()[0], 100);
    assert_eq!(send(&client).await.unwrap().class, SubmitClass::NonceTooHigh);
}

#[tokio::test]
async fn without_any_answer_the_send_fails() {
    let (dead, busy) = (Node::start(|_| Act::Reset).await, Node::start(fails(-32005, "slow down")).await);
    assert_eq!(class(&[&dead, &busy]).await, SubmitClass::Unavailable, "an answer is preferred to none");
    let other = Node::start(|_| Act::Reset).await;
    assert!(send(&client(&[&dead, &other])).await.is_err());
}

#[tokio::test]
async fn an_unresponsive_node_gets_copies_only_if_no_other_answers() {
    let (silent, good) = (Node::start(|_| Act::Hang).await, Node::start(accepts()).await);
    let client = short_timeout_client(&[&silent, &good]);
    let node = &client.shared.exchange.nodes.all()[0];
    for _ in 0..4 {
        client.shared.exchange.nodes.note(node, false);
    }
    assert_eq!(send(&client).await.unwrap().class, SubmitClass::Accepted);
    assert_eq!(silent.bodies().len(), 0);
    for node in client.shared.exchange.nodes.all() {
        (0..10).for_each(|_| client.shared.exchange.nodes.note(node, false));
    }
    assert_eq!(send(&client).await.unwrap().class, SubmitClass::Accepted);
    silent.until_seen(1).await;
}

/// Errors about the transaction do not reduce the health of a node.
#[tokio::test]
async fn nonce_too_low_does_not_reduce_the_health_of_a_node() {
    let texts = ["nonce too low", "insufficient funds", "transaction underpriced", "intrinsic gas too low"];
    let count = AtomicUsize::new(0);
    let first = Node::start(move |body| {
        answer(body, |call| match call["method"].as_str() {
            Some("eth_sendRawTransaction") => {
                let text = texts[count.fetch_add(1, SeqCst) % texts.len()];
                Err(json!({ "code": -32000, "message": text }))
            }
            _ => Ok(json!("0x1")),
        })
    })
    .await;
    let second = Node::start(|body| {
        answer(body, |call| {
            let sent = call["method"] == "eth_sendRawTransaction";
            Ok(if sent { json!(hash()) } else { json!("0x2") })
        })
    })
    .await;
    let client = client(&[&first, &second]);
    for sends in 1..=8 {
        assert_eq!(send(&client).await.unwrap().class, SubmitClass::Accepted);
        first.until_seen(2 * sends - 1).await;
        let count = client.transaction_count(Address::zero(), BlockTag::Latest).await.unwrap();
        assert_eq!(count, 1, "reads stay with the first node");
    }
    assert!(client.shared.exchange.nodes.all()[0].health.is_healthy(std::time::Instant::now()));
}

#[tokio::test]
async fn broadcast_first_uses_one_node_at_a_time() {
    let (one, two) = (Node::start(accepts()).await, Node::start(accepts()).await);
    let mut config = config(&[&one, &two]);
    config.rpc.broadcast = Broadcast::First;
    let client = EvmClient::new(&config).unwrap();
    for _ in 0..3 {
        assert_eq!(send(&client).await.unwrap().class, SubmitClass::Accepted);
    }
    assert_eq!((one.bodies().len(), two.bodies().len()), (3, 0));
    assert_eq!(client.balance(Address::zero()).await.unwrap(), U256::from(7));
}
