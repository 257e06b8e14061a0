//! Other features of the API: idempotency keys, lists, long polls, admin routes.

use std::time::{Duration, Instant};

use gapless_testkit::{Address, Mining, Stack, TxState, eventually, payload};
use reqwest::Method;
use serde_json::{Value, json};

use crate::stack;

fn strings<'a>(items: &'a Value, key: &str) -> Vec<&'a str> {
    items.as_array().unwrap().iter().map(|item| item[key].as_str().unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_root_leads_to_the_documentation() {
    let stack = stack().start().await;
    let api = stack.start_api().await;
    let direct = reqwest::Client::builder().redirect(reqwest::redirect::Policy::none()).build().unwrap();
    let answer = direct.get(api.url()).send().await.unwrap();
    assert_eq!((answer.status().as_u16(), &answer.headers()["location"]), (303, &"/docs".parse().unwrap()));
    assert_eq!(api.page("/").await, api.page("/docs").await);
    assert_eq!(stack.client().get("/nothing").await.status, 404);
    stack.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_idempotency_key_header_is_a_request_id() {
    let stack = stack().up().await;
    let (client, submitter) = (stack.client(), stack.submitter(0).text());
    let body = |request_id: Option<&str>| {
        let mut body = json!({ "submitter": submitter, "payload": payload(Address::repeat_byte(0x01), 1) });
        if let Some(request_id) = request_id {
            body["requestId"] = request_id.into();
        }
        body
    };
    let post = async |key: Option<&str>, body: &Value| {
        let mut request = client.request(Method::POST, "/api/v1/tx").json(body);
        if let Some(key) = key {
            request = request.header("Idempotency-Key", key);
        }
        client.ask(request).await
    };
    let first = post(Some("k-1"), &body(None)).await;
    assert_eq!(first.status, 202, "{first:?}");
    stack.record_accepted(&first);
    assert_eq!(first.headers["location"], format!("/api/v1/tx/{}", first.tx_id()));
    for (key, request_id) in [(Some("k-1"), None), (None, Some("k-1")), (Some("k-1"), Some("k-1"))] {
        let again = post(key, &body(request_id)).await;
        assert_eq!((again.status, again.tx_id()), (200, first.tx_id()), "{key:?} {request_id:?}");
    }
    for (key, request_id) in [(Some("k-1"), Some("k-2")), (Some("k 1"), None), (None, None)] {
        let refused = post(key, &body(request_id)).await;
        assert_eq!((refused.status, refused.code()), (400, "invalid_request"), "{key:?} {request_id:?}");
    }
    stack.wait_all_terminal().await;
    assert_eq!(stack.rows(stack.submitter(0)).await.len(), 1);
    stack.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_are_filtered_and_read_page_by_page() {
    let stack = stack().submitters(2).up().await;
    let client = stack.client();
    let (one, two, reverts) = (stack.submitter(0), stack.submitter(1), Address::repeat_byte(0x02));
    stack.anvil().set_code(reverts, "0x60006000fd").await;
    let mut of_one = Vec::new();
    for n in 0..7 {
        let to = if n == 3 { reverts } else { Address::repeat_byte(0x03) };
        of_one.push(stack.create(one, &format!("r{n}"), &payload(to, 0)).await.to_string());
    }
    let of_two = stack.create(two, "r0", &payload(Address::repeat_byte(0x03), 1)).await.to_string();
    stack.wait_all_terminal().await;

    // Newest first, every item once, for all page sizes.
    let mut seen = Vec::new();
    let mut path = "/api/v1/tx?limit=3".to_owned();
    loop {
        let page = client.get(&path).await;
        assert_eq!(page.status, 200, "{page:?}");
        seen.extend(strings(&page.body["items"], "txId").into_iter().map(str::to_owned));
        assert!(page.body["items"][0].get("payload").is_none(), "lists are short");
        let Some(cursor) = page.body["nextCursor"].as_str() else { break };
        assert_eq!(page.body["items"].as_array().map(Vec::len), Some(3));
        path = format!("/api/v1/tx?limit=3&cursor={cursor}");
    }
    let newest_first: Vec<String> = of_one.iter().chain([&of_two]).rev().cloned().collect();
    assert_eq!(seen, newest_first);

    let by = async |filter: &str| {
        let page = client.get(&format!("/api/v1/tx?{filter}")).await;
        assert_eq!(page.status, 200, "{filter}: {page:?}");
        strings(&page.body["items"], "txId").into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(by(&format!("submitter={}", two.text())).await, std::slice::from_ref(&of_two));
    assert_eq!(by("state=FAILED").await, [of_one[3].clone()]);
    assert_eq!(by(&format!("submitter={}&state=CONFIRMED", one.text())).await.len(), 6);
    assert!(by("state=QUEUED").await.is_empty());
    let created = stack.get(of_two.parse().unwrap()).await["createdAt"].as_str().unwrap().replace('+', "%2B");
    assert_eq!(by(&format!("createdAfter={created}")).await, std::slice::from_ref(&of_two));
    assert_eq!(by(&format!("createdBefore={created}")).await.len(), 7);

    let found = client.get(&format!("/api/v1/tx/by-request?submitter={}&requestId=r0", two.text())).await;
    assert_eq!((found.status, &found.body["txId"]), (200, &json!(of_two)), "{found:?}");
    assert_eq!(found.body["requestId"], "r0");
    let none = client.get(&format!("/api/v1/tx/by-request?submitter={}&requestId=r1", two.text())).await;
    assert_eq!((none.status, none.code()), (404, "unknown_tx"));
    let submitters = client.get("/api/v1/submitters?limit=1").await;
    let cursor = submitters.body["nextCursor"].as_str().unwrap();
    let rest = client.get(&format!("/api/v1/submitters?limit=1&cursor={cursor}")).await;
    assert!(rest.body["nextCursor"].is_null(), "{rest:?}");
    let mut addresses = strings(&submitters.body["items"], "address");
    addresses.extend(strings(&rest.body["items"], "address"));
    let mut wanted = [one.text(), two.text()];
    wanted.sort();
    assert_eq!(addresses, wanted);
    stack.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_poll_ends_when_the_transaction_is_final_or_the_time_is_up() {
    let stack = stack().mining(Mining::Manual).up().await;
    let tx_id = stack.create(stack.submitter(0), "polled", &payload(Address::repeat_byte(0x04), 1)).await;
    stack.wait_for(tx_id, TxState::Submitted).await;
    let client = stack.client();
    let early = client.get(&format!("/api/v1/tx/{tx_id}?wait=100ms")).await;
    assert_eq!((early.status, &early.body["state"]), (200, &json!("SUBMITTED")), "{early:?}");

    let begun = Instant::now();
    let polls = (0..20).map(|_| {
        let client = client.clone();
        tokio::spawn(async move { client.get(&format!("/api/v1/tx/{tx_id}?wait=50s")).await })
    });
    let polls: Vec<_> = polls.collect();
    let api = stack.services().remove(0);
    let early = client.get(&format!("/api/v1/tx/{tx_id}?wait=300ms")).await;
    assert_eq!(early.body["state"], "SUBMITTED", "the limit was reached");
    assert!(polls.iter().all(|poll| !poll.is_finished()));
    stack.anvil().mine(1).await;
    for poll in polls {
        let answer = poll.await.unwrap();
        assert_eq!((answer.status, &answer.body["state"]), (200, &json!("CONFIRMED")), "{answer:?}");
        assert_eq!(answer.body["confirmations"], 1);
    }
    assert!(begun.elapsed() < Duration::from_secs(40), "not at the end of the wait: {:?}", begun.elapsed());
    let bad = client.get(&format!("/api/v1/tx/{tx_id}?wait=soon")).await;
    assert_eq!((bad.status, bad.code()), (400, "invalid_request"));

    // A shutdown does not wait for long polls.
    let open = stack.create(stack.submitter(0), "open", &payload(Address::repeat_byte(0x04), 1)).await;
    stack.wait_for(open, TxState::Submitted).await;
    let path = format!("/api/v1/tx/{open}?wait=50s");
    let (answer, stopped) = tokio::join!(client.get(&path), async {
        // A later request is answered only after the server has accepted both.
        let other = stack.client().get(&format!("/api/v1/tx/{open}?wait=500ms")).await;
        assert_eq!(other.body["state"], "SUBMITTED");
        api.stop_sigterm().await
    });
    assert_eq!((answer.status, &answer.body["state"]), (200, &json!("SUBMITTED")), "the current state");
    assert!(stopped < Duration::from_secs(8), "{stopped:?}");
    stack.finish().await;
}

/// The API has a LISTEN connection.
async fn wait_listening(stack: &Stack) {
    eventually("the API to listen", async || {
        let listening: i64 = sqlx::query_scalar(
            "SELECT count(*) FROM pg_stat_activity
            WHERE datname = current_database() AND application_name LIKE 'gapless-api-notify % listener'
              AND (query LIKE 'LISTEN%' OR query LIKE '-- ask_listener%')",
        )
        .fetch_one(stack.db())
        .await
        .unwrap();
        (listening == 1).then_some(()).ok_or(format!("{listening} listen"))
    })
    .await;
}

/// Time from the request to the response of a long poll whose transaction the test ends meanwhile.
async fn poll_until_ended_by_test(stack: &Stack, request_id: &str, word: bool) -> Duration {
    let tx_id = stack.create(stack.submitter(0), request_id, &payload(Address::repeat_byte(0x04), 1)).await;
    let begun = Instant::now();
    let client = stack.client();
    let poll = tokio::spawn(async move { client.get(&format!("/api/v1/tx/{tx_id}?wait=50s")).await });
    let api = stack.services().remove(0);
    eventually("a long poll waits", async || {
        let polls = api.metric("gapless_long_polls", &[]).await;
        (polls == 1.0).then_some(()).ok_or(polls)
    })
    .await;
    let ended = stack
        .sql(
            "UPDATE managed_tx SET state = 'CANCELLED', finished_at = clock_timestamp(), fencing_token = 1
            WHERE state = 'QUEUED'",
        )
        .await;
    assert_eq!(ended, 1);
    if word {
        stack.sql("NOTIFY gapless_final").await;
    }
    let answer = poll.await.unwrap();
    assert_eq!((answer.status, &answer.body["state"]), (200, &json!("CANCELLED")), "{answer:?}");
    begun.elapsed()
}

/// Minimum time of polling alone, while the API listens.
const BY_THE_CLOCK: Duration = Duration::from_millis(500);

/// Rounds until one is faster than polling alone. On a busy machine that takes some; without NOTIFY it never happens.
async fn quickest_of_some(stack: &Stack, name: &str) -> Duration {
    let mut quickest = Duration::MAX;
    for round in 0..100 {
        quickest = quickest.min(poll_until_ended_by_test(stack, &format!("{name}-{round}"), true).await);
        if quickest < BY_THE_CLOCK {
            break;
        }
    }
    quickest
}

/// A notification of a worker ends a long poll early. A lost notification costs at most the time until the next poll.
#[tokio::test(flavor = "multi_thread")]
async fn a_long_poll_is_answered_at_a_word_and_without_one_by_the_clock() {
    let stack = stack().up().await;
    wait_listening(&stack).await;
    let mut ear = sqlx::postgres::PgListener::connect_with(stack.db()).await.unwrap();
    ear.listen("gapless_final").await.unwrap();
    let tx_id = stack.create(stack.submitter(0), "worked", &payload(Address::repeat_byte(0x04), 1)).await;
    let answer = stack.client().get(&format!("/api/v1/tx/{tx_id}?wait=50s")).await;
    assert_eq!(answer.body["state"], "CONFIRMED", "{answer:?}");
    tokio::time::timeout(Duration::from_secs(30), ear.recv()).await.expect("a worker's word").unwrap();
    drop(ear);
    for worker in stack.workers() {
        worker.stop_sigterm().await;
    }

    assert!(quickest_of_some(&stack, "word").await < BY_THE_CLOCK);
    let silent = poll_until_ended_by_test(&stack, "silent", false).await;
    assert!((BY_THE_CLOCK..Duration::from_secs(40)).contains(&silent), "{silent:?}");

    // The connection is lost, and re-established.
    stack
        .sql(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
            WHERE datname = current_database() AND application_name LIKE 'gapless-api-notify%'",
        )
        .await;
    let deaf = poll_until_ended_by_test(&stack, "deaf", false).await;
    assert!(deaf < Duration::from_secs(40), "{deaf:?}");
    wait_listening(&stack).await;
    assert!(quickest_of_some(&stack, "again").await < BY_THE_CLOCK);
    stack.finish().await;
}

async fn audit(stack: &Stack) -> Vec<(String, String, String, bool)> {
    sqlx::query_as("SELECT action, reason, actor, applied_at IS NOT NULL FROM audit_log ORDER BY audit_id")
        .fetch_all(stack.db())
        .await
        .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn admin_routes_want_the_token_and_only_admins_see_a_nonce() {
    let stack = stack().up().await;
    let (client, submitter) = (stack.client(), stack.submitter(0));
    let tx_id = stack.create(submitter, "one", &payload(Address::repeat_byte(0x05), 1)).await;
    stack.wait_for(tx_id, TxState::Confirmed).await;
    for action in ["pause", "resume", "release", "adopt"] {
        let path = format!("/api/v1/submitters/{}/{action}", submitter.text());
        let request = || client.request(Method::POST, &path).json(&json!({ "reason": "because" }));
        for request in [request(), request().bearer_auth("guess"), request().bearer_auth("")] {
            let refused = client.ask(request).await;
            assert_eq!((refused.status, refused.code()), (401, "unauthorized"), "{action}: {refused:?}");
            assert_eq!(refused.headers["www-authenticate"], "Bearer");
        }
    }
    assert!(audit(&stack).await.is_empty(), "nothing was recorded, nothing was done");

    let path = format!("/api/v1/submitters/{}", submitter.text());
    assert_eq!(client.admin_get(&path).await.body["nextNonce"], 1);
    assert_eq!(client.admin_get("/api/v1/submitters").await.body["items"][0]["nextNonce"], 1);
    for public in [&path, "/api/v1/submitters", "/api/v1/tx", &format!("/api/v1/tx/{tx_id}")] {
        let seen = client.get(public).await;
        assert_eq!(seen.status, 200, "{seen:?}");
        assert!(!seen.body.to_string().to_lowercase().contains("nonce"), "{public}: {}", seen.body);
    }
    let guess = client.ask(client.request(Method::GET, &path).bearer_auth("guess")).await;
    assert_eq!(guess.status, 401, "a wrong token is refused rather than ignored");

    for (reason, status) in [("", 400), ("  ", 400), (&"x".repeat(1001) as &str, 400)] {
        assert_eq!(
            stack.submitter_action(submitter, "pause", reason).await.status,
            status,
            "a reason is needed"
        );
    }
    let unknown = gapless_testkit::Submitter::random();
    let refused = stack.submitter_action(&unknown, "pause", "because").await;
    assert_eq!((refused.status, refused.code()), (404, "unknown_submitter"));
    let refused = stack.submitter_action(submitter, "release", "because").await;
    assert_eq!((refused.status, refused.code()), (409, "not_protected"));

    // Without a configured token there are no admin routes.
    let closed = stack.api().set("api.admin_token", "").start().await.client();
    let refused = closed.submitter_action(submitter, "pause", "because").await;
    assert_eq!((refused.status, refused.code()), (403, "admin_disabled"), "{refused:?}");
    assert!(closed.admin_get(&path).await.body["nextNonce"].is_null());
    stack.finish().await;
}

/// Waits until every worker has polled twice, so that its lanes have everything that was stored before.
async fn workers_have_looked(stack: &Stack) {
    for _ in 0..2 {
        let now: (f64,) = sqlx::query_as("SELECT extract(epoch FROM clock_timestamp())::FLOAT8")
            .fetch_one(stack.db())
            .await
            .unwrap();
        eventually("the workers ask for work", async || {
            let late: i64 = sqlx::query_scalar(
                "SELECT count(*) FROM worker WHERE extract(epoch FROM seen_at)::FLOAT8 <= $1",
            )
            .bind(now.0)
            .fetch_one(stack.db())
            .await
            .unwrap();
            if late == 0 { Ok(()) } else { Err(late) }
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_submitter_finishes_what_is_open_and_sends_nothing_new_until_resumed() {
    let stack = stack().submitters(2).mining(Mining::Manual).up().await;
    let (paused, other, to) = (stack.submitter(0), stack.submitter(1), Address::repeat_byte(0x06));
    let open = stack.create(paused, "open", &payload(to, 1)).await;
    stack.wait_for(open, TxState::Submitted).await;
    let answer = stack.submitter_action(paused, "pause", "maintenance of the vault").await;
    assert_eq!((answer.status, &answer.body["status"]), (200, &json!("applied")), "{answer:?}");
    let waiting = stack.create(paused, "waiting", &payload(to, 1)).await;
    let seen = stack.client().get(&format!("/api/v1/submitters/{}", paused.text())).await.body;
    assert_eq!(
        (&seen["state"], &seen["pausedReason"]),
        (&json!("PAUSED"), &json!("maintenance of the vault"))
    );

    workers_have_looked(&stack).await;
    stack.anvil().mine(1).await;
    stack.wait_for(open, TxState::Confirmed).await;
    // Another submitter of the same worker is processed completely meanwhile.
    let free = stack.create(other, "free", &payload(to, 1)).await;
    stack.wait_for(free, TxState::Submitted).await;
    stack.anvil().mine(1).await;
    stack.wait_for(free, TxState::Confirmed).await;
    eventually("a paused submitter without open work has no owner", async || {
        let lease = stack.lease(paused).await;
        if lease.as_ref().is_some_and(|lease| !lease.live) { Ok(()) } else { Err(lease) }
    })
    .await;
    let row = stack.row(waiting).await;
    assert_eq!((row.state, row.nonce), (TxState::Queued, None), "nothing new was sent");
    assert_eq!(stack.anvil().count(paused.address(), "pending").await, 1);

    let answer = stack.submitter_action(paused, "resume", "done").await;
    assert_eq!(answer.status, 200, "{answer:?}");
    stack.wait_for(waiting, TxState::Submitted).await;
    stack.anvil().mine(1).await;
    assert_eq!(stack.wait_for(waiting, TxState::Confirmed).await.nonce, Some(1));
    let log = audit(&stack).await;
    let entries: Vec<_> =
        log.iter().map(|(action, reason, _, applied)| (&**action, &**reason, *applied)).collect();
    assert_eq!(entries, [("pause", "maintenance of the vault", true), ("resume", "done", true)]);
    assert!(log.iter().all(|(_, _, actor, _)| actor.contains("admin token from 127.0.0.1")), "{log:?}");
    stack.finish().await;
}
