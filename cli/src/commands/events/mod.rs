//! `gapless events`: reads events from the API; its subcommands control their recording in the database.

mod follow;
mod line;
mod pages;
mod recording;

use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;

use crate::api::{Api, EventFilter};
use crate::args::{Events, ReadEvents};

pub async fn run(api: &Api, config: Option<&Path>, args: &Events, json: bool) -> Result<ExitCode> {
    let read = &args.read;
    match args.subcommand()? {
        Some(command) => recording::run(config, command, json).await,
        None if read.follow => follow::run(api, read, json).await,
        None => pages::run(api, read, json).await,
    }
}

fn filter(args: &ReadEvents) -> EventFilter {
    EventFilter {
        kinds: args.filter.kinds.clone(),
        submitter: args.filter.submitter.clone(),
        chain: args.filter.chain,
        tx_id: args.filter.tx.map(|tx_id| tx_id.to_string()),
    }
}
