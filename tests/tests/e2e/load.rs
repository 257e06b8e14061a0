//! Large numbers: long queues, many submitters, a long history. Nothing is timed here: tests count what the
//! database touches, and check that work continues; speed is measured by the benchmarks.

mod plan;

use gapless_testkit::{Address, Service, Stack, TxState, eventually_within, payload};
use sqlx::AssertSqlSafe;

use self::plan::{touched, touched_by, touched_with};
use crate::stack;

/// Far more than a poll may touch for a few busy submitters, far less than the existing rows.
const FEW: u64 = 500;
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(180);

/// Queued intents of one submitter, inserted directly.
async fn queue_many(stack: &Stack, submitter: usize, rows: u64) {
    let address = stack.submitter(submitter).text();
    let sql = format!(
        r#"INSERT INTO managed_tx (tx_id, chain_id, submitter, request_id, payload, payload_hash)
           SELECT gen_random_uuid(), {chain}, '\x{bytes}', 'many-' || n,
                  '{{"to":"{address}","value":"0x1","data":"0x","type":"eip1559"}}', '\xab'
           FROM generate_series(1, {rows}) AS n"#,
        chain = stack.anvil().chain_id(),
        bytes = hex::encode(stack.submitter(submitter).bytes()),
    );
    sqlx::query(AssertSqlSafe(sql)).execute(stack.db()).await.unwrap();
}

/// What autovacuum would do after a while.
async fn analyze(stack: &Stack) {
    stack.sql("ANALYZE").await;
}

/// `ARRAY[…], ARRAY[…]`: submitters as arguments of the store's statements.
fn keys(stack: &Stack, count: usize) -> String {
    let submitters = &stack.submitters()[..count];
    let addresses: Vec<String> =
        submitters.iter().map(|submitter| format!("'\\x{}'", hex::encode(submitter.bytes()))).collect();
    let chains = vec![stack.anvil().chain_id().to_string(); submitters.len()];
    format!("ARRAY[{}]::BIGINT[], ARRAY[{}]::BYTEA[]", chains.join(","), addresses.join(","))
}

/// Submitters announced by a worker that has stopped again; nothing is done until the test starts another.
async fn known_submitters(count: usize) -> Stack {
    let stack = stack().submitters(count).start().await;
    let worker = stack.start_worker().await;
    announced(&stack, count).await;
    worker.stop_sigterm().await;
    stack
}

/// Waits until the worker has announced its keys.
async fn announced(stack: &Stack, count: usize) {
    eventually_within(PATIENCE, "the submitters are announced", async || {
        let found: i64 =
            sqlx::query_scalar("SELECT count(*) FROM submitter_lease").fetch_one(stack.db()).await.unwrap();
        if usize::try_from(found).unwrap() == count { Ok(()) } else { Err(found) }
    })
    .await;
}

/// Scenario 55: 100,000 queued behind one blocked submitter do not slow the others.
#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_thousand_queued_behind_a_blocked_submitter_do_not_slow_the_others() {
    const QUEUED: u64 = 100_000;
    let stack = known_submitters(10).await;
    // Blocked: it cannot pay for its first intent.
    stack.anvil().set_balance(stack.submitter(0).address(), 0).await;
    queue_many(&stack, 0, QUEUED).await;
    // The planner statistics include the long queue, but not the others: the worst case.
    analyze(&stack).await;
    stack.start_api().await;
    let mut made = Vec::new();
    for (index, submitter) in stack.submitters().iter().enumerate().skip(1) {
        for number in 0..3 {
            let to = Address::repeat_byte(index as u8);
            made.push(stack.create(submitter, &format!("n-{number}"), &payload(to, 1)).await);
        }
    }
    // The number of touched rows depends on the number of busy submitters, not on the length of a queue.
    let (keys, ten) = (keys(&stack, 10), ["16"; 10].join(","));
    for (name, args) in [
        ("find_work", "0.2".to_owned()),
        ("queue_heads", format!("{keys}, ARRAY[{ten}]::BIGINT[]")),
        ("load_open", keys.clone()),
        ("claim", format!("{keys}, 'nobody', 10.0, 0.2")),
        // Queues are counted up to their limit, here 16.
        ("queue_depths", format!("{keys}, ARRAY[{ten}]::BIGINT[]")),
    ] {
        let touched = touched(&stack, name, &args).await;
        assert!(touched.rows < FEW && touched.whole == 0, "{name}: {touched:?}");
    }
    // The last of the long queue is asked why it waits: its position is counted up to a limit.
    let last: String =
        sqlx::query_scalar("SELECT tx_id::TEXT FROM managed_tx WHERE request_id = 'many-100000'")
            .fetch_one(stack.db())
            .await
            .unwrap();
    let touched = touched_with(&stack, gapless_store::WAITING, &format!("'{last}', 100")).await;
    assert!(touched.rows < FEW && touched.whole == 0, "waiting: {touched:?}");
    // The control: a statement that reads the whole queue is detected.
    let plain = "SELECT DISTINCT chain_id, submitter FROM managed_tx WHERE state = 'QUEUED'";
    assert!(touched_by(&stack, plain).await.rows >= QUEUED);

    stack.start_worker().await;
    for tx_id in &made {
        stack.wait_for_within(PATIENCE, *tx_id, TxState::Confirmed).await;
    }
    let waiting: (i64, i64) =
        sqlx::query_as("SELECT count(*), count(nonce) FROM managed_tx WHERE finished_at IS NULL")
            .fetch_one(stack.db())
            .await
            .unwrap();
    assert_eq!(waiting, (QUEUED as i64, 0), "the blocked ones wait, and none has a nonce");
    stack.finish().await;
}

/// Scenario 56: 5,000 submitters on one worker. All have a lane at the same time: an operator request makes the
/// worker claim each of them, and no idle submitter is released during the test.
#[tokio::test(flavor = "multi_thread")]
async fn five_thousand_submitters_live_on_one_worker() {
    const SUBMITTERS: usize = 5_000;
    const WITH_WORK: usize = 25;
    // A lease that outlives every pause of a loaded machine.
    let stack = stack()
        .submitters(SUBMITTERS)
        .set("worker.linger", "10m")
        .set("lease.duration", "2m")
        .set("lease.renew_interval", "3s")
        .start()
        .await;
    stack.start_api().await;
    let worker = stack.start_worker().await;
    announced(&stack, SUBMITTERS).await;
    let asked = stack
        .sql(
            "INSERT INTO audit_log (chain_id, submitter, action, reason, actor)
             SELECT chain_id, submitter, 'release', 'to have it claimed', 'test' FROM submitter",
        )
        .await;
    assert_eq!(asked, SUBMITTERS as u64);
    wait_for_lanes(&worker, SUBMITTERS).await;
    eventually_within(PATIENCE, "every request is answered", async || {
        let open: i64 = sqlx::query_scalar("SELECT count(*) FROM audit_log WHERE applied_at IS NULL")
            .fetch_one(stack.db())
            .await
            .unwrap();
        if open == 0 { Ok(()) } else { Err(open) }
    })
    .await;

    let mut made = Vec::new();
    for submitter in stack.submitters().iter().step_by(SUBMITTERS / WITH_WORK) {
        made.push(stack.create(submitter, "one", &payload(Address::repeat_byte(0x56), 1)).await);
    }
    assert_eq!(made.len(), WITH_WORK);
    for tx_id in &made {
        stack.wait_for_within(PATIENCE, *tx_id, TxState::Confirmed).await;
    }
    // All are renewed together, and none was lost meanwhile.
    let last: f64 = expiry(&stack, "max").await;
    eventually_within(PATIENCE, "every lease is renewed", async || {
        let first = expiry(&stack, "min").await;
        if first > last { Ok(()) } else { Err((first, last)) }
    })
    .await;
    let held: (i64, i64) = sqlx::query_as(
        "SELECT count(*) FILTER (WHERE owner IS NOT NULL), max(fencing_token) FROM submitter_lease",
    )
    .fetch_one(stack.db())
    .await
    .unwrap();
    assert_eq!(held, (SUBMITTERS as i64, 1));
    worker.stop_sigterm().await;
    let released: i64 = sqlx::query_scalar("SELECT count(*) FROM submitter_lease WHERE owner IS NULL")
        .fetch_one(stack.db())
        .await
        .unwrap();
    assert_eq!(released, SUBMITTERS as i64, "all of them are handed over");
    each_is_looked_up_right_after_all_were_resumed(&stack).await;
    stack.finish().await;
}

/// Scenario 69: far more unfunded submitters than a worker may own, and one with funds. It is served within seconds,
/// and so is an unfunded one after it is funded.
#[tokio::test(flavor = "multi_thread")]
async fn a_funded_submitter_is_served_among_five_thousand_that_cannot_pay() {
    const SUBMITTERS: usize = 5_000;
    const SLOTS: u64 = 100;
    let stack = stack().submitters(SUBMITTERS).balance(0).set("worker.max_leases", SLOTS).start().await;
    stack.start_api().await;
    let worker = stack.start_worker().await;
    announced(&stack, SUBMITTERS).await;
    let rich = stack.submitter(SUBMITTERS / 2);
    let sql = format!(
        r#"INSERT INTO managed_tx (tx_id, chain_id, submitter, request_id, payload, payload_hash)
           SELECT gen_random_uuid(), chain_id, submitter, 'poor',
                  '{{"to":"{to}","value":"0x1","data":"0x","type":"eip1559"}}', '\xab'
           FROM submitter WHERE submitter <> '\x{rich}'"#,
        to = rich.text(),
        rich = hex::encode(rich.bytes()),
    );
    sqlx::query(AssertSqlSafe(sql)).execute(stack.db()).await.unwrap();
    eventually_within(
        PATIENCE,
        "every slot is taken by one that waits, and more were looked at",
        async || {
            let blocked: i64 =
                sqlx::query_scalar("SELECT count(*) FROM managed_tx WHERE blocked_since IS NOT NULL")
                    .fetch_one(stack.db())
                    .await
                    .unwrap();
            if blocked > 2 * SLOTS as i64 { Ok(()) } else { Err(blocked) }
        },
    )
    .await;
    assert!(worker.metric("gapless_lanes", &[]).await <= SLOTS as f64);
    stack.anvil().set_balance(rich.address(), 10u64.pow(18)).await;
    let tx_id = stack.create(rich, "rich", &payload(Address::repeat_byte(0x69), 1)).await;
    stack.wait_for_within(PATIENCE, tx_id, TxState::Confirmed).await;

    let poor = stack.submitter(3);
    stack.anvil().set_balance(poor.address(), 10u64.pow(18)).await;
    let again = stack.rows(poor).await[0].tx_id;
    stack.wait_for_within(PATIENCE, again, TxState::Confirmed).await;
    stack.finish().await;
}

/// Another worst case of the planner: according to its statistics, no submitter is active.
async fn each_is_looked_up_right_after_all_were_resumed(stack: &Stack) {
    /// A full batch of the reader.
    const SOME: usize = 500;
    stack.sql("UPDATE submitter SET status = 'PAUSED'").await;
    analyze(stack).await;
    stack.sql("UPDATE submitter SET status = 'ACTIVE'").await;
    let (keys, wanted) = (keys(stack, SOME), ["1"; SOME].join(","));
    let heads = touched(stack, "queue_heads", &format!("{keys}, ARRAY[{wanted}]::BIGINT[]")).await;
    assert!(heads.submitters <= SOME as u64, "{heads:?}");
}

/// When the first (`min`) or the last (`max`) lease expires.
async fn expiry(stack: &Stack, which: &str) -> f64 {
    let sql = format!("SELECT extract(epoch FROM {which}(expires_at))::FLOAT8 FROM submitter_lease");
    sqlx::query_scalar(AssertSqlSafe(sql)).fetch_one(stack.db()).await.unwrap()
}

async fn wait_for_lanes(worker: &Service, count: usize) {
    eventually_within(PATIENCE, &format!("{count} lanes"), async || {
        let lanes = worker.metric("gapless_lanes", &[]).await;
        if lanes as usize == count { Ok(()) } else { Err(lanes) }
    })
    .await;
}

/// Scenario 57: a long history does not slow the claim. 200,000 finished rows are enough: compared is what the
/// statements touch, which must not grow at all.
#[tokio::test(flavor = "multi_thread")]
async fn two_hundred_thousand_finished_rows_do_not_slow_the_claim() {
    const FINISHED: u64 = 200_000;
    let stack = known_submitters(10).await;
    for submitter in 0..10 {
        queue_many(&stack, submitter, 3).await;
    }
    analyze(&stack).await;
    let (keys, ten) = (keys(&stack, 10), ["16"; 10].join(","));
    let claim = format!("{keys}, 'nobody', 10.0, 0.2");
    let asked = [
        ("find_work", "0.2".to_owned()),
        ("queue_heads", format!("{keys}, ARRAY[{ten}]::BIGINT[]")),
        ("load_open", keys.clone()),
        ("claim", claim),
    ];
    let mut before = Vec::new();
    for (name, args) in &asked {
        before.push(touched(&stack, name, args).await);
    }
    // Cancelled before they had a nonce: the audit accepts them.
    let finished = stack
        .sql(
            r#"INSERT INTO managed_tx
                   (tx_id, chain_id, submitter, request_id, payload, payload_hash, state, finished_at, fencing_token)
               SELECT gen_random_uuid(), s.chain_id, s.submitter, 'done-' || n, '{}', '\xab', 'CANCELLED',
                      clock_timestamp(), 0
               FROM generate_series(1, 20000) AS n CROSS JOIN submitter s"#,
        )
        .await;
    assert_eq!(finished, FINISHED);
    analyze(&stack).await;
    for ((name, args), before) in asked.iter().zip(before) {
        let after = touched(&stack, name, args).await;
        assert!(after.rows <= before.rows.max(FEW), "{name}: {before:?} became {after:?}");
        assert_eq!(after.whole, 0, "{name} reads the whole table: {after:?}");
    }
    let plain = "SELECT count(*) FROM managed_tx WHERE state <> 'QUEUED'";
    assert!(touched_by(&stack, plain).await.rows >= FINISHED, "the control sees the history");

    stack.start_worker().await;
    stack.wait_all_terminal_within(PATIENCE).await;
    stack.finish().await;
}
