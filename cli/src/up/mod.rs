//! `gapless up`: the whole of Gapless on this machine, in one command, without a question.
//!
//! For development and for a first look. It runs one API and one worker against a chain that is nobody else's.

mod demo;
mod home;
mod settings;
mod stack;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use gapless::domain::TxState;
use serde_json::{Value, json};
use tokio::signal::unix::{SignalKind, signal};
use uuid::Uuid;

use self::home::Home;
use self::stack::Stack;
use crate::api::Api;
use crate::args;
use crate::commands::watch;
use crate::output::{self, say};

const READY_LIMIT: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(200);

pub async fn run(args: &args::Up, json: bool) -> Result<ExitCode> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut asked_to_stop = async || {
        tokio::select! { _ = interrupt.recv() => {}, _ = terminate.recv() => {} }
    };
    let home = Home::open(&args.dir)?;
    let mut stack = Stack::default();
    let outcome = tokio::select! {
        outcome = live(&home, &mut stack, args.once, json) => outcome,
        () = asked_to_stop() => Ok(()),
    };
    say("stopping");
    tokio::select! {
        () = stack.stop() => {}
        // Asked twice: whatever still runs is killed as the stack is dropped.
        () = asked_to_stop() => {}
    }
    outcome.map(|()| ExitCode::SUCCESS)
}

async fn live(home: &Home, stack: &mut Stack, once: bool, json: bool) -> Result<()> {
    stack.start(home).await?;
    let submitters = demo::submitters(home)?;
    stack.fund(&submitters).await?;
    say(&format!("submitters  {}", submitters.join(" ")));
    stack.start_services(home).await?;
    let api = Api::new(&stack.api_url(), None, None)?;
    with_watch(stack, ready(&api, &submitters)).await?;
    let first = with_watch(stack, first_transaction(&api, &submitters)).await?;
    announce(home, stack, &submitters, &first, json);
    if once {
        return Ok(());
    }
    say("Ctrl-C stops everything; the data stays for the next time.");
    with_watch(stack, std::future::pending()).await
}

/// Does `work` while everything runs; a child that ends is an error that shows what it last said.
async fn with_watch<T>(stack: &mut Stack, work: impl Future<Output = Result<T>>) -> Result<T> {
    let casualty = async {
        loop {
            if let Some(report) = stack.casualty() {
                return report;
            }
            tokio::time::sleep(POLL).await;
        }
    };
    tokio::select! {
        done = work => done,
        report = casualty => bail!(report),
    }
}

/// The API serves, and the worker has announced every demo submitter.
async fn ready(api: &Api, submitters: &[String]) -> Result<()> {
    let mut missing = String::new();
    let wait = async {
        loop {
            match api.ready().await {
                Ok(()) => match unknown_submitter(api, submitters).await {
                    None => return,
                    Some(address) => missing = format!("no worker has announced {address}"),
                },
                Err(what) => missing = what,
            }
            tokio::time::sleep(POLL).await;
        }
    };
    let in_time = tokio::time::timeout(READY_LIMIT, wait).await;
    in_time.map_err(|_| anyhow::anyhow!("not ready after {READY_LIMIT:?}: {missing}"))
}

async fn unknown_submitter<'a>(api: &Api, submitters: &'a [String]) -> Option<&'a String> {
    let known = api.submitters().await.unwrap_or_default();
    let is_known = |address: &String| {
        known.iter().any(|item| output::cell(&item["address"]).eq_ignore_ascii_case(address))
    };
    submitters.iter().find(|address| !is_known(address))
}

async fn first_transaction(api: &Api, submitters: &[String]) -> Result<Value> {
    let [from, to, ..] = submitters else { bail!("two demo submitters are needed") };
    // New each time: the data of earlier runs is still there.
    let request = json!({
        "submitter": from,
        "requestId": format!("up-{}", Uuid::now_v7()),
        "payload": { "to": to, "value": "1000000000000000" },
    });
    say("a first transaction: 0.001 ETH from one demo submitter to the next");
    let answer = api.submit(&request).await.context("the first transaction was refused")?;
    let tx_id = answer["txId"].as_str().context("the answer has no txId")?;
    let begun = std::time::Instant::now();
    let mut last = Value::Null;
    let state = watch::follow(api, tx_id, |answer| {
        say(&format!("{:7.1}s  {}", begun.elapsed().as_secs_f64(), watch::describe(answer)));
        last = answer.clone();
    })
    .await?;
    match state {
        TxState::Confirmed => Ok(last),
        other => bail!("the first transaction ended {other}: {}", output::cell(&last["lastError"])),
    }
}

fn announce(home: &Home, stack: &Stack, submitters: &[String], first: &Value, json: bool) {
    let api = stack.api_url();
    if json {
        return output::json(&json!({
            "api": api,
            "rpc": stack.rpc_url(),
            "database": stack.database_shown(),
            "config": home.config(),
            "submitters": submitters,
            "first": first,
        }));
    }
    output::line(format!("\n  API       {api}/api/v1"));
    output::line(format!("  Docs      {api}/docs"));
    output::line(format!("  Metrics   {api}/metrics  {}/metrics", stack.worker_url()));
    output::line(format!("  RPC       {}", stack.rpc_url()));
    output::line(format!("  Database  {}", stack.database_shown()));
    output::line(format!("  Logs      {}\n", home.logs().display()));
    let body = json!({
        "submitter": submitters[0],
        "requestId": format!("hello-{}", &Uuid::new_v4().to_string()[..8]),
        "payload": { "to": submitters[1], "value": "1" },
    });
    output::line(format!("  curl -s {api}/api/v1/tx -H 'content-type: application/json' -d '{body}'\n"));
}
