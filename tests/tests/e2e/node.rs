//! Nodes that lose responses, return invalid data, lag, lose their mempool, restart, disappear, or turn out to be
//! another chain.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use gapless_testkit::{Address, Fault, Mining, Node, Proxy, Stack, TxState, eventually, payload};
use serde_json::{Value, json};

use crate::stack;

const SEND: &str = "eth_sendRawTransaction";

/// Waits until at least `count` sends were tried.
async fn wait_sends(proxy: &Proxy, count: usize) {
    eventually(&format!("{count} sends"), async || {
        let sent = proxy.sent().len();
        if sent >= count { Ok(()) } else { Err(sent) }
    })
    .await;
}

/// All sends had the same bytes, and there were at least `times`.
fn assert_same_bytes(sent: &[String], times: usize) {
    assert!(sent.len() >= times, "sent {} times only", sent.len());
    assert!(sent.iter().all(|raw| *raw == sent[0]), "other bytes: {sent:#?}");
}

/// Scenario 30.
#[tokio::test(flavor = "multi_thread")]
async fn a_send_whose_answer_was_lost_is_recognised_as_ours() {
    let stack = stack().proxied().set("resubmit.interval", "1s").up().await;
    stack.proxy().next(1, SEND, Fault::DropAnswer);
    let to = Address::repeat_byte(0x88);
    let tx_id = stack.create(stack.submitter(0), "lost-answer", &payload(to, 7)).await;
    stack.wait_for(tx_id, TxState::Confirmed).await;
    assert_eq!(stack.proxy().rules_left(), 0, "the answer was lost");
    assert_eq!(stack.attempts(tx_id).await.len(), 1);
    assert_same_bytes(&stack.proxy().sent(), 1);
    assert_eq!(stack.anvil().balance(to).await, 7.into());
    stack.finish().await;
}

/// Scenario 30. No block triggers the worker: it has to poll, and the node already has the transaction.
#[tokio::test(flavor = "multi_thread")]
async fn a_send_whose_answer_was_lost_is_already_known_when_it_goes_out_again() {
    let stack = stack().proxied().mining(Mining::Manual).up().await;
    stack.proxy().next(1, SEND, Fault::DropAnswer);
    let to = Address::repeat_byte(0x89);
    let tx_id = stack.create(stack.submitter(0), "lost-answer", &payload(to, 7)).await;
    stack.wait_for(tx_id, TxState::Submitted).await;
    assert_same_bytes(&stack.proxy().sent(), 2);
    assert_eq!(stack.anvil().pending().await, 1);
    stack.anvil().mine(1).await;
    stack.wait_for(tx_id, TxState::Confirmed).await;
    assert_eq!(stack.anvil().balance(to).await, 7.into());
    stack.finish().await;
}

/// Faults between worker and node, and whether the node gets the call nevertheless.
fn faults() -> Vec<(Fault, bool)> {
    vec![
        (Fault::Hang, false),
        (Fault::Status(429, "slow down".into()), false),
        (Fault::Status(500, "oops".into()), false),
        (Fault::Close, false),
        (Fault::Html("<html>502 Bad Gateway</html>".into()), false),
        (Fault::Truncate, true),
        (Fault::WrongId, true),
        (Fault::DropAnswer, true),
        // Longer than the worker's timeout.
        (Fault::Delay(Duration::from_secs(2)), true),
        (Fault::Corrupt, true),
        (Fault::Twice, true),
    ]
}

/// Scenario 31. Without batches, so that every fault affects one call.
#[tokio::test(flavor = "multi_thread")]
async fn whatever_a_node_answers_to_a_send_the_same_bytes_go_out_again() {
    let mut faults = faults();
    // The response claims another transaction hash. In a lookup a wrong digit could not be detected.
    faults.push((Fault::Flip, true));
    let stack = stack()
        .proxied()
        .submitters(faults.len())
        .set("rpc.timeout", "500ms")
        .set("rpc.max_batch", 1)
        .up()
        .await;
    for (fault, _) in &faults {
        stack.proxy().next(1, SEND, fault.clone());
    }
    let to = Address::repeat_byte(0x8a);
    let mut tx_ids = Vec::new();
    for submitter in stack.submitters() {
        tx_ids.push(stack.create(submitter, "faulty", &payload(to, 1)).await);
    }
    stack.wait_confirmed(&tx_ids).await;
    assert_eq!(stack.proxy().rules_left(), 0, "every fault was met");

    let mut times: BTreeMap<String, usize> = BTreeMap::new();
    stack.proxy().sent().into_iter().for_each(|raw| *times.entry(raw).or_default() += 1);
    assert_eq!(times.len(), tx_ids.len(), "one set of bytes for each intent");
    // Each fault that kept the transaction from the node cost one more send, of some intent. The others may be
    // mined before they are due again.
    let unheard = faults.iter().filter(|(_, heard)| !heard).count();
    assert!(times.values().map(|times| times - 1).sum::<usize>() >= unheard, "{times:?}");
    for tx_id in tx_ids {
        assert_eq!(stack.attempts(tx_id).await.len(), 1);
    }
    assert_eq!(stack.anvil().balance(to).await, faults.len().into());
    stack.finish().await;
}

/// Scenario 31. Every lookup of a transaction meets every fault.
#[tokio::test(flavor = "multi_thread")]
async fn whatever_a_node_answers_to_a_look_up_it_is_asked_again() {
    let faults = faults();
    let stack = stack()
        .proxied()
        .submitters(faults.len())
        .set("rpc.timeout", "500ms")
        .set("rpc.max_batch", 1)
        .up()
        .await;
    let proxy = stack.proxy();
    for (fault, _) in &faults {
        for method in
            ["eth_estimateGas", "eth_getBalance", "eth_getBlockByNumber", "eth_getTransactionReceipt"]
        {
            proxy.next(1, method, fault.clone());
        }
    }
    proxy.next(1, "eth_feeHistory", Fault::Truncate);
    let to = Address::repeat_byte(0x8b);
    let mut tx_ids = Vec::new();
    for submitter in stack.submitters() {
        tx_ids.push(stack.create(submitter, "faulty", &payload(to, 1)).await);
    }
    stack.wait_confirmed(&tx_ids).await;
    eventually("every fault was met", async || match proxy.rules_left() {
        0 => Ok(()),
        left => Err(left),
    })
    .await;
    let distinct: HashSet<String> = proxy.sent().into_iter().collect();
    assert_eq!(distinct.len(), tx_ids.len());
    for tx_id in tx_ids {
        let row = stack.row(tx_id).await;
        assert_eq!((row.nonce, row.last_error), (Some(0), None));
    }
    assert_eq!(stack.anvil().balance(to).await, faults.len().into());
    stack.finish().await;
}

/// Scenario 32. Sends reach a node that has mined it, lookups one that has not: "nonce too low", and an older count.
#[tokio::test(flavor = "multi_thread")]
async fn an_older_count_and_a_missing_receipt_are_no_reason_to_protect() {
    let stack = stack().proxied().mining(Mining::Manual).set("resubmit.interval", "300ms").up().await;
    let (submitter, proxy, to) = (stack.submitter(0), stack.proxy(), Address::repeat_byte(0x8c));
    let tx_id = stack.create(submitter, "lagging", &payload(to, 1)).await;
    stack.wait_for(tx_id, TxState::Submitted).await;
    proxy.freeze_at(stack.anvil().head().await);
    stack.anvil().mine(1).await;
    let before = proxy.sent().len();
    wait_sends(proxy, before + 5).await;
    let (row, cursor) = (stack.row(tx_id).await, stack.cursor(submitter).await.unwrap());
    assert_eq!(row.sub_state.as_deref(), Some("nonce_used"), "the node reported it: {row:?}");
    assert_eq!((cursor.state.as_str(), cursor.protect_reason), ("IN_FLIGHT", None));
    proxy.thaw();
    stack.wait_for(tx_id, TxState::Confirmed).await;
    assert_same_bytes(&proxy.sent(), 6);
    assert!(!stack.workers()[0].log().contains("PROTECT"), "no false alarm");
    stack.finish().await;
}

/// Scenario 32. A block contains the transaction, a node without receipts shows none, and the nonce is used.
#[tokio::test(flavor = "multi_thread")]
async fn a_receipt_that_is_missing_while_a_block_shows_the_transaction_is_waited_for() {
    let stack = stack().proxied().set("resubmit.interval", "300ms").up().await;
    let (submitter, proxy, to) = (stack.submitter(0), stack.proxy(), Address::repeat_byte(0x8e));
    // Neither by its hash nor with its block.
    for method in ["eth_getTransactionReceipt", "eth_getBlockReceipts"] {
        proxy.always(method, Fault::Result(Value::Null));
    }
    let tx_id = stack.create(submitter, "shown", &payload(to, 1)).await;
    wait_sends(proxy, 6).await;
    let cursor = stack.cursor(submitter).await.unwrap();
    assert_eq!((cursor.state.as_str(), cursor.protect_reason), ("IN_FLIGHT", None));
    proxy.clear();
    stack.wait_for(tx_id, TxState::Confirmed).await;
    assert_same_bytes(&proxy.sent(), 6);
    assert!(!stack.workers()[0].log().contains("PROTECT"), "no false alarm");
    assert_eq!(stack.anvil().balance(to).await, 1.into());
    stack.finish().await;
}

/// Scenario 32. The receipt was seen; then a lagging node responds.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_falls_behind_the_receipt_is_no_reorg() {
    let stack = stack()
        .proxied()
        .confirmations(4)
        .mining(Mining::Manual)
        .set("resubmit.interval", "300ms")
        .set("confirmations.stale_receipt_timeout", "300ms")
        .set("events.mode", "log")
        .up()
        .await;
    let (submitter, proxy, to) = (stack.submitter(0), stack.proxy(), Address::repeat_byte(0x8d));
    let tx_id = stack.create(submitter, "lagging", &payload(to, 1)).await;
    stack.wait_for(tx_id, TxState::Submitted).await;
    stack.anvil().mine(2).await;
    let tracked = stack.wait_for(tx_id, TxState::Tracking).await;
    proxy.freeze_at(tracked.block_number.unwrap() - 1);
    let before = proxy.calls("eth_getTransactionReceipt");
    eventually("the receipt was asked for a few times, in vain", async || {
        let asked = proxy.calls("eth_getTransactionReceipt") - before;
        if asked >= 3 { Ok(()) } else { Err(asked) }
    })
    .await;
    assert_eq!(stack.row(tx_id).await.state, TxState::Tracking);
    stack.anvil().mine(2).await;
    proxy.thaw();
    let row = stack.wait_for(tx_id, TxState::Confirmed).await;
    assert_eq!(row.block_number, tracked.block_number);
    let worker = &stack.workers()[0];
    assert!(worker.events().iter().all(|event| event["event"] != "tx.reorged"), "{:#?}", worker.events());
    assert_eq!(worker.metric("gapless_confirmations_new_fork_total", &[]).await, 0.0);
    assert_same_bytes(&proxy.sent(), 1);
    stack.finish().await;
}

/// Scenario 35.
#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_evicted_from_the_mempool_is_sent_again_as_it_was() {
    let stack = stack().proxied().mining(Mining::Manual).set("resubmit.interval", "1s").up().await;
    let to = Address::repeat_byte(0x99);
    let tx_id = stack.create(stack.submitter(0), "evicted", &payload(to, 1)).await;
    let row = stack.wait_for(tx_id, TxState::Submitted).await;
    stack.anvil().drop_transaction(row.tx_hash.unwrap()).await;
    stack.wait_pending(1).await;
    stack.anvil().mine(1).await;
    stack.wait_for(tx_id, TxState::Confirmed).await;
    assert_same_bytes(&stack.proxy().sent(), 2);
    assert_eq!(stack.anvil().balance(to).await, 1.into());
    stack.finish().await;
}

/// Scenario 36.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_restarts_with_an_empty_mempool_gets_the_same_bytes_again() {
    let stack = stack().window(2).proxied().mining(Mining::Manual).set("resubmit.interval", "1s").up().await;
    let (submitter, to) = (stack.submitter(0), Address::repeat_byte(0x9a));
    let first = stack.create(submitter, "first", &payload(to, 1)).await;
    let second = stack.create(submitter, "second", &payload(to, 1)).await;
    stack.wait_for(first, TxState::Submitted).await;
    stack.wait_for(second, TxState::Submitted).await;
    stack.anvil().restart().await;
    stack.wait_pending(2).await;
    stack.anvil().mine(1).await;
    stack.wait_confirmed(&[first, second]).await;
    let distinct: HashSet<String> = stack.proxy().sent().into_iter().collect();
    assert_eq!(distinct.len(), 2, "two intents, one set of bytes each");
    assert_eq!(stack.anvil().balance(to).await, 2.into());
    stack.finish().await;
}

/// Waits until `/readyz` of the worker fails with `reason`.
async fn wait_unready(stack: &Stack, reason: &str) {
    let worker = stack.workers().remove(0);
    eventually(&format!("/readyz counts `{reason}`"), async || {
        let (status, body) = worker.readiness().await;
        if status == 503 && body["reasons"][reason] == 1 { Ok(()) } else { Err((status, body)) }
    })
    .await;
}

async fn wait_ready(stack: &Stack) {
    let worker = stack.workers().remove(0);
    eventually("/readyz is content", async || match worker.readiness().await {
        (200, _) => Ok(()),
        other => Err(other),
    })
    .await;
}

/// A halted chain: requests are accepted, nothing is sent, and it continues when the right chain is back.
async fn halts_and_goes_on(stack: &Stack, problem: &str, mend: impl AsyncFnOnce()) {
    let (submitter, to) = (stack.submitter(0), Address::repeat_byte(0x9b));
    wait_unready(stack, "chain_halted").await;
    let line = stack.workers()[0].wait_for_log("chain halted: nothing is sent").await;
    assert!(line.contains(problem), "{line}");
    let sent = stack.proxy().sent().len();
    let waiting = stack.create(submitter, "while-halted", &payload(to, 1)).await;
    stack.workers()[0].wait_for_log("lane waits for its chain").await;
    let row = stack.row(waiting).await;
    assert_eq!((row.state, row.nonce), (TxState::Queued, None));
    assert_eq!(stack.proxy().sent().len(), sent, "nothing is sent to another chain");
    mend().await;
    wait_ready(stack).await;
    stack.wait_for(waiting, TxState::Confirmed).await;
}

/// Scenario 37.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_of_another_chain_stops_the_worker_until_the_right_one_is_back() {
    let stack = stack().proxied().up().await;
    let first = stack.create(stack.submitter(0), "first", &payload(Address::repeat_byte(1), 1)).await;
    stack.wait_for(first, TxState::Confirmed).await;
    let other = Node::start(99, Mining::Instant, &stack.dir().join("other.log")).await;
    stack.proxy().point_at(other.url());
    halts_and_goes_on(&stack, "the node serves chain 99", async || {
        stack.proxy().point_at(stack.anvil().url())
    })
    .await;
    assert_eq!(other.head().await, 0, "the other chain got nothing");
    stack.finish().await;
}

/// Scenario 37. The same chain id and URL, and another genesis block.
#[tokio::test(flavor = "multi_thread")]
async fn a_chain_that_was_reset_stops_the_worker_until_the_right_one_is_back() {
    let stack = stack().proxied().up().await;
    let first = stack.create(stack.submitter(0), "first", &payload(Address::repeat_byte(1), 1)).await;
    stack.wait_for(first, TxState::Confirmed).await;
    let known = genesis(stack.anvil()).await;
    let reset = Node::start(stack.anvil().chain_id(), Mining::Instant, &stack.dir().join("reset.log")).await;
    // The genesis block contains its start time in seconds.
    while genesis(&reset).await == known {
        reset.reset().await;
    }
    stack.proxy().point_at(reset.url());
    halts_and_goes_on(&stack, "the chain was reset", async || stack.proxy().point_at(stack.anvil().url()))
        .await;
    assert_eq!(reset.head().await, 0, "the new chain got nothing");
    stack.finish().await;
}

async fn genesis(node: &Node) -> Value {
    node.rpc("eth_getBlockByNumber", json!(["0x0", false])).await["hash"].take()
}

/// The node is unreachable when the worker starts.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_waits_for_its_node_and_says_so() {
    let stack = stack().proxied().start().await;
    stack.proxy().always("*", Fault::Close);
    stack.start_api().await;
    stack.start_worker().await;
    wait_unready(&stack, "node").await;
    let to = Address::repeat_byte(0x9c);
    let tx_id = stack.create(stack.submitter(0), "early", &payload(to, 1)).await;
    stack.wait_owned(stack.submitter(0), None).await;
    assert_eq!(stack.row(tx_id).await.state, TxState::Queued);
    stack.proxy().clear();
    wait_ready(&stack).await;
    stack.wait_for(tx_id, TxState::Confirmed).await;
    assert_eq!(stack.anvil().balance(to).await, 1.into());
    stack.finish().await;
}

/// Several URLs: the first is unreachable.
#[tokio::test(flavor = "multi_thread")]
async fn a_dead_first_url_is_passed_over() {
    let stack = stack().start().await;
    stack.start_api().await;
    let dead = Proxy::start(stack.anvil().url()).await.url().to_owned();
    let worker = stack.worker().rpc(&[&dead, stack.anvil().url()]).start().await;
    let to = Address::repeat_byte(0x9d);
    let tx_id = stack.create(stack.submitter(0), "one", &payload(to, 1)).await;
    stack.wait_for(tx_id, TxState::Confirmed).await;
    assert_eq!(worker.readiness().await.0, 200);
    stack.finish().await;
}

/// Several URLs: the one in use fails, later the other one. Open transactions are sent to the remaining one.
#[tokio::test(flavor = "multi_thread")]
async fn a_url_that_dies_in_the_middle_is_left_for_another_and_back() {
    let stack = stack()
        .mining(Mining::Manual)
        .set("resubmit.interval", "500ms")
        .set("rpc.timeout", "500ms")
        .set("rpc.broadcast", "first")
        .start()
        .await;
    stack.start_api().await;
    let (one, two) = (Proxy::start(stack.anvil().url()).await, Proxy::start(stack.anvil().url()).await);
    stack.worker().rpc(&[one.url(), two.url()]).start().await;
    let (submitter, to) = (stack.submitter(0), Address::repeat_byte(0x9e));
    let first = stack.create(submitter, "first", &payload(to, 1)).await;
    stack.wait_for(first, TxState::Submitted).await;
    assert_eq!(two.sent().len(), 0, "the first is used while it answers");
    one.always("*", Fault::Close);
    stack.anvil().drop_all().await;
    stack.wait_pending(1).await;
    stack.anvil().mine(1).await;
    stack.wait_for(first, TxState::Confirmed).await;
    assert_eq!(two.sent()[0], one.sent()[0], "the same bytes");

    one.clear();
    two.always("*", Fault::Hang);
    let second = stack.create(submitter, "second", &payload(to, 1)).await;
    stack.wait_for(second, TxState::Submitted).await;
    stack.anvil().mine(1).await;
    stack.wait_for(second, TxState::Confirmed).await;
    assert_eq!(stack.anvil().balance(to).await, 2.into());
    stack.finish().await;
}

/// A worker without a node for longer than its lease keeps the lease: for that it only needs the database.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_is_away_costs_neither_lease_nor_intent() {
    let stack = stack().short_lease().proxied().up().await;
    let (submitter, to) = (stack.submitter(0), Address::repeat_byte(0x9f));
    let first = stack.create(submitter, "first", &payload(to, 1)).await;
    stack.wait_for(first, TxState::Confirmed).await;
    stack.proxy().always("*", Fault::Close);
    let second = stack.create(submitter, "second", &payload(to, 1)).await;
    let begun = std::time::Instant::now();
    eventually("the lease is held for longer than it lasts", async || {
        let lease = stack.lease(submitter).await.unwrap();
        let held = lease.live && lease.owner.is_some();
        if held && begun.elapsed() > Duration::from_millis(2500) { Ok(()) } else { Err(lease) }
    })
    .await;
    let row = stack.row(second).await;
    assert!(!row.state.is_terminal(), "{row:?}");
    stack.proxy().clear();
    stack.wait_for(second, TxState::Confirmed).await;
    assert_eq!(stack.anvil().balance(to).await, 2.into());
    stack.finish().await;
}
