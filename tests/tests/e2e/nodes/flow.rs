//! From a request to its final state.

use std::time::Duration;

use futures::future::join_all;
use gapless_testkit::{Address, Mining, NodeKind, TxState, payload};
use serde_json::{Value, json};

use super::held;
use crate::stack;

fn number(value: &Value) -> u64 {
    u64::from_str_radix(value.as_str().unwrap().trim_start_matches("0x"), 16).unwrap()
}

/// Scenario 8.
pub(super) async fn a_hundred_creates_at_once_are_a_gapless_sequence(kind: NodeKind) {
    const COUNT: u64 = 100;
    let stack = stack().node(kind).window(16).set("nonce.release_at", "mined").up().await;
    let (submitter, client, to) = (stack.submitter(0), stack.client(), Address::repeat_byte(0x81));
    let transfer = payload(to, 1);
    let posts = (0..COUNT).map(|n| {
        let (client, transfer) = (client.clone(), &transfer);
        async move { client.post(submitter, &format!("r{n}"), transfer).await }
    });
    for answer in join_all(posts).await {
        assert_eq!(answer.status, 202, "{answer:?}");
        stack.record_accepted(&answer);
    }
    stack.wait_all_terminal_within(Duration::from_secs(240)).await;
    let rows = stack.rows(submitter).await;
    assert!(rows.iter().all(|row| row.state == TxState::Confirmed), "{rows:?}");
    let mined = stack.chain(0).mined_from(submitter.address()).await;
    let nonces: Vec<u64> = mined.iter().map(|tx| number(&tx["nonce"])).collect();
    assert_eq!(nonces, (0..COUNT).collect::<Vec<_>>(), "strictly increasing on chain, none missing");
    assert_eq!(stack.chain(0).balance(to).await, COUNT.into());
    stack.finish().await;
}

/// Scenario 9.
pub(super) async fn while_the_first_is_unconfirmed_the_second_has_no_nonce(kind: NodeKind) {
    let stack = held(kind).up().await;
    let (submitter, to) = (stack.submitter(0), Address::repeat_byte(0x91));
    let first = stack.create(submitter, "first", &payload(to, 1)).await;
    let second = stack.create(submitter, "second", &payload(to, 1)).await;
    stack.wait_for(first, TxState::Submitted).await;
    stack.wait_pending(1).await;
    let row = stack.row(second).await;
    assert_eq!((row.state, row.nonce), (TxState::Queued, None));
    assert!(stack.attempts(second).await.is_empty());
    assert_eq!(stack.cursor(submitter).await.map(|cursor| cursor.next), Some(1));
    stack.chain(0).release().await;
    stack.wait_confirmed(&[first, second]).await;
    assert_eq!(stack.row(second).await.nonce, Some(1));
    assert_eq!(stack.chain(0).balance(to).await, 2.into());
    stack.finish().await;
}

/// A contract that reverts with a text, as `require` does.
fn reverts_with(reason: &str) -> String {
    assert!(reason.len() <= 32);
    let text = hex::encode(reason);
    let data = format!("08c379a0{:064x}{:064x}{text:0<64}", 32, reason.len());
    // PUSH1 length, DUP1, PUSH1 offset of the data, PUSH1 0, CODECOPY, PUSH1 0, REVERT, data.
    format!("0x60{:02x}80600b6000396000fd{data}", data.len() / 2)
}

/// Scenario 10.
pub(super) async fn what_would_revert_fails_without_a_nonce_and_with_the_reason(kind: NodeKind) {
    let stack = stack().node(kind).up().await;
    let (submitter, to) = (stack.submitter(0), Address::repeat_byte(0xa1));
    let reasoned = stack.chain(0).deploy(&reverts_with("not on a Sunday")).await;
    let silent = stack.chain(0).deploy("0x60006000fd").await;
    // PUSH1 1, PUSH4 2^28 - 1, MSTORE: more memory than any block has gas for.
    let greedy = stack.chain(0).deploy("0x6001630fffffff5200").await;
    let before = stack.create(submitter, "before", &payload(to, 1)).await;
    let doomed = [
        (stack.create(submitter, "reasoned", &payload(reasoned, 0)).await, "not on a Sunday"),
        (stack.create(submitter, "silent", &payload(silent, 0)).await, "revert"),
        (stack.create(submitter, "greedy", &payload(greedy, 0)).await, "gas"),
    ];
    let after = stack.create(submitter, "after", &payload(to, 1)).await;
    stack.wait_confirmed(&[before, after]).await;
    for (tx_id, reason) in doomed {
        let row = stack.wait_for(tx_id, TxState::Failed).await;
        assert_eq!((row.nonce, row.tx_hash), (None, None), "{row:?}");
        assert!(["would_revert", "invalid"].contains(&row.sub_state.as_deref().unwrap()), "{row:?}");
        assert!(row.last_error.as_deref().is_some_and(|error| error.contains(reason)), "{reason}: {row:?}");
        assert!(stack.attempts(tx_id).await.is_empty());
    }
    assert_eq!(stack.row(after).await.nonce, Some(1), "the nonce that was not used");
    assert_eq!(stack.chain(0).count(submitter.address(), "latest").await, 2);
    stack.finish().await;
}

/// Scenario 50. Hardhat reports it as an error already when it is sent.
pub(super) async fn what_reverts_on_chain_has_failed_with_the_reason(kind: NodeKind) {
    let stack = stack().node(kind).up().await;
    let (submitter, to) = (stack.submitter(0), Address::repeat_byte(0xc1));
    let contract = stack.chain(0).deploy(&reverts_with("not on a Sunday")).await;
    // Not estimated, so that it fails on chain.
    let blind = json!({ "to": format!("{contract:#x}"), "value": "0", "gasLimit": "100000" });
    let doomed = stack.create(submitter, "doomed", &blind).await;
    let next = stack.create(submitter, "next", &payload(to, 1)).await;
    let row = stack.wait_for(doomed, TxState::Failed).await;
    assert_eq!((row.nonce, row.sub_state.as_deref()), (Some(0), Some("reverted")), "{row:?}");
    assert!(row.last_error.as_deref().is_some_and(|error| error.contains("not on a Sunday")), "{row:?}");
    let attempts = stack.attempts(doomed).await;
    assert_eq!(attempts.len(), 1, "nothing else was made for its nonce: {attempts:?}");
    assert_eq!(stack.wait_for(next, TxState::Confirmed).await.nonce, Some(1));
    assert_eq!(stack.chain(0).balance(to).await, 1.into());
    stack.finish().await;
}

pub(super) async fn every_type_of_transaction_is_mined_as_what_it_is(kind: NodeKind) {
    let stack = stack().node(kind).up().await;
    let (submitter, to) = (stack.submitter(0), Address::repeat_byte(0xb1));
    let listed = json!([{ "address": format!("{to:#x}"), "storageKeys": [format!("{:#066x}", 1)] }]);
    let with_list =
        |kind: &str| json!({ "to": format!("{to:#x}"), "value": "1", "type": kind, "accessList": listed });
    let legacy = json!({ "to": format!("{to:#x}"), "value": "1", "type": "legacy" });
    for (name, typed, on_chain) in [
        ("legacy", legacy, "0x0"),
        ("EIP-2930", with_list("legacy"), "0x1"),
        ("EIP-1559", with_list("eip1559"), "0x2"),
    ] {
        let tx_id = stack.create(submitter, name, &typed).await;
        let row = stack.wait_for(tx_id, TxState::Confirmed).await;
        let mined = stack.chain(0).rpc("eth_getTransactionByHash", json!([row.tx_hash])).await;
        assert_eq!(mined["type"], on_chain, "{name}: {mined}");
        let receipt = stack.chain(0).receipt(row.tx_hash.unwrap()).await.unwrap();
        assert_eq!((&receipt["type"], &receipt["status"]), (&json!(on_chain), &json!("0x1")), "{receipt}");
    }
    assert_eq!(stack.chain(0).balance(to).await, 3.into());
    stack.finish().await;
}

/// Scenario 49. Blocks are mined by interval, and the tag follows with a lag.
pub(super) async fn a_finality_tag_of_the_chain_ends_the_waiting(kind: NodeKind) {
    let stack = stack().node(kind).mining(Mining::Interval(1.0));
    let stack = if kind == NodeKind::Anvil { stack.anvil_args(&["--slots-in-an-epoch", "3"]) } else { stack };
    let stack = stack.set("confirmations.required", "finalized").up().await;
    let to = Address::repeat_byte(0xb2);
    let tx_id = stack.create(stack.submitter(0), "final", &payload(to, 1)).await;
    stack.wait_for(tx_id, TxState::Tracking).await;
    // Geth finalises every 32nd block by itself.
    let row = stack.wait_for_within(Duration::from_secs(120), tx_id, TxState::Confirmed).await;
    let tag = stack.chain(0).rpc("eth_getBlockByNumber", json!(["finalized", false])).await;
    assert!(row.block_number.unwrap() <= number(&tag["number"]), "{row:?} {tag}");
    stack.finish().await;
}
