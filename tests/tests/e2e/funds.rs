//! Submitters without funds, and prices set by clients.

use gapless_testkit::{Address, Mining, Stack, TxId, TxRow, TxState, U256, eventually, payload};
use serde_json::json;

use crate::stack;

async fn wait_sub_state(stack: &Stack, tx_id: TxId, sub_state: Option<&str>) -> TxRow {
    eventually(&format!("{tx_id} says {sub_state:?}"), async || {
        let row = stack.row(tx_id).await;
        if row.sub_state.as_deref() == sub_state { Ok(row) } else { Err(row) }
    })
    .await
}

fn ether(count: u64) -> U256 {
    U256::exp10(18) * count
}

/// Scenario 41. Before the nonce: nothing was used, and the order is kept.
#[tokio::test(flavor = "multi_thread")]
async fn a_submitter_without_funds_uses_no_nonce_and_goes_on_once_funded_while_others_work() {
    let stack = stack().proxied().submitters(2).up().await;
    let (poor, rich) = (stack.submitter(0), stack.submitter(1));
    stack.anvil().set_balance(poor.address(), 0).await;
    let to = Address::repeat_byte(0xaa);
    let waiting = stack.create(poor, "poor", &payload(to, 5)).await;
    let behind = stack.create(poor, "behind", &payload(to, 5)).await;
    let row = wait_sub_state(&stack, waiting, Some("waiting_funds")).await;
    assert_eq!((row.state, row.nonce), (TxState::Queued, None), "no nonce is used");
    assert!(row.last_error.is_some(), "with the missing amount");
    let other = stack.create(rich, "rich", &payload(to, 5)).await;
    stack.wait_for(other, TxState::Confirmed).await;
    let sent = stack.proxy().sent().len();
    assert_eq!(sent, 1, "only that of the funded one");
    assert_eq!(stack.row(behind).await.state, TxState::Queued);
    assert!(stack.attempts(waiting).await.is_empty());

    stack.anvil().set_balance(poor.address(), ether(1)).await;
    stack.wait_confirmed(&[waiting, behind]).await;
    assert_eq!((stack.row(waiting).await.nonce, stack.row(behind).await.nonce), (Some(0), Some(1)));
    let row = stack.row(waiting).await;
    assert_eq!((row.sub_state, row.last_error), (None, None), "the error is cleared");
    assert_eq!(stack.anvil().balance(to).await, 15.into());
    stack.finish().await;
}

/// Scenario 41. An unaffordable one waits although some balance is left, and a cheaper one does not overtake it.
#[tokio::test(flavor = "multi_thread")]
async fn a_transfer_of_more_than_there_is_holds_its_lane() {
    let stack = stack().balance(ether(1)).up().await;
    let (submitter, to) = (stack.submitter(0), Address::repeat_byte(0xab));
    let dear = json!({ "to": format!("{to:#x}"), "value": ether(2).to_string() });
    let dear = stack.create(submitter, "dear", &dear).await;
    let cheap = stack.create(submitter, "cheap", &payload(to, 1)).await;
    wait_sub_state(&stack, dear, Some("waiting_funds")).await;
    assert_eq!(stack.anvil().count(submitter.address(), "latest").await, 0);
    stack.anvil().set_balance(submitter.address(), ether(3)).await;
    stack.wait_confirmed(&[dear, cheap]).await;
    assert_eq!((stack.row(dear).await.nonce, stack.row(cheap).await.nonce), (Some(0), Some(1)));
    assert_eq!(stack.anvil().balance(to).await, ether(2) + 1);
    stack.finish().await;
}

/// Scenario 41. After the nonce: the same bytes wait, without another price and without giving up.
#[tokio::test(flavor = "multi_thread")]
async fn funds_that_disappear_after_the_nonce_was_assigned_are_waited_for() {
    let stack =
        stack().proxied().submitters(2).mining(Mining::Manual).set("resubmit.interval", "500ms").up().await;
    let (submitter, other, to) = (stack.submitter(0), stack.submitter(1), Address::repeat_byte(0xac));
    let tx_id = stack.create(submitter, "robbed", &payload(to, 1)).await;
    stack.wait_for(tx_id, TxState::Submitted).await;
    let bytes = stack.proxy().sent().remove(0);
    stack.anvil().set_balance(submitter.address(), 0).await;
    stack.anvil().drop_all().await;
    let row = wait_sub_state(&stack, tx_id, Some("waiting_funds")).await;
    assert_eq!(row.nonce, Some(0));
    let unaffected = stack.create(other, "unaffected", &payload(to, 1)).await;
    stack.wait_for(unaffected, TxState::Submitted).await;
    stack.anvil().mine(1).await;
    stack.wait_for(unaffected, TxState::Confirmed).await;

    stack.anvil().set_balance(submitter.address(), ether(1)).await;
    stack.wait_pending(1).await;
    let row = wait_sub_state(&stack, tx_id, None).await;
    assert!(
        !row.state.is_terminal(),
        "the node took it: nothing to complain of, and nothing is mined: {row:?}"
    );
    stack.anvil().mine(1).await;
    stack.wait_for(tx_id, TxState::Confirmed).await;
    assert_eq!(stack.attempts(tx_id).await.len(), 1, "no bump");
    let mut sent = stack.proxy().sent();
    assert!(sent.iter().filter(|raw| **raw == bytes).count() >= 3, "sent, refused, sent");
    sent.sort();
    sent.dedup();
    assert_eq!(sent.len(), 2, "one set of bytes for each intent");
    assert_eq!(stack.anvil().balance(to).await, 2.into());
    stack.finish().await;
}

/// A cap below the base fee waits without a nonce, regardless of the lane's own price.
#[tokio::test(flavor = "multi_thread")]
async fn a_cap_below_the_base_fee_is_waited_for_and_not_exceeded() {
    let stack = stack().proxied().mining(Mining::Manual).set("resubmit.interval", "500ms").up().await;
    let (submitter, to) = (stack.submitter(0), Address::repeat_byte(0xae));
    let capped = json!({ "to": format!("{to:#x}"), "value": "1", "maxFeePerGas": "1000", "maxPriorityFeePerGas": "1" });
    let tx_id = stack.create(submitter, "capped", &capped).await;
    let row = wait_sub_state(&stack, tx_id, Some("waiting_fee")).await;
    assert_eq!((row.state, row.nonce), (TxState::Queued, None));
    eventually("it is mined once blocks are cheap", async || {
        stack.anvil().rpc("anvil_setNextBlockBaseFeePerGas", json!(["0x1"])).await;
        stack.anvil().mine(1).await;
        let row = stack.row(tx_id).await;
        if row.state == TxState::Confirmed { Ok(()) } else { Err(row) }
    })
    .await;
    let mined = stack.anvil().mined_from(submitter.address()).await;
    let price = |name: &str| U256::from_str_radix(mined[0][name].as_str().unwrap(), 16).unwrap();
    assert_eq!((price("maxFeePerGas"), price("maxPriorityFeePerGas")), (1000.into(), 1.into()));
    assert_eq!(stack.attempts(tx_id).await.len(), 1);
    stack.finish().await;
}
