//! The history of a transaction: its attempts, their sends and responses, and its states.

use gapless_testkit::{Address, Fault, Mining, Stack, TxId, TxState, eventually, payload};
use serde_json::{Value, json};

use crate::stack;

const SEND: &str = "eth_sendRawTransaction";

async fn history(stack: &Stack, tx_id: TxId) -> Value {
    let answer = stack.client().get(&format!("/api/v1/tx/{tx_id}/attempts")).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.body
}

fn states(history: &Value) -> Vec<&str> {
    history["stateChanges"]
        .as_array()
        .unwrap()
        .iter()
        .map(|change| change["state"].as_str().unwrap())
        .collect()
}

/// Timestamps in order. They are of one clock, which is not changed here.
fn check_ascending(times: &[&Value]) {
    let times: Vec<&str> = times.iter().map(|time| time.as_str().unwrap()).collect();
    assert!(times.is_sorted(), "{times:?}");
}

fn number(text: &Value) -> u128 {
    text.as_str().unwrap().parse().unwrap()
}

/// Waits until the attempts match; returns the history.
async fn wait_history(stack: &Stack, tx_id: TxId, what: &str, is_so: impl Fn(&Value) -> bool) -> Value {
    eventually(what, async || {
        let seen = history(stack, tx_id).await;
        if is_so(&seen) { Ok(seen) } else { Err(seen) }
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn every_attempt_is_listed_with_its_sends_and_every_state_with_its_time() {
    let stack = stack()
        .mining(Mining::Manual)
        .confirmations(2)
        .set("resubmit.interval", "300ms")
        .set("gasbump.enabled", true)
        .set("gasbump.min_interval", "1s")
        .set("gasbump.max_attempts", 1)
        .up()
        .await;
    let tx_id = stack.create(stack.submitter(0), "bumped", &payload(Address::repeat_byte(0xf1), 1)).await;
    let rows = stack.wait_attempts(tx_id, 2).await;
    stack.wait_pooled(rows[1].tx_hash).await;
    let sent_again = |seen: &Value| {
        let sends = |index: usize| seen["attempts"][index]["sends"].as_u64().unwrap();
        sends(0) >= 2 && sends(1) >= 2
    };
    wait_history(&stack, tx_id, "both were sent several times", sent_again).await;
    stack.anvil().mine(1).await;
    stack.wait_for(tx_id, TxState::Tracking).await;
    stack.anvil().mine(1).await;
    stack.wait_for(tx_id, TxState::Confirmed).await;

    let seen = history(&stack, tx_id).await;
    assert_eq!(states(&seen), ["QUEUED", "IN_FLIGHT", "SUBMITTED", "TRACKING", "CONFIRMED"], "{seen}");
    let times: Vec<&Value> =
        seen["stateChanges"].as_array().unwrap().iter().map(|change| &change["at"]).collect();
    check_ascending(&times);
    let [first, second] = &seen["attempts"].as_array().unwrap()[..] else { panic!("{seen}") };
    for (attempt, row, kind, is_mined) in
        [(first, &rows[0], "ORIGINAL", false), (second, &rows[1], "REPLACEMENT", true)]
    {
        assert_eq!((&attempt["kind"], &attempt["mined"]), (&json!(kind), &json!(is_mined)), "{attempt}");
        assert_eq!(attempt["txHash"], json!(row.tx_hash));
        assert_eq!(attempt["gasLimit"], first["gasLimit"]);
        // The last send may have crossed with the block.
        assert!(
            ["accepted", "already_known", "nonce_too_low"]
                .contains(&attempt["lastAnswerClass"].as_str().unwrap()),
            "{attempt}"
        );
        check_ascending(&[&attempt["committedAt"], &attempt["firstSentAt"], &attempt["lastSentAt"]]);
    }
    for price in ["maxFeePerGas", "maxPriorityFeePerGas"] {
        assert!(number(&second[price]) * 10 >= number(&first[price]) * 11, "{price}: {seen}");
    }
    let sends: u64 = [first, second].iter().map(|attempt| attempt["sends"].as_u64().unwrap()).sum();
    let claimed = stack.get(tx_id).await["submitAttempts"].as_u64().unwrap();
    assert!(sends <= claimed, "every send was claimed: {claimed}, {seen}");

    // Nonces are visible to admins only, raw bytes to nobody.
    assert!(!seen.to_string().contains("nonce"), "{seen}");
    let path = format!("/api/v1/tx/{tx_id}/attempts");
    let admin = stack.client().admin_get(&path).await.body;
    assert_eq!(
        (&admin["attempts"][0]["nonce"], &admin["attempts"][1]["nonce"]),
        (&json!(0), &json!(0)),
        "{admin}"
    );
    assert!(!admin.to_string().contains("raw"), "{admin}");

    // The same with the CLI and the admin token.
    let id = tx_id.to_string();
    let text = stack.cli(&["status", &id, "--attempts"]).await;
    assert_eq!(text.code, 0, "{text:?}");
    for word in ["REPLACEMENT", "TRACKING", "txHash", first["txHash"].as_str().unwrap()] {
        assert!(text.stdout.contains(word), "{word}: {}", text.stdout);
    }
    assert!(text.stdout.starts_with("state "), "{}", text.stdout);
    let printed = stack.cli(&["--json", "status", &id, "--attempts"]).await;
    let printed: Value = serde_json::from_str(&printed.stdout).unwrap();
    assert_eq!((&printed["state"], &printed["attempts"]), (&json!("CONFIRMED"), &admin["attempts"]));
    assert_eq!(printed["stateChanges"], seen["stateChanges"]);
    stack.finish().await;
}

/// An intent that is final at the next write needs no separate write for its send.
#[tokio::test(flavor = "multi_thread")]
async fn a_quick_transaction_has_its_send_and_no_write_for_it() {
    let stack = stack().up().await;
    let mut unwritten = 0;
    for request in ["a", "b", "c", "d", "e"] {
        let tx_id = stack.create(stack.submitter(0), request, &payload(Address::repeat_byte(0xf2), 1)).await;
        stack.wait_for(tx_id, TxState::Confirmed).await;
        let seen = history(&stack, tx_id).await;
        let attempt = &seen["attempts"][0];
        assert_eq!(
            (&attempt["sends"], &attempt["lastAnswerClass"]),
            (&json!(1), &json!("accepted")),
            "{seen}"
        );
        assert_eq!((&attempt["mined"], &attempt["lastAnswer"]), (&json!(true), &Value::Null), "{seen}");
        let ended = &seen["stateChanges"].as_array().unwrap().last().unwrap()["at"];
        check_ascending(&[&attempt["committedAt"], &attempt["firstSentAt"], &attempt["lastSentAt"], ended]);
        let noted: bool =
            sqlx::query_scalar("SELECT first_sent_at IS NOT NULL FROM tx_attempt WHERE tx_id = $1")
                .bind(tx_id.0)
                .fetch_one(stack.db())
                .await
                .unwrap();
        if !noted {
            unwritten += 1;
            assert_eq!(states(&seen), ["QUEUED", "IN_FLIGHT", "CONFIRMED"], "{seen}");
        }
    }
    // On a busy machine one may take a second, and then has a separate write.
    assert!(unwritten > 0, "every send was written on its own");
    stack.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_of_a_node_are_kept_and_sends_without_an_answer_are_counted() {
    let stack = stack().proxied().mining(Mining::Manual).set("resubmit.interval", "200ms").up().await;
    stack.proxy().always(SEND, Fault::error("txpool is full: nonce 0 of 4096"));
    let tx_id = stack.create(stack.submitter(0), "full", &payload(Address::repeat_byte(0xf3), 1)).await;
    let refused = |seen: &Value| seen["attempts"][0]["sends"].as_u64() >= Some(3);
    let seen = wait_history(&stack, tx_id, "three rejections are logged", refused).await;
    let attempt = &seen["attempts"][0];
    assert_eq!(attempt["lastAnswerClass"], "pool_full", "{seen}");
    assert_eq!(attempt["lastAnswer"], "txpool is full: nonce … of …", "no nonce, not even a node's: {seen}");
    let response = stack.client().admin_get(&format!("/api/v1/tx/{tx_id}/attempts")).await.body;
    assert_eq!(response["attempts"][0]["lastAnswer"], "txpool is full: nonce 0 of 4096");

    // A missing response: the last one stays, and the send is counted.
    stack.proxy().clear();
    stack.proxy().always(SEND, Fault::Close);
    let calls = stack.proxy().calls(SEND);
    eventually("it was sent into the void", async || match stack.proxy().calls(SEND) {
        now if now >= calls + 3 => Ok(()),
        now => Err(now),
    })
    .await;
    let before = attempt["sends"].as_u64();
    let counted = |seen: &Value| seen["attempts"][0]["sends"].as_u64() >= before.map(|sends| sends + 2);
    let seen = wait_history(&stack, tx_id, "those count", counted).await;
    assert_eq!(seen["attempts"][0]["lastAnswerClass"], "pool_full", "{seen}");

    stack.proxy().clear();
    let taken = |seen: &Value| seen["attempts"][0]["lastAnswerClass"] == "accepted";
    let seen = wait_history(&stack, tx_id, "a node took it", taken).await;
    assert_eq!(seen["attempts"][0]["lastAnswer"], Value::Null, "{seen}");
    stack.anvil().mine(1).await;
    stack.wait_for(tx_id, TxState::Confirmed).await;
    stack.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reorg_is_in_the_history_and_the_history_is_bounded() {
    let stack = stack().mining(Mining::Manual).confirmations(5).set("resubmit.interval", "1s").up().await;
    let tx_id = stack.create(stack.submitter(0), "moved", &payload(Address::repeat_byte(0xf4), 1)).await;
    stack.wait_for(tx_id, TxState::Submitted).await;
    stack.anvil().mine(1).await;
    stack.wait_for(tx_id, TxState::Tracking).await;
    stack.anvil().reorg(1).await;
    stack.wait_for(tx_id, TxState::Submitted).await;
    stack.wait_pending(1).await;
    let seen = history(&stack, tx_id).await;
    assert_eq!(states(&seen), ["QUEUED", "IN_FLIGHT", "SUBMITTED", "TRACKING", "SUBMITTED"], "{seen}");

    const FULL: &str = "UPDATE managed_tx SET history =
        (SELECT jsonb_agg(jsonb_build_array('STUCK', clock_timestamp())) FROM generate_series(1, 64))";
    assert_eq!(stack.sql(FULL).await, 1);
    assert_eq!(
        stack
            .refusal("UPDATE managed_tx SET history = history || '[[\"STUCK\", \"2026-01-01T00:00:00Z\"]]'")
            .await,
        "23514"
    );
    stack.anvil().mine(1).await;
    stack.wait_for(tx_id, TxState::Tracking).await;
    let seen = history(&stack, tx_id).await;
    assert_eq!(
        (states(&seen).len(), *states(&seen).last().unwrap()),
        (68, "TRACKING"),
        "the oldest was removed"
    );
    stack.anvil().mine(4).await;
    stack.wait_for(tx_id, TxState::Confirmed).await;
    assert_eq!(*states(&history(&stack, tx_id).await).last().unwrap(), "CONFIRMED");
    stack.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn attempts_are_for_whoever_may_see_the_transaction() {
    let stack = stack().submitters(2).up().await;
    let tx_id = stack.create(stack.submitter(0), "own", &payload(Address::repeat_byte(0xf5), 1)).await;
    stack.wait_for(tx_id, TxState::Confirmed).await;
    let chain = stack.anvil().chain_id();
    let only = |index: usize| format!("{chain}:{}", stack.submitter(index).text());
    let (own, _) = stack.api_key(&["--scope", "tx:read", "--submitter", &only(0)]).await;
    let (other, _) =
        stack.api_key(&["--scope", "tx:read", "--scope", "admin", "--submitter", &only(1)]).await;
    let (operator, _) = stack.api_key(&["--scope", "tx:read", "--scope", "admin"]).await;
    let (writer, _) = stack.api_key(&["--scope", "tx:write"]).await;
    let path = format!("/api/v1/tx/{tx_id}/attempts");
    let ask = async |key: &str| stack.client().with_key(key).get(&path).await;
    let answer = ask(&own).await;
    assert_eq!((answer.status, &answer.body["attempts"][0]["nonce"]), (200, &Value::Null), "{answer:?}");
    let answer = ask(&operator).await;
    assert_eq!((answer.status, &answer.body["attempts"][0]["nonce"]), (200, &json!(0)), "{answer:?}");
    let answer = ask(&other).await;
    assert_eq!((answer.status, answer.code()), (404, "unknown_tx"), "{answer:?}");
    let answer = ask(&writer).await;
    assert_eq!((answer.status, answer.code()), (403, "scope_missing"), "{answer:?}");
    let answer = stack.client().with_key(&own).get("/api/v1/tx/7/attempts").await;
    assert_eq!((answer.status, answer.code()), (400, "invalid_request"), "{answer:?}");
    stack.finish().await;
}
