//! `gapless audit`: lists policy decisions from the database; read-only.

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};
use gapless_store::{PolicyEntry, PolicyFilter, Store, Timeouts};
use serde_json::{Value, json};

use super::migrate::database_url;
use crate::args::Audit;
use crate::output;

const COLUMNS: [(&str, &str); 12] = [
    ("WHEN", "decidedAt"),
    ("DECISION", "decision"),
    ("RULE", "rule"),
    ("SUBMITTER", "submitter"),
    ("TX", "txId"),
    ("REQUEST", "requestId"),
    ("TO", "to"),
    ("SELECTOR", "selector"),
    ("VALUE", "value"),
    ("LIMIT", "limit"),
    ("DAY TOTAL", "dayTotal"),
    ("WORKER", "worker"),
];

pub async fn run(config: Option<&Path>, args: &Audit, json: bool) -> Result<ExitCode> {
    let filter = PolicyFilter {
        submitter: args.submitter,
        tx_id: args.tx,
        refused_only: args.refused,
        limit: args.limit,
    };
    let store = Store::new(&database_url(config)?, "gapless-audit", 1, Timeouts::default())?;
    let entries = async {
        store.check_schema().await?;
        store.policy_entries(&filter).await
    };
    let entries = entries.await.context("cannot read the audit trail");
    store.close().await;
    // Oldest first, like a log.
    let shown: Vec<Value> = entries?.iter().rev().map(shown).collect();
    if json {
        shown.iter().for_each(output::json);
    } else {
        let row = |entry: &Value| COLUMNS.iter().map(|(_, field)| output::cell(&entry[*field])).collect();
        let rows: Vec<Vec<String>> = shown.iter().map(row).collect();
        output::table(&COLUMNS.map(|(head, _)| head), &rows);
    }
    Ok(ExitCode::SUCCESS)
}

fn shown(entry: &PolicyEntry) -> Value {
    json!({
        "entryNo": entry.entry_no,
        "decidedAt": entry.decided_at.to_rfc3339(),
        "decision": entry.decision,
        "rule": entry.rule,
        "submitter": entry.submitter.to_string(),
        "txId": entry.tx_id.to_string(),
        "requestId": entry.request_id,
        "to": entry.to,
        "selector": entry.selector,
        "value": entry.value,
        "limit": entry.limit,
        "day": entry.day.to_string(),
        "dayTotal": entry.day_total,
        "worker": entry.worker_id,
        "fencingToken": entry.fencing_token,
    })
}
