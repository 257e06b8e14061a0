//! Parses a node's reply to one method: the value, or an error with the node and the method.

use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_json::value::RawValue;

use super::decode::RawReceipt;
use super::wire::{ErrorObject, storable};
use crate::port::RpcError;
use gapless_domain::{H256, Receipt, U256};

/// Limit for results of all methods except those in `LONG`, whose size depends on a block or a mempool. Parsed JSON
/// can take many times the memory of its text.
const MAX_RESULT_BYTES: usize = 1 << 20;
const LONG: [&str; 5] = [
    "eth_getBlockByNumber",
    "eth_getBlockByHash",
    "eth_getBlockReceipts",
    "eth_getTransactionReceipt",
    "txpool_contentFrom",
];

pub(super) fn parse<T: DeserializeOwned>(
    method: &'static str,
    endpoint: &str,
    result: &RawValue,
) -> Result<T, RpcError> {
    if result.get().len() > MAX_RESULT_BYTES && !LONG.contains(&method) {
        return Err(malformed(method, endpoint, &format!("result larger than {MAX_RESULT_BYTES} bytes")));
    }
    serde_json::from_str(result.get()).map_err(|error| malformed(method, endpoint, &error.to_string()))
}

pub(super) fn read_receipt(
    endpoint: &str,
    result: &RawValue,
    hash: H256,
) -> Result<Option<Receipt>, RpcError> {
    let method = "eth_getTransactionReceipt";
    let receipt: Option<RawReceipt> = parse(method, endpoint, result)?;
    match receipt.and_then(RawReceipt::mined) {
        Some(other) if other.tx_hash != hash => {
            Err(malformed(method, endpoint, "receipt of another transaction"))
        }
        receipt => Ok(receipt),
    }
}

pub(super) fn malformed(method: &'static str, endpoint: &str, reason: &str) -> RpcError {
    RpcError::Malformed { method, endpoint: endpoint.to_owned(), reason: reason.to_owned() }
}

/// An unclassified error reply.
pub(super) fn refused(method: &'static str, endpoint: &str, error: &ErrorObject) -> RpcError {
    RpcError::Refused {
        method,
        endpoint: endpoint.to_owned(),
        code: error.code,
        message: error.message.clone(),
    }
}

/// The node's message, followed by `data` if that is a non-empty string: some messages are empty or generic.
pub(super) fn full_message(error: &ErrorObject) -> String {
    match error.data.as_ref().and_then(Value::as_str) {
        Some(data) if !data.is_empty() => storable(&format!("{} ({data})", error.message)),
        _ => error.message.clone(),
    }
}

/// Whether the error's `data.txHash` is our transaction. Hardhat mines a send immediately and returns such an error if
/// it reverts: the transaction is on chain, regardless of the message.
pub(super) fn names_transaction(error: &ErrorObject, tx_hash: H256) -> bool {
    let hash = error.data.as_ref().and_then(|data| data.get("txHash")).and_then(Value::as_str);
    hash.and_then(|hash| hash.parse().ok()) == Some(tx_hash)
}

/// Whether the message means that the chain has no `safe` or `finalized` block yet. "header not found" is different:
/// the node lacks a block that exists.
pub(super) fn no_final_block_yet(message: &str) -> bool {
    let text = message.to_lowercase();
    let names_tag = text.contains("finalized") || text.contains("safe");
    names_tag && text.contains("not found") || text.contains("unknown block")
}

/// The node's gas cap for executions, from geth's message: `gas required exceeds allowance (50000000)`. `Some(None)`:
/// the message contains no number.
pub(super) fn gas_allowance(message: &str) -> Option<Option<U256>> {
    let (_, rest) = message.split_once("gas required exceeds allowance")?;
    let digits: String =
        rest.chars().skip_while(|c| !c.is_ascii_digit()).take_while(char::is_ascii_digit).collect();
    Some(U256::from_dec_str(&digits).ok().filter(|_| !digits.is_empty()))
}

/// Whether the node lacks the method or does not accept a block hash. A state or header that is "not available" is
/// something else.
pub(super) fn lacks_method(error: &ErrorObject) -> bool {
    let text = error.message.to_lowercase();
    let is_about_data = ["trie", "state", "header"].iter().any(|word| text.contains(word));
    matches!(error.code, -32601 | -32602)
        || !is_about_data
            && ["method not found", "does not exist", "not supported", "unsupported", "not available"]
                .iter()
                .any(|wording| text.contains(wording))
}
