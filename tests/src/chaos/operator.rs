//! The person on duty: sees a submitter that has stopped, thinks for a while, and releases or adopts it, by the API or the
//! command line. Sometimes too early, sometimes late, sometimes the wrong one of the two.

use std::process::Stdio;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};

use super::faults::{lasts_long, long};
use super::history::Event;
use super::{Arena, Crew};
use crate::service::ADMIN_TOKEN;

const LOOKS_EVERY: Duration = Duration::from_millis(500);
const LONGEST_THOUGHT: Duration = Duration::from_secs(2);
const PATIENCE: Duration = Duration::from_secs(5);

/// For ever, after the last fault too: a submitter in PROTECT waits for a person.
pub(super) async fn attend(arena: &Arena) {
    let mut dice = StdRng::seed_from_u64(arena.options.seed ^ 0x0be7_a705);
    let http = reqwest::Client::builder().timeout(PATIENCE).build().expect("a client");
    loop {
        tokio::time::sleep(LOOKS_EVERY).await;
        if arena.options.crew != Crew::Product {
            continue;
        }
        let api = dice.random_range(0..arena.apis.len());
        // The API is away: another one is asked next time.
        let Some(submitters) = look(arena, &http, api).await else { continue };
        for (address, state) in submitters {
            let protected = state == "PROTECT";
            if !(protected || state == "SUSPECT" && dice.random_bool(0.05)) {
                continue;
            }
            let away = if lasts_long(arena, &mut dice) { long(&mut dice) } else { Duration::ZERO };
            tokio::time::sleep(away + LONGEST_THOUGHT.mul_f64(dice.random())).await;
            let action = if protected && dice.random_bool(0.2) { "release" } else { "adopt" };
            let by_cli = dice.random_bool(0.15);
            let outcome = match by_cli {
                true => by_command_line(arena, api, &address, action).await,
                false => by_api(arena, &http, api, &address, action).await,
            };
            let (action, by) = (action.to_owned(), if by_cli { "command line" } else { "API" }.to_owned());
            arena.history.note(Event::Operator { submitter: address, action, by, outcome });
        }
    }
}

/// Addresses and states.
async fn look(arena: &Arena, http: &reqwest::Client, api: usize) -> Option<Vec<(String, String)>> {
    let url = format!("{}/api/v1/submitters", arena.apis[api].url());
    let answer: Value = http.get(url).send().await.ok()?.json().await.ok()?;
    let item =
        |item: &Value| Some((item["address"].as_str()?.to_lowercase(), item["state"].as_str()?.to_owned()));
    answer["items"].as_array()?.iter().map(item).collect()
}

async fn by_api(arena: &Arena, http: &reqwest::Client, api: usize, address: &str, action: &str) -> String {
    let url = format!("{}/api/v1/submitters/{address}/{action}?wait=2s", arena.apis[api].url());
    let asked = http.post(url).bearer_auth(ADMIN_TOKEN).json(&json!({ "reason": "chaos" }));
    match asked.send().await {
        Ok(answer) => {
            let status = answer.status().as_u16();
            let body: Value = answer.json().await.unwrap_or_default();
            let words = body["outcome"].as_str().or(body["detail"].as_str()).unwrap_or_default();
            format!("{status} {words}")
        }
        Err(error) => format!("no answer: {error}"),
    }
}

async fn by_command_line(arena: &Arena, api: usize, address: &str, action: &str) -> String {
    let mut command = tokio::process::Command::new(arena.stack.program());
    command.args(["cli", action, address, "--reason", "chaos"]);
    command.env("GAPLESS_CONFIG", arena.stack.audit_config());
    command.env("GAPLESS_API", arena.apis[api].url()).env("GAPLESS_ADMIN_TOKEN", ADMIN_TOKEN);
    let running = command.stdin(Stdio::null()).kill_on_drop(true).output();
    match tokio::time::timeout(PATIENCE * 2, running).await {
        Ok(Ok(output)) => {
            let text = [output.stdout, output.stderr].concat();
            format!("{} {}", output.status, String::from_utf8_lossy(&text).trim())
        }
        Ok(Err(error)) => error.to_string(),
        Err(_) => "it did not end".to_owned(),
    }
}
