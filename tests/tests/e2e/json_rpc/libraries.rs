//! Ethereum libraries on a real stack, unchanged but for the URL. The programs are in tools/json-rpc; `make test-ecosystem`
//! runs these tests.

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Output, Stdio};

use gapless_testkit::{Stack, TxId, eventually};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::Command;
use tokio::sync::watch;

use super::with_rpc;

/// Exit code of a program whose language is not installed.
const NOT_TESTED: i32 = 77;

macro_rules! libraries {
    ($($name:ident: $scenarios:expr;)*) => {
        $(
            /// Scenarios 88 and 90.
            #[tokio::test(flavor = "multi_thread")]
            #[ignore = "installs a client: make test-ecosystem"]
            async fn $name() {
                run(stringify!($name), &$scenarios).await;
            }
        )*
    };
}

const ALL: [&str; 6] = ["deploy", "call", "concurrent", "restart", "replacement", "revert"];

libraries! {
    ethers: ALL;
    viem: [ALL, ["raw-deploy", "raw-call", "raw-concurrent", "raw-restart", "raw-replacement", "raw-revert"]].concat();
    web3js: ALL;
    hardhat: ALL;
    ignition: ["deploy", "concurrent", "restart", "replacement", "revert"];
    web3py: ALL;
    go: ALL;
    alloy: [ALL, ["filled-deploy", "filled-call", "filled-concurrent", "filled-restart", "filled-replacement", "filled-revert"]]
        .concat();
    cast: ALL;
}

async fn run(client: &str, scenarios: &[&str]) {
    // As docs/guide/json-rpc.md says for scripts.
    let stack =
        with_rpc().window(64).set("nonce.release_at", "mined").set("api.json_rpc.wait", "8s").start().await;
    let (key, _) = stack.api_key(&["--scope", "tx:read", "--scope", "tx:write"]).await;
    let api = stack.start_api().await;
    stack.start_worker().await;
    stack.wait_announced(&stack.client().with_key(&key)).await;
    let (upstream, target) = watch::channel(address(&api.url()));
    let balancer = Listener::start().await;
    let control = Listener::start().await;
    let program = Command::new(root().join("tools/json-rpc/run"))
        .arg(client)
        .env("GAPLESS_RPC_URL", format!("http://{}{}", balancer.address, super::path(&stack)))
        .env("GAPLESS_API_KEY", &key)
        .env("GAPLESS_FROM", stack.submitter(0).text())
        .env("CONTROL_URL", format!("http://{}", control.address))
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let output = tokio::select! {
        output = program => output.unwrap(),
        () = forward(&balancer, target, false) => unreachable!("it serves forever"),
        () = carry_out(&control, &stack, &key, &upstream) => unreachable!("it serves forever"),
    };
    let printed = String::from_utf8_lossy(&output.stdout);
    if is_not_tested(client, &output, &printed) {
        return;
    }
    eprintln!("{printed}");
    let passed: Vec<&str> = printed.lines().filter_map(|line| line.strip_prefix("ok ")).collect();
    let notes = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{client}: {printed}\n{notes}");
    assert_eq!(passed, scenarios, "{client}: {printed}\n{notes}");
    stack.finish().await;
}

/// What viem and ethers did after an error of an accepted transaction: the codes they got, and the number of stored rows.
/// `changes_code`: the harness replaces the code by one that libraries repeat.
async fn after_an_error(changes_code: bool) -> Option<(Vec<String>, usize)> {
    // With the default wait: libraries give up after 10 s.
    let stack = with_rpc().set("api.json_rpc.wait", "8s").start().await;
    let api = stack.start_api().await;
    let worker = stack.start_worker().await;
    stack.wait_announced(&api.client()).await;
    worker.kill9();
    let (_upstream, target) = watch::channel(address(&api.url()));
    let balancer = Listener::start().await;
    let program = Command::new(root().join("tools/json-rpc/run"))
        .arg("retries")
        .env("GAPLESS_RPC_URL", format!("http://{}{}", balancer.address, super::path(&stack)))
        .env("GAPLESS_FROM", stack.submitter(0).text())
        .env("CONTROL_URL", "http://127.0.0.1:1")
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let output = tokio::select! {
        output = program => output.unwrap(),
        () = forward(&balancer, target, changes_code) => unreachable!("it serves forever"),
    };
    let printed = String::from_utf8_lossy(&output.stdout);
    if is_not_tested("retries", &output, &printed) {
        return None;
    }
    assert!(output.status.success(), "{printed} {}", String::from_utf8_lossy(&output.stderr));
    let codes =
        printed.lines().filter_map(|line| line.strip_prefix("answered ")).map(str::to_owned).collect();
    let stored = stack.rows(stack.submitter(0)).await.len();
    stack.start_worker().await;
    eventually("nothing waits", async || {
        let rows = stack.rows(stack.submitter(0)).await;
        if rows.iter().all(|row| row.state.is_terminal()) { Ok(()) } else { Err(rows.len()) }
    })
    .await;
    stack.finish().await;
    Some((codes, stored))
}

/// Scenario 89: the outcome is unknown, and neither path of viem nor ethers repeats the call.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "installs a client: make test-ecosystem"]
async fn no_library_repeats_a_call_after_an_error_of_an_accepted_transaction() {
    let Some((codes, stored)) = after_an_error(false).await else { return };
    assert_eq!(codes, ["viem -32003", "viem-request -32003", "ethers -32003"]);
    assert_eq!(stored, 3, "one for each send");
}

/// The control of the test above.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "installs a client: make test-ecosystem"]
async fn with_another_code_libraries_would_send_again() {
    let Some((codes, stored)) = after_an_error(true).await else { return };
    assert!(codes[1].contains("-32603"), "{codes:?}");
    assert!(stored > 3, "{stored} rows for three sends");
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// With `CI=true` a missing language is a failure.
fn is_not_tested(client: &str, output: &Output, printed: &str) -> bool {
    let is_missing = output.status.code() == Some(NOT_TESTED);
    if is_missing {
        assert_ne!(std::env::var("CI").as_deref(), Ok("true"), "{client}: {printed}");
        eprintln!("{client}: {printed}");
    }
    is_missing
}

struct Listener {
    listener: TcpListener,
    address: SocketAddr,
}

impl Listener {
    async fn start() -> Listener {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        Listener { address: listener.local_addr().unwrap(), listener }
    }
}

fn address(url: &str) -> SocketAddr {
    url.trim_start_matches("http://").parse().unwrap()
}

/// A load balancer: one address for whatever API runs. `changes_code`: for a negative control.
async fn forward(balancer: &Listener, target: watch::Receiver<SocketAddr>, changes_code: bool) {
    loop {
        let (mut client, _) = balancer.listener.accept().await.unwrap();
        let target = *target.borrow();
        tokio::spawn(async move {
            let Ok(mut server) = TcpStream::connect(target).await else { return };
            if changes_code {
                let (mut from_client, mut to_client) = client.split();
                let (mut from_server, mut to_server) = server.split();
                let requests = tokio::io::copy(&mut from_client, &mut to_server);
                let answers = async {
                    let mut buffer = vec![0; 1 << 16];
                    while let Ok(read @ 1..) = from_server.read(&mut buffer).await {
                        let text = String::from_utf8_lossy(&buffer[..read]).replace("-32003", "-32603");
                        if to_client.write_all(text.as_bytes()).await.is_err() {
                            return;
                        }
                    }
                };
                let _ = tokio::join!(requests, answers);
            } else {
                let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
            }
        });
    }
}

/// Carries out what the program asks for, one request at a time.
async fn carry_out(control: &Listener, stack: &Stack, key: &str, upstream: &watch::Sender<SocketAddr>) {
    loop {
        let (mut client, _) = control.listener.accept().await.unwrap();
        let (mut request, mut buffer) = (String::new(), [0; 4096]);
        while !request.contains("\r\n\r\n") {
            let read = client.read(&mut buffer).await.unwrap();
            assert!(read > 0, "half a request: {request}");
            request.push_str(&String::from_utf8_lossy(&buffer[..read]));
        }
        let path = request.split(' ').nth(1).unwrap().to_owned();
        match path.as_str() {
            "/restart" => restart(stack, key, upstream).await,
            "/hold" => stack.anvil().set_automine(false).await,
            "/mine" => {
                stack.anvil().mine(1).await;
                stack.anvil().set_automine(true).await;
            }
            _ => replace(stack, key, path.strip_prefix("/replace/").expect("a known path")).await,
        }
        let answer = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
        client.write_all(answer.as_bytes()).await.unwrap();
    }
}

/// Kills both: no goodbye, no hand-over.
async fn restart(stack: &Stack, key: &str, upstream: &watch::Sender<SocketAddr>) {
    for service in stack.services().into_iter().filter(|service| service.is_running()) {
        service.kill9();
    }
    let api = stack.start_api().await;
    stack.start_worker().await;
    stack.wait_announced(&stack.client().with_key(key)).await;
    upstream.send_replace(address(&api.url()));
}

async fn replace(stack: &Stack, key: &str, hash: &str) {
    let client = stack.client().with_key(key);
    let body = super::answer(&client, stack, "gapless_getTransaction", json!([hash])).await;
    let tx_id: TxId = body["result"]["txId"].as_str().unwrap_or_else(|| panic!("{body}")).parse().unwrap();
    let path = format!("/api/v1/tx/{tx_id}/speed-up?wait=30s");
    let asked = stack.client().admin_post(&path, &json!({ "reason": "test" })).await;
    assert_eq!(asked.status, 200, "{asked:?}");
    let attempts = stack.wait_attempts(tx_id, 2).await;
    stack.wait_pooled(attempts[1].tx_hash).await;
}
