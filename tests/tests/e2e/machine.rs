//! What the database enforces: the state machine, the fencing tokens, the nonces; and its documentation.

use std::collections::BTreeSet;

use gapless_testkit::{Address, H256, Mining, TxState, payload};
use serde_json::{Value, json};

use crate::stack;

const DOCUMENT: &str = include_str!("../../../docs/reference/state-machine.md");

/// `FROM --> TO: why` of the mermaid block.
fn documented_moves() -> BTreeSet<(TxState, TxState)> {
    let block = DOCUMENT
        .split("```mermaid")
        .nth(1)
        .and_then(|rest| rest.split("```").next())
        .expect("a mermaid block");
    let moves = block.lines().filter_map(|line| line.split_once("-->"));
    let state = |word: &str| word.split(':').next().unwrap_or_default().trim().parse().ok();
    // `[*]` is not a state: start and end are in the prose.
    moves.filter_map(|(from, to)| Some((state(from)?, state(to)?))).collect()
}

fn pairs() -> impl Iterator<Item = (TxState, TxState)> {
    TxState::ALL.into_iter().flat_map(|from| TxState::ALL.into_iter().map(move |to| (from, to)))
}

#[tokio::test(flavor = "multi_thread")]
async fn code_database_and_documentation_have_the_same_state_machine() {
    let stack = stack().start().await;
    let documented = documented_moves();
    assert!(documented.len() > 20, "the diagram was read: {documented:?}");
    for (from, to) in pairs() {
        let in_database: bool = sqlx::query_scalar("SELECT managed_tx_move_allowed($1, $2)")
            .bind(from.as_str())
            .bind(to.as_str())
            .fetch_one(stack.db())
            .await
            .unwrap();
        assert_eq!(in_database, from.may_become(to), "the database and the code about {from} --> {to}");
        let in_document = from == to || documented.contains(&(from, to));
        assert_eq!(
            in_document,
            from.may_become(to),
            "docs/reference/state-machine.md and the code about {from} --> {to}"
        );
    }
    stack.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_table_and_every_column_says_what_it_is_for() {
    let stack = stack().start().await;
    let silent: Vec<String> = sqlx::query_scalar(
        "SELECT c.relname || coalesce('.' || a.attname, '')
         FROM pg_class c
         JOIN pg_namespace n ON n.oid = c.relnamespace AND n.nspname = 'public'
         CROSS JOIN LATERAL (
             SELECT 0::INT2 AS attnum, NULL::NAME AS attname
             UNION ALL
             SELECT a.attnum, a.attname
             FROM pg_attribute a
             WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
         ) a
         LEFT JOIN pg_description d
           ON d.classoid = 'pg_class'::REGCLASS AND d.objoid = c.oid AND d.objsubid = a.attnum
         WHERE c.relkind IN ('r', 'p', 'v', 'm')
           AND c.relname <> '_sqlx_migrations'
           AND coalesce(d.description, '') = ''
         ORDER BY 1",
    )
    .fetch_all(stack.db())
    .await
    .unwrap();
    assert!(silent.is_empty(), "without a comment: {silent:?}");
    let columns: i64 =
        sqlx::query_scalar("SELECT count(*) FROM information_schema.columns WHERE table_schema = 'public'")
            .fetch_one(stack.db())
            .await
            .unwrap();
    assert!(columns > 50, "the schema was read");
    stack.finish().await;
}

/// The last line of defence: even a session with all permissions is rejected.
#[tokio::test(flavor = "multi_thread")]
async fn the_database_refuses_what_no_owner_may_do_even_from_plain_sql() {
    let stack = stack().mining(Mining::Manual).up().await;
    let first = stack.create(stack.submitter(0), "first", &payload(Address::repeat_byte(0x78), 1)).await;
    stack.wait_for(first, TxState::Submitted).await;
    let before = stack.row(first).await;
    for (code, statement) in [
        ("GL001", "UPDATE managed_tx SET fencing_token = fencing_token - 1"),
        ("GL001", "UPDATE submitter_nonce_cursor SET fencing_token = fencing_token - 1"),
        ("GL001", "UPDATE submitter_lease SET fencing_token = fencing_token - 1"),
        ("GL002", "UPDATE managed_tx SET state = 'QUEUED', nonce = NULL"),
        ("GL002", "UPDATE managed_tx SET state = 'IN_FLIGHT'"),
        ("GL003", "UPDATE managed_tx SET nonce = nonce + 1"),
        ("GL003", "UPDATE managed_tx SET nonce = NULL, state = 'FAILED', finished_at = now()"),
        ("GL003", "UPDATE submitter_nonce_cursor SET next_nonce = next_nonce - 1, open_from = next_nonce - 1,
             in_flight_state = 'IDLE', in_flight_tx_id = NULL, in_flight_nonce = NULL"),
        ("GL004", "UPDATE submitter_nonce_cursor SET next_nonce = next_nonce + 1"),
        // A sequence with an invalid start.
        ("GL004", "INSERT INTO submitter_nonce_cursor
                 (chain_id, submitter, start_nonce, next_nonce, open_from, in_flight_state, in_flight_tx_id, in_flight_nonce,
                  max_in_flight, fencing_token)
             SELECT chain_id, decode(repeat('77', 20), 'hex'), 0, 2, 0, 'IN_FLIGHT', in_flight_tx_id, 0, 1, 1
             FROM submitter_nonce_cursor"),
        ("GL005", "INSERT INTO submitter_nonce_cursor (chain_id, submitter, start_nonce, next_nonce, max_in_flight, fencing_token)
             SELECT chain_id, decode(repeat('77', 20), 'hex'), 0, 1, 1, 1 FROM submitter_nonce_cursor"),
        // Constraints: a second intent at the nonce, a state without its nonce, an invalid end, work without an
        // owner, an open nonce that was not assigned or is below the bound of open intents.
        ("23505", "INSERT INTO managed_tx
                 (tx_id, chain_id, submitter, request_id, payload, payload_hash, state, nonce, fencing_token)
             SELECT gen_random_uuid(), chain_id, submitter, 'other', payload, payload_hash, state, nonce, fencing_token
             FROM managed_tx"),
        ("23514", "UPDATE managed_tx SET state = 'FAILED'"),
        ("23514", "UPDATE managed_tx SET state = 'TRACKING'"),
        ("23514", "UPDATE managed_tx SET fencing_token = NULL"),
        // The evidence of finality before it is final; and its last send.
        ("23514", "UPDATE managed_tx SET confirmations = '{\"rule\": \"1\", \"count\": 1}'"),
        ("23514", "UPDATE managed_tx SET mined_send_at = now(), mined_send_class = 'accepted'"),
        // Addresses and hashes of another length.
        ("23514", "UPDATE managed_tx SET submitter = submitter || '\\x00'"),
        ("23514", "UPDATE managed_tx SET tx_hash = '\\xab'"),
        ("23514", "UPDATE tx_attempt SET tx_hash = ''"),
        ("23514", "UPDATE submitter_lease SET submitter = convert_to('0x', 'UTF8') || submitter"),
        ("23514", "UPDATE chain SET genesis_hash = convert_to('0x' || encode(genesis_hash, 'hex'), 'UTF8')"),
        ("23514", "UPDATE submitter_nonce_cursor SET in_flight_state = 'PROTECT'"),
        ("23514", "UPDATE submitter_nonce_cursor SET next_nonce = next_nonce - 1"),
        ("23514", "UPDATE submitter_nonce_cursor SET open_from = next_nonce"),
    ] {
        assert_eq!(stack.refusal(statement).await, code, "{statement}");
    }
    let after = stack.row(first).await;
    assert_eq!(
        (after.state, after.nonce, after.fencing_token),
        (before.state, before.nonce, before.fencing_token)
    );
    stack.anvil().mine(1).await;
    stack.wait_for(first, TxState::Confirmed).await;
    assert_eq!(
        stack
            .refusal(
                "UPDATE managed_tx SET state = 'SUBMITTED', finished_at = NULL, confirmed_at = NULL, confirmations = NULL,
                     mined_send_at = NULL, mined_send_class = NULL"
            )
            .await,
        "GL002"
    );
    for (hashes, problem) in [
        (
            "UPDATE managed_tx SET confirmation_hashes = decode(repeat('ab', 64 * 32), 'hex')",
            "including its own block that is one too many",
        ),
        (
            "UPDATE managed_tx SET confirmation_hashes = decode(repeat('ab', 33), 'hex')",
            "not a whole number of hashes",
        ),
        ("UPDATE managed_tx SET confirmation_hashes = ''", "no hash"),
    ] {
        assert_eq!(stack.refusal(hashes).await, "23514", "{problem}");
    }
    stack.finish().await;
}

/// For people with psql.
#[tokio::test(flavor = "multi_thread")]
async fn the_views_show_addresses_and_hashes_as_text() {
    let stack = stack().mining(Mining::Manual).confirmations(3).up().await;
    let submitter = stack.submitter(0);
    let tx_id = stack.create(submitter, "first", &payload(Address::repeat_byte(0x79), 1)).await;
    stack.wait_for(tx_id, TxState::Submitted).await;
    stack.anvil().mine(3).await;
    let row = stack.wait_for(tx_id, TxState::Confirmed).await;
    let (tx_hash, block) = (row.tx_hash.unwrap(), row.block_number.unwrap());
    let shown: Value = sqlx::query_scalar(
        "SELECT to_jsonb(t) || jsonb_build_object('signed_with', a.gas_params, 'attempt', a.tx_hash)
         FROM v_managed_tx t
         JOIN v_tx_attempt a USING (tx_id)
         WHERE t.submitter = $1 AND a.submitter = $1",
    )
    .bind(submitter.text())
    .fetch_one(stack.db())
    .await
    .unwrap();
    let text = |hash: H256| json!(format!("{hash:#x}"));
    assert_eq!((&shown["tx_hash"], &shown["attempt"]), (&text(tx_hash), &text(tx_hash)), "{shown}");
    assert!(shown["last_gas_params"]["gasLimit"].is_string(), "{shown}");
    assert_eq!(shown["last_gas_params"], shown["signed_with"], "of the newest attempt");
    let mut blocks = Vec::new();
    for number in block..block + 3 {
        let block = stack.anvil().rpc("eth_getBlockByNumber", json!([format!("{number:#x}"), false])).await;
        blocks.push(block["hash"].clone());
    }
    assert_eq!(shown["block_hash"], blocks[0], "{shown}");
    assert_eq!(shown["confirmation_hashes"], json!(blocks[1..]), "{shown}");
    // Every view has all columns of its table but these two, and none as bytes.
    let missing: Vec<String> = sqlx::query_scalar(
        "SELECT t.relname || '.' || a.attname
         FROM pg_class v
         JOIN pg_class t ON t.relnamespace = v.relnamespace AND 'v_' || t.relname = v.relname
         JOIN pg_attribute a ON a.attrelid = t.oid AND a.attnum > 0 AND NOT a.attisdropped
         LEFT JOIN pg_attribute s ON s.attrelid = v.oid AND s.attname = a.attname
         WHERE v.relkind = 'v' AND v.relnamespace = 'public'::REGNAMESPACE
           AND (s.attname IS NULL OR s.atttypid = 'BYTEA'::REGTYPE)
         ORDER BY 1",
    )
    .fetch_all(stack.db())
    .await
    .unwrap();
    assert_eq!(missing, ["managed_tx.queued", "tx_attempt.raw_tx"]);
    stack.finish().await;
}
