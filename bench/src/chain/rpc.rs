//! JSON-RPC as text. Responses are formatted manually, for thousands per second.

use std::fmt::Write;

use ethers_core::types::{Address, Bytes, H256};
use parking_lot::{Mutex, MutexGuard};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::ledger::{Block, Ledger};
use super::transaction;
use super::{Calls, Mining};

/// One gwei.
const BASE_FEE: &str = "0x3b9aca00";
/// A thousand ether.
const BALANCE: &str = "0x3635c9adc5dea00000";
const BLOCK_GAS: &str = "0xffffffffff";

#[derive(Deserialize)]
struct Call<'a> {
    #[serde(borrow)]
    id: &'a RawValue,
    method: &'a str,
    #[serde(borrow)]
    params: Option<&'a RawValue>,
}

/// The response to one HTTP request. Counts its calls.
pub(super) fn answer(ledger: &Mutex<Ledger>, counts: &Mutex<Calls>, mining: Mining, body: &[u8]) -> String {
    let locked = || ledger.lock();
    let is_batch = body.first() == Some(&b'[');
    let calls: Result<Vec<Call<'_>>, _> = if is_batch {
        serde_json::from_slice(body)
    } else {
        serde_json::from_slice(body).map(|call| vec![call])
    };
    let Ok(calls) = calls else {
        return r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"parse error"}}"#.into();
    };
    count(&mut counts.lock(), &calls);
    let mut out = String::with_capacity(calls.len() * 160);
    for (index, call) in calls.iter().enumerate() {
        if index > 0 {
            out.push(',');
        }
        let (id, params) = (call.id.get(), call.params.map_or("[]", RawValue::get));
        // Decode a send before locking the ledger, because decoding is the expensive part.
        let result = match call.method {
            "eth_sendRawTransaction" => send(params, locked),
            method => read(&locked(), method, params),
        };
        // Writing to a String cannot fail.
        let _ = match result {
            Ok(result) => write!(out, r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#),
            Err((code, message)) => {
                let error = json!({ "code": code, "message": message });
                write!(out, r#"{{"jsonrpc":"2.0","id":{id},"error":{error}}}"#)
            }
        };
    }
    if mining == Mining::AtOnce {
        let mut ledger = locked();
        if ledger.has_waiting() {
            ledger.mine();
        }
    }
    if is_batch { format!("[{out}]") } else { out }
}

fn count(counts: &mut Calls, calls: &[Call<'_>]) {
    for call in calls {
        match counts.get_mut(call.method) {
            Some(count) => *count += 1,
            None => drop(counts.insert(call.method.to_owned(), 1)),
        }
    }
}

type Answer = Result<String, (i64, String)>;

fn invalid(error: impl ToString) -> (i64, String) {
    (-32602, error.to_string())
}

fn send<'a>(params: &str, locked: impl Fn() -> MutexGuard<'a, Ledger>) -> Answer {
    let (raw,): (Bytes,) = serde_json::from_str(params).map_err(invalid)?;
    let chain_id = locked().chain_id;
    let transaction = match transaction::decode(&raw, chain_id) {
        Ok(transaction) => transaction,
        Err(why) => {
            locked().refuse(why.clone());
            return Err((-32000, why));
        }
    };
    match locked().take(transaction) {
        Ok(()) => Ok(format!("\"{:#x}\"", transaction.hash)),
        Err(words) => Err((-32000, words.to_owned())),
    }
}

fn read(ledger: &Ledger, method: &str, params: &str) -> Answer {
    Ok(match method {
        "eth_chainId" => quantity(ledger.chain_id),
        "net_version" => format!("\"{}\"", ledger.chain_id),
        "web3_clientVersion" => "\"gapless-bench\"".to_owned(),
        "eth_syncing" => "false".to_owned(),
        "eth_blockNumber" => quantity(ledger.head().number),
        "eth_gasPrice" => format!("\"{BASE_FEE}\""),
        "eth_maxPriorityFeePerGas" => "\"0xf4240\"".to_owned(),
        "eth_getBalance" => format!("\"{BALANCE}\""),
        "eth_estimateGas" => quantity(crate::bed::GAS),
        "eth_call" => "\"0x\"".to_owned(),
        "eth_feeHistory" => fee_history(params)?,
        "eth_getTransactionCount" => {
            let (sender, tag): (Address, String) = serde_json::from_str(params).map_err(invalid)?;
            quantity(match tag.as_str() {
                "pending" => ledger.count_with_pool(&sender),
                tag => ledger.count_at(&sender, height(ledger, tag)?),
            })
        }
        "eth_getBlockByNumber" => {
            let (tag, full): (String, bool) = serde_json::from_str(params).map_err(invalid)?;
            ledger.block(height(ledger, &tag)?).map_or("null".to_owned(), |found| block(found, full))
        }
        "eth_getBlockByHash" => {
            let (hash, full): (H256, bool) = serde_json::from_str(params).map_err(invalid)?;
            ledger.block_by_hash(&hash).map_or("null".to_owned(), |found| block(found, full))
        }
        "eth_getBlockReceipts" => {
            let (hash,): (H256,) = serde_json::from_str(params).map_err(invalid)?;
            ledger.block_by_hash(&hash).map_or("null".to_owned(), |found| {
                let all: Vec<String> =
                    (0..found.transactions.len()).map(|index| receipt(found, index)).collect();
                format!("[{}]", all.join(","))
            })
        }
        "eth_getTransactionReceipt" => {
            let (hash,): (H256,) = serde_json::from_str(params).map_err(invalid)?;
            ledger.place(&hash).map_or("null".to_owned(), |(found, index)| receipt(found, index))
        }
        "eth_getTransactionByHash" => {
            let (hash,): (H256,) = serde_json::from_str(params).map_err(invalid)?;
            ledger.place(&hash).map_or("null".to_owned(), |(found, index)| listed(found, index, true))
        }
        other => return Err((-32601, format!("the method {other} does not exist"))),
    })
}

fn quantity(number: u64) -> String {
    format!("\"{number:#x}\"")
}

/// Mined blocks are final immediately.
fn height(ledger: &Ledger, tag: &str) -> Result<u64, (i64, String)> {
    match tag {
        "latest" | "pending" | "safe" | "finalized" => Ok(ledger.head().number),
        "earliest" => Ok(0),
        number => u64::from_str_radix(number.trim_start_matches("0x"), 16).map_err(invalid),
    }
}

fn fee_history(params: &str) -> Answer {
    let (blocks, _, percentiles): (String, Value, Vec<f64>) =
        serde_json::from_str(params).map_err(invalid)?;
    let blocks = usize::from_str_radix(blocks.trim_start_matches("0x"), 16).map_err(invalid)?.min(1024);
    let reward = vec!["0xf4240"; percentiles.len()];
    Ok(json!({
        "oldestBlock": "0x0",
        "baseFeePerGas": vec![BASE_FEE; blocks + 1],
        "gasUsedRatio": vec![0.5; blocks],
        "reward": vec![reward; blocks],
    })
    .to_string())
}

fn block(block: &Block, full: bool) -> String {
    let all: Vec<String> = (0..block.transactions.len()).map(|index| listed(block, index, full)).collect();
    format!(
        r#"{{"number":"{:#x}","hash":"{:#x}","parentHash":"{:#x}","baseFeePerGas":"{BASE_FEE}","gasLimit":"{BLOCK_GAS}","timestamp":"0x0","transactions":[{}]}}"#,
        block.number,
        block.hash,
        block.parent,
        all.join(",")
    )
}

fn listed(block: &Block, index: usize, full: bool) -> String {
    let transaction = &block.transactions[index];
    if !full {
        return format!("\"{:#x}\"", transaction.hash);
    }
    format!(
        r#"{{"hash":"{:#x}","from":"{:#x}","to":"{:#x}","nonce":"{:#x}","blockNumber":"{:#x}","blockHash":"{:#x}","transactionIndex":"{index:#x}"}}"#,
        transaction.hash, transaction.from, transaction.from, transaction.nonce, block.number, block.hash
    )
}

fn receipt(block: &Block, index: usize) -> String {
    format!(
        r#"{{"transactionHash":"{:#x}","transactionIndex":"{index:#x}","blockNumber":"{:#x}","blockHash":"{:#x}","status":"0x1","gasUsed":"0x5208","effectiveGasPrice":"{BASE_FEE}","contractAddress":null,"logs":[]}}"#,
        block.transactions[index].hash, block.number, block.hash
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bed::{CHAIN_ID, keys};

    #[test]
    fn a_batch_is_sent_mined_and_shown() {
        let ledger = Mutex::new(Ledger::new(CHAIN_ID));
        let key = keys(1).remove(0);
        let (hash, raw) = key.sign(0);
        let calls = json!([
            { "jsonrpc": "2.0", "id": 1, "method": "eth_sendRawTransaction", "params": [raw] },
            { "jsonrpc": "2.0", "id": 2, "method": "eth_nonsense", "params": [] },
        ]);
        let counts = Mutex::default();
        let text = answer(&ledger, &counts, Mining::AtOnce, calls.to_string().as_bytes());
        let answers: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(answers[0]["result"], json!(hash));
        assert_eq!(counts.lock().values().sum::<u64>(), 2);
        assert_eq!(answers[1]["error"]["code"], -32601);
        let ask = |method: &str, params: Value| -> Value {
            let call = json!({ "jsonrpc": "2.0", "id": 3, "method": method, "params": params });
            let text = answer(&ledger, &counts, Mining::AtOnce, call.to_string().as_bytes());
            serde_json::from_str::<Value>(&text).unwrap()["result"].take()
        };
        assert_eq!(ask("eth_getTransactionReceipt", json!([hash]))["blockNumber"], "0x1");
        assert_eq!(ask("eth_getTransactionCount", json!([key.address(), "latest"])), "0x1");
        let head = ask("eth_getBlockByNumber", json!(["latest", true]));
        assert_eq!(head["transactions"][0]["from"], json!(key.address()));
        assert_eq!(ask("eth_getBlockReceipts", json!([head["hash"]])).as_array().unwrap().len(), 1);
        assert_eq!(ask("eth_feeHistory", json!(["0xa", "latest", [50.0]]))["reward"][9], json!(["0xf4240"]));
    }
}
