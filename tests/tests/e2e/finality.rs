//! Finality, and the confirmation events on the way to it.

use gapless_testkit::{Address, Mining, Stack, StackBuilder, TxId, TxState, eventually, payload};
use serde_json::{Value, json};

use crate::stack;

/// Manual mining, and events in the log.
fn chain_with_events() -> StackBuilder {
    stack().mining(Mining::Manual).set("resubmit.interval", "1s").set("events.mode", "log")
}

/// One transaction, mined alone in a block. Returns it and its block.
async fn mined(stack: &Stack) -> (TxId, u64) {
    let tx_id = stack.create(stack.submitter(0), "one", &payload(Address::repeat_byte(0xd1), 1)).await;
    stack.wait_for(tx_id, TxState::Submitted).await;
    stack.anvil().mine(1).await;
    let row = stack.wait_for(tx_id, TxState::Tracking).await;
    (tx_id, row.block_number.unwrap())
}

/// The chain's blocks of a range, as in the events.
async fn blocks(stack: &Stack, from: u64, upto: u64) -> Vec<Value> {
    let mut blocks = Vec::new();
    for number in from..=upto {
        let block = stack.anvil().rpc("eth_getBlockByNumber", json!([format!("{number:#x}"), false])).await;
        blocks.push(json!({ "number": number, "hash": block["hash"] }));
    }
    blocks
}

/// Confirmation events, by process, oldest first.
fn notices(stack: &Stack, tx_id: TxId) -> Vec<Value> {
    let events = stack.services().into_iter().flat_map(|service| service.events());
    let ours = events
        .filter(|event| event["tx.id"] == tx_id.to_string() && event["event"] == json!("tx.confirmations"));
    ours.map(|event| serde_json::from_str(event["data"].as_str().unwrap()).unwrap()).collect()
}

/// The blocks of a consumer that replaces on newFork and appends otherwise.
fn consumed(notices: &[Value]) -> Vec<Value> {
    notices.iter().fold(Vec::new(), |mut known, notice| {
        if notice["newFork"] == json!(true) {
            known.clear();
        }
        known.extend(notice["blocks"].as_array().unwrap().iter().cloned());
        known
    })
}

/// Waits until a consumer of events has exactly the chain's blocks. Returns all events so far.
async fn wait_consumed(stack: &Stack, tx_id: TxId, from: u64, upto: u64) -> Vec<Value> {
    let expected = blocks(stack, from, upto).await;
    eventually(&format!("a consumer knows blocks {from} to {upto}"), async || {
        let notices = notices(stack, tx_id);
        if consumed(&notices) == expected { Ok(notices) } else { Err((notices, expected.clone())) }
    })
    .await
}

/// Waits until the API lists exactly the chain's blocks.
async fn wait_listed(stack: &Stack, tx_id: TxId, from: u64, upto: u64) -> Value {
    let expected = json!(blocks(stack, from, upto).await);
    eventually(&format!("the API lists blocks {from} to {upto}"), async || {
        let seen = stack.get(tx_id).await;
        if seen["confirmationBlocks"] == expected { Ok(seen) } else { Err((seen, expected.clone())) }
    })
    .await
}

/// Final when its block has the chain's tag, and not one block earlier.
async fn is_final_at(tag: &str, distance: u64) {
    let stack = chain_with_events()
        .anvil_args(&["--slots-in-an-epoch", "3"])
        .set("confirmations.required", tag)
        .up()
        .await;
    let (tx_id, block) = mined(&stack).await;
    stack.anvil().mine(distance - 1).await;
    let seen = wait_listed(&stack, tx_id, block, block + distance - 1).await;
    assert_eq!((&seen["finalityTag"], &seen["confirmationsRequired"]), (&json!(tag), &Value::Null), "{seen}");
    assert_eq!((&seen["confirmations"], &seen["state"]), (&json!(distance), &json!("TRACKING")), "{seen}");
    let named = stack.anvil().rpc("eth_getBlockByNumber", json!([tag, false])).await;
    assert_eq!(named["number"], json!(format!("{:#x}", block - 1)), "one block is missing");
    stack.anvil().mine(1).await;
    stack.wait_for(tx_id, TxState::Confirmed).await;
    let events = stack.wait_for_event(tx_id, "tx.confirmed").await;
    assert_eq!(events.iter().filter(|event| *event == "tx.confirmed").count(), 1, "{events:?}");
    stack.finish().await;
}

/// Scenario 49.
#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_is_final_when_the_chain_calls_its_block_safe() {
    is_final_at("safe", 3).await;
}

/// Scenario 49.
#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_is_final_when_the_chain_calls_its_block_finalized() {
    is_final_at("finalized", 6).await;
}

/// Scenario 49. A block that is not `safe` yet can be reorged, and its transaction is resent.
#[tokio::test(flavor = "multi_thread")]
async fn a_reorg_before_the_safe_block_is_survived() {
    let stack = chain_with_events()
        .anvil_args(&["--slots-in-an-epoch", "4"])
        .set("confirmations.required", "safe")
        .up()
        .await;
    let (tx_id, block) = mined(&stack).await;
    stack.anvil().mine(2).await;
    wait_listed(&stack, tx_id, block, block + 2).await;
    stack.anvil().reorg(3).await;
    stack.wait_for(tx_id, TxState::Submitted).await;
    stack.wait_pending(1).await;
    stack.anvil().mine(5).await;
    let row = stack.wait_for(tx_id, TxState::Confirmed).await;
    assert_eq!(row.block_number, Some(block + 3));
    assert_eq!(stack.anvil().balance(Address::repeat_byte(0xd1)).await, 1.into());
    stack.finish().await;
}

/// Scenario 45. First event and changed hash: all blocks and newFork; growth: the difference.
#[tokio::test(flavor = "multi_thread")]
async fn a_reorg_within_the_window_tells_the_whole_list_anew() {
    let stack = chain_with_events().confirmations(20).up().await;
    let (tx_id, block) = mined(&stack).await;
    let first = wait_consumed(&stack, tx_id, block, block).await;
    assert_eq!((first.len(), &first[0]["newFork"]), (1, &json!(true)), "{first:?}");
    stack.anvil().mine(2).await;
    let grown = wait_consumed(&stack, tx_id, block, block + 2).await;
    assert!(grown[1..].iter().all(|notice| notice["newFork"] == json!(false)), "only what is new: {grown:?}");
    let seen = wait_listed(&stack, tx_id, block, block + 2).await;
    assert_eq!(seen["newFork"], json!(true), "without a known block all are returned");
    let last = seen["confirmationBlocks"][2]["hash"].as_str().unwrap().to_owned();

    // The newest block changes, the transaction's own block stays.
    stack.anvil().reorg(1).await;
    stack.anvil().mine(1).await;
    let forked = wait_consumed(&stack, tx_id, block, block + 3).await;
    let news = &forked[grown.len()..];
    assert_eq!(news[0]["newFork"], json!(true), "{news:?}");
    assert_eq!(news[0]["blocks"][0]["number"], json!(block), "the full list: {news:?}");
    assert_eq!(stack.row(tx_id).await.state, TxState::Tracking, "its own block still exists");
    assert!(!stack.logged_events(tx_id).contains(&"tx.reorged".to_owned()));

    // The same for polling: an orphan as the last known block returns all, a canonical one the rest.
    let seen = wait_listed(&stack, tx_id, block, block + 3).await;
    let ask = async |hash: &str| stack.client().get(&format!("/api/v1/tx/{tx_id}?after={hash}")).await.body;
    let answer = ask(&last).await;
    assert_eq!(
        (&answer["newFork"], &answer["confirmationBlocks"]),
        (&json!(true), &seen["confirmationBlocks"])
    );
    let answer = ask(seen["confirmationBlocks"][2]["hash"].as_str().unwrap()).await;
    assert_eq!(
        (&answer["newFork"], &answer["confirmationBlocks"]),
        (&json!(false), &json!([seen["confirmationBlocks"][3]]))
    );
    assert_eq!(stack.client().get(&format!("/api/v1/tx/{tx_id}?after=0x12")).await.status, 400);

    stack.anvil().mine(16).await;
    stack.wait_for(tx_id, TxState::Confirmed).await;
    wait_consumed(&stack, tx_id, block, block + 19).await;
    stack.finish().await;
}

/// Scenario 45, the limit: one block before finality everything is reorged, including the transaction's block.
#[tokio::test(flavor = "multi_thread")]
async fn a_reorg_at_the_edge_of_the_window_takes_every_confirmation_back() {
    let stack = chain_with_events().confirmations(4).up().await;
    let (tx_id, block) = mined(&stack).await;
    stack.anvil().mine(2).await;
    wait_consumed(&stack, tx_id, block, block + 2).await;
    stack.anvil().reorg(3).await;
    stack.wait_for(tx_id, TxState::Submitted).await;
    eventually("a consumer has no block left", async || {
        let notices = notices(&stack, tx_id);
        if consumed(&notices).is_empty() { Ok(()) } else { Err(notices) }
    })
    .await;
    stack.wait_pending(1).await;
    stack.anvil().mine(4).await;
    let row = stack.wait_for(tx_id, TxState::Confirmed).await;
    assert_eq!(row.block_number, Some(block + 3));
    let notices = wait_consumed(&stack, tx_id, block + 3, block + 6).await;
    assert!(notices.iter().filter(|notice| notice["newFork"] == json!(true)).count() >= 3, "{notices:?}");
    assert_eq!(stack.anvil().balance(Address::repeat_byte(0xd1)).await, 1.into());
    stack.finish().await;
}

/// Scenario 45, beyond the limit: deeper than the watcher walks and retains. The receipt is checked against the chain.
#[tokio::test(flavor = "multi_thread")]
async fn a_reorg_deeper_than_what_is_kept_is_noticed_by_the_receipt() {
    let stack = chain_with_events().confirmations(180).up().await;
    let (tx_id, block) = mined(&stack).await;
    stack.anvil().mine(140).await;
    eventually("the API counts the blocks", async || {
        let seen = stack.get(tx_id).await;
        if seen["confirmations"] == json!(141) { Ok(()) } else { Err(seen) }
    })
    .await;
    stack.anvil().reorg(141).await;
    stack.wait_for(tx_id, TxState::Submitted).await;
    stack.wait_pending(1).await;
    stack.anvil().mine(180).await;
    let row = stack.wait_for(tx_id, TxState::Confirmed).await;
    assert_eq!(row.block_number, Some(block + 141));
    assert_eq!(stack.anvil().balance(Address::repeat_byte(0xd1)).await, 1.into());
    stack.finish().await;
}

/// Scenario 48. The blocks that the last worker stored and reported are reorged; the next worker reports that.
#[tokio::test(flavor = "multi_thread")]
async fn after_a_reorg_while_every_worker_is_down_the_list_is_the_chain_s() {
    let stack = chain_with_events().short_lease().confirmations(20).up().await;
    let (tx_id, block) = mined(&stack).await;
    stack.anvil().mine(3).await;
    wait_consumed(&stack, tx_id, block, block + 3).await;
    wait_listed(&stack, tx_id, block, block + 3).await;
    let before = notices(&stack, tx_id).len();
    stack.workers()[0].kill9();
    stack.anvil().reorg(2).await;
    stack.anvil().mine(4).await;
    stack.start_worker().await;
    let notices = wait_consumed(&stack, tx_id, block, block + 7).await;
    assert_eq!(notices[before]["newFork"], json!(true), "the first notice of the new owner: {notices:?}");
    wait_listed(&stack, tx_id, block, block + 7).await;
    stack.anvil().mine(12).await;
    stack.wait_for(tx_id, TxState::Confirmed).await;
    stack.finish().await;
}

/// In the default mode clients poll: a tracked transaction is not updated for each block.
#[tokio::test(flavor = "multi_thread")]
async fn blocks_cost_no_writes_while_nobody_listens() {
    let stack = stack().mining(Mining::Manual).confirmations(20).up().await;
    let (tx_id, block) = mined(&stack).await;
    let version = async || {
        let query = "SELECT xmin::TEXT || ' ' || updated_at::TEXT FROM managed_tx WHERE tx_id = $1";
        sqlx::query_scalar::<_, String>(query).bind(tx_id.0).fetch_one(stack.db()).await.unwrap()
    };
    let before = version().await;
    for _ in 0..5 {
        stack.anvil().mine(2).await;
    }
    wait_listed(&stack, tx_id, block, block + 10).await;
    assert_eq!(version().await, before);
    let events: i64 = sqlx::query_scalar("SELECT count(*) FROM v_event").fetch_one(stack.db()).await.unwrap();
    assert_eq!(events, 0);
    stack.anvil().mine(9).await;
    let seen = eventually("it is confirmed", async || {
        let seen = stack.get(tx_id).await;
        if seen["state"] == "CONFIRMED" { Ok(seen) } else { Err(seen) }
    })
    .await;
    assert_eq!(seen["confirmations"], json!(20));
    stack.finish().await;
}

/// Scenario 49. An external transaction counts only when it is final, because a reorg could still remove it.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_used_outside_is_believed_only_when_that_is_finalized() {
    let stack = chain_with_events()
        .proxied()
        .anvil_args(&["--slots-in-an-epoch", "3"])
        .set("confirmations.required", "finalized")
        .up()
        .await;
    let submitter = stack.submitter(0);
    let (first, _) = mined(&stack).await;
    stack.anvil().mine(6).await;
    stack.wait_for(first, TxState::Confirmed).await;
    eventually("the lane ends", async || match stack.lease(submitter).await {
        Some(lease) if lease.owner.is_none() || !lease.live => Ok(()),
        lease => Err(lease),
    })
    .await;
    submitter.spend_outside(stack.anvil(), None).await;
    stack.anvil().mine(1).await;
    let asked = stack.proxy().calls("eth_getTransactionCount");
    let second = stack.create(submitter, "two", &payload(Address::repeat_byte(0xd2), 1)).await;
    // Each check of a suspected key makes three calls: wait for two checks and more.
    eventually("the key was looked at several times", async || {
        let now = stack.proxy().calls("eth_getTransactionCount");
        if now >= asked + 9 { Ok(()) } else { Err(now) }
    })
    .await;
    assert_eq!(stack.cursor(submitter).await.unwrap().protect_reason, None, "not final yet");
    assert_eq!(stack.row(second).await.nonce, None, "and nothing is sent meanwhile");
    stack.anvil().mine(6).await;
    stack.wait_protected(submitter).await;
    let answer = stack.submitter_action(submitter, "adopt", "the tests say so").await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    stack.wait_for(second, TxState::Submitted).await;
    stack.anvil().mine(7).await;
    assert_eq!(stack.wait_for(second, TxState::Confirmed).await.nonce, Some(2));
    stack.finish().await;
}

/// Recorded events are in chain order.
#[tokio::test(flavor = "multi_thread")]
async fn recorded_events_have_the_confirmations_a_consumer_needs() {
    let stack = chain_with_events().set("events.mode", "mq_outbox").confirmations(5).up().await;
    let (tx_id, block) = mined(&stack).await;
    stack.anvil().mine(2).await;
    wait_listed(&stack, tx_id, block, block + 2).await;
    stack.anvil().reorg(1).await;
    stack.anvil().mine(2).await;
    stack.wait_for(tx_id, TxState::Confirmed).await;
    let notices: Vec<Value> = sqlx::query_scalar(
        "SELECT data FROM v_event WHERE tx_id = $1 AND kind = 'tx.confirmations' ORDER BY position NULLS LAST, event_id",
    )
    .bind(tx_id.0)
    .fetch_all(stack.db())
    .await
    .unwrap();
    assert_eq!(consumed(&notices), blocks(&stack, block, block + 4).await, "{notices:?}");
    assert_eq!(notices[0]["newFork"], json!(true), "{notices:?}");
    stack.finish().await;
}
