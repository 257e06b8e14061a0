//! Reads the chain for the audit with plain JSON-RPC, independently of the worker's client.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use anyhow::{Context, Result, bail};
use gapless_config::Secret;
use gapless_http_client::client_builder;
use serde_json::{Value, json};

use super::facts::{InBlock, Mined};
use crate::authorities::trust;

/// Calls per batch; small enough for common providers.
const BATCH: usize = 50;
/// Smaller, because blocks are large.
const BLOCKS_AT_ONCE: u64 = 20;

#[derive(Clone, Debug)]
pub(super) struct Node {
    http: reqwest::Client,
    url: Secret,
}

impl Node {
    /// Fails if the node has another chain id.
    pub(super) async fn connect(url: &Secret, ca_file: Option<&Path>, chain_id: u64) -> Result<Node> {
        let http = trust(client_builder(), ca_file)?.build()?;
        let node = Node { http, url: url.clone() };
        let answers = node.call("eth_chainId", &[json!([])]).await?;
        let found = answers.first().context("no response")?;
        if quantity(found)? != chain_id {
            bail!("the node has chain id {found}, expected {chain_id}");
        }
        Ok(node)
    }

    /// Transaction counts at the newest block, in the order of `addresses`.
    pub(super) async fn counts(&self, addresses: &[String]) -> Result<Vec<u64>> {
        let params: Vec<Value> = addresses.iter().map(|address| json!([address, "latest"])).collect();
        self.call("eth_getTransactionCount", &params).await?.iter().map(quantity).collect()
    }

    /// Number of the newest block.
    pub(super) async fn head(&self) -> Result<u64> {
        quantity(self.call("eth_blockNumber", &[json!([])]).await?.first().context("no response")?)
    }

    /// Scans the blocks `from..=to` for transactions of `senders` (lower-case). Returns them by sender.
    pub(super) async fn in_blocks(
        &self,
        senders: &HashSet<String>,
        from: u64,
        to: u64,
    ) -> Result<HashMap<String, Vec<InBlock>>> {
        let mut found: HashMap<String, Vec<InBlock>> = HashMap::new();
        let mut next = from;
        while next <= to {
            let last = to.min(next.saturating_add(BLOCKS_AT_ONCE - 1));
            let params: Vec<Value> =
                (next..=last).map(|number| json!([format!("{number:#x}"), true])).collect();
            for (number, block) in (next..=last).zip(self.call("eth_getBlockByNumber", &params).await?) {
                let transactions = block["transactions"].as_array();
                for tx in transactions.with_context(|| format!("the node has no block {number}"))? {
                    let (sender, entry) = in_block(number, tx).with_context(|| format!("block {number}"))?;
                    if senders.contains(&sender) {
                        found.entry(sender).or_default().push(entry);
                    }
                }
            }
            next = last + 1;
        }
        Ok(found)
    }

    /// Those of `hashes` that are mined.
    pub(super) async fn mined(&self, hashes: &[String]) -> Result<HashMap<String, Mined>> {
        let params: Vec<Value> = hashes.iter().map(|hash| json!([hash])).collect();
        let receipts = self.call("eth_getTransactionReceipt", &params).await?;
        let found = hashes.iter().zip(&receipts).filter(|(_, receipt)| !receipt.is_null());
        found
            .map(|(hash, receipt)| {
                let status = quantity(&receipt["status"]).with_context(|| format!("receipt of {hash}"))?;
                Ok((hash.clone(), Mined { succeeded: status == 1 }))
            })
            .collect()
    }

    /// Calls one method with many parameters, in batches; results are in the order of `params`.
    async fn call(&self, method: &str, params: &[Value]) -> Result<Vec<Value>> {
        let mut results = Vec::with_capacity(params.len());
        for chunk in params.chunks(BATCH) {
            let calls: Vec<Value> = (0u64..)
                .zip(chunk)
                .map(|(id, params)| json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }))
                .collect();
            let response = self.http.post(self.url.expose()).json(&calls).send().await;
            // Without the URL: it may contain an API key.
            let response =
                response.map_err(reqwest::Error::without_url).with_context(|| method.to_owned())?;
            let answers: Vec<Value> = response
                .json()
                .await
                .map_err(reqwest::Error::without_url)
                .with_context(|| method.to_owned())?;
            results.extend(in_order(method, answers, chunk.len())?);
        }
        Ok(results)
    }
}

fn in_order(method: &str, answers: Vec<Value>, count: usize) -> Result<Vec<Value>> {
    let mut results: Vec<Option<Value>> = vec![None; count];
    for mut answer in answers {
        if let Some(error) = answer.get("error") {
            bail!("{method}: {error}");
        }
        let slot = answer["id"].as_u64().and_then(|id| results.get_mut(usize::try_from(id).ok()?));
        *slot.with_context(|| format!("{method}: unknown response id"))? = Some(answer["result"].take());
    }
    results.into_iter().collect::<Option<_>>().with_context(|| format!("{method}: a response is missing"))
}

fn in_block(block: u64, tx: &Value) -> Result<(String, InBlock)> {
    let text = |field: &str| tx[field].as_str().map(str::to_ascii_lowercase);
    let sender = text("from").context("a transaction without a sender")?;
    let tx_hash = text("hash").context("a transaction without a hash")?;
    Ok((sender, InBlock { tx_hash, nonce: quantity(&tx["nonce"])?, block }))
}

fn quantity(value: &Value) -> Result<u64> {
    let digits = value.as_str().and_then(|text| text.strip_prefix("0x"));
    let number = digits.and_then(|digits| u64::from_str_radix(digits, 16).ok());
    number.with_context(|| format!("`{value}` is not a quantity"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn responses_are_sorted_by_request_id() {
        let answers = vec![json!({ "id": 1, "result": "b" }), json!({ "id": 0, "result": null })];
        assert_eq!(in_order("m", answers, 2).unwrap(), [Value::Null, json!("b")]);
        assert!(in_order("m", vec![json!({ "id": 0, "result": 1 })], 2).is_err());
        assert!(in_order("m", vec![json!({ "id": 0, "error": { "code": 1 } })], 1).is_err());
        assert!(in_order("m", vec![json!({ "id": 9, "result": 1 })], 1).is_err());
    }
}
