//! Node errors fail no transaction: temporary errors, results of an old state and lost transactions are waited for,
//! visibly, and repaired as soon as the nodes recover.

use std::time::Duration;

use gapless_testkit::{
    Address, Fault, Mining, Proxy, Stack, Submitter, TxId, TxRow, TxState, eventually, eventually_within,
    payload,
};
use serde_json::{Value, json};

use crate::stack;

/// Far less than `resubmit.interval`, which has its default of a minute, and enough for a busy machine.
const SOON: Duration = Duration::from_secs(20);

/// Waits until the row shows it.
async fn wait_sub_state(stack: &Stack, tx_id: TxId, sub_state: &str) -> TxRow {
    eventually(&format!("{tx_id} is {sub_state}"), async || match stack.row(tx_id).await {
        row if row.sub_state.as_deref() == Some(sub_state) => Ok(row),
        row => Err(row),
    })
    .await
}

/// Calls to a node in the life of one transaction, and the state in which it then waits.
const QUESTIONS: [(&str, TxState); 8] = [
    // First, because prices of an earlier transaction stay valid for a moment.
    ("eth_feeHistory", TxState::Queued),
    ("eth_getTransactionCount", TxState::Queued),
    ("eth_estimateGas", TxState::Queued),
    ("eth_getBalance", TxState::Queued),
    ("eth_sendRawTransaction", TxState::InFlight),
    ("eth_getBlockByNumber", TxState::Submitted),
    ("eth_getTransactionReceipt", TxState::Submitted),
    ("*", TxState::Queued),
];

/// One call after the other gets the same error, each for another submitter.
async fn no_question_fails_anything(code: i64, message: &str) {
    let stack = stack().submitters(QUESTIONS.len()).proxied().up().await;
    let (proxy, to) = (stack.proxy(), Address::repeat_byte(0x71));
    for ((method, state), submitter) in QUESTIONS.into_iter().zip(stack.submitters()) {
        proxy.always(method, Fault::Error { code, message: message.into() });
        let tx_id = stack.create(submitter, "troubled", &payload(to, 1)).await;
        let row = wait_sub_state(&stack, tx_id, "waiting_node").await;
        assert_eq!(row.state, state, "{method}: {row:?}");
        assert!(row.last_error.as_ref().is_some_and(|error| error.contains(message)), "{method}: {row:?}");
        let seen = stack.get(tx_id).await;
        assert_eq!(seen["error"]["code"], "node_unavailable", "{method}: {seen}");
        proxy.clear();
        let row = stack.wait_for_within(SOON, tx_id, TxState::Confirmed).await;
        assert_eq!((row.sub_state, row.last_error), (None, None), "{method}");
    }
    // Only used by health checks, or never twice: their failure blocks nothing.
    for method in
        ["eth_chainId", "eth_blockNumber", "eth_getCode", "eth_getBlockReceipts", "eth_getTransactionByHash"]
    {
        proxy.always(method, Fault::Error { code, message: message.into() });
        let tx_id = stack.create(stack.submitter(0), method, &payload(to, 1)).await;
        stack.wait_for_within(SOON, tx_id, TxState::Confirmed).await;
        proxy.clear();
    }
    assert_eq!(stack.anvil().balance(to).await, (QUESTIONS.len() + 5).into());
    stack.finish().await;
}

/// Scenario 63.
#[tokio::test(flavor = "multi_thread")]
async fn a_rate_limit_in_an_answer_fails_nothing_whatever_was_asked() {
    no_question_fails_anything(-32005, "project ID request rate exceeded").await;
}

/// Scenario 63.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_syncs_fails_nothing_whatever_was_asked() {
    no_question_fails_anything(-32000, "node is syncing, try again later").await;
}

/// Scenario 63.
#[tokio::test(flavor = "multi_thread")]
async fn header_not_found_fails_nothing_whatever_was_asked() {
    no_question_fails_anything(-32000, "header not found").await;
}

/// Scenario 63.
#[tokio::test(flavor = "multi_thread")]
async fn a_missing_trie_node_fails_nothing_whatever_was_asked() {
    no_question_fails_anything(-32000, "missing trie node 8d4c (path ) state 0x8d4c is not available").await;
}

/// Scenario 63, longer than any former limit: the error itself, and an unknown error message.
#[tokio::test(flavor = "multi_thread")]
async fn ninety_seconds_of_refused_estimates_fail_nothing() {
    let (one, other) =
        tokio::join!(stack().proxied().submitters(2).up(), stack().proxied().submitters(2).up());
    let to = Address::repeat_byte(0x72);
    let refused = async |stack: Stack, code: i64, message: &str, error: &str| {
        stack.proxy().always("eth_estimateGas", Fault::Error { code, message: message.into() });
        let tx_id = stack.create(stack.submitter(0), "refused", &payload(to, 1)).await;
        wait_sub_state(&stack, tx_id, "waiting_node").await;
        // With a gas limit nothing is estimated.
        let own = json!({ "to": format!("{to:#x}"), "value": "1", "gasLimit": "21000" });
        let own = stack.create(stack.submitter(1), "own-limit", &own).await;
        stack.wait_for(own, TxState::Confirmed).await;
        let begun = std::time::Instant::now();
        eventually("ninety seconds have passed", async || {
            let row = stack.row(tx_id).await;
            assert_eq!(
                (row.state, row.sub_state.as_deref()),
                (TxState::Queued, Some("waiting_node")),
                "{row:?}"
            );
            if begun.elapsed() > Duration::from_secs(90) { Ok(()) } else { Err(begun.elapsed()) }
        })
        .await;
        assert_eq!(stack.get(tx_id).await["error"]["code"], error);
        stack.proxy().clear();
        stack.wait_for_within(SOON, tx_id, TxState::Confirmed).await;
        stack.finish().await;
    };
    tokio::join!(
        refused(one, -32005, "limit exceeded", "node_unavailable"),
        refused(other, -32603, "the moon is in the wrong house", "estimate_refused")
    );
}

/// A gas cap of the node for executions is a setting of that node. One as large as a block, or the chain's limit of one
/// transaction (EIP-7825), is not.
#[tokio::test(flavor = "multi_thread")]
async fn a_cap_of_the_node_on_executions_is_waited_for_and_that_of_the_block_is_an_end() {
    let stack = stack().submitters(3).proxied().up().await;
    let to = Address::repeat_byte(0x73);
    stack.proxy().always("eth_estimateGas", Fault::error("gas required exceeds allowance (25000)"));
    let capped = stack.create(stack.submitter(0), "capped", &payload(to, 1)).await;
    wait_sub_state(&stack, capped, "waiting_node").await;
    assert_eq!(stack.get(capped).await["error"]["code"], "estimate_refused");
    stack.proxy().clear();
    stack.wait_for(capped, TxState::Confirmed).await;
    for (number, cap) in [(1, 9_000_000_000_u64), (2, 1 << 24)] {
        let refusal = format!("gas required exceeds allowance ({cap})");
        stack.proxy().always("eth_estimateGas", Fault::error(&refusal));
        let too_much = stack.create(stack.submitter(number), "too-much", &payload(to, 1)).await;
        let row = stack.wait_for(too_much, TxState::Failed).await;
        assert_eq!((row.nonce, row.sub_state.as_deref()), (None, Some("invalid")), "{row:?}");
    }
    stack.finish().await;
}

/// With a value it stores 1 in slot 0. Without, it reverts while that slot is 0: an approval, and a call that needs
/// it.
const NEEDS_APPROVAL: &str = "0x34601057600054600e57600080fd5b005b600160005500";

async fn approve(stack: &Stack, submitter: &Submitter, contract: Address) -> TxRow {
    let approval = json!({ "to": format!("{contract:#x}"), "value": "1", "gasLimit": "100000" });
    let tx_id = stack.create(submitter, "approval", &approval).await;
    stack.wait_for(tx_id, TxState::Confirmed).await
}

fn needs_it(contract: Address) -> Value {
    json!({ "to": format!("{contract:#x}"), "value": "0" })
}

/// Scenario 65. The first of two nodes has not seen the approval yet, and is called first.
#[tokio::test(flavor = "multi_thread")]
async fn a_revert_computed_by_a_node_one_block_behind_is_no_revert() {
    let stack = stack().start().await;
    stack.start_api().await;
    let (one, two) = (Proxy::start(stack.anvil().url()).await, Proxy::start(stack.anvil().url()).await);
    stack.worker().rpc(&[one.url(), two.url()]).start().await;
    let (submitter, contract) = (stack.submitter(0), Address::repeat_byte(0x74));
    stack.anvil().set_code(contract, NEEDS_APPROVAL).await;
    stack.anvil().mine(1).await;
    let approved = approve(&stack, submitter, contract).await;
    one.freeze_at(approved.block_number.unwrap() - 1);
    let estimates = one.calls("eth_estimateGas");
    let tx_id = stack.create(submitter, "needs-it", &needs_it(contract)).await;
    let row = eventually("it is sent", async || match stack.row(tx_id).await {
        row if row.nonce.is_some() => Ok(row),
        row => {
            assert_ne!(row.state, TxState::Failed, "{row:?}");
            Err(row)
        }
    })
    .await;
    assert_eq!(row.nonce, Some(1));
    assert!(one.calls("eth_estimateGas") >= estimates + 2, "the node that lags was asked, twice");
    one.thaw();
    stack.wait_for(tx_id, TxState::Confirmed).await;
    stack.finish().await;
}

/// Scenario 65. The only node lags, and the worker that saw the approval is gone: it is stored in the rows.
#[tokio::test(flavor = "multi_thread")]
async fn a_revert_on_a_state_before_the_submitter_s_own_last_block_is_no_revert() {
    let stack = stack().proxied().start().await;
    stack.start_api().await;
    let worker = stack.start_worker().await;
    let (submitter, contract) = (stack.submitter(0), Address::repeat_byte(0x75));
    stack.anvil().set_code(contract, NEEDS_APPROVAL).await;
    stack.anvil().mine(1).await;
    let approved = approve(&stack, submitter, contract).await;
    worker.stop_sigterm().await;
    stack.proxy().freeze_at(approved.block_number.unwrap() - 1);
    stack.start_worker().await;
    let tx_id = stack.create(submitter, "needs-it", &needs_it(contract)).await;
    let before = stack.proxy().calls("eth_estimateGas");
    eventually("it was estimated a few times, in vain", async || {
        let row = stack.row(tx_id).await;
        assert_ne!(row.state, TxState::Failed, "{row:?}");
        let asked = stack.proxy().calls("eth_estimateGas") - before;
        if asked >= 5 || row.sub_state.as_deref() == Some("waiting_node") {
            Ok(())
        } else {
            Err((asked, row))
        }
    })
    .await;
    stack.proxy().thaw();
    stack.wait_for(tx_id, TxState::Confirmed).await;
    stack.finish().await;
}

/// Scenario 65. The block of the first check is reorged: the second check counts as the first.
#[tokio::test(flavor = "multi_thread")]
async fn a_reorg_between_two_looks_at_a_revert_starts_over() {
    let stack = stack().proxied().mining(Mining::Manual).up().await;
    let (submitter, contract) = (stack.submitter(0), Address::repeat_byte(0x76));
    stack.anvil().set_code(contract, NEEDS_APPROVAL).await;
    stack.anvil().mine(3).await;
    let tx_id = stack.create(submitter, "needs-it", &needs_it(contract)).await;
    wait_sub_state(&stack, tx_id, "checking_revert").await;
    let before = stack.proxy().calls("eth_estimateGas");
    stack.anvil().reorg(2).await;
    eventually("it was looked at again", async || match stack.proxy().calls("eth_estimateGas") - before {
        looks if looks >= 2 => Ok(()),
        looks => Err((looks, stack.row(tx_id).await)),
    })
    .await;
    let slot = |word: u8| json!([contract, format!("{:#066x}", 0), format!("{word:#066x}")]);
    stack.anvil().rpc("anvil_setStorageAt", slot(1)).await;
    stack.anvil().mine(1).await;
    let row = eventually("it is sent", async || match stack.row(tx_id).await {
        row if row.nonce.is_some() => Ok(row),
        row => {
            assert_ne!(row.state, TxState::Failed, "{row:?}");
            Err(row)
        }
    })
    .await;
    assert_eq!(row.nonce, Some(0));
    stack.anvil().mine(1).await;
    stack.wait_for(tx_id, TxState::Confirmed).await;
    stack.finish().await;
}

/// Scenario 65. A real revert is confirmed by two checks and ends: at the next head, or after three seconds without
/// one.
#[tokio::test(flavor = "multi_thread")]
async fn a_true_revert_fails_at_the_next_head_or_after_three_seconds_without_one() {
    for mining in [Mining::Manual, Mining::Interval(1.0)] {
        let stack = stack().mining(mining).up().await;
        let (submitter, contract) = (stack.submitter(0), Address::repeat_byte(0x77));
        stack.anvil().set_code(contract, NEEDS_APPROVAL).await;
        let tx_id = stack.create(submitter, "reverts", &needs_it(contract)).await;
        let row = wait_sub_state(&stack, tx_id, "checking_revert").await;
        assert_eq!((row.state, row.nonce), (TxState::Queued, None));
        assert_eq!(stack.get(tx_id).await["error"]["code"], "would_revert");
        let row = stack.wait_for_within(SOON, tx_id, TxState::Failed).await;
        assert_eq!((row.nonce, row.sub_state.as_deref()), (None, Some("would_revert")));
        stack.finish().await;
    }
}

/// Waits until this many transactions are in the mempool, long before the timer would have resent them.
async fn pending_soon(stack: &Stack, count: u64) {
    eventually_within(SOON, &format!("{count} are in the pool again"), async || {
        match stack.anvil().pending().await {
            pending if pending == count => Ok(()),
            pending => Err(pending),
        }
    })
    .await;
}

/// Scenario 116. `resubmit.interval` is a minute.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_restarts_with_an_empty_pool_has_everything_again_at_once() {
    let stack = stack().window(3).submitters(2).mining(Mining::Manual).up().await;
    let to = Address::repeat_byte(0x78);
    let mut tx_ids = Vec::new();
    for submitter in stack.submitters() {
        for n in 0..3 {
            tx_ids.push(stack.create(submitter, &format!("r{n}"), &payload(to, 1)).await);
        }
    }
    stack.wait_pending(6).await;
    for tx_id in &tx_ids {
        stack.wait_for(*tx_id, TxState::Submitted).await;
    }
    stack.anvil().restart().await;
    pending_soon(&stack, 6).await;
    stack.anvil().mine(1).await;
    stack.wait_confirmed(&tx_ids).await;
    assert_eq!(stack.anvil().balance(to).await, 6.into());
    stack.finish().await;
}

/// Scenario 116. Only the mempool is lost, and no call failed.
#[tokio::test(flavor = "multi_thread")]
async fn a_pool_that_was_emptied_without_a_word_is_filled_again_within_two_block_times() {
    let stack = stack().window(2).mining(Mining::Manual).up().await;
    let (submitter, to) = (stack.submitter(0), Address::repeat_byte(0x79));
    let first = stack.create(submitter, "first", &payload(to, 1)).await;
    let second = stack.create(submitter, "second", &payload(to, 1)).await;
    stack.wait_for(first, TxState::Submitted).await;
    stack.wait_for(second, TxState::Submitted).await;
    stack.anvil().drop_all().await;
    pending_soon(&stack, 2).await;
    stack.anvil().mine(1).await;
    stack.wait_confirmed(&[first, second]).await;
    assert_eq!(stack.anvil().balance(to).await, 2.into());
    stack.finish().await;
}

/// Scenario 116. The node was unreachable for long, and all backoffs are at their maximum.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_refused_while_a_node_was_away_is_sent_as_soon_as_it_is_back() {
    let stack = stack().submitters(2).proxied().up().await;
    let (proxy, to) = (stack.proxy(), Address::repeat_byte(0x7a));
    let first = stack.create(stack.submitter(1), "first", &payload(to, 1)).await;
    stack.wait_for(first, TxState::Confirmed).await;
    proxy.always("eth_sendRawTransaction", Fault::Close);
    proxy.always("eth_getBlockByNumber", Fault::Close);
    let refused = stack.create(stack.submitter(0), "refused", &payload(to, 1)).await;
    eventually("the next wait is of sixteen seconds", async || match proxy.sent().len() {
        sent if sent >= 8 => Ok(()),
        sent => Err((sent, stack.row(refused).await)),
    })
    .await;
    proxy.clear();
    stack.wait_for_within(Duration::from_secs(12), refused, TxState::Confirmed).await;
    assert_eq!(stack.anvil().balance(to).await, 2.into());
    stack.finish().await;
}

/// Scenario 116. Blocks are rolled back and their transactions are lost; the chain mines at an interval.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_rollback_took_is_mined_again_at_once_where_blocks_come_by_the_clock() {
    let stack = stack().mining(Mining::Interval(1.0)).confirmations(6).up().await;
    let (submitter, to) = (stack.submitter(0), Address::repeat_byte(0x7b));
    let snapshot = stack.anvil().snapshot().await;
    let tx_id = stack.create(submitter, "rolled-back", &payload(to, 1)).await;
    stack.wait_for(tx_id, TxState::Tracking).await;
    stack.anvil().revert(snapshot).await;
    stack.wait_for_within(Duration::from_secs(30), tx_id, TxState::Confirmed).await;
    assert_eq!(stack.anvil().balance(to).await, 1.into());
    stack.finish().await;
}

/// Scenario 116. The same on a chain that mines only for transactions: only a resend leads to a block.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_rollback_took_is_mined_again_at_once_where_blocks_come_with_transactions() {
    let stack = stack().confirmations(3).up().await;
    let (submitter, to) = (stack.submitter(0), Address::repeat_byte(0x7c));
    let snapshot = stack.anvil().snapshot().await;
    let tx_id = stack.create(submitter, "rolled-back", &payload(to, 1)).await;
    stack.wait_for(tx_id, TxState::Tracking).await;
    stack.anvil().revert(snapshot).await;
    eventually_within(SOON, "it is in a block again", async || {
        match stack.anvil().count(submitter.address(), "latest").await {
            1 => Ok(()),
            count => Err((count, stack.row(tx_id).await)),
        }
    })
    .await;
    stack.anvil().mine(3).await;
    stack.wait_for_within(SOON, tx_id, TxState::Confirmed).await;
    assert_eq!(stack.anvil().balance(to).await, 1.into());
    stack.finish().await;
}

/// Scenario 116. One of two nodes restarts; the other one, which has no transaction of ours, is available all the
/// time.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_among_several_that_comes_back_has_everything_again_at_once() {
    let stack = stack().mining(Mining::Manual).set("rpc.broadcast", "first").start().await;
    stack.start_api().await;
    let (one, two) = (Proxy::start(stack.anvil().url()).await, Proxy::start(stack.anvil().url()).await);
    stack.worker().rpc(&[one.url(), two.url()]).start().await;
    let (submitter, to) = (stack.submitter(0), Address::repeat_byte(0x7d));
    let tx_id = stack.create(submitter, "kept", &payload(to, 1)).await;
    stack.wait_for(tx_id, TxState::Submitted).await;
    // It claims to have what it lost, so only its recovery is a sign.
    for proxy in [&one, &two] {
        proxy.always("eth_getTransactionByHash", Fault::Result(json!({})));
    }
    one.next(1, "eth_getBlockByNumber", Fault::Close);
    stack.anvil().drop_all().await;
    pending_soon(&stack, 1).await;
    stack.anvil().mine(1).await;
    stack.wait_for(tx_id, TxState::Confirmed).await;
    stack.finish().await;
}
