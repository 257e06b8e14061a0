//! A node that is behind: questions about now are asked about an older block, answers from later ones are hidden.

use serde_json::{Value, json};

/// Place of the block in the parameters of methods that take one.
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

/// Everything that means "now" means `block`.
pub(super) fn question(mut call: Value, block: u64) -> Value {
    let place = call["method"].as_str().and_then(block_parameter);
    if let Some(parameter) = place.and_then(|place| call["params"].get_mut(place))
        && matches!(parameter.as_str(), Some("latest" | "pending"))
    {
        *parameter = json!(format!("{block:#x}"));
    }
    call
}

/// What lies after `block` is not known yet.
pub(super) fn hide(call: &Value, answer: &mut Value, block: u64) {
    let height = |value: &Value| {
        let digits = value.as_str().and_then(|text| text.strip_prefix("0x"));
        digits.and_then(|digits| u64::from_str_radix(digits, 16).ok())
    };
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
