//! Periodic duties, performed by one worker at a time.

use std::collections::HashSet;

use gapless_testkit::{Address, Mining, Service, Stack, TxState, U256, eventually, payload};

use crate::stack;

const EVERY_SECOND: &str = "* * * * * *";

#[tokio::test(flavor = "multi_thread")]
async fn the_audit_finds_a_key_used_outside_while_nothing_was_asked_of_it() {
    let stack = stack().submitters(2).set("duties.audit_nonces", EVERY_SECOND).up().await;
    let (used, quiet, to) = (stack.submitter(0), stack.submitter(1), Address::repeat_byte(0x31));
    for submitter in [used, quiet] {
        let tx_id = stack.create(submitter, "only", &payload(to, 1)).await;
        stack.wait_for(tx_id, TxState::Confirmed).await;
    }
    eventually("it has no owner", async || {
        let lease = stack.lease(used).await;
        if lease.as_ref().is_some_and(|lease| !lease.live) { Ok(()) } else { Err(lease) }
    })
    .await;
    used.spend_outside(stack.anvil(), None).await;
    let reason = stack.wait_protected(used).await;
    assert!(reason.contains("used outside"), "{reason}");
    let refused = stack.post(used, "new", &payload(to, 1)).await;
    assert_eq!((refused.status, refused.code()), (409, "submitter_protected"), "{refused:?}");
    let fine = stack.create(quiet, "new", &payload(to, 1)).await;
    stack.wait_for(fine, TxState::Confirmed).await;
    assert_eq!(stack.cursor(quiet).await.and_then(|cursor| cursor.protect_reason), None);
    stack.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_low_balance_is_counted_and_named_until_it_is_filled_up() {
    let stack = stack()
        .submitters(3)
        .set("duties.check_balances", EVERY_SECOND)
        .set("balance.low", "1000000000000000000");
    let stack = stack.up().await;
    let worker = stack.workers().remove(0);
    let gauge = async |wanted: f64| {
        eventually(&format!("{wanted} submitters are low"), async || {
            let runs =
                worker.metric("gapless_duty_runs_total", &["duty=\"check_balances\"", "result=\"ok\""]).await;
            let low = worker.metric("gapless_submitter_balance_low", &["chain=\"31337\""]).await;
            if runs > 0.0 && low == wanted { Ok(()) } else { Err((runs, low)) }
        })
        .await;
    };
    gauge(0.0).await;
    assert!(!worker.log().contains("balance is low"));
    let poor = stack.submitter(1);
    stack.anvil().set_balance(poor.address(), U256::exp10(18) - 1).await;
    gauge(1.0).await;
    let line = worker.wait_for_log("balance is low").await;
    assert!(line.contains(&poor.text()) && line.contains("999999999999999999"), "{line}");
    stack.anvil().set_balance(poor.address(), U256::exp10(18)).await;
    gauge(0.0).await;
    for rich in [stack.submitter(0), stack.submitter(2)] {
        assert!(
            !worker.log().lines().any(|line| line.contains("balance is low") && line.contains(&rich.text()))
        );
    }
    stack.finish().await;
}

async fn kept(stack: &Stack) -> (i64, i64) {
    sqlx::query_as("SELECT (SELECT count(*) FROM managed_tx), (SELECT count(*) FROM tx_attempt)")
        .fetch_one(stack.db())
        .await
        .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn finished_rows_are_removed_after_the_retention_and_open_ones_are_not() {
    let stack =
        stack().set("duties.retention", "1s").set("duties.prune", "").mining(Mining::Manual).start().await;
    stack.start_api().await;
    let before = stack.start_worker().await;
    let (submitter, to) = (stack.submitter(0), Address::repeat_byte(0x32));
    let client = stack.client();
    // Not recorded as accepted, because they are removed later.
    let create = async |request: &str| {
        let answer = client.post(submitter, request, &payload(to, 1)).await;
        assert_eq!(answer.status, 202, "{answer:?}");
        answer.tx_id().parse().unwrap()
    };
    let mut finished = Vec::new();
    for request in ["one", "two", "three"] {
        let tx_id = create(request).await;
        stack.wait_for(tx_id, TxState::Submitted).await;
        stack.anvil().mine(1).await;
        stack.wait_for(tx_id, TxState::Confirmed).await;
        finished.push(tx_id);
    }
    let open = create("open").await;
    let queued = create("queued").await;
    stack.wait_for(open, TxState::Submitted).await;
    assert_eq!(kept(&stack).await, (5, 4), "no duty, nothing removed");
    before.stop_sigterm().await;

    let worker = stack.worker().set("duties.prune", EVERY_SECOND).start().await;
    eventually("the finished ones are removed", async || match kept(&stack).await {
        (2, 1) => Ok(()),
        other => Err(other),
    })
    .await;
    worker.wait_for_log("finished intents beyond the retention were removed").await;
    for tx_id in &finished {
        let gone = client.get(&format!("/api/v1/tx/{tx_id}")).await;
        assert_eq!((gone.status, gone.code()), (404, "unknown_tx"));
    }
    assert!(stack.verify().await.sound, "the rest is still a sequence");
    stack.wait_for(open, TxState::Submitted).await;
    stack.anvil().mine(1).await;
    eventually("the queued one gets the next nonce", async || {
        let cursor = stack.cursor(submitter).await;
        if cursor.as_ref().is_some_and(|cursor| cursor.next == 5) { Ok(()) } else { Err((cursor, queued)) }
    })
    .await;
    eventually("it is in the pool", async || match stack.anvil().pending().await {
        1 => Ok(()),
        other => Err(other),
    })
    .await;
    stack.anvil().mine(1).await;
    eventually("all are finished and removed", async || match kept(&stack).await {
        (0, 0) => Ok(()),
        other => Err(other),
    })
    .await;
    assert_eq!(stack.anvil().balance(to).await, 5.into());
    stack.finish().await;
}

/// Time of the newest claimed run by the database's clock, in seconds, and the owner of the duty.
async fn holder(stack: &Stack) -> Option<(i64, String)> {
    sqlx::query_as(
        "SELECT extract(epoch FROM last_run)::BIGINT, owner FROM duty_lease
         WHERE duty = 'check_balances' AND last_run > '-infinity'",
    )
    .fetch_optional(stack.db())
    .await
    .unwrap()
}

async fn runs(workers: &[Service]) -> f64 {
    let mut sum = 0.0;
    for worker in workers {
        sum += worker.metric("gapless_duty_runs_total", &["duty=\"check_balances\""]).await;
    }
    sum
}

#[tokio::test(flavor = "multi_thread")]
async fn a_duty_is_done_by_one_worker_and_handed_over_when_it_stops() {
    let stack = stack().set("duties.check_balances", EVERY_SECOND).start().await;
    let mut workers = Vec::new();
    for name in ["one", "two"] {
        workers.push(stack.worker().set("worker.id", name).start().await);
    }
    // A run is claimed before it is counted: two readings may each be off by one.
    let read = async || (holder(&stack).await.map_or(0, |(last, _)| last) as f64, runs(&workers).await);
    let first = eventually("the duty runs", async || {
        let seen = read().await;
        if seen.0 > 0.0 && seen.1 >= 1.0 { Ok(seen) } else { Err(seen) }
    })
    .await;
    let second = eventually("the duty ran at five more times", async || {
        let seen = read().await;
        if seen.0 >= first.0 + 5.0 { Ok(seen) } else { Err(seen) }
    })
    .await;
    let (scheduled, counted) = (second.0 - first.0, second.1 - first.1);
    assert!(
        (scheduled - counted).abs() <= 1.0,
        "{scheduled} times, {counted} runs: each once, by one of them"
    );

    let owner = holder(&stack).await.unwrap().1;
    let (leaver, heir) = if owner == "one" { (&workers[0], &workers[1]) } else { (&workers[1], &workers[0]) };
    let counted = heir.metric("gapless_duty_runs_total", &["duty=\"check_balances\""]).await;
    leaver.stop_sigterm().await;
    eventually("the other one goes on", async || {
        let seen = heir.metric("gapless_duty_runs_total", &["duty=\"check_balances\""]).await;
        if seen >= counted + 2.0 { Ok(()) } else { Err(seen) }
    })
    .await;
    let names: HashSet<String> = holder(&stack).await.into_iter().map(|(_, owner)| owner).collect();
    assert!(!names.contains(&owner), "{names:?}");
    stack.finish().await;
}
