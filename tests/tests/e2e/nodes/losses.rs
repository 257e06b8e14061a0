//! Losses: responses, workers, mempools, whole chains.

use futures::future::join_all;
use gapless_testkit::{Address, Fault, Mining, Node, NodeKind, NodeOptions, Stack, TxState, payload};

use super::held;
use crate::crash::{target, until_it_dies};
use crate::stack;

const SEND: &str = "eth_sendRawTransaction";

fn assert_same_bytes(stack: &Stack, at_least: usize) {
    let sent = stack.proxy().sent();
    assert!(sent.len() >= at_least, "sent {} times", sent.len());
    assert!(sent.iter().all(|raw| raw == &sent[0]), "other bytes were sent");
}

/// Scenario 30: it is mined before the next lookup.
pub(super) async fn a_send_whose_answer_was_lost_is_recognised_as_ours(kind: NodeKind) {
    let stack = stack().node(kind).proxied().set("resubmit.interval", "1s").up().await;
    stack.proxy().next(1, SEND, Fault::DropAnswer);
    let to = Address::repeat_byte(0x88);
    let tx_id = stack.create(stack.submitter(0), "lost-answer", &payload(to, 7)).await;
    stack.wait_for(tx_id, TxState::Confirmed).await;
    assert_eq!(stack.proxy().rules_left(), 0, "the answer was lost");
    assert_eq!(stack.attempts(tx_id).await.len(), 1);
    assert_same_bytes(&stack, 1);
    assert_eq!(stack.chain(0).balance(to).await, 7.into());
    stack.finish().await;
}

/// Scenario 30: it is in the mempool, and the node reports "already known".
pub(super) async fn a_lost_answer_is_already_known_when_the_bytes_go_out_again(kind: NodeKind) {
    let stack = held(kind).proxied().up().await;
    stack.proxy().next(1, SEND, Fault::DropAnswer);
    let to = Address::repeat_byte(0x89);
    let tx_id = stack.create(stack.submitter(0), "lost-answer", &payload(to, 7)).await;
    stack.wait_for(tx_id, TxState::Submitted).await;
    assert_same_bytes(&stack, 2);
    assert_eq!(stack.chain(0).pending().await, 1);
    stack.chain(0).release().await;
    stack.wait_for(tx_id, TxState::Confirmed).await;
    assert_eq!(stack.chain(0).balance(to).await, 7.into());
    stack.finish().await;
}

/// Scenario 25: one worker per failpoint, with one key, is killed there; then a worker with all keys continues.
pub(super) async fn a_worker_killed_at_any_step_leaves_exactly_one_effect(kind: NodeKind) {
    let points = ["signed", "committed", "sent", "submitted", "included", "tracking", "final"];
    // Interval mining with depth: with instant mining SUBMITTED is never reached, with instant finality TRACKING is
    // not.
    let stack = stack().node(kind).mining(Mining::Interval(2.0)).confirmations(2);
    let stack = stack.short_lease().submitters(points.len());
    let stack = stack.start().await;
    stack.start_api().await;
    let doomed = points.iter().enumerate();
    let doomed =
        join_all(doomed.map(|(index, point)| stack.worker().only_keys(&[index]).failpoint(point).start()))
            .await;
    let mut tx_ids = Vec::new();
    for index in 0..points.len() {
        let mut own = Vec::new();
        for n in 0..2 {
            let transfer = payload(target(index), 1);
            own.push(stack.create(stack.submitter(index), &format!("r{n}"), &transfer).await);
        }
        tx_ids.push(own);
    }
    let died = doomed.iter().zip(tx_ids).enumerate();
    let tx_ids = join_all(died.map(|(index, (worker, own))| until_it_dies(&stack, worker, index, own))).await;
    for (point, worker) in points.iter().zip(&doomed) {
        assert!(worker.log().contains("failpoint: killing"), "killed at {point}");
    }
    stack.start_worker().await;
    for (index, point) in points.iter().enumerate() {
        stack.wait_confirmed(&tx_ids[index]).await;
        for (n, tx_id) in tx_ids[index].iter().enumerate() {
            assert_eq!(stack.row(*tx_id).await.nonce, Some(n as u64), "after {point}");
            assert_eq!(stack.attempts(*tx_id).await.len(), 1, "after {point}: the same bytes");
        }
        let effects = stack.chain(0).balance(target(index)).await;
        assert_eq!(effects, tx_ids[index].len().into(), "after {point}: one effect each");
    }
    stack.finish().await;
}

/// Scenario 28.
pub(super) async fn a_restarted_worker_goes_on_with_what_waits_in_the_mempool(kind: NodeKind) {
    let stack = held(kind).short_lease().proxied().start().await;
    stack.start_api().await;
    let worker = stack.start_worker().await;
    let (submitter, to) = (stack.submitter(0), Address::repeat_byte(0x64));
    let first = stack.create(submitter, "first", &payload(to, 1)).await;
    let second = stack.create(submitter, "second", &payload(to, 1)).await;
    let before = stack.wait_for(first, TxState::Submitted).await;
    worker.kill9();
    stack.chain(0).release().await;
    stack.start_worker().await;
    let after = stack.wait_for(first, TxState::Confirmed).await;
    assert_eq!((after.nonce, after.tx_hash), (before.nonce, before.tx_hash));
    assert!(after.fencing_token > before.fencing_token, "a new fencing token");
    stack.wait_for(second, TxState::Confirmed).await;
    assert_eq!(stack.chain(0).balance(to).await, 2.into());
    stack.finish().await;
}

/// Scenario 35.
pub(super) async fn what_was_evicted_from_the_mempool_is_sent_again_as_it_was(kind: NodeKind) {
    let stack = held(kind).proxied().set("resubmit.interval", "1s").up().await;
    let to = Address::repeat_byte(0x99);
    let tx_id = stack.create(stack.submitter(0), "evicted", &payload(to, 1)).await;
    let row = stack.wait_for(tx_id, TxState::Submitted).await;
    let sent = stack.proxy().sent().len();
    stack.chain(0).drop_transaction(row.tx_hash.unwrap()).await;
    stack.wait_pending(1).await;
    assert_same_bytes(&stack, sent + 1);
    stack.chain(0).release().await;
    stack.wait_for(tx_id, TxState::Confirmed).await;
    assert_eq!(stack.chain(0).balance(to).await, 1.into());
    stack.finish().await;
}

/// Scenario 36.
pub(super) async fn a_node_that_restarts_with_an_empty_mempool_gets_the_same_bytes_again(kind: NodeKind) {
    let stack = held(kind).window(2).proxied().set("resubmit.interval", "1s").up().await;
    let (submitter, to) = (stack.submitter(0), Address::repeat_byte(0x9a));
    let first = stack.create(submitter, "first", &payload(to, 1)).await;
    let second = stack.create(submitter, "second", &payload(to, 1)).await;
    stack.wait_for(first, TxState::Submitted).await;
    stack.wait_for(second, TxState::Submitted).await;
    let sent = stack.proxy().sent().len();
    stack.chain(0).restart().await;
    stack.wait_pending(2).await;
    assert!(stack.proxy().sent().len() >= sent + 2, "the mempool was lost");
    stack.chain(0).release().await;
    stack.wait_confirmed(&[first, second]).await;
    let mut bytes = stack.proxy().sent();
    bytes.sort();
    bytes.dedup();
    assert_eq!(bytes.len(), 2, "two intents, one set of bytes each");
    assert_eq!(stack.chain(0).balance(to).await, 2.into());
    stack.finish().await;
}

/// Scenario 37: Hardhat is in-memory, so its restart is another chain with the same id and URL.
pub(super) async fn a_chain_that_began_anew_stops_the_worker(kind: NodeKind) {
    let stack = stack().node(kind).proxied().up().await;
    let to = Address::repeat_byte(0x9b);
    let first = stack.create(stack.submitter(0), "first", &payload(to, 1)).await;
    stack.wait_for(first, TxState::Confirmed).await;
    let options = NodeOptions::new(stack.chain(0).chain_id(), Mining::Instant);
    let other = Node::start_as(kind, options, &stack.dir().join("other.log")).await;
    stack.proxy().point_at(other.url());
    stack.workers()[0].wait_for_log("chain halted: nothing is sent").await;
    let waits = stack.create(stack.submitter(0), "waits", &payload(to, 1)).await;
    stack.proxy().point_at(stack.chain(0).url());
    stack.wait_for(waits, TxState::Confirmed).await;
    assert_eq!(other.head().await, 0, "the new chain got nothing");
    assert_eq!(stack.chain(0).balance(to).await, 2.into());
    stack.finish().await;
}

/// Scenarios 52 and 53, as far as they depend on the node's messages: the nonce is used, and no transaction of ours
/// is found.
pub(super) async fn a_key_used_outside_is_noticed(kind: NodeKind) {
    let stack = stack().node(kind).start().await;
    let (submitter, to) = (stack.submitter(0), Address::repeat_byte(0x9c));
    stack.start_api().await;
    let worker = stack.worker().failpoint("committed").start().await;
    let tx_id = stack.create(submitter, "overtaken", &payload(to, 7)).await;
    worker.wait_exit().await;
    submitter.make_history(stack.chain(0), 1).await;
    stack.start_worker().await;
    stack.wait_for(tx_id, TxState::Protect).await;
    stack.wait_protected(submitter).await;
    let answer = stack.submitter_action(submitter, "adopt?wait=60s", "external use is known").await;
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(stack.wait_for(tx_id, TxState::Confirmed).await.nonce, Some(1));
    assert_eq!(stack.chain(0).balance(to).await, 7.into(), "once");
    stack.finish().await;
}
