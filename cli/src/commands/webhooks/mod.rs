//! `gapless webhooks`: manages webhooks through the API; `new-key` and `reseal` are for the keys that encrypt their
//! secrets. `gapless outlets`: what workers deliver to.

mod deliveries;
mod manage;
pub mod outlets;
mod reseal;

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};
use chrono::Utc;
use gapless_webhook::new_key_line;

use crate::api::Api;
use crate::args::Webhooks;
use crate::output;

pub async fn run(api: &Api, config: Option<&Path>, command: &Webhooks, json: bool) -> Result<ExitCode> {
    match command {
        Webhooks::Create(args) => manage::create(api, args, json).await,
        Webhooks::List => manage::list(api, json).await,
        Webhooks::Show(args) => manage::show(api, args.id, json).await,
        Webhooks::Update(args) => manage::update(api, args, json).await,
        Webhooks::Delete(args) => manage::delete(api, args.id, json).await,
        Webhooks::Rotate(args) => manage::rotate(api, args, json).await,
        Webhooks::Test(args) => deliveries::test(api, args.id, json).await,
        Webhooks::Deliveries(args) => deliveries::list(api, args, json).await,
        Webhooks::Replay(args) => deliveries::replay(api, args, json).await,
        Webhooks::NewKey(args) => new_key(args.id.as_deref(), json),
        Webhooks::Reseal => reseal::run(config, json).await,
    }
}

fn new_key(id: Option<&str>, json: bool) -> Result<ExitCode> {
    let id = id.map_or_else(|| Utc::now().format("%Y-%m-%d").to_string(), str::to_owned);
    let line = new_key_line(&id).context("--id")?;
    if json {
        output::json(&serde_json::json!({ "keyId": id, "line": *line }));
    } else {
        output::line(&*line);
        output::say(
            "Make it the first line of the file events.webhook.key_file, which only API and workers may read.",
        );
    }
    Ok(ExitCode::SUCCESS)
}
