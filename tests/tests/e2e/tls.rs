//! Connections that nobody can listen to, and servers that must prove who they are: PostgreSQL and nodes.

use gapless_tests::{Address, Authority, CERTIFIED, Guarded, Service, Stack, Terminator, payload};
use serde_json::json;

use crate::stack;

const PASSWORD: &str = "a-password-of-the-tests";

/// A PostgreSQL that takes nobody without TLS and is called `localhost`, and who vouches for it.
async fn secured() -> (Guarded, Authority, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::new(dir.path(), "authority");
    let database = Guarded::start(PASSWORD).await;
    database.secure(&authority.issue(&["localhost"]), &authority.pem()).await;
    (database, authority, dir)
}

async fn stack_on(database: &Guarded) -> Stack {
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

/// API, worker and command line, over connections that are all encrypted and verified. One worker proves itself by
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
    // The API, what it hears and tells, and the worker's pools: the pool that listens is among them.
    for part in ["gapless-api", "gapless-api-notify", "gapless-worker fleet", "gapless-worker writer"] {
        assert!(seen.iter().any(|(name, _)| name == part), "{part}: {seen:?}");
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

/// A server of another name, and one that nobody known vouches for. `sslmode=require` would have taken both.
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
    // Negative control: nothing but the verification keeps them out.
    let trusting = database.url("localhost", "sslmode=require");
    let output = stack.cli_with(&[("DATABASE_URL", &trusting)], &["migrate"]).await;
    assert_eq!(output.code, 0, "{output:?}");
    stack.finish().await;
}

/// Nobody has said how the way to another machine is secured; and somebody has said that it is not.
#[tokio::test(flavor = "multi_thread")]
async fn a_database_elsewhere_needs_a_word_about_tls() {
    let stack = stack().start().await;
    // An address for documentation: nobody has it. The word is asked for before the first packet.
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

/// A node of one's own behind TLS, vouched for by one's own authority: worker and audit ask it, and nobody is told what its URL
/// hides.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_behind_tls_is_asked_if_its_authority_is_known() {
    let stack = stack().start().await;
    let authority = Authority::new(stack.dir(), "authority");
    let other = Authority::new(stack.dir(), "other");
    let node = Terminator::start(stack.anvil().url(), &authority.issue(&["localhost"])).await;
    // anvil knows one path alone.
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
    assert_eq!(node.handshakes(), 0, "nothing was said to whom nobody trusts");

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
