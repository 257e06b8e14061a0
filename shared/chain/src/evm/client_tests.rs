//! The client against a fake node with the answers of real ones.

use serde_json::{Value, json};

use super::super::testing::{Act, Node, answer, client, config};
use super::*;

fn hash(number: u64) -> H256 {
    H256::from_low_u64_be(number)
}

fn payload() -> Payload {
    Payload::transfer(Address::repeat_byte(2), U256::from(5))
}

async fn sent_to(nodes: &[&Node]) -> Result<SubmitOutcome, RpcError> {
    client(nodes).send_raw(&Bytes::from_static(&[1, 2, 3]), hash(7)).await
}

fn fails(code: i64, message: &'static str) -> impl Fn(&Value) -> Act {
    move |body| answer(body, |_| Err(json!({ "code": code, "message": message })))
}

fn returns(result: Value) -> impl Fn(&Value) -> Act {
    move |body| answer(body, |_| Ok(result.clone()))
}

#[tokio::test]
async fn an_accepted_send_is_checked_against_our_hash() {
    let node = Node::start(returns(json!(hash(7)))).await;
    assert_eq!(sent_to(&[&node]).await.unwrap(), SubmitOutcome::accepted());
    assert_eq!(node.bodies()[0]["params"], json!(["0x010203"]));
    for other in [json!(hash(8)), json!(null), json!("0x"), json!({})] {
        let node = Node::start(returns(other)).await;
        assert_eq!(sent_to(&[&node]).await.unwrap().class, SubmitClass::Unknown);
    }
}

#[tokio::test]
async fn a_rejected_send_is_a_value_with_the_node_s_message() {
    let node = Node::start(fails(-32000, "nonce too low: next nonce 5, tx nonce 4")).await;
    let outcome = sent_to(&[&node]).await.unwrap();
    assert_eq!((outcome.class, outcome.code), (SubmitClass::NonceTooLow, -32000));
    assert_eq!(outcome.message, "nonce too low: next nonce 5, tx nonce 4");
}

/// Providers echo the rejected URL, which contains the API key, in the message, in `data` or in both.
#[tokio::test]
async fn a_node_that_echoes_its_url_in_data_does_not_get_its_key_into_an_outcome() {
    let echoes = |body: &Value| {
        let data = json!("no such project: /key-in-path");
        answer(body, |_| Err(json!({ "code": -32603, "message": "Internal error", "data": data })))
    };
    let node = Node::start(echoes).await;
    let outcome = sent_to(&[&node]).await.unwrap();
    assert_eq!(outcome.message, "Internal error (no such project: /…)");
    let client = client(&[&node]);
    let refused = client.estimate_gas(Address::zero(), &payload()).await.unwrap_err();
    assert!(!format!("{refused} {refused:?}").contains("key-in-path"), "{refused:?}");
}

#[tokio::test]
async fn only_an_unavailable_node_causes_failover_of_a_send() {
    let (busy, good) =
        (Node::start(fails(-32005, "slow down")).await, Node::start(returns(json!(hash(7)))).await);
    assert_eq!(sent_to(&[&busy, &good]).await.unwrap().class, SubmitClass::Accepted);
    let dead = Node::start(|_| Act::Reset).await;
    assert_eq!(sent_to(&[&busy, &dead]).await.unwrap().class, SubmitClass::Unavailable);
    assert!(sent_to(&[&dead]).await.is_err());
    let low = Node::start(fails(-32000, "nonce too low")).await;
    let mut one_at_a_time = config(&[&low, &good]);
    one_at_a_time.rpc.broadcast = gapless_config::Broadcast::First;
    let outcome = EvmClient::new(&one_at_a_time).unwrap().send_raw(&Bytes::new(), hash(7)).await;
    assert_eq!(outcome.unwrap().class, SubmitClass::NonceTooLow);
}

#[tokio::test]
async fn configured_patterns_reach_the_classifier() {
    let node = Node::start(fails(-32000, "das war nichts")).await;
    let mut config = config(&[&node]);
    config.rpc.error_patterns.insert("pool_full".into(), vec!["das war nichts".into()]);
    let client = EvmClient::new(&config).unwrap();
    assert_eq!(client.send_raw(&Bytes::new(), hash(7)).await.unwrap().class, SubmitClass::PoolFull);
    config.rpc.error_patterns.insert("no_such".into(), vec![]);
    assert!(EvmClient::new(&config).unwrap_err().to_string().contains("no_such"));
}

#[tokio::test]
async fn an_estimate_distinguishes_reverts_funds_and_fatal_errors() {
    let estimate = async |node: Node| client(&[&node]).estimate_gas(Address::zero(), &payload()).await;
    let node = Node::start(returns(json!("0x5208"))).await;
    assert_eq!(estimate(node).await.unwrap(), CallOutcome::Ok(U256::from(21_000)));
    let node = Node::start(fails(3, "execution reverted: insufficient funds")).await;
    assert!(
        matches!(estimate(node).await.unwrap(), CallOutcome::Reverted(failure) if failure.describe(&[]).contains("insufficient"))
    );
    let node = Node::start(fails(-32000, "insufficient funds for transfer")).await;
    assert!(matches!(estimate(node).await.unwrap(), CallOutcome::InsufficientFunds { .. }));
    for impossible in ["max initcode size exceeded: code size 70000, limit 49152", "oversized data"] {
        let node = Node::start(fails(-32000, impossible)).await;
        assert!(matches!(estimate(node).await.unwrap(), CallOutcome::Fatal { .. }), "{impossible}");
    }
    for (message, cap) in [
        ("gas required exceeds allowance (30000000)", Some(30_000_000)),
        ("Out of gas: gas required exceeds allowance: 50000000", Some(50_000_000)),
        ("gas required exceeds allowance", None),
        ("intrinsic gas too high", None),
        ("invalid sender", None),
        ("Sender account not authorized to send transactions", None),
    ] {
        let node = Node::start(fails(-32000, message)).await;
        let found = estimate(node).await.unwrap();
        let wanted = cap.map(U256::from);
        assert!(
            matches!(found, CallOutcome::Unwilling { gas_cap, .. } if gas_cap == wanted),
            "the node's own limit or rule: {message}: {found:?}"
        );
    }
    let node = Node::start(fails(-32603, "the moon is in the wrong house")).await;
    assert!(matches!(estimate(node).await.unwrap_err(), RpcError::Refused { code: -32603, .. }));
    for nonsense in ["0x0", "0x5207", "0x10000000000000000"] {
        let node = Node::start(returns(json!(nonsense))).await;
        assert!(matches!(estimate(node).await.unwrap_err(), RpcError::Malformed { .. }), "{nonsense}");
    }
}

/// Errors about the node itself, returned with HTTP 200.
const NODE_ERRORS: [(i64, &str); 8] = [
    (-32005, "rate limit exceeded"),
    (-32005, "daily request count exceeded, request rate limited"),
    (429, "slow down"),
    (-32000, "node is syncing"),
    (-32000, "header not found"),
    (-32000, "missing trie node 8d4c (path ) state 0x8d4c is not available"),
    (-32000, "request timed out"),
    (-32603, "EVM error: database error: missing trie node"),
];

/// Scenario 63: such an error is never a result.
#[tokio::test]
async fn an_error_about_the_node_is_no_result_of_any_method() {
    for (code, message) in NODE_ERRORS {
        let node = Node::start(fails(code, message)).await;
        let (client, us, payload) = (client(&[&node]), Address::zero(), payload());
        let block = BlockId { number: 5, hash: hash(5) };
        let answers = [
            client.remote_chain_id().await.err(),
            client.transaction_count(us, BlockTag::Latest).await.err(),
            client.receipt(hash(1)).await.err(),
            client.receipts(&[hash(1)]).await.err(),
            client.block_receipts(hash(1)).await.err(),
            client.block(BlockTag::Latest).await.err(),
            client.block(BlockTag::Safe).await.err(),
            client.block(BlockTag::Finalized).await.err(),
            client.block_by_hash(hash(1)).await.err(),
            client.receipts_from_any_node(&[hash(1)], Some(block)).await.err(),
            client.transaction_count_at(us, block).await.err(),
            client.has_transaction(hash(1)).await.err(),
            client.block_of_nonce(us, 0, 9).await.err(),
            client.delegation(us).await.err(),
            client.fee_history(1, &[50.0]).await.err(),
            client.gas_price().await.err(),
            client.balance(us).await.err(),
            client.estimate_gas(us, &payload).await.err(),
            client.estimate_gas_at(us, &payload, block).await.err(),
            client.call(us, &payload, BlockTag::Latest).await.err(),
        ];
        for (place, error) in answers.into_iter().enumerate() {
            assert!(matches!(error, Some(RpcError::Unavailable { .. })), "{message}, {place}: {error:?}");
        }
        let health = &client.shared.exchange.nodes.all()[0].health;
        assert!(!health.is_healthy(std::time::Instant::now()), "{message}");
    }
}

#[tokio::test]
async fn another_node_is_used_if_one_is_unavailable_or_its_error_is_unclassified() {
    let good = Node::start(returns(json!("0x5208"))).await;
    let unknown = [(-32603, "the moon is in the wrong house")];
    for (code, message) in NODE_ERRORS.into_iter().chain(unknown) {
        let bad = Node::start(fails(code, message)).await;
        let client = client(&[&bad, &good]);
        let estimated = client.estimate_gas(Address::zero(), &payload()).await;
        assert_eq!(estimated.unwrap(), CallOutcome::Ok(U256::from(21_000)), "{message}");
        let bad = Node::start(fails(code, message)).await;
        let client = super::super::testing::client(&[&bad, &good]);
        assert_eq!(client.balance(Address::zero()).await.unwrap(), U256::from(21_000), "{message}");
        let healthy = client.shared.exchange.nodes.all()[0].health.is_healthy(std::time::Instant::now());
        assert_eq!(healthy, message == unknown[0].1, "only node errors reduce health: {message}");
    }
    let reverting = Node::start(fails(3, "execution reverted: rate limit exceeded")).await;
    let outcome = client(&[&reverting, &good]).estimate_gas(Address::zero(), &payload()).await.unwrap();
    assert!(matches!(outcome, CallOutcome::Reverted(_)), "a revert reason may contain any text: {outcome:?}");
}

#[tokio::test]
async fn an_estimate_at_a_block_uses_its_hash_and_falls_back_to_its_number() {
    let block = BlockId { number: 16, hash: hash(5) };
    let node = Node::start(returns(json!("0x5208"))).await;
    client(&[&node]).estimate_gas_at(Address::zero(), &payload(), block).await.unwrap();
    assert_eq!(node.bodies()[0]["params"][1], json!({ "blockHash": hash(5) }));
    let old = Node::start(|body| {
        answer(body, |call| match call["params"][1].is_object() {
            true => Err(json!({ "code": -32602, "message": "invalid argument 1" })),
            false => Ok(json!("0x5208")),
        })
    })
    .await;
    client(&[&old]).estimate_gas_at(Address::zero(), &payload(), block).await.unwrap();
    assert_eq!(old.bodies()[1]["params"][1], "0x10");
}

#[tokio::test]
async fn a_deployment_is_estimated_without_a_recipient() {
    let node = Node::start(returns(json!("0xd000"))).await;
    let deploy = Payload { to: None, data: Bytes::from_static(&[0x60]), ..payload() };
    client(&[&node]).estimate_gas(Address::zero(), &deploy).await.unwrap();
    let asked = &node.bodies()[0]["params"][0];
    assert!(asked.get("to").is_none() && asked.get("gasPrice").is_none());
    assert_eq!(asked["data"], "0x60");
}

#[tokio::test]
async fn missing_objects_are_none() {
    let node = Node::start(returns(Value::Null)).await;
    let client = client(&[&node]);
    assert_eq!(client.receipt(hash(1)).await.unwrap(), None);
    assert_eq!(client.receipts(&[hash(1), hash(2)]).await.unwrap(), vec![]);
    assert_eq!(client.block(BlockTag::Number(9)).await.unwrap(), None);
    assert_eq!(client.block_by_hash(hash(1)).await.unwrap(), None);
    assert_eq!(client.block_receipts(hash(1)).await.unwrap(), None);
    assert_eq!(client.receipts_from_any_node(&[hash(1)], None).await.unwrap(), vec![]);
    let node = Node::start(fails(-39001, "finalized block not found")).await;
    assert_eq!(super::super::testing::client(&[&node]).block(BlockTag::Finalized).await.unwrap(), None);
}

#[tokio::test]
async fn an_unsupported_method_is_called_once() {
    let node =
        Node::start(fails(-32601, "the method eth_getBlockReceipts does not exist/is not available")).await;
    let client = client(&[&node]);
    for _ in 0..3 {
        assert_eq!(client.block_receipts(hash(1)).await.unwrap(), None);
    }
    assert_eq!(node.bodies().len(), 1);
}

fn block(number: u64, own: u64) -> Value {
    json!({ "number": format!("{number:#x}"), "hash": hash(own), "parentHash": hash(own - 1), "transactions": [] })
}

#[tokio::test]
async fn an_answer_about_another_object_is_refused() {
    let node = Node::start(returns(block(5, 50))).await;
    let client = client(&[&node]);
    assert!(client.block(BlockTag::Number(5)).await.unwrap().is_some());
    assert!(matches!(client.block(BlockTag::Number(6)).await, Err(RpcError::Malformed { .. })));
    assert!(matches!(client.block_by_hash(hash(51)).await, Err(RpcError::Malformed { .. })));
    let node = Node::start(returns(receipt(9))).await;
    let client = super::super::testing::client(&[&node]);
    assert!(client.receipt(hash(9)).await.unwrap().unwrap().succeeded);
    assert!(matches!(client.receipt(hash(8)).await, Err(RpcError::Malformed { .. })));
}

fn receipt(of: u64) -> Value {
    json!({
        "transactionHash": hash(of), "transactionIndex": "0x0", "blockNumber": "0x10", "blockHash": hash(99),
        "status": "0x1", "gasUsed": "0x5208", "effectiveGasPrice": "0x1", "logs": [],
    })
}

/// Receipts that only another node has, by their hash or by their block.
#[tokio::test]
async fn a_receipt_missing_on_one_node_is_read_from_the_next() {
    let empty = Node::start(returns(Value::Null)).await;
    let indexed = Node::start(|body| {
        answer(body, |call| Ok(if call["params"][0] == json!(hash(3)) { receipt(3) } else { Value::Null }))
    })
    .await;
    let found = client(&[&empty, &indexed]).receipts_from_any_node(&[hash(2), hash(3)], None).await.unwrap();
    assert_eq!(found.iter().map(|receipt| receipt.tx_hash).collect::<Vec<_>>(), vec![hash(3)]);
    let by_block = Node::start(|body| {
        answer(body, |call| {
            let of_block = call["method"] == "eth_getBlockReceipts" && call["params"][0] == json!(hash(99));
            Ok(if of_block { json!([receipt(4), receipt(3)]) } else { Value::Null })
        })
    })
    .await;
    let client = client(&[&empty, &by_block]);
    assert_eq!(client.receipts_from_any_node(&[hash(3)], None).await.unwrap(), vec![]);
    let block = Some(BlockId { number: 16, hash: hash(99) });
    assert_eq!(client.receipts_from_any_node(&[hash(3)], block).await.unwrap().len(), 1);
}

/// By hash, so that a node on another fork cannot answer; by number if a node does not support that.
#[tokio::test]
async fn a_count_is_asked_for_at_exactly_one_block() {
    let block = BlockId { number: 16, hash: hash(99) };
    let strict = Node::start(|body| {
        answer(body, |call| match call["params"][1]["blockHash"] == json!(hash(99)) {
            true => Ok(json!("0x5")),
            false => Err(json!({ "code": -32000, "message": "unknown block" })),
        })
    })
    .await;
    assert_eq!(client(&[&strict]).transaction_count_at(Address::zero(), block).await.unwrap(), 5);
    let old = Node::start(|body| {
        answer(body, |call| match call["params"][1] == "0x10" {
            true => Ok(json!("0x6")),
            false => Err(json!({ "code": -32602, "message": "invalid argument 1" })),
        })
    })
    .await;
    assert_eq!(client(&[&old]).transaction_count_at(Address::zero(), block).await.unwrap(), 6);
}

#[tokio::test]
async fn prices_balances_and_ids_are_read() {
    let node = Node::start(|body| {
        answer(body, |call| {
            Ok(match call["method"].as_str().unwrap() {
                "eth_chainId" => json!("0x7a69"),
                "eth_getBlockByNumber" => block(0, 77),
                "eth_feeHistory" => json!({ "baseFeePerGas": ["0x1", "0x2"], "reward": [["0x3"]] }),
                _ => json!("0xde0b6b3a7640000"),
            })
        })
    })
    .await;
    let client = client(&[&node]);
    assert_eq!(client.remote_chain_id().await.unwrap(), ChainId(31337));
    assert_eq!(client.genesis_hash().await.unwrap(), Some(hash(77)));
    assert_eq!(client.fee_history(10, &[50.0]).await.unwrap().next_base_fee, 2.into());
    assert_eq!(client.gas_price().await.unwrap(), U256::exp10(18));
    assert_eq!(client.balance(Address::zero()).await.unwrap(), U256::exp10(18));
    assert_eq!(node.bodies()[2]["params"], json!(["0xa", "latest", [50.0]]));
}
