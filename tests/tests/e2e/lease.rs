//! One owner at a time, and a former owner changes nothing. With real processes; the fence itself is tested in
//! `fence`.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use futures::future::join_all;
use gapless_testkit::{
    Address, Mining, Service, Stack, Submitter, TxId, TxRow, TxState, eventually, eventually_within, payload,
};
use serde_json::Value;

use crate::stack;

/// One intent per submitter, each until a node has it.
async fn keep_busy(stack: &Stack, to: Address) -> Vec<TxId> {
    let transfer = payload(to, 1);
    let creates = stack.submitters().iter().map(|submitter| stack.create(submitter, "busy", &transfer));
    let tx_ids = join_all(creates).await;
    for tx_id in &tx_ids {
        stack.wait_for(*tx_id, TxState::Submitted).await;
    }
    tx_ids
}

/// Number of submitters by worker.
async fn owned(stack: &Stack) -> HashMap<String, i64> {
    let owners: Vec<(String, i64)> =
        sqlx::query_as("SELECT owner, count(*) FROM submitter_lease WHERE owner IS NOT NULL GROUP BY owner")
            .fetch_all(stack.db())
            .await
            .unwrap();
    owners.into_iter().collect()
}

/// Waits until a stopped worker has learned that it lost the submitter.
async fn wait_disowned(former: &Service, submitter: &Submitter) {
    eventually("the former owner knows", async || {
        let log = former.log();
        let line = log.lines().find(|line| {
            let lost =
                ["\"lease lost\"", "lane ends", "fenced: the lease"].iter().any(|word| line.contains(word));
            lost && line.contains(&submitter.text())
        });
        line.map(|_| ()).ok_or("no such line")
    })
    .await;
}

/// Rows that a former owner could have damaged.
fn essence(row: &TxRow) -> (TxState, Option<u64>, Option<u64>, u32) {
    (row.state, row.nonce, row.fencing_token, row.submit_attempts)
}

/// Scenario 15. The former owner renews rarely and so does not know that it lost the lease: the fence rejects its
/// write.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_was_taken_over_without_knowing_writes_nothing_and_the_successor_finishes() {
    let stack = stack().proxied().mining(Mining::Manual).start().await;
    stack.start_api().await;
    let former = stack.worker().set("worker.id", "former");
    let former = former.set("lease.duration", "120s").set("lease.renew_interval", "60s").start().await;
    let (submitter, to) = (stack.submitter(0), Address::repeat_byte(0x51));
    let first = stack.create(submitter, "first", &payload(to, 1)).await;
    let second = stack.create(submitter, "second", &payload(to, 1)).await;
    let token = stack.wait_for(first, TxState::Submitted).await.fencing_token;

    stack.proxy().freeze_at(stack.anvil().head().await);
    stack.sql("UPDATE submitter_lease SET expires_at = clock_timestamp() - INTERVAL '1 hour'").await;
    let successor = stack.worker().set("worker.id", "successor").rpc(&[stack.anvil().url()]);
    successor.set("lease.duration", "30s").start().await;
    let lease = stack.wait_owned(submitter, Some("former")).await;
    assert_eq!(
        (lease.owner.as_deref(), Some(lease.fencing_token)),
        (Some("successor"), token.map(|token| token + 1))
    );
    stack.anvil().mine(1).await;
    stack.wait_for(first, TxState::Confirmed).await;
    stack.wait_for(second, TxState::Submitted).await;
    let before = [stack.row(first).await, stack.row(second).await];

    // Now the former owner sees that the first is mined, and tries to record it.
    stack.proxy().thaw();
    former.wait_for_log("fenced: the lease is held by another worker").await;
    assert_eq!(former.metric("gapless_lease_fenced_total", &[]).await, 1.0);
    let lines = former.log_lines();
    let is_fenced = |line: &&Value| line["message"].as_str().is_some_and(|text| text.starts_with("fenced"));
    let fenced = lines.iter().find(is_fenced).expect("it was waited for");
    assert_eq!(
        (fenced["tx.id"].as_str(), fenced["worker.id"].as_str()),
        (Some(&*first.to_string()), Some("former"))
    );
    assert_eq!(fenced["fencing_token"].as_u64(), token, "{fenced}");
    // The write may be a receipt, a resend or the next nonce.
    let operation = fenced["operation"].as_str().expect("an operation");
    assert!(matches!(operation, "final" | "included" | "prepare" | "send"), "{fenced}");
    let counted = format!("operation=\"{operation}\"");
    assert_eq!(former.metric("gapless_lease_fenced_total", &[&counted]).await, 1.0);
    let after = [stack.row(first).await, stack.row(second).await];
    assert_eq!(after.each_ref().map(essence), before.each_ref().map(essence));
    stack.anvil().mine(1).await;
    stack.wait_for(second, TxState::Confirmed).await;
    assert_eq!(stack.anvil().balance(to).await, 2.into(), "one effect each");
    stack.finish().await;
}

/// Scenario 16.
#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_worker_cannot_write_after_losing_its_lease() {
    let stack = stack().short_lease().proxied().mining(Mining::Manual).start().await;
    stack.start_api().await;
    let frozen = stack.worker().set("worker.id", "frozen").start().await;
    let (submitter, to) = (stack.submitter(0), Address::repeat_byte(0x55));
    let first = stack.create(submitter, "first", &payload(to, 1)).await;
    let stale = stack.wait_for(first, TxState::Submitted).await.fencing_token;
    frozen.sigstop();

    // It does not use the proxy: the proxy sees only calls of the frozen worker.
    let successor = stack.worker().set("worker.id", "successor").rpc(&[stack.anvil().url()]);
    successor.set("lease.duration", "30s").set("lease.renew_interval", "5s").start().await;
    let lease = stack.wait_owned(submitter, Some("frozen")).await;
    assert_eq!(lease.owner.as_deref(), Some("successor"));
    stack.anvil().mine(1).await;
    stack.wait_for(first, TxState::Confirmed).await;
    let second = stack.create(submitter, "second", &payload(to, 1)).await;
    stack.wait_for(second, TxState::Submitted).await;
    let before = [stack.row(first).await, stack.row(second).await];
    let sent = stack.proxy().sent();

    frozen.sigcont();
    wait_disowned(&frozen, submitter).await;
    let after = [stack.row(first).await, stack.row(second).await];
    assert_eq!(after.each_ref().map(essence), before.each_ref().map(essence), "not a row changed");
    assert!(after.iter().all(|row| row.fencing_token > stale), "written by the next owner: {after:?}");
    assert_eq!(stack.proxy().sent(), sent, "nothing was sent either");
    stack.anvil().mine(1).await;
    stack.wait_for(second, TxState::Confirmed).await;
    assert_eq!(stack.anvil().balance(to).await, 2.into(), "one effect each");
    stack.finish().await;
}

/// Waits until this many processes listen for new work.
async fn listeners(stack: &Stack, count: i64) {
    eventually("workers listen", async || {
        let listening: i64 = sqlx::query_scalar(
            "SELECT count(*) FROM pg_stat_activity
             WHERE datname = current_database() AND state = 'idle' AND query ILIKE 'LISTEN%'",
        )
        .fetch_one(stack.db())
        .await
        .unwrap();
        if listening >= count { Ok(()) } else { Err(listening) }
    })
    .await;
}

/// No polling and no lease expiry during the test: the next owner can only have been notified.
#[tokio::test(flavor = "multi_thread")]
async fn whoever_stops_tells_the_others_of_the_leases_it_gives_back() {
    let stack = stack().mining(Mining::Manual).start().await;
    stack.start_api().await;
    let slow_polling = |name: &str| {
        let worker = stack.worker().set("worker.id", name).set("worker.poll_interval", "1h");
        worker.set("lease.duration", "1h").set("lease.renew_interval", "10m")
    };
    let leaving = slow_polling("leaving").start().await;
    listeners(&stack, 1).await;
    let submitter = stack.submitter(0);
    let tx_id = stack.create(submitter, "one", &payload(Address::repeat_byte(0x52), 1)).await;
    stack.wait_for(tx_id, TxState::Submitted).await;
    slow_polling("staying").start().await;
    listeners(&stack, 2).await;
    leaving.stop_sigterm().await;
    let lease = stack.wait_owned(submitter, Some("leaving")).await;
    assert_eq!(lease.owner.as_deref(), Some("staying"));
    stack.anvil().mine(1).await;
    stack.wait_for(tx_id, TxState::Confirmed).await;
    stack.finish().await;
}

/// No polling by timer and no notification by the crashed worker: the next owner must have scheduled the expiry of
/// the lease.
#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_nobody_renews_is_taken_when_it_is_free_and_not_at_the_next_poll() {
    let stack = stack().short_lease().mining(Mining::Manual).start().await;
    stack.start_api().await;
    let dying = stack.worker().set("worker.id", "dying").start().await;
    let submitter = stack.submitter(0);
    let tx_id = stack.create(submitter, "one", &payload(Address::repeat_byte(0x53), 1)).await;
    stack.wait_for(tx_id, TxState::Submitted).await;
    stack.worker().set("worker.id", "slow_polling").set("worker.poll_interval", "1h").start().await;
    dying.kill9();
    let lease = stack.wait_owned(submitter, Some("dying")).await;
    assert_eq!(lease.owner.as_deref(), Some("slow_polling"));
    stack.anvil().mine(1).await;
    stack.wait_for(tx_id, TxState::Confirmed).await;
    stack.finish().await;
}

/// Scenario 19.
#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_is_being_claimed_delays_no_request() {
    let stack = stack().up().await;
    let mut claim = stack.db().begin().await.unwrap();
    sqlx::query("SELECT FROM submitter_lease FOR UPDATE").execute(&mut *claim).await.unwrap();
    let to = Address::repeat_byte(0x59);
    let mut tx_ids = Vec::new();
    for n in 0..10 {
        tx_ids.push(stack.create(stack.submitter(0), &format!("r{n}"), &payload(to, 1)).await);
    }
    claim.rollback().await.unwrap();
    stack.wait_confirmed(&tx_ids).await;
    stack.finish().await;
}

/// What the writing session of the only worker does: waiting for a lock, idle in transaction, or neither.
async fn writer_session(stack: &Stack) -> (bool, bool) {
    let sessions: Vec<(Option<String>, Option<String>)> = sqlx::query_as(
        "SELECT state, wait_event_type FROM pg_stat_activity
         WHERE datname = current_database() AND application_name LIKE 'gapless-worker writer %'",
    )
    .fetch_all(stack.db())
    .await
    .unwrap();
    let waits = sessions
        .iter()
        .any(|(state, wait)| state.as_deref() == Some("active") && wait.as_deref() == Some("Lock"));
    (waits, sessions.iter().any(|(state, _)| state.as_deref() == Some("idle in transaction")))
}

/// Every write of an intent waits for this lock while it holds the lease row.
async fn obstacle(stack: &Stack) -> sqlx::Transaction<'static, sqlx::Postgres> {
    let mut obstacle = stack.db().begin().await.unwrap();
    sqlx::query("SELECT FROM managed_tx FOR UPDATE").execute(&mut *obstacle).await.unwrap();
    obstacle
}

/// Mines the worker's transactions, and freezes the worker during the write: its session holds the lock of the lease
/// row and sends nothing more.
async fn freeze_in_a_write(stack: &Stack, worker: &Service) {
    let mut held = obstacle(stack).await;
    stack.anvil().mine(1).await;
    loop {
        eventually(
            "a write is under way",
            async || if writer_session(stack).await.0 { Ok(()) } else { Err("none") },
        )
        .await;
        worker.sigstop();
        held.rollback().await.unwrap();
        let in_transaction =
            eventually("its statement is over", async || match writer_session(stack).await {
                (true, _) => Err("it waits"),
                (false, in_transaction) => Ok(in_transaction),
            })
            .await;
        let lease = sqlx::query("SELECT FROM submitter_lease FOR UPDATE NOWAIT").execute(stack.db()).await;
        if in_transaction && lease.is_err() {
            return;
        }
        // On a slow machine its statement timed out before it was frozen: retry.
        held = obstacle(stack).await;
        worker.sigcont();
    }
}

/// Scenario 20.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_freezes_inside_a_transaction_is_cut_off_and_taken_over() {
    let stack = stack().set("lease.duration", "4s").set("lease.renew_interval", "1s").mining(Mining::Manual);
    let stack = stack.start().await;
    stack.start_api().await;
    let zombie = stack.worker().set("worker.id", "zombie").start().await;
    let (submitter, to) = (stack.submitter(0), Address::repeat_byte(0x5a));
    let tx_id = stack.create(submitter, "only", &payload(to, 1)).await;
    let stale = stack.wait_for(tx_id, TxState::Submitted).await.fencing_token;
    freeze_in_a_write(&stack, &zombie).await;

    let frozen = Instant::now();
    stack.worker().set("worker.id", "successor").start().await;
    let lease = stack.wait_owned(submitter, Some("zombie")).await;
    assert_eq!(lease.owner.as_deref(), Some("successor"));
    // 4 s of lease, 0.2 s of skew, 1.2 s of idle timeout, and a slow machine.
    assert!(frozen.elapsed() < Duration::from_secs(20), "{:?}", frozen.elapsed());
    let row = stack.wait_for(tx_id, TxState::Confirmed).await;
    assert!(row.fencing_token > stale, "{row:?}");
    zombie.sigcont();
    zombie.wait_for_log("batch not confirmed: database unavailable").await;
    wait_disowned(&zombie, submitter).await;
    assert_eq!(stack.row(tx_id).await.fencing_token, row.fencing_token);
    assert_eq!(stack.anvil().balance(to).await, 1.into(), "one effect");
    stack.finish().await;
}

/// Scenario 21. Leases of half a minute: only a handover can be fast.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_told_to_stop_hands_its_leases_over_in_well_under_a_second() {
    let stack = stack().submitters(6).mining(Mining::Manual);
    let stack = stack.set("lease.duration", "30s").set("lease.renew_interval", "5s").start().await;
    stack.start_api().await;
    let start = async |name: String| (stack.worker().set("worker.id", name.as_str()).start().await, name);
    let mut workers = vec![start("node-0".into()).await, start("node-1".into()).await];
    let tx_ids = keep_busy(&stack, Address::repeat_byte(0x5b)).await;
    let mut times = Vec::new();
    for round in 0..3 {
        eventually("both have a share", async || {
            let owned = owned(&stack).await;
            if owned.values().sum::<i64>() == 6 && owned.len() == 2 { Ok(()) } else { Err(owned) }
        })
        .await;
        let (leaving, name) = workers.remove(0);
        let stopped = Instant::now();
        leaving.sigterm();
        eventually("the other has all", async || {
            let owned = owned(&stack).await;
            if owned.values().sum::<i64>() == 6 && !owned.contains_key(&name) { Ok(()) } else { Err(owned) }
        })
        .await;
        times.push(stopped.elapsed());
        assert!(leaving.wait_exit().await.success(), "it stops in good order");
        workers.push(start(format!("node-{}", round + 2)).await);
    }
    assert!(times.iter().all(|time| *time < Duration::from_secs(10)), "{times:?}");
    // One of the three may have run on a busy machine.
    assert!(times.iter().min().is_some_and(|best| *best < Duration::from_secs(1)), "{times:?}");
    stack.anvil().mine(1).await;
    stack.wait_confirmed(&tx_ids).await;
    stack.finish().await;
}

/// Scenario 22.
#[tokio::test(flavor = "multi_thread")]
async fn a_new_worker_has_its_share_of_the_busy_submitters_within_seconds() {
    let stack = stack().submitters(12).mining(Mining::Manual).start().await;
    stack.start_api().await;
    stack.worker().set("worker.id", "old").start().await;
    let to = Address::repeat_byte(0x5c);
    let tx_ids = keep_busy(&stack, to).await;
    assert_eq!(owned(&stack).await, HashMap::from([("old".to_owned(), 12)]));
    stack.worker().set("worker.id", "new").start().await;
    eventually_within(Duration::from_secs(15), "half of the submitters each", async || {
        let owned = owned(&stack).await;
        let half = |node: &str| owned.get(node).is_some_and(|count| (5..=7).contains(count));
        if half("old") && half("new") && owned.values().sum::<i64>() == 12 { Ok(()) } else { Err(owned) }
    })
    .await;
    stack.anvil().mine(1).await;
    stack.wait_confirmed(&tx_ids).await;
    assert_eq!(stack.anvil().balance(to).await, 12.into());
    stack.finish().await;
}

/// Scenario 23. Ten lanes learn of one block and write at once, through one writer; three of their rows differ from
/// what they expect.
#[tokio::test(flavor = "multi_thread")]
async fn a_bad_row_in_a_batch_parks_its_lane_and_not_the_batch() {
    let stack = stack().submitters(10).set("worker.writers", 1).set("lease.duration", "30s");
    let stack = stack.mining(Mining::Manual).start().await;
    stack.start_api().await;
    let worker = stack.start_worker().await;
    let tx_ids = keep_busy(&stack, Address::repeat_byte(0x5d)).await;
    let (bad, good) = tx_ids.split_at(3);
    for tx_id in bad {
        let tampered = sqlx::query("UPDATE managed_tx SET state = 'STUCK' WHERE tx_id = $1").bind(tx_id.0);
        tampered.execute(stack.db()).await.unwrap();
    }
    stack.anvil().mine(1).await;
    stack.wait_confirmed(good).await;
    eventually("all three are parked", async || {
        let parked =
            worker.log().lines().filter(|line| line.contains("write rejected; its lane is parked")).count();
        if parked == 3 { Ok(()) } else { Err(parked) }
    })
    .await;
    assert!(
        worker.log().contains("batch rejected; bisecting to find the failing write"),
        "they stood in a batch with others"
    );
    for tx_id in bad {
        assert_eq!(stack.row(*tx_id).await.state, TxState::Stuck, "an unreadable row is not overwritten");
    }
    // A worker that reads the actual rows continues from there.
    worker.stop_sigterm().await;
    stack.start_worker().await;
    stack.wait_confirmed(bad).await;
    stack.finish().await;
}

/// For people who read the table: every change of a lease has a timestamp.
#[tokio::test(flavor = "multi_thread")]
async fn a_lease_says_when_it_was_taken_renewed_and_given_back() {
    let stack = stack().mining(Mining::Manual).start().await;
    stack.start_api().await;
    let worker = stack.start_worker().await;
    keep_busy(&stack, Address::repeat_byte(0xa9)).await;
    let changed = async || {
        let query = "SELECT extract(epoch FROM updated_at)::FLOAT8, owner FROM submitter_lease";
        sqlx::query_as::<_, (f64, Option<String>)>(query).fetch_one(stack.db()).await.unwrap()
    };
    let (taken, _) = changed().await;
    let (renewed, _) = eventually("it is renewed", async || {
        let now = changed().await;
        if now.0 > taken { Ok(now) } else { Err(now) }
    })
    .await;
    worker.stop_sigterm().await;
    let (released, owner) = changed().await;
    assert!(released > renewed && owner.is_none(), "{renewed} {released} {owner:?}");
    stack.start_worker().await;
    stack.anvil().mine(1).await;
    stack.wait_all_terminal().await;
    stack.finish().await;
}
