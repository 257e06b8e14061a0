//! `txpool_contentFrom`, which geth has and anvil lacks, emulated with `txpool_content`.

use serde_json::{Value, json};

pub(super) const CONTENT_FROM: &str = "txpool_contentFrom";

/// The call that anvil supports.
pub(super) fn question(call: &Value) -> Value {
    json!({ "jsonrpc": "2.0", "id": call["id"], "method": "txpool_content", "params": [] })
}

/// Reduces the response to the requested sender.
pub(super) fn cut(call: &Value, answer: &mut Value) {
    let sender = call["params"][0].as_str().unwrap_or_default().to_lowercase();
    let part = |name: &str| {
        let senders = answer["result"][name].as_object().into_iter().flatten();
        let held = senders.into_iter().find(|(address, _)| address.to_lowercase() == sender);
        held.map_or_else(|| json!({}), |(_, held)| held.clone())
    };
    answer["result"] = json!({ "pending": part("pending"), "queued": part("queued") });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_content_of_one_sender_is_cut_out() {
        let call = json!({ "id": 3, "method": CONTENT_FROM, "params": ["0xab"] });
        assert_eq!(question(&call)["id"], 3);
        let mut answer = json!({ "result": {
            "pending": { "0xAb": { "0": { "nonce": "0x0" } }, "0xcd": { "5": {} } }, "queued": { "0xcd": { "7": {} } },
        } });
        cut(&call, &mut answer);
        assert_eq!(answer["result"], json!({ "pending": { "0": { "nonce": "0x0" } }, "queued": {} }));
    }
}
