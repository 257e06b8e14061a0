//! The rest of what clients and operators can do: idempotency keys, lists, long polls, admin routes, payloads of every
//! kind, and starts that must fail with a reason.

use std::time::{Duration, Instant};

use ethers_core::utils::id;
use gapless::config::Secret;
use gapless::signer::keystore;
use gapless_cli::commands::migrate::migrate;
use gapless_tests::{Address, Mining, Service, Stack, TxId, TxState, U256, eventually, payload};
use reqwest::Method;
use serde_json::{Value, json};
use sqlx::Connection;

use crate::stack;

fn strings<'a>(items: &'a Value, key: &str) -> Vec<&'a str> {
    items.as_array().unwrap().iter().map(|item| item[key].as_str().unwrap()).collect()
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
    stack.note(&first);
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

    // Newest first, every one once, whatever the page size.
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
    assert_eq!(early.body["state"], "SUBMITTED", "the time was up");
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

    // A server that stops does not wait for those who wait.
    let open = stack.create(stack.submitter(0), "open", &payload(Address::repeat_byte(0x04), 1)).await;
    stack.wait_for(open, TxState::Submitted).await;
    let path = format!("/api/v1/tx/{open}?wait=50s");
    let (answer, stopped) = tokio::join!(client.get(&path), async {
        // Whoever asks after it can be answered only once the server has taken both.
        let other = stack.client().get(&format!("/api/v1/tx/{open}?wait=500ms")).await;
        assert_eq!(other.body["state"], "SUBMITTED");
        api.stop_sigterm().await
    });
    assert_eq!((answer.status, &answer.body["state"]), (200, &json!("SUBMITTED")), "told how it stands");
    assert!(stopped < Duration::from_secs(8), "{stopped:?}");
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
        assert_eq!(stack.operate(submitter, "pause", reason).await.status, status, "a reason is needed");
    }
    let unknown = gapless_tests::Submitter::random();
    let refused = stack.operate(&unknown, "pause", "because").await;
    assert_eq!((refused.status, refused.code()), (404, "unknown_submitter"));
    let refused = stack.operate(submitter, "release", "because").await;
    assert_eq!((refused.status, refused.code()), (409, "not_protected"));

    // Without a token in the configuration there are no admins at all.
    let closed = stack.api().set("api.admin_token", "").start().await.client();
    let refused = closed.operate(submitter, "pause", "because").await;
    assert_eq!((refused.status, refused.code()), (403, "admin_disabled"), "{refused:?}");
    assert!(closed.admin_get(&path).await.body["nextNonce"].is_null());
    stack.finish().await;
}

/// Until every worker has asked the database twice: what was there before, its lanes have been told by then.
async fn workers_have_looked(stack: &Stack) {
    for _ in 0..2 {
        let now: (f64,) = sqlx::query_as("SELECT extract(epoch FROM clock_timestamp())::FLOAT8")
            .fetch_one(stack.db())
            .await
            .unwrap();
        eventually("the workers ask for work", async || {
            let late: i64 = sqlx::query_scalar(
                "SELECT count(*) FROM worker_node WHERE extract(epoch FROM seen_at)::FLOAT8 <= $1",
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
    let answer = stack.operate(paused, "pause", "maintenance of the vault").await;
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
    // Another submitter of the same worker goes all the way meanwhile.
    let free = stack.create(other, "free", &payload(to, 1)).await;
    stack.wait_for(free, TxState::Submitted).await;
    stack.anvil().mine(1).await;
    stack.wait_for(free, TxState::Confirmed).await;
    eventually("nobody owns a paused submitter without open work", async || {
        let lease = stack.lease(paused).await;
        if lease.as_ref().is_some_and(|lease| !lease.live) { Ok(()) } else { Err(lease) }
    })
    .await;
    let row = stack.row(waiting).await;
    assert_eq!((row.state, row.nonce), (TxState::Queued, None), "nothing new was sent");
    assert_eq!(stack.anvil().count(paused.address(), "pending").await, 1);

    let answer = stack.operate(paused, "resume", "done").await;
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

#[tokio::test(flavor = "multi_thread")]
async fn what_may_not_be_sent_yet_does_not_hold_up_the_queue() {
    let stack = stack().up().await;
    let (submitter, to) = (stack.submitter(0), Address::repeat_byte(0x07));
    let with = |not_before: &str| json!({ "to": format!("{to:#x}"), "value": "1", "notBefore": not_before });
    let later = stack.create(submitter, "later", &with("2999-01-01T00:00:00Z")).await;
    let past = stack.create(submitter, "past", &with("2020-01-01T00:00:00Z")).await;
    let now = stack.create(submitter, "now", &payload(to, 1)).await;
    stack.wait_confirmed(&[past, now]).await;
    assert_eq!((stack.row(past).await.nonce, stack.row(now).await.nonce), (Some(0), Some(1)));
    let row = stack.row(later).await;
    assert_eq!((row.state, row.nonce), (TxState::Queued, None));
    // Time passes: it is due in a second instead of in a thousand years.
    stack
        .sql("UPDATE managed_tx SET not_before = clock_timestamp() + interval '1 s' WHERE not_before > now()")
        .await;
    assert_eq!(stack.wait_for(later, TxState::Confirmed).await.nonce, Some(2));
    let early = "SELECT count(*) FROM managed_tx WHERE prepared_at < not_before";
    assert_eq!(sqlx::query_scalar::<_, i64>(early).fetch_one(stack.db()).await.unwrap(), 0);
    stack.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_has_no_nonce_by_its_deadline_is_cancelled_without_one() {
    let stack = stack().mining(Mining::Manual).up().await;
    let (submitter, to) = (stack.submitter(0), Address::repeat_byte(0x08));
    let first = stack.create(submitter, "first", &payload(to, 1)).await;
    stack.wait_for(first, TxState::Submitted).await;
    let due: String = sqlx::query_scalar(
        "SELECT to_char((clock_timestamp() + interval '1 s') AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.MS\"Z\"')",
    )
    .fetch_one(stack.db())
    .await
    .unwrap();
    let with = |deadline: &str| json!({ "to": format!("{to:#x}"), "value": "1", "deadline": deadline });
    let late = stack.create(submitter, "late", &with(&due)).await;
    let patient = stack.create(submitter, "patient", &with("2999-01-01T00:00:00Z")).await;
    eventually("the deadline passes", async || {
        let passed = "SELECT bool_or(deadline < clock_timestamp()) FROM managed_tx";
        if sqlx::query_scalar(passed).fetch_one(stack.db()).await.unwrap() { Ok(()) } else { Err("not yet") }
    })
    .await;
    stack.anvil().mine(1).await;
    stack.wait_for(first, TxState::Confirmed).await;
    let row = stack.wait_for(late, TxState::Cancelled).await;
    assert_eq!((row.nonce, row.sub_state.as_deref()), (None, Some("deadline")));
    assert!(stack.attempts(late).await.is_empty());
    assert_eq!(
        stack.wait_for(patient, TxState::Submitted).await.nonce,
        Some(1),
        "the nonce that was not used"
    );
    stack.anvil().mine(1).await;
    stack.wait_for(patient, TxState::Confirmed).await;
    assert_eq!(stack.get(late).await["state"], "CANCELLED");
    assert_eq!(stack.anvil().balance(to).await, 2.into());
    stack.finish().await;
}

/// Stores the first argument in slot 0 and the selector in slot 1: 11 bytes of init code, 16 of contract.
const RECORDER: &str = "0x601080600b6000396000f360043560005560003560e01c60015500";

#[tokio::test(flavor = "multi_thread")]
async fn a_deployed_contract_is_called_by_signature_and_by_fragment() {
    let stack = stack().up().await;
    let (client, submitter) = (stack.client(), stack.submitter(0));
    let deployed = stack.create(submitter, "deploy", &json!({ "data": RECORDER })).await;
    stack.wait_for(deployed, TxState::Confirmed).await;
    let contract = stack.get(deployed).await["receipt"]["contractAddress"].as_str().unwrap().to_owned();
    let slot = async |slot: &str| -> U256 {
        let word = stack.anvil().rpc("eth_getStorageAt", json!([contract, slot, "latest"])).await;
        serde_json::from_value(word).unwrap()
    };
    let selector = U256::from_big_endian(&id("record(uint256)"));
    let fragment =
        json!({ "type": "function", "name": "record", "inputs": [{ "name": "x", "type": "uint256" }] });
    let max = U256::MAX.to_string();
    for (request, method, arg) in
        [("by-signature", json!("record(uint256)"), json!("7")), ("by-fragment", fragment, json!(max))]
    {
        let call = json!({ "to": contract, "method": method, "args": [arg] });
        let tx_id = stack.create(submitter, request, &call).await;
        stack.wait_for(tx_id, TxState::Confirmed).await;
        assert_eq!(slot("0x0").await.to_string(), arg.as_str().unwrap(), "{request}");
        assert_eq!(slot("0x1").await, selector, "{request}");
    }
    // The same bytes spelled otherwise are the same request.
    let data = format!("0x{:x}{:064x}", selector, 7);
    let again = client.post(submitter, "by-signature", &json!({ "to": contract, "data": data })).await;
    assert_eq!(again.status, 200, "{again:?}");
    stack.finish().await;
}

async fn on_chain(stack: &Stack, tx_id: TxId) -> Value {
    let hash = stack.wait_for(tx_id, TxState::Confirmed).await.tx_hash.unwrap();
    stack.anvil().rpc("eth_getTransactionByHash", json!([hash])).await
}

#[tokio::test(flavor = "multi_thread")]
async fn transactions_are_of_the_type_and_the_price_that_was_asked_for() {
    let stack = stack().up().await;
    let (submitter, to) = (stack.submitter(0), format!("{:#x}", Address::repeat_byte(0x09)));
    let key = format!("{:#066x}", 5);
    let list = json!([{ "address": to, "storageKeys": [key] }]);
    let create = async |request: &str, payload: Value| {
        on_chain(&stack, stack.create(submitter, request, &payload).await).await
    };

    let tx = create("default", json!({ "to": to })).await;
    assert_eq!((&tx["type"], &tx["gas"]), (&json!("0x2"), &json!("0x5208")), "{tx}");
    let tx = create("legacy", json!({ "to": to, "type": "legacy" })).await;
    assert_eq!(tx["type"], "0x0", "{tx}");
    let tx = create("priced", json!({ "to": to, "gasPrice": "5000000000", "gasLimit": "30000" })).await;
    assert_eq!(
        (&tx["type"], &tx["gasPrice"], &tx["gas"]),
        (&json!("0x0"), &json!("0x12a05f200"), &json!("0x7530"))
    );
    let tx = create("listed", json!({ "to": to, "accessList": list })).await;
    assert_eq!((&tx["type"], &tx["accessList"]), (&json!("0x2"), &list), "{tx}");
    let tx = create("legacy-listed", json!({ "to": to, "type": "legacy", "accessList": list })).await;
    assert_eq!((&tx["type"], &tx["accessList"]), (&json!("0x1"), &list), "{tx}");
    let capped =
        json!({ "to": to, "maxFeePerGas": "0x12a05f200", "maxPriorityFeePerGas": "3", "data": "0x1234" });
    let tx = create("capped", capped).await;
    assert_eq!(
        (&tx["maxFeePerGas"], &tx["maxPriorityFeePerGas"], &tx["input"]),
        (&json!("0x12a05f200"), &json!("0x3"), &json!("0x1234"))
    );
    stack.finish().await;
}

/// Ends with a failure and says why; answers what it said.
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
    migrate(&Secret::new(older.as_str())).await.unwrap();
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
    migrate(&Secret::new(empty.as_str())).await.unwrap();
    stack.api().set("database.url", empty.as_str()).start().await;
    stack.worker().set("database.url", empty.as_str()).start().await;
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
    let line = worker.wait_for_log("a key could not be loaded").await;
    assert!(line.contains(locked.to_str().unwrap()), "{line}");
    let (status, body) = worker.readiness().await;
    assert_eq!(status, 200, "{body}");
    assert!(
        body["signerProblems"][0].as_str().is_some_and(|text| text.contains(locked.to_str().unwrap())),
        "{body}"
    );

    let to = Address::repeat_byte(0x0a);
    let body = json!({ "submitter": format!("{good:#x}"), "requestId": "kept", "payload": payload(to, 1) });
    let answer = stack.client().post_raw(&body).await;
    assert_eq!(answer.status, 202, "{answer:?}");
    stack.note(&answer);
    let beside = stack.create(stack.submitter(0), "beside", &payload(to, 1)).await;
    stack.wait_confirmed(&[answer.tx_id().parse().unwrap(), beside]).await;
    assert!(!worker.log().contains("another password") && !worker.log().contains("secret"));
    let signers = stack.client().get("/api/v1/submitters").await;
    let mut kinds = strings(&signers.body["items"], "signer");
    kinds.sort();
    assert_eq!(kinds, ["keystore", "raw_key"]);
    stack.finish().await;
}
