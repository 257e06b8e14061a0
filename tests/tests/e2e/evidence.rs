//! Nodes with missing data: a missing transaction is no evidence; only the consuming transaction itself decides.

use std::time::Duration;

use gapless_testkit::{
    Address, Fault, H256, Mining, Proxy, Stack, Submitter, TxId, TxState, eventually, eventually_within,
    payload,
};
use serde_json::Value;

use crate::stack;

/// A worker crashes right after a send, and the transaction is mined. The next worker's node counts the nonce, and
/// shows neither receipt nor transaction nor block.
pub(crate) async fn mined_and_hidden() -> (Stack, TxId) {
    let stack = stack().proxied().set("resubmit.interval", "500ms").set("events.mode", "log").start().await;
    stack.start_api().await;
    let doomed = stack.worker().failpoint("sent").start().await;
    let tx_id = stack.create(stack.submitter(0), "once", &payload(target(), 1)).await;
    doomed.wait_exit().await;
    assert_eq!(stack.row(tx_id).await.state, TxState::InFlight);
    assert_eq!(stack.anvil().balance(target()).await, 1.into(), "it is mined");
    stack.anvil().mine(3).await;
    stack.proxy().hide_transactions();
    (stack, tx_id)
}

pub(crate) fn target() -> Address {
    Address::repeat_byte(0xb1)
}

pub(crate) async fn seen(stack: &Stack, submitter: &Submitter) -> Value {
    let seen = stack.client().admin_get(&format!("/api/v1/submitters/{}", submitter.text())).await;
    assert_eq!(seen.status, 200, "{}", seen.body);
    seen.body
}

pub(crate) async fn wait_suspect(stack: &Stack, submitter: &Submitter) -> String {
    eventually("the submitter is SUSPECT", async || {
        let seen = seen(stack, submitter).await;
        match (seen["state"].as_str(), seen["suspectReason"].as_str()) {
            // At first the lookup is still in progress.
            (Some("SUSPECT"), Some(reason)) if !reason.contains("searching for") => Ok(reason.to_owned()),
            _ => Err(seen),
        }
    })
    .await
}

/// Scenario 60. A former defect caused two effects: the missing transaction was taken for an external one, and
/// adopted.
#[tokio::test(flavor = "multi_thread")]
async fn a_mined_transaction_that_no_node_shows_is_never_executed_twice() {
    let (stack, tx_id) = mined_and_hidden().await;
    let submitter = stack.submitter(0);
    let worker = stack.start_worker().await;
    let reason = wait_suspect(&stack, submitter).await;
    assert!(reason.contains(&tx_id.to_string()), "{reason}");
    assert_eq!(stack.cursor(submitter).await.unwrap().protect_reason, None);

    // It is an alarm, not an end: requests are accepted, and get no nonce.
    let next = stack.create(submitter, "next", &payload(target(), 10)).await;
    let refused = stack.submitter_action(submitter, "adopt", "assumed external use").await;
    assert_eq!((refused.status, refused.code()), (409, "action_refused"), "{}", refused.body);
    assert!(refused.body["detail"].as_str().is_some_and(|text| text.contains("no node")), "{}", refused.body);
    eventually("the metric shows it", async || {
        match worker.metric("gapless_suspect_submitters", &[]).await {
            1.0 => Ok(()),
            other => Err(other),
        }
    })
    .await;
    assert!(worker.events().iter().any(|event| event["event"] == "submitter.suspect"));
    assert_eq!(stack.row(next).await.nonce, None, "no new nonce");

    // Another worker reads it from the database.
    worker.kill9();
    stack.start_worker().await;
    wait_suspect(&stack, submitter).await;
    assert_eq!(stack.row(tx_id).await.state, TxState::InFlight);

    // A node that shows the block is enough, even without a transaction index.
    stack.proxy().show_blocks();
    stack.wait_for(tx_id, TxState::Confirmed).await;
    stack.wait_for(next, TxState::Confirmed).await;
    assert_eq!(seen(&stack, submitter).await["state"], "ACTIVE");
    assert_eq!(stack.attempts(tx_id).await.len(), 1, "nothing was signed anew");
    assert_eq!(stack.anvil().balance(target()).await, 11.into(), "each of them once");
    assert!(stack.verify().await.sound);
    stack.finish().await;
}

/// Scenario 54. No crash: the node shows nothing for a while.
#[tokio::test(flavor = "multi_thread")]
async fn a_suspicion_ends_by_itself_when_a_node_shows_what_it_has() {
    let stack = stack().proxied().set("resubmit.interval", "500ms").set("events.mode", "log").up().await;
    let submitter = stack.submitter(0);
    stack.proxy().hide_transactions();
    let tx_id = stack.create(submitter, "hidden", &payload(target(), 1)).await;
    wait_suspect(&stack, submitter).await;
    assert!(matches!(stack.row(tx_id).await.state, TxState::InFlight | TxState::Submitted));
    let release = stack.submitter_action(submitter, "release", "there is nothing to release").await;
    assert_eq!((release.status, release.code()), (409, "not_protected"), "{}", release.body);
    stack.proxy().show_transactions();
    stack.wait_for(tx_id, TxState::Confirmed).await;
    let next = stack.create(submitter, "next", &payload(target(), 1)).await;
    assert_eq!(stack.wait_for(next, TxState::Confirmed).await.nonce, Some(1));
    assert_eq!(seen(&stack, submitter).await["state"], "ACTIVE");
    let events = stack.workers()[0].events();
    assert!(events.iter().any(|event| event["event"] == "submitter.suspect_cleared"), "{events:?}");
    stack.finish().await;
}

/// Scenario 61. The first node shows nothing; the second has no index, but shows the block.
#[tokio::test(flavor = "multi_thread")]
async fn of_two_nodes_the_one_that_shows_the_block_decides() {
    let (stack, tx_id) = mined_and_hidden().await;
    let seeing = Proxy::start(stack.anvil().url()).await;
    seeing.show_blocks();
    stack.worker().rpc(&[stack.proxy().url(), seeing.url()]).start().await;
    stack.wait_for(tx_id, TxState::Confirmed).await;
    assert_eq!(stack.attempts(tx_id).await.len(), 1);
    assert_eq!(stack.cursor(stack.submitter(0)).await.unwrap().protect_reason, None);
    assert_eq!(stack.anvil().balance(target()).await, 1.into());
    stack.finish().await;
}

/// The same if only one of them shows the receipt by hash.
#[tokio::test(flavor = "multi_thread")]
async fn of_two_nodes_the_one_that_shows_the_receipt_decides() {
    let (stack, tx_id) = mined_and_hidden().await;
    stack.worker().rpc(&[stack.proxy().url(), stack.anvil().url()]).start().await;
    stack.wait_for(tx_id, TxState::Confirmed).await;
    assert_eq!(stack.anvil().balance(target()).await, 1.into());
    stack.finish().await;
}

/// Ours is in the mempool, and an external transaction is mined at its nonce. Returns its hash and block.
async fn taken_elsewhere(stack: &Stack, tx_id: TxId) -> (H256, u64) {
    let nonce = stack.wait_for(tx_id, TxState::Submitted).await.nonce;
    stack.anvil().drop_all().await;
    let theirs = stack.submitter(0).spend_outside(stack.anvil(), nonce).await;
    stack.anvil().mine(1).await;
    let receipt = stack.anvil().receipt(theirs).await.expect("it is mined");
    let block = receipt["blockNumber"].as_str().unwrap().trim_start_matches("0x").to_owned();
    (theirs, u64::from_str_radix(&block, 16).unwrap())
}

async fn adopt(stack: &Stack, hash: H256, block: u64) -> (i32, String) {
    let (address, hash, block) = (stack.submitter(0).text(), format!("{hash:#x}"), block.to_string());
    let asked =
        ["adopt", &address, "--reason", "seen in an explorer", "--taken-by", &hash, "--block", &block];
    let output = stack.cli(&asked).await;
    (output.code, output.stdout + &output.stderr)
}

/// Scenario 62. Nodes without old states, and no bounds for the search: an operator can name the transaction, which is
/// verified.
#[tokio::test(flavor = "multi_thread")]
async fn an_operator_names_the_transaction_that_took_a_nonce_and_it_is_verified() {
    let stack = stack()
        .proxied()
        .mining(Mining::Manual)
        .set("resubmit.interval", "500ms")
        .set("rpc.poll_interval", "200ms")
        .start()
        .await;
    stack.start_api().await;
    let submitter = stack.submitter(0);
    let first = stack.start_worker().await;
    let tx_id = stack.create(submitter, "displaced", &payload(target(), 1)).await;
    stack.wait_for(tx_id, TxState::Submitted).await;
    first.kill9();
    let (theirs, block) = taken_elsewhere(&stack, tx_id).await;
    stack.anvil().mine(2).await;
    // As after an upgrade, or a long outage of the chain: no bounds, and no old states.
    stack
        .sql("UPDATE submitter_nonce_cursor SET below_block = NULL, below_hash = NULL, above_block = NULL, above_hash = NULL, above_count = NULL")
        .await;
    stack.proxy().keep_states(1);
    stack.start_worker().await;
    let reason = wait_suspect(&stack, submitter).await;
    assert!(reason.contains("no node shows in which block"), "{reason}");

    let refused = stack.submitter_action(submitter, "adopt", "it must have been us").await;
    assert_eq!((refused.status, refused.code()), (409, "action_refused"), "{}", refused.body);
    let (code, output) = adopt(&stack, theirs, block + 1).await;
    assert!(code != 0 && output.contains("contains no transaction"), "another block: {output}");
    let (code, output) = adopt(&stack, H256::repeat_byte(9), block).await;
    assert!(code != 0 && output.contains("contains no transaction"), "another hash: {output}");
    let (code, output) = adopt(&stack, theirs, 1_000_000).await;
    assert!(code != 0 && output.contains("no node shows block"), "no such block: {output}");
    assert_eq!(stack.row(tx_id).await.nonce, Some(0), "nothing was given up");

    let (code, output) = adopt(&stack, theirs, block).await;
    assert!(code == 0 && output.contains("1 intents went back to the queue"), "{output}");
    stack.wait_for(tx_id, TxState::Submitted).await;
    stack.anvil().mine(1).await;
    assert_eq!(stack.wait_for(tx_id, TxState::Confirmed).await.nonce, Some(1));
    assert_eq!(stack.anvil().balance(target()).await, 1.into(), "its effect, once");
    stack.finish().await;
}

/// Scenario 62. With nothing open, nothing can be duplicated: a count in a final block is sufficient.
#[tokio::test(flavor = "multi_thread")]
async fn with_nothing_open_a_final_count_is_enough_to_adopt() {
    let stack = stack().proxied().up().await;
    let submitter = stack.submitter(0);
    let first = stack.create(submitter, "first", &payload(target(), 1)).await;
    stack.wait_for(first, TxState::Confirmed).await;
    stack.proxy().hide_transactions();
    submitter.spend_outside(stack.anvil(), None).await;
    eventually("the lane ends", async || match stack.lease(submitter).await {
        Some(lease) if lease.owner.is_none() => Ok(()),
        lease => Err(lease),
    })
    .await;
    let second = stack.create(submitter, "second", &payload(target(), 1)).await;
    stack.wait_protected(submitter).await;
    let adopted = stack.submitter_action(submitter, "adopt", "we sent it").await;
    assert_eq!(adopted.status, 200, "{}", adopted.body);
    stack.proxy().show_transactions();
    assert_eq!(stack.wait_for(second, TxState::Confirmed).await.nonce, Some(2));
    stack.finish().await;
}

/// Scenario 66. The state at the finality depth is pruned: counts of recent blocks are stored until their blocks are
/// final.
#[tokio::test(flavor = "multi_thread")]
async fn a_pruned_node_shows_external_use_as_well() {
    let stack =
        stack().proxied().confirmations(4).mining(Mining::Manual).set("events.mode", "log").up().await;
    let submitter = stack.submitter(0);
    stack.proxy().keep_states(1);
    let first = stack.create(submitter, "first", &payload(target(), 1)).await;
    stack.wait_for(first, TxState::Submitted).await;
    stack.anvil().mine(4).await;
    stack.wait_for(first, TxState::Confirmed).await;
    eventually("the lane ends", async || match stack.lease(submitter).await {
        Some(lease) if lease.owner.is_none() => Ok(()),
        lease => Err(lease),
    })
    .await;
    submitter.spend_outside(stack.anvil(), None).await;
    stack.anvil().mine(1).await;
    let second = stack.create(submitter, "second", &payload(target(), 1)).await;
    // Detected and shown before it is final.
    let reason = wait_suspect(&stack, submitter).await;
    assert!(reason.contains("this sequence explains"), "{reason}");
    assert_eq!(stack.row(second).await.nonce, None);
    // It survives a change of owner.
    stack.workers()[0].kill9();
    stack.start_worker().await;
    stack.anvil().mine(4).await;
    let reason = stack.wait_protected(submitter).await;
    assert!(reason.contains("used outside"), "{reason}");
    assert_eq!(seen(&stack, submitter).await["state"], "PROTECT");
    assert_eq!(stack.row(second).await.nonce, None, "nothing is skipped");
    assert!(stack.verify().await.sound);
    stack.submitter_action(submitter, "adopt", "we sent it").await;
    stack.wait_for(second, TxState::Submitted).await;
    stack.anvil().mine(4).await;
    stack.wait_for(second, TxState::Confirmed).await;
    stack.finish().await;
}

/// Outcomes of operator requests, oldest first.
async fn outcomes(stack: &Stack) -> Vec<Option<String>> {
    sqlx::query_scalar("SELECT outcome FROM audit_log ORDER BY audit_id").fetch_all(stack.db()).await.unwrap()
}

/// Scenario 62. The block is further back than one search reads. A former defect: every operator request restarted
/// the search, so repeated requests were rejected forever.
#[tokio::test(flavor = "multi_thread")]
async fn an_operator_who_keeps_asking_does_not_keep_the_blocks_from_being_read() {
    let stack = stack().proxied().mining(Mining::Manual).set("resubmit.interval", "500ms").start().await;
    let submitter = stack.submitter(0);
    stack.start_api().await;
    let worker = stack.start_worker().await;
    let tx_id = stack.create(submitter, "displaced", &payload(target(), 1)).await;
    let nonce = stack.wait_for(tx_id, TxState::Submitted).await.nonce;
    worker.kill9();
    stack.anvil().drop_all().await;
    submitter.spend_outside(stack.anvil(), nonce).await;
    stack.anvil().mine(400).await;
    stack.start_worker().await;
    eventually("the operator's request is carried out", async || {
        let answer = stack.submitter_action(submitter, "adopt", "sent manually").await;
        // A pending one may have been carried out meanwhile.
        match stack.attempts(tx_id).await.len() {
            2 => Ok(()),
            _ => Err(answer.body),
        }
    })
    .await;
    stack.wait_pending(1).await;
    stack.anvil().mine(1).await;
    stack.wait_for(tx_id, TxState::Confirmed).await;
    assert_eq!(stack.anvil().balance(target()).await, 1.into());
    stack.finish().await;
}

/// Scenario 54. PROTECT came first, by a count; the open nonce is SUSPECT as well, and stays so after the release.
#[tokio::test(flavor = "multi_thread")]
async fn a_suspicion_that_comes_with_protection_is_told_too() {
    let (stack, tx_id) = mined_and_hidden().await;
    let submitter = stack.submitter(0);
    submitter.spend_outside(stack.anvil(), None).await;
    stack.anvil().mine(3).await;
    let worker = stack.start_worker().await;
    let reason = stack.wait_protected(submitter).await;
    assert!(reason.contains("counts 2"), "{reason}");
    let released = stack.submitter_action(submitter, "release", "no external use").await;
    assert_eq!(released.status, 200, "{}", released.body);
    eventually("the event is logged", async || {
        let events: Vec<Value> = worker.events().iter().map(|event| event["event"].clone()).collect();
        if events.contains(&"submitter.suspect".into()) { Ok(()) } else { Err(events) }
    })
    .await;
    stack.proxy().show_transactions();
    eventually("the operator's request is carried out", async || {
        let answer = stack.submitter_action(submitter, "adopt", "it was sent by hand").await;
        // A pending one may have been carried out meanwhile.
        match stack.cursor(submitter).await.unwrap() {
            cursor if cursor.next == 2 => Ok(()),
            _ => Err((answer.body, outcomes(&stack).await)),
        }
    })
    .await;
    stack.wait_for(tx_id, TxState::Confirmed).await;
    let next = stack.create(submitter, "next", &payload(target(), 1)).await;
    assert_eq!(stack.wait_for(next, TxState::Confirmed).await.nonce, Some(2));
    stack.finish().await;
}

/// Scenario 66. A former owner saw that the nonce is used; owners change faster than blocks can be read. A former
/// defect.
#[tokio::test(flavor = "multi_thread")]
async fn a_doubt_that_a_former_owner_left_is_shown_before_the_blocks_are_read() {
    let (stack, tx_id) = mined_and_hidden().await;
    let submitter = stack.submitter(0);
    sqlx::query("UPDATE managed_tx SET sub_state = 'nonce_used' WHERE tx_id = $1")
        .bind(tx_id.0)
        .execute(stack.db())
        .await
        .unwrap();
    for method in ["eth_getBlockByHash", "eth_getBlockReceipts"] {
        stack.proxy().always(method, Fault::Hang);
    }
    // No search ends within this time.
    stack.proxy().show_blocks();
    let worker = stack.worker().set("rpc.timeout", "100s").start().await;
    eventually_within(Duration::from_secs(60), "the submitter is SUSPECT", async || {
        let seen = seen(&stack, submitter).await;
        if seen["state"] == "SUSPECT" { Ok(()) } else { Err(seen) }
    })
    .await;
    worker.kill9();
    stack.proxy().clear();
    stack.proxy().show_transactions();
    stack.start_worker().await;
    stack.wait_for(tx_id, TxState::Confirmed).await;
    assert_eq!(stack.anvil().balance(target()).await, 1.into());
    stack.finish().await;
}

/// Scenario 62. An external transaction used the next nonce, and ours, in a window of one, is found only by the
/// operator's request: it is not final yet, and outside of the window. A former defect: the database rejected the
/// write repeatedly.
#[tokio::test(flavor = "multi_thread")]
async fn an_adoption_waits_for_what_is_on_its_way_in_a_full_window() {
    let (stack, tx_id) = mined_and_hidden().await;
    let submitter = stack.submitter(0);
    submitter.spend_outside(stack.anvil(), None).await;
    stack.anvil().mine(3).await;
    let worker = stack.start_worker().await;
    stack.wait_protected(submitter).await;
    stack.proxy().show_transactions();
    eventually("the operator's request is carried out", async || {
        let answer = stack.submitter_action(submitter, "adopt", "sent by hand").await;
        if stack.cursor(submitter).await.unwrap().next == 2 { Ok(()) } else { Err(answer.body) }
    })
    .await;
    assert!(!worker.log().contains("lane parked"));
    stack.wait_for(tx_id, TxState::Confirmed).await;
    let next = stack.create(submitter, "next", &payload(target(), 1)).await;
    assert_eq!(stack.wait_for(next, TxState::Confirmed).await.nonce, Some(2));
    stack.finish().await;
}
