//! Simulation of a transaction without sending it.

use gapless_testkit::{Address, Stack, TxState, U256, payload};
use serde_json::{Value, json};

use crate::stack;

const ROUTE: &str = "/api/v1/tx/simulate";

fn request(stack: &Stack, payload: &Value) -> Value {
    json!({ "submitter": stack.submitter(0).text(), "payload": payload })
}

fn amount(answer: &Value, field: &str) -> U256 {
    let text = answer[field].as_str().unwrap_or_else(|| panic!("no {field} in {answer}"));
    U256::from_dec_str(text).unwrap()
}

async fn stored(stack: &Stack) -> i64 {
    sqlx::query_scalar("SELECT count(*) FROM managed_tx").fetch_one(stack.db()).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_simulation_tells_gas_and_fees_and_stores_nothing() {
    let stack = stack().up().await;
    let to = Address::repeat_byte(0xe1);
    let answer = stack.client().post_to(ROUTE, &request(&stack, &payload(to, 7))).await;
    assert_eq!((answer.status, &answer.body["outcome"]), (200, &json!("success")), "{}", answer.body);
    let body = answer.body;
    assert_eq!((amount(&body, "gas"), amount(&body, "gasLimit")), (21_000.into(), 21_000.into()));
    assert_eq!(amount(&body, "maxFee"), amount(&body, "maxFeePerGas") * 21_000);
    assert_eq!(amount(&body, "maxCost"), amount(&body, "maxFee") + 7);
    assert!(amount(&body, "expectedFee") <= amount(&body, "maxFee"));
    assert!(amount(&body, "maxPriorityFeePerGas") <= amount(&body, "maxFeePerGas"));
    assert!(amount(&body, "baseFeePerGas") <= amount(&body, "maxFeePerGas"));

    let legacy = json!({ "to": format!("{to:#x}"), "value": "7", "gasPrice": "3000000000" });
    let body = stack.client().post_to(ROUTE, &request(&stack, &legacy)).await.body;
    assert_eq!((amount(&body, "gasPrice"), &body["maxFeePerGas"]), (3_000_000_000_u64.into(), &Value::Null));
    assert_eq!(amount(&body, "maxCost"), U256::from(3_000_000_000_u64) * 21_000 + 7);

    assert_eq!(stored(&stack).await, 0);
    assert_eq!(stack.anvil().balance(to).await, 0.into());
    // A simulated transaction can be sent, and uses the first nonce.
    let tx_id = stack.create(stack.submitter(0), "real", &payload(to, 7)).await;
    assert_eq!(stack.wait_for(tx_id, TxState::Confirmed).await.nonce, Some(0));
    stack.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_simulation_tells_why_a_transaction_would_not_succeed() {
    let stack = stack().up().await;
    let contract = Address::repeat_byte(0xe2);
    // Stores Panic(0x11) in memory and reverts with it.
    let panics = format!("0x7f4e487b71{}600052601160235360246000fd", "00".repeat(28));
    stack.anvil().set_code(contract, &panics).await;
    let simulate = async |payload: Value| stack.client().post_to(ROUTE, &request(&stack, &payload)).await;
    let answer = simulate(json!({ "to": format!("{contract:#x}") })).await;
    assert_eq!((answer.status, &answer.body["outcome"]), (200, &json!("reverted")), "{}", answer.body);
    assert!(answer.body["reason"].as_str().unwrap().to_lowercase().contains("overflow"), "{}", answer.body);
    // Also with a gas limit, which a worker would not estimate.
    let answer = simulate(json!({ "to": format!("{contract:#x}"), "gasLimit": "100000" })).await;
    assert_eq!(answer.body["outcome"], "reverted", "{}", answer.body);

    let rich = json!({ "to": format!("{contract:#x}"), "value": U256::exp10(30).to_string() });
    let answer = simulate(rich).await;
    assert_eq!(answer.body["outcome"], "insufficient_funds", "{}", answer.body);
    let cheap = json!({ "to": format!("{:#x}", Address::repeat_byte(1)), "maxFeePerGas": "1" });
    let answer = simulate(cheap).await;
    assert_eq!(answer.body["outcome"], "underpriced", "{}", answer.body);

    // What a create would reject is rejected.
    let answer = simulate(json!({ "to": "0x12" })).await;
    assert_eq!((answer.status, answer.code()), (422, "invalid_payload"), "{}", answer.body);
    let unknown =
        json!({ "submitter": format!("{contract:#x}"), "payload": {"to": format!("{contract:#x}")} });
    let answer = stack.client().post_to(ROUTE, &unknown).await;
    assert_eq!((answer.status, answer.code()), (404, "unknown_submitter"), "{}", answer.body);
    assert_eq!(stored(&stack).await, 0);
    stack.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_api_without_a_node_says_so_and_goes_on_with_the_rest() {
    let stack = stack().up().await;
    let to = Address::repeat_byte(0xe3);
    let body = request(&stack, &payload(to, 1));
    let away = stack.api().set("chain.c0.rpc.urls", vec!["http://127.0.0.1:1"]).start().await;
    let answer = away.client().post_to(ROUTE, &body).await;
    assert_eq!((answer.status, answer.code()), (503, "node_unavailable"), "{}", answer.body);
    assert!(!answer.body.to_string().contains("127.0.0.1"), "{}", answer.body);
    let none = stack.api().set("chain.c0.rpc.urls", json!([])).start().await;
    let answer = none.client().post_to(ROUTE, &body).await;
    assert_eq!((answer.status, answer.code()), (409, "simulation_disabled"), "{}", answer.body);
    let answer = none.client().post(stack.submitter(0), "r", &payload(to, 1)).await;
    stack.record_accepted(&answer);
    stack.wait_for(answer.tx_id().parse().unwrap(), TxState::Confirmed).await;
    stack.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_line_simulates() {
    let stack = stack().up().await;
    let (from, to) = (stack.submitter(0).text(), format!("{:#x}", Address::repeat_byte(0xe4)));
    let output = stack.cli(&["submit", "--from", &from, "--to", &to, "--value", "5", "--simulate"]).await;
    assert_eq!(output.code, 0, "{output:?}");
    assert!(output.stdout.contains("success") && output.stdout.contains("21000"), "{output:?}");
    stack.anvil().set_code(Address::repeat_byte(0xe4), "0x60006000fd").await;
    let output = stack.cli(&["submit", "--from", &from, "--to", &to, "--simulate"]).await;
    assert_eq!(output.code, 1, "{output:?}");
    assert!(output.stdout.contains("reverted"), "{output:?}");
    assert_eq!(stored(&stack).await, 0);
    stack.finish().await;
}
