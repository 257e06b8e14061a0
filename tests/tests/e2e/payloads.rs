//! Options of a payload: not before and deadline, contracts and calls, transaction types and
//! prices.

use ethers_core::utils::id;
use gapless_testkit::{Address, Mining, Stack, TxId, TxState, U256, eventually, payload};
use serde_json::{Value, json};

use crate::stack;

#[tokio::test(flavor = "multi_thread")]
async fn what_may_not_be_sent_yet_does_not_hold_up_the_queue() {
    let stack = stack().up().await;
    let (submitter, to) = (stack.submitter(0), Address::repeat_byte(0x07));
    let with = |not_before: &str| json!({ "to": format!("{to:#x}"), "value": "1", "notBefore": not_before });
    let later = stack.create(submitter, "later", &with("2999-01-01T00:00:00Z")).await;
    let past = stack.create(submitter, "past", &with("2020-01-01T00:00:00Z")).await;
    let now = stack.create(submitter, "now", &payload(to, 1)).await;
    stack.wait_confirmed(&[past, now]).await;
    assert_eq!((stack.row(past).await.nonce, stack.row(now).await.nonce), (Some(0), Some(1)));
    let row = stack.row(later).await;
    assert_eq!((row.state, row.nonce), (TxState::Queued, None));
    // Simulates the passing of time: it is due in a second instead of in a thousand years.
    stack
        .sql("UPDATE managed_tx SET not_before = clock_timestamp() + interval '1 s' WHERE not_before > now()")
        .await;
    assert_eq!(stack.wait_for(later, TxState::Confirmed).await.nonce, Some(2));
    let early = "SELECT count(*) FROM managed_tx WHERE prepared_at < not_before";
    assert_eq!(sqlx::query_scalar::<_, i64>(early).fetch_one(stack.db()).await.unwrap(), 0);
    stack.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_has_no_nonce_by_its_deadline_is_cancelled_without_one() {
    let stack = stack().mining(Mining::Manual).up().await;
    let (submitter, to) = (stack.submitter(0), Address::repeat_byte(0x08));
    let first = stack.create(submitter, "first", &payload(to, 1)).await;
    stack.wait_for(first, TxState::Submitted).await;
    let due = stack.database_time_in("1 s").await;
    let with = |deadline: &str| json!({ "to": format!("{to:#x}"), "value": "1", "deadline": deadline });
    let late = stack.create(submitter, "late", &with(&due)).await;
    let with_late_deadline = stack.create(submitter, "patient", &with("2999-01-01T00:00:00Z")).await;
    eventually("the deadline passes", async || {
        let passed = "SELECT bool_or(deadline < clock_timestamp()) FROM managed_tx";
        if sqlx::query_scalar(passed).fetch_one(stack.db()).await.unwrap() { Ok(()) } else { Err("not yet") }
    })
    .await;
    stack.anvil().mine(1).await;
    stack.wait_for(first, TxState::Confirmed).await;
    let row = stack.wait_for(late, TxState::Cancelled).await;
    assert_eq!((row.nonce, row.sub_state.as_deref()), (None, Some("deadline")));
    assert!(stack.attempts(late).await.is_empty());
    assert_eq!(
        stack.wait_for(with_late_deadline, TxState::Submitted).await.nonce,
        Some(1),
        "the nonce that was not used"
    );
    stack.anvil().mine(1).await;
    stack.wait_for(with_late_deadline, TxState::Confirmed).await;
    assert_eq!(stack.get(late).await["state"], "CANCELLED");
    assert_eq!(stack.anvil().balance(to).await, 2.into());
    stack.finish().await;
}

/// Stores the first argument in slot 0 and the selector in slot 1: 11 bytes of init code, 16 of contract.
const RECORDER: &str = "0x601080600b6000396000f360043560005560003560e01c60015500";

#[tokio::test(flavor = "multi_thread")]
async fn the_command_line_prints_the_address_of_a_deployed_contract() {
    let stack = stack().up().await;
    stack.wait_announced(&stack.client()).await;
    let from = stack.submitter(0).text();
    let words = ["submit", "--from", &from, "--data", RECORDER, "--request-id", "deploy", "--watch"];
    let output = stack.cli(&words).await;
    assert_eq!(output.code, 0, "{output:?}");
    let found = stack.client().get(&format!("/api/v1/tx/by-request?submitter={from}&requestId=deploy")).await;
    let contract = found.body["receipt"]["contractAddress"].as_str().unwrap();
    let last = output.stdout.lines().last().unwrap();
    assert!(last.starts_with("contract") && last.contains(contract), "{output:?}");
    stack.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deployed_contract_is_called_by_signature_and_by_fragment() {
    let stack = stack().up().await;
    let (client, submitter) = (stack.client(), stack.submitter(0));
    let deployed = stack.create(submitter, "deploy", &json!({ "data": RECORDER })).await;
    stack.wait_for(deployed, TxState::Confirmed).await;
    let contract = stack.get(deployed).await["receipt"]["contractAddress"].as_str().unwrap().to_owned();
    let slot = async |slot: &str| -> U256 {
        let word = stack.anvil().rpc("eth_getStorageAt", json!([contract, slot, "latest"])).await;
        serde_json::from_value(word).unwrap()
    };
    let selector = U256::from_big_endian(&id("record(uint256)"));
    let fragment =
        json!({ "type": "function", "name": "record", "inputs": [{ "name": "x", "type": "uint256" }] });
    let max = U256::MAX.to_string();
    for (request, method, arg) in
        [("by-signature", json!("record(uint256)"), json!("7")), ("by-fragment", fragment, json!(max))]
    {
        let call = json!({ "to": contract, "method": method, "args": [arg] });
        let tx_id = stack.create(submitter, request, &call).await;
        stack.wait_for(tx_id, TxState::Confirmed).await;
        assert_eq!(slot("0x0").await.to_string(), arg.as_str().unwrap(), "{request}");
        assert_eq!(slot("0x1").await, selector, "{request}");
    }
    // The same bytes in another notation are the same request.
    let data = format!("0x{:x}{:064x}", selector, 7);
    let again = client.post(submitter, "by-signature", &json!({ "to": contract, "data": data })).await;
    assert_eq!(again.status, 200, "{again:?}");
    stack.finish().await;
}

async fn on_chain(stack: &Stack, tx_id: TxId) -> Value {
    let hash = stack.wait_for(tx_id, TxState::Confirmed).await.tx_hash.unwrap();
    stack.anvil().rpc("eth_getTransactionByHash", json!([hash])).await
}

#[tokio::test(flavor = "multi_thread")]
async fn transactions_are_of_the_type_and_the_price_that_was_asked_for() {
    let stack = stack().up().await;
    let (submitter, to) = (stack.submitter(0), format!("{:#x}", Address::repeat_byte(0x09)));
    let key = format!("{:#066x}", 5);
    let list = json!([{ "address": to, "storageKeys": [key] }]);
    let create = async |request: &str, payload: Value| {
        on_chain(&stack, stack.create(submitter, request, &payload).await).await
    };

    let tx = create("default", json!({ "to": to })).await;
    assert_eq!((&tx["type"], &tx["gas"]), (&json!("0x2"), &json!("0x5208")), "{tx}");
    let tx = create("legacy", json!({ "to": to, "type": "legacy" })).await;
    assert_eq!(tx["type"], "0x0", "{tx}");
    let tx = create("priced", json!({ "to": to, "gasPrice": "5000000000", "gasLimit": "30000" })).await;
    assert_eq!(
        (&tx["type"], &tx["gasPrice"], &tx["gas"]),
        (&json!("0x0"), &json!("0x12a05f200"), &json!("0x7530"))
    );
    let tx = create("listed", json!({ "to": to, "accessList": list })).await;
    assert_eq!((&tx["type"], &tx["accessList"]), (&json!("0x2"), &list), "{tx}");
    let tx = create("legacy-listed", json!({ "to": to, "type": "legacy", "accessList": list })).await;
    assert_eq!((&tx["type"], &tx["accessList"]), (&json!("0x1"), &list), "{tx}");
    let capped =
        json!({ "to": to, "maxFeePerGas": "0x12a05f200", "maxPriorityFeePerGas": "3", "data": "0x1234" });
    let tx = create("capped", capped).await;
    assert_eq!(
        (&tx["maxFeePerGas"], &tx["maxPriorityFeePerGas"], &tx["input"]),
        (&json!("0x12a05f200"), &json!("0x3"), &json!("0x1234"))
    );
    stack.finish().await;
}
