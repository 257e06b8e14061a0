//! Unaffordable replacements are not made; if funds fell after one was made, an older affordable attempt is sent.

use gapless_testkit::{Address, Fault, Mining, Stack, TxId, TxState, U256, eventually, payload};
use serde_json::json;

use crate::stack;

const SEND: &str = "eth_sendRawTransaction";

/// Maximum cost of each attempt of an intent, the oldest first.
async fn costs(stack: &Stack, tx_id: TxId) -> Vec<U256> {
    let costs: Vec<String> = sqlx::query_scalar(
        "SELECT gas_params ->> 'maxCost' FROM tx_attempt WHERE tx_id = $1 ORDER BY ordinal",
    )
    .bind(tx_id.0)
    .fetch_all(stack.db())
    .await
    .unwrap();
    costs.iter().map(|cost| U256::from_str_radix(cost.trim_start_matches("0x"), 16).unwrap()).collect()
}

/// Waits until the transaction shows why it has no higher price.
async fn wait_not_replaced(stack: &Stack, tx_id: TxId, code: &str) {
    eventually(&format!("it says {code}"), async || {
        let (row, shown) = (stack.row(tx_id).await, stack.get(tx_id).await);
        let says = row.sub_state.as_deref() == Some("not_replaced") && shown["error"]["code"] == code;
        if says { Ok(()) } else { Err((row, shown)) }
    })
    .await;
}

/// Scenario 64. A sweep: the balance equals the maximum cost of the first attempt.
#[tokio::test(flavor = "multi_thread")]
async fn a_replacement_that_cannot_be_paid_is_not_made_and_the_request_says_why() {
    let stack = stack().proxied().mining(Mining::Manual).set("resubmit.interval", "10m").up().await;
    let (submitter, to) = (stack.submitter(0), Address::repeat_byte(0x64));
    let tx_id = stack.create(submitter, "sweep", &payload(to, 5)).await;
    stack.wait_for(tx_id, TxState::Submitted).await;
    stack.anvil().set_balance(submitter.address(), costs(&stack, tx_id).await[0]).await;
    let path = format!("/api/v1/tx/{tx_id}/speed-up?wait=60s");
    let refused = stack.client().admin_post(&path, &json!({ "reason": "a customer waits" })).await;
    assert_eq!((refused.status, refused.code()), (409, "action_refused"), "{refused:?}");
    assert!(refused.body.to_string().contains("wei"), "{refused:?}");
    wait_not_replaced(&stack, tx_id, "insufficient_funds").await;
    assert_eq!(stack.attempts(tx_id).await.len(), 1, "nothing was signed");
    assert_eq!(stack.proxy().sent().len(), 1, "and nothing was sent");

    // The control: with enough balance for the increase it is made.
    stack.anvil().set_balance(submitter.address(), U256::exp10(18)).await;
    let made = stack.client().admin_post(&path, &json!({ "reason": "a customer waits" })).await;
    assert_eq!(made.status, 200, "{made:?}");
    let attempts = stack.attempts(tx_id).await;
    assert_eq!(attempts.len(), 2, "stored before the response");
    stack.wait_pooled(attempts[1].tx_hash).await;
    stack.anvil().mine(1).await;
    let row = stack.wait_for(tx_id, TxState::Confirmed).await;
    assert_eq!((row.tx_hash, row.sub_state, row.last_error), (Some(attempts[1].tx_hash), None, None));
    assert_eq!(stack.anvil().balance(to).await, 5.into());
    stack.finish().await;
}

/// Scenario 64, automatic: gas bump makes no unaffordable replacement, reports it, and the first attempt is mined.
#[tokio::test(flavor = "multi_thread")]
async fn gas_bump_makes_nothing_that_cannot_be_paid() {
    let stack = stack().mining(Mining::Manual).set("gasbump.enabled", true).set("gasbump.min_interval", "3s");
    let stack = stack.set("resubmit.interval", "400ms").up().await;
    let (submitter, to) = (stack.submitter(0), Address::repeat_byte(0x65));
    let tx_id = stack.create(submitter, "sweep", &payload(to, 5)).await;
    stack.wait_for(tx_id, TxState::Submitted).await;
    stack.anvil().set_balance(submitter.address(), costs(&stack, tx_id).await[0]).await;
    wait_not_replaced(&stack, tx_id, "insufficient_funds").await;
    let sends = stack.row(tx_id).await.submit_attempts;
    eventually("the same bytes go on", async || {
        let row = stack.row(tx_id).await;
        if row.submit_attempts >= sends + 3 { Ok(()) } else { Err(row) }
    })
    .await;
    wait_not_replaced(&stack, tx_id, "insufficient_funds").await;
    assert_eq!(stack.attempts(tx_id).await.len(), 1);
    stack.anvil().mine(1).await;
    stack.wait_for(tx_id, TxState::Confirmed).await;
    assert_eq!(stack.anvil().balance(to).await, 5.into());
    stack.finish().await;
}

/// An intent whose replacement is stored and was never sent, whose first attempt is not in the mempool, and whose
/// funds cover only that one.
async fn funds_fell(stack: &Stack, to: Address) -> TxId {
    let submitter = stack.submitter(0);
    let tx_id = stack.create(submitter, "sweep", &payload(to, 5)).await;
    stack.wait_for(tx_id, TxState::Submitted).await;
    stack.proxy().always(SEND, Fault::Close);
    let path = format!("/api/v1/tx/{tx_id}/speed-up?wait=60s");
    let made = stack.client().admin_post(&path, &json!({})).await;
    assert_eq!(made.status, 200, "{made:?}");
    stack.wait_attempts(tx_id, 2).await;
    let costs = costs(stack, tx_id).await;
    assert!(costs[1] > costs[0], "{costs:?}");
    stack.anvil().set_balance(submitter.address(), costs[0]).await;
    stack.anvil().drop_all().await;
    tx_id
}

/// Scenario 64: funds fell after the replacement was committed.
#[tokio::test(flavor = "multi_thread")]
async fn where_funds_fell_the_older_bytes_that_can_be_paid_go_out_and_are_mined() {
    let stack = stack().proxied().mining(Mining::Manual).set("resubmit.interval", "500ms").up().await;
    let to = Address::repeat_byte(0x66);
    let tx_id = funds_fell(&stack, to).await;
    stack.proxy().clear();
    let attempts = stack.attempts(tx_id).await;
    stack.wait_pooled(attempts[0].tx_hash).await;
    wait_not_replaced(&stack, tx_id, "insufficient_funds").await;
    let outcomes: Vec<_> =
        stack.attempts(tx_id).await.into_iter().map(|attempt| attempt.last_outcome).collect();
    assert_eq!(outcomes[1].as_deref(), Some("insufficient_funds"), "{outcomes:?}");
    stack.anvil().mine(1).await;
    let row = stack.wait_for(tx_id, TxState::Confirmed).await;
    assert_eq!(row.tx_hash, Some(attempts[0].tx_hash), "the one that can be paid");
    assert_eq!(stack.anvil().balance(to).await, 5.into());
    stack.finish().await;
}

/// The same after a crash: the next owner only has the rows.
#[tokio::test(flavor = "multi_thread")]
async fn the_next_owner_sends_the_older_bytes_as_well() {
    let stack = stack().proxied().short_lease().mining(Mining::Manual).set("resubmit.interval", "500ms");
    let stack = stack.start().await;
    stack.start_api().await;
    let worker = stack.start_worker().await;
    let to = Address::repeat_byte(0x67);
    let tx_id = funds_fell(&stack, to).await;
    worker.kill9();
    stack.proxy().clear();
    stack.start_worker().await;
    stack.wait_pooled(stack.attempts(tx_id).await[0].tx_hash).await;
    stack.anvil().mine(1).await;
    stack.wait_for(tx_id, TxState::Confirmed).await;
    assert_eq!(stack.anvil().balance(to).await, 5.into());
    stack.finish().await;
}

/// A limit of the node: the older price is below it, and no higher one is made.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_above_the_fee_cap_of_the_node_leaves_the_older_bytes_on_their_way() {
    let stack = stack().proxied().mining(Mining::Manual).set("resubmit.interval", "10m").up().await;
    let to = Address::repeat_byte(0x68);
    let tx_id = stack.create(stack.submitter(0), "capped", &payload(to, 5)).await;
    stack.wait_for(tx_id, TxState::Submitted).await;
    stack.anvil().drop_all().await;
    let capped = "tx fee (1.10 ether) exceeds the configured cap (1.00 ether)";
    stack.proxy().next(1, SEND, Fault::error(capped));
    let path = format!("/api/v1/tx/{tx_id}/speed-up?wait=60s");
    let made = stack.client().admin_post(&path, &json!({})).await;
    assert_eq!(made.status, 200, "{made:?}");
    let attempts = stack.wait_attempts(tx_id, 2).await;
    stack.wait_pooled(attempts[0].tx_hash).await;
    wait_not_replaced(&stack, tx_id, "fee_cap_exceeded").await;
    let refused = stack.client().admin_post(&path, &json!({})).await;
    assert_eq!((refused.status, refused.code()), (409, "action_refused"), "{refused:?}");
    assert_eq!(stack.attempts(tx_id).await.len(), 2);
    stack.anvil().mine(1).await;
    stack.wait_for(tx_id, TxState::Confirmed).await;
    assert_eq!(stack.anvil().balance(to).await, 5.into());
    stack.finish().await;
}

/// `rebroadcast` sends every attempt that could still be mined until a node accepts one, whatever the reason of the
/// rejections.
#[tokio::test(flavor = "multi_thread")]
async fn a_rebroadcast_sends_older_attempts_when_the_newest_is_refused() {
    let stack = stack().proxied().mining(Mining::Manual).set("resubmit.interval", "10m").up().await;
    let to = Address::repeat_byte(0x69);
    let tx_id = stack.create(stack.submitter(0), "twice", &payload(to, 5)).await;
    stack.wait_for(tx_id, TxState::Submitted).await;
    let made = stack.client().admin_post(&format!("/api/v1/tx/{tx_id}/speed-up?wait=60s"), &json!({})).await;
    assert_eq!(made.status, 200, "{made:?}");
    let attempts = stack.wait_attempts(tx_id, 2).await;
    stack.wait_pooled(attempts[1].tx_hash).await;
    stack.anvil().drop_all().await;
    stack.proxy().next(1, SEND, Fault::error("txpool is full"));
    let asked = json!({ "action": "rebroadcast", "reason": "it was lost" });
    let answer = stack.client().admin_post(&format!("/api/v1/tx/{tx_id}/resolve?wait=60s"), &asked).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    stack.wait_pooled(attempts[0].tx_hash).await;
    stack.anvil().mine(1).await;
    stack.wait_for(tx_id, TxState::Confirmed).await;
    assert_eq!(stack.anvil().balance(to).await, 5.into());
    stack.finish().await;
}
