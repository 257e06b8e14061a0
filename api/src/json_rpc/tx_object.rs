//! A transaction as nodes show it.

use gapless_domain::{Fees, H256, Payload, SubmitterKey, U256};
use gapless_store::AttemptByHash;
use serde_json::{Map, Value, json};

/// An unmined attempt. Its signature is zero: whoever has it can send the bytes, and Gapless decides when they are sent.
pub(super) fn pending(
    submitter: SubmitterKey,
    payload: &Payload,
    tx_hash: H256,
    attempt: &AttemptByHash,
) -> Value {
    let mut tx = Map::new();
    let mut set = |name: &str, value: Value| tx.insert(name.to_owned(), value);
    set("hash", json!(tx_hash));
    for unmined in ["blockHash", "blockNumber", "transactionIndex"] {
        set(unmined, Value::Null);
    }
    set("chainId", quantity(submitter.chain_id.0.into()));
    set("from", submitter.address_text().into());
    set("to", json!(payload.to));
    set("nonce", quantity(attempt.nonce.0.into()));
    set("value", quantity(payload.value));
    set("input", json!(payload.data));
    set("gas", quantity(attempt.gas_limit));
    set("gasPrice", quantity(attempt.fees.cap()));
    match attempt.fees {
        Fees::Legacy { .. } => set("type", "0x0".into()),
        Fees::Eip1559 { max_fee_per_gas, max_priority_fee_per_gas } => {
            set("maxFeePerGas", quantity(max_fee_per_gas));
            set("maxPriorityFeePerGas", quantity(max_priority_fee_per_gas));
            set("accessList", json!(payload.access_list));
            set("yParity", "0x0".into());
            set("type", "0x2".into())
        }
    };
    for zero in ["v", "r", "s"] {
        set(zero, "0x0".into());
    }
    Value::Object(tx)
}

/// The same transaction with the hash that was asked for: libraries look for it in the answer.
pub(super) fn with_hash(mut tx: Map<String, Value>, tx_hash: H256) -> Value {
    tx.insert("hash".to_owned(), json!(tx_hash));
    Value::Object(tx)
}

fn quantity(number: U256) -> Value {
    format!("{number:#x}").into()
}

#[cfg(test)]
mod tests {
    use gapless_domain::{Address, ChainId, Nonce, TxId};
    use gapless_store::AttemptKind;

    use super::*;

    #[test]
    fn quantities_have_no_leading_zeros_and_the_signature_is_zero() {
        let submitter = SubmitterKey { chain_id: ChainId(31337), address: Address::repeat_byte(0xab) };
        let attempt = AttemptByHash {
            tx_id: TxId::new(),
            kind: AttemptKind::Original,
            nonce: Nonce(0),
            gas_limit: 21_000.into(),
            fees: Fees::Eip1559 { max_fee_per_gas: 30.into(), max_priority_fee_per_gas: 2.into() },
            displaced: false,
        };
        let payload = Payload::transfer(Address::repeat_byte(1), 0.into());
        let tx = pending(submitter, &payload, H256::repeat_byte(7), &attempt);
        for (name, value) in [
            ("chainId", "0x7a69"),
            ("nonce", "0x0"),
            ("value", "0x0"),
            ("gas", "0x5208"),
            ("maxFeePerGas", "0x1e"),
            ("maxPriorityFeePerGas", "0x2"),
            ("type", "0x2"),
            ("input", "0x"),
            ("r", "0x0"),
            ("from", "0xabababababababababababababababababababab"),
            ("to", "0x0101010101010101010101010101010101010101"),
        ] {
            assert_eq!(tx[name], value, "{name}");
        }
        assert!(tx["blockNumber"].is_null());
    }
}
