//! A node with missing data: no transaction index, no block bodies, no old states.

use serde_json::{Value, json};

use super::lag::block_parameter;

/// Hidden data of mined transactions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Hidden {
    #[default]
    Nothing,
    /// Transactions and receipts by hash.
    Index,
    /// Also blocks with their transactions, and block receipts.
    Everything,
}

impl Hidden {
    pub(super) fn hides(self, call: &Value) -> bool {
        let by_hash = ["eth_getTransactionReceipt", "eth_getTransactionByHash"];
        let method = call["method"].as_str().unwrap_or_default();
        let whole_block = method == "eth_getBlockReceipts"
            || (method.starts_with("eth_getBlockBy") && call["params"][1] == true);
        match self {
            Hidden::Nothing => false,
            Hidden::Index => by_hash.contains(&method),
            Hidden::Everything => by_hash.contains(&method) || whole_block,
        }
    }
}

/// Whether a call needs the state of a block older than the newest `keeps` blocks.
pub(super) async fn is_pruned(client: &reqwest::Client, url: &str, call: &Value, keeps: u64) -> bool {
    let method = call["method"].as_str().unwrap_or_default();
    let needs_state = matches!(
        method,
        "eth_getTransactionCount" | "eth_getBalance" | "eth_call" | "eth_estimateGas" | "eth_getCode"
    );
    let block = block_parameter(method).map(|place| &call["params"][place]);
    let Some(block) = block.filter(|_| needs_state) else { return false };
    let height = match block {
        Value::String(text) if text.starts_with("0x") => height(block),
        Value::Object(named) if named.contains_key("blockHash") => {
            let found = ask(client, url, "eth_getBlockByHash", json!([named["blockHash"], false])).await;
            height(&found["number"])
        }
        _ => None,
    };
    let head = height_of_head(client, url).await;
    height.is_some_and(|height| height + keeps <= head)
}

/// Replaces the response by geth's error for a missing state.
pub(super) fn missing_state(answer: &mut Value) {
    let error =
        json!({ "code": -32000, "message": "missing trie node 0000 (path ) state 0x00 is not available" });
    *answer = json!({ "jsonrpc": "2.0", "id": answer["id"], "error": error });
}

async fn height_of_head(client: &reqwest::Client, url: &str) -> u64 {
    height(&ask(client, url, "eth_blockNumber", json!([])).await).unwrap_or_default()
}

async fn ask(client: &reqwest::Client, url: &str, method: &str, params: Value) -> Value {
    let body = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
    match client.post(url).json(&body).send().await {
        Ok(answer) => answer.json::<Value>().await.map(|answer| answer["result"].clone()).unwrap_or_default(),
        Err(_) => Value::Null,
    }
}

fn height(value: &Value) -> Option<u64> {
    u64::from_str_radix(value.as_str()?.strip_prefix("0x")?, 16).ok()
}
