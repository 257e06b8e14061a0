//! Scenario 121: upgrades. Migrations that expand and contract the schema, programs of several versions, and rows of the
//! previous release. `make test-upgrade` rolls real programs of two releases under chaos.

use gapless_config::Secret;
use gapless_store::{Contract, Migrations, Store, Timeouts};
use gapless_testkit::{Address, Mining, Recording, Stack, Submitter, TxState, eventually, payload};

use crate::stack;

/// Versions from here on are not those of this program.
const LATER: i64 = 900;

fn with_expansion() -> Migrations {
    let sql = "ALTER TABLE managed_tx ADD COLUMN of_the_test INT";
    Migrations::embedded().and(LATER, "expands", sql)
}

/// Needs a version that no program has yet.
fn with_contraction() -> Migrations {
    let sql = "-- contract: needs 99.0.0: the test\n\
               ALTER TABLE managed_tx DROP COLUMN of_the_test";
    let newer = "ALTER TABLE managed_tx ADD COLUMN newer_of_the_test INT";
    with_expansion().and(LATER + 1, "contracts", sql).and(LATER + 2, "expands again", newer)
}

fn store(url: &str) -> Store {
    Store::new(&Secret::new(url), "gapless-migrate", 1, Timeouts::default()).unwrap()
}

async fn has_column(stack: &Stack, column: &str) -> bool {
    sqlx::query_scalar(
        "SELECT EXISTS (SELECT 1 FROM information_schema.columns WHERE table_name = 'managed_tx' AND column_name = $1)",
    )
    .bind(column)
    .fetch_one(stack.db())
    .await
    .unwrap()
}

/// Programs keep working while the schema is expanded, and start on it. What would break them is refused while they are
/// connected, and they refuse to start after it.
#[tokio::test(flavor = "multi_thread")]
async fn a_contraction_waits_until_no_older_program_is_connected() {
    let stack = stack().up().await;
    let (submitter, to) = (stack.submitter(0), Address::repeat_byte(0xa1));
    let store = store(stack.database_url());
    let done = store.migrate_with(&with_contraction(), Contract::Later).await.unwrap();
    assert_eq!(done.applied, [LATER, LATER + 2], "the contraction waits, and nothing waits for it");
    assert_eq!(done.waiting.len(), 1);
    let tx_id = stack.create(submitter, "on-the-expanded-schema", &payload(to, 1)).await;
    stack.wait_for(tx_id, TxState::Confirmed).await;

    let refused = store.migrate_with(&with_contraction(), Contract::Now).await.unwrap_err().to_string();
    let version = env!("CARGO_PKG_VERSION");
    for named in
        ["older than version 99.0.0", &format!("gapless-api {version}"), &format!("gapless-worker {version}")]
    {
        assert!(refused.contains(named), "{refused}");
    }
    assert!(has_column(&stack, "of_the_test").await, "nothing was removed");

    for service in stack.services() {
        service.stop_sigterm().await;
    }
    eventually("no program is connected", async || {
        let connected = store.connected_programs().await.unwrap();
        if connected.is_empty() { Ok(()) } else { Err(connected) }
    })
    .await;
    let done = store.migrate_with(&with_contraction(), Contract::Now).await.unwrap();
    assert_eq!(done.applied, [LATER + 1]);
    assert!(!has_column(&stack, "of_the_test").await && has_column(&stack, "newer_of_the_test").await);
    for part in [stack.api(), stack.worker()] {
        let service = part.without_waiting().start().await;
        assert!(!service.wait_exit().await.success());
        let log = service.log();
        assert!(log.contains("needs version 99.0.0 or newer: update the program"), "{log}");
    }
    let refused = store.migrate(Contract::Later).await.unwrap_err().to_string();
    assert!(refused.contains("update the program"), "{refused}");
    stack.sql("UPDATE schema_support SET oldest_program = '0.1.0'").await;
    stack.finish().await;
}

/// It is in no list of sessions, so the contraction goes ahead without it.
#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_was_disconnected_during_a_contraction_does_not_go_on() {
    let stack = stack().start().await;
    let api = stack.start_api().await;
    let worker = stack.start_worker().await;
    stack.wait_announced(&api.client()).await;
    worker.sigstop();
    let tx_id = stack.create(stack.submitter(0), "waits", &payload(Address::repeat_byte(0xa2), 1)).await;
    api.stop_sigterm().await;
    let store = store(stack.database_url());
    eventually("no program is connected", async || {
        stack
            .sql(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                 WHERE datname = current_database() AND application_name LIKE 'gapless-worker%'",
            )
            .await;
        let connected = store.connected_programs().await.unwrap();
        if connected.is_empty() { Ok(()) } else { Err(connected) }
    })
    .await;
    let done = store.migrate_with(&with_contraction(), Contract::Now).await.unwrap();
    assert_eq!(done.applied, [LATER, LATER + 2, LATER + 1], "expansions first");
    worker.sigcont();
    worker.wait_for_log("needs version 99.0.0 or newer: update the program").await;
    let (code, _) = worker.readiness().await;
    assert_eq!(code, 503);
    let row = stack.row(tx_id).await;
    assert_eq!((row.state, row.nonce), (TxState::Queued, None), "it has written nothing");
    // The control: only the version was in the way.
    stack.sql("UPDATE schema_support SET oldest_program = '0.1.0'").await;
    stack.wait_for(tx_id, TxState::Confirmed).await;
    stack.finish().await;
}

/// A new database is used by nobody.
#[tokio::test(flavor = "multi_thread")]
async fn an_empty_database_gets_every_migration_at_once() {
    let stack = stack().start().await;
    let url = stack.empty_database().await;
    let done = store(&url).migrate_with(&with_contraction(), Contract::Later).await.unwrap();
    assert!(done.applied.contains(&(LATER + 1)) && done.waiting.is_empty(), "{done:?}");
    stack.finish().await;
}

/// Connections of version 0.1.0 do not state a version.
#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_states_no_version_counts_as_the_oldest() {
    let stack = stack().start().await;
    let store = store(stack.database_url());
    let mut options: sqlx::postgres::PgConnectOptions = stack.database_url().parse().unwrap();
    options = options.application_name("gapless-worker writer");
    let connection = sqlx::ConnectOptions::connect(&options).await.unwrap();
    let refused = store.migrate_with(&with_contraction(), Contract::Now).await.unwrap_err().to_string();
    assert!(refused.contains("gapless-worker 0.1.0 (1 connection)"), "{refused}");
    sqlx::Connection::close(connection).await.unwrap();
    stack.finish().await;
}

/// A directory for each earlier release, recorded with its programs by `make record-rows`.
const RECORDINGS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/rows");

async fn act(stack: &Stack, submitter: &Submitter, action: &str) {
    let answer = stack.submitter_action(submitter, action, "after the upgrade").await;
    assert!(answer.status < 300, "{action}: {}", answer.body);
}

/// State by request id.
async fn states(stack: &Stack) -> Vec<(String, String)> {
    sqlx::query_as("SELECT request_id, state FROM managed_tx ORDER BY request_id, submitter")
        .fetch_all(stack.db())
        .await
        .unwrap()
}

/// A database of an earlier release with transactions in every state is migrated; everything open ends.
#[tokio::test(flavor = "multi_thread")]
async fn every_open_intent_of_an_earlier_release_ends_after_the_migration() {
    let mut versions = 0;
    for entry in std::fs::read_dir(RECORDINGS).unwrap() {
        let dir = entry.unwrap().path();
        upgrade_from(Recording::read(&dir)).await;
        versions += 1;
    }
    assert!(versions > 0, "no recording in {RECORDINGS}");
}

async fn upgrade_from(recording: Recording) {
    let recorded = recording.rows("managed_tx");
    let has = |state: &TxState| recorded.iter().any(|row| row["state"] == state.as_str());
    let missing: Vec<TxState> = TxState::ALL.into_iter().filter(|state| !has(state)).collect();
    assert!(missing.is_empty(), "the recording has no {missing:?}");
    let of = |request: &str| {
        let row = recorded.iter().find(|row| row["request_id"] == request).unwrap();
        row["submitter"].as_str().unwrap().replace("\\x", "0x")
    };
    let stack = stack().recording(recording).confirmations(3).mining(Mining::Interval(0.3)).start().await;
    let before = states(&stack).await;
    let find = |text: String| stack.submitters().iter().find(|one| one.text() == text).unwrap();
    let (displaced, paused, unfunded) = (find(of("displaced")), find(of("paused")), find(of("unfunded")));

    let output = stack.cli(&["migrate"]).await;
    assert_eq!(output.code, 0, "{output:?}");
    assert_eq!(states(&stack).await, before, "a migration changes no state");
    stack.start_api().await;
    stack.start_worker().await;
    act(&stack, displaced, "adopt").await;
    act(&stack, paused, "resume").await;
    stack.anvil().set_balance(unfunded.address(), 10_u64.pow(18)).await;
    stack.wait_all_terminal().await;

    let ended = states(&stack).await;
    let requests =
        |rows: &[(String, String)]| rows.iter().map(|(request, _)| request.clone()).collect::<Vec<_>>();
    assert_eq!(requests(&ended), requests(&before));
    for ((request, before), (_, after)) in before.iter().zip(&ended) {
        let expected = match request.as_str() {
            "cancelling" | "requested" => "CANCELLED",
            // The reserving client is gone: a placeholder consumed its nonce.
            "reserved" => "FAILED",
            _ if TxState::ALL.into_iter().any(|state| state.is_terminal() && state.as_str() == before) => {
                before
            }
            _ => "CONFIRMED",
        };
        assert_eq!(after, expected, "{request}, which was {before}");
    }
    let count = |recipient: Address| stack.anvil().balance(recipient);
    for (index, effects) in [(2, 2_u64), (3, 1), (7, 2), (9, 1)] {
        let recipient = Address::repeat_byte(0xb0 + index);
        assert_eq!(count(recipient).await, effects.into(), "effects of submitter {index}");
    }
    stack.finish().await;
}
