//! `gapless webhooks test`, `deliveries` and `replay`.

use std::process::ExitCode;

use anyhow::Result;
use chrono::Utc;
use clap::ValueEnum;
use gapless_domain::WebhookId;
use serde_json::{Value, json};

use crate::api::Api;
use crate::args::{Deliveries, DeliveryState, ReplayWebhook};
use crate::output::{self, cell};

pub(super) async fn test(api: &Api, id: WebhookId, json: bool) -> Result<ExitCode> {
    let delivery = api.test_webhook(id).await?;
    if json {
        output::json(&delivery);
    } else {
        output::line(outcome(&delivery));
    }
    let delivered = delivery["state"] == "delivered";
    Ok(if delivered { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

pub(super) async fn list(api: &Api, args: &Deliveries, json: bool) -> Result<ExitCode> {
    let state = args.state.map(word);
    let items = api.deliveries(args.webhook.id, state, args.limit).await?;
    if json {
        output::json(&json!({ "items": items }));
        return Ok(ExitCode::SUCCESS);
    }
    let head =
        ["LAST ATTEMPT", "STATE", "TYPE", "EVENT", "ATTEMPTS", "STATUS", "MS", "NEXT ATTEMPT", "TX", "ERROR"];
    output::table(&head, &items.iter().map(row).collect::<Vec<_>>());
    Ok(ExitCode::SUCCESS)
}

pub(super) async fn replay(api: &Api, args: &ReplayWebhook, json: bool) -> Result<ExitCode> {
    let request = match args.from {
        Some(from) => {
            let until = args.until.unwrap_or_else(Utc::now);
            json!({ "from": from.to_rfc3339(), "until": until.to_rfc3339(), "onlyFailed": args.only_failed })
        }
        None => json!({ "eventIds": args.events }),
    };
    let answer = api.replay_webhook(args.webhook.id, &request).await?;
    if json {
        output::json(&answer);
    } else {
        output::line(format!("{}  events to deliver again: {}", args.webhook.id, cell(&answer["requested"])));
    }
    Ok(ExitCode::SUCCESS)
}

/// As the API names it.
fn word(state: DeliveryState) -> String {
    state.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

/// The result of a test in one line.
fn outcome(delivery: &Value) -> String {
    let time = format!("{} ms", cell(&delivery["durationMs"]));
    match delivery["state"].as_str() {
        Some("delivered") => format!("delivered: {} after {time}", cell(&delivery["statusCode"])),
        Some("pending") => {
            "pending: no worker has tried it yet. Does a worker run with events.webhook.key_file?".into()
        }
        _ => format!("failed after {time}: {}", cell(&delivery["error"])),
    }
}

fn row(delivery: &Value) -> Vec<String> {
    let names = [
        "lastAttemptAt",
        "state",
        "type",
        "eventId",
        "attempts",
        "statusCode",
        "durationMs",
        "nextAttemptAt",
        "txId",
        "error",
    ];
    names.map(|name| cell(&delivery[name])).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_result_of_a_test_is_one_line() {
        for (delivery, line) in [
            (
                json!({ "state": "delivered", "statusCode": 204, "durationMs": 7 }),
                "delivered: 204 after 7 ms",
            ),
            (
                json!({ "state": "retrying", "error": "503 Service Unavailable", "durationMs": 7 }),
                "failed after 7 ms: 503 Service Unavailable",
            ),
            (json!({ "state": "pending", "durationMs": 0 }), "pending: no worker has tried it yet."),
        ] {
            assert!(outcome(&delivery).starts_with(line), "{}", outcome(&delivery));
        }
    }

    #[test]
    fn a_delivery_is_one_line() {
        let delivery = json!({
            "eventId": "e", "type": "tx.failed", "state": "exhausted", "attempts": 8, "lastAttemptAt": "t",
            "statusCode": 500, "durationMs": 12, "error": "500 Internal Server Error"
        });
        assert_eq!(
            row(&delivery),
            ["t", "exhausted", "tx.failed", "e", "8", "500", "12", "-", "-", "500 Internal Server Error"]
        );
        assert_eq!(word(DeliveryState::Exhausted), "exhausted");
    }
}
