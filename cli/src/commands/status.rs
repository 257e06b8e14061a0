//! `gapless status`: one transaction as it is now.

use std::process::ExitCode;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::api::Api;
use crate::args::Status;
use crate::output;

pub async fn run(api: &Api, args: &Status, json: bool) -> Result<ExitCode> {
    let answer = match (&args.tx_id, &args.request_id) {
        (Some(tx_id), _) => api.transaction(tx_id).await?,
        (None, request_id) => {
            let submitter = args.from.as_deref().context("--from is needed with --request-id")?;
            let request_id = request_id.as_deref().context("a txId or --request-id is needed")?;
            api.transaction_by_request(submitter, request_id, args.chain).await?
        }
    };
    if json {
        output::json(&answer);
    } else {
        show(&answer);
    }
    Ok(ExitCode::SUCCESS)
}

/// Every field the API gives, in its order; nested ones as they are.
fn show(answer: &Value) {
    let Some(fields) = answer.as_object() else { return output::json(answer) };
    let width = fields.keys().map(String::len).max().unwrap_or(0);
    for (name, value) in fields.iter().filter(|(_, value)| !value.is_null()) {
        output::line(format!("{name:width$}  {}", output::cell(value)));
    }
}
