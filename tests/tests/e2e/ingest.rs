//! Which requests the API accepts, and which it rejects.

use std::collections::{HashMap, HashSet};

use ethers_core::utils::to_checksum;
use futures::StreamExt;
use futures::future::join_all;
use gapless_testkit::{Address, Answer, Stack, TxState, eventually, payload};
use reqwest::{Method, header};
use serde_json::{Value, json};

use crate::stack;

async fn stored(stack: &Stack) -> i64 {
    sqlx::query_scalar("SELECT count(*) FROM managed_tx").fetch_one(stack.db()).await.unwrap()
}

/// The common shape of all rejections.
fn check_problem(answer: &Answer, status: u16, code: &str) {
    assert_eq!((answer.status, answer.code()), (status, code), "{answer:?}");
    assert_eq!(answer.headers[header::CONTENT_TYPE], "application/problem+json", "{answer:?}");
    assert_eq!(answer.body["status"], status, "{answer:?}");
    assert_eq!(answer.body["type"], format!("urn:gapless:problem:{code}"), "{answer:?}");
    assert!(answer.body["detail"].as_str().is_some_and(|detail| !detail.is_empty()), "{answer:?}");
}

/// Scenario 1.
#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_identical_requests_at_once_are_one_transaction() {
    let stack = stack().up().await;
    let (submitter, client) = (stack.submitter(0), stack.client());
    let transfer = payload(Address::repeat_byte(0x11), 5);
    let answers = join_all((0..100).map(|_| client.post(submitter, "the-same", &transfer))).await;
    answers.iter().for_each(|answer| stack.record_accepted(answer));
    assert!(answers.iter().all(|answer| matches!(answer.status, 200 | 202)), "{answers:?}");
    assert_eq!(answers.iter().filter(|answer| answer.status == 202).count(), 1, "one of them was the first");
    let ids: HashSet<&str> = answers.iter().map(|answer| answer.tx_id()).collect();
    assert_eq!(ids.len(), 1);
    stack.wait_for(answers[0].tx_id().parse().unwrap(), TxState::Confirmed).await;
    assert_eq!(stack.rows(submitter).await.len(), 1);
    assert_eq!(stack.anvil().balance(Address::repeat_byte(0x11)).await, 5.into());
    stack.finish().await;
}

/// Scenario 1, through two API processes, which cannot see each other's inserts. Ten requests in ten
/// different orders, so that the two groups also conflict crosswise.
#[tokio::test(flavor = "multi_thread")]
async fn identical_requests_through_two_apis_are_one_transaction_each() {
    let stack = stack().up().await;
    let clients = [stack.client(), stack.start_api().await.client()];
    let (submitter, to) = (stack.submitter(0), Address::repeat_byte(0x12));
    let transfer = payload(to, 1);
    let posts = (0..100_usize).map(|n| {
        let request = if n % 2 == 0 { n / 2 % 10 } else { 9 - n / 2 % 10 };
        let (client, transfer) = (&clients[n % 2], &transfer);
        async move { (request, client.post(submitter, &format!("r{request}"), transfer).await) }
    });
    let answers = join_all(posts).await;
    let mut ids: HashMap<usize, HashSet<&str>> = HashMap::new();
    for (request, answer) in &answers {
        stack.record_accepted(answer);
        assert!(matches!(answer.status, 200 | 202), "{answer:?}");
        ids.entry(*request).or_default().insert(answer.tx_id());
    }
    assert_eq!(answers.iter().filter(|(_, answer)| answer.status == 202).count(), 10, "each is new once");
    assert!(ids.len() == 10 && ids.values().all(|ids| ids.len() == 1), "{ids:?}");
    stack.wait_all_terminal().await;
    assert_eq!(stack.rows(submitter).await.len(), 10);
    assert_eq!(stack.anvil().balance(to).await, 10.into());
    stack.finish().await;
}

/// Scenario 2.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_id_used_for_another_payload_is_refused_and_its_neighbours_are_not() {
    let stack = stack().window(16).set("nonce.release_at", "mined").up().await;
    let (submitter, client) = (stack.submitter(0), stack.client());
    let (to, elsewhere) = (Address::repeat_byte(0x21), Address::repeat_byte(0x22));
    let original = stack.create(submitter, "taken", &payload(to, 1)).await;

    // Fifty concurrent requests are inserted in a few groups; every fifth one is invalid.
    let posts = (0..50).map(|n| {
        let client = client.clone();
        async move {
            match n % 5 {
                0 => client.post(submitter, "taken", &payload(elsewhere, 100 + n)).await,
                _ => client.post(submitter, &format!("neighbour-{n}"), &payload(to, 1)).await,
            }
        }
    });
    let answers = join_all(posts).await;
    for (n, answer) in answers.iter().enumerate() {
        if n % 5 == 0 {
            check_problem(answer, 409, "request_id_conflict");
            assert_eq!(answer.body["txId"], original.to_string(), "it names whose requestId it is");
        } else {
            assert_eq!(answer.status, 202, "{answer:?}");
            stack.record_accepted(answer);
        }
    }
    assert_eq!(client.post(submitter, "taken", &payload(to, 1)).await.tx_id(), original.to_string());
    stack.wait_all_terminal().await;
    assert_eq!(stack.anvil().balance(to).await, 41.into());
    assert_eq!(stack.anvil().balance(elsewhere).await, 0.into());
    stack.finish().await;
}

/// Scenario 2, in one batch.
#[tokio::test(flavor = "multi_thread")]
async fn each_item_of_a_batch_has_its_own_answer() {
    let stack = stack().up().await;
    let (submitter, to) = (stack.submitter(0), Address::repeat_byte(0x23));
    let original = stack.create(submitter, "taken", &payload(to, 1)).await;
    let item = |request_id: &str, payload: Value| json!({ "submitter": submitter.text(), "requestId": request_id, "payload": payload });
    let items = json!([
        item("one", payload(to, 1)),
        item("taken", payload(to, 2)),
        item("twice", payload(to, 1)),
        item("twice", payload(to, 1)),
        item("twice", payload(to, 9)),
        { "submitter": submitter.text(), "requestId": "odd", "payload": {}, "nonce": 7 },
        item("bad", json!({ "to": "0x12" })),
        item("two", payload(to, 1)),
        7,
    ]);
    let answer = stack.client().post_to("/api/v1/tx/batch", &json!({ "items": items })).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let results = answer.body["results"].as_array().unwrap();
    let seen: Vec<(u64, &str)> = results
        .iter()
        .map(|r| (r["status"].as_u64().unwrap(), r["problem"]["code"].as_str().unwrap_or("")))
        .collect();
    let expected = [
        (202, ""),
        (409, "request_id_conflict"),
        (202, ""),
        (200, ""),
        (409, "request_id_conflict"),
        (400, "invalid_request"),
        (422, "invalid_payload"),
        (202, ""),
        (400, "invalid_request"),
    ];
    assert_eq!(seen, expected, "{}", answer.body);
    assert_eq!(results[1]["problem"]["txId"], original.to_string());
    assert_eq!(results[2]["txId"], results[3]["txId"]);
    stack.wait_all_terminal().await;
    let rows = stack.rows(submitter).await;
    let order: Vec<String> = rows.iter().map(|row| row.tx_id.to_string()).collect();
    let wanted =
        [&json!(original.to_string()), &results[0]["txId"], &results[2]["txId"], &results[7]["txId"]];
    assert_eq!(order, wanted.map(|id| id.as_str().unwrap()), "queued in the order of the items");
    assert_eq!(rows.iter().map(|row| row.nonce.unwrap()).collect::<Vec<_>>(), [0, 1, 2, 3]);
    assert_eq!(stack.anvil().balance(to).await, 4.into());

    let many: Vec<Value> = (0..501).map(|n| item(&format!("many-{n}"), payload(to, 1))).collect();
    let answer = stack.client().post_to("/api/v1/tx/batch", &json!({ "items": many })).await;
    check_problem(&answer, 400, "invalid_request");
    assert_eq!(stored(&stack).await, 4, "a batch that is too long is refused whole");
    stack.finish().await;
}

/// Scenario 3.
#[tokio::test(flavor = "multi_thread")]
async fn bad_input_is_refused_with_a_stable_code_and_nothing_is_stored() {
    let stack = stack().up().await;
    let (client, submitter) = (stack.client(), stack.submitter(0).text());
    let to = "0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed";
    let with = |payload: Value| json!({ "submitter": submitter, "requestId": "r", "payload": payload });
    let zeros = |bytes: usize| format!("0x{}", "00".repeat(bytes));
    let unknown = format!("{:#x}", Address::repeat_byte(0x99));
    let word = format!("0x1{}", "0".repeat(64));
    for (body, status, code) in [
        (
            json!({ "submitter": unknown, "requestId": "r", "payload": { "to": to } }),
            404,
            "unknown_submitter",
        ),
        (
            json!({ "chainId": 5, "submitter": submitter, "requestId": "r", "payload": { "to": to } }),
            404,
            "unknown_chain",
        ),
        (json!({ "submitter": "0x12", "requestId": "r", "payload": { "to": to } }), 400, "invalid_request"),
        (json!({ "requestId": "r", "payload": { "to": to } }), 400, "invalid_request"),
        (json!({ "submitter": submitter, "payload": { "to": to } }), 400, "invalid_request"),
        (
            json!({ "submitter": submitter, "requestId": "a b", "payload": { "to": to } }),
            400,
            "invalid_request",
        ),
        (json!({ "submitter": submitter, "requestId": "", "payload": { "to": to } }), 400, "invalid_request"),
        (
            json!({ "submitter": submitter, "requestId": "x".repeat(201), "payload": { "to": to } }),
            400,
            "invalid_request",
        ),
        (json!({ "submitter": submitter, "requestId": "r" }), 400, "invalid_request"),
        (
            json!({ "submitter": submitter, "requestId": "r", "payload": { "to": to }, "gas": "1" }),
            400,
            "invalid_request",
        ),
        (with(json!({ "to": to, "nonce": "5" })), 400, "invalid_request"),
        (with(json!({ "to": to, "value": 5 })), 400, "invalid_request"),
        (with(json!({ "to": to, "value": -5 })), 400, "invalid_request"),
        (with(json!({ "to": to, "type": "blob" })), 400, "invalid_request"),
        (with(json!({ "to": to, "deadline": "tomorrow" })), 400, "invalid_request"),
        (with(json!({ "to": "0x12" })), 422, "invalid_payload"),
        (with(json!({ "to": to.replace("aA", "Aa") })), 422, "invalid_payload"),
        (with(json!({})), 422, "invalid_payload"),
        (with(json!({ "to": to, "value": "-1" })), 422, "invalid_payload"),
        (with(json!({ "to": to, "value": "1.5" })), 422, "invalid_payload"),
        (with(json!({ "to": to, "value": word })), 422, "invalid_payload"),
        (with(json!({ "to": to, "data": "0xzz" })), 422, "invalid_payload"),
        (with(json!({ "to": to, "data": "0x123" })), 422, "invalid_payload"),
        (with(json!({ "to": to, "data": "1234" })), 422, "invalid_payload"),
        (with(json!({ "to": to, "data": zeros(128 * 1024 + 1) })), 422, "invalid_payload"),
        (with(json!({ "data": zeros(49_153) })), 422, "invalid_payload"),
        (with(json!({ "to": to, "gasLimit": "0" })), 422, "invalid_payload"),
        (with(json!({ "to": to, "gasPrice": "1", "maxFeePerGas": "1" })), 422, "invalid_payload"),
        (
            with(json!({ "to": to, "method": "transfer(address,uint256)", "args": [to] })),
            422,
            "invalid_payload",
        ),
        (with(json!({ "to": to, "method": "transfer(uint8)", "args": ["256"] })), 422, "invalid_payload"),
        (with(json!({ "to": to, "accessList": [{ "address": "0x1" }] })), 422, "invalid_payload"),
        (with(json!({ "to": to, "data": zeros(1 << 20) })), 413, "body_too_large"),
    ] {
        let answer = client.post_raw(&body).await;
        check_problem(&answer, status, code);
        assert_eq!(
            answer.body["field"].is_string(),
            [400, 422].contains(&status),
            "names the field: {answer:?}"
        );
    }
    let raw = |content_type: &str, body: String| {
        client.request(Method::POST, "/api/v1/tx").header(header::CONTENT_TYPE, content_type).body(body)
    };
    let good = with(json!({ "to": to })).to_string();
    for (request, status, code) in [
        (raw("application/json", "{".into()), 400, "invalid_request"),
        (raw("application/json", String::new()), 400, "invalid_request"),
        (raw("application/json", format!("{good} {good}")), 400, "invalid_request"),
        (raw("application/json", good.replacen('{', "{\"requestId\":\"q\",", 1)), 400, "invalid_request"),
        (raw("text/plain", good.clone()), 415, "unsupported_media_type"),
        (client.request(Method::DELETE, "/api/v1/tx"), 405, "method_not_allowed"),
        (client.request(Method::GET, "/api/v2/tx"), 404, "unknown_route"),
        (client.request(Method::GET, "/api/v1/tx/not-an-id"), 400, "invalid_request"),
        (client.request(Method::GET, "/api/v1/tx/0197a0b0-0000-7000-8000-000000000000"), 404, "unknown_tx"),
        (client.request(Method::GET, "/api/v1/tx?limit=0"), 400, "invalid_request"),
        (client.request(Method::GET, "/api/v1/tx?state=LOST"), 400, "invalid_request"),
        (client.request(Method::GET, "/api/v1/tx?cursor=page-2"), 400, "invalid_request"),
    ] {
        check_problem(&client.ask(request).await, status, code);
    }
    assert_eq!(stored(&stack).await, 0, "nothing was stored");
    let answer = client.post_raw(&with(json!({ "to": to, "value": "1" }))).await;
    assert_eq!(answer.status, 202, "the requestId was not used up: {answer:?}");
    stack.record_accepted(&answer);
    stack.wait_all_terminal().await;
    stack.finish().await;
}

/// Scenario 4.
#[tokio::test(flavor = "multi_thread")]
async fn every_spelling_of_an_address_is_one_submitter() {
    let stack = stack().up().await;
    let (client, submitter) = (stack.client(), stack.submitter(0));
    let (lower, checksummed) = (submitter.text(), to_checksum(&submitter.address(), None));
    let upper = format!("0x{}", lower[2..].to_uppercase());
    let to = Address::repeat_byte(0x41);
    let mut ids = HashSet::new();
    for (n, spelled) in [&lower, &checksummed, &upper].into_iter().enumerate() {
        let body = |request_id: &str| json!({ "submitter": spelled, "requestId": request_id, "payload": payload(to, 1) });
        let same = client.post_raw(&body("the-same")).await;
        let own = client.post_raw(&body(&format!("own-{n}"))).await;
        assert_eq!((same.status, own.status), (if n == 0 { 202 } else { 200 }, 202), "{same:?} {own:?}");
        stack.record_accepted(&same);
        stack.record_accepted(&own);
        ids.insert(same.tx_id().to_owned());
    }
    assert_eq!(ids.len(), 1);
    stack.wait_all_terminal().await;
    let mut nonces: Vec<u64> = stack.rows(submitter).await.iter().filter_map(|row| row.nonce).collect();
    nonces.sort();
    assert_eq!(nonces, [0, 1, 2, 3], "one sequence");
    for spelled in [&lower, &checksummed, &upper] {
        let listed = client.get(&format!("/api/v1/tx?submitter={spelled}")).await;
        assert_eq!(listed.body["items"].as_array().map(Vec::len), Some(4), "{listed:?}");
        let seen = client.get(&format!("/api/v1/submitters/{spelled}")).await;
        assert_eq!(seen.body["address"], lower);
    }
    assert_eq!(stack.anvil().balance(to).await, 4.into());
    stack.finish().await;
}

/// Scenario 5.
#[tokio::test(flavor = "multi_thread")]
async fn a_protected_submitter_takes_nothing_new_and_says_why() {
    let stack = stack().submitters(2).start().await;
    let (protected, free) = (stack.submitter(0), stack.submitter(1));
    protected.make_history(stack.anvil(), 1).await;
    stack.start_api().await;
    stack.start_worker().await;
    let to = Address::repeat_byte(0x51);
    let waiting = stack.create(protected, "waiting", &payload(to, 1)).await;
    let reason = stack.wait_protected(protected).await;
    assert!(reason.contains("the chain counts 1"), "an operator sees the numbers: {reason}");

    let refused = stack.post(protected, "new", &payload(to, 1)).await;
    check_problem(&refused, 409, "submitter_protected");
    let detail = refused.body["detail"].as_str().unwrap();
    assert!(detail.contains("the address has a history"), "{detail}");
    assert!(!detail.contains(|c: char| c.is_ascii_digit()), "no count and no nonce: {detail}");
    let known = stack.post(protected, "waiting", &payload(to, 1)).await;
    assert_eq!(
        (known.status, known.tx_id()),
        (200, waiting.to_string().as_str()),
        "what was accepted stays so"
    );
    let other = stack.post(protected, "waiting", &payload(to, 2)).await;
    check_problem(&other, 409, "request_id_conflict");

    // In one batch with a submitter that works.
    let item =
        |submitter: String| json!({ "submitter": submitter, "requestId": "b", "payload": payload(to, 1) });
    let items = json!({ "items": [item(protected.text()), item(free.text()), item(protected.text())] });
    let batch = stack.client().post_to("/api/v1/tx/batch", &items).await;
    let statuses: Vec<_> =
        batch.body["results"].as_array().unwrap().iter().map(|r| r["status"].clone()).collect();
    assert_eq!(statuses, [409, 202, 409], "{}", batch.body);
    let free_tx = batch.body["results"][1]["txId"].as_str().unwrap().parse().unwrap();
    stack.wait_for(free_tx, TxState::Confirmed).await;

    assert_eq!(stack.rows(protected).await.len(), 1, "nothing was stored");
    assert_eq!(stack.row(waiting).await.nonce, None);
    let seen = stack.client().get(&format!("/api/v1/submitters/{}", protected.text())).await;
    assert_eq!(seen.body["state"], "PROTECT", "{seen:?}");
    stack.finish().await;
}

/// Scenario 7. Killed under load: everything that was answered with 202 is stored, everything else can be sent again,
/// and no request is stored partially.
#[tokio::test(flavor = "multi_thread")]
async fn without_its_database_the_api_answers_503_and_comes_back_by_itself() {
    let stack =
        stack().own_postgres().window(32).set("nonce.release_at", "mined").set("events.mode", "mq_outbox");
    let stack = stack.up().await;
    let (submitter, client) = (stack.submitter(0), stack.client());
    let api = stack.services().remove(0);
    let worker = stack.workers().remove(0);
    let to = Address::repeat_byte(0x71);
    let transfer = payload(to, 1);
    stack.create(submitter, "before", &transfer).await;
    assert_eq!(api.readiness().await.0, 200);

    let flood = (0..120_usize).map(|n| {
        let (client, transfer) = (client.clone(), &transfer);
        async move { (n, client.post(submitter, &format!("r{n}"), transfer).await) }
    });
    let mut flood = futures::stream::iter(flood).buffer_unordered(60);
    let mut answers: HashMap<usize, Answer> = HashMap::new();
    while let Some((n, answer)) = flood.next().await {
        stack.record_accepted(&answer);
        answers.insert(n, answer);
        if answers.len() == 40 {
            stack.kill_postgres().await;
        }
    }
    drop(flood);
    for answer in answers.values().filter(|answer| answer.status != 202) {
        check_problem(answer, 503, "database_unavailable");
        assert_eq!(answer.headers[header::RETRY_AFTER], "1");
    }
    let promised = answers.values().filter(|answer| answer.status == 202).count();
    assert!((40..120).contains(&promised), "{promised} of 120: it died in the middle");
    // Each of these waits for a connection until the server's timeout; concurrently they wait once.
    let (refused, unread, api_ready, worker_ready) = tokio::join!(
        client.post(submitter, "during", &transfer),
        client.get("/api/v1/tx"),
        api.readiness(),
        worker.readiness()
    );
    check_problem(&refused, 503, "database_unavailable");
    check_problem(&unread, 503, "database_unavailable");
    assert_eq!((api_ready.0, &api_ready.1["missing"]), (503, &json!(["database"])), "{api_ready:?}");
    assert_eq!(
        (worker_ready.0, &worker_ready.1["reasons"]["database"]),
        (503, &json!(1)),
        "{worker_ready:?}"
    );
    assert_eq!(client.get("/healthz").await.status, 200, "still running");

    stack.restart_postgres().await;
    for service in [&api, &worker] {
        eventually(&format!("{} is ready", service.name()), async || match service.readiness().await {
            (200, _) => Ok(()),
            other => Err(other),
        })
        .await;
    }
    for (n, before) in &answers {
        let again = client.post(submitter, &format!("r{n}"), &transfer).await;
        stack.record_accepted(&again);
        assert!(matches!(again.status, 200 | 202), "{again:?}");
        if before.status == 202 {
            assert_eq!((again.status, again.tx_id()), (200, before.tx_id()), "r{n} was promised");
        }
    }
    stack.wait_all_terminal().await;
    assert_eq!(stack.rows(submitter).await.len(), 121, "`during` was refused and is not there");
    assert_eq!(stack.anvil().balance(to).await, 121.into());
    let without_event: i64 = sqlx::query_scalar(
        "SELECT count(*) FROM managed_tx t
         WHERE 1 <> (SELECT count(*) FROM v_event e WHERE e.tx_id = t.tx_id AND e.kind = 'tx.accepted')",
    )
    .fetch_one(stack.db())
    .await
    .unwrap();
    assert_eq!(without_event, 0, "row and event are one commit");
    stack.finish().await;
}
