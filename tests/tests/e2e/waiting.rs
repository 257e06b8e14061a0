//! Why a transaction waits, since when, and that the reason ends with its cause. Scenario 118.

use gapless_config::Secret;
use gapless_signer::keystore;
use gapless_store::{Contract, Migrations, Store, Timeouts};
use gapless_testkit::{Address, Mining, Node, Stack, Submitter, TxId, TxState, U256, eventually, payload};
use serde_json::{Value, json};
use sqlx::Connection;

use crate::evidence::mined_and_hidden;
use crate::stack;

fn target() -> Address {
    Address::repeat_byte(0xc8)
}

/// 10^30 wei.
fn unaffordable() -> Value {
    json!({ "to": format!("{:#x}", target()), "value": U256::exp10(30).to_string() })
}

/// Waits until the transaction waits for `reason`. Returns `waiting`.
async fn wait_reason(stack: &Stack, tx_id: TxId, reason: &str) -> Value {
    eventually(&format!("{tx_id} waits for {reason}"), async || {
        let seen = stack.get(tx_id).await;
        if seen["waiting"]["reason"] == reason { Ok(seen["waiting"].clone()) } else { Err(seen) }
    })
    .await
}

fn says(waiting: &Value, text: &str) {
    let message = waiting["message"].as_str().unwrap_or_default();
    assert!(message.contains(text) && message.ends_with('.'), "no `{text}` in {waiting}");
}

async fn seen(stack: &Stack, submitter: &Submitter, chain: usize) -> Value {
    let chain_id = stack.chain(chain).chain_id();
    let seen =
        stack.client().get(&format!("/api/v1/submitters/{}?chainId={chain_id}", submitter.text())).await;
    assert_eq!(seen.status, 200, "{}", seen.body);
    seen.body
}

/// Waits until the submitter has this state. Returns it.
async fn wait_state(stack: &Stack, submitter: &Submitter, state: &str) -> Value {
    let chain_id = stack.chain(0).chain_id();
    let path = format!("/api/v1/submitters/{}?chainId={chain_id}", submitter.text());
    eventually(&format!("the submitter is {state}"), async || {
        let seen = stack.client().get(&path).await.body;
        if seen["state"] == state { Ok(seen) } else { Err(seen) }
    })
    .await
}

/// A final transaction waits for nothing.
async fn is_over(stack: &Stack, tx_id: TxId) {
    let seen = stack.get(tx_id).await;
    assert!(seen["waiting"].is_null() && seen["pendingRequests"].is_null(), "{seen}");
}

/// Scenario 118. The reason is in all responses about one transaction, in the list of submitters and in the CLI. Pausing
/// again changes the text, not the time.
#[tokio::test(flavor = "multi_thread")]
async fn a_paused_submitter_is_the_reason_until_it_is_resumed() {
    let stack = stack().up().await;
    let (client, submitter) = (stack.client(), stack.submitter(0));
    assert_eq!(stack.submitter_action(submitter, "pause", "the auditors are here").await.status, 200);
    let tx_id = stack.create(submitter, "waits", &payload(target(), 1)).await;
    let waiting = wait_reason(&stack, tx_id, "paused").await;
    says(&waiting, "the auditors are here");
    says(&waiting, "resume");

    let by_request = format!("/api/v1/tx/by-request?submitter={}&requestId=waits", submitter.text());
    assert_eq!(client.get(&by_request).await.body["waiting"], waiting);
    let listed = client.get("/api/v1/tx").await.body;
    assert!(
        listed["items"][0]["txId"] == tx_id.to_string() && listed["items"][0]["waiting"].is_null(),
        "{listed}"
    );
    let of_submitter = seen(&stack, submitter, 0).await;
    assert_eq!(
        (&of_submitter["state"], &of_submitter["waiting"]["reason"]),
        (&json!("PAUSED"), &json!("paused"))
    );
    assert_eq!(client.get("/api/v1/submitters").await.body["items"][0]["waiting"], of_submitter["waiting"]);
    // The pause is older than the transaction.
    let time = |waiting: &Value| waiting["since"].as_str().unwrap().to_owned();
    assert!(time(&of_submitter["waiting"]) < time(&waiting), "{of_submitter} {waiting}");

    assert_eq!(stack.submitter_action(submitter, "pause", "still here").await.status, 200);
    let again = seen(&stack, submitter, 0).await["waiting"].clone();
    assert_eq!(again["since"], of_submitter["waiting"]["since"]);
    says(&again, "still here");
    assert_eq!(stack.get(tx_id).await["waiting"]["since"], waiting["since"]);

    let status = stack.cli(&["status", &tx_id.to_string()]).await.stdout;
    let lines: Vec<&str> = status.lines().collect();
    assert!(lines[0].starts_with("state ") && lines[1].starts_with("waiting "), "{status}");
    assert!(lines[1].contains("paused, since 2") && lines[1].contains("still here"), "{status}");
    let table = stack.cli(&["submitters"]).await.stdout;
    assert!(table.contains("WAITING") && table.contains("paused, "), "{table}");

    assert_eq!(stack.submitter_action(submitter, "resume", "they left").await.status, 200);
    stack.wait_confirmed(&[tx_id]).await;
    is_over(&stack, tx_id).await;
    let idle = seen(&stack, submitter, 0).await;
    assert!(idle["state"] == "ACTIVE" && idle["waiting"].is_null(), "{idle}");
    stack.finish().await;
}

/// Scenario 118. Clients see no nonce.
#[tokio::test(flavor = "multi_thread")]
async fn protect_is_the_reason_until_an_operator_adopts() {
    let stack = stack().start().await;
    let submitter = stack.submitter(0);
    submitter.make_history(stack.anvil(), 3).await;
    stack.start_api().await;
    stack.start_worker().await;
    let tx_id = stack.create(submitter, "waits", &payload(target(), 1)).await;
    let waiting = wait_reason(&stack, tx_id, "protect").await;
    says(&waiting, "adopt");
    assert!(!waiting["message"].as_str().unwrap().contains(|c: char| c.is_ascii_digit()), "{waiting}");
    // Another owner, and another write of the cursor: the time stays.
    stack.sql("UPDATE submitter_nonce_cursor SET updated_at = clock_timestamp()").await;
    stack.workers()[0].kill9();
    stack.start_worker().await;
    stack.wait_owned(submitter, None).await;
    assert_eq!(wait_reason(&stack, tx_id, "protect").await, waiting);
    let of_submitter = seen(&stack, submitter, 0).await;
    assert_eq!(
        (&of_submitter["state"], &of_submitter["waiting"]["reason"]),
        (&json!("PROTECT"), &json!("protect"))
    );
    assert_eq!(stack.submitter_action(submitter, "adopt", "our own history").await.status, 200);
    stack.wait_confirmed(&[tx_id]).await;
    is_over(&stack, tx_id).await;
    let is_over: bool = sqlx::query_scalar("SELECT protect_since IS NULL FROM submitter_nonce_cursor")
        .fetch_one(stack.db())
        .await
        .unwrap();
    assert!(is_over);
    stack.finish().await;
}

/// Scenario 118.
#[tokio::test(flavor = "multi_thread")]
async fn a_suspicion_is_the_reason_until_the_transaction_is_found() {
    let (stack, first) = mined_and_hidden().await;
    let submitter = stack.submitter(0);
    stack.start_worker().await;
    let next = stack.create(submitter, "next", &payload(target(), 1)).await;
    let waiting = wait_reason(&stack, next, "suspect").await;
    says(&waiting, "not found yet");
    assert_eq!(wait_reason(&stack, next, "suspect").await["since"], waiting["since"]);
    let of_submitter = wait_state(&stack, submitter, "SUSPECT").await;
    assert_eq!(of_submitter["waiting"]["reason"], "suspect", "{of_submitter}");
    stack.proxy().show_blocks();
    stack.wait_confirmed(&[first, next]).await;
    is_over(&stack, next).await;
    stack.finish().await;
}

/// Scenario 118. Those behind a blocked transaction have its reason.
#[tokio::test(flavor = "multi_thread")]
async fn funds_are_the_reason_of_the_head_and_of_all_behind_it() {
    let stack = stack().up().await;
    let submitter = stack.submitter(0);
    let head = stack.create(submitter, "head", &unaffordable()).await;
    let behind = stack.create(submitter, "behind", &payload(target(), 1)).await;
    let waiting = wait_reason(&stack, head, "funds").await;
    says(&waiting, "Fund its address");
    let later = wait_reason(&stack, behind, "funds").await;
    says(&later, "The first transaction in the queue waits for funds");
    let of_submitter = wait_state(&stack, submitter, "BLOCKED").await;
    assert_eq!(of_submitter["waiting"]["since"], of_submitter["blockedSince"], "{of_submitter}");
    // The lane tries again every second; the reason and its time stay.
    let worker = &stack.workers()[0];
    eventually("the lane has tried again", async || {
        let now = worker.metric("gapless_lane_blocked_seconds", &["reason=\"funds\""]).await;
        if now > 2.0 { Ok(()) } else { Err(now) }
    })
    .await;
    assert_eq!(stack.get(head).await["waiting"]["since"], waiting["since"]);
    stack.anvil().set_balance(submitter.address(), U256::exp10(31)).await;
    stack.wait_confirmed(&[head, behind]).await;
    is_over(&stack, behind).await;
    stack.finish().await;
}

/// Scenario 118. A chain of another id: also a submitter without transactions is not ACTIVE. `/readyz` has counts only.
#[tokio::test(flavor = "multi_thread")]
async fn a_halted_chain_is_the_reason_until_the_right_one_is_back() {
    let stack = stack().proxied().up().await;
    let submitter = stack.submitter(0);
    let first = stack.create(submitter, "first", &payload(target(), 1)).await;
    stack.wait_confirmed(&[first]).await;
    let other = Node::start(99, Mining::Instant, &stack.dir().join("other.log")).await;
    stack.proxy().point_at(other.url());
    let idle = wait_state(&stack, submitter, "HALTED").await;
    says(&idle["waiting"], "the node serves chain 99");
    let tx_id = stack.create(submitter, "waits", &payload(target(), 1)).await;
    let waiting = wait_reason(&stack, tx_id, "chain_halted").await;
    says(&waiting, "rpc.urls");

    let worker = stack.workers().remove(0);
    let ready = eventually("/readyz counts it", async || match worker.readiness().await {
        (503, body) => Ok(body),
        other => Err(other),
    })
    .await;
    assert_eq!(ready, json!({ "ready": false, "reasons": { "chain_halted": 1 } }));
    worker.wait_for_log("the node serves chain 99").await;

    // The lane stores its own reason meanwhile; the chain stays the reason, since the same time.
    eventually("the lane has noticed", async || {
        let row = stack.row(tx_id).await;
        if row.sub_state.as_deref() == Some("waiting_node") { Ok(()) } else { Err(row) }
    })
    .await;
    let later = stack.get(tx_id).await["waiting"].clone();
    assert_eq!((&later["reason"], &later["since"]), (&json!("chain_halted"), &waiting["since"]));
    // A worker that replaces it knows since when, if the first one has not left.
    let successor = stack.start_worker().await;
    successor.wait_for_log("chain halted").await;
    worker.kill9();
    stack.wait_owned(submitter, stack.lease(submitter).await.unwrap().owner.as_deref()).await;
    eventually("the first worker counts as gone", async || {
        let live: i64 =
            sqlx::query_scalar("SELECT count(*) FROM worker WHERE expires_at > clock_timestamp()")
                .fetch_one(stack.db())
                .await
                .unwrap();
        if live == 1 { Ok(()) } else { Err(live) }
    })
    .await;
    assert_eq!(wait_state(&stack, submitter, "HALTED").await["waiting"]["since"], idle["waiting"]["since"]);

    stack.proxy().point_at(stack.anvil().url());
    stack.wait_confirmed(&[tx_id]).await;
    is_over(&stack, tx_id).await;
    let active = wait_state(&stack, submitter, "ACTIVE").await;
    assert!(active["waiting"].is_null(), "{active}");
    stack.finish().await;
}

/// Scenario 118. Stopped, and killed: then it takes until its lease is over.
#[tokio::test(flavor = "multi_thread")]
async fn a_missing_worker_is_the_reason_until_one_is_started() {
    let stack = stack().short_lease().up().await;
    let submitter = stack.submitter(0);
    stack.workers()[0].stop_sigterm().await;
    let stopped = stack.create(submitter, "stopped", &payload(target(), 1)).await;
    let waiting = wait_reason(&stack, stopped, "no_worker").await;
    says(&waiting, "No worker is running");
    assert_eq!(waiting["since"], stack.get(stopped).await["createdAt"]);
    let of_submitter = wait_state(&stack, submitter, "UNSERVED").await;
    assert_eq!(of_submitter["waiting"]["reason"], "no_worker");
    let table = stack.cli(&["submitters"]).await.stdout;
    assert!(table.contains("UNSERVED") && table.contains("No worker is running"), "{table}");

    let worker = stack.start_worker().await;
    stack.wait_confirmed(&[stopped]).await;
    wait_state(&stack, submitter, "ACTIVE").await;
    worker.kill9();
    let killed = stack.create(submitter, "killed", &payload(target(), 1)).await;
    let waiting = wait_reason(&stack, killed, "no_worker").await;
    assert_eq!(stack.get(killed).await["waiting"], waiting);
    stack.start_worker().await;
    stack.wait_confirmed(&[killed]).await;
    is_over(&stack, killed).await;
    stack.finish().await;
}

/// Scenario 118. A worker runs and serves another chain, or has another key.
#[tokio::test(flavor = "multi_thread")]
async fn workers_of_another_chain_or_without_the_key_are_told_apart() {
    let stack = stack().chains(2).submitters(2).up().await;
    let (submitter, chain) = (stack.submitter(0), stack.chain(0).chain_id());
    stack.workers()[0].stop_sigterm().await;
    let body = json!({ "chainId": chain, "submitter": submitter.text(), "requestId": "waits", "payload": payload(target(), 1) });
    let answer = stack.client().post_raw(&body).await;
    stack.record_accepted(&answer);
    let tx_id: TxId = answer.tx_id().parse().unwrap();
    says(&wait_reason(&stack, tx_id, "no_worker").await, "No worker is running");

    let only_the_other =
        json!({ "c1": { "id": stack.chain(1).chain_id(), "rpc": { "urls": [stack.chain(1).url()] } } });
    let elsewhere = stack.worker().set("chain", only_the_other).start().await;
    eventually("the other worker is seen", async || {
        let waiting = stack.get(tx_id).await["waiting"].clone();
        let message = waiting["message"].as_str().unwrap_or_default();
        if message.contains(&format!("none serves chain {chain}")) { Ok(()) } else { Err(waiting) }
    })
    .await;
    wait_state(&stack, submitter, "UNSERVED").await;
    assert_eq!(seen(&stack, submitter, 1).await["state"], "ACTIVE", "the control: the chain it serves");

    let keyless = stack.worker().only_keys(&[1]).start().await;
    let waiting = eventually("nobody takes it", async || {
        let waiting = stack.get(tx_id).await["waiting"].clone();
        let message = waiting["message"].as_str().unwrap_or_default();
        if message.contains("No worker has taken this submitter") { Ok(waiting) } else { Err(waiting) }
    })
    .await;
    assert_eq!(waiting["reason"], "no_worker");
    assert_eq!(seen(&stack, submitter, 0).await["state"], "UNSERVED");
    assert_eq!(seen(&stack, stack.submitter(1), 0).await["state"], "ACTIVE", "the control: it has that key");
    let complete = stack.start_worker().await;
    stack.wait_confirmed(&[tx_id]).await;
    is_over(&stack, tx_id).await;
    for worker in [elsewhere, keyless, complete] {
        worker.stop_sigterm().await;
    }
    stack.finish().await;
}

/// Scenario 118. A worker of an earlier version does not state which chains it serves: nothing is concluded.
#[tokio::test(flavor = "multi_thread")]
async fn what_an_older_worker_does_not_state_is_no_evidence() {
    let stack = stack().up().await;
    let submitter = stack.submitter(0);
    stack.workers()[0].stop_sigterm().await;
    stack.sql("INSERT INTO worker (worker_id, signer_set, max_leases) VALUES ('older', 'unknown', 1)").await;
    let tx_id = stack.create(submitter, "waits", &payload(target(), 1)).await;
    let unknown = stack.get(tx_id).await;
    assert_eq!(unknown["waiting"]["reason"], "next_step", "{unknown}");
    assert_eq!(seen(&stack, submitter, 0).await["state"], "ACTIVE");
    // The control: once it has been silent for long, it is gone.
    stack.sql("UPDATE worker SET seen_at = clock_timestamp() - INTERVAL '2 hours'").await;
    wait_reason(&stack, tx_id, "no_worker").await;
    stack.start_worker().await;
    stack.wait_confirmed(&[tx_id]).await;
    stack.finish().await;
}

/// Scenario 118. The normal course: a start time, earlier transactions, a block, confirmations.
#[tokio::test(flavor = "multi_thread")]
async fn the_normal_course_has_reasons_too() {
    let stack = stack().mining(Mining::Manual).confirmations(3).set("resubmit.interval", "300ms").up().await;
    let submitter = stack.submitter(0);
    let start = stack.database_time_in("1 hour").await;
    let mut later = payload(target(), 1);
    later["notBefore"] = json!(start);
    let scheduled = stack.create(submitter, "scheduled", &later).await;
    says(&wait_reason(&stack, scheduled, "not_before").await, "notBefore");
    assert_eq!(seen(&stack, submitter, 0).await["waiting"]["reason"], "not_before");

    let first = stack.create(submitter, "first", &payload(target(), 1)).await;
    let sent = wait_reason(&stack, first, "block").await;
    let second = stack.create(submitter, "second", &payload(target(), 1)).await;
    let third = stack.create(submitter, "third", &payload(target(), 1)).await;
    says(&wait_reason(&stack, second, "earlier_transactions").await, "1 earlier transaction is sent");
    let waiting = wait_reason(&stack, third, "earlier_transactions").await;
    says(&waiting, "1 transaction is before it in the queue, and 1 sent");
    assert_eq!(waiting["since"], stack.get(third).await["createdAt"]);
    eventually("it was sent again", async || {
        let row = stack.row(first).await;
        if row.submit_attempts > 2 { Ok(()) } else { Err(row) }
    })
    .await;
    assert_eq!(stack.get(first).await["waiting"], sent, "a resend changes nothing");

    stack.anvil().mine(1).await;
    let mined = wait_reason(&stack, first, "confirmations").await;
    stack.anvil().mine(1).await;
    eventually("the second block counts", async || {
        let seen = stack.get(first).await;
        if seen["confirmations"] == 2 { Ok(seen["waiting"].clone()) } else { Err(seen) }
    })
    .await;
    assert_eq!(stack.get(first).await["waiting"], mined);
    assert_eq!(seen(&stack, submitter, 0).await["state"], "ACTIVE");
    let cancelled = stack.client().post_to(&format!("/api/v1/tx/{scheduled}/cancel"), &json!({})).await;
    assert_eq!(cancelled.status, 200, "{}", cancelled.body);
    eventually("all are confirmed", async || {
        stack.anvil().mine(1).await;
        let rows = stack.rows(submitter).await;
        if rows.iter().all(|row| row.state.is_terminal()) { Ok(()) } else { Err(rows) }
    })
    .await;
    is_over(&stack, scheduled).await;
    stack.finish().await;
}

/// Scenario 118. A cancellation and a speed-up that no worker has executed yet; and a cancellation that was sent.
#[tokio::test(flavor = "multi_thread")]
async fn accepted_requests_are_visible_until_they_are_executed() {
    let stack = stack().mining(Mining::Manual).up().await;
    let submitter = stack.submitter(0);
    let sent = stack.create(submitter, "sent", &payload(target(), 1)).await;
    stack.wait_for(sent, TxState::Submitted).await;
    let queued = stack.create(submitter, "queued", &payload(target(), 1)).await;
    assert!(stack.get(sent).await["pendingRequests"].is_null());
    stack.workers()[0].stop_sigterm().await;

    let client = stack.client();
    let cancel = client.post_to(&format!("/api/v1/tx/{queued}/cancel?wait=0s"), &json!({})).await;
    assert_eq!(cancel.status, 202, "{}", cancel.body);
    let body = json!({ "reason": "faster" });
    let faster = client.admin_post(&format!("/api/v1/tx/{sent}/speed-up?wait=0s"), &body).await;
    assert_eq!(faster.status, 202, "{}", faster.body);
    for (tx_id, kind) in [(queued, "cancel"), (sent, "speed_up")] {
        let pending = stack.get(tx_id).await["pendingRequests"].clone();
        assert_eq!((pending.as_array().unwrap().len(), &pending[0]["kind"]), (1, &json!(kind)), "{pending}");
        assert!(pending[0]["since"].is_string(), "{pending}");
        assert_eq!(stack.get(tx_id).await["pendingRequests"], pending);
        let status = stack.cli(&["status", &tx_id.to_string()]).await.stdout;
        assert!(status.contains(&format!("{kind} since 2")), "{status}");
    }

    stack.start_worker().await;
    stack.wait_for(queued, TxState::Cancelled).await;
    is_over(&stack, queued).await;
    stack.wait_attempts(sent, 2).await;
    assert!(stack.get(sent).await["pendingRequests"].is_null(), "it is executed");
    let cancel = client.post_to(&format!("/api/v1/tx/{sent}/cancel"), &json!({})).await;
    assert_eq!(cancel.status, 200, "{}", cancel.body);
    says(&wait_reason(&stack, sent, "block").await, "whichever is mined first");
    stack.wait_attempts(sent, 3).await;
    stack.anvil().mine(1).await;
    stack.wait_all_terminal().await;
    stack.finish().await;
}

/// Scenario 118. Without a key: counts by reason, no address, file, node or text of an error.
#[tokio::test(flavor = "multi_thread")]
async fn readiness_names_reasons_and_counts_only() {
    let stack = stack().own_postgres().proxied().start().await;
    let keys = stack.dir().join("keys");
    keystore::create(&keys, &Secret::new("another password")).unwrap();
    let api = stack.start_api().await;
    let worker =
        stack.worker().set("signer.keystore", keys.to_str().unwrap()).set("signer.password_env", "KEYS");
    let worker = worker.env("KEYS", "secret").start().await;
    let ready = eventually("the worker is ready", async || match worker.readiness().await {
        (200, body) => Ok(body),
        other => Err(other),
    })
    .await;
    assert_eq!(ready, json!({ "ready": true, "reasons": { "signer": 1 } }));
    assert_eq!(api.readiness().await, (200, json!({ "status": "ok" })));

    let other = Node::start(99, Mining::Instant, &stack.dir().join("other.log")).await;
    stack.proxy().point_at(other.url());
    wait_state(&stack, stack.submitter(0), "HALTED").await;
    stack.kill_postgres().await;
    let body = eventually("the worker lacks its database", async || match worker.readiness().await {
        (503, body) if body["reasons"]["database"] == 1 => Ok(body),
        other => Err(other),
    })
    .await;
    let counts = json!({ "chain_halted": 1, "database": 1, "signer": 1 });
    assert_eq!(body, json!({ "ready": false, "reasons": counts }));
    let body = eventually("the API lacks its database", async || match api.readiness().await {
        (503, body) => Ok(body),
        other => Err(other),
    })
    .await;
    assert_eq!((&body["missing"], &body["detail"]), (&json!(["database"]), &json!("not ready: database")));
    // The details are in the log.
    for service in [&api, &worker] {
        service.wait_for_log("not ready").await;
    }
    stack.proxy().point_at(stack.anvil().url());
    stack.restart_postgres().await;
    wait_state(&stack, stack.submitter(0), "ACTIVE").await;
    stack.finish().await;
}

/// Scenario 118. A database of the previous schema: what was paused or in PROTECT keeps its time.
#[tokio::test(flavor = "multi_thread")]
async fn the_times_of_paused_and_protected_submitters_survive_the_migration() {
    let stack = stack().start().await;
    let url = stack.empty_database().await;
    let store = Store::new(&Secret::new(url.as_str()), "test", 1, Timeouts::default()).unwrap();
    store.migrate_with(&Migrations::embedded().up_to(1), Contract::Later).await.unwrap();
    let mut connection = sqlx::PgConnection::connect(&url).await.unwrap();
    let rows = "
        INSERT INTO submitter (chain_id, submitter, signer, status, updated_at)
        VALUES (1, decode(repeat('01', 20), 'hex'), 'raw_key', 'PAUSED', '2026-01-01Z'),
               (1, decode(repeat('02', 20), 'hex'), 'raw_key', 'ACTIVE', '2026-01-02Z');
        INSERT INTO submitter_nonce_cursor
            (chain_id, submitter, start_nonce, next_nonce, max_in_flight, fencing_token, in_flight_state, protect_reason, updated_at)
        VALUES (1, decode(repeat('01', 20), 'hex'), 0, 0, 1, 1, 'IDLE', NULL, '2026-01-03Z'),
               (1, decode(repeat('02', 20), 'hex'), 0, 0, 1, 1, 'PROTECT', 'used', '2026-01-04Z')";
    sqlx::raw_sql(rows).execute(&mut connection).await.unwrap();
    store.migrate(Contract::Later).await.unwrap();
    let times: Vec<(Option<bool>, Option<bool>)> = sqlx::query_as(
        "SELECT status_since = '2026-01-01Z', protect_since = '2026-01-04Z'
         FROM submitter JOIN submitter_nonce_cursor USING (chain_id, submitter)
         ORDER BY submitter",
    )
    .fetch_all(&mut connection)
    .await
    .unwrap();
    assert_eq!(times, [(Some(true), None), (None, Some(true))]);
    connection.close().await.unwrap();
    stack.finish().await;
}
