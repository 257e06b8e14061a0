//! API keys: their permissions, and revocation.

use gapless_testkit::{Address, Answer, Client, Mining, Stack, TxState, eventually, payload};
use reqwest::{Method, header};
use serde_json::{Value, json};

use crate::stack;

const READ: [&str; 2] = ["--scope", "tx:read"];
const WRITE: [&str; 2] = ["--scope", "tx:write"];
const ADMIN: [&str; 2] = ["--scope", "admin"];

fn check_refused(answer: &Answer, status: u16, code: &str) {
    assert_eq!((answer.status, answer.code()), (status, code), "{answer:?}");
    assert_eq!(answer.headers[header::CONTENT_TYPE], "application/problem+json", "{answer:?}");
    assert_eq!(answer.headers.contains_key(header::WWW_AUTHENTICATE), status == 401, "{answer:?}");
}

/// `--submitter`, for one of the stack's.
fn only(stack: &Stack, submitter: usize) -> String {
    format!("{}:{}", stack.anvil().chain_id(), stack.submitter(submitter).text())
}

async fn revoke(stack: &Stack, key_id: &str) -> String {
    let done = stack.cli(&["api-keys", "revoke", key_id]).await;
    assert_eq!(done.code, 0, "{done:?}");
    done.stdout
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_opens_what_its_scopes_say_and_nothing_else_opens_anything() {
    let stack = stack().start().await;
    let (read, _) = stack.api_key(&READ).await;
    let (write, write_id) = stack.api_key(&WRITE).await;
    let (admin, _) = stack.api_key(&ADMIN).await;
    stack.start_api().await;
    stack.start_worker().await;
    let (nobody, submitter) = (stack.client(), stack.submitter(0));
    let [reader, writer, operator] = [&read, &write, &admin].map(|key| nobody.with_key(key));
    stack.wait_announced(&reader).await;

    let transfer = payload(Address::repeat_byte(0x01), 1);
    let made = writer.post(submitter, "one", &transfer).await;
    assert_eq!(made.status, 202, "{made:?}");
    stack.record_accepted(&made);
    let tx = format!("/api/v1/tx/{}", made.tx_id());
    let own = format!("/api/v1/submitters/{}", submitter.text());
    let reads = ["/api/v1/tx", &tx, "/api/v1/stuck", "/api/v1/submitters", &own];
    let writes = ["/api/v1/tx/simulate".to_owned(), format!("{tx}/cancel")];
    let commands = [format!("{own}/pause"), format!("{tx}/speed-up"), format!("{tx}/resolve")];
    let because = json!({ "reason": "because", "action": "bump" });
    for path in reads {
        assert_eq!(reader.get(path).await.status, 200, "{path}");
        check_refused(&writer.get(path).await, 403, "scope_missing");
        check_refused(&operator.get(path).await, 403, "scope_missing");
    }
    for path in &writes {
        check_refused(&reader.post_to(path, &json!({})).await, 403, "scope_missing");
    }
    check_refused(&reader.post(submitter, "two", &transfer).await, 403, "scope_missing");
    check_refused(&reader.post_to("/api/v1/tx/batch", &json!({ "items": [] })).await, 403, "scope_missing");
    for path in &commands {
        check_refused(&reader.post_to(path, &because).await, 403, "scope_missing");
        check_refused(&writer.post_to(path, &because).await, 403, "scope_missing");
    }
    assert_eq!(operator.submitter_action_with_key(submitter, "pause").await.status, 200);
    assert_eq!(operator.submitter_action_with_key(submitter, "resume").await.status, 200);

    // Without a valid key: no key, a partial key, an id with another key's secret, a key outside of the header.
    let forged = format!("gpl_{write_id}_{}", read.rsplit('_').next().unwrap());
    let guesses = ["", "guess", "gpl_", &write[..write.len() - 1], &forged, &write.to_uppercase()];
    let rejected: Vec<Client> =
        guesses.iter().map(|guess| nobody.with_key(guess)).chain([nobody.clone()]).collect();
    for client in &rejected {
        for path in reads {
            check_refused(&client.get(path).await, 401, "unauthorized");
        }
        check_refused(&client.post(submitter, "two", &transfer).await, 401, "unauthorized");
        check_refused(&client.post_to(&commands[0], &because).await, 401, "unauthorized");
        for open in ["/healthz", "/readyz"] {
            assert_eq!(client.get(open).await.status, 200, "{open}");
        }
    }
    let in_the_query = nobody.get(&format!("/api/v1/tx?key={read}&access_token={read}")).await;
    check_refused(&in_the_query, 401, "unauthorized");
    let basic = nobody.request(Method::GET, "/api/v1/tx").basic_auth("key", Some(&read));
    check_refused(&nobody.ask(basic).await, 401, "unauthorized");
    // The admin token is a key for everything.
    stack.wait_all_terminal().await;
    assert_eq!(nobody.admin_get("/api/v1/tx").await.status, 200);
    assert_eq!(nobody.admin_get(&own).await.body["nextNonce"], 1);
    assert!(reader.get(&own).await.body["nextNonce"].is_null());

    assert_eq!(stack.rows(submitter).await.len(), 1);
    let actor: String = sqlx::query_scalar("SELECT actor FROM audit_log ORDER BY audit_id LIMIT 1")
        .fetch_one(stack.db())
        .await
        .unwrap();
    assert!(actor.contains("(a client) from 127.0.0.1"), "{actor}");
    stack.finish().await;
}

/// Scenario: a caller of one submitter can neither see nor cancel the transactions of another.
#[tokio::test(flavor = "multi_thread")]
async fn a_caller_of_one_submitter_can_neither_see_nor_touch_another_s() {
    let stack = stack().submitters(3).mining(Mining::Manual).start().await;
    let scopes = ["--scope", "tx:read", "--scope", "tx:write", "--scope", "admin"];
    let (first, second) = (only(&stack, 0), only(&stack, 1));
    let (ours, _) = stack.api_key(&[&scopes[..], &["--submitter", &first]].concat()).await;
    let (theirs, _) = stack
        .api_key(&[&scopes[..], &["--submitter", &second, "--submitter", &only(&stack, 2)]].concat())
        .await;
    let (all, _) = stack.api_key(&scopes).await;
    stack.start_api().await;
    stack.start_worker().await;
    let [ours, theirs, all] = [ours, theirs, all].map(|key| stack.client().with_key(&key));
    stack.wait_announced(&all).await;
    let transfer = payload(Address::repeat_byte(0x02), 1);
    let mut made = Vec::new();
    for (client, submitter) in [(&ours, 0), (&theirs, 1), (&theirs, 2)] {
        let answer = client.post(stack.submitter(submitter), "one", &transfer).await;
        assert_eq!(answer.status, 202, "{answer:?}");
        stack.record_accepted(&answer);
        made.push(answer.tx_id().to_owned());
    }
    for id in &made {
        stack.wait_for(id.parse().unwrap(), TxState::Submitted).await;
    }

    // By id: 404, with the same text as for an unknown id.
    let nothing = uuid::Uuid::now_v7().to_string();
    for id in [&made[1], &made[2], &nothing] {
        let path = format!("/api/v1/tx/{id}");
        check_refused(&ours.get(&path).await, 404, "unknown_tx");
        check_refused(&ours.get(&format!("{path}?wait=30s")).await, 404, "unknown_tx");
        for action in ["cancel", "speed-up", "resolve"] {
            let body = match action {
                "resolve" => json!({ "action": "cancel", "reason": "not mine" }),
                _ => json!({ "reason": "not mine" }),
            };
            let refused = ours.post_to(&format!("{path}/{action}"), &body).await;
            check_refused(&refused, 404, "unknown_tx");
        }
    }
    let requests: i64 =
        sqlx::query_scalar("SELECT count(*) FROM tx_request").fetch_one(stack.db()).await.unwrap();
    assert_eq!(requests, 0, "no request to a worker");

    // By address: rejected, whether or not the submitter exists.
    let (other, unknown) = (stack.submitter(1).text(), gapless_testkit::Submitter::random().text());
    for address in [&other, &unknown] {
        for path in [
            format!("/api/v1/tx/by-request?submitter={address}&requestId=one"),
            format!("/api/v1/tx?submitter={address}"),
            format!("/api/v1/submitters/{address}"),
        ] {
            check_refused(&ours.get(&path).await, 403, "submitter_not_allowed");
        }
        let body = json!({ "submitter": address, "requestId": "mine-now", "payload": transfer });
        check_refused(&ours.post_raw(&body).await, 403, "submitter_not_allowed");
        check_refused(&ours.post_to("/api/v1/tx/simulate", &body).await, 403, "submitter_not_allowed");
        for action in ["pause", "resume", "release", "adopt"] {
            let path = format!("/api/v1/submitters/{address}/{action}");
            let refused = ours.post_to(&path, &json!({ "reason": "not mine" })).await;
            check_refused(&refused, 403, "submitter_not_allowed");
        }
    }

    // Lists contain only its own items, and a batch accepts only its own.
    let ids = async |client: &Client, path: &str, field: &str| {
        let page = client.get(path).await;
        assert_eq!(page.status, 200, "{page:?}");
        let items = page.body["items"].as_array().unwrap().iter();
        items.map(|item| item[field].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(ids(&ours, "/api/v1/tx", "txId").await, [made[0].clone()]);
    assert_eq!(ids(&theirs, "/api/v1/tx", "txId").await, [made[2].clone(), made[1].clone()]);
    assert_eq!(ids(&theirs, "/api/v1/tx?limit=1", "txId").await, [made[2].clone()]);
    assert_eq!(ids(&ours, "/api/v1/tx?state=SUBMITTED", "txId").await, [made[0].clone()]);
    assert!(ids(&ours, "/api/v1/tx?state=QUEUED", "txId").await.is_empty());
    assert_eq!(ids(&ours, "/api/v1/submitters", "address").await, [stack.submitter(0).text()]);
    assert_eq!(ids(&all, "/api/v1/tx", "txId").await.len(), 3, "the control: without a limit all are seen");
    assert_eq!(ids(&all, "/api/v1/submitters", "address").await.len(), 3);
    let item = |submitter: &str| json!({ "submitter": submitter, "requestId": "batch", "payload": transfer });
    let items = json!({ "items": [item(&other), item(&stack.submitter(0).text())] });
    let batch = ours.post_to("/api/v1/tx/batch", &items).await;
    let statuses: Vec<&Value> =
        batch.body["results"].as_array().unwrap().iter().map(|r| &r["status"]).collect();
    assert_eq!(statuses, [403, 202], "{batch:?}");
    assert_eq!(batch.body["results"][0]["problem"]["code"], "submitter_not_allowed");

    // It may cancel its own transaction.
    let cancelled = theirs.post_to(&format!("/api/v1/tx/{}/cancel", made[1]), &json!({})).await;
    assert_eq!(cancelled.status, 200, "{cancelled:?}");
    let states = async || {
        stack.anvil().mine(1).await;
        let open: i64 = sqlx::query_scalar("SELECT count(*) FROM managed_tx WHERE finished_at IS NULL")
            .fetch_one(stack.db())
            .await
            .unwrap();
        if open == 0 { Ok(()) } else { Err(open) }
    };
    eventually("everything is mined", states).await;
    stack.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_revoked_key_is_refused_at_the_next_request_by_every_process() {
    let stack = stack().mining(Mining::Manual).start().await;
    let (keep, _) = stack.api_key(&[]).await;
    let first = stack.start_api().await.client();
    let second = stack.start_api().await.client();
    stack.start_worker().await;
    let keep = first.with_key(&keep);
    stack.wait_announced(&keep).await;
    // Cached keys in a process do not matter: a revoked key is rejected at once.
    for round in 0..20 {
        let (key, id) = stack.api_key(&[]).await;
        let clients = [first.with_key(&key), second.with_key(&key)];
        for client in &clients {
            assert_eq!(client.get("/api/v1/tx").await.status, 200);
        }
        assert!(revoke(&stack, &id).await.contains("revoked"));
        for client in &clients {
            check_refused(&client.get("/api/v1/tx").await, 401, "unauthorized");
            let refused =
                client.post(stack.submitter(0), &format!("late-{round}"), &payload(Address::zero(), 1)).await;
            check_refused(&refused, 401, "unauthorized");
        }
    }
    assert!(stack.rows(stack.submitter(0)).await.is_empty(), "nothing was stored");

    // A long poll whose key is revoked meanwhile gets no result.
    let (key, id) = stack.api_key(&[]).await;
    let client = first.with_key(&key);
    let made = client.post(stack.submitter(0), "waited-for", &payload(Address::repeat_byte(0x03), 1)).await;
    assert_eq!(made.status, 202, "{made:?}");
    stack.record_accepted(&made);
    stack.wait_for(made.tx_id().parse().unwrap(), TxState::Submitted).await;
    let path = format!("/api/v1/tx/{}?wait=60s", made.tx_id());
    let polls = [client.clone(), keep.clone()].map(|client| {
        let path = path.clone();
        tokio::spawn(async move { client.get(&path).await })
    });
    let api = stack.services().remove(0);
    eventually("both wait", async || {
        let waiting = api.metric("gapless_long_polls", &[]).await;
        if waiting == 2.0 { Ok(()) } else { Err(waiting) }
    })
    .await;
    revoke(&stack, &id).await;
    assert!(revoke(&stack, &id).await.contains("revoked before"));
    stack.anvil().mine(1).await;
    let [revoked, kept] = polls;
    check_refused(&revoked.await.unwrap(), 401, "unauthorized");
    assert_eq!(kept.await.unwrap().body["state"], "CONFIRMED", "the control: it was confirmed");

    // The control: the row decides.
    let back = sqlx::query("UPDATE api_key SET revoked_at = NULL WHERE key_id = $1")
        .bind(&id)
        .execute(stack.db())
        .await;
    assert_eq!(back.unwrap().rows_affected(), 1);
    assert_eq!(client.get("/api/v1/tx").await.status, 200);
    stack.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_expires_by_the_clock_of_the_database_and_its_use_is_noted() {
    let stack = stack().start().await;
    let (short, short_id) = stack.api_key(&["--expires-in", "1h"]).await;
    let (_, unused_id) = stack.api_key(&["--expires-in", "90d"]).await;
    stack.start_api().await;
    let client = stack.client().with_key(&short);
    assert_eq!(client.get("/api/v1/tx").await.status, 200);
    let listed = async |id: &str| {
        let list = stack.cli(&["--json", "api-keys", "list"]).await;
        let list: Value = serde_json::from_str(&list.stdout).unwrap();
        list["items"].as_array().unwrap().iter().find(|key| key["keyId"] == id).cloned().unwrap()
    };
    eventually("the use is noted", async || {
        let key = listed(&short_id).await;
        if key["lastUsedAt"].is_string() { Ok(()) } else { Err(key) }
    })
    .await;
    assert_eq!(listed(&short_id).await["state"], "usable");
    // An hour later.
    stack
        .sql("UPDATE api_key SET expires_at = expires_at - INTERVAL '1 hour' WHERE last_used_at IS NOT NULL")
        .await;
    check_refused(&client.get("/api/v1/tx").await, 401, "unauthorized");
    assert_eq!(listed(&short_id).await["state"], "expired");
    let unused = listed(&unused_id).await;
    assert_eq!((&unused["state"], &unused["lastUsedAt"]), (&json!("usable"), &Value::Null));
    stack.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_is_shown_once_and_kept_nowhere() {
    let stack = stack().start().await;
    let made = stack.cli(&["api-keys", "create", "--name", "billing", "--submitter", &only(&stack, 0)]).await;
    assert_eq!(made.code, 0, "{made:?}");
    let key = made.stdout.trim().to_owned();
    let secret = key.rsplit('_').next().unwrap();
    assert!(!made.stderr.contains(secret), "{made:?}");
    let api = stack.api().set("log.level", "trace").start().await;
    let client = api.client().with_key(&key);
    assert_eq!(client.get("/api/v1/tx").await.status, 200);
    let list = stack.cli(&["api-keys", "list"]).await;
    assert!(list.stdout.contains("billing") && list.stdout.contains(&only(&stack, 0)), "{list:?}");
    let row: String =
        sqlx::query_scalar("SELECT to_jsonb(k)::TEXT FROM api_key k").fetch_one(stack.db()).await.unwrap();
    for kept in [list.stdout, list.stderr, row, api.log()] {
        assert!(!kept.contains(secret), "{kept}");
    }
    // The CLI sends it like any client.
    let shown = stack.cli(&["--api-key", &key, "submitters"]).await;
    assert_eq!(shown.code, 0, "{shown:?}");
    let wrong = stack.cli(&["--api-key", &key.replace("gpl_", "gpl_0"), "submitters"]).await;
    assert!(wrong.code != 0 && wrong.stderr.contains("unauthorized"), "{wrong:?}");
    for bad in [["revoke", "0123456789abcdef"], ["revoke", "nonsense"]] {
        assert_ne!(stack.cli(&[&["api-keys"], &bad[..]].concat()).await.code, 0, "{bad:?}");
    }
    stack.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_key_locks_an_api_that_runs_and_revoking_it_does_not_open_it_again() {
    let stack = stack().start().await;
    let api = stack.start_api().await;
    let (nobody, path) = (api.client(), "/api/v1/tx");
    assert_eq!(nobody.get(path).await.status, 200, "on loopback, without any key, it is open");
    let (key, id) = stack.api_key(&[]).await;
    assert_eq!(nobody.with_key(&key).get(path).await.status, 200, "a key works at once");
    eventually("the API is locked", async || {
        let seen = nobody.get(path).await;
        if seen.status == 401 { Ok(()) } else { Err(seen.status) }
    })
    .await;
    revoke(&stack, &id).await;
    check_refused(&nobody.get(path).await, 401, "unauthorized");
    let restarted = stack.start_api().await.client();
    check_refused(&restarted.get(path).await, 401, "unauthorized");
    // Unless the configuration trusts loopback.
    let trusting = stack.api().set("api.admin_on_loopback", true).start().await.client();
    assert_eq!(trusting.get(path).await.status, 200);
    check_refused(&trusting.with_key(&key).get(path).await, 401, "unauthorized");
    stack.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_api_that_others_can_reach_does_not_start_without_a_key() {
    let stack = stack().own_postgres().start().await;
    let reachable = || stack.api().set("api.bind", "0.0.0.0:0").without_waiting();
    let advice = "Create a key first (`gapless api-keys create";
    let refused = reachable().start().await;
    assert!(!refused.wait_exit().await.success());
    assert!(refused.log().contains(advice), "{}", refused.log());
    assert!(!refused.log().contains("the API is listening"), "{}", refused.log());

    // While the database is unreachable nothing is authenticated; once it is back, the process exits.
    stack.kill_postgres().await;
    let waiting = reachable().start().await;
    waiting.wait_for_log("the API is listening").await;
    let answer = waiting.client().get("/api/v1/tx").await;
    check_refused(&answer, 503, "database_unavailable");
    stack.restart_postgres().await;
    assert!(!waiting.wait_exit().await.success());
    assert!(waiting.log().contains(advice), "{}", waiting.log());

    let (key, _) = stack.api_key(&[]).await;
    let api = stack.api().set("api.bind", "0.0.0.0:0").start().await;
    check_refused(&api.client().get("/api/v1/tx").await, 401, "unauthorized");
    assert_eq!(api.client().with_key(&key).get("/api/v1/tx").await.status, 200);
    stack.finish().await;
}
