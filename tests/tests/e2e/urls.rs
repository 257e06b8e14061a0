//! Several URLs for one chain: nodes that disagree, lag, are unreachable, come and go, or serve another chain.

use std::time::Duration;

use gapless_testkit::{Address, Fault, Mining, Node, Proxy, Service, Stack, TxState, eventually, payload};
use serde_json::json;

use crate::stack;

const SEND: &str = "eth_sendRawTransaction";

/// Two proxies of the same node, which a worker treats as two nodes.
async fn two_urls(stack: &Stack) -> (Proxy, Proxy, Service) {
    let (one, two) = (Proxy::start(stack.anvil().url()).await, Proxy::start(stack.anvil().url()).await);
    let worker = stack.worker().rpc(&[one.url(), two.url()]).start().await;
    (one, two, worker)
}

/// A node's gauge.
async fn gauge(worker: &Service, name: &str, url: &str) -> f64 {
    let node = format!("node=\"{}\"", url.trim_start_matches("http://").trim_end_matches('/'));
    worker.metric(name, &[&node]).await
}

async fn wait_health(worker: &Service, url: &str, healthy: bool) {
    let wanted = if healthy { 1.0 } else { 0.0 };
    eventually(&format!("gapless_rpc_node_healthy of {url} is {wanted}"), async || {
        match gauge(worker, "gapless_rpc_node_healthy", url).await {
            found if found == wanted => Ok(()),
            found => Err(found),
        }
    })
    .await;
}

async fn wait_received(proxy: &Proxy, raw: &str) {
    eventually("the node received the same bytes", async || {
        let sent = proxy.sent();
        if sent.iter().any(|sent_body| sent_body == raw) { Ok(()) } else { Err(sent) }
    })
    .await;
}

/// Confirms `count` transfers, one by one.
async fn confirm(stack: &Stack, name: &str, to: Address, count: usize) {
    for n in 0..count {
        let tx_id = stack.create(stack.submitter(0), &format!("{name}-{n}"), &payload(to, 1)).await;
        stack.wait_for(tx_id, TxState::Confirmed).await;
    }
}

/// Scenario 34. Every kind of rejection by the first URL while the second one accepts.
#[tokio::test(flavor = "multi_thread")]
async fn success_at_one_node_and_an_error_at_another_is_success() {
    let refusals = [
        Fault::Error { code: -32000, message: "nonce too low".into() },
        Fault::Error { code: -32000, message: "insufficient funds for gas * price + value".into() },
        Fault::Error { code: -32000, message: "intrinsic gas too low".into() },
        Fault::Error { code: -32603, message: "no such wording".into() },
        Fault::Status(503, "away".into()),
        Fault::Close,
    ];
    let stack = stack().mining(Mining::Manual).set("resubmit.interval", "1h").start().await;
    stack.start_api().await;
    let (one, two, worker) = two_urls(&stack).await;
    let (submitter, to) = (stack.submitter(0), Address::repeat_byte(0xb0));
    for (n, refusal) in refusals.iter().enumerate() {
        one.next(1, SEND, refusal.clone());
        let tx_id = stack.create(submitter, &format!("r{n}"), &payload(to, 1)).await;
        let row = stack.wait_for(tx_id, TxState::Submitted).await;
        assert_eq!(row.last_error, None, "{refusal:?}");
        let raw = two.sent().last().cloned().unwrap();
        wait_received(&one, &raw).await;
        stack.anvil().mine(1).await;
        stack.wait_for(tx_id, TxState::Confirmed).await;
        assert_eq!(stack.attempts(tx_id).await.len(), 1);
    }
    assert_eq!(stack.anvil().balance(to).await, refusals.len().into());
    for class in ["insufficient_funds", "fatal", "unknown", "unavailable", "no_answer"] {
        assert_eq!(
            worker.metric("gapless_tx_submit_total", &[&format!("\"{class}\"")]).await,
            0.0,
            "{class}"
        );
    }
    stack.finish().await;
}

/// Scenario 34. An error about a transaction is not a sign of an unhealthy node.
#[tokio::test(flavor = "multi_thread")]
async fn nonce_too_low_at_one_node_does_not_mark_it_bad() {
    let stack = stack().start().await;
    stack.start_api().await;
    let (one, two, worker) = two_urls(&stack).await;
    one.always(SEND, Fault::Error { code: -32000, message: "nonce too low".into() });
    let to = Address::repeat_byte(0xb1);
    confirm(&stack, "low", to, 5).await;
    wait_received(&one, two.sent().last().unwrap()).await;
    let asked = (one.calls("eth_estimateGas"), two.calls("eth_estimateGas"));
    assert!(asked.0 > asked.1, "reads stay with the first: {asked:?}");
    wait_health(&worker, one.url(), true).await;
    assert_eq!(stack.anvil().balance(to).await, 5.into());
    stack.finish().await;
}

/// The response comes from the fast one; the other one gets its copy later.
#[tokio::test(flavor = "multi_thread")]
async fn a_send_does_not_wait_for_a_node_that_hangs() {
    let stack = stack().set("rpc.timeout", "1m").start().await;
    stack.start_api().await;
    let (one, two, _worker) = two_urls(&stack).await;
    one.always(SEND, Fault::Hang);
    let to = Address::repeat_byte(0xb2);
    let begun = std::time::Instant::now();
    confirm(&stack, "quick", to, 2).await;
    assert!(begun.elapsed() < Duration::from_secs(30), "the time-out of a request is a minute");
    wait_received(&one, &two.sent()[0]).await;
    stack.finish().await;
}

/// The first URL shows an old head: reads go to the other one until it has caught up, sends go to both.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_lags_is_asked_last_until_it_has_caught_up() {
    let stack = stack().set("rpc.max_lag_blocks", 2).start().await;
    stack.start_api().await;
    let (one, two, worker) = two_urls(&stack).await;
    let to = Address::repeat_byte(0xb3);
    confirm(&stack, "before", to, 1).await;
    assert_eq!(two.calls("eth_estimateGas"), 0);
    one.freeze_at(stack.anvil().head().await);
    stack.anvil().mine(3).await;
    wait_health(&worker, one.url(), false).await;
    assert_eq!(gauge(&worker, "gapless_rpc_node_lag_blocks", one.url()).await, 3.0);
    let asked = one.calls("eth_estimateGas");
    confirm(&stack, "lagging", to, 3).await;
    assert_eq!(one.calls("eth_estimateGas"), asked, "no call to this node");
    wait_received(&one, two.sent().last().unwrap()).await;
    one.thaw();
    wait_health(&worker, one.url(), true).await;
    let asked = two.calls("eth_estimateGas");
    confirm(&stack, "after", to, 1).await;
    assert_eq!(two.calls("eth_estimateGas"), asked, "the first is asked again");
    assert!(!worker.log().contains("PROTECT"), "no false alarm");
    assert_eq!(worker.metric("gapless_confirmations_new_fork_total", &[]).await, 0.0);
    assert_eq!(stack.anvil().balance(to).await, 5.into());
    stack.finish().await;
}

/// Scenario 37, with a correct second URL: the wrong one gets nothing, and nothing stops.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_of_another_chain_among_several_is_not_used_and_stops_nothing() {
    let stack = stack().start().await;
    stack.start_api().await;
    let other = Node::start(99, Mining::Instant, &stack.dir().join("other.log")).await;
    other.mine(40).await;
    let (one, two) = (Proxy::start(other.url()).await, Proxy::start(stack.anvil().url()).await);
    let worker = stack.worker().rpc(&[one.url(), two.url()]).start().await;
    let to = Address::repeat_byte(0xb4);
    confirm(&stack, "beside", to, 3).await;
    let line = worker.wait_for_log("node serves another chain; not used").await;
    assert!(line.contains("the node serves chain 99"), "{line}");
    assert_eq!(worker.readiness().await.0, 200);
    assert_eq!(one.sent().len(), 0, "it gets no transaction");
    assert_eq!(one.calls("eth_estimateGas") + one.calls("eth_feeHistory"), 0, "no call to the node");
    assert_eq!(gauge(&worker, "gapless_rpc_node_healthy", one.url()).await, 0.0);
    assert!(!worker.log().contains("chain halted"));

    one.point_at(stack.anvil().url());
    wait_health(&worker, one.url(), true).await;
    confirm(&stack, "matching", to, 1).await;
    wait_received(&one, two.sent().last().unwrap()).await;
    assert_eq!(stack.anvil().balance(to).await, 4.into());
    assert_eq!(other.head().await, 40, "the other chain got nothing");
    stack.finish().await;
}

/// Scenario 37. The one in use becomes another chain.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_turns_into_another_chain_is_left_for_the_right_one() {
    let stack = stack().start().await;
    stack.start_api().await;
    let (one, two, worker) = two_urls(&stack).await;
    let to = Address::repeat_byte(0xb5);
    confirm(&stack, "before", to, 2).await;
    let other = Node::start(99, Mining::Instant, &stack.dir().join("other.log")).await;
    one.point_at(other.url());
    wait_health(&worker, one.url(), false).await;
    let sent = one.sent().len();
    confirm(&stack, "after", to, 2).await;
    assert_eq!(one.sent().len(), sent);
    assert_eq!(worker.readiness().await.0, 200);
    assert!(two.sent().len() >= 4);
    assert_eq!(stack.anvil().balance(to).await, 4.into());
    assert_eq!(other.head().await, 0, "the other chain got nothing");
    stack.finish().await;
}

/// Scenario 37. Both URLs become another chain: only then the chain halts, until one is correct again.
#[tokio::test(flavor = "multi_thread")]
async fn the_chain_halts_when_no_node_serves_it() {
    let stack = stack().start().await;
    stack.start_api().await;
    let (one, two, worker) = two_urls(&stack).await;
    let to = Address::repeat_byte(0xb6);
    confirm(&stack, "before", to, 1).await;
    let other = Node::start(99, Mining::Instant, &stack.dir().join("other.log")).await;
    one.point_at(other.url());
    two.point_at(other.url());
    let line = worker.wait_for_log("chain halted: nothing is sent").await;
    assert!(line.contains("the node serves chain 99"), "{line}");
    let (sent, waiting) =
        (two.sent().len(), stack.create(stack.submitter(0), "halted", &payload(to, 1)).await);
    worker.wait_for_log("lane waits for its chain").await;
    two.point_at(stack.anvil().url());
    stack.wait_for(waiting, TxState::Confirmed).await;
    assert!(two.sent().len() > sent);
    assert_eq!(worker.readiness().await.0, 200);
    assert_eq!(other.head().await, 0, "the other chain got nothing");
    stack.finish().await;
}

/// An unreachable URL, in either position.
#[tokio::test(flavor = "multi_thread")]
async fn a_dead_url_costs_nothing_but_a_gauge() {
    let stack = stack().start().await;
    stack.start_api().await;
    let alive = Proxy::start(stack.anvil().url()).await;
    let dead = Proxy::start(stack.anvil().url()).await.url().to_owned();
    let worker = stack.worker().rpc(&[&dead, alive.url(), &dead]).start().await;
    let to = Address::repeat_byte(0xb7);
    confirm(&stack, "one", to, 3).await;
    assert_eq!(worker.readiness().await.0, 200);
    wait_health(&worker, &dead, false).await;
    assert_eq!(gauge(&worker, "gapless_rpc_node_healthy", alive.url()).await, 1.0);
    assert_eq!(stack.anvil().balance(to).await, 3.into());
    stack.finish().await;
}

/// Both URLs come and go in turn; the available one is used.
#[tokio::test(flavor = "multi_thread")]
async fn nodes_that_flap_lose_and_repeat_nothing() {
    let stack = stack().window(4).set("resubmit.interval", "500ms").set("rpc.timeout", "1s").start().await;
    stack.start_api().await;
    let (one, two, _worker) = two_urls(&stack).await;
    let (submitter, to) = (stack.submitter(0), Address::repeat_byte(0xb8));
    let mut tx_ids = Vec::new();
    for n in 0..8 {
        let (away, here) = if n % 2 == 0 { (&one, &two) } else { (&two, &one) };
        here.clear();
        away.always("*", if n % 3 == 0 { Fault::Status(502, "away".into()) } else { Fault::Close });
        tx_ids.push(stack.create(submitter, &format!("r{n}"), &payload(to, 1)).await);
        stack.wait_for(tx_ids[n], TxState::Confirmed).await;
    }
    one.clear();
    two.clear();
    assert_eq!(stack.anvil().balance(to).await, 8.into());
    let mined = stack.anvil().mined_from(submitter.address()).await;
    let nonces: Vec<_> = mined.iter().map(|tx| tx["nonce"].clone()).collect();
    assert_eq!(nonces, (0..8).map(|n| json!(format!("{n:#x}"))).collect::<Vec<_>>());
    stack.finish().await;
}

/// `rpc.broadcast = "first"`.
#[tokio::test(flavor = "multi_thread")]
async fn only_the_first_node_is_told_where_the_configuration_says_so() {
    let stack = stack().set("rpc.broadcast", "first").start().await;
    stack.start_api().await;
    let (one, two, _worker) = two_urls(&stack).await;
    let to = Address::repeat_byte(0xb9);
    confirm(&stack, "one", to, 2).await;
    assert_eq!((one.sent().len(), two.sent().len()), (2, 0));
    stack.finish().await;
}
