//! The order of the log: the sequencer, and why other orders are wrong.

use std::time::Duration;

use gapless_config::Secret;
use gapless_store::{Store, Timeouts};
use sqlx::{Connection, PgConnection};

use super::write_events;
use crate::stack;

const WEEK: Duration = Duration::from_secs(7 * 24 * 3600);

fn worker_store(stack: &gapless_testkit::Stack) -> Store {
    let url = Secret::new(stack.database_url_as("gapless_worker"));
    Store::new(&url, "gapless-test", 2, Timeouts::default()).unwrap()
}

/// Submitter (first byte) of each event of the log, with the text of its data.
async fn logged(stack: &gapless_testkit::Stack) -> Vec<(String, String)> {
    sqlx::query_as(
        "SELECT encode(substring(submitter FOR 1), 'hex'), data ->> 'reason' FROM event_log ORDER BY position",
    )
    .fetch_all(stack.db())
    .await
    .unwrap()
}

fn pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
    expected.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect()
}

async fn write(connection: &mut PgConnection, submitter: u8, text: &str) {
    sqlx::query(
        "INSERT INTO outbox_event (chain_id, submitter, kind, data)
         VALUES (31337, decode(repeat(lpad(to_hex($1), 2, '0'), 20), 'hex'), 'submitter.unblocked',
                 jsonb_build_object('type', 'submitter.unblocked', 'reason', $2::TEXT))",
    )
    .bind(i32::from(submitter))
    .bind(text)
    .execute(connection)
    .await
    .unwrap();
}

/// Scenario 74, and the counter-example of docs/adr/0044: T2 begins on lane a, T1 writes lane b and commits, then T2
/// writes lane b and commits.
#[tokio::test(flavor = "multi_thread")]
async fn what_began_early_and_committed_late_is_neither_lost_nor_out_of_its_lanes_order() {
    let stack = stack().start().await;
    let store = worker_store(&stack);
    let mut early = PgConnection::connect(stack.database_url()).await.unwrap();
    let mut late = PgConnection::connect(stack.database_url()).await.unwrap();
    let mut t2 = early.begin().await.unwrap();
    write(&mut t2, 0xa, "first of a").await;
    let mut t1 = late.begin().await.unwrap();
    write(&mut t1, 0xb, "first of b").await;
    t1.commit().await.unwrap();
    let first_of_b: i64 =
        sqlx::query_scalar("SELECT event_id FROM outbox_event").fetch_one(stack.db()).await.unwrap();
    assert_eq!(store.sequence_events(WEEK).await.unwrap().moved, 1, "what is committed does not wait");
    write(&mut t2, 0xb, "second of b").await;
    t2.commit().await.unwrap();

    // Negative control: a consumer whose cursor is the event_id has seen that of `first of b` and asks for higher ones.
    let missed: i64 = sqlx::query_scalar(
        "SELECT count(*) FROM outbox_event WHERE event_id < $1 AND data ->> 'reason' = 'first of a'",
    )
    .bind(first_of_b)
    .fetch_one(stack.db())
    .await
    .unwrap();
    assert_eq!(missed, 1, "its id is lower than one that was read before");

    assert_eq!(store.sequence_events(WEEK).await.unwrap().moved, 2);
    let expected = pairs(&[("0b", "first of b"), ("0a", "first of a"), ("0b", "second of b")]);
    assert_eq!(logged(&stack).await, expected);
    store.close().await;
    stack.finish().await;
}

/// Negative control: the order of transaction ids, which is often proposed, has the second event of b before the first.
#[tokio::test(flavor = "multi_thread")]
async fn the_order_of_transaction_ids_is_wrong() {
    let stack = stack().start().await;
    let store = worker_store(&stack);
    let mut early = PgConnection::connect(stack.database_url()).await.unwrap();
    let mut late = PgConnection::connect(stack.database_url()).await.unwrap();
    let mut t2 = early.begin().await.unwrap();
    write(&mut t2, 0xa, "first of a").await;
    let mut t1 = late.begin().await.unwrap();
    write(&mut t1, 0xb, "first of b").await;
    t1.commit().await.unwrap();
    write(&mut t2, 0xb, "second of b").await;
    t2.commit().await.unwrap();
    let by_xid: Vec<String> = sqlx::query_scalar(
        "SELECT data ->> 'reason' FROM outbox_event WHERE get_byte(submitter, 0) = 11
         ORDER BY xmin::TEXT::BIGINT, event_id",
    )
    .fetch_all(stack.db())
    .await
    .unwrap();
    assert_eq!(by_xid, ["second of b", "first of b"], "the counter-example");
    store.sequence_events(WEEK).await.unwrap();
    let expected = pairs(&[("0a", "first of a"), ("0b", "first of b"), ("0b", "second of b")]);
    assert_eq!(logged(&stack).await, expected);
    store.close().await;
    stack.finish().await;
}

/// Blocks of the outbox's index that a move of one event reads.
async fn blocks_read(stack: &gapless_testkit::Stack, store: &Store) -> i64 {
    let read = async || -> i64 {
        // The statistics of a session are reported when it is idle.
        sqlx::query("SELECT pg_stat_clear_snapshot()").execute(stack.db()).await.unwrap();
        sqlx::query_scalar(
            "SELECT idx_blks_hit + idx_blks_read FROM pg_statio_user_indexes WHERE indexrelname = 'outbox_event_pkey'",
        )
        .fetch_one(stack.db())
        .await
        .unwrap()
    };
    // PostgreSQL reports at most once per second, later than this.
    let settled = async || {
        tokio::time::sleep(Duration::from_millis(1_500)).await;
        store.ping().await.unwrap();
        read().await
    };
    let mut connection = PgConnection::connect(stack.database_url()).await.unwrap();
    write_events(&mut connection, 0xc, 1).await;
    connection.close().await.unwrap();
    let before = settled().await;
    assert_eq!(store.sequence_events(WEEK).await.unwrap().moved, 1);
    settled().await - before
}

/// A snapshot that is open for ten minutes keeps 60,000 moved rows in the index of the outbox, at 100 events per second.
/// The search for new ones must not read them. The control: without raising the floor it does.
#[tokio::test(flavor = "multi_thread")]
async fn dead_rows_of_the_outbox_do_not_slow_the_sequencer() {
    let stack = stack().own_postgres().start().await;
    let url = Secret::new(stack.database_url());
    // One connection, so that its statistics are complete.
    let store = Store::new(&url, "gapless-test", 1, Timeouts::default()).unwrap();
    let mut old = PgConnection::connect(stack.database_url()).await.unwrap();
    let mut snapshot = old.begin().await.unwrap();
    sqlx::query("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ").execute(&mut *snapshot).await.unwrap();
    sqlx::query("SELECT count(*) FROM outbox_event").execute(&mut *snapshot).await.unwrap();
    let mut connection = PgConnection::connect(stack.database_url()).await.unwrap();
    for _ in 0..60 {
        write_events(&mut connection, 0xd, 1_000).await;
        assert_eq!(store.sequence_events(WEEK).await.unwrap().moved, 1_000);
    }
    let without = blocks_read(&stack, &store).await;
    // While a writer is open, the floor stays below its ids.
    let mut writer = connection.begin().await.unwrap();
    let open = write_events(&mut writer, 0xe, 1).await;
    let floor = store.outbox_floor().await.unwrap();
    assert!(!store.raise_outbox_floor(&floor).await.unwrap(), "its row may still become visible");
    writer.commit().await.unwrap();
    assert!(!store.raise_outbox_floor(&floor).await.unwrap(), "its row is not moved yet");
    assert_eq!(store.sequence_events(WEEK).await.unwrap().moved, 1);
    assert!(store.raise_outbox_floor(&floor).await.unwrap());
    let stored: i64 =
        sqlx::query_scalar("SELECT outbox_floor FROM event_head").fetch_one(stack.db()).await.unwrap();
    assert!(stored >= open[0], "{stored} {open:?}");
    let with = blocks_read(&stack, &store).await;
    assert!(
        without > 100 && with < 30,
        "blocks of the index read by one move: {without} without, {with} with the floor"
    );
    snapshot.rollback().await.unwrap();
    store.close().await;
    stack.finish().await;
}

/// A floor that was read before a failover is not used after it: ids may be assigned again.
#[tokio::test(flavor = "multi_thread")]
async fn a_floor_of_another_database_is_not_used() {
    let stack = stack().start().await;
    let store = worker_store(&stack);
    let mut connection = PgConnection::connect(stack.database_url()).await.unwrap();
    write_events(&mut connection, 0xd, 10).await;
    assert_eq!(store.sequence_events(WEEK).await.unwrap().moved, 10);
    let floor = store.outbox_floor().await.unwrap();
    // As after a failover to a standby that lost its tail: another identity, and a sequence that went back.
    stack.sql("UPDATE event_head SET database_id = 'another'").await;
    stack.sql("ALTER TABLE outbox_event ALTER COLUMN event_id RESTART WITH 5").await;
    assert!(!store.raise_outbox_floor(&floor).await.unwrap());
    write_events(&mut connection, 0xd, 3).await;
    assert!(!store.raise_outbox_floor(&floor).await.unwrap());
    assert_eq!(store.sequence_events(WEEK).await.unwrap().moved, 3, "ids below the old floor are found");
    connection.close().await.unwrap();
    store.close().await;
    stack.finish().await;
}

/// Partitions follow the rate, and a burst does not make one that lasts for years.
#[tokio::test(flavor = "multi_thread")]
async fn partitions_grow_with_the_rate_and_step_by_step() {
    let stack = stack().start().await;
    let store = worker_store(&stack);
    let mut connection = PgConnection::connect(stack.database_url()).await.unwrap();
    for _ in 0..8 {
        write_events(&mut connection, 0xd, 1_000).await;
        assert_eq!(store.sequence_events(WEEK).await.unwrap().moved, 1_000);
    }
    let sizes: Vec<i64> = sqlx::query_scalar(
        "SELECT end_position - first_position FROM event_partition ORDER BY first_position",
    )
    .fetch_all(stack.db())
    .await
    .unwrap();
    assert_eq!(sizes[0], 1_000, "{sizes:?}");
    assert!(sizes.len() >= 3 && sizes.windows(2).all(|pair| pair[1] <= 4 * pair[0]), "{sizes:?}");
    let rows: (i64, i64, i64) =
        sqlx::query_as("SELECT count(*), min(position), max(position) FROM event_log")
            .fetch_one(stack.db())
            .await
            .unwrap();
    assert_eq!(rows, (8_000, 1, 8_000), "positions are consecutive over partitions");
    connection.close().await.unwrap();
    store.close().await;
    stack.finish().await;
}
