//! `gapless submit`: builds a request from the command line and sends it.

use std::process::ExitCode;

use anyhow::{Context, Result};
use serde_json::{Map, Value, json};
use uuid::Uuid;

use super::{revert, watch};
use crate::api::Api;
use crate::args::{Submit, TxType};
use crate::output;

pub async fn run(api: &Api, args: &Submit, json: bool) -> Result<ExitCode> {
    let request = request(args)?;
    if args.simulate {
        return simulate(api, &request, json).await;
    }
    let answer = api.submit(&request).await?;
    let tx_id = answer["txId"].as_str().context("the response has no txId")?;
    if args.watch {
        output::say(&format!("txId {tx_id}, requestId {}", output::cell(&request["requestId"])));
        return watch::run(api, tx_id, json).await;
    }
    if json {
        output::json(&answer);
    } else {
        output::line(tx_id);
    }
    Ok(ExitCode::SUCCESS)
}

/// Outcome and reason, then gas, prices and costs.
const SIMULATION_ORDER: [&str; 11] = [
    "outcome",
    "reason",
    "gas",
    "gasLimit",
    "baseFeePerGas",
    "maxFeePerGas",
    "maxPriorityFeePerGas",
    "gasPrice",
    "expectedFee",
    "maxFee",
    "maxCost",
];

/// Exits with success only if the simulated transaction succeeds.
async fn simulate(api: &Api, request: &Value, json: bool) -> Result<ExitCode> {
    let answer = api.simulate(request).await?;
    if json {
        output::json(&answer);
    } else {
        let mut fields = answer.as_object().context("the response is not a JSON object")?.clone();
        let revert = fields.remove("revert").unwrap_or_default();
        output::fields(&SIMULATION_ORDER, &fields);
        revert::lines(&revert).iter().for_each(output::line);
    }
    Ok(if answer["outcome"] == "success" { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Amounts stay strings, so no number is rounded; the API parses decimal and 0x hex.
fn request(args: &Submit) -> Result<Value> {
    let mut payload = Map::new();
    let mut put = |name: &str, value: Option<Value>| {
        payload.extend(value.map(|value| (name.to_owned(), value)));
    };
    let text = |value: &Option<String>| value.clone().map(Value::String);
    put("to", text(&args.to));
    put("value", text(&args.value));
    put("data", text(&args.data));
    put("method", text(&args.method));
    put("args", args.method.is_some().then(|| args.args.iter().map(|arg| argument(arg)).collect()));
    put("errors", (!args.errors.is_empty()).then(|| json!(args.errors)));
    put("gasLimit", text(&args.gas_limit));
    put("type", args.kind.map(type_name));
    put("maxFeePerGas", text(&args.max_fee));
    put("maxPriorityFeePerGas", text(&args.max_priority_fee));
    put("gasPrice", text(&args.gas_price));
    put("speed", text(&args.speed));
    put("notBefore", text(&args.not_before));
    put("deadline", text(&args.deadline));
    if let Some(list) = &args.access_list {
        put("accessList", Some(serde_json::from_str(list).context("--access-list is not valid JSON")?));
    }
    let mut request = json!({
        "submitter": args.from,
        "requestId": args.request_id.clone().unwrap_or_else(|| Uuid::now_v7().to_string()),
        "payload": payload,
    });
    if let Some(chain) = args.chain {
        request["chainId"] = json!(chain);
    }
    Ok(request)
}

fn type_name(kind: TxType) -> Value {
    json!(match kind {
        TxType::Legacy => "legacy",
        TxType::Eip1559 => "eip1559",
    })
}

/// Arrays, tuples and booleans are parsed as JSON; everything else, including numbers, stays a string.
fn argument(text: &str) -> Value {
    match serde_json::from_str(text) {
        Ok(value @ (Value::Array(_) | Value::Bool(_))) => value,
        _ => Value::String(text.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::{Cli, Command};

    fn parse(words: &[&str]) -> Value {
        let words = ["gapless", "submit", "--from", "0xaa"].iter().chain(words);
        let Command::Submit(args) = Cli::try_parse_from(words).unwrap().command else {
            panic!("not a submit")
        };
        request(&args).unwrap()
    }

    #[test]
    fn only_given_options_are_sent() {
        let request = parse(&["--to", "0xbb", "--value", "5", "--request-id", "r1", "--chain", "7"]);
        let expected = json!({
            "submitter": "0xaa", "requestId": "r1", "chainId": 7, "payload": { "to": "0xbb", "value": "5" },
        });
        assert_eq!(request, expected);
    }

    #[test]
    fn a_simulation_is_not_watched() {
        let words = ["gapless", "submit", "--from", "0xaa", "--simulate"];
        assert!(Cli::try_parse_from(words).is_ok());
        assert!(Cli::try_parse_from(words.iter().chain(&["--watch"])).is_err());
    }

    #[test]
    fn a_method_takes_its_arguments_in_order_and_unrounded() {
        let big = "115792089237316195423570985008687907853269984665640564039457584007913129639935";
        let request = parse(&[
            "--to",
            "0xbb",
            "--method",
            "f(uint256,address[],bool,int8)",
            "--arg",
            big,
            "--arg",
            "[\"0x1\"]",
            "--arg",
            "true",
            "--arg",
            "-5",
        ]);
        assert_eq!(request["payload"]["args"], json!([big, ["0x1"], true, "-5"]));
    }

    #[test]
    fn contract_errors_are_sent() {
        let request = parse(&["--to", "0xbb", "--error", "A(uint256 x)", "--error", "B()"]);
        assert_eq!(request["payload"]["errors"], json!(["A(uint256 x)", "B()"]));
    }

    #[test]
    fn a_missing_request_id_is_generated_each_time() {
        assert_ne!(parse(&["--data", "0x00"])["requestId"], parse(&["--data", "0x00"])["requestId"]);
    }
}
