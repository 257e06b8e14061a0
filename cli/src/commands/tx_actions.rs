//! `gapless cancel` and `gapless speed-up`: actions on an accepted transaction.

use std::process::ExitCode;

use anyhow::Result;

use crate::api::Api;
use crate::args::TxAction;
use crate::output;

pub async fn run(api: &Api, action: &str, args: &TxAction, json: bool) -> Result<ExitCode> {
    let answer = api.tx_action(&args.tx_id, action, args.reason.as_deref()).await?;
    if json {
        output::json(&answer);
        return Ok(ExitCode::SUCCESS);
    }
    let outcome = answer["outcome"].as_str().unwrap_or("recorded; the submitter's worker will process it");
    output::line(format!("{}  {outcome}", args.tx_id));
    Ok(ExitCode::SUCCESS)
}
