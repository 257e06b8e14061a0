//! Database permissions of each program. Every test runs its API as `gapless_api` and its workers as
//! `gapless_worker`, which shows that they are sufficient; here it is tested that there are no more, and that
//! migrations create them everywhere.

use futures::future::join_all;
use gapless_cli::commands::migrate::migrate;
use gapless_config::Secret;
use gapless_store::Contract;
use gapless_testkit::{Address, Mining, Stack, TxState, eventually, payload};
use serde_json::json;
use sqlx::{AssertSqlSafe, Connection, PgConnection};

use crate::stack;

const DENIED: &str = "42501";

/// A plain connection, as psql has one.
async fn session(stack: &Stack, role: &str) -> PgConnection {
    PgConnection::connect(&stack.database_url_as(role)).await.unwrap()
}

/// The SQLSTATE of a rejected statement; empty if it succeeds. Always rolled back.
async fn tried(session: &mut PgConnection, statement: &'static str) -> String {
    let mut attempt = session.begin().await.unwrap();
    let outcome = sqlx::query(statement).execute(&mut *attempt).await;
    attempt.rollback().await.unwrap();
    match outcome {
        Ok(_) => String::new(),
        Err(error) => error.as_database_error().unwrap().code().unwrap_or_default().into_owned(),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_role_of_the_api_can_change_no_state_no_nonce_and_no_lease() {
    let stack = stack().mining(Mining::Manual).up().await;
    let tx_id = stack.create(stack.submitter(0), "one", &payload(Address::repeat_byte(0x71), 1)).await;
    stack.wait_for(tx_id, TxState::Submitted).await;
    let mut api = session(&stack, "gapless_api").await;
    for statement in [
        "UPDATE managed_tx SET state = 'CANCELLED', finished_at = now()",
        "UPDATE managed_tx SET nonce = 7",
        "UPDATE managed_tx SET payload = '{}'",
        "UPDATE managed_tx SET fencing_token = 99",
        "DELETE FROM managed_tx",
        "INSERT INTO managed_tx (tx_id, chain_id, submitter, request_id, payload, payload_hash, state)
         VALUES (gen_random_uuid(), 1, decode(repeat('78', 20), 'hex'), 'r', '{}', '', 'QUEUED')",
        "INSERT INTO managed_tx (tx_id, chain_id, submitter, request_id, payload, payload_hash, nonce)
         VALUES (gen_random_uuid(), 1, decode(repeat('78', 20), 'hex'), 'r', '{}', '', NULL)",
        "UPDATE submitter_nonce_cursor SET next_nonce = next_nonce + 1",
        "INSERT INTO submitter_nonce_cursor (chain_id, submitter, start_nonce, next_nonce, max_in_flight, fencing_token)
         VALUES (1, decode(repeat('78', 20), 'hex'), 0, 0, 1, 1)",
        "UPDATE submitter_lease SET fencing_token = fencing_token + 1",
        "UPDATE submitter_lease SET expires_at = '-infinity'",
        "SELECT FROM submitter_lease FOR UPDATE",
        "SELECT lease_id FROM submitter_lease",
        "SELECT fencing_token FROM submitter_lease",
        "UPDATE worker SET expires_at = now()",
        "INSERT INTO chain_halt (chain_id, worker_id, reason) VALUES (1, 'w', 'r')",
        "SELECT raw_tx FROM tx_attempt",
        "SELECT fencing_token FROM v_tx_attempt",
        "SELECT FROM v_submitter_lease",
        "SELECT FROM v_policy_audit",
        "DELETE FROM v_managed_tx",
        "INSERT INTO tx_attempt (attempt_id, tx_id, ordinal, chain_id, submitter, nonce, kind, raw_tx, tx_hash, gas_params, fencing_token)
         VALUES (gen_random_uuid(), gen_random_uuid(), 1, 1, decode(repeat('78', 20), 'hex'), 0, 'ORIGINAL', '', '', '{}', 1)",
        "UPDATE submitter SET shared = TRUE",
        "UPDATE submitter SET max_in_flight = 100",
        "INSERT INTO submitter (chain_id, submitter, signer) VALUES (1, decode(repeat('78', 20), 'hex'), 'raw_key')",
        "UPDATE audit_log SET outcome = 'done'",
        "UPDATE tx_request SET applied_at = now()",
        "UPDATE api_key SET revoked_at = NULL",
        "UPDATE api_key SET scopes = '{admin}'",
        "INSERT INTO api_key (key_id, name, secret_hash, scopes) VALUES ('0', 'x', '', '{admin}')",
        "DELETE FROM api_key",
        "DROP TABLE managed_tx",
    ] {
        assert_eq!(tried(&mut api, statement).await, DENIED, "{statement}");
    }
    // Permitted statements: the control that not everything is rejected.
    const QUEUED: &str =
        "INSERT INTO managed_tx (tx_id, chain_id, submitter, request_id, payload, payload_hash)
         VALUES (gen_random_uuid(), 1, decode(repeat('78', 20), 'hex'), 'r', '{}', '')";
    for statement in [
        QUEUED,
        "SELECT * FROM managed_tx",
        "SELECT owner, expires_at, updated_at FROM submitter_lease",
        "SELECT * FROM worker, chain_halt",
        "SELECT kind, tx_hash, sends, last_answer FROM tx_attempt",
        "SELECT kind, tx_hash, sends, last_answer FROM v_tx_attempt",
        "SELECT * FROM v_managed_tx",
        "UPDATE submitter SET status = 'PAUSED', status_reason = 'x'",
        "UPDATE api_key SET last_used_at = now()",
    ] {
        assert_eq!(tried(&mut api, statement).await, "", "{statement}");
    }
    let mut attempt = api.begin().await.unwrap();
    let made: (String, Option<i64>) =
        sqlx::query_as(AssertSqlSafe(format!("{QUEUED} RETURNING state, nonce")))
            .fetch_one(&mut *attempt)
            .await
            .unwrap();
    assert_eq!(made, ("QUEUED".to_owned(), None), "there is no other way to insert one");
    attempt.rollback().await.unwrap();
    stack.anvil().mine(1).await;
    stack.wait_for(tx_id, TxState::Confirmed).await;
    stack.finish().await;
}

/// Even from psql, as the worker's role, or as the owner of the tables.
#[tokio::test(flavor = "multi_thread")]
async fn an_older_token_is_refused_whoever_writes_it() {
    let stack = stack().mining(Mining::Manual).start().await;
    stack.start_api().await;
    let worker = stack.start_worker().await;
    let tx_id = stack.create(stack.submitter(0), "one", &payload(Address::repeat_byte(0x72), 1)).await;
    stack.wait_for(tx_id, TxState::Submitted).await;
    worker.stop_sigterm().await;
    let mut plain = session(&stack, "gapless_worker").await;
    let mut owner = PgConnection::connect(stack.database_url()).await.unwrap();
    for session in [&mut plain, &mut owner] {
        for statement in [
            "UPDATE managed_tx SET state = 'STUCK', fencing_token = fencing_token - 1",
            "UPDATE managed_tx SET last_error = 'zombie', fencing_token = 0",
            "UPDATE submitter_nonce_cursor SET in_flight_state = in_flight_state, fencing_token = fencing_token - 1",
            "UPDATE submitter_lease SET fencing_token = fencing_token - 1",
        ] {
            assert_eq!(tried(session, statement).await, "GL001", "{statement}");
        }
        // The control: the same write with the current token.
        assert_eq!(
            tried(session, "UPDATE managed_tx SET state = 'STUCK', fencing_token = fencing_token").await,
            ""
        );
    }
    // And what a worker does not need.
    for statement in [
        "UPDATE managed_tx SET request_id = 'other'",
        "INSERT INTO managed_tx (tx_id, chain_id, submitter, request_id, payload, payload_hash)
         VALUES (gen_random_uuid(), 1, decode(repeat('78', 20), 'hex'), 'r', '{}', '')",
        "UPDATE tx_attempt SET raw_tx = ''",
        "UPDATE submitter SET status = 'ACTIVE'",
        "SELECT secret_hash FROM api_key",
        "DELETE FROM audit_log",
    ] {
        assert_eq!(tried(&mut plain, statement).await, DENIED, "{statement}");
    }
    stack.start_worker().await;
    stack.anvil().mine(1).await;
    stack.wait_for(tx_id, TxState::Confirmed).await;
    stack.finish().await;
}

/// A complete life cycle with only the granted permissions; and the control that the processes use them.
#[tokio::test(flavor = "multi_thread")]
async fn the_rights_are_enough_for_a_whole_life_and_are_the_ones_in_force() {
    let stack = stack().mining(Mining::Manual).set("events.mode", "mq_outbox").up().await;
    let (submitter, client) = (stack.submitter(0), stack.client());
    let transfer = payload(Address::repeat_byte(0x73), 1);
    let first = stack.create(submitter, "first", &transfer).await;
    stack.wait_for(first, TxState::Submitted).await;
    let path = format!("/api/v1/tx/{first}");
    for (action, body) in [
        ("speed-up", json!({})),
        ("resolve", json!({ "action": "rebroadcast", "reason": "again" })),
        ("cancel", json!({})),
        ("cancel", json!({})),
    ] {
        let asked = client.admin_post(&format!("{path}/{action}"), &body).await;
        assert!(matches!(asked.status, 200 | 202), "{action}: {asked:?}");
    }
    for action in ["pause", "resume"] {
        assert_eq!(stack.submitter_action(submitter, action, "because").await.status, 200, "{action}");
    }
    let second = stack.create(submitter, "second", &transfer).await;
    stack.anvil().mine(1).await;
    stack.wait_for(second, TxState::Submitted).await;
    stack.anvil().mine(1).await;
    stack.wait_for(second, TxState::Confirmed).await;

    // Revoked, the work stops; granted again, it continues.
    stack.sql("REVOKE UPDATE ON managed_tx FROM gapless_worker").await;
    stack.sql("REVOKE UPDATE (state) ON managed_tx FROM gapless_worker").await;
    let third = stack.create(submitter, "third", &transfer).await;
    let worker = stack.workers().remove(0);
    worker.wait_for_log("permission denied for table managed_tx").await;
    assert_eq!(stack.row(third).await.state, TxState::Queued);
    stack.sql("REVOKE INSERT (payload) ON managed_tx FROM gapless_api").await;
    let refused = stack.post(submitter, "fourth", &transfer).await;
    assert_eq!((refused.status, refused.code()), (500, "internal_error"));
    stack.sql("SELECT gapless_grant_roles()").await;
    stack.wait_for(third, TxState::Submitted).await;
    stack.anvil().mine(1).await;
    stack.wait_for(third, TxState::Confirmed).await;
    stack.finish().await;
}

/// A migration that adds a table must grant its permissions.
#[tokio::test(flavor = "multi_thread")]
async fn every_table_is_known_to_the_grants() {
    let stack = stack().start().await;
    let unknown: Vec<String> = sqlx::query_scalar(
        "SELECT c.relname::TEXT
         FROM pg_class c
         WHERE c.relnamespace = 'public'::REGNAMESPACE AND c.relkind IN ('r', 'p', 'v') AND NOT c.relispartition
           AND NOT has_table_privilege('gapless_api', c.oid, 'SELECT')
           AND NOT has_table_privilege('gapless_worker', c.oid, 'SELECT')",
    )
    .fetch_all(stack.db())
    .await
    .unwrap();
    assert!(
        unknown.is_empty(),
        "grant rights in a function gapless_grants_000N of the migration: {unknown:?}"
    );
    stack.finish().await;
}

/// A server without the roles.
async fn without_roles() -> Stack {
    let stack = stack().own_postgres().start().await;
    stack.sql("DROP OWNED BY gapless_api, gapless_worker").await;
    stack.sql("DROP ROLE gapless_api, gapless_worker").await;
    stack
}

#[tokio::test(flavor = "multi_thread")]
async fn databases_of_one_server_are_migrated_at_the_same_moment() {
    let stack = without_roles().await;
    let urls = join_all((0..8).map(|_| stack.empty_database())).await;
    for outcome in
        join_all(urls.iter().map(|url| async { migrate(&Secret::new(url.as_str()), Contract::Later).await }))
            .await
    {
        outcome.unwrap();
    }
    for url in &urls {
        let mut session = PgConnection::connect(&format!("{url}?options[role]=gapless_api")).await.unwrap();
        assert_eq!(tried(&mut session, "SELECT FROM managed_tx").await, "");
    }
    stack.finish().await;
}

/// Managed databases: the migrating user may not create roles.
#[tokio::test(flavor = "multi_thread")]
async fn where_roles_may_not_be_made_the_migration_goes_on_and_they_are_granted_later() {
    let stack = without_roles().await;
    let url = stack.empty_database().await;
    let database = url.rsplit('/').next().unwrap();
    stack.sql("CREATE ROLE plain LOGIN").await;
    let own = format!("ALTER DATABASE {database} OWNER TO plain");
    sqlx::query(AssertSqlSafe(own)).execute(stack.db()).await.unwrap();
    let (scheme, rest) = url.split_once("://").unwrap();
    let as_plain = format!("{scheme}://plain@{}", rest.split_once('@').unwrap().1);
    migrate(&Secret::new(as_plain.as_str()), Contract::Later).await.unwrap();
    let mut plain = PgConnection::connect(&as_plain).await.unwrap();
    let made: Vec<String> = sqlx::query_scalar(
        "SELECT rolname::TEXT FROM pg_roles WHERE rolname IN ('gapless_api', 'gapless_worker')",
    )
    .fetch_all(&mut plain)
    .await
    .unwrap();
    assert!(made.is_empty(), "{made:?}");
    // Without roles one user does everything.
    let api = stack.api().set("database.url", as_plain.as_str()).start().await;
    let worker = stack.worker().set("database.url", as_plain.as_str()).start().await;
    stack.wait_announced(&api.client()).await;
    for service in [api, worker] {
        service.stop_sigterm().await;
    }
    // An administrator creates them, and the owner grants.
    stack.sql("CREATE ROLE gapless_api NOLOGIN").await;
    stack.sql("CREATE ROLE gapless_worker NOLOGIN").await;
    sqlx::query("SELECT gapless_grant_roles()").execute(&mut plain).await.unwrap();
    let limited = format!("{url}?options[role]=");
    let api = stack.api().set("database.url", format!("{limited}gapless_api")).start().await;
    stack.worker().set("database.url", format!("{limited}gapless_worker")).start().await;
    let made = api.client().post(stack.submitter(0), "one", &payload(Address::repeat_byte(0x74), 1)).await;
    assert_eq!(made.status, 202, "{made:?}");
    let tx = format!("/api/v1/tx/{}", made.tx_id());
    eventually("it is confirmed", async || {
        let seen = api.client().get(&tx).await;
        if seen.body["state"] == "CONFIRMED" { Ok(()) } else { Err(seen.body) }
    })
    .await;
    stack.finish().await;
}

/// Before PostgreSQL 15 every user may create functions in the schema `public`.
#[tokio::test(flavor = "multi_thread")]
async fn a_function_of_another_user_is_not_called_with_the_rights_of_the_owner() {
    let stack = stack().start().await;
    let mut connection = sqlx::PgConnection::connect(stack.database_url()).await.unwrap();
    let planted = "GRANT CREATE ON SCHEMA public TO gapless_api;
        SET ROLE gapless_api;
        CREATE FUNCTION gapless_grants_9999() RETURNS VOID LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'called'; END $$;
        RESET ROLE";
    sqlx::raw_sql(planted).execute(&mut connection).await.unwrap();
    sqlx::raw_sql("SELECT gapless_grant_roles()").execute(&mut connection).await.unwrap();
    // The control: as a function of the owner it would be called.
    let owned = "DO $$ BEGIN EXECUTE format('ALTER FUNCTION gapless_grants_9999() OWNER TO %I', current_user); END $$";
    sqlx::raw_sql(owned).execute(&mut connection).await.unwrap();
    let called = sqlx::raw_sql("SELECT gapless_grant_roles()").execute(&mut connection).await.unwrap_err();
    assert!(called.to_string().contains("called"), "{called}");
    connection.close().await.unwrap();
    stack.finish().await;
}
