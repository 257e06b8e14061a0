//! `gapless submitters`: lists submitters and their state.

use std::process::ExitCode;

use anyhow::Result;
use chrono::Utc;
use serde_json::{Value, json};

use super::waiting;
use crate::api::Api;
use crate::args::Submitters;
use crate::output::{self, cell};

pub async fn run(api: &Api, args: &Submitters, json: bool) -> Result<ExitCode> {
    let mut items = api.submitters().await?;
    items.retain(|item| {
        args.chain.is_none_or(|chain| item["chainId"] == chain)
            && args
                .address
                .as_ref()
                .is_none_or(|address| cell(&item["address"]).eq_ignore_ascii_case(address))
    });
    if json {
        output::json(&json!({ "items": items }));
        return Ok(ExitCode::SUCCESS);
    }
    // The API returns nonces only to admins.
    let with_nonce = items.iter().any(|item| !item["nextNonce"].is_null());
    let mut head = vec!["CHAIN", "ADDRESS", "STATE", "QUEUED", "OLDEST", "IN FLIGHT", "WAITING", "REASON"];
    if with_nonce {
        head.push("NEXT NONCE");
    }
    let rows: Vec<Vec<String>> = items.iter().map(|item| row(item, with_nonce)).collect();
    output::table(&head, &rows);
    Ok(ExitCode::SUCCESS)
}

fn row(item: &Value, with_nonce: bool) -> Vec<String> {
    let oldest =
        item["oldestQueuedAgeSeconds"].as_f64().map_or("-".to_owned(), |seconds| format!("{seconds:.0}s"));
    let mut row = vec![
        cell(&item["chainId"]),
        cell(&item["address"]),
        cell(&item["state"]),
        cell(&item["queueDepth"]),
        oldest,
        cell(&item["inFlight"]),
        waiting::short(&item["waiting"], Utc::now()).unwrap_or_else(|| "-".to_owned()),
        reason(item),
    ];
    if with_nonce {
        row.push(cell(&item["nextNonce"]));
    }
    row
}

/// The most severe reason that prevents it from sending.
fn reason(item: &Value) -> String {
    let reasons = ["protectReason", "suspectReason", "pausedReason", "blockedReason"].map(|name| &item[name]);
    match reasons.into_iter().find(|reason| !reason.is_null()) {
        Some(reason) => cell(reason),
        None => waiting::problem(&item["waiting"])
            .map_or_else(|| "-".to_owned(), |_| cell(&item["waiting"]["message"])),
    }
}
