//! `gapless pause|resume|release|adopt`: admin actions on a submitter, with a reason.

use std::process::ExitCode;

use anyhow::Result;
use serde_json::{Value, json};

use crate::api::Api;
use crate::args::{Admin, Adopt};
use crate::output;

pub async fn run(api: &Api, action: &str, args: &Admin, json: bool) -> Result<ExitCode> {
    send(api, action, args, &json!({ "reason": args.reason }), json).await
}

pub async fn adopt(api: &Api, args: &Adopt, json: bool) -> Result<ExitCode> {
    let mut body = json!({ "reason": args.admin.reason });
    if let (Some(hash), Some(block)) = (&args.taken_by, args.block) {
        body["takenBy"] = json!({ "txHash": hash, "block": block });
    }
    send(api, "adopt", &args.admin, &body, json).await
}

async fn send(api: &Api, action: &str, args: &Admin, body: &Value, json: bool) -> Result<ExitCode> {
    let answer = api.administer(&args.address, action, args.chain, body).await?;
    if json {
        output::json(&answer);
        return Ok(ExitCode::SUCCESS);
    }
    match answer {
        Value::Object(ref fields) if fields.contains_key("status") => {
            let outcome =
                fields.get("outcome").map_or(String::new(), |outcome| format!(": {}", output::cell(outcome)));
            output::line(format!("{}  {}{outcome}", args.address, output::cell(&fields["status"])));
        }
        _ => output::line(format!("{}  {action}: accepted", args.address)),
    }
    Ok(ExitCode::SUCCESS)
}
