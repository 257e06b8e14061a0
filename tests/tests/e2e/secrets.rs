//! Secrets that must not appear in any output: keys, passwords, tokens, and URL parts besides host and port.
//! Everything logs at its most verbose level, all failures are provoked, and all output is searched.

use std::path::Path;

use gapless_config::Secret;
use gapless_signer::keystore;
use gapless_testkit::{
    Address, CliOutput, Fault, Grep, Service, SigningService, Stack, Submitter, TlsPostgres, TxId, U256,
    eventually, payload,
};
use serde_json::json;

use crate::signers::wait_known;
use crate::stack;

const SIGNER_TOKEN: &str = "the-token-of-the-signer";
const PASSPHRASE: &str = "the passphrase of the keystore";
const DATABASE_PASSWORD: &str = "the-password-of-the-database";
const RPC_KEY: &str = "the-key-in-the-path-of-the-node";
const RPC_QUERY: &str = "the-token-in-the-query";
const RPC_PASSWORD: &str = "the-password-of-the-node";
const STATION_KEY: &str = "the-key-of-the-gas-station";
const CLOUD_SECRET: &str = "the-secret-access-key";
const ADMIN_TOKEN: &str = "an-operator-of-the-tests";

/// All output so far, by process.
#[derive(Default)]
struct Outputs(Vec<(String, String)>);

impl Outputs {
    fn cli(&mut self, output: CliOutput) {
        self.0.push(("the command line".into(), format!("{}\n{}", output.stdout, output.stderr)));
    }

    async fn pages(&mut self, service: &Service, paths: &[&str]) {
        for path in paths {
            self.0.push((format!("{} {path}", service.name()), service.page(path).await));
        }
    }

    fn is_free_of(&self, grep: &Grep) {
        for (who, text) in &self.0 {
            let found = grep.find(text);
            assert!(found.is_empty(), "{who}: {found:#?}");
        }
    }
}

/// With credentials wherever a URL can have them.
fn rpc_url(base: &str) -> String {
    let host = base.trim_start_matches("http://");
    format!("http://user:{RPC_PASSWORD}@{host}/v3/{RPC_KEY}?token={RPC_QUERY}")
}

struct Keys {
    grep: Grep,
    kept: Submitter,
    in_keystore: Submitter,
    signer: SigningService,
}

/// A key in the environment, one in a keystore, one behind a token.
async fn keys(stack: &Stack) -> Keys {
    let (kept, in_keystore) = (Submitter::random(), Submitter::random());
    let dir = stack.dir();
    keystore::import(&dir.join("keys"), &Secret::new(in_keystore.key_hex()), &Secret::new(PASSPHRASE))
        .unwrap();
    std::fs::write(dir.join("passphrase"), PASSPHRASE).unwrap();
    std::fs::write(dir.join("token"), SIGNER_TOKEN).unwrap();
    let mut grep = Grep::default();
    for (name, key) in [("raw key", stack.submitter(0)), ("keystore key", &in_keystore), ("kept key", &kept)]
    {
        grep.add(name, &key.key_hex());
    }
    for (name, secret) in [
        ("token of the signer", SIGNER_TOKEN),
        ("passphrase", PASSPHRASE),
        ("password of the database", DATABASE_PASSWORD),
        ("key of the node", RPC_KEY),
        ("query of the node", RPC_QUERY),
        ("password of the node", RPC_PASSWORD),
        ("key of the gas station", STATION_KEY),
        ("secret of the cloud", CLOUD_SECRET),
        ("admin token", ADMIN_TOKEN),
    ] {
        grep.add(name, secret);
    }
    for submitter in [&kept, &in_keystore] {
        stack.anvil().set_balance(submitter.address(), U256::exp10(20)).await;
    }
    let signer = SigningService::start(&kept, SIGNER_TOKEN).await;
    Keys { grep, kept, in_keystore, signer }
}

async fn start_worker(stack: &Stack, keys: &Keys, database: &str) -> Service {
    let path = |name: &str| stack.dir().join(name).to_str().unwrap().to_owned();
    let http = json!([{ "url": keys.signer.url(), "token_file": path("token") }]);
    let cloud = json!([{ "region": "eu", "endpoint": "http://127.0.0.1:9", "keys": [{ "id": "alias/a" }] }]);
    stack
        .worker()
        .set("database.url", database)
        .rpc(&[&rpc_url(stack.proxy().url())])
        .set("signer.keystore", path("keys"))
        .set("signer.password_file", path("passphrase"))
        .set("signer.http", http)
        .set("signer.aws_kms", cloud)
        .env("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
        .env("AWS_SECRET_ACCESS_KEY", CLOUD_SECRET)
        .env("RUST_LOG", "trace")
        .start()
        .await
}

/// A node that rejects, echoes, closes connections and is unreachable, and a database that is unreachable for a while.
async fn trouble(stack: &Stack, keys: &Keys, database: &mut TlsPostgres) -> Vec<TxId> {
    let proxy = stack.proxy();
    let quoting = format!("project {RPC_KEY} is over its limit, says {}", rpc_url("http://node"));
    let in_data = json!({ "code": -32603, "message": "Internal error", "data": quoting });
    for fault in [
        Fault::Html(format!("<p>{RPC_KEY}</p>")),
        Fault::error(&quoting),
        Fault::Body(format!("{{\"jsonrpc\":\"2.0\",\"id\":$id,\"error\":{in_data}}}")),
        Fault::Close,
        Fault::DropAnswer,
    ] {
        proxy.next(1, "eth_sendRawTransaction", fault);
    }
    let mut tx_ids = Vec::new();
    for submitter in [stack.submitter(0), &keys.kept, &keys.in_keystore] {
        wait_known(stack, submitter).await;
        tx_ids.push(stack.create(submitter, "one", &payload(Address::repeat_byte(0x5e), 1)).await);
    }
    stack.wait_confirmed(&tx_ids).await;
    eventually("every fault was met", async || match proxy.rules_left() {
        0 => Ok(()),
        left => Err(left),
    })
    .await;
    database.kill9();
    let client = stack.client();
    eventually("the API misses its database", async || {
        let page = client.get("/api/v1/tx?limit=1").await;
        if page.status == 503 { Ok(()) } else { Err(page) }
    })
    .await;
    database.restart().await;
    let after = eventually("the API has its database again", async || {
        let answer = stack.post(stack.submitter(0), "after", &payload(Address::repeat_byte(0x5e), 1)).await;
        if answer.status == 202 { Ok(answer.tx_id().parse().unwrap()) } else { Err(answer) }
    })
    .await;
    tx_ids.push(after);
    stack.wait_confirmed(&tx_ids[3..]).await;
    tx_ids
}

/// Starts that must fail, each with a secret that an error message could repeat.
async fn failing_starts(stack: &Stack, database: &TlsPostgres) {
    let raw_key = stack.submitter(0).key_hex();
    let wrong = database.url_as(&format!("service:{DATABASE_PASSWORD}x"), "127.0.0.1", "");
    let odd = database.url("127.0.0.1", &format!("sslpassword={DATABASE_PASSWORD}&sslmode=no"));
    let mut failing = Vec::new();
    for part in [stack.api(), stack.worker()] {
        let part = part.set("database.url", odd.as_str()).without_waiting();
        failing.push(part.start().await);
    }
    let node = rpc_url("http://127.0.0.1:9");
    for (key, value) in [
        ("chain.c0.rpc.urls", json!(node)),
        ("database.url", json!([database.url("h", "")])),
        ("rpc.timeout", json!(RPC_KEY)),
        ("signer.raw_key_env", json!([raw_key])),
        ("signer.password_env", json!(PASSPHRASE)),
        ("log.format", json!(ADMIN_TOKEN)),
    ] {
        failing.push(stack.worker().set(key, value).without_waiting().start().await);
    }
    for service in failing {
        let status = service.wait_exit().await;
        assert!(!status.success(), "{} ended with {status}", service.name());
    }
    // These continue, with warnings.
    let api = stack.api().set("database.url", wrong.as_str()).start().await;
    api.wait_for_log("the database is unavailable").await;
    let away = stack.worker().rpc(&[&node]).set("chain.c0.rpc.timeout", "1s").start().await;
    away.wait_for_log("identity could not be checked").await;
    let locked = stack.worker().set("signer.keystore", stack.dir().join("keys").to_str().unwrap());
    let locked = locked.set("signer.password_env", "WRONG").env("WRONG", "another passphrase").start().await;
    locked.wait_for_log("could not load a key").await;
    for service in [api, away, locked] {
        service.stop_sigterm().await;
    }
}

async fn command_line(
    stack: &Stack,
    outputs: &mut Outputs,
    grep: &mut Grep,
    tx_id: TxId,
    database: &TlsPostgres,
) {
    let (key, _) = stack.api_key(&["--scope", "tx:read", "--scope", "tx:write"]).await;
    grep.add("API key", key.rsplit('_').next().unwrap());
    let tx_id = tx_id.to_string();
    let from = stack.submitter(0).text();
    let api_url = format!("http://user:{RPC_PASSWORD}@127.0.0.1:9");
    let wrong_key = format!("{}{}", &key[..key.len() - 4], "0000");
    grep.add("wrong API key", &wrong_key);
    let url = database.url("127.0.0.1", "");
    let broken = stack.dir().join("broken.toml");
    write_broken(&broken);
    let broken = broken.to_str().unwrap();
    for (works, env, args) in [
        (true, ("GAPLESS_API_KEY", key.as_str()), vec!["status", &tx_id]),
        (true, ("GAPLESS_API_KEY", &key), vec!["submit", "--from", &from, "--value", "1", "--to", &from]),
        (false, ("GAPLESS_API_KEY", &wrong_key), vec!["status", &tx_id]),
        (false, ("GAPLESS_API", &api_url), vec!["submitters"]),
        (true, ("DATABASE_URL", &url), vec!["verify"]),
        (true, ("DATABASE_URL", &url), vec!["migrate"]),
        (true, ("DATABASE_URL", &url), vec!["api-keys", "list"]),
        (false, ("DATABASE_URL", DATABASE_PASSWORD), vec!["migrate"]),
        (false, ("GAPLESS_CONFIG", broken), vec!["verify"]),
        (true, ("GAPLESS_API_KEY", &key), vec!["--help"]),
        (true, ("GAPLESS_API", &api_url), vec!["--help"]),
    ] {
        let output = stack.cli_with(&[env, ("RUST_LOG", "trace")], &args).await;
        assert_eq!(output.code == 0, works, "{args:?}: {output:?}");
        outputs.cli(output);
    }
}

/// A missing quote after the password.
fn write_broken(path: &Path) {
    std::fs::write(path, format!("[database]\nurl = \"postgres://u:{DATABASE_PASSWORD}@h/d\n")).unwrap();
}

async fn nothing_secret_is_said(format: &str) {
    let mut database = TlsPostgres::start(DATABASE_PASSWORD).await;
    let stack = stack()
        .database_at(database.owner_url())
        .proxied()
        .set("log.level", "trace")
        .set("log.format", format)
        .set("resubmit.interval", "500ms")
        .set("fees.policy", "gas_station")
        .set("fees.gas_station.url", format!("http://127.0.0.1:9/{STATION_KEY}"))
        .set("fees.gas_station.normal.tip", "tip")
        .start()
        .await;
    let mut keys = keys(&stack).await;
    let with_role = |role: &str| database.url("127.0.0.1", &format!("options[role]={role}"));
    let api = stack.api().set("database.url", with_role("gapless_api")).env("RUST_LOG", "trace");
    let api = api.rpc(&[&rpc_url(stack.proxy().url())]).start().await;
    let worker = start_worker(&stack, &keys, &with_role("gapless_worker")).await;
    let tx_ids = trouble(&stack, &keys, &mut database).await;

    let mut outputs = Outputs::default();
    let simulated = json!({ "submitter": stack.submitter(0).text(), "payload": payload(Address::zero(), 1) });
    outputs.0.push((
        "a simulation".into(),
        stack.client().post_to("/api/v1/tx/simulate", &simulated).await.body.to_string(),
    ));
    for submitter in [stack.submitter(0), &keys.kept] {
        let answer = stack.submitter_action(submitter, "pause", "to use the token").await;
        assert_eq!(answer.status, 200, "{answer:?}");
        outputs.0.push(("an operation".into(), answer.body.to_string()));
        stack.submitter_action(submitter, "resume", "it was used").await;
    }
    let of_each: Vec<String> = tx_ids.iter().map(|tx_id| format!("/api/v1/tx/{tx_id}")).collect();
    let mut paths: Vec<&str> = of_each.iter().map(String::as_str).collect();
    paths.extend([
        "/api/v1/tx",
        "/api/v1/submitters",
        "/metrics",
        "/readyz",
        "/healthz",
        "/openapi.yaml",
        "/nothing",
    ]);
    outputs.pages(&api, &paths).await;
    outputs.pages(&worker, &["/metrics", "/readyz", "/healthz"]).await;
    command_line(&stack, &mut outputs, &mut keys.grep, tx_ids[0], &database).await;
    failing_starts(&stack, &database).await;
    stack.wait_all_terminal().await;

    for service in stack.services() {
        outputs.0.push((service.name().to_owned(), service.log()));
    }
    for raw in stack.proxy().sent() {
        keys.grep.add("signed bytes", &raw[raw.len() - 64..]);
    }
    outputs.is_free_of(&keys.grep);
    // They did log, and libraries did not below `info`.
    let log = worker.log();
    assert!(log.contains("DEBUG"), "the worker does not log at debug level");
    for library in ["hyper", "sqlx", "reqwest", "rustls", "h2", "aws_config", "aws_smithy_runtime"] {
        let talkative = |line: &&str| {
            (line.contains("TRACE") || line.contains("DEBUG")) && line.contains(&format!("{library}::"))
        };
        assert_eq!(log.lines().find(talkative), None);
    }

    // The control: the same search finds a planted text, the worker id, which is in every line.
    let planted = "a-name-that-nobody-may-say";
    let worker = stack.worker().set("worker.id", planted).start().await;
    keys.grep.add("planted", planted);
    let found = keys.grep.find(&worker.log());
    assert!(found.iter().any(|line| line.starts_with("planted: ")), "nothing was found: {found:?}");
    stack.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_secret_is_in_anything_that_is_said_as_json() {
    nothing_secret_is_said("json").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_secret_is_in_anything_that_is_said_as_text() {
    nothing_secret_is_said("text").await;
}
