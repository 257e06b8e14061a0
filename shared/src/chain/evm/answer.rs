//! Reading a node's reply for one method: the value, or an error that says who answered what.

use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_json::value::RawValue;

use super::decode::RawReceipt;
use super::wire::{ErrorObject, storable};
use crate::chain::port::RpcError;
use crate::domain::{H256, Receipt, U256};

/// No honest result is longer, but for those that are as long as a block or a pool. Read as a value, a text of a list of
/// nothings takes many times its length.
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
        return Err(malformed(method, endpoint, &format!("a result of more than {MAX_RESULT_BYTES} bytes")));
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
            Err(malformed(method, endpoint, "the receipt of another transaction"))
        }
        receipt => Ok(receipt),
    }
}

pub(super) fn malformed(method: &'static str, endpoint: &str, reason: &str) -> RpcError {
    RpcError::Malformed { method, endpoint: endpoint.to_owned(), reason: reason.to_owned() }
}

/// What no class has.
pub(super) fn refused(method: &'static str, endpoint: &str, error: &ErrorObject) -> RpcError {
    RpcError::Refused {
        method,
        endpoint: endpoint.to_owned(),
        code: error.code,
        message: error.message.clone(),
    }
}

/// The node's words, with what it put into `data` when the message alone is empty or general.
pub(super) fn told(error: &ErrorObject) -> String {
    match error.data.as_ref().and_then(Value::as_str) {
        Some(data) if !data.is_empty() => storable(&format!("{} ({data})", error.message)),
        _ => error.message.clone(),
    }
}

/// Hardhat mines what it is sent at once and, where that reverts, answers with an error that names the transaction: it
/// is on chain, whatever the words say.
pub(super) fn says_it_has(error: &ErrorObject, tx_hash: H256) -> bool {
    let named = error.data.as_ref().and_then(|data| data.get("txHash")).and_then(Value::as_str);
    named.and_then(|named| named.parse().ok()) == Some(tx_hash)
}

/// How nodes say that the chain has no `safe` or `finalized` block yet. "header not found" is another thing: the node
/// misses a block that exists.
pub(super) fn nothing_final_yet(message: &str) -> bool {
    let text = message.to_lowercase();
    let names_tag = text.contains("finalized") || text.contains("safe");
    names_tag && text.contains("not found") || text.contains("unknown block")
}

/// The gas that a node lets an execution use, from geth's words: `gas required exceeds allowance (50000000)`.
pub(super) fn gas_allowance(message: &str) -> Option<Option<U256>> {
    let (_, rest) = message.split_once("gas required exceeds allowance")?;
    let digits: String =
        rest.chars().skip_while(|c| !c.is_ascii_digit()).take_while(char::is_ascii_digit).collect();
    Some(U256::from_dec_str(&digits).ok().filter(|_| !digits.is_empty()))
}

/// The method does not exist here, or does not take a block's hash. That a state or a header is "not available" is
/// another thing.
pub(super) fn lacks_method(error: &ErrorObject) -> bool {
    let text = error.message.to_lowercase();
    let is_about_data = ["trie", "state", "header"].iter().any(|word| text.contains(word));
    matches!(error.code, -32601 | -32602)
        || !is_about_data
            && ["method not found", "does not exist", "not supported", "unsupported", "not available"]
                .iter()
                .any(|wording| text.contains(wording))
}
