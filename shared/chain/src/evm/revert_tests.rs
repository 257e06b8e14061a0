use ethers_core::abi::{Token, encode};
use serde_json::json;

use super::*;
use gapless_domain::RevertKind;

fn parsed(code: i64, message: &str, data: Option<Value>) -> Option<Failure> {
    failure(&ErrorObject { code, message: message.into(), data })
}

fn describe(code: i64, message: &str, data: Option<Value>) -> Option<String> {
    parsed(code, message, data).map(|failure| failure.describe(&[]))
}

fn text(reason: &str) -> String {
    format!("0x08c379a0{}", hex::encode(encode(&[Token::String(reason.into())])))
}

/// One row for each known format.
#[test]
fn the_returned_bytes_are_found_in_every_format() {
    let hex = text("insufficient funds");
    let hash = format!("0x{}", "ab".repeat(32));
    let hardhat =
        "Error: VM Exception while processing transaction: reverted with reason string 'insufficient funds'";
    let unrecognised = format!(
        "VM Exception while processing transaction: reverted with an unrecognized custom error (return data: {hex})"
    );
    let bare = format!("execution reverted: {hex}");
    let ganache = "VM Exception while processing transaction: revert insufficient funds";
    for (node, code, message, data) in [
        ("geth", 3, "execution reverted: insufficient funds", json!(hex)),
        ("geth 1.9", -32000, "execution reverted", json!(hex)),
        ("reth", 3, "execution reverted: insufficient funds", json!(hex)),
        ("erigon", 3, "execution reverted", json!(hex)),
        ("anvil", 3, "execution reverted: insufficient funds", json!(hex)),
        ("besu", -32000, "Execution reverted (insufficient funds)", json!(hex)),
        ("besu, newer", 3, "Execution reverted", json!(hex)),
        ("openethereum", -32015, "VM execution error.", json!(format!("Reverted {hex}"))),
        ("nethermind", -32015, "VM execution error.", json!(format!("Reverted {hex}"))),
        ("nethermind, newer", 3, "execution reverted: insufficient funds", json!(hex)),
        ("hardhat", -32603, hardhat, json!({ "message": hardhat, "txHash": hash, "data": hex })),
        ("hardhat, nested", -32603, hardhat, json!({ "data": { "data": hex, "message": hardhat } })),
        ("ganache", -32000, ganache, json!({ "hash": hash, "programCounter": 7, "result": hex })),
        (
            "ganache 6",
            -32000,
            ganache,
            json!({ hash.clone(): { "error": "revert", "return": hex }, "stack": "x" }),
        ),
        (
            "a wallet's proxy",
            -32603,
            "Internal JSON-RPC error: execution reverted",
            json!({ "originalError": { "code": 3, "data": hex } }),
        ),
        ("a proxy", -32000, "execution reverted", json!({ "cause": { "error": { "data": hex } } })),
        ("upper case", 3, "execution reverted", json!(hex.to_uppercase().replace("0X", "0x"))),
        ("in the place of the reason", 3, &bare, Value::Null),
        ("only in the message", -32603, &unrecognised, Value::Null),
        (
            "only in the message of parity",
            -32015,
            &format!("VM execution error: Reverted {hex}"),
            Value::Null,
        ),
    ] {
        let failure = parsed(code, message, Some(data)).unwrap_or_else(|| panic!("{node}: no failure"));
        let revert = failure.revert.clone().unwrap_or_else(|| panic!("{node}: no bytes"));
        assert_eq!(format!("{:#x}", revert.data), hex, "{node}");
        assert_eq!(failure.describe(&[]), "insufficient funds", "{node}");
        assert!(!failure.out_of_gas, "{node}");
    }
}

#[test]
fn without_bytes_the_message_is_the_reason() {
    for (message, data) in [
        ("execution reverted: not the owner", None),
        ("execution reverted: not the owner", Some(json!("0x"))),
        ("VM Exception while processing transaction: revert not the owner", None),
        (
            "Error: VM Exception while processing transaction: reverted with reason string 'not the owner'",
            None,
        ),
        ("rpc error: execution reverted: not the owner", Some(json!({ "code": 3 }))),
    ] {
        let failure = parsed(-32000, message, data).unwrap();
        let revert = failure.revert.as_ref().unwrap().decode(&[]);
        assert_eq!(
            (revert.kind, revert.reason.as_deref()),
            (RevertKind::Error, Some("not the owner")),
            "{message}"
        );
        assert_eq!(failure.describe(&[]), "not the owner");
    }
}

#[test]
fn a_revert_without_data_is_empty_and_described_by_the_message() {
    for (code, message, data) in [
        (3, "execution reverted", Some(json!("0x"))),
        (-32000, "execution reverted", None),
        (-32015, "VM execution error.", Some(json!("Reverted 0x"))),
        (-32603, "Error: Transaction reverted without a reason string", Some(json!({ "data": "0x" }))),
    ] {
        let failure = parsed(code, message, data).unwrap();
        assert_eq!(failure.revert.as_ref().unwrap().decode(&[]).kind, RevertKind::Empty, "{message}");
        assert_eq!(failure.describe(&[]), message);
    }
}

#[test]
fn an_aborted_execution_has_no_revert_data() {
    for (code, message, data, out_of_gas) in [
        (-32000, "invalid opcode: INVALID", None, false),
        (-32000, "out of gas", None, true),
        (-32003, "EVM error OutOfGas", None, true),
        (-32000, "EVM error InvalidFEOpcode", None, false),
        (-32015, "VM execution error.", Some(json!("Bad instruction fe")), false),
        (-32015, "VM execution error.", Some(json!("Out of gas")), true),
    ] {
        let failure = parsed(code, message, data).unwrap();
        assert_eq!((failure.revert.clone(), failure.out_of_gas), (None, out_of_gas), "{message}");
        assert_eq!(failure.describe(&[]), message);
    }
}

#[test]
fn a_revert_reason_about_gas_is_not_out_of_gas() {
    let message = "execution reverted: out of gas money";
    for data in [None, Some(json!(text("out of gas money")))] {
        let failure = parsed(3, message, data).unwrap();
        assert_eq!((failure.out_of_gas, failure.describe(&[]).as_str()), (false, "out of gas money"));
    }
}

#[test]
fn a_panic_and_unrecognised_data_are_described() {
    let panic = format!("0x4e487b71{:0>64}", "11");
    assert_eq!(describe(3, "x", Some(panic.into())).as_deref(), Some("panic: arithmetic overflow (0x11)"));
    let unknown = describe(3, "x", Some("0xdeadbeef01".into()));
    assert_eq!(unknown.as_deref(), Some("unrecognised revert data 0xdeadbeef01"));
    let cut = &text("hello")[..20];
    assert!(describe(3, "x", Some(cut.into())).unwrap().starts_with("unrecognised revert data 0x08c379a0"));
}

#[test]
fn an_error_that_is_not_about_execution_is_not_a_failure() {
    for message in
        ["insufficient funds for transfer", "header not found", "gas required exceeds allowance (1)"]
    {
        assert_eq!(parsed(-32000, message, None), None);
    }
    assert_eq!(parsed(-32602, "invalid argument", Some("0xdeadbeef".into())), None);
}

#[test]
fn invalid_data_is_treated_as_empty() {
    for data in [
        json!("0xzz"),
        json!("é0x1"),
        json!(7),
        json!([text("x")]),
        json!({ "data": { "data": { "data": { "data": text("x") } } } }),
    ] {
        let failure = parsed(3, "execution reverted", Some(data.clone())).unwrap();
        assert_eq!(failure.revert.unwrap().decode(&[]).kind, RevertKind::Empty, "{data}");
    }
    let long = format!("0x{}", "ee".repeat(100_000));
    let revert = parsed(3, "execution reverted", Some(long.into())).unwrap().revert.unwrap();
    assert_eq!((revert.data.len(), revert.size), (1024, 100_000));
}

/// Found by the chaos run: an estimate that was answered like this made the transaction FAILED, as if its contract had
/// refused it.
#[test]
fn a_revert_code_with_a_message_known_otherwise_is_not_a_revert() {
    let known = include_str!("../node_answers.tsv").lines().skip(1).filter_map(|line| {
        let cells: Vec<&str> = line.splitn(4, '\t').collect();
        (cells[2] == "3").then(|| (cells[0], cells[3]))
    });
    let mut seen = 0;
    for (class, message) in known.filter(|(class, _)| *class != "unknown") {
        assert_eq!(parsed(3, message, None), None, "{class}: {message}");
        assert!(parsed(3, message, Some(json!(text("no")))).is_some(), "but bytes were returned: {message}");
        seen += 1;
    }
    assert!(seen >= 5, "the table has such rows");
    assert!(parsed(3, "execution reverted: nonce too low", None).is_some(), "reasons may be any text");
    assert!(parsed(3, "an unclassified message", None).is_some());
}
