//! The chain of a stack: an anvil that tests mine, rewind, empty and kill.

use std::path::{Path, PathBuf};

use ethers_core::types::{Address, H256, U256};
use gapless_cli::localnet::{Anvil, AnvilOptions, Mining, StateFile};
use serde_json::{Value, json};
use tokio::sync::Mutex;

use crate::servers;

#[derive(Debug)]
pub struct Node {
    anvil: Mutex<Anvil>,
    url: String,
    chain_id: u64,
    /// Written when the node stops in good order.
    state: PathBuf,
    http: reqwest::Client,
}

impl Node {
    pub async fn start(chain_id: u64, mining: Mining, log: &Path) -> Node {
        Node::start_with(chain_id, mining, log, &[]).await
    }

    /// `extra`: more arguments, as on anvil's command line.
    pub async fn start_with(chain_id: u64, mining: Mining, log: &Path, extra: &[String]) -> Node {
        Node::launch(chain_id, mining, log, 0, extra).await
    }

    /// A node that holds the keys of so many of anvil's well-known accounts, and signs for them: a remote signer.
    pub async fn with_accounts(accounts: u32, chain_id: u64, mining: Mining, log: &Path) -> Node {
        Node::launch(chain_id, mining, log, accounts, &[]).await
    }

    async fn launch(chain_id: u64, mining: Mining, log: &Path, accounts: u32, extra: &[String]) -> Node {
        let state = log.with_extension("json");
        let options = AnvilOptions {
            chain_id,
            mining,
            accounts,
            state: Some(StateFile { path: state.clone(), every_secs: 3600 }),
            log: Some(log.to_owned()),
            extra: extra.to_vec(),
            ..AnvilOptions::default()
        };
        let anvil = Anvil::start(servers::anvil_program().await, options).await.expect("anvil starts");
        let url = anvil.url();
        Node { anvil: Mutex::new(anvil), url, chain_id, state, http: reqwest::Client::new() }
    }

    pub fn url(&self) -> &str {
        &self.url
    }

    pub fn chain_id(&self) -> u64 {
        self.chain_id
    }

    /// One call; an error answer is a panic.
    pub async fn rpc(&self, method: &str, params: Value) -> Value {
        self.try_rpc(method, params).await.unwrap_or_else(|error| panic!("{method}: {error}"))
    }

    /// One call; an error answer is an error.
    pub async fn try_rpc(&self, method: &str, params: Value) -> Result<Value, String> {
        let body = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
        let answer = self.http.post(&self.url).json(&body).send().await.map_err(|error| error.to_string())?;
        let mut answer: Value = answer.json().await.map_err(|error| error.to_string())?;
        match answer.get("error") {
            Some(error) => Err(error.to_string()),
            None => Ok(answer["result"].take()),
        }
    }

    pub async fn mine(&self, blocks: u64) {
        self.rpc("anvil_mine", json!([format!("{blocks:#x}")])).await;
    }

    /// Whether every transaction gets a block at once.
    pub async fn set_automine(&self, on: bool) {
        self.rpc("evm_setAutomine", json!([on])).await;
    }

    /// A block every so many seconds; 0: none by itself.
    pub async fn set_interval(&self, seconds: u64) {
        self.rpc("evm_setIntervalMining", json!([seconds])).await;
    }

    pub async fn set_balance(&self, address: Address, wei: impl Into<U256>) {
        self.rpc("anvil_setBalance", json!([address, wei.into()])).await;
    }

    pub async fn set_nonce(&self, address: Address, nonce: u64) {
        self.rpc("anvil_setNonce", json!([address, format!("{nonce:#x}")])).await;
    }

    /// Puts a contract at an address: `0x60006000fd` reverts whatever it is asked.
    pub async fn set_code(&self, address: Address, code: &str) {
        self.rpc("anvil_setCode", json!([address, code])).await;
    }

    /// Removes one transaction from the mempool.
    pub async fn drop_transaction(&self, hash: H256) {
        self.rpc("anvil_dropTransaction", json!([hash])).await;
    }

    /// Empties the mempool.
    pub async fn drop_all(&self) {
        self.rpc("anvil_dropAllTransactions", json!([])).await;
    }

    /// Replaces the newest `depth` blocks by empty ones; what they held is in no block and in no mempool.
    pub async fn reorg(&self, depth: u64) {
        self.rpc("anvil_reorg", json!([depth, []])).await;
    }

    pub async fn snapshot(&self) -> Value {
        self.rpc("evm_snapshot", json!([])).await
    }

    /// Back to the snapshot: blocks after it never were.
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

    /// Whole transactions, from the first block to the head, of one sender.
    pub async fn mined_from(&self, sender: Address) -> Vec<Value> {
        let mut found = Vec::new();
        for block in 0..=self.head().await {
            let block = self.rpc("eth_getBlockByNumber", json!([format!("{block:#x}"), true])).await;
            let all = block["transactions"].as_array().cloned().unwrap_or_default();
            found.extend(all.into_iter().filter(|tx| tx["from"] == json!(sender)));
        }
        found
    }

    /// Transactions that wait in the mempool.
    pub async fn pending(&self) -> u64 {
        number(&self.rpc("txpool_status", json!([])).await["pending"])
    }

    pub async fn kill9(&self) {
        self.anvil.lock().await.kill9();
    }

    /// The same address and the same chain; the mempool is lost.
    pub async fn restart(&self) {
        self.anvil.lock().await.restart().await.expect("anvil starts again");
    }

    /// The same address and another chain: it begins anew.
    pub async fn reset(&self) {
        let mut anvil = self.anvil.lock().await;
        anvil.kill9();
        let _ = std::fs::remove_file(&self.state);
        anvil.restart().await.expect("anvil starts again");
    }

    pub(crate) async fn stop(&self) {
        self.anvil.lock().await.kill9();
    }
}

fn number(value: &Value) -> u64 {
    let digits = value.as_str().and_then(|text| text.strip_prefix("0x"));
    let parsed = digits.and_then(|digits| u64::from_str_radix(digits, 16).ok()).or(value.as_u64());
    parsed.unwrap_or_else(|| panic!("`{value}` is no number"))
}
