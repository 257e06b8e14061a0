//! A bare sender: keys and a node, no persistence.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use ethers_core::types::{Bytes, H256};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::bed::Key;
use crate::load::Rpc;

/// As in a worker: calls per request, and concurrent requests.
const BATCH: usize = 100;
/// Anvil's automine is very slow with hundreds pending: with it a request has this many calls, and one more is in
/// progress.
const AUTOMINED: usize = 50;
const SENDERS: usize = 2;
/// A block per second has room for hundreds: a transaction that is not mined by then was lost by anvil.
const LIMIT: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(1);

/// Signs and sends everything as fast as possible, then waits until all is mined. Returns the rate per second.
pub(super) async fn send_all(port: u16, keys: &[Key], each: usize, automine: bool) -> Result<f64> {
    let begun = Instant::now();
    let mut senders = JoinSet::new();
    for part in keys.chunks(keys.len().div_ceil(SENDERS)) {
        senders.spawn(send_part(port, part.to_vec(), each, automine));
    }
    while let Some(done) = senders.join_next().await {
        done??;
    }
    Ok((keys.len() * each) as f64 / begun.elapsed().as_secs_f64())
}

async fn send_part(port: u16, keys: Vec<Key>, each: usize, automine: bool) -> Result<()> {
    let mut rpc = Rpc::open(port).await?;
    let (mut batch, mut sent): (Vec<Value>, Vec<H256>) = (Vec::new(), Vec::new());
    let (most, mut before) = (if automine { AUTOMINED } else { BATCH }, Vec::new());
    let mut left = keys.len() * each;
    for nonce in 0..each as u64 {
        for key in &keys {
            let (hash, raw) = key.sign(nonce);
            batch.push(json!([raw]));
            left -= 1;
            // Only the last nonce of a sender needs a receipt; with automine, the last of each batch.
            if nonce + 1 == each as u64 || (automine && (batch.len() == most || left == 0)) {
                sent.push(hash);
            }
            if batch.len() == most || left == 0 {
                rpc.batch("eth_sendRawTransaction", &std::mem::take(&mut batch)).await?;
                if automine {
                    let earlier = std::mem::replace(&mut before, std::mem::take(&mut sent));
                    until_mined(&mut rpc, earlier).await?;
                }
            }
        }
    }
    until_mined(&mut rpc, before).await?;
    until_mined(&mut rpc, sent).await
}

async fn until_mined(rpc: &mut Rpc, mut hashes: Vec<H256>) -> Result<()> {
    let deadline = Instant::now() + LIMIT;
    while !hashes.is_empty() {
        let mut missing = Vec::new();
        for some in hashes.chunks(BATCH) {
            let params: Vec<Value> = some.iter().map(|hash| json!([hash])).collect();
            let found = rpc.batch("eth_getTransactionReceipt", &params).await?;
            missing.extend(
                some.iter().zip(found).filter(|(_, receipt)| receipt.is_null()).map(|(hash, _)| *hash),
            );
        }
        hashes = missing;
        if Instant::now() > deadline {
            bail!("{} are not mined after {LIMIT:?}", hashes.len());
        }
        if !hashes.is_empty() {
            tokio::time::sleep(POLL).await;
        }
    }
    Ok(())
}

/// Sends one at a time and waits for each receipt. Returns the rate per second.
pub(super) async fn send_and_wait(port: u16, key: &Key, each: usize) -> Result<f64> {
    let mut rpc = Rpc::open(port).await?;
    let begun = Instant::now();
    for nonce in 0..each as u64 {
        let (hash, raw) = key.sign(nonce);
        send_and_see(&mut rpc, hash, &raw).await?;
    }
    Ok(each as f64 / begun.elapsed().as_secs_f64())
}

/// The minimum of two round trips per transaction: send it, read its receipt.
pub(crate) async fn send_and_see(rpc: &mut Rpc, hash: H256, raw: &Bytes) -> Result<()> {
    rpc.call("eth_sendRawTransaction", json!([raw])).await?;
    let deadline = Instant::now() + LIMIT;
    while rpc.call("eth_getTransactionReceipt", json!([hash])).await?.is_null() {
        if Instant::now() > deadline {
            bail!("{hash:#x} is not mined after {LIMIT:?}");
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    Ok(())
}
