//! One transaction and two nodes that disagree about it.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use ethers_core::types::{Address, Bytes, U256};
use serde_json::{Value, json};

use super::super::client::EvmClient;
use super::super::testing::{Act, Node, answer, client, config, impatient_client};
use super::*;
use crate::chain::port::{BlockTag, ChainConnector};

fn hash() -> H256 {
    H256::from_low_u64_be(7)
}

fn says(code: i64, message: &'static str) -> impl Fn(&Value) -> Act {
    move |body| answer(body, |_| Err(json!({ "code": code, "message": message })))
}

fn takes() -> impl Fn(&Value) -> Act {
    |body| answer(body, |_| Ok(json!(hash())))
}

async fn send(client: &EvmClient) -> Told {
    client.send_raw(&Bytes::from_static(&[1, 2, 3]), hash()).await
}

async fn class(nodes: &[&Node]) -> SubmitClass {
    send(&client(nodes)).await.unwrap().class
}

/// Scenario 34.
#[tokio::test]
async fn a_success_anywhere_is_a_success_whatever_the_others_say() {
    let good = Node::start(takes()).await;
    for (code, words) in [
        (-32000, "nonce too low"),
        (-32000, "insufficient funds for gas * price + value"),
        (-32000, "transaction underpriced"),
        (-32000, "txpool is full"),
        (-32000, "intrinsic gas too low"),
        (-32603, "the moon is in the wrong house"),
        (-32005, "slow down"),
    ] {
        let bad = Node::start(says(code, words)).await;
        assert_eq!(class(&[&bad, &good]).await, SubmitClass::Accepted, "{words}, then taken");
        assert_eq!(class(&[&good, &bad]).await, SubmitClass::Accepted, "taken, then {words}");
    }
    for act in [|| Act::Reset, || Act::Answer(500, String::new()), || Act::Answer(200, "<html>".into())] {
        let broken = Node::start(move |_| act()).await;
        assert_eq!(class(&[&broken, &good]).await, SubmitClass::Accepted);
    }
    let (known, low) =
        (Node::start(says(-32000, "already known")).await, Node::start(says(-32000, "nonce too low")).await);
    assert_eq!(class(&[&low, &known]).await, SubmitClass::AlreadyKnown);
}

/// Hardhat's answer to what it mined and what reverted.
#[tokio::test]
async fn an_error_that_names_the_transaction_says_that_the_node_has_it() {
    let naming = |named: H256| {
        move |body: &Value| {
            let words = "Error: VM Exception while processing transaction: execution reverted: nonce too low";
            let error =
                json!({ "code": -32603, "message": words, "data": { "message": words, "txHash": named } });
            answer(body, |_| Err(error.clone()))
        }
    };
    assert_eq!(class(&[&Node::start(naming(hash())).await]).await, SubmitClass::AlreadyKnown);
    let other = Node::start(naming(H256::zero())).await;
    assert_eq!(class(&[&other]).await, SubmitClass::Fatal, "the hash of something else says nothing");
}

#[tokio::test]
async fn every_node_is_told_the_same_bytes_once() {
    let (one, two) = (Node::start(takes()).await, Node::start(takes()).await);
    assert_eq!(class(&[&one, &two]).await, SubmitClass::Accepted);
    one.until_seen(1).await;
    two.until_seen(1).await;
    assert_eq!(one.bodies()[0]["params"], two.bodies()[0]["params"]);
    assert_eq!((one.bodies().len(), two.bodies().len()), (1, 1));
}

#[tokio::test]
async fn a_slow_node_is_told_in_the_background_and_not_waited_for() {
    let (quick, slow) = (Node::start(takes()).await, Node::gated(takes()).await);
    let client = client(&[&slow, &quick]);
    for _ in 0..5 {
        assert_eq!(send(&client).await.unwrap().class, SubmitClass::Accepted);
    }
    slow.until_seen(2).await;
    assert_eq!(slow.batches(), [1, 1], "no more than two requests wait for it");
    slow.release();
    slow.until_seen(3).await;
    assert_eq!(slow.batches(), [1, 1, 3], "the rest gathered, though nobody waits for its answers");
}

#[tokio::test]
async fn a_refusal_does_not_wait_for_a_node_that_hangs() {
    let (low, hangs) = (Node::start(says(-32000, "nonce too low")).await, Node::start(|_| Act::Hang).await);
    let told = tokio::time::timeout(Duration::from_secs(5), class(&[&low, &hangs])).await;
    assert_eq!(told.expect("long before the time-out of the other"), SubmitClass::NonceTooLow);
}

#[tokio::test]
async fn never_is_everybody_s_word() {
    let fatal = || says(-32000, "intrinsic gas too low");
    let (one, two) = (Node::start(fatal()).await, Node::start(fatal()).await);
    assert_eq!(class(&[&one, &two]).await, SubmitClass::Fatal);
    let full = Node::start(says(-32000, "txpool is full")).await;
    assert_eq!(class(&[&one, &full]).await, SubmitClass::PoolFull);
    let unheard = Node::start(|_| Act::Answer(500, "oops".into())).await;
    assert_eq!(class(&[&one, &unheard]).await, SubmitClass::Unknown, "the other may have taken it");
    let slow = Node::gated(takes()).await;
    let client = client(&[&one, &slow]);
    let late = async {
        slow.until_seen(1).await;
        tokio::time::sleep(SECOND_OPINION * 3 / 2).await;
        slow.release();
    };
    let (told, ()) = tokio::join!(send(&client), late);
    assert_eq!(told.unwrap().class, SubmitClass::Accepted, "a second opinion is waited for");
}

/// A node that was silent lately is heard before "never" is believed, and its silence is no agreement.
#[tokio::test]
async fn never_needs_the_word_of_those_that_were_silent_too() {
    let fatal = || says(-32000, "intrinsic gas too low");
    let silence = |client: &EvmClient, place: usize| {
        let nodes = &client.shared.exchange.nodes;
        (0..4).for_each(|_| nodes.note(&nodes.all()[place], false));
    };
    let (one, hangs) = (Node::start(fatal()).await, Node::start(|_| Act::Hang).await);
    let client = impatient_client(&[&one, &hangs]);
    silence(&client, 1);
    assert_eq!(send(&client).await.unwrap().class, SubmitClass::Unknown, "it may have taken it");
    let good = Node::start(takes()).await;
    let client = impatient_client(&[&one, &good]);
    silence(&client, 1);
    assert_eq!(send(&client).await.unwrap().class, SubmitClass::Accepted, "it took it");
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
async fn a_refusal_by_a_node_that_lags_counts_last() {
    let behind = Node::start(says(-32000, "insufficient funds for gas * price + value")).await;
    let high = Node::start(says(-32000, "nonce too high")).await;
    let client = client(&[&behind, &high]);
    assert_eq!(send(&client).await.unwrap().class, SubmitClass::InsufficientFunds);
    let nodes = &client.shared.exchange.nodes;
    nodes.note_lag(&nodes.all()[0], 100);
    assert_eq!(send(&client).await.unwrap().class, SubmitClass::NonceTooHigh);
}

#[tokio::test]
async fn nobody_who_answers_is_the_caller_s_error() {
    let (dead, busy) = (Node::start(|_| Act::Reset).await, Node::start(says(-32005, "slow down")).await);
    assert_eq!(class(&[&dead, &busy]).await, SubmitClass::Unavailable, "an answer says more than none");
    let other = Node::start(|_| Act::Reset).await;
    assert!(send(&client(&[&dead, &other])).await.is_err());
}

#[tokio::test]
async fn a_silent_node_gets_no_copies_while_another_answers_and_all_when_none_does() {
    let (silent, good) = (Node::start(|_| Act::Hang).await, Node::start(takes()).await);
    let client = impatient_client(&[&silent, &good]);
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

/// Answers are no reason to leave a node, whatever they say.
#[tokio::test]
async fn nonce_too_low_does_not_mark_a_node_bad() {
    let words = ["nonce too low", "insufficient funds", "transaction underpriced", "intrinsic gas too low"];
    let turn = AtomicUsize::new(0);
    let first = Node::start(move |body| {
        answer(body, |call| match call["method"].as_str() {
            Some("eth_sendRawTransaction") => {
                let words = words[turn.fetch_add(1, SeqCst) % words.len()];
                Err(json!({ "code": -32000, "message": words }))
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
    assert!(client.shared.exchange.nodes.all()[0].health.well(std::time::Instant::now()));
}

#[tokio::test]
async fn one_node_at_a_time_where_the_configuration_says_so() {
    let (one, two) = (Node::start(takes()).await, Node::start(takes()).await);
    let mut config = config(&[&one, &two]);
    config.rpc.broadcast = Broadcast::First;
    let client = EvmClient::new(&config).unwrap();
    for _ in 0..3 {
        assert_eq!(send(&client).await.unwrap().class, SubmitClass::Accepted);
    }
    assert_eq!((one.bodies().len(), two.bodies().len()), (3, 0));
    assert_eq!(client.balance(Address::zero()).await.unwrap(), U256::from(7));
}
