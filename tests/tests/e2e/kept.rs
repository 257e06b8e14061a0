//! The evidence of finality is stored with the transaction: count, rule and blocks, also after the blocks were pruned.

use gapless_testkit::{Address, Mining, Stack, TxId, TxState, eventually, payload};
use serde_json::{Value, json};

use crate::stack;

/// Number of retained blocks: `RETAINED_BLOCKS` of the watcher.
const KEPT: u64 = 512;

/// One transaction, mined alone in a block. Returns it and its block.
async fn mined(stack: &Stack) -> (TxId, u64) {
    let tx_id = stack.create(stack.submitter(0), "one", &payload(Address::repeat_byte(0xd7), 1)).await;
    stack.wait_for(tx_id, TxState::Submitted).await;
    stack.anvil().mine(1).await;
    let row = stack.wait_for(tx_id, TxState::Tracking).await;
    (tx_id, row.block_number.unwrap())
}

/// The chain's blocks of a range, as in the API.
async fn blocks(stack: &Stack, from: u64, upto: u64) -> Value {
    let mut blocks = Vec::new();
    for number in from..=upto {
        let block = stack.anvil().rpc("eth_getBlockByNumber", json!([format!("{number:#x}"), false])).await;
        blocks.push(json!({ "number": number, "hash": block["hash"] }));
    }
    Value::Array(blocks)
}

/// Waits until the head is stored, and the blocks up to a height are pruned.
async fn wait_pruned(stack: &Stack, number: u64) {
    let head = i64::try_from(stack.anvil().head().await).unwrap();
    let number = i64::try_from(number).unwrap();
    eventually(&format!("block {number} is pruned and block {head} is there"), async || {
        let kept: (Option<i64>, Option<i64>) =
            sqlx::query_as("SELECT min(number), max(number) FROM chain_block")
                .fetch_one(stack.db())
                .await
                .unwrap();
        if kept.0.is_some_and(|first| first > number) && kept.1 == Some(head) { Ok(()) } else { Err(kept) }
    })
    .await;
}

/// The request of a client that has these blocks up to one of them.
async fn after(stack: &Stack, tx_id: TxId, hash: &Value) -> Value {
    let path = format!("/api/v1/tx/{tx_id}?after={}", hash.as_str().unwrap());
    let answer = stack.client().get(&path).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.body
}

/// The block fields of an API response.
fn shown_confirmations(seen: &Value) -> (&Value, &Value, &Value) {
    (&seen["confirmations"], &seen["confirmationBlocks"], &seen["newFork"])
}

/// The columns of the row, with the hashes as `above`.
async fn cell(stack: &Stack, tx_id: TxId) -> Option<Value> {
    let query = "SELECT confirmations || jsonb_build_object('above', confirmation_hashes) FROM v_managed_tx WHERE tx_id = $1";
    sqlx::query_scalar(query).bind(tx_id.0).fetch_one(stack.db()).await.unwrap()
}

/// Scenario 45.
#[tokio::test(flavor = "multi_thread")]
async fn the_list_of_a_final_transaction_stays_when_its_blocks_are_pruned() {
    let stack = stack().mining(Mining::Manual).confirmations(3).set("events.mode", "log").up().await;
    let (tx_id, block) = mined(&stack).await;
    assert_eq!(cell(&stack, tx_id).await, None, "nothing is written for blocks while it is tracked");
    stack.anvil().mine(2).await;
    stack.wait_for(tx_id, TxState::Confirmed).await;
    let list = blocks(&stack, block, block + 2).await;
    for step in [100, 100, 100, 100, 100, 100] {
        stack.anvil().mine(step).await;
    }
    wait_pruned(&stack, block + 2).await;
    let seen = stack.get(tx_id).await;
    assert_eq!(shown_confirmations(&seen), (&json!(3), &list, &json!(true)), "{seen}");
    let seen = after(&stack, tx_id, &list[1]["hash"]).await;
    assert_eq!(shown_confirmations(&seen), (&json!(3), &json!([list[2]]), &json!(false)), "{seen}");

    // The final event has the same complete data, so that it is sufficient alone.
    stack.wait_for_event(tx_id, "tx.confirmed").await;
    let events = stack.workers()[0].events();
    let confirmed = events.iter().find(|event| event["event"] == json!("tx.confirmed")).unwrap();
    let data: Value = serde_json::from_str(confirmed["data"].as_str().unwrap()).unwrap();
    assert_eq!((&data["blocks"], &data["newFork"], &data["confirmations"]), (&list, &json!(true), &json!(3)));

    // It needs neither a worker nor any stored block.
    stack.workers()[0].stop_sigterm().await;
    stack.sql("DELETE FROM chain_block").await;
    let seen = stack.get(tx_id).await;
    assert_eq!(shown_confirmations(&seen), (&json!(3), &list, &json!(true)), "{seen}");
    stack.finish().await;
}

/// Scenarios 45 and 49. `finalized` lags by more than the retained blocks. Unknown blocks are omitted; the count is
/// complete in the end.
#[tokio::test(flavor = "multi_thread")]
async fn a_pruned_block_is_no_fork_where_finalized_lags() {
    let stack = stack()
        .mining(Mining::Manual)
        .anvil_args(&["--slots-in-an-epoch", "320"])
        .set("confirmations.required", "finalized")
        .up()
        .await;
    let (tx_id, block) = mined(&stack).await;
    stack.anvil().mine(2).await;
    let list = blocks(&stack, block, block + 2).await;
    wait_listed(&stack, tx_id, &list).await;
    for _ in 0..(KEPT / 64) {
        stack.anvil().mine(64).await;
    }
    stack.anvil().mine(3).await;
    wait_pruned(&stack, block).await;
    let count = KEPT + 6;
    let seen = stack.get(tx_id).await;
    assert_eq!(seen["state"], "TRACKING");
    assert_eq!(shown_confirmations(&seen), (&json!(count), &Value::Null, &Value::Null), "{seen}");
    let seen = after(&stack, tx_id, &list[2]["hash"]).await;
    assert_eq!(shown_confirmations(&seen), (&json!(count), &Value::Null, &Value::Null), "{seen}");

    stack.anvil().mine(640 - count + 1).await;
    stack.wait_for(tx_id, TxState::Confirmed).await;
    let cell = cell(&stack, tx_id).await.unwrap();
    assert_eq!((&cell["rule"], &cell["finalBlock"]), (&json!("finalized"), &json!(block)), "{cell}");
    assert_eq!(cell["above"].as_array().unwrap().len(), 63, "{cell}");
    // The node may have been asked for the final block before its newest blocks were seen.
    assert!((count..=641).contains(&cell["count"].as_u64().unwrap()), "{cell}");
    let seen = after(&stack, tx_id, &list[2]["hash"]).await;
    let rest = blocks(&stack, block + 3, block + 63).await;
    assert_eq!(shown_confirmations(&seen), (&cell["count"], &rest, &json!(false)), "{seen}");
    assert_eq!((&seen["finalityTag"], &seen["confirmationsRequired"]), (&json!("finalized"), &Value::Null));
    stack.finish().await;
}

/// Waits until the API lists exactly these blocks.
async fn wait_listed(stack: &Stack, tx_id: TxId, list: &Value) {
    eventually("the API lists them", async || {
        let seen = stack.get(tx_id).await;
        if seen["confirmationBlocks"] == *list { Ok(()) } else { Err(seen) }
    })
    .await;
}

/// Scenario 45, the control: a block that was seen replaced is a fork, and is reported as one.
#[tokio::test(flavor = "multi_thread")]
async fn a_replaced_block_is_still_told_as_a_fork() {
    let stack = stack().mining(Mining::Manual).confirmations(20).up().await;
    let (tx_id, block) = mined(&stack).await;
    stack.anvil().mine(2).await;
    let list = blocks(&stack, block, block + 2).await;
    wait_listed(&stack, tx_id, &list).await;
    // There is no lane: the API responds from the stored blocks alone.
    stack.workers()[0].stop_sigterm().await;
    stack.sql("UPDATE chain_block SET hash = decode(repeat('ab', 32), 'hex')").await;
    for seen in [stack.get(tx_id).await, after(&stack, tx_id, &list[2]["hash"]).await] {
        assert_eq!(shown_confirmations(&seen), (&json!(0), &json!([]), &json!(true)), "{seen}");
    }
    // A gap in the stored blocks is not a fork: blocks above it are not known to have changed.
    stack.sql("DELETE FROM chain_block").await;
    stack.start_worker().await;
    wait_listed(&stack, tx_id, &list).await;
    stack.workers().last().unwrap().stop_sigterm().await;
    let hole = format!("DELETE FROM chain_block WHERE number = {}", block + 1);
    sqlx::query(sqlx::AssertSqlSafe(hole)).execute(stack.db()).await.unwrap();
    let seen = after(&stack, tx_id, &list[2]["hash"]).await;
    assert_eq!(shown_confirmations(&seen), (&json!(3), &Value::Null, &Value::Null), "{seen}");
    let seen = after(&stack, tx_id, &list[0]["hash"]).await;
    assert_eq!(shown_confirmations(&seen), (&json!(3), &json!([]), &json!(false)), "{seen}");
    stack.start_worker().await;
    stack.anvil().mine(17).await;
    stack.wait_for(tx_id, TxState::Confirmed).await;
    stack.finish().await;
}

/// Scenario 49.
#[tokio::test(flavor = "multi_thread")]
async fn a_final_transaction_shows_what_was_counted_and_not_the_setting_of_today() {
    let stack = stack().mining(Mining::Manual).confirmations(3).up().await;
    let (tx_id, block) = mined(&stack).await;
    stack.anvil().mine(2).await;
    stack.wait_for(tx_id, TxState::Confirmed).await;
    stack.anvil().mine(5).await;
    let list = blocks(&stack, block, block + 2).await;
    for today in [json!(7), json!(1), json!("finalized")] {
        let other = stack.api().set("confirmations.required", today.clone()).start().await;
        for path in [format!("/api/v1/tx/{tx_id}"), "/api/v1/tx".to_owned()] {
            let answer = other.client().get(&path).await.body;
            let seen = answer["items"].get(0).unwrap_or(&answer);
            assert_eq!(seen["confirmations"], json!(3), "{today}: {seen}");
            assert_eq!(
                (&seen["confirmationsRequired"], &seen["finalityTag"]),
                (&json!(3), &Value::Null),
                "{seen}"
            );
        }
        let seen = other.client().get(&format!("/api/v1/tx/{tx_id}")).await.body;
        assert_eq!(shown_confirmations(&seen), (&json!(3), &list, &json!(true)), "{today}: {seen}");
        other.stop_sigterm().await;
    }
    stack.finish().await;
}
