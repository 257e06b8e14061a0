//! Mempool diagnosis: it is correct, nothing waits for it, and it changes nothing.

use gapless_testkit::{
    Address, Fault, Mining, Proxy, SendsOf, Stack, StackBuilder, TxId, TxState, eventually, payload,
};
use serde_json::{Value, json};

use crate::stack;

const BY_HASH: &str = "eth_getTransactionByHash";
const CONTENT: &str = "txpool_contentFrom";

/// Frequent diagnosis. Nothing is resent automatically, so that lost transactions stay lost until a request.
fn diagnosing() -> StackBuilder {
    stack()
        .mining(Mining::Manual)
        .set("mempool.diagnose.enabled", true)
        .set("mempool.diagnose.interval", "200ms")
        .set("resubmit.enabled", false)
}

/// Waits until the API shows this diagnosis; returns all of it.
async fn wait_verdict(stack: &Stack, tx_id: TxId, verdict: &str) -> Value {
    eventually(&format!("{tx_id} is {verdict}"), async || {
        let tx = stack.get(tx_id).await;
        if tx["mempool"]["verdict"] == verdict { Ok(tx["mempool"].clone()) } else { Err(tx) }
    })
    .await
}

/// Resends the same bytes.
async fn rebroadcast(stack: &Stack, tx_id: TxId) {
    let asked = json!({ "action": "rebroadcast", "reason": "it was lost" });
    let answer = stack.client().admin_post(&format!("/api/v1/tx/{tx_id}/resolve?wait=60s"), &asked).await;
    assert_eq!(answer.status, 200, "{answer:?}");
}

/// Scenario 35: in the mempool, evicted, and there again with the same bytes; each is reported.
#[tokio::test(flavor = "multi_thread")]
async fn an_evicted_transaction_is_probably_lost_until_the_same_bytes_are_there_again() {
    let stack = diagnosing().proxied().up().await;
    let to = Address::repeat_byte(0xd1);
    let tx_id = stack.create(stack.submitter(0), "evicted", &payload(to, 1)).await;
    let seen = wait_verdict(&stack, tx_id, "in_mempool").await;
    assert_eq!(
        (&seen["nodesAsked"], &seen["nodesHeard"], &seen["nodesWithIt"]),
        (&json!(1), &json!(1), &json!(1))
    );
    assert_eq!((&seen["queued"], &seen["replacedBy"]), (&json!(false), &Value::Null));
    let (hash, before) = (stack.row(tx_id).await.tx_hash.unwrap(), stack.proxy().sent().len());
    stack.anvil().drop_transaction(hash).await;
    let lost = wait_verdict(&stack, tx_id, "probably_lost").await;
    assert_eq!(lost["nodesWithIt"], 0);
    assert_eq!(stack.row(tx_id).await.state, TxState::Submitted, "the diagnosis changes nothing");
    assert_eq!(stack.proxy().sent().len(), before, "the diagnosis sends nothing");
    rebroadcast(&stack, tx_id).await;
    wait_verdict(&stack, tx_id, "in_mempool").await;
    stack.anvil().mine(1).await;
    stack.wait_for(tx_id, TxState::Confirmed).await;
    assert_eq!(stack.get(tx_id).await["mempool"], Value::Null, "no diagnosis once it is mined");
    let sent = stack.proxy().sent();
    assert!(sent.len() > before && sent.iter().all(|raw| *raw == sent[0]), "the same bytes");
    assert!(stack.proxy().calls(BY_HASH) >= 3, "calls of the lookups");
    assert!(stack.workers()[0].metric("gapless_mempool_diagnoses_total", &["probably_lost"]).await >= 1.0);
    assert_eq!(stack.anvil().balance(to).await, 1.into());
    stack.finish().await;
}

/// An external transaction with the same key and nonce pays more. It is reported with its hash; the lane does not
/// react.
#[tokio::test(flavor = "multi_thread")]
async fn an_external_transaction_at_the_same_nonce_is_reported_and_nothing_is_done_about_it() {
    let stack = diagnosing().proxied().start().await;
    stack.proxy().show_pool();
    stack.start_api().await;
    stack.start_worker().await;
    let (submitter, to) = (stack.submitter(0), Address::repeat_byte(0xd2));
    let tx_id = stack.create(submitter, "outbid", &payload(to, 1)).await;
    wait_verdict(&stack, tx_id, "in_mempool").await;
    let before = stack.proxy().sent().len();
    let external = submitter.spend_outside(stack.anvil(), Some(0)).await;
    let seen = wait_verdict(&stack, tx_id, "probably_replaced").await;
    assert_eq!(seen["replacedBy"], json!(external));
    let (row, cursor) = (stack.row(tx_id).await, stack.cursor(submitter).await.unwrap());
    assert_eq!((row.state, stack.attempts(tx_id).await.len()), (TxState::Submitted, 1));
    assert_eq!((cursor.state.as_str(), cursor.protect_reason), ("IN_FLIGHT", None));
    assert_eq!(stack.proxy().sent().len(), before, "the diagnosis sends nothing");
    // The external transaction was never mined: ours is resent, and has its effect.
    stack.anvil().drop_transaction(external).await;
    wait_verdict(&stack, tx_id, "probably_lost").await;
    rebroadcast(&stack, tx_id).await;
    stack.wait_pooled(row.tx_hash.unwrap()).await;
    stack.anvil().mine(1).await;
    stack.wait_for(tx_id, TxState::Confirmed).await;
    assert_eq!(stack.anvil().balance(to).await, 1.into());
    stack.finish().await;
}

/// If a node does not support the mempool query, hashes and counts are used, and the query is tried once.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_without_a_pool_to_show_still_leads_to_a_verdict() {
    let stack = diagnosing().proxied().up().await;
    stack.proxy().always(CONTENT, Fault::Error { code: -32601, message: "Method not found".into() });
    let (submitter, to) = (stack.submitter(0), Address::repeat_byte(0xd3));
    let tx_id = stack.create(submitter, "hidden", &payload(to, 1)).await;
    wait_verdict(&stack, tx_id, "in_mempool").await;
    let external = submitter.spend_outside(stack.anvil(), Some(0)).await;
    let seen = wait_verdict(&stack, tx_id, "probably_replaced").await;
    assert_eq!(seen["replacedBy"], Value::Null, "a count has no hash");
    stack.anvil().drop_transaction(external).await;
    wait_verdict(&stack, tx_id, "probably_lost").await;
    assert_eq!(stack.proxy().calls(CONTENT), 1, "\"method not found\" is cached");
    assert_eq!(
        stack.workers()[0].metric("gapless_rpc_node_healthy", &[]).await,
        1.0,
        "and does not speak against the node"
    );
    rebroadcast(&stack, tx_id).await;
    stack.wait_pending(1).await;
    stack.anvil().mine(1).await;
    stack.wait_for(tx_id, TxState::Confirmed).await;
    assert_eq!(stack.anvil().balance(to).await, 1.into());
    stack.finish().await;
}

/// The node claims to have the lower nonce but does not: the upper one is held back, the lower one is lost.
#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_behind_a_missing_nonce_is_said_to_be_held_back() {
    let stack = diagnosing().window(2).proxied().start().await;
    let (proxy, submitter, to) = (stack.proxy(), stack.submitter(0), Address::repeat_byte(0xd4));
    proxy.show_pool();
    proxy.always_to(SendsOf { from: submitter.address(), nonce: Some(0) }, Fault::error("already known"));
    stack.start_api().await;
    stack.start_worker().await;
    let lower = stack.create(submitter, "lower", &payload(to, 1)).await;
    let upper = stack.create(submitter, "upper", &payload(to, 2)).await;
    wait_verdict(&stack, lower, "probably_lost").await;
    let seen = wait_verdict(&stack, upper, "in_mempool").await;
    assert_eq!(seen["queued"], true, "{seen}");
    proxy.clear();
    rebroadcast(&stack, lower).await;
    eventually("nothing is held back any more", async || {
        let tx = stack.get(upper).await;
        if tx["mempool"]["queued"] == false { Ok(()) } else { Err(tx) }
    })
    .await;
    stack.anvil().mine(1).await;
    stack.wait_confirmed(&[lower, upper]).await;
    assert_eq!(stack.anvil().balance(to).await, 3.into());
    stack.finish().await;
}

/// Several nodes: one that has it is enough; "unknown" needs all of them.
#[tokio::test(flavor = "multi_thread")]
async fn several_nodes_are_heard_each() {
    let stack = diagnosing().start().await;
    let (one, two) = (Proxy::start(stack.anvil().url()).await, Proxy::start(stack.anvil().url()).await);
    two.always(BY_HASH, Fault::Result(Value::Null));
    one.show_pool();
    stack.start_api().await;
    stack.worker().rpc(&[one.url(), two.url()]).start().await;
    let to = Address::repeat_byte(0xd5);
    let tx_id = stack.create(stack.submitter(0), "known-to-one", &payload(to, 1)).await;
    let seen = wait_verdict(&stack, tx_id, "in_mempool").await;
    assert_eq!(
        (&seen["nodesAsked"], &seen["nodesHeard"], &seen["nodesWithIt"]),
        (&json!(2), &json!(2), &json!(1))
    );
    stack.anvil().drop_all().await;
    wait_verdict(&stack, tx_id, "probably_lost").await;
    two.clear();
    two.always(BY_HASH, Fault::Close);
    let seen = wait_verdict(&stack, tx_id, "unknown").await;
    assert_eq!((&seen["nodesAsked"], &seen["nodesHeard"]), (&json!(2), &json!(1)));
    two.clear();
    wait_verdict(&stack, tx_id, "probably_lost").await;
    rebroadcast(&stack, tx_id).await;
    stack.wait_pending(1).await;
    stack.anvil().mine(1).await;
    stack.wait_for(tx_id, TxState::Confirmed).await;
    assert_eq!(stack.anvil().balance(to).await, 1.into());
    stack.finish().await;
}

/// A lookup that never ends delays nothing: resends continue, blocks are noticed, the next intent follows.
#[tokio::test(flavor = "multi_thread")]
async fn a_look_that_hangs_delays_neither_sends_nor_confirmations() {
    let stack = diagnosing()
        .proxied()
        .set("resubmit.enabled", true)
        .set("resubmit.interval", "300ms")
        .set("rpc.timeout", "10m")
        .start()
        .await;
    let (proxy, submitter, to) = (stack.proxy(), stack.submitter(0), Address::repeat_byte(0xd6));
    proxy.always(BY_HASH, Fault::Hang);
    proxy.always(CONTENT, Fault::Hang);
    stack.start_api().await;
    stack.start_worker().await;
    let first = stack.create(submitter, "first", &payload(to, 1)).await;
    eventually("a look hangs", async || match proxy.calls(BY_HASH) {
        0 => Err("no lookup yet"),
        _ => Ok(()),
    })
    .await;
    let before = proxy.sent().len();
    eventually("sends go on", async || match proxy.sent().len() {
        sent if sent >= before + 3 => Ok(()),
        sent => Err(sent),
    })
    .await;
    stack.anvil().set_automine(true).await;
    stack.anvil().mine(1).await;
    stack.wait_for(first, TxState::Confirmed).await;
    let second = stack.create(submitter, "second", &payload(to, 2)).await;
    stack.wait_for(second, TxState::Confirmed).await;
    assert!(proxy.calls(BY_HASH) <= 2, "one lookup at a time per lane");
    assert_eq!(stack.anvil().balance(to).await, 3.into());
    stack.finish().await;
}

/// Off by default: no response has it, and no node is called for it.
#[tokio::test(flavor = "multi_thread")]
async fn without_the_switch_nobody_is_asked_and_nothing_is_said() {
    let stack = stack()
        .proxied()
        .mining(Mining::Manual)
        .set("mempool.diagnose.interval", "100ms")
        .set("resubmit.interval", "300ms")
        .up()
        .await;
    let tx_id = stack.create(stack.submitter(0), "unasked", &payload(Address::repeat_byte(0xd7), 1)).await;
    eventually("it is unmined for several intervals", async || match stack.proxy().sent().len() {
        sent if sent >= 4 => Ok(()),
        sent => Err(sent),
    })
    .await;
    assert_eq!(stack.get(tx_id).await["mempool"], Value::Null);
    assert_eq!((stack.proxy().calls(BY_HASH), stack.proxy().calls(CONTENT)), (0, 0));
    stack.anvil().mine(1).await;
    stack.wait_for(tx_id, TxState::Confirmed).await;
    stack.finish().await;
}

/// Like `diagnosing`, with actions.
fn acting() -> StackBuilder {
    diagnosing().set("mempool.diagnose.act", true)
}

/// No resends by timer here: the diagnosis alone resends the evicted transaction.
#[tokio::test(flavor = "multi_thread")]
async fn where_it_acts_what_is_probably_lost_is_sent_again() {
    let stack = acting().proxied().up().await;
    let to = Address::repeat_byte(0xd7);
    let tx_id = stack.create(stack.submitter(0), "evicted", &payload(to, 1)).await;
    wait_verdict(&stack, tx_id, "in_mempool").await;
    let hash = stack.row(tx_id).await.tx_hash.unwrap();
    stack.anvil().drop_transaction(hash).await;
    stack.wait_pooled(hash).await;
    stack.anvil().mine(1).await;
    stack.wait_for(tx_id, TxState::Confirmed).await;
    assert!(stack.workers()[0].metric("gapless_mempool_actions_total", &["resend"]).await >= 1.0);
    let sent = stack.proxy().sent();
    assert!(sent.len() >= 2 && sent.iter().all(|raw| *raw == sent[0]), "the same bytes");
    assert_eq!(stack.anvil().balance(to).await, 1.into());
    stack.finish().await;
}

/// An external transaction at the same nonce starts the search for evidence at once, and nothing ends: while it is
/// unmined there is none.
#[tokio::test(flavor = "multi_thread")]
async fn where_it_acts_what_is_probably_replaced_is_looked_into_and_nothing_ends() {
    let stack = acting().proxied().start().await;
    stack.proxy().show_pool();
    stack.start_api().await;
    stack.start_worker().await;
    let (submitter, to) = (stack.submitter(0), Address::repeat_byte(0xd8));
    let tx_id = stack.create(submitter, "outbid", &payload(to, 1)).await;
    wait_verdict(&stack, tx_id, "in_mempool").await;
    let external = submitter.spend_outside(stack.anvil(), Some(0)).await;
    wait_verdict(&stack, tx_id, "probably_replaced").await;
    let worker = stack.workers().remove(0);
    eventually("the evidence is looked for", async || {
        let looks = worker.metric("gapless_mempool_actions_total", &["look_up"]).await;
        if looks >= 1.0 { Ok(()) } else { Err(looks) }
    })
    .await;
    assert_eq!(stack.row(tx_id).await.state, TxState::Submitted);
    // The external transaction is dropped; the diagnosis resends ours, and it has its effect.
    stack.anvil().drop_transaction(external).await;
    stack.wait_pooled(stack.row(tx_id).await.tx_hash.unwrap()).await;
    stack.anvil().mine(1).await;
    stack.wait_for(tx_id, TxState::Confirmed).await;
    assert_eq!(stack.anvil().balance(to).await, 1.into());
    stack.finish().await;
}

/// The base fee rises above the offered cap. The transaction is in the mempool and cannot be mined: the price is
/// raised long before `gasbump.min_interval`.
#[tokio::test(flavor = "multi_thread")]
async fn where_it_acts_what_is_below_the_base_fee_gets_a_higher_price() {
    let stack = acting().set("gasbump.enabled", true).set("gasbump.min_interval", "1h").up().await;
    let to = Address::repeat_byte(0xd9);
    let tx_id = stack.create(stack.submitter(0), "cheap", &payload(to, 1)).await;
    wait_verdict(&stack, tx_id, "in_mempool").await;
    stack.anvil().rpc("anvil_setNextBlockBaseFeePerGas", json!(["0x174876e800"])).await;
    stack.anvil().mine(1).await;
    let attempts = stack.wait_attempts(tx_id, 2).await;
    assert_eq!(attempts[1].kind, "REPLACEMENT");
    assert!(stack.workers()[0].metric("gapless_mempool_actions_total", &["bump"]).await >= 1.0);
    eventually("it is mined", async || {
        stack.anvil().mine(1).await;
        let row = stack.row(tx_id).await;
        if row.state == TxState::Confirmed { Ok(()) } else { Err(row) }
    })
    .await;
    assert_eq!(stack.anvil().balance(to).await, 1.into());
    stack.finish().await;
}
