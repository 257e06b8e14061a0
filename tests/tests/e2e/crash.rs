//! After any crash the next owner finds the same rows and continues with the same steps.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use futures::future::join_all;
use gapless_testkit::{
    Address, Client, Mining, Service, Stack, Submitter, TxId, TxState, eventually, payload,
};
use gapless_worker::failpoint::POINTS;
use serde_json::{Value, json};

use crate::stack;

/// A new address per failpoint, so that its balance counts the effects.
pub(crate) fn target(index: usize) -> Address {
    Address::repeat_byte(0x60 + index as u8)
}

/// One worker per failpoint, with one key, is killed there; then a worker with all keys continues.
async fn crash_everywhere(points: &[&str], window: u32, intents: usize) {
    let stack = stack().short_lease().window(window).confirmations(2).submitters(points.len());
    // Longer than SUBMITTED is delayed for batching: if mined sooner, it would never be written separately.
    let stack = stack.mining(Mining::Interval(2.0)).start().await;
    stack.start_api().await;
    let doomed = points.iter().enumerate();
    let doomed =
        join_all(doomed.map(|(index, point)| stack.worker().only_keys(&[index]).failpoint(point).start()))
            .await;
    let stack_ref = &stack;
    let tx_ids: Vec<Vec<TxId>> = join_all(points.iter().enumerate().map(|(index, _)| async move {
        let mut tx_ids = Vec::new();
        for n in 0..intents {
            let transfer = payload(target(index), 1);
            tx_ids.push(stack_ref.create(stack_ref.submitter(index), &format!("r{n}"), &transfer).await);
        }
        tx_ids
    }))
    .await;
    let died = doomed.iter().zip(tx_ids).enumerate();
    let tx_ids: Vec<Vec<TxId>> =
        join_all(died.map(|(index, (worker, tx_ids))| until_it_dies(stack_ref, worker, index, tx_ids))).await;
    for ((point, worker), tx_ids) in points.iter().zip(&doomed).zip(&tx_ids) {
        assert!(worker.log().contains("failpoint: killing"), "killed at {point}");
        check_left_behind(&stack, point, tx_ids).await;
    }
    stack.start_worker().await;
    for (index, point) in points.iter().enumerate() {
        stack.wait_confirmed(&tx_ids[index]).await;
        for (n, tx_id) in tx_ids[index].iter().enumerate() {
            assert_eq!(stack.row(*tx_id).await.nonce, Some(n as u64), "after {point}");
            assert_eq!(stack.attempts(*tx_id).await.len(), 1, "after {point}: the same bytes");
        }
        assert_eq!(
            stack.anvil().balance(target(index)).await,
            tx_ids[index].len().into(),
            "after {point}: one effect each"
        );
    }
    stack.finish().await;
}

/// On a loaded machine a transaction may be mined before it is recorded as SUBMITTED, and skip a failpoint: then
/// another one is sent.
pub(crate) async fn until_it_dies(
    stack: &Stack,
    worker: &Service,
    index: usize,
    mut tx_ids: Vec<TxId>,
) -> Vec<TxId> {
    eventually(&format!("{} dies", worker.name()), async || {
        if !worker.is_running() {
            return Ok(());
        }
        let last = *tx_ids.last().expect("there is always one");
        if stack.row(last).await.state == TxState::Confirmed {
            let name = format!("r{}", tx_ids.len());
            tx_ids.push(stack.create(stack.submitter(index), &name, &payload(target(index), 1)).await);
        }
        Err("it runs")
    })
    .await;
    tx_ids
}

/// There is never a nonce without an attempt; before the commit there is neither.
async fn check_left_behind(stack: &Stack, point: &str, tx_ids: &[TxId]) {
    for tx_id in tx_ids {
        let (row, attempts) = (stack.row(*tx_id).await, stack.attempts(*tx_id).await.len());
        assert_eq!(attempts, usize::from(row.nonce.is_some()), "{point}: {row:?}");
        if ["claimed", "prepared", "signed"].contains(&point) {
            assert_eq!((row.state, row.nonce), (TxState::Queued, None), "{point}: nothing was committed");
        }
    }
    if ["committed", "sent"].contains(&point) {
        assert_eq!(stack.row(tx_ids[0]).await.state, TxState::InFlight, "{point}: committed, and no more");
    }
}

/// Scenario 25.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_killed_at_any_step_leaves_exactly_one_effect() {
    crash_everywhere(&POINTS, 1, 2).await;
}

/// Scenario 25, with several open transactions at each failpoint.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_killed_at_any_step_of_a_window_leaves_exactly_one_effect_of_each() {
    crash_everywhere(
        &["signed:3", "committed", "sent:2", "sent:4", "submitted", "included", "tracking", "final"],
        4,
        6,
    )
    .await;
}

/// Number of writing or inserting sessions that wait for a lock.
async fn sessions_waiting(stack: &Stack, application: &str) -> i64 {
    sqlx::query_scalar(
        "SELECT count(*) FROM pg_stat_activity
         WHERE datname = current_database() AND application_name LIKE $1 || '%' AND wait_event_type = 'Lock'",
    )
    .bind(application)
    .fetch_one(stack.db())
    .await
    .unwrap()
}

async fn wait_for_waiting(stack: &Stack, application: &str) {
    eventually(&format!("a session of {application} waits"), async || {
        match sessions_waiting(stack, application).await {
            0 => Err("none does"),
            _ => Ok(()),
        }
    })
    .await;
}

fn body(submitter: &Submitter, request_id: &str, to: Address) -> Value {
    json!({ "submitter": submitter.text(), "requestId": request_id, "payload": payload(to, 1) })
}

/// Posts the same request until it is accepted.
async fn post_until_taken(client: &Client, body: &Value) -> TxId {
    eventually(&format!("{body} is taken"), async || match client.try_post(body).await {
        Ok(answer) if matches!(answer.status, 200 | 202) => Ok(answer.tx_id().parse().unwrap()),
        Ok(answer) if answer.status == 503 => Err(answer.body.to_string()),
        Ok(answer) => panic!("{answer:?}"),
        Err(error) => Err(error.to_string()),
    })
    .await
}

/// Stops a write halfway: it holds its locks, some statements are done, and it waits for a row lock.
async fn hold_a_write(stack: &Stack) -> sqlx::Transaction<'static, sqlx::Postgres> {
    eventually("a write is under way", async || {
        let mut obstacle = stack.db().begin().await.unwrap();
        let in_flight =
            "SELECT tx_id FROM managed_tx WHERE finished_at IS NULL AND nonce IS NOT NULL FOR UPDATE";
        let held = sqlx::query(in_flight).execute(&mut *obstacle).await.unwrap().rows_affected();
        // Each block, every half second, causes a write.
        let patience = Instant::now() + Duration::from_secs(1);
        while held > 0 && Instant::now() < patience {
            if sessions_waiting(stack, "gapless-worker writer").await > 0 {
                return Ok(obstacle);
            }
        }
        Err(held)
    })
    .await
}

/// Scenario 26. A batch is stopped halfway, so that the kill hits one; requests continue meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn a_database_killed_in_the_middle_of_a_batch_loses_nothing_and_repeats_nothing() {
    let stack = stack().own_postgres().submitters(5).window(4).mining(Mining::Interval(0.5)).up().await;
    let (client, to, over) = (stack.client(), Address::repeat_byte(0x61), AtomicBool::new(false));
    let requests = stack.submitters().iter().map(async |submitter| {
        let mut accepted = 0;
        while !over.load(Ordering::Relaxed) {
            let bodies: Vec<Value> = (0..4).map(|_| body(submitter, &TxId::new().to_string(), to)).collect();
            let tx_ids = join_all(bodies.iter().map(|body| post_until_taken(&client, body))).await;
            stack.wait_confirmed(&tx_ids).await;
            accepted += tx_ids.len();
        }
        accepted
    });
    let kills = async {
        for _ in 0..2 {
            let obstacle = hold_a_write(&stack).await;
            stack.kill_postgres().await;
            drop(obstacle);
            stack.restart_postgres().await;
        }
        over.store(true, Ordering::Relaxed);
    };
    let (accepted, ()) = tokio::join!(join_all(requests), kills);
    stack.wait_all_terminal().await;
    let worker = stack.workers().remove(0);
    let broken = worker
        .log()
        .lines()
        .filter(|line| line.contains("batch not confirmed: database unavailable"))
        .count();
    assert!(broken >= 2, "each kill found a batch");
    let accepted: usize = accepted.into_iter().sum();
    let rows: i64 =
        sqlx::query_scalar("SELECT count(*) FROM managed_tx").fetch_one(stack.db()).await.unwrap();
    assert_eq!(rows, accepted as i64, "one row for each request, however often it was repeated");
    assert_eq!(stack.anvil().balance(to).await, accepted.into(), "one effect each");
    stack.finish().await;
}

/// Scenario 27, deterministic: the row is committed, and the API is frozen before the response, then killed.
#[tokio::test(flavor = "multi_thread")]
async fn an_api_killed_between_commit_and_answer_has_accepted_and_the_retry_gets_the_same_id() {
    let stack = stack().up().await;
    let (api, client, to) = (stack.services().remove(0), stack.client(), Address::repeat_byte(0x62));
    // An uncommitted duplicate makes the insert wait.
    let mut twin = stack.db().begin().await.unwrap();
    sqlx::query(
        "INSERT INTO managed_tx (tx_id, chain_id, submitter, request_id, payload, payload_hash)
         SELECT gen_random_uuid(), chain_id, submitter, 'lost', '{}', '' FROM submitter",
    )
    .execute(&mut *twin)
    .await
    .unwrap();
    let request = body(stack.submitter(0), "lost", to);
    let posting = tokio::spawn({
        let (client, request) = (client.clone(), request.clone());
        async move { client.try_post(&request).await }
    });
    wait_for_waiting(&stack, "gapless-api").await;
    api.sigstop();
    twin.rollback().await.unwrap();
    let row = eventually("the row is committed", async || {
        stack.rows(stack.submitter(0)).await.pop().ok_or("no row")
    })
    .await;
    api.kill9();
    assert!(posting.await.unwrap().is_err(), "the client got no response");

    stack.start_api().await;
    let answer = stack.client().post_raw(&request).await;
    assert_eq!((answer.status, answer.tx_id()), (200, row.tx_id.to_string().as_str()), "{}", answer.body);
    stack.wait_for(row.tx_id, TxState::Confirmed).await;
    assert_eq!(stack.rows(stack.submitter(0)).await.len(), 1);
    assert_eq!(stack.anvil().balance(to).await, 1.into());
    stack.finish().await;
}

/// Scenario 27, at random points.
#[tokio::test(flavor = "multi_thread")]
async fn requests_repeated_after_the_api_died_under_them_are_one_transaction_each() {
    let stack = stack().submitters(3).window(16).start().await;
    stack.start_worker().await;
    let to = Address::repeat_byte(0x63);
    let mut accepted: HashMap<String, TxId> = HashMap::new();
    let requests = |round: usize| {
        let submitters = stack.submitters().iter().enumerate();
        submitters.flat_map(move |(index, submitter)| {
            (0..15).map(move |n| {
                let id = format!("{index}-{round}-{n}");
                let body = body(submitter, &id, to);
                (id, body)
            })
        })
    };
    for round in 0..3 {
        let api = stack.start_api().await;
        let client = api.client();
        let known = accepted.len() as i64;
        let storm = join_all(requests(round).map(async |(id, body)| (id, client.try_post(&body).await)));
        let kill = async {
            eventually("some are stored", async || {
                let rows: i64 = sqlx::query_scalar("SELECT count(*) FROM managed_tx")
                    .fetch_one(stack.db())
                    .await
                    .unwrap();
                if rows > known { Ok(()) } else { Err(rows) }
            })
            .await;
            api.kill9();
        };
        let (answers, ()) = tokio::join!(storm, kill);
        for (id, answer) in answers {
            if let Ok(answer) = answer {
                stack.record_accepted(&answer);
                accepted.insert(id, answer.tx_id().parse().unwrap());
            }
        }
        let next = stack.start_api().await;
        for (id, body) in requests(round) {
            let answer = next.client().post_raw(&body).await;
            stack.record_accepted(&answer);
            assert!(matches!(answer.status, 200 | 202), "{id}: {answer:?}");
            let tx_id: TxId = answer.tx_id().parse().unwrap();
            assert_eq!(*accepted.entry(id.clone()).or_insert(tx_id), tx_id, "{id} is one transaction");
        }
        next.kill9();
    }
    stack.wait_all_terminal().await;
    let rows: i64 =
        sqlx::query_scalar("SELECT count(*) FROM managed_tx").fetch_one(stack.db()).await.unwrap();
    assert_eq!((rows, accepted.len()), (135, 135));
    assert_eq!(stack.anvil().balance(to).await, 135.into());
    stack.finish().await;
}

/// Scenario 28. One is mined and not final, one is in the mempool, one has successors; and a block is mined without a
/// worker.
#[tokio::test(flavor = "multi_thread")]
async fn a_restart_goes_on_with_what_was_in_flight() {
    let stack =
        stack().short_lease().proxied().submitters(3).confirmations(3).mining(Mining::Manual).start().await;
    stack.start_api().await;
    let worker = stack.start_worker().await;
    let to = Address::repeat_byte(0x64);
    let tracked = stack.create(stack.submitter(0), "tracked", &payload(to, 1)).await;
    stack.wait_for(tracked, TxState::Submitted).await;
    stack.anvil().mine(1).await;
    stack.wait_for(tracked, TxState::Tracking).await;
    let pending = stack.create(stack.submitter(1), "pending", &payload(to, 1)).await;
    let mut followed = Vec::new();
    for n in 0..3 {
        followed.push(stack.create(stack.submitter(2), &format!("followed-{n}"), &payload(to, 1)).await);
    }
    stack.wait_for(pending, TxState::Submitted).await;
    let before = stack.wait_for(followed[0], TxState::Submitted).await;
    worker.kill9();
    stack.anvil().mine(1).await;

    stack.start_worker().await;
    let after = stack.wait_for(followed[0], TxState::Tracking).await;
    assert_eq!((after.nonce, after.tx_hash), (before.nonce, before.tx_hash));
    assert!(after.fencing_token > before.fencing_token, "a new fencing token");
    eventually("everything is final", async || {
        stack.anvil().mine(1).await;
        let left: i64 = sqlx::query_scalar("SELECT count(*) FROM managed_tx WHERE finished_at IS NULL")
            .fetch_one(stack.db())
            .await
            .unwrap();
        if left == 0 { Ok(()) } else { Err(left) }
    })
    .await;
    let tx_ids = [tracked, pending, followed[0], followed[1], followed[2]];
    stack.wait_confirmed(&tx_ids).await;
    let bytes: BTreeSet<String> = stack.proxy().sent().into_iter().collect();
    assert_eq!(bytes.len(), tx_ids.len(), "no intent was ever signed twice");
    assert_eq!(stack.anvil().balance(to).await, 5.into());
    stack.finish().await;
}

/// Clients that wait for each transaction before the next one, until they are stopped.
async fn clients(stack: &Stack, to: Address, done: &[AtomicU32], over: &AtomicBool) {
    let each = stack.submitters().iter().zip(done).map(|(submitter, done)| async move {
        while !over.load(Ordering::Relaxed) {
            let tx_id = stack.create(submitter, &TxId::new().to_string(), &payload(to, 1)).await;
            stack.wait_for(tx_id, TxState::Confirmed).await;
            done.fetch_add(1, Ordering::Relaxed);
        }
    });
    join_all(each).await;
}

/// Waits until every client has finished a transaction from now on.
async fn all_go_on(done: &[AtomicU32]) {
    let seen =
        |done: &[AtomicU32]| done.iter().map(|count| count.load(Ordering::Relaxed)).collect::<Vec<_>>();
    let before = seen(done);
    eventually("every submitter goes on", async || {
        let now = seen(done);
        if now.iter().zip(&before).all(|(now, before)| now > before) { Ok(()) } else { Err(now) }
    })
    .await;
}

/// Scenario 29.
#[tokio::test(flavor = "multi_thread")]
async fn a_rolling_restart_of_all_workers_is_not_noticed_by_the_clients() {
    let stack = stack().short_lease().submitters(6).start().await;
    stack.start_api().await;
    let workers: Vec<Service> = join_all((0..3).map(|_| stack.start_worker())).await;
    let to = Address::repeat_byte(0x65);
    let (done, over) = ([const { AtomicU32::new(0) }; 6], AtomicBool::new(false));
    let rolling = async {
        all_go_on(&done).await;
        for worker in &workers {
            worker.stop_sigterm().await;
            stack.start_worker().await;
            all_go_on(&done).await;
        }
        let unlucky = stack.workers().remove(0);
        unlucky.kill9();
        stack.start_worker().await;
        all_go_on(&done).await;
        over.store(true, Ordering::Relaxed);
    };
    tokio::join!(clients(&stack, to, &done, &over), rolling);
    stack.wait_all_terminal().await;
    let finished: u32 = done.iter().map(|count| count.load(Ordering::Relaxed)).sum();
    assert_eq!(stack.anvil().balance(to).await, finished.into(), "one effect each");
    stack.finish().await;
}
