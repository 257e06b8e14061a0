//! Starts that must fail with a reason, and one that must not: a keystore that cannot be decrypted.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use gapless_cli::commands::migrate::migrate;
use gapless_config::Secret;
use gapless_signer::keystore;
use gapless_store::{Contract, Migrated};
use gapless_testkit::{Address, Service, U256, eventually, payload};
use serde_json::json;
use sqlx::Connection;
use tokio::io::AsyncReadExt;

use crate::stack;

/// The process exits with a failure and a reason; returns its log.
async fn refuses_to_start(service: Service) -> String {
    let status = service.wait_exit().await;
    assert!(!status.success(), "{} ended with {status}", service.name());
    service.log()
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_starts_on_a_schema_that_is_too_old() {
    let stack = stack().start().await;
    let empty = stack.empty_database().await;
    let older = stack.empty_database().await;
    migrate(&Secret::new(older.as_str()), Contract::Later).await.unwrap();
    let mut connection = sqlx::PgConnection::connect(&older).await.unwrap();
    let newest = "DELETE FROM _sqlx_migrations WHERE version = (SELECT max(version) FROM _sqlx_migrations)";
    sqlx::query(newest).execute(&mut connection).await.unwrap();
    connection.close().await.unwrap();
    for url in [&empty, &older] {
        for part in [stack.api(), stack.worker()] {
            let log =
                refuses_to_start(part.set("database.url", url.as_str()).without_waiting().start().await)
                    .await;
            assert!(log.contains("schema is older") && log.contains("gapless migrate"), "{log}");
        }
    }
    migrate(&Secret::new(empty.as_str()), Contract::Later).await.unwrap();
    stack.api().set("database.url", empty.as_str()).start().await;
    stack.worker().set("database.url", empty.as_str()).start().await;
    stack.finish().await;
}

/// A migration with another text: neither the programs nor `gapless migrate` continue. A newer schema is accepted.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_starts_on_a_schema_of_an_unreleased_version() {
    let stack = stack().start().await;
    let url = stack.empty_database().await;
    migrate(&Secret::new(url.as_str()), Contract::Later).await.unwrap();
    let mut connection = sqlx::PgConnection::connect(&url).await.unwrap();
    let later = "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time)
                 VALUES (900, 'of a later version', TRUE, sha384('later'), 1)";
    sqlx::query(later).execute(&mut connection).await.unwrap();
    assert_eq!(migrate(&Secret::new(url.as_str()), Contract::Later).await.unwrap(), Migrated::default());
    stack.api().set("database.url", url.as_str()).start().await;

    let other_text = "UPDATE _sqlx_migrations SET checksum = sha384('another text') WHERE version = 1";
    sqlx::query(other_text).execute(&mut connection).await.unwrap();
    connection.close().await.unwrap();
    let error = format!("{:#}", migrate(&Secret::new(url.as_str()), Contract::Later).await.unwrap_err());
    assert!(error.contains("unreleased version") && error.contains("cannot be upgraded"), "{error}");
    for part in [stack.api(), stack.worker()] {
        let service = part.set("database.url", url.as_str()).without_waiting().start().await;
        let log = refuses_to_start(service).await;
        assert!(log.contains("unreleased version"), "{log}");
    }
    stack.finish().await;
}

/// A server that closes every connection, and the number of connections so far.
async fn closing_server() -> (String, Arc<AtomicUsize>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("postgres://gapless@{}/gapless", listener.local_addr().unwrap());
    let attempts = Arc::new(AtomicUsize::new(0));
    let counted = attempts.clone();
    tokio::spawn(async move {
        while let Ok((mut connection, _)) = listener.accept().await {
            // Read first: otherwise the client sees a reset or an end, by chance.
            let _ = connection.read(&mut [0; 64]).await;
            drop(connection);
            counted.fetch_add(1, Ordering::Relaxed);
        }
    });
    (url, attempts)
}

/// One line about the database, whatever the number of attempts, and nothing about the inside of the program.
fn reported_once(service: &Service) {
    let log = service.log();
    let lines = log.lines().filter(|line| line.contains("WARN") && line.contains("database")).count();
    assert_eq!(lines, 1, "{}: {log}", service.name());
    for noise in ["at line", "Caused by", "backtrace", "LISTEN", "panicked"] {
        assert!(!log.contains(noise), "{noise} of {}: {log}", service.name());
    }
}

/// API and worker started before their database wait for it, and say so once.
#[tokio::test(flavor = "multi_thread")]
async fn a_missing_or_unreachable_database_is_waited_for_and_reported_once() {
    let stack = stack().start().await;
    let url = stack.empty_database().await;
    migrate(&Secret::new(url.as_str()), Contract::Later).await.unwrap();
    let name = url.rsplit('/').next().unwrap();
    let mut waiting = Vec::new();
    for part in [stack.api(), stack.worker()] {
        let service = part.set("database.url", format!("{url}_later")).without_waiting().start().await;
        let line = service.wait_for_log("the database is unavailable; retrying").await;
        assert!(line.contains(&format!("{name}_later")) && line.contains("does not exist"), "{line}");
        waiting.push(service);
    }
    for part in [stack.api(), stack.worker()] {
        let (closing, attempts) = closing_server().await;
        let service = part.set("database.url", closing).without_waiting().start().await;
        eventually("it is tried again", async || match attempts.load(Ordering::Relaxed) {
            5.. => Ok(()),
            fewer => Err(fewer),
        })
        .await;
        service.wait_for_log("the database is unavailable; retrying").await;
        reported_once(&service);
        service.stop_sigterm().await;
    }
    let mut connection = sqlx::PgConnection::connect(stack.database_url()).await.unwrap();
    let rename = format!("ALTER DATABASE \"{name}\" RENAME TO \"{name}_later\"");
    sqlx::query(sqlx::AssertSqlSafe(rename)).execute(&mut connection).await.unwrap();
    connection.close().await.unwrap();
    for service in waiting {
        service.wait_for_log("the database is available").await;
        reported_once(&service);
        service.stop_sigterm().await;
    }
    stack.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_error_in_the_configuration_names_the_key_and_where_it_was_set() {
    let stack = stack().start().await;
    for (key, value) in [
        ("lease.durration", json!("10s")),
        ("lease.duration", json!("soon")),
        ("lease.renew_interval", json!("1h")),
        ("nonce.max_in_flight", json!(0)),
        ("confirmations.required", json!(0)),
        ("chain.c0.resubmit.intervall", json!("1s")),
        ("chain.c0.rpc.timeout", json!(-1)),
        ("chain.c0.confirmations.required", json!(0)),
        ("duties.prune", json!("every day")),
        ("nonsense.key", json!(true)),
    ] {
        for part in [stack.api(), stack.worker()] {
            let service = part.set(key, value.clone()).without_waiting().start().await;
            let log = refuses_to_start(service.clone()).await;
            let word = key.rsplit('.').next().unwrap();
            assert!(log.contains(word) || log.contains("nonsense"), "{key} is named: {log}");
            assert!(log.contains(&format!("{}.toml", service.name())), "the file is named for {key}: {log}");
        }
    }
    let part = stack.worker().env("GAPLESS__LEASE__DURATION", "soon").without_waiting();
    let log = refuses_to_start(part.start().await).await;
    assert!(log.to_lowercase().contains("lease") && log.contains("environment"), "{log}");
    stack.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_keystore_file_that_cannot_be_opened_is_named_and_the_rest_goes_on() {
    let stack = stack().start().await;
    let keys = stack.dir().join("keys");
    let (good, _) = keystore::create(&keys, &Secret::new("secret")).unwrap();
    let (_, locked) = keystore::create(&keys, &Secret::new("another password")).unwrap();
    stack.anvil().set_balance(good, U256::exp10(18)).await;
    stack.start_api().await;
    let worker =
        stack.worker().set("signer.keystore", keys.to_str().unwrap()).set("signer.password_env", "KEYS");
    let worker = worker.env("KEYS", "secret").start().await;
    let line = worker.wait_for_log("could not load a key").await;
    assert!(line.contains(locked.to_str().unwrap()), "{line}");
    let body = eventually("it is ready", async || match worker.readiness().await {
        (200, body) => Ok(body),
        other => Err(other),
    })
    .await;
    assert_eq!(body["reasons"], json!({ "signer": 1 }), "{body}");

    let to = Address::repeat_byte(0x0a);
    let body = json!({ "submitter": format!("{good:#x}"), "requestId": "kept", "payload": payload(to, 1) });
    let answer = stack.client().post_raw(&body).await;
    assert_eq!(answer.status, 202, "{answer:?}");
    stack.record_accepted(&answer);
    let beside = stack.create(stack.submitter(0), "beside", &payload(to, 1)).await;
    stack.wait_confirmed(&[answer.tx_id().parse().unwrap(), beside]).await;
    assert!(!worker.log().contains("another password") && !worker.log().contains("secret"));
    let signers = stack.client().get("/api/v1/submitters").await;
    let items = signers.body["items"].as_array().unwrap();
    let mut kinds: Vec<&str> = items.iter().map(|item| item["signer"].as_str().unwrap()).collect();
    kinds.sort();
    assert_eq!(kinds, ["keystore", "raw_key"]);
    stack.finish().await;
}

/// The API answers 404 for a submitter that is not announced, so a worker is not ready before that.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_is_ready_once_its_submitters_are_announced() {
    let stack = stack().start().await;
    stack.start_api().await;
    let mut lock = stack.db().begin().await.unwrap();
    // Writers of the table wait, readers do not.
    sqlx::query("LOCK TABLE submitter IN SHARE ROW EXCLUSIVE MODE").execute(&mut *lock).await.unwrap();
    let worker = stack.worker().without_waiting().start().await;
    eventually("it is not ready", async || match worker.try_readiness().await {
        Ok((503, body)) if body["reasons"] == json!({ "not_announced": 1 }) => Ok(()),
        other => Err(other),
    })
    .await;
    let to = Address::repeat_byte(0x0a);
    let submitter = stack.submitter(0);
    let body = json!({ "submitter": submitter.text(), "requestId": "early", "payload": payload(to, 1) });
    let refused = stack.client().post_raw(&body).await;
    assert_eq!((refused.status, &refused.body["code"]), (404, &json!("unknown_submitter")));
    assert!(refused.body["detail"].as_str().is_some_and(|text| text.contains("/readyz")), "{refused:?}");

    lock.commit().await.unwrap();
    eventually("it is ready", async || match worker.try_readiness().await {
        Ok((200, _)) => Ok(()),
        other => Err(other),
    })
    .await;
    let early = stack.create(submitter, "early", &payload(to, 1)).await;
    stack.wait_confirmed(&[early]).await;
    stack.finish().await;
}
