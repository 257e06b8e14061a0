//! Simulated operator: polls for stopped submitters, waits, and adopts or releases them through the API or the CLI.
//! Sometimes too early, sometimes late, sometimes with the wrong action.

use std::process::Stdio;
use std::time::Duration;

use gapless_testkit::ADMIN_TOKEN;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};

use super::faults::{lasts_long, long};
use super::history::Event;
use super::{ChaosRun, Crew};

const POLL_INTERVAL: Duration = Duration::from_millis(500);
const MAX_DELAY: Duration = Duration::from_secs(2);
const TIMEOUT: Duration = Duration::from_secs(5);
/// Part of the adoptions that name the external transaction.
const NAMED: f64 = 0.4;

/// Runs forever, also after the last fault: a submitter in PROTECT needs an operator.
pub(crate) async fn watch_and_act(run: &ChaosRun) {
    let mut rng = StdRng::seed_from_u64(run.options.seed ^ 0x0be7_a705);
    let http = gapless_http_client::client_builder().timeout(TIMEOUT).build().expect("a client");
    loop {
        tokio::time::sleep(POLL_INTERVAL).await;
        if run.options.crew != Crew::Product {
            continue;
        }
        let api = rng.random_range(0..run.apis.len());
        // The API is unreachable; the next poll uses another one.
        let Some(submitters) = look(run, &http, api).await else { continue };
        for (address, state) in submitters {
            let protected = state == "PROTECT";
            if !(protected || state == "SUSPECT" && rng.random_bool(0.05)) {
                continue;
            }
            let away = if lasts_long(run, &mut rng) { long(&mut rng) } else { Duration::ZERO };
            tokio::time::sleep(away + MAX_DELAY.mul_f64(rng.random())).await;
            let action = if protected && rng.random_bool(0.2) { "release" } else { "adopt" };
            let by_cli = rng.random_bool(0.15);
            let named = if action == "adopt" && rng.random_bool(NAMED) {
                named_transaction(run, &address).await
            } else {
                None
            };
            let outcome = match by_cli {
                true => by_command_line(run, api, &address, action, named.as_ref()).await,
                false => by_api(run, &http, api, &address, action, named.as_ref()).await,
            };
            let action = if named.is_some() { "adopt with takenBy" } else { action };
            let (action, by) = (action.to_owned(), if by_cli { "command line" } else { "API" }.to_owned());
            run.history.record(Event::Operator { submitter: address, action, by, outcome });
        }
    }
}

/// Addresses and states.
async fn look(run: &ChaosRun, http: &reqwest::Client, api: usize) -> Option<Vec<(String, String)>> {
    let url = format!("{}/api/v1/submitters", run.apis[api].url());
    let response = http.get(url).send().await.ok()?;
    let status = response.status().as_u16();
    let answer: Value = response.json().await.ok()?;
    run.check_fields("GET /api/v1/submitters", status, &answer);
    let item =
        |item: &Value| Some((item["address"].as_str()?.to_lowercase(), item["state"].as_str()?.to_owned()));
    answer["items"].as_array()?.iter().map(item).collect()
}

/// The last external transaction of this submitter that the node shows in a block: `takenBy` of an adoption.
async fn named_transaction(run: &ChaosRun, address: &str) -> Option<(String, u64)> {
    let entries = run.history.entries();
    let hash = entries.iter().rev().find_map(|entry| match &entry.event {
        Event::Outside { submitter, hash, .. } if submitter == address => Some(hash.clone()),
        _ => None,
    })?;
    let receipt = run.stack.anvil().try_rpc("eth_getTransactionReceipt", json!([hash])).await.ok()?;
    let block = u64::from_str_radix(receipt["blockNumber"].as_str()?.trim_start_matches("0x"), 16).ok()?;
    Some((hash, block))
}

async fn by_api(
    run: &ChaosRun,
    http: &reqwest::Client,
    api: usize,
    address: &str,
    action: &str,
    named: Option<&(String, u64)>,
) -> String {
    let url = format!("{}/api/v1/submitters/{address}/{action}?wait=2s", run.apis[api].url());
    let mut body = json!({ "reason": "chaos" });
    if let Some((hash, block)) = named {
        body["takenBy"] = json!({ "txHash": hash, "block": block });
    }
    let request = http.post(url).bearer_auth(ADMIN_TOKEN).json(&body);
    match request.send().await {
        Ok(answer) => {
            let status = answer.status().as_u16();
            let Ok(body) = answer.json::<Value>().await else { return format!("{status}, no body") };
            run.check_fields(&format!("POST /api/v1/submitters/{{address}}/{action}"), status, &body);
            let detail = body["outcome"].as_str().or(body["detail"].as_str()).unwrap_or_default();
            format!("{status} {detail}")
        }
        Err(error) => format!("no answer: {error}"),
    }
}

async fn by_command_line(
    run: &ChaosRun,
    api: usize,
    address: &str,
    action: &str,
    named: Option<&(String, u64)>,
) -> String {
    let mut command = tokio::process::Command::new(run.apis[api].program());
    command.args(["cli", action, address, "--reason", "chaos"]);
    if let Some((hash, block)) = named {
        command.args(["--taken-by", hash, "--block", &block.to_string()]);
    }
    command.env("GAPLESS_CONFIG", run.stack.audit_config());
    command.env("GAPLESS_API", run.apis[api].url()).env("GAPLESS_ADMIN_TOKEN", ADMIN_TOKEN);
    let running = command.stdin(Stdio::null()).kill_on_drop(true).output();
    match tokio::time::timeout(TIMEOUT * 2, running).await {
        Ok(Ok(output)) => {
            let text = [output.stdout, output.stderr].concat();
            format!("{} {}", output.status, String::from_utf8_lossy(&text).trim())
        }
        Ok(Err(error)) => error.to_string(),
        Err(_) => "timeout".to_owned(),
    }
}
