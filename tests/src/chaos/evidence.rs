//! What the checker judges by: rows by SQL of its own, blocks by plain JSON-RPC, and what the lines to the node carried.

use std::collections::HashSet;

use ethers_core::utils::keccak256;
use serde_json::json;
use sqlx::PgPool;

use super::Arena;
use super::checker::{Attempt, Evidence, Intent, Mined};
use crate::node::Node;

/// Everything, once nothing changes any more.
pub(super) async fn gather(arena: &Arena) -> Evidence {
    let submitters: Vec<String> = arena.stack.submitters().iter().map(|one| one.text()).collect();
    let db = arena.stack.db();
    Evidence {
        mined: mined(arena.stack.anvil(), &submitters).await,
        history: arena.history.entries(),
        intents: intents(db).await.expect("the database answers"),
        attempts: attempts(db).await.expect("the database answers"),
        sent: arena.workers.iter().flat_map(|worker| sent(&worker.proxy.sent())).collect(),
        claims: claims(db).await.expect("the database answers"),
        panics: panics(arena),
        submitters,
    }
}

type RawIntent = (String, String, String, String, Option<i64>, f64, Option<f64>);

async fn intents(db: &PgPool) -> sqlx::Result<Vec<Intent>> {
    let rows: Vec<RawIntent> = sqlx::query_as(
        "SELECT tx_id::TEXT, request_id, submitter, state, nonce, extract(epoch FROM created_at)::FLOAT8,
                extract(epoch FROM finished_at)::FLOAT8
         FROM managed_tx
         ORDER BY seq",
    )
    .fetch_all(db)
    .await?;
    let intent = |(tx_id, request, submitter, state, nonce, created_at, finished_at): RawIntent| Intent {
        tx_id,
        request,
        submitter,
        state,
        nonce: nonce.map(i64::unsigned_abs),
        created_at,
        finished_at,
    };
    Ok(rows.into_iter().map(intent).collect())
}

type RawAttempt = (String, String, i64, String, i64, bool);

async fn attempts(db: &PgPool) -> sqlx::Result<Vec<Attempt>> {
    let rows: Vec<RawAttempt> = sqlx::query_as(
        "SELECT tx_id::TEXT, submitter, nonce, tx_hash, fencing_token, kind = 'ORIGINAL'
         FROM tx_attempt
         ORDER BY created_at, nonce",
    )
    .fetch_all(db)
    .await?;
    let attempt = |(tx_id, submitter, nonce, hash, token, original): RawAttempt| Attempt {
        tx_id,
        submitter,
        nonce: nonce.unsigned_abs(),
        hash,
        token: token.unsigned_abs(),
        original,
    };
    Ok(rows.into_iter().map(attempt).collect())
}

async fn claims(db: &PgPool) -> sqlx::Result<u64> {
    let sum = sqlx::query_scalar("SELECT coalesce(sum(fencing_token), 0)::BIGINT FROM submitter_lease");
    Ok(i64::unsigned_abs(sum.fetch_one(db).await?))
}

/// Every block from the first to the head.
async fn mined(node: &Node, submitters: &[String]) -> Vec<Mined> {
    let mut found = Vec::new();
    for number in 0..=node.head().await {
        let place = format!("{number:#x}");
        let block = node.rpc("eth_getBlockByNumber", json!([place, true])).await;
        for transaction in block["transactions"].as_array().into_iter().flatten() {
            let text = |name: &str| transaction[name].as_str().unwrap_or_default().to_lowercase();
            if !submitters.contains(&text("from")) {
                continue;
            }
            let receipt = node.rpc("eth_getTransactionReceipt", json!([text("hash")])).await;
            found.push(Mined {
                submitter: text("from"),
                nonce: hex_number(&text("nonce")),
                hash: text("hash"),
                block: number,
                succeeded: receipt["status"] == "0x1",
                request: request(&text("input")),
            });
        }
    }
    found
}

/// The id that a client put into the data.
fn request(input: &str) -> Option<String> {
    let bytes = hex::decode(input.trim_start_matches("0x")).expect("the node writes hex");
    (!bytes.is_empty()).then(|| String::from_utf8_lossy(&bytes).into_owned())
}

fn hex_number(text: &str) -> u64 {
    u64::from_str_radix(text.trim_start_matches("0x"), 16).expect("the node writes hex numbers")
}

/// Hashes of raw transactions, each once.
fn sent(raw: &[String]) -> HashSet<String> {
    let hash = |raw: &String| {
        let bytes = hex::decode(raw.trim_start_matches("0x")).unwrap_or_default();
        format!("0x{}", hex::encode(keccak256(bytes)))
    };
    raw.iter().map(hash).collect()
}

fn panics(arena: &Arena) -> Vec<String> {
    let mut found = Vec::new();
    for service in arena.stack.services() {
        let log = service.log();
        let lines = log.lines().filter(|line| line.contains("panicked at"));
        found.extend(lines.map(|line| format!("{}: {line}", service.name())));
    }
    found
}
