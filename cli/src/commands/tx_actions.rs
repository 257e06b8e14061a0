//! `gapless cancel` and `gapless speed-up`: what may be asked about an accepted transaction.

use std::process::ExitCode;

use anyhow::Result;

use crate::api::Api;
use crate::args::Ask;
use crate::output;

pub async fn run(api: &Api, action: &str, args: &Ask, json: bool) -> Result<ExitCode> {
    let answer = api.ask_about(&args.tx_id, action, args.reason.as_deref()).await?;
    if json {
        output::json(&answer);
        return Ok(ExitCode::SUCCESS);
    }
    let outcome = answer["outcome"]
        .as_str()
        .unwrap_or("recorded; the worker that owns the submitter will deal with it");
    output::line(format!("{}  {outcome}", args.tx_id));
    Ok(ExitCode::SUCCESS)
}
