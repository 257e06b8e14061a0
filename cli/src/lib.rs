//! The command line tool. Also a library, for the tests and the benchmarks.

pub mod api;
mod api_address;
pub mod args;
mod authorities;
pub mod commands;
pub mod doctor;
pub mod output;
mod sse;
pub mod up;
pub mod verify;

use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;

use self::api::Api;
use self::args::{Cli, Command};

pub async fn run(cli: Cli) -> Result<ExitCode> {
    let json = cli.json;
    let (first, second) = if cli.command.is_admin() {
        (&cli.admin_token, &cli.api_key)
    } else {
        (&cli.api_key, &cli.admin_token)
    };
    let address = api_address::resolve(cli.api.as_deref(), Path::new("."));
    let token = first.as_ref().or(second.as_ref()).cloned();
    let mut api = Api::new(&address.url, token, cli.api_ca.as_deref())?;
    if let Some(file) = &address.file {
        api = api.with_remedy(format!("; its port is from {}: is `gapless up` running?", file.display()));
    }
    match &cli.command {
        Command::Up(args) => up::run(args, json).await,
        Command::Migrate { contract } => commands::migrate::run(cli.config.as_deref(), *contract, json).await,
        Command::Submit(args) => commands::submit::run(&api, args, json).await,
        Command::Status(args) => commands::status::run(&api, args, json).await,
        Command::Watch(args) => commands::watch::run(&api, &args.tx_id, json).await,
        Command::Cancel(args) => commands::tx_actions::run(&api, "cancel", args, json).await,
        Command::SpeedUp(args) => commands::tx_actions::run(&api, "speed-up", args, json).await,
        Command::Submitters(args) => commands::submitters::run(&api, args, json).await,
        Command::Pause(args) => commands::admin::run(&api, "pause", args, json).await,
        Command::Resume(args) => commands::admin::run(&api, "resume", args, json).await,
        Command::Release(args) => commands::admin::run(&api, "release", args, json).await,
        Command::Adopt(args) => commands::admin::adopt(&api, args, json).await,
        Command::Verify(args) => verify::run(cli.config.as_deref(), args, json).await,
        Command::Doctor => doctor::run(cli.config.as_deref(), json).await,
        Command::Events(args) => commands::events::run(&api, cli.config.as_deref(), args, json).await,
        Command::Webhooks(args) => commands::webhooks::run(&api, cli.config.as_deref(), args, json).await,
        Command::Outlets => commands::webhooks::outlets::run(&api, json).await,
        Command::Keys(keys) => commands::keys::run(keys, json),
        Command::Audit(audit) => commands::audit::run(cli.config.as_deref(), audit, json).await,
        Command::ApiKeys(keys) => commands::api_keys::run(cli.config.as_deref(), keys, json).await,
    }
}
