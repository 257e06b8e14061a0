//! `gapless webhooks create`, `list`, `show`, `update`, `delete` and `rotate`.

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use gapless_config::Secret;
use gapless_domain::WebhookId;
use serde_json::{Map, Value, json};

use crate::api::Api;
use crate::args::{CreateWebhook, EventFilterArgs, RotateWebhook, UpdateWebhook};
use crate::output::{self, cell};

/// State, deliveries, what is delivered where, times.
const FIELD_ORDER: [&str; 19] = [
    "webhookId",
    "status",
    "disabledReason",
    "disabledAt",
    "failingSince",
    "lastError",
    "lastErrorAt",
    "lastSuccessAt",
    "lagEvents",
    "lagSeconds",
    "submittersBehind",
    "cursor",
    "eventsRecorded",
    "url",
    "description",
    "filter",
    "createdAt",
    "previousSecretUntil",
    "health",
];

pub(super) async fn create(api: &Api, args: &CreateWebhook, json: bool) -> Result<ExitCode> {
    let mut request = json!({ "url": args.url, "filter": filter(&args.filter) });
    if let Some(description) = &args.description {
        request["description"] = json!(description);
    }
    add_secret(&mut request, args.secret.secret_file.as_deref())?;
    let answer = api.create_webhook(&request).await?;
    show_secret(&answer, json);
    if !json {
        output::say(&format!(
            "The secret is shown only once: give it to the receiver, which verifies signatures with it. \
             To try it: gapless webhooks test {}",
            cell(&answer["webhook"]["webhookId"])
        ));
    }
    if answer["webhook"]["eventsRecorded"] == false {
        output::say("Nothing is delivered yet, because events are not recorded: gapless events enable");
    }
    Ok(ExitCode::SUCCESS)
}

pub(super) async fn rotate(api: &Api, args: &RotateWebhook, json: bool) -> Result<ExitCode> {
    let mut request = json!({});
    add_secret(&mut request, args.secret.secret_file.as_deref())?;
    let answer = api.rotate_webhook_secret(args.webhook.id, &request).await?;
    show_secret(&answer, json);
    if !json {
        let until = cell(&answer["webhook"]["previousSecretUntil"]);
        output::say(&format!(
            "The secret is shown only once. Deliveries have signatures of the old and the new secret until {until}: give \
             the new one to the receiver before that."
        ));
    }
    Ok(ExitCode::SUCCESS)
}

pub(super) async fn list(api: &Api, json: bool) -> Result<ExitCode> {
    let items = api.webhooks().await?;
    if json {
        output::json(&json!({ "items": items }));
        return Ok(ExitCode::SUCCESS);
    }
    let head = ["ID", "STATUS", "LAG", "BEHIND", "FAILING SINCE", "LAST SUCCESS", "URL", "DESCRIPTION"];
    output::table(&head, &items.iter().map(row).collect::<Vec<_>>());
    if items.iter().any(|item| item["eventsRecorded"] == false) {
        output::say("Events are not recorded: gapless events enable");
    }
    Ok(ExitCode::SUCCESS)
}

pub(super) async fn show(api: &Api, id: WebhookId, json: bool) -> Result<ExitCode> {
    show_webhook(&api.webhook(id).await?, json);
    Ok(ExitCode::SUCCESS)
}

pub(super) async fn update(api: &Api, args: &UpdateWebhook, json: bool) -> Result<ExitCode> {
    let changes = changes(args)?;
    show_webhook(&api.update_webhook(args.webhook.id, &changes).await?, json);
    Ok(ExitCode::SUCCESS)
}

pub(super) async fn delete(api: &Api, id: WebhookId, json: bool) -> Result<ExitCode> {
    api.delete_webhook(id).await?;
    if json {
        output::json(&json!({ "webhookId": id, "outcome": "deleted" }));
    } else {
        output::line(format!("{id}  deleted"));
    }
    Ok(ExitCode::SUCCESS)
}

fn filter(args: &EventFilterArgs) -> Value {
    let mut filter = Map::new();
    if let Some(chain) = args.chain {
        filter.insert("chainId".into(), chain.into());
    }
    if let Some(submitter) = &args.submitter {
        filter.insert("submitter".into(), submitter.clone().into());
    }
    if let Some(tx_id) = args.tx {
        filter.insert("txId".into(), tx_id.to_string().into());
    }
    if !args.kinds.is_empty() {
        filter.insert("types".into(), args.kinds.clone().into());
    }
    filter.into()
}

fn changes(args: &UpdateWebhook) -> Result<Value> {
    let mut changes = Map::new();
    if let Some(url) = &args.url {
        changes.insert("url".into(), url.clone().into());
    }
    if let Some(description) = &args.description {
        changes.insert("description".into(), description.clone().into());
    }
    if args.enable || args.disable {
        changes.insert("enabled".into(), args.enable.into());
    }
    if args.all_events || args.filter != EventFilterArgs::default() {
        changes.insert("filter".into(), filter(&args.filter));
    }
    ensure!(!changes.is_empty(), "nothing to change: see `gapless webhooks update --help`");
    Ok(changes.into())
}

fn add_secret(request: &mut Value, file: Option<&Path>) -> Result<()> {
    let Some(path) = file else { return Ok(()) };
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let secret = Secret::new(text.trim());
    request["secret"] = secret.expose().into();
    Ok(())
}

/// The id and the secret on standard output, so that a script can read them.
fn show_secret(answer: &Value, json: bool) {
    if json {
        output::json(answer);
        return;
    }
    output::line(format!("webhookId  {}", cell(&answer["webhook"]["webhookId"])));
    output::line(format!("secret     {}", cell(&answer["secret"])));
}

fn show_webhook(webhook: &Value, json: bool) {
    match webhook.as_object() {
        Some(fields) if !json => output::fields(&FIELD_ORDER, &readable(fields)),
        _ => output::json(webhook),
    }
}

/// With the fields of `health` among the others.
fn readable(fields: &Map<String, Value>) -> Map<String, Value> {
    let mut fields = fields.clone();
    if let Some(Value::Object(health)) = fields.remove("health") {
        fields.extend(health);
    }
    if fields.get("filter").is_some_and(|filter| *filter == json!({})) {
        fields.insert("filter".into(), "all events".into());
    }
    if fields.get("description").is_some_and(|text| text == "") {
        fields.remove("description");
    }
    fields
}

fn row(webhook: &Value) -> Vec<String> {
    let health = &webhook["health"];
    vec![
        cell(&webhook["webhookId"]),
        status(webhook),
        lag(health),
        cell(&health["submittersBehind"]),
        cell(&health["failingSince"]),
        cell(&health["lastSuccessAt"]),
        cell(&webhook["url"]),
        cell(&webhook["description"]),
    ]
}

/// `disabled (gone)`.
pub(super) fn status(item: &Value) -> String {
    match item["disabledReason"].as_str() {
        Some(reason) => format!("{} ({reason})", cell(&item["status"])),
        None => cell(&item["status"]),
    }
}

/// `17, 3 s`: events and their age.
pub(super) fn lag(health: &Value) -> String {
    let seconds = health["lagSeconds"].as_f64().unwrap_or_default();
    match health["lagEvents"].as_u64() {
        Some(0) => "0".to_owned(),
        _ => format!("{}, {seconds:.0} s", cell(&health["lagEvents"])),
    }
}

#[cfg(test)]
mod tests {
    use crate::args::WebhookArg;

    use super::*;

    fn update_args() -> UpdateWebhook {
        UpdateWebhook {
            webhook: WebhookArg { id: WebhookId::new() },
            url: None,
            description: None,
            enable: false,
            disable: false,
            all_events: false,
            filter: EventFilterArgs::default(),
        }
    }

    #[test]
    fn only_given_options_are_changed() {
        assert!(changes(&update_args()).is_err());
        let disable = UpdateWebhook { disable: true, ..update_args() };
        assert_eq!(changes(&disable).unwrap(), json!({ "enabled": false }));
        let all = UpdateWebhook { all_events: true, enable: true, ..update_args() };
        assert_eq!(changes(&all).unwrap(), json!({ "enabled": true, "filter": {} }));
        let only = EventFilterArgs { kinds: vec!["tx.failed".into()], chain: Some(1), ..Default::default() };
        let filtered = UpdateWebhook { filter: only, ..update_args() };
        let expected = json!({ "filter": { "chainId": 1, "types": ["tx.failed"] } });
        assert_eq!(changes(&filtered).unwrap(), expected);
    }

    #[test]
    fn a_webhook_is_one_line() {
        let webhook = json!({
            "webhookId": "id", "status": "disabled", "disabledReason": "gone", "url": "https://e.com", "description": "",
            "health": { "lagEvents": 17, "lagSeconds": 3.2, "submittersBehind": 1, "failingSince": "t1" }
        });
        assert_eq!(row(&webhook), ["id", "disabled (gone)", "17, 3 s", "1", "t1", "-", "https://e.com", ""]);
    }

    #[test]
    fn a_webhook_is_shown_with_its_health() {
        let webhook =
            json!({ "webhookId": "id", "filter": {}, "description": "", "health": { "lagEvents": 0 } });
        let shown = readable(webhook.as_object().unwrap());
        assert_eq!(
            Value::Object(shown),
            json!({ "webhookId": "id", "filter": "all events", "lagEvents": 0 })
        );
    }
}
