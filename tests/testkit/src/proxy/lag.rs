//! A lagging node: calls on the latest block are redirected to an older one, and newer data is hidden.

use serde_json::{Value, json};

/// Index of the block parameter of a method, if it has one.
pub(super) fn block_parameter(method: &str) -> Option<usize> {
    match method {
        "eth_getBlockByNumber" | "eth_getBlockReceipts" => Some(0),
        "eth_getTransactionCount"
        | "eth_getBalance"
        | "eth_call"
        | "eth_estimateGas"
        | "eth_getCode"
        | "eth_feeHistory" => Some(1),
        _ => None,
    }
}

/// The block hash of a call (EIP-1898), if it has one.
pub(super) fn asked_hash(call: &Value) -> Option<&Value> {
    let place = call["method"].as_str().and_then(block_parameter)?;
    call["params"][place].get("blockHash")
}

/// The error of a node for the state of an unknown block.
pub(super) fn header_not_found(call: &Value) -> Value {
    let error = json!({ "code": -32000, "message": "header not found" });
    json!({ "jsonrpc": "2.0", "id": call["id"], "error": error })
}

/// Replaces `latest` and `pending` by `block`.
pub(super) fn question(mut call: Value, block: u64) -> Value {
    let place = call["method"].as_str().and_then(block_parameter);
    if call["method"] == "eth_estimateGas"
        && let Some(parameters) = call["params"].as_array_mut().filter(|parameters| parameters.len() == 1)
    {
        // A missing block parameter means `latest`.
        parameters.push(json!("latest"));
    }
    if let Some(parameter) = place.and_then(|place| call["params"].get_mut(place))
        && matches!(parameter.as_str(), Some("latest" | "pending"))
    {
        *parameter = json!(format!("{block:#x}"));
    }
    call
}

pub(super) fn height(value: &Value) -> Option<u64> {
    let digits = value.as_str().and_then(|text| text.strip_prefix("0x"));
    digits.and_then(|digits| u64::from_str_radix(digits, 16).ok())
}

/// Hides data of blocks after `block`.
pub(super) fn hide(call: &Value, answer: &mut Value, block: u64) {
    if block_parameter(call["method"].as_str().unwrap_or_default()) == Some(1)
        && call["method"] != "eth_feeHistory"
        && height(&call["params"][1]) > Some(block)
    {
        *answer = header_not_found(call);
        return;
    }
    let result = &mut answer["result"];
    let unknown = match call["method"].as_str().unwrap_or_default() {
        "eth_blockNumber" => {
            *result = json!(format!("{block:#x}"));
            false
        }
        "eth_getTransactionReceipt" | "eth_getTransactionByHash" => {
            height(&result["blockNumber"]) > Some(block)
        }
        "eth_getBlockByNumber" | "eth_getBlockByHash" => height(&result["number"]) > Some(block),
        "eth_getBlockReceipts" => height(&result[0]["blockNumber"]) > Some(block),
        _ => false,
    };
    if unknown {
        *result = Value::Null;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn now_is_the_block_it_is_frozen_at() {
        let call = json!({ "method": "eth_getTransactionCount", "params": ["0x1", "latest"] });
        assert_eq!(question(call, 5)["params"], json!(["0x1", "0x5"]));
        let old = json!({ "method": "eth_getTransactionCount", "params": ["0x1", "0x2"] });
        assert_eq!(question(old.clone(), 5), old);
    }

    #[test]
    fn later_receipts_and_blocks_are_hidden() {
        let call = json!({ "method": "eth_getTransactionReceipt" });
        let mut later = json!({ "result": { "blockNumber": "0x6" } });
        hide(&call, &mut later, 5);
        assert_eq!(later["result"], Value::Null);
        let mut known = json!({ "result": { "blockNumber": "0x5" } });
        hide(&call, &mut known, 5);
        assert_ne!(known["result"], Value::Null);
        let mut head = json!({ "result": "0x9" });
        hide(&json!({ "method": "eth_blockNumber" }), &mut head, 5);
        assert_eq!(head["result"], "0x5");
    }
}
