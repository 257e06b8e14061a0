//! Where an unmined transaction seems to be: advice that is right, that nobody waits for, and that changes nothing.

use gapless_tests::{
    Address, Fault, Mining, Proxy, SendsOf, Stack, StackBuilder, TxId, TxState, eventually, payload,
};
use serde_json::{Value, json};

use crate::stack;

const BY_HASH: &str = "eth_getTransactionByHash";
const CONTENT: &str = "txpool_contentFrom";

/// Looks often. Nothing is sent again by itself, so that what is lost stays lost until somebody asks for it.
fn diagnosing() -> StackBuilder {
    stack()
        .mining(Mining::Manual)
        .set("mempool.diagnose.enabled", true)
        .set("mempool.diagnose.interval", "200ms")
        .set("resubmit.enabled", false)
}

/// Until the API shows this verdict; answers all that it shows of it.
async fn wait_verdict(stack: &Stack, tx_id: TxId, verdict: &str) -> Value {
    eventually(&format!("{tx_id} is {verdict}"), async || {
        let tx = stack.get(tx_id).await;
        if tx["mempool"]["verdict"] == verdict { Ok(tx["mempool"].clone()) } else { Err(tx) }
    })
    .await
}

/// The same bytes, now.
async fn rebroadcast(stack: &Stack, tx_id: TxId) {
    let asked = json!({ "action": "rebroadcast", "reason": "it was lost" });
    let answer = stack.client().admin_post(&format!("/api/v1/tx/{tx_id}/resolve?wait=60s"), &asked).await;
    assert_eq!(answer.status, 200, "{answer:?}");
}

/// Scenario 35: in the mempool, evicted from it, there again with the same bytes; and each of that is said.
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
    assert_eq!(stack.row(tx_id).await.state, TxState::Submitted, "advice moves nothing");
    assert_eq!(stack.proxy().sent().len(), before, "advice sends nothing");
    rebroadcast(&stack, tx_id).await;
    wait_verdict(&stack, tx_id, "in_mempool").await;
    stack.anvil().mine(1).await;
    stack.wait_for(tx_id, TxState::Confirmed).await;
    assert_eq!(stack.get(tx_id).await["mempool"], Value::Null, "once it is mined there is nothing to advise");
    let sent = stack.proxy().sent();
    assert!(sent.len() > before && sent.iter().all(|raw| *raw == sent[0]), "the same bytes");
    assert!(stack.proxy().calls(BY_HASH) >= 3, "what the look costs");
    assert!(stack.workers()[0].metric("gapless_mempool_diagnoses_total", &["probably_lost"]).await >= 1.0);
    assert_eq!(stack.anvil().balance(to).await, 1.into());
    stack.finish().await;
}

/// Somebody with the same key pays more at the same nonce. It is said, with the hash; the lane does what it did.
#[tokio::test(flavor = "multi_thread")]
async fn a_stranger_at_the_same_nonce_is_said_and_nothing_is_done_about_it() {
    let stack = diagnosing().proxied().start().await;
    stack.proxy().show_pool();
    stack.start_api().await;
    stack.start_worker().await;
    let (submitter, to) = (stack.submitter(0), Address::repeat_byte(0xd2));
    let tx_id = stack.create(submitter, "outbid", &payload(to, 1)).await;
    wait_verdict(&stack, tx_id, "in_mempool").await;
    let before = stack.proxy().sent().len();
    let stranger = submitter.spend_outside(stack.anvil(), Some(0)).await;
    let seen = wait_verdict(&stack, tx_id, "probably_replaced").await;
    assert_eq!(seen["replacedBy"], json!(stranger));
    let (row, cursor) = (stack.row(tx_id).await, stack.cursor(submitter).await.unwrap());
    assert_eq!((row.state, stack.attempts(tx_id).await.len()), (TxState::Submitted, 1));
    assert_eq!((cursor.state.as_str(), cursor.protect_reason), ("IN_FLIGHT", None));
    assert_eq!(stack.proxy().sent().len(), before, "advice sends nothing");
    // The stranger was never mined: ours goes out again, and has its effect.
    stack.anvil().drop_transaction(stranger).await;
    wait_verdict(&stack, tx_id, "probably_lost").await;
    rebroadcast(&stack, tx_id).await;
    stack.wait_pooled(row.tx_hash.unwrap()).await;
    stack.anvil().mine(1).await;
    stack.wait_for(tx_id, TxState::Confirmed).await;
    assert_eq!(stack.anvil().balance(to).await, 1.into());
    stack.finish().await;
}

/// A node that does not show its pool is judged by hashes and counts, and is asked for the pool once.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_without_a_pool_to_show_still_leads_to_a_verdict() {
    let stack = diagnosing().proxied().up().await;
    stack.proxy().always(CONTENT, Fault::Error { code: -32601, message: "Method not found".into() });
    let (submitter, to) = (stack.submitter(0), Address::repeat_byte(0xd3));
    let tx_id = stack.create(submitter, "hidden", &payload(to, 1)).await;
    wait_verdict(&stack, tx_id, "in_mempool").await;
    let stranger = submitter.spend_outside(stack.anvil(), Some(0)).await;
    let seen = wait_verdict(&stack, tx_id, "probably_replaced").await;
    assert_eq!(seen["replacedBy"], Value::Null, "a count has no name");
    stack.anvil().drop_transaction(stranger).await;
    wait_verdict(&stack, tx_id, "probably_lost").await;
    assert_eq!(stack.proxy().calls(CONTENT), 1, "method not found is remembered");
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

/// The node claims to have the lower nonce and does not: the upper one is there and held back, the lower one is lost.
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

/// Several nodes: one that has it is enough; "nobody knows it" must be everybody's word.
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

/// A look that never ends delays nothing: sends go on by their timer, blocks are noticed, the next intent follows.
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
        0 => Err("nobody looked yet"),
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
    assert!(proxy.calls(BY_HASH) <= 2, "one look at a time for a lane");
    assert_eq!(stack.anvil().balance(to).await, 3.into());
    stack.finish().await;
}

/// Off by default: no answer has it, and no node is asked anything for it.
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

/// As `diagnosing`, and what the nodes show is acted on.
fn acting() -> StackBuilder {
    diagnosing().set("mempool.diagnose.act", true)
}

/// Nothing is sent again by a timer here: the diagnosis alone brings the evicted bytes back.
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

/// A stranger at the same nonce has the evidence looked for at once, and nothing ends: while it is unmined there is none.
#[tokio::test(flavor = "multi_thread")]
async fn where_it_acts_what_is_probably_replaced_is_looked_into_and_nothing_ends() {
    let stack = acting().proxied().start().await;
    stack.proxy().show_pool();
    stack.start_api().await;
    stack.start_worker().await;
    let (submitter, to) = (stack.submitter(0), Address::repeat_byte(0xd8));
    let tx_id = stack.create(submitter, "outbid", &payload(to, 1)).await;
    wait_verdict(&stack, tx_id, "in_mempool").await;
    let stranger = submitter.spend_outside(stack.anvil(), Some(0)).await;
    wait_verdict(&stack, tx_id, "probably_replaced").await;
    let worker = stack.workers().remove(0);
    eventually("the evidence is looked for", async || {
        let looks = worker.metric("gapless_mempool_actions_total", &["look_up"]).await;
        if looks >= 1.0 { Ok(()) } else { Err(looks) }
    })
    .await;
    assert_eq!(stack.row(tx_id).await.state, TxState::Submitted);
    // The stranger goes; ours comes back by the diagnosis, and has its effect.
    stack.anvil().drop_transaction(stranger).await;
    stack.wait_pooled(stack.row(tx_id).await.tx_hash.unwrap()).await;
    stack.anvil().mine(1).await;
    stack.wait_for(tx_id, TxState::Confirmed).await;
    assert_eq!(stack.anvil().balance(to).await, 1.into());
    stack.finish().await;
}

/// The base fee rises above what was offered. The bytes are in the pool and cannot be mined: the price is raised long before
/// `gasbump.min_interval` would.
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
