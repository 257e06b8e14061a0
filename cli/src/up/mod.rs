//! `gapless up`: the whole of Gapless on this machine, in one command, without a question.
//!
//! For development and for a first look. It runs one API and one worker against a chain that is nobody else's.

mod demo;
mod fit;
mod home;
mod reason;
mod settings;
mod stack;
mod stall;

use std::cell::RefCell;
use std::fmt::Display;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use gapless::domain::TxState;
use serde_json::{Value, json};
use tokio::signal::unix::{SignalKind, signal};
use uuid::Uuid;

use self::fit::Fit;
use self::home::Home;
use self::reason::Reasons;
use self::stack::Stack;
use self::stall::Stall;
use crate::api::Api;
use crate::args;
use crate::commands::watch;
use crate::localnet::UnusableState;
use crate::output::{self, say};

const READY_LIMIT: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(200);
const PROBLEMS_EVERY: Duration = Duration::from_secs(1);
const FIT_LIMIT: Duration = Duration::from_secs(2);

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
    stack.start(home).await.map_err(|error| match error.downcast_ref::<UnusableState>() {
        Some(damage) => start_over(home, damage),
        None => error,
    })?;
    let submitters = demo::submitters(home)?;
    let fit = stack.fit(&submitters)?;
    must_fit(home, &fit).await?;
    stack.fund(&submitters).await?;
    say(&format!("submitters  {}", submitters.join(" ")));
    stack.start_services(home).await?;
    let api = Api::new(&stack.api_url(), None, None)?;
    let reasons = Reasons::new(&api, &stack.worker_url())?;
    with_watch(stack, ready(&api, &submitters, &reasons)).await?;
    let first = with_watch(stack, first_transaction(&api, &submitters, &reasons, home, &fit)).await?;
    announce(home, stack, &submitters, &first, json);
    if once {
        return Ok(());
    }
    say("Ctrl-C stops everything; the data stays for the next time.");
    with_watch(stack, tell_problems(&reasons, home, &fit)).await
}

/// An error, and what to do, if chain and database do not belong together.
async fn must_fit(home: &Home, fit: &Fit) -> Result<()> {
    match fit.misfit().await? {
        Some(misfit) => Err(start_over(home, misfit)),
        None => Ok(()),
    }
}

/// As `must_fit`, for a moment in which one of the two may not answer: that says nothing about its data.
async fn still_fit(home: &Home, fit: &Fit) -> Result<()> {
    match tokio::time::timeout(FIT_LIMIT, fit.misfit()).await {
        Ok(Ok(Some(misfit))) => Err(start_over(home, misfit)),
        _ => Ok(()),
    }
}

/// A submitter in PROTECT does nothing until a person decides. Here it is the trace of a chain that was killed while it
/// wrote its data, or of somebody's experiment.
async fn must_not_be_protected(home: &Home, reasons: &Reasons, submitter: &str) -> Result<()> {
    let Some(reason) = reasons.protected(submitter).await else { return Ok(()) };
    bail!(
        "the submitter {submitter} waits for an operator ({reason}): run {}, then start again",
        home.clean_data()
    )
}

fn start_over(home: &Home, why: impl Display) -> anyhow::Error {
    // Nothing of ours removes a database that we did not make.
    let database =
        std::env::var_os("DATABASE_URL").map_or("", |_| " and name an empty database in DATABASE_URL");
    let clean = home.clean_data();
    anyhow::anyhow!(
        "the data of the chain and of the database no longer fit together ({why}): run {clean}{database}, then start again"
    )
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
async fn ready(api: &Api, submitters: &[String], reasons: &Reasons) -> Result<()> {
    let begun = Instant::now();
    let mut stall = Stall::new(begun);
    loop {
        let mut missing = match api.ready().await {
            Ok(()) => match unknown_submitter(api, submitters).await {
                None => return Ok(()),
                Some(address) => format!("no worker has announced {address}"),
            },
            Err(what) => format!("the API is not ready ({what})"),
        };
        if stall.lasts(Instant::now()) {
            let lacks = reasons.worker_lacks().await;
            missing = std::iter::once(missing).chain(lacks).collect::<Vec<_>>().join("; ");
        }
        if begun.elapsed() > READY_LIMIT {
            bail!("not ready after {READY_LIMIT:?}: {missing}");
        }
        if let Some(seconds) = stall.due(Instant::now(), &missing) {
            say(&format!("not ready after {seconds} s: {missing}"));
        }
        tokio::time::sleep(POLL).await;
    }
}

async fn unknown_submitter<'a>(api: &Api, submitters: &'a [String]) -> Option<&'a String> {
    let known = api.submitters().await.unwrap_or_default();
    let is_known = |address: &String| {
        known.iter().any(|item| output::cell(&item["address"]).eq_ignore_ascii_case(address))
    };
    submitters.iter().find(|address| !is_known(address))
}

/// Sends a transfer and follows it to its end. When it stands still, says why; when it never can
/// go on, that is an error.
async fn first_transaction(
    api: &Api,
    submitters: &[String],
    reasons: &Reasons,
    home: &Home,
    fit: &Fit,
) -> Result<Value> {
    let [from, to, ..] = submitters else { bail!("two demo submitters are needed") };
    // New each time: the data of earlier runs is still there.
    let request = json!({
        "submitter": from,
        "requestId": format!("up-{}", Uuid::now_v7()),
        "payload": { "to": to, "value": "1000000000000000" },
    });
    say("a first transaction: 0.001 ETH from one demo submitter to the next");
    let answer = match api.submit(&request).await {
        Ok(answer) => answer,
        Err(error) => {
            must_not_be_protected(home, reasons, from).await?;
            return Err(error.context("the first transaction was refused"));
        }
    };
    let tx_id = answer["txId"].as_str().context("the answer has no txId")?;
    let begun = Instant::now();
    let stall = RefCell::new(Stall::new(begun));
    let mut last = Value::Null;
    let follow = watch::follow(api, tx_id, |answer| {
        say(&format!("{:7.1}s  {}", begun.elapsed().as_secs_f64(), watch::describe(answer)));
        stall.borrow_mut().moved(Instant::now());
        last = answer.clone();
    });
    let explain = async {
        loop {
            tokio::time::sleep(POLL).await;
            if stall.borrow().lasts(Instant::now()) {
                let reason = reasons.of_transaction(tx_id, from).await;
                if let Some(seconds) = stall.borrow_mut().due(Instant::now(), &reason) {
                    say(&format!("nothing has changed for {seconds} s: {reason}"));
                }
                still_fit(home, fit).await?;
                must_not_be_protected(home, reasons, from).await?;
            }
        }
    };
    let state = tokio::select! {
        state = follow => state?,
        misfit = explain => return misfit,
    };
    match state {
        TxState::Confirmed => Ok(last),
        other => bail!("the first transaction ended {other}: {}", output::cell(&last["lastError"])),
    }
}

/// Says what the worker lacks, as long as it lacks something.
async fn tell_problems(reasons: &Reasons, home: &Home, fit: &Fit) -> Result<()> {
    let mut stall = Stall::new(Instant::now());
    let mut lacking = false;
    loop {
        tokio::time::sleep(PROBLEMS_EVERY).await;
        let lacks = reasons.worker_lacks().await;
        if lacks.is_empty() {
            if std::mem::take(&mut lacking) {
                say("the worker has all it needs again");
            }
            stall.moved(Instant::now());
            continue;
        }
        let lacks = lacks.join(", ");
        if let Some(seconds) = stall.due(Instant::now(), &lacks) {
            lacking = true;
            say(&format!("for {seconds} s the worker has reported: {lacks}"));
            still_fit(home, fit).await?;
        }
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
