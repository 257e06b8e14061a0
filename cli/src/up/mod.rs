//! `gapless up`: starts a local database, chain, API and worker with one command.
//!
//! For development and demos: one API and one worker on a private anvil chain.

mod consistency;
mod demo;
mod diagnosis;
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
use gapless_domain::TxState;
use gapless_localnet::UnusableState;
use gapless_store::StoreError;
use serde_json::{Value, json};
use tokio::signal::unix::{SignalKind, signal};
use uuid::Uuid;

use self::consistency::ConsistencyCheck;
use self::diagnosis::Diagnosis;
use self::home::Home;
use self::reason::Reasons;
use self::stack::Stack;
use self::stall::Stall;
use crate::api::Api;
use crate::args;
use crate::commands::watch;
use crate::output::{self, say};

const READY_LIMIT: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(200);
const PROBLEMS_EVERY: Duration = Duration::from_secs(1);
const CONSISTENCY_LIMIT: Duration = Duration::from_secs(2);

pub async fn run(args: &args::Up, json: bool) -> Result<ExitCode> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut stop_signal = async || {
        tokio::select! { _ = interrupt.recv() => {}, _ = terminate.recv() => {} }
    };
    let home = Home::open(&args.dir)?;
    let mut stack = Stack::default();
    let outcome = tokio::select! {
        outcome = run_stack(&home, &mut stack, args, json) => outcome,
        () = stop_signal() => Ok(()),
    };
    say("stopping");
    tokio::select! {
        () = stack.stop() => {}
        // On a second signal, dropping the stack kills the remaining processes.
        () = stop_signal() => {}
    }
    home.forget_api()?;
    outcome.map(|()| ExitCode::SUCCESS)
}

async fn run_stack(home: &Home, stack: &mut Stack, args: &args::Up, json: bool) -> Result<()> {
    stack.start(home, args).await.map_err(|error| {
        match (error.downcast_ref::<UnusableState>(), error.downcast_ref::<StoreError>()) {
            (Some(damage), _) => start_over(home, damage),
            (None, Some(StoreError::SchemaUnreleased { .. } | StoreError::ProgramTooOld { .. })) => {
                anyhow::anyhow!("the data is of another version of Gapless: {}", remedy(home))
            }
            _ => error,
        }
    })?;
    let submitters = demo::submitters(home)?;
    let consistency = stack.consistency_check(&submitters)?;
    must_match(home, &consistency).await?;
    stack.fund(&submitters).await?;
    say(&format!("submitters  {}", submitters.join(" ")));
    stack.start_services(home).await?;
    home.note_api(stack.api_port())?;
    let api = Api::new(&stack.api_url(), None, None)?;
    let reasons = Reasons::new(&api, &stack.worker_url(), home.logs().join("gapless-worker.log"))?;
    let diagnosis = Diagnosis::new(home.config());
    while_running(stack, ready(&api, &submitters, &reasons, &diagnosis)).await?;
    diagnosis.reset();
    let first = first_transaction(&api, &submitters, &reasons, &diagnosis, home, &consistency);
    let first = while_running(stack, first).await?;
    announce(home, stack, &submitters, &first, json);
    if args.once {
        return Ok(());
    }
    say("Press Ctrl-C to stop. The data is kept for the next run.");
    diagnosis.reset();
    while_running(stack, report_problems(&reasons, &diagnosis, home, &consistency)).await
}

/// Fails with instructions if chain and database do not match.
async fn must_match(home: &Home, consistency: &ConsistencyCheck) -> Result<()> {
    match consistency.mismatch().await? {
        Some(mismatch) => Err(start_over(home, mismatch)),
        None => Ok(()),
    }
}

/// Like `must_match`, but ignores errors and timeouts: an unreachable server is no evidence of a mismatch.
async fn must_still_match(home: &Home, consistency: &ConsistencyCheck) -> Result<()> {
    match tokio::time::timeout(CONSISTENCY_LIMIT, consistency.mismatch()).await {
        Ok(Ok(Some(mismatch))) => Err(start_over(home, mismatch)),
        _ => Ok(()),
    }
}

/// A submitter in PROTECT stops until an operator acts. Here the cause is a chain that was killed while it wrote its
/// state, or manual use of the key.
async fn must_not_be_protected(home: &Home, reasons: &Reasons, submitter: &str) -> Result<()> {
    let Some(reason) = reasons.protected(submitter).await else { return Ok(()) };
    bail!("the submitter {submitter} is in PROTECT ({reason}): run {}, then start again", home.clean_data())
}

fn start_over(home: &Home, why: impl Display) -> anyhow::Error {
    anyhow::anyhow!("the data of chain and database do not match ({why}): {}", remedy(home))
}

/// What to do about unusable data.
fn remedy(home: &Home) -> String {
    // `clean-data` does not delete a database that `gapless up` did not create.
    let database =
        std::env::var_os("DATABASE_URL").map_or("", |_| " and set DATABASE_URL to an empty database");
    format!("run {}{database}, then start again", home.clean_data())
}

/// Runs `work`; fails with the end of the log if a child process exits meanwhile.
async fn while_running<T>(stack: &mut Stack, work: impl Future<Output = Result<T>>) -> Result<T> {
    let exited = async {
        loop {
            if let Some(report) = stack.exited_child() {
                return report;
            }
            tokio::time::sleep(POLL).await;
        }
    };
    tokio::select! {
        done = work => done,
        report = exited => bail!(report),
    }
}

/// Waits until the API is ready and the worker has announced every demo submitter.
async fn ready(api: &Api, submitters: &[String], reasons: &Reasons, diagnosis: &Diagnosis) -> Result<()> {
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
            let problems = reasons.worker_problems().await;
            missing = std::iter::once(missing).chain(problems).collect::<Vec<_>>().join("; ");
        }
        if begun.elapsed() > READY_LIMIT {
            bail!("not ready after {READY_LIMIT:?}: {missing}");
        }
        if let Some(seconds) = stall.due(Instant::now(), &missing) {
            say(&format!("not ready after {seconds} s: {missing}"));
            diagnosis.print_once().await;
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

/// Sends a transfer and follows it until it is final. Reports why it makes no progress, and fails if it cannot
/// make any.
async fn first_transaction(
    api: &Api,
    submitters: &[String],
    reasons: &Reasons,
    diagnosis: &Diagnosis,
    home: &Home,
    consistency: &ConsistencyCheck,
) -> Result<Value> {
    let [from, to, ..] = submitters else { bail!("two demo submitters are required") };
    // A new id for each run, because the data of earlier runs is retained.
    let request = json!({
        "submitter": from,
        "requestId": format!("up-{}", Uuid::now_v7()),
        "payload": { "to": to, "value": "1000000000000000" },
    });
    say("test transaction: 0.001 ETH from one demo submitter to the next");
    let answer = match api.submit(&request).await {
        Ok(answer) => answer,
        Err(error) => {
            must_not_be_protected(home, reasons, from).await?;
            return Err(error.context("the test transaction was rejected"));
        }
    };
    let tx_id = answer["txId"].as_str().context("the response has no txId")?;
    let begun = Instant::now();
    let stall = RefCell::new(Stall::new(begun));
    let mut last = Value::Null;
    let follow = watch::follow(api, tx_id, |answer| {
        say(&format!("{:7.1}s  {}", begun.elapsed().as_secs_f64(), watch::describe(answer)));
        stall.borrow_mut().moved(Instant::now());
        diagnosis.reset();
        last = answer.clone();
    });
    let explain = async {
        loop {
            tokio::time::sleep(POLL).await;
            if stall.borrow().lasts(Instant::now()) {
                let reason = reasons.of_transaction(tx_id).await;
                let due = stall.borrow_mut().due(Instant::now(), &reason);
                if let Some(seconds) = due {
                    say(&format!("no progress for {seconds} s: {reason}"));
                }
                must_still_match(home, consistency).await?;
                must_not_be_protected(home, reasons, from).await?;
                if due.is_some() {
                    diagnosis.print_once().await;
                }
            }
        }
    };
    let state = tokio::select! {
        state = follow => state?,
        failure = explain => return failure,
    };
    match state {
        TxState::Confirmed => Ok(last),
        other => bail!("the test transaction is {other}: {}", output::cell(&last["lastError"])),
    }
}

/// Prints the problems that the worker and the API report, until it stops.
async fn report_problems(
    reasons: &Reasons,
    diagnosis: &Diagnosis,
    home: &Home,
    consistency: &ConsistencyCheck,
) -> Result<()> {
    let mut stall = Stall::new(Instant::now());
    let mut failing = false;
    loop {
        tokio::time::sleep(PROBLEMS_EVERY).await;
        let problems = reasons.all_problems().await;
        if problems.is_empty() {
            if std::mem::take(&mut failing) {
                say("there are no problems any more");
                diagnosis.reset();
            }
            stall.moved(Instant::now());
            continue;
        }
        let problems = problems.join(", ");
        if let Some(seconds) = stall.due(Instant::now(), &problems) {
            failing = true;
            say(&format!("problems for {seconds} s: {problems}"));
            must_still_match(home, consistency).await?;
            diagnosis.print_once().await;
        }
    }
}

fn announce(home: &Home, stack: &Stack, submitters: &[String], first: &Value, json: bool) {
    let api = stack.api_url();
    if json {
        return output::json(&json!({
            "api": api,
            "jsonRpc": format!("{api}/rpc/{}", settings::CHAIN_ID),
            "rpc": stack.rpc_url(),
            "database": stack.database_shown(),
            "config": home.config(),
            "submitters": submitters,
            "first": first,
        }));
    }
    output::line(format!("\n  API       {api}/api/v1"));
    output::line(format!("  JSON-RPC  {api}/rpc/{}  for Ethereum libraries", settings::CHAIN_ID));
    output::line(format!("  Docs      {api}/docs"));
    output::line(format!("  Metrics   {api}/metrics  {}/metrics", stack.worker_url()));
    output::line(format!("  Node      {}", stack.rpc_url()));
    output::line(format!("  Database  {}", stack.database_shown()));
    output::line(format!("  Logs      {}", home.logs().display()));
    let option = if home.is_default() { String::new() } else { format!("--api {api} ") };
    output::line(format!("  Events    gapless {option}events --follow\n"));
    let body = json!({
        "submitter": submitters[0],
        "requestId": format!("hello-{}", &Uuid::new_v4().to_string()[..8]),
        "payload": { "to": submitters[1], "value": "1" },
    });
    output::line(format!("  curl -s {api}/api/v1/tx -H 'content-type: application/json' -d '{body}'\n"));
}
