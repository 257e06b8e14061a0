//! Confirmation depth, receipts, and reorgs.

use gapless_testkit::{Address, Fault, Mining, StackBuilder, TxState, eventually, payload};
use serde_json::{Value, json};

use crate::stack;

/// Manual mining, three confirmations, and events in the log.
fn slow_chain() -> StackBuilder {
    stack()
        .proxied()
        .confirmations(3)
        .mining(Mining::Manual)
        .set("resubmit.interval", "1s")
        .set("events.mode", "log")
}

fn times(events: &[String], name: &str) -> usize {
    events.iter().filter(|event| *event == name).count()
}

/// Scenario 47.
#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_dropped_by_a_reorg_is_mined_again_without_a_gap() {
    let stack = slow_chain().up().await;
    let (submitter, to) = (stack.submitter(0), Address::repeat_byte(0xbb));
    let first = stack.create(submitter, "first", &payload(to, 1)).await;
    let second = stack.create(submitter, "second", &payload(to, 1)).await;
    stack.wait_for(first, TxState::Submitted).await;
    stack.anvil().mine(2).await;
    let tracked = stack.wait_for(first, TxState::Tracking).await;
    stack.anvil().reorg(2).await;
    stack.wait_for(first, TxState::Submitted).await;
    assert_eq!(stack.row(first).await.block_number, None, "its block is gone");
    assert_eq!(stack.row(second).await.state, TxState::Queued, "the window is still full");
    stack.wait_pending(1).await;
    stack.anvil().mine(3).await;
    let row = stack.wait_for(first, TxState::Confirmed).await;
    assert_eq!((row.nonce, row.tx_hash), (tracked.nonce, tracked.tx_hash), "the same bytes");
    assert_eq!(stack.attempts(first).await.len(), 1);
    stack.wait_for(second, TxState::Submitted).await;
    stack.anvil().mine(3).await;
    let row = stack.wait_for(second, TxState::Confirmed).await;
    assert_eq!(row.nonce, Some(1));
    assert_eq!(stack.anvil().balance(to).await, 2.into());

    let events = stack.wait_for_event(first, "tx.confirmed").await;
    assert_eq!((times(&events, "tx.reorged"), times(&events, "tx.confirmed")), (1, 1), "{events:?}");
    assert_eq!(times(&stack.wait_for_event(second, "tx.confirmed").await, "tx.reorged"), 0);
    assert!(stack.workers()[0].metric("gapless_confirmations_new_fork_total", &[]).await >= 1.0);
    stack.finish().await;
}

/// Scenario 47. A larger window: all transactions of the reorged blocks are resent, in order.
#[tokio::test(flavor = "multi_thread")]
async fn a_window_dropped_by_a_reorg_is_mined_again_in_its_order() {
    let stack = slow_chain().window(4).up().await;
    let (submitter, to) = (stack.submitter(0), Address::repeat_byte(0xbc));
    let mut tx_ids = Vec::new();
    for request in ["a", "b", "c", "d"] {
        tx_ids.push(stack.create(submitter, request, &payload(to, 1)).await);
    }
    stack.wait_pending(4).await;
    stack.anvil().mine(1).await;
    for tx_id in &tx_ids {
        stack.wait_for(*tx_id, TxState::Tracking).await;
    }
    stack.anvil().reorg(1).await;
    stack.wait_pending(4).await;
    stack.anvil().mine(3).await;
    stack.wait_confirmed(&tx_ids).await;
    let nonces: Vec<Option<u64>> = stack.rows(submitter).await.iter().map(|row| row.nonce).collect();
    assert_eq!(nonces, [0, 1, 2, 3].map(Some));
    assert_eq!(stack.anvil().balance(to).await, 4.into());
    let mut sent = stack.proxy().sent();
    sent.sort();
    sent.dedup();
    assert_eq!(sent.len(), 4, "one set of bytes for each");
    stack.finish().await;
}

/// Scenario 46. The other branch contains it too, one block later.
#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_in_a_sibling_block_is_confirmed_once_and_there() {
    let stack = slow_chain().up().await;
    let (submitter, to) = (stack.submitter(0), Address::repeat_byte(0xbd));
    let tx_id = stack.create(submitter, "moved", &payload(to, 1)).await;
    stack.wait_for(tx_id, TxState::Submitted).await;
    stack.anvil().mine(2).await;
    let before = stack.wait_for(tx_id, TxState::Tracking).await;
    let raw = stack.proxy().sent().remove(0);
    stack.anvil().rpc("anvil_reorg", json!([2, [[raw, 1]]])).await;
    let moved = before.block_number.unwrap() + 1;
    eventually("the receipt is of the other block", async || {
        let row = stack.row(tx_id).await;
        if row.block_number == Some(moved) { Ok(()) } else { Err(row) }
    })
    .await;
    stack.anvil().mine(2).await;
    let row = stack.wait_for(tx_id, TxState::Confirmed).await;
    assert_eq!((row.tx_hash, row.block_number), (before.tx_hash, Some(moved)));
    let receipt = stack.anvil().receipt(row.tx_hash.unwrap()).await.unwrap();
    let seen = stack.get(tx_id).await;
    assert_eq!(seen["receipt"]["blockHash"], receipt["blockHash"], "{seen}");
    let events = stack.wait_for_event(tx_id, "tx.confirmed").await;
    assert_eq!((times(&events, "tx.confirmed"), times(&events, "tx.failed")), (1, 0), "{events:?}");
    assert!(times(&events, "tx.reorged") >= 1, "{events:?}");
    assert_eq!(stack.anvil().balance(to).await, 1.into());
    stack.finish().await;
}

/// Scenario 48. No worker was running; the stored receipt is of a block that was reorged.
#[tokio::test(flavor = "multi_thread")]
async fn a_reorg_while_every_worker_is_down_is_noticed_by_the_next_one() {
    let stack = slow_chain().short_lease().up().await;
    let (submitter, to) = (stack.submitter(0), Address::repeat_byte(0xbe));
    let tx_id = stack.create(submitter, "unwatched", &payload(to, 1)).await;
    stack.wait_for(tx_id, TxState::Submitted).await;
    stack.anvil().mine(1).await;
    let tracked = stack.wait_for(tx_id, TxState::Tracking).await;
    stack.workers()[0].kill9();
    stack.anvil().reorg(1).await;
    stack.anvil().mine(3).await;
    assert!(stack.anvil().receipt(tracked.tx_hash.unwrap()).await.is_none(), "the reorg removed it");
    stack.start_worker().await;
    stack.wait_pending(1).await;
    stack.anvil().mine(3).await;
    let row = stack.wait_for(tx_id, TxState::Confirmed).await;
    assert_eq!(row.tx_hash, tracked.tx_hash, "the same bytes");
    assert!(row.block_number > tracked.block_number);
    assert_eq!(times(&stack.wait_for_event(tx_id, "tx.confirmed").await, "tx.reorged"), 1);
    assert_eq!(stack.anvil().balance(to).await, 1.into());
    stack.finish().await;
}

/// Scenario 49, with a small depth: final at the depth, and not one block earlier.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_final_before_its_depth() {
    let stack = slow_chain().confirmations(20).up().await;
    let (submitter, to) = (stack.submitter(0), Address::repeat_byte(0xbf));
    let tx_id = stack.create(submitter, "deep", &payload(to, 1)).await;
    stack.wait_for(tx_id, TxState::Submitted).await;
    stack.anvil().mine(19).await;
    stack.wait_for(tx_id, TxState::Tracking).await;
    eventually("the API counts 19 blocks", async || {
        let seen = stack.get(tx_id).await;
        if seen["confirmations"] == json!(19) { Ok(()) } else { Err(seen) }
    })
    .await;
    assert_eq!(stack.row(tx_id).await.state, TxState::Tracking, "one block is missing");
    stack.anvil().mine(1).await;
    stack.wait_for(tx_id, TxState::Confirmed).await;
    stack.finish().await;
}

/// Code that always reverts with `Error(string)`.
fn reverts_with(reason: &str) -> String {
    assert!(reason.len() <= 32);
    let mut data = hex::decode("08c379a0").unwrap();
    data.extend([0; 31]);
    data.push(32);
    data.extend([0; 31]);
    data.push(reason.len() as u8);
    data.extend(reason.as_bytes());
    data.resize(4 + 3 * 32, 0);
    // PUSH1 length, DUP1, PUSH1 offset of the data, PUSH1 0, CODECOPY, PUSH1 0, REVERT, data.
    let mut code = vec![0x60, data.len() as u8, 0x80, 0x60, 12, 0x60, 0, 0x39, 0x60, 0, 0xfd, 0xfe];
    code.extend(data);
    format!("0x{}", hex::encode(code))
}

/// A call that is not estimated, so that it fails on chain.
fn blind_call(to: Address) -> Value {
    json!({ "to": format!("{to:#x}"), "value": "0", "gasLimit": "100000" })
}

/// Scenario 50.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_reverts_on_chain_has_failed_with_the_reason_and_the_next_goes_on() {
    let stack = stack().up().await;
    let (submitter, contract, to) =
        (stack.submitter(0), Address::repeat_byte(0xc0), Address::repeat_byte(0xc1));
    stack.anvil().set_code(contract, &reverts_with("not on a Sunday")).await;
    let doomed = stack.create(submitter, "doomed", &blind_call(contract)).await;
    let next = stack.create(submitter, "next", &payload(to, 1)).await;
    let row = stack.wait_for(doomed, TxState::Failed).await;
    assert_eq!((row.nonce, row.sub_state.as_deref()), (Some(0), Some("reverted")));
    let reason = row.last_error.unwrap();
    assert!(reason.contains("not on a Sunday"), "{reason}");
    let seen = stack.get(doomed).await;
    assert_eq!(seen["state"], "FAILED");
    assert!(seen.to_string().contains("not on a Sunday"), "{seen}");
    let row = stack.wait_for(next, TxState::Confirmed).await;
    assert_eq!(row.nonce, Some(1), "the reverted call used its nonce");
    assert_eq!(stack.anvil().balance(to).await, 1.into());
    stack.finish().await;
}

/// Scenario 51. No block follows the one that contains it.
#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_mined_while_no_worker_ran_is_noticed_on_an_idle_chain() {
    let stack = stack().short_lease().start().await;
    stack.start_api().await;
    let doomed = stack.worker().failpoint("sent").start().await;
    let (submitter, to) = (stack.submitter(0), Address::repeat_byte(0xc2));
    let tx_id = stack.create(submitter, "unseen", &payload(to, 1)).await;
    doomed.wait_exit().await;
    let head = stack.anvil().head().await;
    assert_eq!(head, 1, "it was mined");
    assert_eq!(stack.row(tx_id).await.state, TxState::InFlight, "not noticed yet");
    stack.start_worker().await;
    stack.wait_for(tx_id, TxState::Confirmed).await;
    assert_eq!(stack.anvil().head().await, head, "no new block");
    assert_eq!(stack.anvil().balance(to).await, 1.into());
    stack.finish().await;
}

/// Scenario 51. The lookup that would have found it fails, and no block and no timer triggers another one.
#[tokio::test(flavor = "multi_thread")]
async fn a_look_up_that_fails_after_a_claim_is_repeated_and_not_left_to_the_resubmit_timer() {
    let stack = stack().short_lease().proxied().mining(Mining::Manual).set("resubmit.interval", "1h");
    let stack = stack.up().await;
    let (submitter, to) = (stack.submitter(0), Address::repeat_byte(0xc4));
    let tx_id = stack.create(submitter, "unseen", &payload(to, 1)).await;
    stack.wait_for(tx_id, TxState::Submitted).await;
    stack.workers()[0].kill9();
    stack.anvil().mine(1).await;
    stack.proxy().next(2, "eth_getTransactionReceipt", Fault::error("header not found"));
    stack.start_worker().await;
    stack.wait_for(tx_id, TxState::Confirmed).await;
    assert_eq!(stack.proxy().rules_left(), 0, "it failed as it was meant to");
    assert_eq!(stack.anvil().head().await, 1, "no new block");
    stack.finish().await;
}

/// The same for a watcher that is too far behind to walk block by block: it looks up everything, and retries until it
/// succeeds.
#[tokio::test(flavor = "multi_thread")]
async fn a_look_up_that_fails_after_a_leap_of_the_chain_is_repeated() {
    let stack = stack().proxied().mining(Mining::Manual).set("resubmit.interval", "1h").up().await;
    let (submitter, to) = (stack.submitter(0), Address::repeat_byte(0xc5));
    let tx_id = stack.create(submitter, "leapt-over", &payload(to, 1)).await;
    stack.wait_for(tx_id, TxState::Submitted).await;
    stack.proxy().freeze_at(0);
    stack.anvil().mine(200).await;
    stack.proxy().next(2, "eth_getTransactionReceipt", Fault::error("header not found"));
    stack.proxy().thaw();
    stack.wait_for(tx_id, TxState::Confirmed).await;
    assert_eq!(stack.proxy().rules_left(), 0, "it failed as it was meant to");
    stack.finish().await;
}

/// STUCK is an alarm, not an end.
#[tokio::test(flavor = "multi_thread")]
async fn an_unmined_transaction_is_called_stuck_and_leaves_that_by_itself() {
    let stack = slow_chain().set("stuck.after", "1s").set("resubmit.interval", "300ms").up().await;
    let (submitter, to) = (stack.submitter(0), Address::repeat_byte(0xc3));
    let tx_id = stack.create(submitter, "slow", &payload(to, 1)).await;
    let stuck = stack.wait_for(tx_id, TxState::Stuck).await;
    assert_eq!(stuck.nonce, Some(0));
    stack.wait_for_event(tx_id, "tx.stuck").await;
    stack.anvil().drop_all().await;
    // Work continues: the same bytes are resent.
    stack.wait_pending(1).await;
    stack.anvil().mine(3).await;
    let row = stack.wait_for(tx_id, TxState::Confirmed).await;
    assert_eq!(row.tx_hash, stuck.tx_hash);
    let events = stack.wait_for_event(tx_id, "tx.confirmed").await;
    assert_eq!((times(&events, "tx.stuck"), times(&events, "tx.confirmed")), (1, 1), "{events:?}");
    stack.finish().await;
}
