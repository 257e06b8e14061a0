//! Observability: events, metrics, logs, and secrets that must not appear in them.

use gapless_testkit::{Address, Fault, Mining, Service, Stack, TxId, TxState, eventually, payload};
use serde_json::{Value, json};

use crate::stack;

/// Always reverts.
const REVERTS: &str = "0x60006000fd";

/// One intent that is mined, dropped by a reorg, mined again and confirmed; one that would revert.
async fn an_eventful_life(stack: &Stack) -> (TxId, TxId) {
    let (submitter, to, wall) = (stack.submitter(0), Address::repeat_byte(0xe0), Address::repeat_byte(0xe1));
    stack.anvil().set_code(wall, REVERTS).await;
    let eventful = stack.create(submitter, "eventful", &payload(to, 1)).await;
    stack.wait_for(eventful, TxState::Submitted).await;
    stack.anvil().mine(1).await;
    stack.wait_for(eventful, TxState::Tracking).await;
    stack.anvil().reorg(1).await;
    stack.wait_pending(1).await;
    stack.anvil().mine(2).await;
    stack.wait_for(eventful, TxState::Confirmed).await;
    let doomed = stack.create(submitter, "doomed", &payload(wall, 1)).await;
    stack.wait_for(doomed, TxState::Failed).await;
    (eventful, doomed)
}

const EVENTFUL: [&str; 6] =
    ["tx.accepted", "tx.submitted", "tx.receipt_updated", "tx.reorged", "tx.receipt_updated", "tx.confirmed"];
/// Their number depends on the block rate; `finality` tests them.
const BLOCKS: &str = "tx.confirmations";
const DOOMED: [&str; 2] = ["tx.accepted", "tx.failed"];

/// `events.mode = log`: API and workers log each event once, after its commit, and never with a nonce.
#[tokio::test(flavor = "multi_thread")]
async fn every_event_is_a_line_of_the_log() {
    let stack = stack()
        .confirmations(2)
        .mining(Mining::Manual)
        .set("resubmit.interval", "500ms")
        .set("events.mode", "log")
        .up()
        .await;
    let (eventful, doomed) = an_eventful_life(&stack).await;
    let mut events = stack.wait_for_event(eventful, "tx.confirmed").await;
    events.retain(|event| event != BLOCKS);
    assert_eq!(events, EVENTFUL);
    assert_eq!(stack.wait_for_event(doomed, "tx.failed").await, DOOMED);
    for event in stack.services().iter().flat_map(Service::events) {
        assert_eq!(event["submitter"], stack.submitter(0).text(), "{event}");
        let data = event["data"].as_str().unwrap();
        assert!(!data.contains("nonce"), "{event}");
        assert_eq!(serde_json::from_str::<Value>(data).unwrap()["type"], event["event"], "{event}");
    }
    let count: i64 = sqlx::query_scalar("SELECT count(*) FROM v_event").fetch_one(stack.db()).await.unwrap();
    assert_eq!(count, 0, "events are not recorded");
    stack.finish().await;
}

/// `events.mode = mq_outbox`: recorded, in the order of their commits.
#[tokio::test(flavor = "multi_thread")]
async fn every_event_is_recorded_in_order() {
    let stack = stack()
        .confirmations(2)
        .mining(Mining::Manual)
        .set("resubmit.interval", "500ms")
        .set("events.mode", "mq_outbox")
        .up()
        .await;
    let (eventful, doomed) = an_eventful_life(&stack).await;
    let rows: Vec<(Option<sqlx::types::Uuid>, String, Value, String)> = sqlx::query_as(
        "SELECT tx_id, kind, data, submitter FROM v_event ORDER BY position NULLS LAST, event_id",
    )
    .fetch_all(stack.db())
    .await
    .unwrap();
    // The final event is in the same commit as the final state, so there is no wait.
    let of = |tx_id: TxId| -> Vec<&str> {
        let own = rows.iter().filter(|row| row.0 == Some(tx_id.0));
        own.map(|row| row.1.as_str()).filter(|kind| *kind != BLOCKS).collect()
    };
    assert_eq!((of(eventful), of(doomed)), (EVENTFUL.to_vec(), DOOMED.to_vec()));
    for (_, kind, data, submitter) in &rows {
        assert_eq!((&data["type"], submitter), (&json!(kind), &stack.submitter(0).text()));
        assert!(!data.to_string().contains("nonce"), "{data}");
    }
    let confirmed = rows.iter().find(|row| row.1 == "tx.confirmed").unwrap();
    let row = stack.row(eventful).await;
    assert_eq!(confirmed.2["txHash"], json!(row.tx_hash));
    assert_eq!(confirmed.2["blockNumber"], json!(row.block_number));
    stack.finish().await;
}

async fn wait_metric(service: &Service, name: &str, labels: &[&str], expected: f64) {
    eventually(&format!("{name}{labels:?} is {expected}"), async || {
        let seen = service.metric(name, labels).await;
        if seen == expected { Ok(()) } else { Err(seen) }
    })
    .await;
}

/// The documented names.
#[tokio::test(flavor = "multi_thread")]
async fn metrics_count_what_happened() {
    let stack = stack().proxied().start().await;
    let api = stack.start_api().await;
    let worker = stack.start_worker().await;
    let (submitter, to) = (stack.submitter(0), Address::repeat_byte(0xe2));
    stack.proxy().next(1, "eth_sendRawTransaction", Fault::error("txpool is full"));
    let first = stack.create(submitter, "first", &payload(to, 1)).await;
    let second = stack.create(submitter, "second", &payload(to, 1)).await;
    assert_eq!(stack.post(submitter, "first", &payload(to, 1)).await.status, 200);
    assert_eq!(stack.post(submitter, "first", &payload(to, 2)).await.status, 409);
    stack.wait_confirmed(&[first, second]).await;

    for (result, expected) in [("created", 2.0), ("existing", 1.0), ("request_id_conflict", 1.0)] {
        wait_metric(&api, "gapless_tx_create_total", &[&format!("result=\"{result}\"")], expected).await;
    }
    assert_eq!(worker.metric("gapless_lease_acquire_total", &["result=\"insert\""]).await, 1.0);
    assert_eq!(worker.metric("gapless_lease_fenced_total", &[]).await, 0.0);
    wait_metric(&worker, "gapless_tx_submit_total", &["result=\"accepted\""], 2.0).await;
    wait_metric(&worker, "gapless_tx_submit_total", &["result=\"pool_full\""], 1.0).await;
    let [first_sends, again] = ["send=\"first\"", "send=\"again\""];
    assert_eq!(worker.metric("gapless_tx_submit_total", &[first_sends]).await, 2.0, "one of each intent");
    assert_eq!(worker.metric("gapless_tx_submit_total", &[again, "result=\"accepted\""]).await, 1.0);
    assert!(worker.metric("gapless_receipt_check_total", &["result=\"found\""]).await >= 2.0);
    assert!(
        worker.metric("gapless_writer_batch_size_count", &[]).await >= 4.0,
        "two commits each, at the least"
    );
    assert!(
        worker.metric("gapless_rpc_request_seconds_count", &["method=\"eth_sendRawTransaction\""]).await
            >= 3.0
    );

    // Waiting intents are counted, also by a worker that has just started.
    assert_eq!(stack.submitter_action(submitter, "pause", "to count").await.status, 200);
    let waiting = [
        stack.create(submitter, "third", &payload(to, 1)).await,
        stack.create(submitter, "fourth", &payload(to, 1)).await,
    ];
    let another = stack.start_worker().await;
    wait_metric(&another, "gapless_queue_depth", &["chain=\"31337\""], 2.0).await;
    assert!(another.metric("gapless_queue_oldest_age_seconds", &["chain=\"31337\""]).await > 0.0);
    assert_eq!(another.metric("gapless_protected_submitters", &["chain=\"31337\""]).await, 0.0);
    assert_eq!(stack.submitter_action(submitter, "resume", "counted").await.status, 200);
    stack.wait_confirmed(&waiting).await;
    stack.finish().await;
}

/// Otherwise a rate or an alert misses the first increment.
#[tokio::test(flavor = "multi_thread")]
async fn counters_exist_before_their_first_increment() {
    let stack = stack().start().await;
    let page = stack.start_worker().await.page("/metrics").await;
    for (name, label) in [
        ("gapless_tx_submit_total", "result=\"fatal\""),
        ("gapless_tx_submit_total", "result=\"no_answer\""),
        ("gapless_lease_fenced_total", "operation=\"protect\""),
        ("gapless_mempool_diagnoses_total", "verdict=\"probably_lost\""),
        ("gapless_policy_refused_total", "rule=\"max_value_per_day\""),
        ("gapless_tx_final_total", "result=\"cancelled\""),
    ] {
        let found =
            page.lines().any(|line| line.starts_with(name) && line.contains(label) && line.ends_with(" 0"));
        assert!(found, "{name} {label} in\n{page}");
    }
    stack.finish().await;
}

/// Metrics required by the source documents besides creates and sends: lease claims, receipt lookups, results of
/// finality checks and of stuck transactions, and open transactions.
#[tokio::test(flavor = "multi_thread")]
async fn metrics_follow_an_intent_from_its_lease_to_its_end() {
    const CHAIN: &str = "chain=\"31337\"";
    let stack = stack()
        .short_lease()
        .confirmations(2)
        .mining(Mining::Manual)
        .set("resubmit.interval", "500ms")
        .set("stuck.after", "1s")
        .start()
        .await;
    stack.start_api().await;
    let first = stack.start_worker().await;
    let tx_id = stack.create(stack.submitter(0), "slow", &payload(Address::repeat_byte(0xe5), 1)).await;
    stack.wait_for(tx_id, TxState::Stuck).await;
    wait_metric(&first, "gapless_stuck_decisions_total", &["action=\"wait\""], 1.0).await;
    wait_metric(&first, "gapless_lease_acquire_total", &["result=\"insert\""], 1.0).await;
    for (name, labels) in [
        ("gapless_lease_acquire_total", ["result=\"renew\"", ""]),
        ("gapless_tx_submit_total", ["send=\"again\"", "result=\"already_known\""]),
        ("gapless_receipt_check_total", ["place=\"lane\"", "result=\"missing\""]),
    ] {
        eventually(&format!("{name} {labels:?} is counted"), async || {
            match first.metric(name, &labels).await {
                0.0 => Err(()),
                _ => Ok(()),
            }
        })
        .await;
    }
    assert_eq!(first.metric("gapless_tx_final_total", &[]).await, 0.0);

    first.kill9();
    let second = stack.start_worker().await;
    wait_metric(&second, "gapless_lease_acquire_total", &["result=\"takeover\""], 1.0).await;
    wait_metric(&second, "gapless_unmined_transactions", &[CHAIN], 1.0).await;
    assert!(second.metric("gapless_unmined_oldest_age_seconds", &[CHAIN]).await >= 1.0);
    assert_eq!(second.metric("gapless_tracking_transactions", &[CHAIN]).await, 0.0);

    stack.anvil().mine(1).await;
    stack.wait_for(tx_id, TxState::Tracking).await;
    let third = stack.start_worker().await;
    wait_metric(&third, "gapless_tracking_transactions", &[CHAIN], 1.0).await;
    assert!(third.metric("gapless_tracking_oldest_age_seconds", &[CHAIN]).await >= 1.0);
    assert_eq!(third.metric("gapless_unmined_transactions", &[CHAIN]).await, 0.0);
    third.stop_sigterm().await;
    stack.anvil().mine(1).await;
    stack.wait_for(tx_id, TxState::Confirmed).await;
    wait_metric(&second, "gapless_finality_check_total", &["result=\"final\""], 1.0).await;
    wait_metric(&second, "gapless_tx_final_total", &["result=\"confirmed\""], 1.0).await;
    // By the watcher, or by the lane if it looks up its hashes just after the block.
    assert!(second.metric("gapless_receipt_check_total", &["result=\"found\""]).await >= 1.0);
    stack.finish().await;
}

/// A node without receipts is counted for every caller: for the watcher, and for a lane that reads its rows.
#[tokio::test(flavor = "multi_thread")]
async fn looks_for_receipts_that_fail_are_counted_wherever_they_come_from() {
    let stack = stack().short_lease().proxied().mining(Mining::Manual).start().await;
    stack.start_api().await;
    let first = stack.start_worker().await;
    let tx_id = stack.create(stack.submitter(0), "unseen", &payload(Address::repeat_byte(0xe6), 1)).await;
    stack.wait_for(tx_id, TxState::Submitted).await;
    for method in ["eth_getTransactionReceipt", "eth_getBlockReceipts"] {
        stack.proxy().always(method, Fault::error("not today"));
    }
    let wait_error = async |worker: &Service, place: &str| {
        let place = format!("place=\"{place}\"");
        eventually(&format!("an error is counted, {place}"), async || {
            match worker.metric("gapless_receipt_check_total", &[&place, "result=\"error\""]).await {
                0.0 => Err(()),
                _ => Ok(()),
            }
        })
        .await;
    };
    stack.anvil().mine(1).await;
    wait_error(&first, "block").await;
    first.kill9();
    let second = stack.start_worker().await;
    wait_error(&second, "lane").await;
    stack.proxy().clear();
    stack.wait_for(tx_id, TxState::Confirmed).await;
    stack.finish().await;
}

/// Writes of the cursor alone are logged, and every alarm has its submitter.
#[tokio::test(flavor = "multi_thread")]
async fn every_critical_write_names_submitter_worker_and_fencing_token() {
    let stack = stack().set("worker.id", "the-one").up().await;
    let submitter = stack.submitter(0);
    let to = Address::repeat_byte(0xe7);
    let before = stack.create(submitter, "before", &payload(to, 1)).await;
    stack.wait_for(before, TxState::Confirmed).await;
    submitter.spend_outside(stack.anvil(), None).await;
    let waiting = stack.create(submitter, "after", &payload(to, 1)).await;
    stack.wait_protected(submitter).await;
    assert_eq!(stack.submitter_action(submitter, "adopt", "it was me").await.status, 200);
    stack.wait_for(waiting, TxState::Confirmed).await;

    let worker = stack.workers().remove(0);
    worker.wait_for_log(&format!("\"tx.id\":\"{waiting}\"")).await;
    let lines = worker.log_lines();
    let of = |message: &str, operation: Option<&str>| -> Vec<&Value> {
        let is_it = |line: &&Value| line["message"].as_str().is_some_and(|text| text.starts_with(message));
        let named = |line: &&Value| operation.is_none_or(|operation| line["operation"] == operation);
        lines.iter().filter(is_it).filter(named).collect()
    };
    for (message, operation) in [
        ("PROTECT", None),
        ("committed", Some("protect")),
        ("committed", Some("release")),
        ("committed", Some("prepare")),
        ("committed", Some("final")),
    ] {
        let found = of(message, operation);
        assert!(!found.is_empty(), "{message} {operation:?}");
        for line in found {
            assert_eq!(
                (&line["submitter"], &line["worker.id"]),
                (&json!(submitter.text()), &json!("the-one")),
                "{line}"
            );
            assert!(line["fencing_token"].as_u64().is_some_and(|token| token >= 1), "{line}");
        }
    }
    stack.finish().await;
}

/// A trace extends from the client's header to the last commit.
#[tokio::test(flavor = "multi_thread")]
async fn a_trace_leads_from_the_request_to_every_commit() {
    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
    let stack = stack().set("worker.id", "the-one").up().await;
    let (submitter, client) = (stack.submitter(0), stack.client());
    let body = json!({
        "submitter": submitter.text(),
        "requestId": "traced",
        "payload": payload(Address::repeat_byte(0xe3), 1),
    });
    let request = client
        .request(reqwest::Method::POST, "/api/v1/tx")
        .header("traceparent", format!("00-{TRACE}-00f067aa0ba902b7-01"))
        .json(&body);
    let answer = client.ask(request).await;
    stack.record_accepted(&answer);
    assert_eq!(answer.status, 202, "{}", answer.body);
    let tx_id: TxId = answer.tx_id().parse().unwrap();
    stack.wait_for(tx_id, TxState::Confirmed).await;

    let api = stack.services().into_iter().find(|service| service.name().starts_with("api")).unwrap();
    let accepted = api.wait_for_log("\"accepted\"").await;
    assert!(accepted.contains(TRACE) && accepted.contains(&tx_id.to_string()), "{accepted}");
    let worker = stack.workers().remove(0);
    worker.wait_for_log("\"CONFIRMED\"").await;
    let commits: Vec<Value> =
        worker.log_lines().into_iter().filter(|line| line["message"] == "committed").collect();
    assert!(commits.len() >= 2, "assigned, and final: {commits:#?}");
    let token = stack.lease(submitter).await.unwrap().fencing_token;
    for line in commits {
        assert_eq!(
            (&line["submitter"], &line["tx.id"]),
            (&json!(submitter.text()), &json!(tx_id.to_string()))
        );
        assert_eq!(line["worker.id"], "the-one");
        assert!(line["fencing_token"].as_u64().is_some_and(|seen| (1..=token).contains(&seen)), "{line}");
        assert!(line["trace"].as_str().is_some_and(|trace| trace.contains(TRACE)), "{line}");
    }
    stack.finish().await;
}

/// Everything that the product and its libraries can log is logged; secrets are not.
#[tokio::test(flavor = "multi_thread")]
async fn no_log_holds_a_key_or_signed_bytes_or_a_token_or_the_path_of_a_url() {
    let stack = stack().proxied().set("log.level", "trace").set("resubmit.interval", "500ms").start().await;
    stack.start_api().await;
    let url = format!("{}/v3/the-providers-key?and=the-query", stack.proxy().url());
    let worker = stack.worker().rpc(&[&url]).start().await;
    let (submitter, to) = (stack.submitter(0), Address::repeat_byte(0xe4));
    let proxy = stack.proxy();
    for fault in [
        Fault::Html("<html>no</html>".into()),
        Fault::error("words that nobody knows"),
        Fault::Close,
        Fault::DropAnswer,
    ] {
        proxy.next(1, "eth_sendRawTransaction", fault);
    }
    let mut tx_ids = Vec::new();
    for request in ["one", "two"] {
        tx_ids.push(stack.create(submitter, request, &payload(to, 1)).await);
    }
    stack.wait_confirmed(&tx_ids).await;
    assert_eq!(proxy.rules_left(), 0);
    assert_eq!(stack.submitter_action(submitter, "pause", "to use the token").await.status, 200);
    worker.stop_sigterm().await;

    let mut secrets = vec![
        submitter.key_hex(),
        "an-operator-of-the-tests".to_owned(),
        "the-providers-key".to_owned(),
        "the-query".to_owned(),
    ];
    // The signature and the part before it; without 0x, and short enough to be found in any wrapping.
    secrets.extend(proxy.sent().iter().map(|raw| raw[raw.len() - 64..].to_owned()));
    secrets.extend(proxy.sent().iter().map(|raw| raw[2..66].to_owned()));
    for service in stack.services() {
        let log = service.log().to_lowercase();
        assert!(log.len() > 1_000, "{} logged next to nothing", service.name());
        for secret in &secrets {
            let line = log.lines().find(|line| line.contains(&secret.to_lowercase()));
            assert_eq!(line, None, "{} shows {secret}", service.name());
        }
    }
    stack.finish().await;
}
