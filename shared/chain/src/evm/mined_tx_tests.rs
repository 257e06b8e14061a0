//! Transactions of every type, signed, formatted as a node returns them, and then modified field by field.

use ethers_core::types::transaction::eip2718::TypedTransaction;
use ethers_core::types::transaction::eip2930::AccessList;
use ethers_core::types::{Eip1559TransactionRequest, Eip2930TransactionRequest, TransactionRequest};
use ethers_signers::{LocalWallet, Signer as _};
use serde_json::{Value, json};

use super::*;

fn wallet() -> LocalWallet {
    "4646464646464646464646464646464646464646464646464646464646464646".parse().unwrap()
}

fn block_id() -> BlockId {
    BlockId { number: 7, hash: H256::repeat_byte(7) }
}

fn found(transaction: &Value) -> Found {
    // Via text: `RawValue` cannot be deserialised from a `Value`.
    let shown = json!({ "number": "0x7", "hash": H256::repeat_byte(7), "transactions": [transaction] });
    let block: FullBlock = serde_json::from_str(&shown.to_string()).unwrap();
    block.sent_by(wallet().address(), block_id()).unwrap()
}

/// As returned by `eth_getBlockByHash`.
fn shown(typed: &TypedTransaction) -> Value {
    let signature = wallet().sign_transaction_sync(typed).unwrap();
    let raw = typed.rlp_signed(&signature);
    // ethers puts the chain id into `v` for every type.
    let parity = U256::from((signature.v - 35) % 2);
    let mut shown = json!({
        "hash": H256(keccak256(&raw)), "from": wallet().address(), "nonce": typed.nonce().unwrap(),
        "gas": typed.gas().unwrap(), "to": typed.to_addr(), "value": typed.value().unwrap(), "input": typed.data().unwrap(),
        "r": signature.r, "s": signature.s, "blockNumber": "0x7", "chainId": "0x7a69",
    });
    match typed {
        TypedTransaction::Legacy(tx) => {
            shown["type"] = json!("0x0");
            shown["gasPrice"] = json!(tx.gas_price.unwrap());
            shown["v"] = json!(U256::from(signature.v));
        }
        TypedTransaction::Eip2930(tx) => {
            shown["type"] = json!("0x1");
            shown["gasPrice"] = json!(tx.tx.gas_price.unwrap());
            shown["accessList"] = json!(tx.access_list);
            shown["yParity"] = json!(parity);
        }
        TypedTransaction::Eip1559(tx) => {
            shown["type"] = json!("0x2");
            shown["gasPrice"] = json!("0x1");
            shown["maxFeePerGas"] = json!(tx.max_fee_per_gas.unwrap());
            shown["maxPriorityFeePerGas"] = json!(tx.max_priority_fee_per_gas.unwrap());
            shown["accessList"] = json!(tx.access_list);
            shown["v"] = json!(parity);
        }
    }
    shown
}

fn legacy(chain: bool) -> TypedTransaction {
    let request = TransactionRequest::new()
        .to(Address::repeat_byte(9))
        .value(5)
        .nonce(3)
        .gas(21_000)
        .gas_price(9)
        .data(vec![1, 2]);
    TypedTransaction::Legacy(if chain { request.chain_id(31337) } else { request })
}

fn listed() -> AccessList {
    serde_json::from_value(
        json!([{ "address": Address::repeat_byte(4), "storageKeys": [H256::repeat_byte(5)] }]),
    )
    .unwrap()
}

fn typed() -> Vec<TypedTransaction> {
    let TypedTransaction::Legacy(plain) = legacy(true) else { unreachable!() };
    let dynamic = Eip1559TransactionRequest::new()
        .value(0)
        .nonce(0)
        .gas(90_000)
        .max_fee_per_gas(30)
        .max_priority_fee_per_gas(2)
        .data(vec![0x60, 0x00])
        .access_list(listed())
        .chain_id(31337);
    vec![
        legacy(true),
        TypedTransaction::Eip2930(Eip2930TransactionRequest::new(plain, listed())),
        TypedTransaction::Eip1559(dynamic),
    ]
}

#[test]
fn a_transaction_is_proved_by_its_own_signature() {
    for typed in typed() {
        let shown = shown(&typed);
        let found = found(&shown);
        let tx_hash: H256 = serde_json::from_value(shown["hash"].clone()).unwrap();
        let nonce = typed.nonce().unwrap().as_u64();
        assert_eq!(found.proved, [MinedTx { tx_hash, nonce, block: block_id() }], "{shown}");
        assert!(found.unproved.is_empty());
    }
}

/// The negative control: no modified transaction is proved.
#[test]
fn a_modified_transaction_is_not_proved() {
    for typed in typed() {
        for (field, other) in [
            ("hash", json!(H256::repeat_byte(1))),
            ("nonce", json!("0x8")),
            ("value", json!("0x6")),
            ("to", json!(Address::repeat_byte(8))),
            ("input", json!("0x")),
            ("gas", json!("0x1")),
            ("r", json!("0x5")),
            ("s", json!("0x5")),
            ("type", json!("0x7e")),
        ] {
            let mut shown = shown(&typed);
            shown[field] = other;
            let found = found(&shown);
            assert!(found.proved.is_empty(), "{field} of {typed:?}");
            assert_eq!(found.unproved.len(), 1, "{field} of {typed:?}");
        }
    }
}

/// A transaction of an external sender, reported as ours.
#[test]
fn a_sender_that_did_not_sign_is_not_proved() {
    let mut shown = shown(&legacy(true));
    let other = Address::repeat_byte(3);
    shown["from"] = json!(other);
    let text = json!({ "number": "0x7", "hash": H256::repeat_byte(7), "transactions": [shown] }).to_string();
    let block: FullBlock = serde_json::from_str(&text).unwrap();
    let found = block.sent_by(other, block_id()).unwrap();
    assert!(found.proved.is_empty() && found.unproved.len() == 1);
    assert!(block.sent_by(wallet().address(), block_id()).unwrap().proved.is_empty());
}

#[test]
fn blob_and_delegating_transactions_are_proved_as_well() {
    for kind in [3u64, 4] {
        let mut shown = json!({
            "type": format!("{kind:#x}"), "chainId": "0x7a69", "nonce": "0x2", "gas": "0x5208",
            "to": Address::repeat_byte(9), "value": "0x0", "input": "0x", "maxFeePerGas": "0x1e",
            "maxPriorityFeePerGas": "0x2", "accessList": [], "maxFeePerBlobGas": "0x1",
            "blobVersionedHashes": [H256::repeat_byte(1)],
            "authorizationList": [{ "chainId": "0x7a69", "address": Address::repeat_byte(2), "nonce": "0x0",
                                    "yParity": "0x1", "r": "0x3", "s": "0x4" }],
            "from": wallet().address(), "hash": H256::zero(), "yParity": "0x0", "r": "0x1", "s": "0x1",
        });
        let tx: SignedTx = serde_json::from_value(shown.clone()).unwrap();
        let fields = tx.fields(kind).unwrap();
        let signature = wallet().sign_hash(H256(keccak256(encode(kind, fields.iter())))).unwrap();
        let parity = U256::from(signature.v - 27);
        let signed = [item(parity), item(signature.r), item(signature.s)];
        shown["hash"] = json!(H256(keccak256(encode(kind, fields.iter().chain(&signed)))));
        shown["yParity"] = json!(parity);
        shown["r"] = json!(signature.r);
        shown["s"] = json!(signature.s);
        assert_eq!(found(&shown).proved.len(), 1, "type {kind}");
    }
}

#[test]
fn a_legacy_transaction_without_chain_id_is_proved() {
    let mut shown = shown(&legacy(true));
    let tx: SignedTx = serde_json::from_value(shown.clone()).unwrap();
    let fields = tx.fields(0).unwrap();
    let signature = wallet().sign_hash(H256(keccak256(encode(0, fields.iter())))).unwrap();
    let v = U256::from(signature.v);
    let signed = [item(v), item(signature.r), item(signature.s)];
    shown["hash"] = json!(H256(keccak256(encode(0, fields.iter().chain(&signed)))));
    shown["v"] = json!(v);
    shown["r"] = json!(signature.r);
    shown["s"] = json!(signature.s);
    assert_eq!(found(&shown).proved.len(), 1);
}

#[test]
fn another_block_is_refused() {
    let other = BlockId { number: 7, hash: H256::repeat_byte(8) };
    let text = json!({ "number": "0x7", "hash": H256::repeat_byte(7), "transactions": [] }).to_string();
    let block: FullBlock = serde_json::from_str(&text).unwrap();
    assert!(block.sent_by(wallet().address(), other).is_none());
    assert!(block.sent_by(wallet().address(), block_id()).is_some());
}
