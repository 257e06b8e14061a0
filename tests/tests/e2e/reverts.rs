//! Reverts, reported with the contract's own error: before a nonce is used, on chain, and in a simulation.

use ethers_core::abi::{Token, encode};
use ethers_core::utils::id;
use gapless_testkit::{Address, Mining, Stack, TxId, TxState, eventually, payload};
use serde_json::{Value, json};

use crate::stack;

/// With a value, it stores 1 in slot 0. Without, and if that slot is not 0, it reverts with its own call data.
const MIRROR: &str = "0x3460175760005415601557366000600037366000fd5b005b600160005500";
/// An endless loop: JUMPDEST, PUSH1 0, JUMP.
const LOOP: &str = "0x5b600056";

const ERRORS: [&str; 3] = [
    "Unrelated(uint256)",
    "InsufficientBalance(uint256 available, uint256 required)",
    "error Refused(address who, string why, (uint8 level, bytes proof)[] marks)",
];

fn text(bytes: &[u8]) -> String {
    format!("0x{}", hex::encode(bytes))
}

fn returned(signature: &str, tokens: &[Token]) -> Vec<u8> {
    [id(signature).as_slice(), &encode(tokens)].concat()
}

/// What the contract returns, and the expected report: the revert without its data, and a part of the message.
struct Case {
    name: &'static str,
    data: Vec<u8>,
    revert: Value,
    words: &'static str,
}

fn cases() -> Vec<Case> {
    let case = |name, data, revert, words| Case { name, data, revert, words };
    let panic = |code: u64| returned("Panic(uint256)", &[Token::Uint(code.into())]);
    let balance = "InsufficientBalance(uint256,uint256)";
    let refused = "Refused(address,string,(uint8,bytes)[])";
    let mark = Token::Tuple(vec![Token::Uint(3.into()), Token::Bytes(vec![0xca, 0xfe])]);
    let why = Token::String("tired".into());
    vec![
        case(
            "error",
            returned("Error(string)", &[Token::String("not on a Sunday".into())]),
            json!({ "kind": "error", "reason": "not on a Sunday" }),
            ": not on a Sunday",
        ),
        case(
            "overflow",
            panic(0x11),
            json!({ "kind": "panic", "reason": "arithmetic overflow", "panicCode": "0x11" }),
            "panic: arithmetic overflow (0x11)",
        ),
        case(
            "division",
            panic(0x12),
            json!({ "kind": "panic", "reason": "division by zero", "panicCode": "0x12" }),
            "panic: division by zero (0x12)",
        ),
        case(
            "custom",
            returned(balance, &[Token::Uint(7.into()), Token::Uint(9.into())]),
            json!({ "kind": "custom", "name": "InsufficientBalance", "signature": balance, "arguments": [
                { "name": "available", "type": "uint256", "value": "7" },
                { "name": "required", "type": "uint256", "value": "9" },
            ] }),
            "InsufficientBalance(available: 7, required: 9)",
        ),
        case(
            "dynamic",
            returned(refused, &[Token::Address([0xab; 20].into()), why, Token::Array(vec![mark])]),
            json!({ "kind": "custom", "name": "Refused", "signature": refused, "arguments": [
                { "name": "who", "type": "address", "value": text(&[0xab; 20]) },
                { "name": "why", "type": "string", "value": "tired" },
                { "name": "marks", "type": "(uint8,bytes)[]", "value": [{ "level": "3", "proof": "0xcafe" }] },
            ] }),
            "why: \"tired\"",
        ),
        case("empty", vec![], json!({ "kind": "empty" }), "revert"),
        case("garbage", vec![0xde, 0xad, 0xbe, 0xef, 1], json!({ "kind": "unknown" }), "0xdeadbeef01"),
        // A known selector with invalid data.
        case(
            "liar",
            [id(balance).as_slice(), &[0xff; 40]].concat(),
            json!({ "kind": "unknown" }),
            "unrecognised revert data 0x",
        ),
    ]
}

fn call(contract: Address, data: &[u8]) -> Value {
    json!({ "to": format!("{contract:#x}"), "data": text(data), "errors": ERRORS })
}

/// Sets the contract's code, reverting or not.
async fn mirror(stack: &Stack, contract: Address, armed: bool) {
    stack.anvil().set_code(contract, MIRROR).await;
    arm(stack, contract, armed).await;
}

async fn arm(stack: &Stack, contract: Address, armed: bool) {
    let word = format!("{:#066x}", u8::from(armed));
    let slot = format!("{:#066x}", 0);
    stack.anvil().rpc("anvil_setStorageAt", json!([contract, slot, word])).await;
}

fn expected(case: &Case) -> Value {
    let mut revert = case.revert.clone();
    revert["data"] = text(&case.data).into();
    revert
}

/// Asserts that the error of a transaction has this code and case, everywhere it is shown.
async fn assert_reported(stack: &Stack, tx_id: TxId, code: &str, case: &Case) {
    let seen = stack.get(tx_id).await;
    let error = &seen["error"];
    assert_eq!((&seen["state"], &error["code"]), (&json!("FAILED"), &json!(code)), "{}: {seen}", case.name);
    assert_eq!(error["revert"], expected(case), "{}: {seen}", case.name);
    let message = error["message"].as_str().unwrap();
    assert!(message.contains(case.words), "{}: {message}", case.name);
    assert_eq!(error["message"], seen["lastError"], "{}", case.name);
    let event = eventually("its final event is emitted", async || {
        let events = stack.services().into_iter().flat_map(|service| service.events());
        let mut ours = events.filter(|event| event["tx.id"] == tx_id.to_string());
        ours.find(|event| event["event"] == "tx.failed").ok_or("not yet")
    })
    .await;
    let data: Value = serde_json::from_str(event["data"].as_str().unwrap()).unwrap();
    assert_eq!((&data["code"], &data["reason"]), (&json!(code), &error["message"]), "{}", case.name);
}

/// Scenario 10. Estimated, and simulated: no nonce is used, and both report the same.
#[tokio::test(flavor = "multi_thread")]
async fn what_would_revert_is_told_in_the_contract_s_own_words_before_a_nonce_is_used() {
    let stack = stack().set("events.mode", "log").up().await;
    let (submitter, contract) = (stack.submitter(0), Address::repeat_byte(0xd1));
    mirror(&stack, contract, true).await;
    for case in cases() {
        let payload = call(contract, &case.data);
        let tx_id = stack.create(submitter, case.name, &payload).await;
        let row = stack.wait_for(tx_id, TxState::Failed).await;
        assert_eq!((row.nonce, row.sub_state.as_deref()), (None, Some("would_revert")), "{}", case.name);
        assert_reported(&stack, tx_id, "would_revert", &case).await;

        let request = json!({ "submitter": submitter.text(), "payload": payload });
        let answer = stack.client().post_to("/api/v1/tx/simulate", &request).await;
        assert_eq!((answer.status, &answer.body["outcome"]), (200, &json!("reverted")), "{answer:?}");
        assert_eq!(answer.body["revert"], expected(&case), "{}", answer.body);
        let reason = answer.body["reason"].as_str().unwrap();
        assert!(format!(": {reason}").contains(case.words), "{}", answer.body);
    }
    let next = stack.create(submitter, "next", &payload(Address::repeat_byte(0xd0), 1)).await;
    assert_eq!(stack.wait_for(next, TxState::Confirmed).await.nonce, Some(0));
    stack.finish().await;
}

/// Scenario 50. With a gas limit, so that nothing is estimated.
#[tokio::test(flavor = "multi_thread")]
async fn what_reverts_on_chain_is_told_in_the_contract_s_own_words_and_the_next_goes_on() {
    let stack = stack().set("events.mode", "log").up().await;
    let (submitter, contract) = (stack.submitter(0), Address::repeat_byte(0xd2));
    mirror(&stack, contract, true).await;
    let mut doomed = Vec::new();
    for case in cases() {
        let mut payload = call(contract, &case.data);
        payload["gasLimit"] = "200000".into();
        doomed.push((stack.create(submitter, case.name, &payload).await, case));
    }
    let next = stack.create(submitter, "next", &payload(Address::repeat_byte(0xd0), 1)).await;
    for (nonce, (tx_id, case)) in doomed.iter().enumerate() {
        let row = stack.wait_for(*tx_id, TxState::Failed).await;
        assert_eq!((row.nonce, row.sub_state.as_deref()), (Some(nonce as u64), Some("reverted")));
        assert_reported(&stack, *tx_id, "reverted", case).await;
    }
    assert_eq!(stack.wait_for(next, TxState::Confirmed).await.nonce, Some(doomed.len() as u64));

    // Without the signature only the bytes are shown; and the CLI prints a readable report.
    let (custom, case) = doomed.iter().find(|(_, case)| case.name == "custom").unwrap();
    let watched = stack.cli(&["watch", &custom.to_string()]).await;
    for words in ["reverted with InsufficientBalance(uint256,uint256)", "available  7", "required   9"] {
        assert!(watched.stdout.contains(words), "{watched:?}");
    }
    let blind = json!({ "to": format!("{contract:#x}"), "data": text(&case.data), "gasLimit": "200000" });
    let blind = stack.create(submitter, "blind", &blind).await;
    stack.wait_for(blind, TxState::Failed).await;
    let revert = &stack.get(blind).await["error"]["revert"];
    assert_eq!(*revert, json!({ "kind": "unknown", "data": text(&case.data) }));
    stack.finish().await;
}

/// Scenario 50. The estimate succeeded, and the state changed before it was mined.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_reverts_only_after_its_estimate_is_told_with_its_reason() {
    let stack = stack().mining(Mining::Manual).up().await;
    let (submitter, contract) = (stack.submitter(0), Address::repeat_byte(0xd3));
    mirror(&stack, contract, false).await;
    let case = cases().into_iter().find(|case| case.name == "custom").unwrap();
    let tx_id = stack.create(submitter, "flipped", &call(contract, &case.data)).await;
    stack.wait_for(tx_id, TxState::Submitted).await;
    arm(&stack, contract, true).await;
    stack.anvil().mine(1).await;
    assert_eq!(stack.wait_for(tx_id, TxState::Failed).await.nonce, Some(0));
    let error = &stack.get(tx_id).await["error"];
    assert_eq!((&error["code"], &error["revert"]), (&json!("reverted"), &expected(&case)), "{error}");
    stack.finish().await;
}

/// Scenario 50. The change is in the same block, before it: on the state of the previous block it would have
/// succeeded.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_reverts_because_of_its_own_block_is_told_with_its_reason() {
    let stack = stack().submitters(2).mining(Mining::Manual).up().await;
    let (submitter, other, contract) = (stack.submitter(0), stack.submitter(1), Address::repeat_byte(0xd4));
    mirror(&stack, contract, false).await;
    let case = cases().into_iter().find(|case| case.name == "error").unwrap();
    let tx_id = stack.create(submitter, "overtaken", &call(contract, &case.data)).await;
    let fast = json!({
        "to": format!("{contract:#x}"), "value": "1", "gasLimit": "100000",
        "maxFeePerGas": "900000000000", "maxPriorityFeePerGas": "900000000000",
    });
    let first = stack.create(other, "first", &fast).await;
    stack.wait_for(tx_id, TxState::Submitted).await;
    stack.wait_for(first, TxState::Submitted).await;
    stack.anvil().mine(1).await;
    stack.wait_for(first, TxState::Confirmed).await;
    stack.wait_for(tx_id, TxState::Failed).await;
    let error = &stack.get(tx_id).await["error"];
    assert_eq!((&error["code"], &error["revert"]), (&json!("reverted"), &expected(&case)), "{error}");
    stack.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_runs_out_of_gas_says_so() {
    let stack = stack().up().await;
    let (submitter, contract) = (stack.submitter(0), Address::repeat_byte(0xd5));
    stack.anvil().set_code(contract, LOOP).await;
    let endless = json!({ "to": format!("{contract:#x}"), "gasLimit": "60000" });
    let tx_id = stack.create(submitter, "endless", &endless).await;
    let row = stack.wait_for(tx_id, TxState::Failed).await;
    assert_eq!((row.nonce, row.sub_state.as_deref()), (Some(0), Some("reverted")));
    let error = &stack.get(tx_id).await["error"];
    assert_eq!((&error["code"], &error["revert"]), (&json!("out_of_gas"), &Value::Null), "{error}");
    stack.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_answer_is_cut_and_says_how_long_it_was() {
    let stack = stack().up().await;
    let (submitter, contract) = (stack.submitter(0), Address::repeat_byte(0xd6));
    mirror(&stack, contract, true).await;
    let long = returned("Error(string)", &[Token::String("no ".repeat(2_000))]);
    let tx_id = stack.create(submitter, "long", &call(contract, &long)).await;
    stack.wait_for(tx_id, TxState::Failed).await;
    let revert = stack.get(tx_id).await["error"]["revert"].take();
    assert_eq!((&revert["kind"], &revert["size"]), (&json!("error"), &json!(long.len())), "{revert}");
    assert_eq!(revert["data"], text(&long[..1024]));
    assert!(revert["reason"].as_str().unwrap().starts_with("no no no"), "{revert}");
    stack.finish().await;
}

/// Error definitions only explain: they do not make another request. An invalid definition is rejected with its index.
#[tokio::test(flavor = "multi_thread")]
async fn the_errors_of_a_contract_are_no_part_of_what_a_request_means() {
    let stack = stack().up().await;
    let (client, submitter, to) = (stack.client(), stack.submitter(0), Address::repeat_byte(0xd7));
    let with = |errors: Value| json!({ "to": format!("{to:#x}"), "value": "1", "errors": errors });
    let tx_id = stack.create(submitter, "explained", &with(json!(["error A(uint a)"]))).await;
    for again in [with(json!([])), with(json!(["B()"])), payload(to, 1)] {
        let answer = client.post(submitter, "explained", &again).await;
        assert_eq!((answer.status, answer.tx_id()), (200, tx_id.to_string().as_str()), "{answer:?}");
    }
    assert_eq!(stack.get(tx_id).await["payload"]["errors"], json!(["A(uint256 a)"]));
    let many: Vec<String> = (0..65).map(|n| format!("E{n}()")).collect();
    for (errors, field) in [
        (json!(["A()", "A(uint7)"]), "payload.errors[1]"),
        (json!([{ "type": "event", "name": "A", "inputs": [] }]), "payload.errors[0].type"),
        (json!(many), "payload.errors"),
    ] {
        let refused = client.post(submitter, "bad", &with(errors)).await;
        assert_eq!((refused.status, refused.code()), (422, "invalid_payload"), "{refused:?}");
        assert_eq!(refused.body["field"], field, "{refused:?}");
    }
    stack.wait_for(tx_id, TxState::Confirmed).await;
    stack.finish().await;
}

/// Older rows without codes keep their messages and get the code of their reason.
#[tokio::test(flavor = "multi_thread")]
async fn an_error_from_before_there_were_codes_is_readable() {
    let stack = stack().up().await;
    let (submitter, contract) = (stack.submitter(0), Address::repeat_byte(0xd8));
    mirror(&stack, contract, true).await;
    let case = cases().into_iter().find(|case| case.name == "error").unwrap();
    let tx_id = stack.create(submitter, "old", &call(contract, &case.data)).await;
    stack.wait_for(tx_id, TxState::Failed).await;
    assert_eq!(stack.sql("UPDATE managed_tx SET error = NULL").await, 1);
    let error = json!({ "code": "would_revert", "message": "would revert: not on a Sunday" });
    assert_eq!(stack.get(tx_id).await["error"], error);
    stack.finish().await;
}
