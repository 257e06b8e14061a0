//! Malformed requests on all routes. Each gets a 400 that names the field, and nothing is stored.

use gapless_testkit::{Answer, Client, payload};
use reqwest::{Method, header};
use serde_json::{Value, json};

use crate::stack;

const TX: &str = "/api/v1/tx/01a1e293-e510-70c1-bc03-33621cb97f26";
const WEBHOOKS: &str = "/api/v1/webhooks";
const WEBHOOK: &str = "/api/v1/webhooks/01a1e293-e510-70c1-bc03-33621cb97f26";

/// With the admin token, so that only the input can be the reason of a refusal.
async fn send(client: &Client, method: Method, path: &str, body: Option<&str>) -> Answer {
    let request = client.request(method, path).bearer_auth(client.admin_token());
    let request = match body {
        Some(body) => request.header(header::CONTENT_TYPE, "application/json").body(body.to_owned()),
        None => request,
    };
    client.ask(request).await
}

fn check_problem(problem: &Value, field: &str, context: &str) {
    assert_eq!((&problem["status"], &problem["code"]), (&json!(400), &json!("invalid_request")), "{context}");
    assert_eq!(problem["field"], field, "{context}: {problem}");
    let detail = problem["detail"].as_str().unwrap();
    // Words of the implementation that mean nothing to a client.
    for word in ["struct", "u64", "u32", "optional_", "sequence", "variant", "map,", "serde", "DateTime"] {
        assert!(!detail.contains(word), "{context}: `{word}` in: {detail}");
    }
    assert!(detail.starts_with(&format!("{field}: ")), "{context}: {detail}");
}

/// The derived parser of a struct also reads an array of its fields in order.
#[tokio::test(flavor = "multi_thread")]
async fn an_array_or_a_wrong_type_is_refused_in_every_body() {
    let stack = stack().up().await;
    let (client, submitter) = (stack.client(), stack.submitter(0).text());
    let to = "0x5aaeb6053f3e94c9b9a09f33669435e7ef1beaed";
    let chain = stack.anvil().chain_id();
    let hash = format!("0x{}", "ab".repeat(32));
    let with = |payload: Value| json!({ "submitter": submitter, "requestId": "r", "payload": payload });
    let posts_tx = [
        (json!([chain, submitter, "r", { "to": to }]), "body"),
        (json!([]), "body"),
        (json!("text"), "body"),
        (json!(null), "body"),
        (json!(7), "body"),
        (with(json!([to, "1"])), "payload"),
        (with(json!([])), "payload"),
        (with(json!(null)), "payload"),
        (with(json!({ "to": to, "accessList": [[to, []]] })), "payload.accessList[0]"),
        (with(json!({ "to": to, "accessList": { "address": to } })), "payload.accessList"),
        (with(json!({ "to": to, "accessList": [{}] })), "payload.accessList[0].address"),
        (with(json!({ "to": to, "accessList": [{ "address": 7 }] })), "payload.accessList[0].address"),
        (with(json!({ "to": to, "args": "1" })), "payload.args"),
        (with(json!({ "to": to, "errors": {} })), "payload.errors"),
        (with(json!({ "to": to, "value": 5 })), "payload.value"),
        (with(json!({ "to": to, "value": ["5"] })), "payload.value"),
        (with(json!({ "to": to, "value": { "wei": "5" } })), "payload.value"),
        (with(json!({ "to": to, "nonce": "5" })), "payload.nonce"),
        (with(json!({ "to": to, "type": "blob" })), "payload.type"),
        (with(json!({ "to": to, "type": 2 })), "payload.type"),
        (with(json!({ "to": to, "type": { "legacy": null } })), "payload.type"),
        (with(json!({ "to": to, "speed": ["fast"] })), "payload.speed"),
        (with(json!({ "to": to, "deadline": "tomorrow" })), "payload.deadline"),
        (with(json!({ "to": to, "deadline": 1_800_000_000 })), "payload.deadline"),
        (with(json!({ "to": to, "notBefore": "2030-13-01T00:00:00Z" })), "payload.notBefore"),
        (json!({ "submitter": submitter, "requestId": "r" }), "payload"),
        (json!({ "requestId": "r", "payload": { "to": to } }), "submitter"),
        (json!({ "submitter": submitter, "payload": { "to": to } }), "requestId"),
        (json!({ "submitter": submitter, "requestId": "a b", "payload": { "to": to } }), "requestId"),
        (json!({ "submitter": "0x12", "requestId": "r", "payload": { "to": to } }), "submitter"),
        (json!({ "submitter": submitter, "requestId": 7, "payload": { "to": to } }), "requestId"),
        (json!({ "chainId": "1", "submitter": submitter, "requestId": "r", "payload": {} }), "chainId"),
        (json!({ "chainId": -1, "submitter": submitter, "requestId": "r", "payload": {} }), "chainId"),
        (json!({ "chainId": 1.5, "submitter": submitter, "requestId": "r", "payload": {} }), "chainId"),
        (json!({ "chainid": 1, "submitter": submitter, "requestId": "r", "payload": {} }), "chainid"),
    ];
    for (body, field) in &posts_tx {
        for path in ["/api/v1/tx", "/api/v1/tx/simulate"] {
            // A simulation needs no requestId.
            if *field == "requestId" && body.get("requestId").is_none() && path.ends_with("simulate") {
                continue;
            }
            let answer = send(&client, Method::POST, path, Some(&body.to_string())).await;
            check_problem(&answer.body, field, &format!("{path} {body}"));
        }
    }
    // The same as items: each is refused by itself.
    let items: Vec<&Value> = posts_tx.iter().map(|(body, _)| body).collect();
    let batch = client.post_to("/api/v1/tx/batch", &json!({ "items": items })).await;
    assert_eq!(batch.status, 200, "{batch:?}");
    for ((body, field), result) in posts_tx.iter().zip(batch.body["results"].as_array().unwrap()) {
        check_problem(&result["problem"], field, &format!("item {body}"));
    }

    let sender = format!("/api/v1/submitters/{submitter}");
    let mut others = vec![
        ("/api/v1/tx/batch".to_owned(), json!([[]]), "body"),
        ("/api/v1/tx/batch".to_owned(), json!([]), "body"),
        ("/api/v1/tx/batch".to_owned(), json!({ "items": {} }), "items"),
        ("/api/v1/tx/batch".to_owned(), json!({ "items": null }), "items"),
        ("/api/v1/tx/batch".to_owned(), json!({}), "items"),
        ("/api/v1/tx/batch".to_owned(), json!({ "items": vec![json!({}); 501] }), "items"),
        (format!("{TX}/resolve"), json!(["cancel", "because"]), "body"),
        (format!("{TX}/resolve"), json!({ "action": "explode", "reason": "x" }), "action"),
        (format!("{TX}/resolve"), json!({ "action": { "cancel": null }, "reason": "x" }), "action"),
        (format!("{TX}/resolve"), json!({ "action": "cancel" }), "reason"),
        (format!("{sender}/adopt"), json!(["because", [hash, 7]]), "body"),
        (format!("{sender}/adopt"), json!({ "reason": "x", "takenBy": [hash, 7] }), "takenBy"),
        (
            format!("{sender}/adopt"),
            json!({ "reason": "x", "takenBy": { "txHash": "0x1", "block": 7 } }),
            "takenBy.txHash",
        ),
        (
            format!("{sender}/adopt"),
            json!({ "reason": "x", "takenBy": { "txHash": hash, "block": u64::MAX } }),
            "takenBy.block",
        ),
        (
            format!("{sender}/adopt"),
            json!({ "reason": "x", "takenBy": { "txHash": hash, "block": "7" } }),
            "takenBy.block",
        ),
        (format!("{sender}/adopt"), json!({ "reason": "x", "takenBy": { "txHash": hash } }), "takenBy.block"),
    ];
    for action in ["cancel", "speed-up"] {
        others.push((format!("{TX}/{action}"), json!(["because"]), "body"));
        others.push((format!("{TX}/{action}"), json!([]), "body"));
        others.push((format!("{TX}/{action}"), json!({ "reason": ["because"] }), "reason"));
        others.push((format!("{TX}/{action}"), json!({ "reasons": "x" }), "reasons"));
    }
    for action in ["pause", "resume", "release", "adopt"] {
        others.push((format!("{sender}/{action}"), json!(["because"]), "body"));
        others.push((format!("{sender}/{action}"), json!({ "reason": [] }), "reason"));
        others.push((format!("{sender}/{action}"), json!({ "reason": " " }), "reason"));
        others.push((format!("{sender}/{action}"), json!({}), "reason"));
        others.push((format!("/api/v1/submitters/0x12/{action}"), json!({ "reason": "x" }), "address"));
    }
    for action in ["cancel", "speed-up"] {
        others.push((format!("/api/v1/tx/7/{action}"), json!({}), "txId"));
    }
    for (path, body, field) in others {
        let answer = send(&client, Method::POST, &path, Some(&body.to_string())).await;
        check_problem(&answer.body, field, &format!("{path} {body}"));
    }
    for (method, path, body, field) in webhook_bodies() {
        let answer = send(&client, method.clone(), &path, Some(&body.to_string())).await;
        check_problem(&answer.body, field, &format!("{method} {path} {body}"));
    }
    // Text that is not JSON, on every route with a body.
    let bodies = ["tx", "tx/batch", "tx/simulate"].map(|path| format!("/api/v1/{path}"));
    let of_tx = ["cancel", "speed-up", "resolve"].map(|action| format!("{TX}/{action}"));
    let of_submitter = ["pause", "resume", "release", "adopt"].map(|action| format!("{sender}/{action}"));
    let of_webhook = ["rotate", "replay"].map(|action| format!("{WEBHOOK}/{action}"));
    let posts = bodies.iter().chain(&of_tx).chain(&of_submitter).chain(&of_webhook).map(String::as_str);
    let posts = posts.chain([WEBHOOKS]).map(|path| (Method::POST, path));
    for (method, path) in posts.chain([(Method::PATCH, WEBHOOK)]) {
        for text in ["", "{", "[", "{} {}", "nul", "{\"a\" 1}", "\u{0}"] {
            let answer = send(&client, method.clone(), path, Some(text)).await;
            assert_eq!((answer.status, answer.code()), (400, "invalid_request"), "{path} {text}: {answer:?}");
            let field = answer.body["field"].as_str().unwrap_or_else(|| panic!("{path} {text}: {answer:?}"));
            check_problem(&answer.body, field, &format!("{path} {text}"));
        }
    }
    let rows: i64 =
        sqlx::query_scalar("SELECT count(*) FROM managed_tx").fetch_one(stack.db()).await.unwrap();
    assert_eq!(rows, 0);
    // The control: the same request as an object.
    let answer = client.post_raw(&with(payload(stack.submitter(0).address(), 1))).await;
    assert_eq!(answer.status, 202, "{answer:?}");
    stack.record_accepted(&answer);
    stack.wait_all_terminal().await;
    stack.finish().await;
}

/// Malformed bodies of the routes of webhooks, and the field of each.
fn webhook_bodies() -> Vec<(Method, String, Value, &'static str)> {
    let url = "https://example.com/";
    let filter = |filter: Value| json!({ "url": url, "filter": filter });
    let both = [
        (json!([url]), "body"),
        (json!({ "url": 7 }), "url"),
        (json!({ "url": "example.com" }), "url"),
        (json!({ "url": "https://" }), "url"),
        (json!({ "url": "http://169.254.169.254/latest" }), "url"),
        (json!({ "url": url, "events": [] }), "events"),
        (json!({ "url": url, "description": "a\u{0}b" }), "description"),
        (json!({ "url": url, "description": "x".repeat(201) }), "description"),
        (filter(json!([])), "filter"),
        (filter(json!({ "chainId": "1" })), "filter.chainId"),
        (filter(json!({ "submitter": "0x12" })), "filter.submitter"),
        (filter(json!({ "txId": "7" })), "filter.txId"),
        (filter(json!({ "types": "tx.failed" })), "filter.types"),
        (filter(json!({ "types": [] })), "filter.types"),
        (filter(json!({ "types": ["tx.failed", "tx.lost"] })), "filter.types[1]"),
        (filter(json!({ "type": "tx.failed" })), "filter.type"),
    ];
    let mut all = Vec::new();
    for (body, field) in both {
        all.push((Method::POST, WEBHOOKS.to_owned(), body.clone(), field));
        all.push((Method::PATCH, WEBHOOK.to_owned(), body, field));
    }
    let id = "6d1f0a52-2c1e-4a70-9f53-0d2b9d1c7a11";
    let (from, until) = ("2026-11-18T09:00:00Z", "2026-11-18T10:00:00Z");
    let posts = [
        ("", json!({}), "url"),
        ("", json!({ "url": null }), "url"),
        ("", json!({ "url": url, "secret": "hunter2" }), "secret"),
        ("", json!({ "url": url, "secret": ["whsec_"] }), "secret"),
        ("/rotate", json!({ "secret": "whsec_" }), "secret"),
        ("/rotate", json!({ "key": "x" }), "key"),
        ("/replay", json!({}), "from"),
        ("/replay", json!({ "from": from }), "until"),
        ("/replay", json!({ "from": until, "until": from }), "until"),
        ("/replay", json!({ "from": "today", "until": until }), "from"),
        ("/replay", json!({ "from": from, "until": until, "onlyFailed": 1 }), "onlyFailed"),
        ("/replay", json!({ "eventIds": [] }), "eventIds"),
        ("/replay", json!({ "eventIds": [id, "7"] }), "eventIds[1]"),
        ("/replay", json!({ "eventIds": [id], "from": from }), "eventIds"),
    ];
    for (action, body, field) in posts {
        let path = if action.is_empty() { WEBHOOKS.to_owned() } else { format!("{WEBHOOK}{action}") };
        all.push((Method::POST, path, body, field));
    }
    all.push((Method::PATCH, WEBHOOK.to_owned(), json!({ "enabled": "yes" }), "enabled"));
    all.push((Method::PATCH, WEBHOOK.to_owned(), json!({ "secret": "x" }), "secret"));
    all.push((Method::PATCH, format!("{WEBHOOKS}/7"), json!({}), "webhookId"));
    all
}

/// A misspelt filter must not list everything.
#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_or_malformed_query_parameter_is_refused_on_every_route() {
    let stack = stack().up().await;
    let (client, submitter) = (stack.client(), stack.submitter(0).text());
    let sender = format!("/api/v1/submitters/{submitter}");
    let by_request = format!("/api/v1/tx/by-request?submitter={submitter}&requestId=r");
    let reason = json!({ "reason": "x" }).to_string();
    let transfer = json!({ "submitter": submitter, "requestId": "r", "payload": { "to": submitter } });
    let transfer = transfer.to_string();
    let mut routes: Vec<(Method, String, Option<&str>)> = [
        "/api/v1/tx",
        TX,
        &format!("{TX}/attempts"),
        &by_request,
        "/api/v1/stuck",
        "/api/v1/submitters",
        &sender,
        "/api/v1/events",
        WEBHOOKS,
        WEBHOOK,
        &format!("{WEBHOOK}/deliveries"),
        "/api/v1/outlets",
        "/healthz",
        "/readyz",
        "/metrics",
        "/docs",
        "/openapi.yaml",
    ]
    .into_iter()
    .map(|path| (Method::GET, path.to_owned(), None))
    .collect();
    for path in ["/api/v1/tx", "/api/v1/tx/simulate"] {
        routes.push((Method::POST, path.to_owned(), Some(&transfer)));
    }
    routes.push((Method::POST, "/api/v1/tx/batch".to_owned(), Some(r#"{"items":[]}"#)));
    for action in ["cancel", "speed-up", "resolve"] {
        routes.push((Method::POST, format!("{TX}/{action}"), Some(&reason)));
    }
    for action in ["pause", "resume", "release", "adopt"] {
        routes.push((Method::POST, format!("{sender}/{action}"), Some(&reason)));
    }
    routes.push((Method::POST, WEBHOOKS.to_owned(), Some("{}")));
    routes.push((Method::PATCH, WEBHOOK.to_owned(), Some("{}")));
    routes.push((Method::DELETE, WEBHOOK.to_owned(), None));
    for action in ["rotate", "test", "replay"] {
        routes.push((Method::POST, format!("{WEBHOOK}/{action}"), Some("{}")));
    }
    for (method, path, body) in &routes {
        let joint = if path.contains('?') { '&' } else { '?' };
        for (query, field) in
            [("submiter=0x00", "submiter"), ("Limit=1", "Limit"), ("x", "x"), ("%73ubmiter=", "submiter")]
        {
            let path = format!("{path}{joint}{query}");
            let answer = send(&client, method.clone(), &path, *body).await;
            assert_eq!(answer.status, 400, "{method} {path}: {answer:?}");
            check_problem(&answer.body, field, &format!("{method} {path}"));
        }
    }
    // A known parameter of another route is unknown here.
    for path in [&format!("{TX}?limit=1"), "/api/v1/stuck?state=STUCK", "/api/v1/submitters?wait=1s"] {
        let answer = client.get(path).await;
        assert_eq!((answer.status, answer.code()), (400, "invalid_request"), "{path}: {answer:?}");
    }

    for (path, field) in [
        ("/api/v1/tx?state=DONE", "state"),
        ("/api/v1/tx?state=", "state"),
        ("/api/v1/tx?limit=many", "limit"),
        ("/api/v1/tx?limit=0", "limit"),
        ("/api/v1/tx?limit=201", "limit"),
        ("/api/v1/tx?limit=-1", "limit"),
        ("/api/v1/tx?limit=99999999999", "limit"),
        ("/api/v1/tx?limit=1&limit=2", "limit"),
        ("/api/v1/tx?state=QUEUED&state=FAILED", "state"),
        ("/api/v1/tx?cursor=7", "cursor"),
        ("/api/v1/tx?chainId=one", "chainId"),
        ("/api/v1/tx?chainId=18446744073709551616", "chainId"),
        ("/api/v1/tx?submitter=0x12", "submitter"),
        ("/api/v1/tx?submitter=", "submitter"),
        ("/api/v1/stuck?limit=x", "limit"),
        ("/api/v1/stuck?cursor=x", "cursor"),
        ("/api/v1/submitters?cursor=x", "cursor"),
        ("/api/v1/submitters?chainId=x", "chainId"),
        ("/api/v1/tx/by-request?requestId=r", "submitter"),
        (&format!("/api/v1/tx/by-request?submitter={submitter}"), "requestId"),
        (&format!("/api/v1/tx/by-request?submitter={submitter}&requestId=a%20b"), "requestId"),
        (&format!("{TX}?wait=long"), "wait"),
        (&format!("{TX}?after=0x12"), "after"),
        ("/api/v1/tx/7", "txId"),
        ("/api/v1/tx/7/attempts", "txId"),
        ("/api/v1/submitters/0x12", "address"),
        ("/api/v1/webhooks?limit=0", "limit"),
        ("/api/v1/webhooks?cursor=x", "cursor"),
        ("/api/v1/webhooks/7", "webhookId"),
        ("/api/v1/webhooks/7/deliveries", "webhookId"),
        (&format!("{WEBHOOK}/deliveries?state=lost"), "state"),
        (&format!("{WEBHOOK}/deliveries?state=DELIVERED"), "state"),
        (&format!("{WEBHOOK}/deliveries?cursor=x"), "cursor"),
        (&format!("{WEBHOOK}/deliveries?limit=201"), "limit"),
    ] {
        let answer = send(&client, Method::GET, path, None).await;
        assert_eq!(answer.status, 400, "{path}: {answer:?}");
        check_problem(&answer.body, field, path);
    }
    let answer = client.get("/api/v1/nowhere?x=1").await;
    assert_eq!((answer.status, answer.code()), (404, "unknown_route"), "{answer:?}");
    stack.finish().await;
}

/// The ranges of PostgreSQL (4713 BC to 294276) and of the parser (262143 years) are different.
#[tokio::test(flavor = "multi_thread")]
async fn a_date_at_the_edge_of_any_range_is_listed_or_refused_but_no_error_of_the_server() {
    let stack = stack().up().await;
    let client = stack.client();
    for (date, status) in [
        ("-262143-01-01T00:00:00Z", 400),
        ("-262144-01-01T00:00:00Z", 400),
        ("%2B262142-12-31T23:59:59Z", 400),
        ("%2B262143-01-01T00:00:00Z", 400),
        ("-4713-01-01T00:00:00Z", 400),
        ("-4714-11-24T00:00:00Z", 400),
        ("-0001-12-31T23:59:59Z", 400),
        ("%2B294276-12-31T23:59:59.999999Z", 400),
        ("%2B294277-01-01T00:00:00Z", 400),
        ("%2B10000-01-01T00:00:00Z", 400),
        ("9999-12-31T23:59:59-23:59", 400),
        ("0001-01-01T00:00:00%2B23:59", 400),
        ("0000-12-31T23:59:59Z", 400),
        ("2026-02-30T00:00:00Z", 400),
        ("2026-01-01", 400),
        ("1767225600", 400),
        ("", 400),
        ("0001-01-01T00:00:00Z", 200),
        ("9999-12-31T23:59:59.999999999Z", 200),
        ("2016-12-31T23:59:60Z", 200),
        ("1969-12-31T23:59:59.999999999Z", 200),
        ("2026-01-01T00:00:00%2B05:30", 200),
    ] {
        for field in ["createdAfter", "createdBefore"] {
            let path = format!("/api/v1/tx?{field}={date}");
            let answer = client.get(&path).await;
            assert_eq!(answer.status, status, "{path}: {answer:?}");
            if status == 400 {
                check_problem(&answer.body, field, &path);
            }
        }
        // The same dates in a body: never an error of the server either.
        let date = date.replace("%2B", "+");
        for field in ["notBefore", "deadline"] {
            let body = json!({
                "submitter": stack.submitter(0).text(), "payload": { "to": stack.submitter(0).text(), field: date },
            });
            let answer = client.post_to("/api/v1/tx/simulate", &body).await;
            let refused = [400, 422].contains(&answer.status);
            assert_eq!(refused, status == 400, "{body}: {answer:?}");
            assert!(!refused || answer.body["field"] == format!("payload.{field}"), "{body}: {answer:?}");
        }
    }
    stack.finish().await;
}
