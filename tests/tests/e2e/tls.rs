//! TLS: encrypted connections with verified servers for PostgreSQL, nodes, and the API itself.

use std::path::Path;
use std::time::Duration;

use gapless_testkit::{
    Address, Authority, CERTIFIED, Identity, Service, Stack, Terminator, TlsPostgres, TxState, eventually,
    payload,
};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::stack;

const PASSWORD: &str = "a-password-of-the-tests";

/// A PostgreSQL named `localhost` that requires TLS, and its certificate authority.
async fn secured() -> (TlsPostgres, Authority, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::new(dir.path(), "authority");
    let database = TlsPostgres::start(PASSWORD).await;
    database.secure(&authority.issue(&["localhost"]), &authority.pem()).await;
    (database, authority, dir)
}

async fn stack_on(database: &TlsPostgres) -> Stack {
    stack().database_at(database.owner_url()).start().await
}

fn verified(authority: &Authority) -> String {
    format!("sslmode=verify-full&sslrootcert={}", authority.file())
}

/// Sessions of the product, and whether each is encrypted.
async fn sessions(stack: &Stack) -> Vec<(String, bool)> {
    sqlx::query_as(
        "SELECT application_name, ssl
         FROM pg_stat_activity JOIN pg_stat_ssl USING (pid)
         WHERE datname = current_database() AND application_name LIKE 'gapless%'",
    )
    .fetch_all(stack.db())
    .await
    .unwrap()
}

async fn refused(service: Service) -> String {
    let status = service.wait_exit().await;
    assert!(!status.success(), "{} ended with {status}", service.name());
    service.log()
}

/// API, worker and CLI over encrypted and verified connections. One worker authenticates with a client
/// certificate and has no password.
#[tokio::test(flavor = "multi_thread")]
async fn every_connection_to_the_database_is_encrypted_and_verified() {
    let (database, authority, dir) = secured().await;
    let stack = stack_on(&database).await;
    let url =
        |role: &str| database.url("localhost", &format!("{}&options[role]={role}", verified(&authority)));
    stack.api().set("database.url", url("gapless_api")).start().await;
    let worker = stack.worker().set("database.url", url("gapless_worker")).start().await;
    let first = stack.create(stack.submitter(0), "first", &payload(Address::repeat_byte(0x71), 1)).await;
    stack.wait_confirmed(&[first]).await;
    let seen = sessions(&stack).await;
    // The API with its LISTEN and NOTIFY connections, and the worker's pools, including the listener.
    for part in ["gapless-api", "gapless-api-notify", "gapless-worker fleet", "gapless-worker writer"] {
        assert!(seen.iter().any(|(name, _)| name.starts_with(&format!("{part} "))), "{part}: {seen:?}");
    }
    assert!(seen.iter().all(|(_, ssl)| *ssl), "{seen:?}");
    worker.stop_sigterm().await;

    let (certificate, key) = authority.issue(&[CERTIFIED]).write(dir.path(), "worker");
    let certified =
        format!("{}&sslcert={certificate}&sslkey={key}&options[role]=gapless_worker", verified(&authority));
    let certified = database.url_as(CERTIFIED, "localhost", &certified);
    stack.worker().set("database.url", certified).start().await;
    let second = stack.create(stack.submitter(0), "second", &payload(Address::repeat_byte(0x71), 1)).await;
    stack.wait_confirmed(&[second]).await;
    assert!(sessions(&stack).await.iter().all(|(_, ssl)| *ssl));

    let owner = database.url("localhost", &verified(&authority));
    for args in [vec!["migrate"], vec!["api-keys", "list"], vec!["verify"]] {
        let output = stack.cli_with(&[("DATABASE_URL", &owner)], &args).await;
        assert_eq!(output.code, 0, "{args:?}: {output:?}");
    }
    let plain = database.url("localhost", "sslmode=disable");
    let output = stack.cli_with(&[("DATABASE_URL", &plain)], &["migrate"]).await;
    assert!(output.code != 0 && output.stderr.contains("no encryption"), "only TLS is taken: {output:?}");
    stack.finish().await;
}

/// A server with another name, and one of an unknown authority. `sslmode=require` would have accepted both.
#[tokio::test(flavor = "multi_thread")]
async fn a_database_server_that_is_somebody_else_is_refused_with_the_cause() {
    let (database, authority, dir) = secured().await;
    let stack = stack_on(&database).await;
    let other = Authority::new(dir.path(), "other");
    database.certify(&authority.issue(&["db.internal"])).await;
    let wrong_name = database.url("localhost", &verified(&authority));
    let unknown = database.url("localhost", &verified(&other));
    for (url, cause) in [(&wrong_name, "db.internal"), (&unknown, "sslrootcert")] {
        for part in [stack.api(), stack.worker()] {
            let log = refused(part.set("database.url", url.as_str()).without_waiting().start().await).await;
            assert!(log.contains("not trusted") && log.contains(cause), "{cause}: {log}");
            assert!(!log.contains(PASSWORD), "{log}");
        }
        let output = stack.cli_with(&[("DATABASE_URL", url)], &["migrate"]).await;
        assert!(output.code != 0 && output.stderr.contains(cause), "{output:?}");
    }
    // Negative control: without verification they are accepted.
    let trusting = database.url("localhost", "sslmode=require");
    let output = stack.cli_with(&[("DATABASE_URL", &trusting)], &["migrate"]).await;
    assert_eq!(output.code, 0, "{output:?}");
    stack.finish().await;
}

/// A remote host without a TLS setting, and one with TLS explicitly disabled.
#[tokio::test(flavor = "multi_thread")]
async fn a_database_elsewhere_needs_a_word_about_tls() {
    let stack = stack().start().await;
    // An address reserved for documentation. The setting is required before the first packet.
    let elsewhere = "postgres://u:hunter22@192.0.2.1/d";
    for part in [stack.api(), stack.worker()] {
        let log = refused(part.set("database.url", elsewhere).without_waiting().start().await).await;
        assert!(log.contains("192.0.2.1") && log.contains("sslmode=verify-full"), "{log}");
        assert!(!log.contains("hunter22"), "{log}");
    }
    let output = stack.cli_with(&[("DATABASE_URL", elsewhere)], &["migrate"]).await;
    assert!(output.code != 0 && output.stderr.contains("sslmode=verify-full"), "{output:?}");
    for mode in ["disable", "require"] {
        let url = format!("{elsewhere}?sslmode={mode}");
        let api = stack.api().set("database.url", url).without_waiting().start().await;
        let line = api.wait_for_log("not secure").await;
        assert!(
            line.contains("192.0.2.1") && line.contains("verify-full") && !line.contains("hunter22"),
            "{line}"
        );
        api.kill9();
    }
    stack.finish().await;
}

/// A node behind TLS with a private CA: worker and audit connect to it, and no output shows the secret parts of its
/// URL.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_behind_tls_is_asked_if_its_authority_is_known() {
    let stack = stack().start().await;
    let authority = Authority::new(stack.dir(), "authority");
    let other = Authority::new(stack.dir(), "other");
    let node = Terminator::start(stack.anvil().url(), &authority.issue(&["localhost"])).await;
    // anvil serves one path only.
    let secret = "/?key=the-key-of-the-node";
    let (right, wrong_name) = (node.url("localhost", secret), node.url("127.0.0.1", secret));
    stack.start_api().await;
    let ca_file = "chain.c0.rpc.ca_file";
    for (url, ca, cause) in [
        (&right, None, "rpc.ca_file"),
        (&right, Some(&other), "rpc.ca_file"),
        (&wrong_name, Some(&authority), "not valid for name"),
    ] {
        let mut worker = stack.worker().rpc(&[url]);
        if let Some(ca) = ca {
            worker = worker.set(ca_file, ca.file());
        }
        let worker = worker.start().await;
        let line = worker.wait_for_log("identity could not be checked").await;
        assert!(line.contains("invalid peer certificate") && line.contains(cause), "{line}");
        assert!(!worker.log().contains("the-key-of-the-node"));
        worker.stop_sigterm().await;
        let (key, url) = ("GAPLESS__CHAIN__C0__RPC__URLS", json!([url]).to_string());
        let audit =
            [(key, url.as_str()), ("GAPLESS__CHAIN__C0__RPC__CA_FILE", ca.map_or("", |ca| ca.file()))];
        let audit = if ca.is_some() { &audit[..] } else { &audit[..1] };
        let output = stack.cli_with(audit, &["verify"]).await;
        assert!(output.code != 0 && output.stderr.contains("invalid peer certificate"), "{output:?}");
        assert!(!output.stderr.contains("the-key-of-the-node"), "{output:?}");
    }
    assert_eq!(node.handshakes(), 0, "no handshake with an untrusted server");

    let worker = stack.worker().rpc(&[&right]).set(ca_file, authority.file()).start().await;
    let tx_id = stack.create(stack.submitter(0), "first", &payload(Address::repeat_byte(0x72), 1)).await;
    stack.wait_confirmed(&[tx_id]).await;
    assert!(node.handshakes() > 0);
    let env = [
        ("GAPLESS__CHAIN__C0__RPC__URLS", json!([right]).to_string()),
        ("GAPLESS__CHAIN__C0__RPC__CA_FILE", authority.file().to_owned()),
    ];
    let env: Vec<(&str, &str)> = env.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let output = stack.cli_with(&env, &["verify"]).await;
    assert_eq!(output.code, 0, "{output:?}");
    assert!(!worker.log().contains("the-key-of-the-node") && !worker.log().contains("not secure"));
    let plain = stack.worker().rpc(&["http://user:hunter22@192.0.2.1:8545/key"]).start().await;
    let line = plain.wait_for_log("not secure").await;
    assert!(line.contains("http://192.0.2.1:8545") && !line.contains("hunter22"), "{line}");
    stack.finish().await;
}

fn trusting(authority: &Authority) -> reqwest::Client {
    let root = reqwest::Certificate::from_pem(authority.pem().as_bytes()).unwrap();
    // Each request has its own connection, and so the current certificate.
    gapless_http_client::client_builder().tls_certs_only([root]).pool_max_idle_per_host(0).build().unwrap()
}

fn write(identity: &Identity, dir: &Path) {
    identity.write(dir, "api");
}

async fn tls_api(stack: &Stack, header_timeout: &str) -> Service {
    let path = |ending: &str| stack.dir().join(format!("api.{ending}")).to_str().unwrap().to_owned();
    let api = stack.api().set("api.tls.cert", path("crt")).set("api.tls.key", path("key"));
    api.set("api.header_timeout", header_timeout).set("api.max_connections", 2).start().await
}

async fn create(
    client: &reqwest::Client,
    api: &Service,
    stack: &Stack,
    request_id: &str,
) -> reqwest::Result<Value> {
    let to = payload(Address::repeat_byte(0x73), 1);
    let body = json!({ "submitter": stack.submitter(0).text(), "requestId": request_id, "payload": to });
    client.post(format!("{}/api/v1/tx", api.url())).json(&body).send().await?.json().await
}

/// The API's TLS: a request is confirmed, the CLI works with it, plain HTTP is rejected.
#[tokio::test(flavor = "multi_thread")]
async fn the_api_speaks_tls_and_takes_up_a_new_certificate() {
    let stack = stack().start().await;
    let (authority, next) = (Authority::new(stack.dir(), "authority"), Authority::new(stack.dir(), "next"));
    write(&authority.issue(&["localhost", "127.0.0.1"]), stack.dir());
    let api = tls_api(&stack, "30s").await;
    stack.start_worker().await;
    let client = trusting(&authority);
    eventually("the submitter is announced", async || {
        let url = format!("{}/api/v1/submitters", api.url());
        let page: Value = client.get(url).send().await.unwrap().json().await.unwrap();
        if page["items"].as_array().is_some_and(|items| !items.is_empty()) { Ok(()) } else { Err(page) }
    })
    .await;
    let answer = create(&client, &api, &stack, "over-tls").await.unwrap();
    let tx_id = answer["txId"].as_str().unwrap_or_else(|| panic!("{answer}")).parse().unwrap();
    stack.wait_for(tx_id, TxState::Confirmed).await;

    let text = tx_id.to_string();
    let output = stack.cli_with(&[("GAPLESS_API_CA", authority.file())], &["status", &text]).await;
    assert!(output.code == 0 && output.stdout.contains("CONFIRMED"), "{output:?}");
    let output = stack.cli_with(&[("GAPLESS_API_CA", next.file())], &["status", &text]).await;
    assert!(output.code != 0 && output.stderr.contains("invalid peer certificate"), "{output:?}");
    let plain = gapless_http_client::client_builder()
        .build()
        .unwrap()
        .get(api.url().replace("https", "http"))
        .send()
        .await;
    assert!(plain.is_err(), "{plain:?}");

    // A key that does not match changes nothing; a matching pair is loaded without a restart.
    let renewed = next.issue(&["localhost", "127.0.0.1"]);
    std::fs::write(stack.dir().join("api.crt"), &renewed.certificate).unwrap();
    api.wait_for_log("the API's new certificate is unusable").await;
    assert!(create(&client, &api, &stack, "over-tls").await.is_ok());
    write(&renewed, stack.dir());
    let renewed = trusting(&next);
    eventually("the new certificate serves", async || create(&renewed, &api, &stack, "over-tls").await).await;
    assert!(create(&client, &api, &stack, "over-tls").await.is_err(), "the old one serves no longer");
    let key = std::fs::read_to_string(stack.dir().join("api.key")).unwrap();
    assert!(!api.log().contains(key.lines().nth(1).unwrap()));
    stack.finish().await;
}

/// The limit is two connections, and both are used by clients that never finish their handshake.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_never_finishes_its_handshake_is_cut_off() {
    let stack = stack().start().await;
    let authority = Authority::new(stack.dir(), "authority");
    write(&authority.issue(&["127.0.0.1"]), stack.dir());
    let api = tls_api(&stack, "1s").await;
    let address = api.url().replace("https://", "");
    let mut silent = TcpStream::connect(&address).await.unwrap();
    let mut slow = TcpStream::connect(&address).await.unwrap();
    // The start of a ClientHello that is never completed.
    slow.write_all(&[0x16, 0x03, 0x01, 0x02, 0x00, 0x01]).await.unwrap();
    let client = trusting(&authority);
    let ready = client.get(format!("{}/healthz", api.url())).timeout(Duration::from_secs(60)).send().await;
    assert_eq!(ready.unwrap().status(), 200, "a slot is free again");
    for stream in [&mut silent, &mut slow] {
        let mut rest = Vec::new();
        // Closed or reset; before the timeout it would be neither.
        let _ = tokio::time::timeout(Duration::from_secs(60), stream.read_to_end(&mut rest))
            .await
            .expect("it is over");
    }
    api.wait_for_log("TLS handshake timed out").await;
    stack.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_api_whose_certificate_cannot_be_used_does_not_start() {
    let stack = stack().start().await;
    let authority = Authority::new(stack.dir(), "authority");
    write(&authority.issue(&["localhost"]), stack.dir());
    let path = |name: &str| stack.dir().join(name).to_str().unwrap().to_owned();
    authority.issue(&["localhost"]).write(stack.dir(), "other");
    for (cert, key, cause) in [
        ("api.crt", "other.key", "does not match"),
        ("missing.crt", "api.key", "missing.crt"),
        ("api.key", "api.key", "api.tls.cert"),
    ] {
        let api = stack.api().set("api.tls.cert", path(cert)).set("api.tls.key", path(key)).without_waiting();
        let log = refused(api.start().await).await;
        assert!(log.contains(cause), "{cause}: {log}");
    }
    let key = stack.dir().join("api.key");
    std::fs::set_permissions(&key, std::os::unix::fs::PermissionsExt::from_mode(0o644)).unwrap();
    let api = tls_api(&stack, "30s").await;
    assert!(api.wait_for_log("not secure").await.contains("api.key"), "others can read the key");
    stack.finish().await;
}
