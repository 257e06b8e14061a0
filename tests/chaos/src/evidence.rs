//! Collects the checker's input: rows by separate SQL, blocks by plain JSON-RPC, and the sends that the node proxies
//! saw.

use std::collections::HashSet;

use ethers_core::utils::keccak256;
use gapless_testkit::{Node, Proxy, Refused};
use serde_json::json;
use sqlx::PgPool;

use super::ChaosRun;
use super::checker::{
    Attempt, Consumer, EventEvidence, Evidence, Intent, LoggedEvent, Mined, UpgradeEvidence,
};
use super::faults::calls_invalid;
use super::supervisor::ProcessSlot;

/// Collects everything after all processes have ended.
pub(crate) async fn gather(run: &ChaosRun, consumers: Option<Vec<Consumer>>) -> Evidence {
    let submitters: Vec<String> = run.stack.submitters().iter().map(|one| one.text()).collect();
    let db = run.stack.db();
    let shared = run.options.shared().map(|index| run.stack.submitter(index).text());
    Evidence {
        shared: shared.into_iter().collect(),
        mined: mined(run.stack.anvil(), &submitters).await,
        history: run.history.entries(),
        intents: intents(db).await.expect("the database answers"),
        attempts: attempts(db).await.expect("the database answers"),
        sent: run
            .workers
            .iter()
            .flat_map(ProcessSlot::proxies)
            .flat_map(|proxy| sent(&proxy.sent()))
            .collect(),
        called_invalid: called_invalid(run),
        claims: claims(db).await.expect("the database answers"),
        samples: run.sampler.samples(),
        protected: protected(db).await.expect("the database answers"),
        panics: panics(run),
        upgrade: upgrade(run),
        events: match consumers {
            Some(consumers) => Some(events(db, consumers).await.expect("the database answers")),
            None => None,
        },
        submitters,
    }
}

gapless_testkit::row_struct! {
    struct RawIntent {
        tx_id: String,
        request: String,
        submitter: String,
        state: String,
        sub_state: Option<String>,
        code: Option<String>,
        nonce: Option<i64>,
        created_at: f64,
        finished_at: Option<f64>,
    }
}

async fn intents(db: &PgPool) -> sqlx::Result<Vec<Intent>> {
    let rows: Vec<RawIntent> = sqlx::query_as(
        "SELECT tx_id::TEXT, request_id AS request, submitter, state, sub_state, error ->> 'code' AS code, nonce,
                extract(epoch FROM created_at)::FLOAT8 AS created_at,
                extract(epoch FROM finished_at)::FLOAT8 AS finished_at
         FROM v_managed_tx
         ORDER BY seq",
    )
    .fetch_all(db)
    .await?;
    let intent = |row: RawIntent| Intent {
        tx_id: row.tx_id,
        request: row.request,
        submitter: row.submitter,
        state: row.state,
        nonce: row.nonce.map(i64::unsigned_abs),
        sub_state: row.sub_state,
        code: row.code,
        created_at: row.created_at,
        finished_at: row.finished_at,
    };
    Ok(rows.into_iter().map(intent).collect())
}

type RawAttempt = (String, String, i64, String, i64, bool, i32);

async fn attempts(db: &PgPool) -> sqlx::Result<Vec<Attempt>> {
    let rows: Vec<RawAttempt> = sqlx::query_as(
        "SELECT tx_id::TEXT, submitter, nonce, tx_hash, fencing_token, kind = 'ORIGINAL', ordinal
         FROM v_tx_attempt
         ORDER BY created_at, nonce",
    )
    .fetch_all(db)
    .await?;
    let attempt = |(tx_id, submitter, nonce, hash, token, original, ordinal): RawAttempt| Attempt {
        tx_id,
        submitter,
        nonce: nonce.unsigned_abs(),
        hash,
        token: token.unsigned_abs(),
        original,
        ordinal: u64::from(ordinal.unsigned_abs()),
    };
    Ok(rows.into_iter().map(attempt).collect())
}

type RawEvent = (i64, String, Option<String>, Option<String>, String, Option<String>);

async fn events(db: &PgPool, consumers: Vec<Consumer>) -> sqlx::Result<EventEvidence> {
    let rows: Vec<RawEvent> = sqlx::query_as(
        "SELECT position, id::TEXT, submitter, tx_id::TEXT, kind, data ->> 'txHash'
         FROM v_event
         WHERE position IS NOT NULL
         ORDER BY position",
    )
    .fetch_all(db)
    .await?;
    let left: i64 = sqlx::query_scalar("SELECT count(*) FROM outbox_event").fetch_one(db).await?;
    let event = |(position, id, submitter, tx_id, kind, tx_hash): RawEvent| LoggedEvent {
        position,
        id,
        submitter,
        tx_id,
        kind,
        tx_hash,
    };
    let logged = rows.into_iter().map(event).collect();
    Ok(EventEvidence { logged, consumers, left: left.unsigned_abs() })
}

async fn claims(db: &PgPool) -> sqlx::Result<u64> {
    let sum = sqlx::query_scalar("SELECT coalesce(sum(fencing_token), 0)::BIGINT FROM submitter_lease");
    Ok(i64::unsigned_abs(sum.fetch_one(db).await?))
}

/// Transactions of our submitters in all blocks.
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

/// The `requestId` in the transaction data.
fn request(input: &str) -> Option<String> {
    let bytes = hex::decode(input.trim_start_matches("0x")).expect("data is hex");
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

/// Transactions that a node reported as invalid: the `requestId` for an estimate, the hash for a send.
fn called_invalid(run: &ChaosRun) -> Vec<String> {
    let refused = run.workers.iter().flat_map(ProcessSlot::proxies).flat_map(Proxy::refused);
    let named = |refused: Refused| {
        let param = &refused.params[0];
        match param.as_str() {
            Some(raw) => sent(&[raw.to_owned()]).into_iter().next(),
            None => request(param["data"].as_str().or(param["input"].as_str())?),
        }
    };
    refused.filter(|refused| calls_invalid(&refused.message)).filter_map(named).collect()
}

fn panics(run: &ChaosRun) -> Vec<String> {
    let mut found = Vec::new();
    for service in run.stack.services() {
        let log = service.log();
        let lines = log.lines().filter(|line| line.contains("panicked at"));
        found.extend(lines.map(|line| format!("{}: {line}", service.name())));
    }
    found
}

fn upgrade(run: &ChaosRun) -> Option<UpgradeEvidence> {
    let upgrade = run.options.upgrade.as_ref()?;
    let services = run.stack.services();
    let previous = services.iter().filter(|service| service.program() == upgrade.previous).count();
    let checked = run.v1_fields.as_ref()?.checked();
    let started = (previous, services.len() - previous);
    Some(UpgradeEvidence { processes: run.slots().len(), started, checked })
}

/// Submitters with a `submitter.protected` event.
async fn protected(db: &PgPool) -> sqlx::Result<Vec<String>> {
    let query = "SELECT DISTINCT submitter FROM v_event WHERE kind = 'submitter.protected'";
    sqlx::query_scalar(query).fetch_all(db).await
}

gapless_testkit::row_struct! {
    /// The database part of a sample of one submitter.
    pub(crate) struct Visible {
        pub submitter: String,
        pub open: i64,
        pub progress: String,
        pub token: i64,
        pub events: Vec<String>,
    }
}

/// Progress: the number of final intents, and state, hash and block of each intent with a nonce. New requests,
/// resends and takeovers are not progress. Events: the last event of each family of the submitter and of each open
/// transaction, if it is an alarm.
pub(crate) async fn visible(db: &PgPool) -> sqlx::Result<Vec<Visible>> {
    sqlx::query_as(
        "WITH last_event AS (
             SELECT DISTINCT ON (e.submitter, e.tx_id, f.family) e.submitter, e.tx_id, e.kind
             FROM v_event e
             JOIN (VALUES ('submitter.protected', 'key'), ('submitter.released', 'key'),
                          ('submitter.suspect', 'doubt'), ('submitter.suspect_cleared', 'doubt'),
                          ('submitter.blocked', 'block'), ('submitter.unblocked', 'block'),
                          ('tx.stuck', 'stuck'), ('tx.receipt_updated', 'stuck'), ('tx.reorged', 'stuck')
                  ) f (kind, family) ON f.kind = e.kind
             WHERE e.tx_id IS NULL OR EXISTS (
                 SELECT FROM managed_tx t WHERE t.tx_id = e.tx_id AND t.finished_at IS NULL)
             ORDER BY e.submitter, e.tx_id, f.family, e.position DESC NULLS FIRST, e.event_id DESC),
         alarms AS (
             SELECT submitter AS address, array_agg(DISTINCT kind) AS events
             FROM last_event
             WHERE kind IN ('submitter.protected', 'submitter.suspect', 'submitter.blocked', 'tx.stuck')
             GROUP BY submitter)
         SELECT '0x' || encode(s.submitter, 'hex') AS submitter,
                count(*) FILTER (WHERE t.finished_at IS NULL AND t.tx_id IS NOT NULL) AS open,
                concat_ws('; ', count(t.finished_at) || ' final',
                    string_agg(concat_ws(' ', t.state, t.nonce, t.tx_hash, t.block_hash), ', ' ORDER BY t.seq)
                        FILTER (WHERE t.finished_at IS NULL AND t.nonce IS NOT NULL)) AS progress,
                coalesce(max(l.fencing_token), 0) AS token,
                coalesce(max(a.events), '{}') AS events
         FROM submitter s
         LEFT JOIN submitter_lease l USING (chain_id, submitter)
         LEFT JOIN alarms a ON a.address = '0x' || encode(s.submitter, 'hex')
         LEFT JOIN managed_tx t USING (chain_id, submitter)
         GROUP BY s.submitter",
    )
    .fetch_all(db)
    .await
}
