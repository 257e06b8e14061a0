//! Conditions that must never block a submitter permanently, or other submitters at all.

use gapless_testkit::{Address, Mining, TxState, payload};
use serde_json::json;

use crate::stack;

/// Scenarios 52 and 53: external transactions used the nonce of an open intent and the next one while no worker ran,
/// so only the transaction count shows it.
#[tokio::test(flavor = "multi_thread")]
async fn an_intent_overtaken_by_two_external_transactions_while_no_worker_ran_has_its_effect_once_after_adoption()
 {
    let stack = stack().mining(Mining::Manual).start().await;
    stack.start_api().await;
    let (submitter, to) = (stack.submitter(0), Address::repeat_byte(0xd1));
    let worker = stack.start_worker().await;
    let tx_id = stack.create(submitter, "overtaken", &payload(to, 7)).await;
    let row = stack.wait_for(tx_id, TxState::Submitted).await;
    worker.kill9();
    stack.anvil().drop_transaction(row.tx_hash.unwrap()).await;
    for nonce in [0, 1] {
        submitter.spend_outside(stack.anvil(), Some(nonce)).await;
    }
    stack.anvil().mine(1).await;
    assert_eq!(stack.anvil().count(submitter.address(), "latest").await, 2);

    stack.start_worker().await;
    stack.wait_protected(submitter).await;
    stack.wait_for(tx_id, TxState::Protect).await;
    let answer = stack.submitter_action(submitter, "adopt", "external use is known").await;
    assert_eq!(answer.status, 200, "{answer:?}");
    stack.anvil().set_automine(true).await;
    stack.anvil().mine(1).await;
    let row = stack.wait_for(tx_id, TxState::Confirmed).await;
    assert_eq!(row.nonce, Some(2));
    assert_eq!(stack.anvil().balance(to).await, 7.into());
    stack.finish().await;
}

/// A gas limit above the block gas limit would be rejected after the nonce was assigned, and block the sequence
/// forever.
#[tokio::test(flavor = "multi_thread")]
async fn a_gas_limit_that_can_never_be_mined_costs_no_nonce() {
    let stack = stack().up().await;
    let (submitter, to) = (stack.submitter(0), Address::repeat_byte(0xd2));
    let with_gas = |limit: &str| json!({ "to": format!("{to:#x}"), "value": "1", "gasLimit": limit });
    let answer = stack.post(submitter, "too-little", &with_gas("20999")).await;
    assert_eq!((answer.status, answer.code()), (422, "invalid_payload"), "{answer:?}");
    let too_much = stack.create(submitter, "too-much", &with_gas("18000000000000000000")).await;
    let row = stack.wait_for(too_much, TxState::Failed).await;
    assert_eq!((row.nonce, row.sub_state.as_deref()), (None, Some("invalid")), "{row:?}");
    let next = stack.create(submitter, "next", &payload(to, 1)).await;
    assert_eq!(stack.wait_for(next, TxState::Confirmed).await.nonce, Some(0));
    stack.finish().await;
}

/// Scenario 23, for reads: a row that this version cannot read only blocks its own lane.
#[tokio::test(flavor = "multi_thread")]
async fn a_queued_row_that_cannot_be_read_parks_its_lane_and_no_other() {
    let stack = stack().submitters(4).start().await;
    stack.start_api().await;
    // Announces the submitters, and stops before there is work.
    stack.start_worker().await.stop_sigterm().await;
    let to = Address::repeat_byte(0xd3);
    let mut tx_ids = Vec::new();
    for submitter in stack.submitters() {
        tx_ids.push(stack.create(submitter, "one", &payload(to, 1)).await);
    }
    let spoiled = tx_ids.remove(0);
    stack.sql("UPDATE managed_tx SET payload = payload || '{\"from\": \"the future\"}' WHERE seq = 1").await;
    let worker = stack.start_worker().await;
    stack.wait_confirmed(&tx_ids).await;
    worker.wait_for_log("lane parked").await;
    assert_eq!(stack.row(spoiled).await.state, TxState::Queued);
    stack.sql("UPDATE managed_tx SET payload = payload - 'from' WHERE seq = 1").await;
    stack.wait_for(spoiled, TxState::Confirmed).await;
    stack.finish().await;
}
