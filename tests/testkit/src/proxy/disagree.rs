//! Two inconsistent backends behind one address: every other request goes to one that lags or is on another fork.

use ethers_core::utils::keccak256;
use serde_json::{Value, json};

use super::{Proxy, lag};

/// The inconsistent backend.
#[derive(Clone, Debug)]
pub(super) enum Backend {
    /// Shows the chain as of this block.
    Behind(u64),
    Fork(Fork),
}

/// A fork with its own empty blocks above `base`.
#[derive(Clone, Debug)]
pub(super) struct Fork {
    base: u64,
    /// From `base + 1` on.
    blocks: Vec<Value>,
}

impl Fork {
    /// `block` is the last common block from the node. `salt` makes the hashes unique to this fork.
    fn new(block: &Value, length: u64, salt: u64) -> Option<Fork> {
        let base = lag::height(&block["number"])?;
        let time = lag::height(&block["timestamp"])?;
        let mut parent = block["hash"].clone();
        let mut blocks = Vec::new();
        for place in 1..=length {
            let number = base + place;
            let hash =
                format!("0x{}", hex::encode(keccak256(format!("fork {salt} at {number} on {parent}"))));
            let mut own = block.clone();
            own["number"] = json!(format!("{number:#x}"));
            own["timestamp"] = json!(format!("{:#x}", time + place));
            own["parentHash"] = parent;
            own["hash"] = json!(hash);
            own["transactions"] = json!([]);
            own["gasUsed"] = json!("0x0");
            parent = json!(hash);
            blocks.push(own);
        }
        Some(Fork { base, blocks })
    }

    fn head(&self) -> u64 {
        self.base + self.blocks.len() as u64
    }

    /// The fork's block for a number, a tag or a hash. `None`: not a block of the fork.
    fn own(&self, parameter: &Value) -> Option<&Value> {
        match parameter.as_str() {
            Some("latest" | "pending") => self.blocks.last(),
            _ => self.blocks.iter().find(|own| {
                own["number"] == *parameter
                    || own["hash"] == *parameter
                    || own["hash"] == parameter["blockHash"]
            }),
        }
    }

    /// The response, if the node is not needed for it.
    pub(super) fn answer(&self, call: &Value) -> Option<Value> {
        let (method, parameter) = (call["method"].as_str().unwrap_or_default(), &call["params"][0]);
        let is_later = || lag::height(parameter) > Some(self.head());
        let result = match method {
            "eth_blockNumber" => json!(format!("{:#x}", self.head())),
            "eth_getBlockByNumber" | "eth_getBlockByHash" => match self.own(parameter) {
                Some(own) => own.clone(),
                None if method == "eth_getBlockByNumber" && is_later() => Value::Null,
                None => return None,
            },
            "eth_getBlockReceipts" => match self.own(parameter) {
                Some(_) => json!([]),
                None if is_later() => Value::Null,
                None => return None,
            },
            _ => return None,
        };
        Some(json!({ "jsonrpc": "2.0", "id": call["id"], "result": result }))
    }

    /// Redirects calls on the fork's blocks to `base`: the blocks are empty, so the state is the same.
    pub(super) fn question(&self, call: &Value) -> Value {
        let mut call = lag::question(call.clone(), self.base);
        let place = call["method"].as_str().and_then(lag::block_parameter);
        if let Some(parameter) = place.and_then(|place| call["params"].get_mut(place))
            && self.own(parameter).is_some()
        {
            *parameter = json!(format!("{:#x}", self.base));
        }
        call
    }

    /// The last common block. Later blocks of the main chain are hidden.
    pub(super) fn base(&self) -> u64 {
        self.base
    }
}

impl Proxy {
    /// Every other request goes to a backend whose newest block is `block`. Sends are forwarded.
    pub fn disagree_behind(&self, block: u64) {
        self.state().other = Some(Backend::Behind(block));
    }

    /// Every other request goes to a backend with `length` own empty blocks on top of `block`, the last common block
    /// from the node. False: `block` is not a block.
    pub fn disagree_by_fork(&self, block: &Value, length: u64, salt: u64) -> bool {
        let fork = Fork::new(block, length, salt);
        let made = fork.is_some();
        self.state().other = fork.map(Backend::Fork);
        made
    }

    /// Removes the second backend.
    pub fn agree(&self) {
        self.state().other = None;
    }

    /// Calls that got an error from a rule.
    pub fn refused(&self) -> Vec<Refused> {
        self.state().refused.clone()
    }
}

/// A call that got an error from a rule.
#[derive(Clone, Debug)]
pub struct Refused {
    pub method: String,
    pub params: Value,
    pub message: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fork_is_a_separate_chain_on_top_of_the_last_common_block() {
        let base = json!({ "number": "0x5", "hash": "0xaa", "timestamp": "0x10", "transactions": ["0x1"] });
        let fork = Fork::new(&base, 2, 7).unwrap();
        let call = |method: &str, params: Value| json!({ "id": 1, "method": method, "params": params });
        let shown = |method: &str, params: Value| {
            fork.answer(&call(method, params)).map(|answer| answer["result"].clone())
        };
        assert_eq!(shown("eth_blockNumber", json!([])), Some(json!("0x7")));
        let first = shown("eth_getBlockByNumber", json!(["0x6", true])).unwrap();
        let second = shown("eth_getBlockByNumber", json!(["latest", false])).unwrap();
        assert_eq!((&first["parentHash"], &second["parentHash"]), (&json!("0xaa"), &first["hash"]));
        assert_eq!((&second["number"], &second["transactions"]), (&json!("0x7"), &json!([])));
        assert_eq!(shown("eth_getBlockByHash", json!([first["hash"], false])), Some(first.clone()));
        assert_eq!(shown("eth_getBlockReceipts", json!([{ "blockHash": first["hash"] }])), Some(json!([])));
        assert_eq!(shown("eth_getBlockByNumber", json!(["0x8", false])), Some(Value::Null));
        assert_eq!(shown("eth_getBlockByNumber", json!(["0x5", false])), None, "the node has this block");
        let count =
            fork.question(&call("eth_getTransactionCount", json!(["0x1", { "blockHash": first["hash"] }])));
        assert_eq!(count["params"][1], json!("0x5"));
        let other = Fork::new(&base, 2, 8).unwrap();
        assert_ne!(other.blocks[0]["hash"], first["hash"], "another salt is another fork");
    }
}
