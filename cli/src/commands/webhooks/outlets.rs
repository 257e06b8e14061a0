//! `gapless outlets`: what workers deliver events to, for operators.

use std::process::ExitCode;

use anyhow::{Context, Result};
use serde_json::Value;

use super::manage::{lag, status};
use crate::api::Api;
use crate::output::{self, cell};

pub async fn run(api: &Api, json: bool) -> Result<ExitCode> {
    let answer = api.outlets().await?;
    if json {
        output::json(&answer);
        return Ok(ExitCode::SUCCESS);
    }
    let items = answer["items"].as_array().context("the response has no list of outlets")?;
    let head = ["ID", "KIND", "TARGET", "STATUS", "LAG", "BEHIND", "WORKER", "FAILING SINCE", "LAST ERROR"];
    output::table(&head, &items.iter().map(row).collect::<Vec<_>>());
    Ok(ExitCode::SUCCESS)
}

fn row(outlet: &Value) -> Vec<String> {
    let health = &outlet["health"];
    vec![
        cell(&outlet["outletId"]),
        cell(&outlet["kind"]),
        cell(&outlet["target"]),
        status(outlet),
        lag(health),
        cell(&health["submittersBehind"]),
        cell(&outlet["worker"]),
        cell(&health["failingSince"]),
        cell(&health["lastError"]),
    ]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_outlet_is_one_line() {
        let outlet = json!({
            "outletId": "id", "kind": "webhook", "target": "https://e.com", "status": "active", "worker": "w1",
            "health": { "lagEvents": 0, "lagSeconds": 0.0, "submittersBehind": 0, "lastError": "timeout" }
        });
        assert_eq!(
            row(&outlet),
            ["id", "webhook", "https://e.com", "active", "0", "0", "w1", "-", "timeout"]
        );
    }
}
