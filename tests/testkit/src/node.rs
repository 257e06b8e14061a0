//! A chain of a stack, with the operations of tests: mine, reorg, drop, kill. Anvil supports all of them, other nodes
//! some.

use std::path::{Path, PathBuf};

use ethers_core::types::{Address, H256, U256};
use gapless_localnet::Mining;
use serde_json::{Value, json};
use tokio::sync::Mutex;

use crate::eventually::eventually;
use crate::nodes::{HELD_BELOW_TIP, NodeKind, NodeOptions, Server};

#[derive(Debug)]
pub struct Node {
    kind: NodeKind,
    server: Mutex<Server>,
    url: String,
    chain_id: u64,
    /// It only mines transactions with a high tip (`HELD_BELOW_TIP`).
    held: bool,
    /// State file, written when anvil stops gracefully.
    state: PathBuf,
    log: PathBuf,
    http: reqwest::Client,
}

impl Node {
    pub async fn start(chain_id: u64, mining: Mining, log: &Path) -> Node {
        Node::start_with(chain_id, mining, log, &[]).await
    }

    /// `extra`: additional command line arguments of anvil.
    pub async fn start_with(chain_id: u64, mining: Mining, log: &Path, extra: &[String]) -> Node {
        let options = NodeOptions { extra: extra.to_vec(), ..NodeOptions::new(chain_id, mining) };
        Node::start_as(NodeKind::Anvil, options, log).await
    }

    /// A node that signs for this many of anvil's well-known accounts: a remote signer.
    pub async fn with_accounts(accounts: u32, chain_id: u64, mining: Mining, log: &Path) -> Node {
        let options = NodeOptions { accounts, ..NodeOptions::new(chain_id, mining) };
        Node::start_as(NodeKind::Anvil, options, log).await
    }

    /// Any node program.
    pub async fn start_as(kind: NodeKind, options: NodeOptions, log: &Path) -> Node {
        let server = Server::start(kind, &options, log).await;
        let url = server.url();
        let mut node = Node {
            kind,
            server: Mutex::new(server),
            url,
            chain_id: options.chain_id,
            held: options.mining == Mining::Manual,
            state: log.with_extension("json"),
            log: log.to_owned(),
            http: gapless_http_client::client_builder().build().expect("a client"),
        };
        match kind {
            NodeKind::Anvil => {}
            // It logs every call by default.
            NodeKind::Hardhat => drop(node.rpc("hardhat_setLoggingEnabled", json!([false])).await),
            NodeKind::Geth => node.chain_id = number(&node.rpc("eth_chainId", json!([])).await),
        }
        node
    }

    pub fn kind(&self) -> NodeKind {
        self.kind
    }

    pub fn url(&self) -> &str {
        &self.url
    }

    pub fn chain_id(&self) -> u64 {
        self.chain_id
    }

    /// Anvil's state; written when it stops gracefully.
    pub(crate) fn state_file(&self) -> &Path {
        &self.state
    }

    /// One call; panics on an error response.
    pub async fn rpc(&self, method: &str, params: Value) -> Value {
        let answer = self.try_rpc(method, params).await;
        answer.unwrap_or_else(|error| panic!("{method}: {error}\nlog of the node:\n{}", self.log_tail()))
    }

    /// One call; an error response is an `Err`.
    pub async fn try_rpc(&self, method: &str, params: Value) -> Result<Value, String> {
        let body = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
        let answer = self.http.post(&self.url).json(&body).send().await.map_err(|error| error.to_string())?;
        let mut answer: Value = answer.json().await.map_err(|error| error.to_string())?;
        match answer.get("error") {
            Some(error) => Err(error.to_string()),
            None => Ok(answer["result"].take()),
        }
    }

    /// The last lines of its log.
    pub fn log_tail(&self) -> String {
        let text = std::fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }

    /// A control method that anvil and Hardhat have under different prefixes.
    async fn control(&self, method: &str, params: Value) {
        let owner = match self.kind {
            NodeKind::Anvil => "anvil",
            NodeKind::Hardhat => "hardhat",
            NodeKind::Geth => panic!("geth does not support {method}"),
        };
        self.rpc(&format!("{owner}_{method}"), params).await;
    }

    pub async fn mine(&self, blocks: u64) {
        self.control("mine", json!([format!("{blocks:#x}")])).await;
    }

    /// Switches a chain with `Mining::Manual` to automatic mining, starting with the mempool.
    pub async fn release(&self) {
        if self.kind == NodeKind::Geth {
            self.rpc("miner_setGasPrice", json!(["0x1"])).await;
            return;
        }
        self.set_automine(true).await;
        self.mine(1).await;
    }

    /// Switches mining of a block for every transaction on or off.
    pub async fn set_automine(&self, on: bool) {
        self.rpc("evm_setAutomine", json!([on])).await;
    }

    /// Mines a block every `seconds`; 0: never.
    pub async fn set_interval(&self, seconds: u64) {
        self.rpc("evm_setIntervalMining", json!([seconds])).await;
    }

    /// On geth the balance can only be increased.
    pub async fn set_balance(&self, address: Address, wei: impl Into<U256>) {
        let wei = wei.into();
        if self.kind == NodeKind::Geth {
            let missing = wei - self.balance(address).await;
            self.send_from_bank(json!({ "to": address, "value": missing })).await;
            return;
        }
        self.control("setBalance", json!([address, wei])).await;
    }

    /// Sends a transaction from geth's prefunded account with a sufficient tip. Returns the receipt.
    async fn send_from_bank(&self, mut transaction: Value) -> Value {
        let bank = self.rpc("eth_accounts", json!([])).await[0].take();
        transaction["from"] = bank;
        // Not more: fee estimates use the tips of recent blocks.
        let tip = if self.held { HELD_BELOW_TIP } else { 1_000_000_000 };
        transaction["maxPriorityFeePerGas"] = json!(U256::from(tip));
        transaction["maxFeePerGas"] = json!(U256::from(3 * tip));
        let hash = self.rpc("eth_sendTransaction", json!([transaction])).await;
        eventually("geth's own transaction is mined", async || {
            // Right after its start it responds with an error, because it is still indexing.
            let receipt = self.try_rpc("eth_getTransactionReceipt", json!([hash])).await?;
            if receipt.is_null() { Err("not mined".to_owned()) } else { Ok(receipt) }
        })
        .await
    }

    /// Deploys a contract with this code. Returns its address.
    pub async fn deploy(&self, code: &str) -> Address {
        if self.kind != NodeKind::Geth {
            let address = Address::random();
            self.set_code(address, code).await;
            return address;
        }
        let code = code.trim_start_matches("0x");
        // PUSH2 length, DUP1, PUSH1 offset of the code, PUSH1 0, CODECOPY, PUSH1 0, RETURN, code.
        let init = format!("0x61{:04x}80600c6000396000f3{code}", code.len() / 2);
        let mut receipt = self.send_from_bank(json!({ "data": init, "gas": "0x40000" })).await;
        assert_eq!(receipt["status"], "0x1", "{receipt}");
        serde_json::from_value(receipt["contractAddress"].take()).unwrap()
    }

    pub async fn set_nonce(&self, address: Address, nonce: u64) {
        self.rpc("anvil_setNonce", json!([address, format!("{nonce:#x}")])).await;
    }

    /// Sets the code of an address; `0x60006000fd` always reverts.
    pub async fn set_code(&self, address: Address, code: &str) {
        self.control("setCode", json!([address, code])).await;
    }

    /// Removes one transaction from the mempool.
    pub async fn drop_transaction(&self, hash: H256) {
        self.control("dropTransaction", json!([hash])).await;
    }

    /// Empties the mempool.
    pub async fn drop_all(&self) {
        self.rpc("anvil_dropAllTransactions", json!([])).await;
    }

    /// Replaces the newest `depth` blocks by empty ones; their transactions are lost.
    pub async fn reorg(&self, depth: u64) {
        self.rpc("anvil_reorg", json!([depth, []])).await;
    }

    pub async fn snapshot(&self) -> Value {
        self.rpc("evm_snapshot", json!([])).await
    }

    /// Reverts to the snapshot and discards later blocks.
    pub async fn revert(&self, snapshot: Value) {
        assert_eq!(self.rpc("evm_revert", json!([snapshot])).await, json!(true), "evm_revert");
    }

    pub async fn head(&self) -> u64 {
        number(&self.rpc("eth_blockNumber", json!([])).await)
    }

    /// `tag`: latest, pending, or a block number in hex.
    pub async fn count(&self, address: Address, tag: &str) -> u64 {
        number(&self.rpc("eth_getTransactionCount", json!([address, tag])).await)
    }

    pub async fn balance(&self, address: Address) -> U256 {
        serde_json::from_value(self.rpc("eth_getBalance", json!([address, "latest"])).await).unwrap()
    }

    pub async fn receipt(&self, hash: H256) -> Option<Value> {
        Some(self.rpc("eth_getTransactionReceipt", json!([hash])).await).filter(|receipt| !receipt.is_null())
    }

    /// All mined transactions of one sender.
    pub async fn mined_from(&self, sender: Address) -> Vec<Value> {
        let mut found = Vec::new();
        for block in 0..=self.head().await {
            let block = self.rpc("eth_getBlockByNumber", json!([format!("{block:#x}"), true])).await;
            let all = block["transactions"].as_array().cloned().unwrap_or_default();
            found.extend(all.into_iter().filter(|tx| tx["from"] == json!(sender)));
        }
        found
    }

    /// Number of pending transactions in the mempool.
    pub async fn pending(&self) -> u64 {
        if self.kind == NodeKind::Hardhat {
            let pending = self.rpc("eth_pendingTransactions", json!([])).await;
            return pending.as_array().map_or(0, Vec::len) as u64;
        }
        number(&self.rpc("txpool_status", json!([])).await["pending"])
    }

    /// Works around a race in anvil: it decides whether a transaction is queued behind a lower nonce before adding
    /// it. If the lower nonce is mined in between, the transaction and all later ones stay queued forever, and
    /// resending has no effect. In this case the mempool is emptied, so that the sender can resend. Returns whether
    /// that was necessary.
    pub async fn free_stranded(&self) -> bool {
        if self.kind != NodeKind::Anvil {
            return false;
        }
        // If the node is unreachable or still mining, the next call checks again.
        for _ in 0..2 {
            let Ok(pool) = self.try_rpc("txpool_content", json!([])).await else { return false };
            if !self.is_stranded(&pool["queued"]).await {
                return false;
            }
        }
        self.drop_all().await;
        true
    }

    /// Whether one of these queued transactions has the next nonce of its sender.
    async fn is_stranded(&self, queued: &Value) -> bool {
        for (sender, by_nonce) in queued.as_object().into_iter().flatten() {
            let nonces =
                by_nonce.as_object().into_iter().flatten().filter_map(|(nonce, _)| nonce.parse::<u64>().ok());
            let Some(lowest) = nonces.min() else { continue };
            let count = self.try_rpc("eth_getTransactionCount", json!([sender, "latest"])).await;
            if count.is_ok_and(|count| number(&count) == lowest) {
                return true;
            }
        }
        false
    }

    pub async fn kill9(&self) {
        self.server.lock().await.kill9();
    }

    /// Restarts at the same address with the same chain; the mempool is lost. Hardhat also loses its chain.
    pub async fn restart(&self) {
        self.server.lock().await.restart().await;
    }

    /// Restarts at the same address with an empty chain.
    pub async fn reset(&self) {
        let mut server = self.server.lock().await;
        server.kill9();
        let _ = std::fs::remove_file(&self.state);
        server.restart().await;
    }

    pub(crate) async fn stop(&self) {
        self.server.lock().await.kill9();
    }
}

fn number(value: &Value) -> u64 {
    let digits = value.as_str().and_then(|text| text.strip_prefix("0x"));
    let parsed = digits.and_then(|digits| u64::from_str_radix(digits, 16).ok()).or(value.as_u64());
    parsed.unwrap_or_else(|| panic!("`{value}` is not a number"))
}
