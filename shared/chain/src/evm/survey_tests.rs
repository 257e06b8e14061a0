//! Nodes that serve the wrong chain, lag, fail and recover.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

use ethers_core::types::{Address, Bytes};
use serde_json::{Value, json};

use super::super::testing::{Act, Node, answer, client, short_timeout_client};
use super::*;
use crate::port::{BlockTag, ChainConnector};

const OURS: u64 = 31337;

/// The state of a fake node, changeable while it runs. It returns `mark` as the transaction count of any address.
struct Facts {
    id: AtomicU64,
    genesis: AtomicU64,
    head: AtomicU64,
    mark: u64,
    dead: AtomicBool,
}

async fn node(mark: u64, id: u64, genesis: u64, head: u64) -> (Node, Arc<Facts>) {
    let facts = Arc::new(Facts {
        id: id.into(),
        genesis: genesis.into(),
        head: head.into(),
        mark,
        dead: AtomicBool::new(false),
    });
    let shared = Arc::clone(&facts);
    let act = move |body: &Value| match shared.dead.load(SeqCst) {
        true => Act::Reset,
        false => answer(body, |call| Ok(shared.reply(call))),
    };
    (Node::start(act).await, facts)
}

impl Facts {
    fn reply(&self, call: &Value) -> Value {
        let hex = |number: u64| json!(format!("{number:#x}"));
        match call["method"].as_str().unwrap() {
            "eth_chainId" => hex(self.id.load(SeqCst)),
            "eth_blockNumber" => hex(self.head.load(SeqCst)),
            "eth_getBlockByNumber" => match self.genesis.load(SeqCst) {
                0 => Value::Null,
                genesis => {
                    json!({ "number": "0x0", "hash": hash(genesis), "parentHash": hash(0), "transactions": [] })
                }
            },
            "eth_sendRawTransaction" => json!(hash(7)),
            _ => hex(self.mark),
        }
    }
}

fn hash(number: u64) -> H256 {
    H256::from_low_u64_be(number)
}

/// The mark of the node that a read goes to.
async fn asked(client: &EvmClient) -> u64 {
    client.transaction_count(Address::zero(), BlockTag::Latest).await.unwrap()
}

fn ours(genesis: u64) -> ChainIdentity {
    ChainIdentity::Ours { genesis: Some(hash(genesis)) }
}

fn problem(identity: Result<ChainIdentity, RpcError>) -> String {
    match identity.unwrap() {
        ChainIdentity::WrongChain { problem } => problem,
        other => panic!("{other:?}"),
    }
}

fn sends(node: &Node) -> usize {
    node.bodies().iter().filter(|body| body.to_string().contains("eth_sendRawTransaction")).count()
}

#[tokio::test]
async fn a_node_of_the_wrong_chain_is_not_used_and_does_not_halt_the_chain() {
    let ((wrong, facts), (right, _)) = (node(1, 99, 5, 1_000_000).await, node(2, OURS, 5, 10).await);
    let client = client(&[&wrong, &right]);
    assert_eq!(client.identity(Some(hash(5))).await.unwrap(), ours(5));
    assert_eq!(asked(&client).await, 2);
    client.send_raw(&Bytes::new(), hash(7)).await.unwrap();
    assert!(client.receipts_from_any_node(&[], None).await.unwrap().is_empty());
    assert_eq!((sends(&wrong), sends(&right)), (0, 1));
    assert_eq!(wrong.bodies().len(), 1, "only the identity was queried");
    let right_one = &client.shared.exchange.nodes.all()[1];
    assert_eq!(right_one.health.lag(), 0, "the head of another chain is ignored");

    facts.id.store(OURS, SeqCst);
    facts.head.store(10, SeqCst);
    assert_eq!(client.identity(Some(hash(5))).await.unwrap(), ours(5));
    assert_eq!(asked(&client).await, 1, "it matches again");
}

#[tokio::test]
async fn a_node_with_another_genesis_is_another_chain() {
    let ((reset, _), (right, _)) = (node(1, OURS, 6, 10).await, node(2, OURS, 5, 10).await);
    let client = client(&[&reset, &right]);
    assert_eq!(client.identity(None).await.unwrap(), ours(6), "unknown yet: the first node's is used");
    assert_eq!(asked(&client).await, 1);
    assert_eq!(client.identity(Some(hash(5))).await.unwrap(), ours(5), "the known genesis takes precedence");
    assert_eq!(asked(&client).await, 2);
}

#[tokio::test]
async fn a_node_without_block_0_is_checked_by_its_chain_id() {
    let (pruned, _) = node(1, OURS, 0, 10).await;
    let client = client(&[&pruned]);
    assert_eq!(client.identity(None).await.unwrap(), ChainIdentity::Ours { genesis: None });
    client.identity(Some(hash(5))).await.unwrap();
    assert_eq!(asked(&client).await, 1);
}

#[tokio::test]
async fn the_result_is_wrong_chain_only_if_no_node_can_be_correct() {
    let ((one, _), (two, facts)) = (node(1, 99, 5, 10).await, node(2, OURS, 5, 10).await);
    let client = client(&[&one, &two]);
    client.identity(Some(hash(5))).await.unwrap();
    facts.dead.store(true, SeqCst);
    let error = client.identity(Some(hash(5))).await.unwrap_err();
    assert!(error.to_string().contains("could not be reached"), "the known identity is retained: {error}");
    facts.dead.store(false, SeqCst);
    facts.genesis.store(6, SeqCst);
    assert!(problem(client.identity(Some(hash(5))).await).contains("serves chain 99"));
    let error = client.balance(Address::zero()).await.unwrap_err();
    assert!(error.to_string().contains("no node is known to serve this chain"), "{error}");
    assert!(client.receipts_from_any_node(&[hash(1)], None).await.is_err());
    assert!(client.send_raw(&Bytes::new(), hash(7)).await.is_err());
    assert_eq!((sends(&one), sends(&two)), (0, 0));
}

#[tokio::test]
async fn an_unchecked_node_is_not_used_after_a_survey() {
    let ((late, facts), (right, _)) = (node(1, 99, 5, 10).await, node(2, OURS, 5, 10).await);
    facts.dead.store(true, SeqCst);
    let client = client(&[&late, &right]);
    client.identity(Some(hash(5))).await.unwrap();
    facts.dead.store(false, SeqCst);
    client.send_raw(&Bytes::new(), hash(7)).await.unwrap();
    assert_eq!((asked(&client).await, sends(&late)), (2, 0), "it serves another chain");
    facts.id.store(OURS, SeqCst);
    client.identity(Some(hash(5))).await.unwrap();
    client.send_raw(&Bytes::new(), hash(7)).await.unwrap();
    late.until_seen(2).await;
}

#[tokio::test]
async fn a_lagging_node_is_used_last_until_it_has_caught_up() {
    let ((behind, facts), (at_head, other)) = (node(1, OURS, 5, 94).await, node(2, OURS, 5, 100).await);
    let client = client(&[&behind, &at_head]);
    client.identity(Some(hash(5))).await.unwrap();
    assert_eq!(asked(&client).await, 2);
    assert_eq!(client.shared.exchange.nodes.all()[0].health.lag(), 6);
    client.send_raw(&Bytes::new(), hash(7)).await.unwrap();
    other.dead.store(true, SeqCst);
    assert_eq!(asked(&client).await, 1, "better than none");
    other.dead.store(false, SeqCst);
    facts.head.store(95, SeqCst);
    client.identity(Some(hash(5))).await.unwrap();
    assert_eq!(asked(&client).await, 1, "five blocks behind is within the limit");
}

#[tokio::test]
async fn a_hanging_node_does_not_delay_the_result() {
    let (hangs, (right, _)) = (Node::start(|_| Act::Hang).await, node(2, OURS, 5, 10).await);
    let client = client(&[&hangs, &right]);
    let identity = tokio::time::timeout(Duration::from_secs(6), client.identity(None)).await;
    assert_eq!(identity.expect("before the timeout of ten seconds").unwrap(), ours(5));
    assert_eq!(asked(&client).await, 2);
    let alone = short_timeout_client(&[&hangs]);
    assert!(matches!(alone.identity(None).await, Err(RpcError::Timeout { .. })));
}
