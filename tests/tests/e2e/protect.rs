//! Keys that are used outside: the lane stops, reports it, and continues after an operator's decision.

use gapless_testkit::{Address, H256, Mining, Stack, Submitter, TxId, TxState, eventually, payload};
use serde_json::Value;

use crate::stack;

/// Waits until the submitter has no owner: the lane has ended, and the next one reads everything anew.
async fn wait_released(stack: &Stack, submitter: &Submitter) {
    eventually("the lane ends", async || match stack.lease(submitter).await {
        Some(lease) if lease.owner.is_none() || !lease.live => Ok(()),
        lease => Err(lease),
    })
    .await;
}

/// New requests are rejected with the reason, and nothing is stored.
async fn assert_refuses(stack: &Stack, submitter: &Submitter) {
    let before = stack.rows(submitter).await.len();
    let refused = stack.post(submitter, "refused", &payload(Address::repeat_byte(2), 1)).await;
    assert_eq!((refused.status, refused.code()), (409, "submitter_protected"), "{}", refused.body);
    assert!(refused.body["detail"].as_str().is_some_and(|text| text.contains("outside")), "{}", refused.body);
    assert_eq!(stack.rows(submitter).await.len(), before);
}

/// An operator action, carried out. Returns its outcome.
async fn order(stack: &Stack, submitter: &Submitter, action: &str) -> String {
    let answer = stack.submitter_action(submitter, action, "the tests say so").await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer.body["outcome"].as_str().expect("an outcome").to_owned()
}

/// Outcomes in the audit log, oldest first.
async fn audit_log(stack: &Stack) -> Vec<(String, String)> {
    sqlx::query_as("SELECT action, outcome FROM audit_log WHERE applied_at IS NOT NULL ORDER BY audit_id")
        .fetch_all(stack.db())
        .await
        .unwrap()
}

/// Submitter events of all workers.
fn submitter_events(stack: &Stack, name: &str) -> Vec<Value> {
    let events = stack.services().into_iter().flat_map(|service| service.events());
    events.filter(|event| event["event"] == name).collect()
}

async fn wait_submitter_event(stack: &Stack, name: &str) {
    eventually(&format!("{name} is logged"), async || match submitter_events(stack, name).len() {
        0 => Err(()),
        _ => Ok(()),
    })
    .await;
}

/// An external transaction with the nonce of `tx_id` is mined while ours is in the mempool.
async fn lose_the_race(stack: &Stack, submitter: &Submitter, tx_id: TxId) -> H256 {
    let nonce = stack.wait_for(tx_id, TxState::Submitted).await.nonce;
    // A worker that resends meanwhile would have its other transactions mined in the same block.
    stack.workers().iter().for_each(|worker| worker.sigstop());
    let theirs = eventually("only the other transaction is in the mempool", async || {
        stack.anvil().drop_all().await;
        let theirs = submitter.spend_outside(stack.anvil(), nonce).await;
        // A send that was in progress when the worker stopped may arrive late.
        match stack.anvil().pending().await {
            1 => Ok(theirs),
            pending => Err(pending),
        }
    })
    .await;
    stack.anvil().mine(1).await;
    stack.workers().iter().for_each(|worker| worker.sigcont());
    theirs
}

/// Scenarios 5, 52. Used while the submitter was idle; detected before the next nonce is assigned.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_used_outside_while_idle_stops_the_lane_before_another_nonce() {
    let stack = stack().proxied().set("events.mode", "log").up().await;
    let (submitter, to) = (stack.submitter(0), Address::repeat_byte(0xcc));
    let first = stack.create(submitter, "first", &payload(to, 1)).await;
    stack.wait_for(first, TxState::Confirmed).await;
    wait_released(&stack, submitter).await;
    submitter.spend_outside(stack.anvil(), None).await;
    let second = stack.create(submitter, "second", &payload(to, 1)).await;
    let reason = stack.wait_protected(submitter).await;
    assert!(reason.contains("used outside"), "{reason}");
    assert_refuses(&stack, submitter).await;
    let row = stack.row(second).await;
    assert_eq!((row.state, row.nonce), (TxState::Queued, None), "nothing is skipped");
    let cursor = stack.cursor(submitter).await.unwrap();
    assert_eq!((cursor.state.as_str(), cursor.next), ("PROTECT", 1));
    assert_eq!(stack.proxy().sent().len(), 1, "nothing was sent since");
    wait_submitter_event(&stack, "submitter.protected").await;
    assert!(stack.workers()[0].log().contains("PROTECT: the lane stops"));
    assert!(stack.verify().await.sound, "external use is accepted while the submitter is in PROTECT");
    let seen = stack.client().admin_get(&format!("/api/v1/submitters/{}", submitter.text())).await;
    assert_eq!((seen.status, &seen.body["state"]), (200, &Value::from("PROTECT")), "{}", seen.body);

    // It is stored: the next worker reads it, and shows it at once.
    stack.workers()[0].stop_sigterm().await;
    let heir = stack.start_worker().await;
    eventually("the metric shows it", async || {
        match heir.metric("gapless_protected_submitters", &[]).await {
            1.0 => Ok(()),
            other => Err(other),
        }
    })
    .await;

    // A release does not help while the external use is real.
    let outcome = order(&stack, submitter, "release").await;
    assert!(outcome.contains("released"), "{outcome}");
    stack.wait_protected(submitter).await;
    assert_eq!(stack.row(second).await.nonce, None);
    let outcome = order(&stack, submitter, "adopt").await;
    assert!(outcome.contains("continues at 2"), "{outcome}");
    let row = stack.wait_for(second, TxState::Confirmed).await;
    assert_eq!(row.nonce, Some(2));
    assert_eq!(stack.anvil().balance(to).await, 2.into());
    let actions: Vec<String> = audit_log(&stack).await.into_iter().map(|(action, _)| action).collect();
    assert_eq!(actions, ["release", "adopt"]);
    stack.finish().await;
}

/// Scenarios 52, 53, 62. Ours was in the mempool, and the external transaction with the same nonce was mined.
#[tokio::test(flavor = "multi_thread")]
async fn an_intent_that_loses_its_nonce_to_an_external_transaction_has_its_effect_once_after_adoption() {
    let stack = stack()
        .proxied()
        .submitters(2)
        .mining(Mining::Manual)
        .set("resubmit.interval", "500ms")
        .set("events.mode", "log")
        .up()
        .await;
    let (submitter, other, to) = (stack.submitter(0), stack.submitter(1), Address::repeat_byte(0xcd));
    let displaced = stack.create(submitter, "displaced", &payload(to, 1)).await;
    let follower = stack.create(submitter, "follower", &payload(to, 10)).await;
    let theirs = lose_the_race(&stack, submitter, displaced).await;

    let reason = stack.wait_protected(submitter).await;
    assert!(reason.contains(&displaced.to_string()), "{reason}");
    assert!(reason.contains(&format!("{theirs:#x}")), "named by its hash: {reason}");
    let row = stack.wait_for(displaced, TxState::Protect).await;
    assert_eq!(row.nonce, Some(0));
    let row = stack.row(follower).await;
    assert_eq!((row.state, row.nonce), (TxState::Queued, None), "nothing is skipped");
    assert_refuses(&stack, submitter).await;
    wait_submitter_event(&stack, "submitter.protected").await;
    let events = submitter_events(&stack, "submitter.protected")[0]["data"].to_string();
    assert!(events.contains(&format!("{theirs:#x}")), "{events}");
    assert_eq!(stack.get(displaced).await["state"], "PROTECT");

    // Other submitters are not affected, and the lane stays stopped while blocks are mined.
    let unaffected = stack.create(other, "unaffected", &payload(to, 100)).await;
    stack.wait_for(unaffected, TxState::Submitted).await;
    let sent = stack.proxy().sent_by(submitter.address()).len();
    stack.anvil().mine(1).await;
    stack.wait_for(unaffected, TxState::Confirmed).await;
    assert_eq!(stack.row(displaced).await.state, TxState::Protect);
    assert_eq!(stack.proxy().sent_by(submitter.address()).len(), sent, "a protected lane sends nothing");

    let outcome = order(&stack, submitter, "adopt").await;
    assert!(outcome.contains("1 intents went back to the queue"), "{outcome}");
    assert_eq!(audit_log(&stack).await, [("adopt".to_owned(), outcome)]);
    stack.wait_for(displaced, TxState::Submitted).await;
    assert_eq!(stack.row(follower).await.state, TxState::Queued, "the displaced one is at the head");
    stack.anvil().mine(1).await;
    stack.wait_for(displaced, TxState::Confirmed).await;
    stack.wait_for(follower, TxState::Submitted).await;
    stack.anvil().mine(1).await;
    stack.wait_for(follower, TxState::Confirmed).await;
    assert_eq!((stack.row(displaced).await.nonce, stack.row(follower).await.nonce), (Some(1), Some(2)));
    let attempts = stack.attempts(displaced).await;
    let seen: Vec<(u64, bool)> = attempts.iter().map(|attempt| (attempt.nonce, attempt.displaced)).collect();
    assert_eq!(seen, [(0, true), (1, false)]);
    assert_eq!(stack.anvil().balance(to).await, 111.into(), "each of them once");
    stack.finish().await;
}

/// Scenarios 52, 53. The first of a window loses its nonce; the rest of the window keep theirs.
#[tokio::test(flavor = "multi_thread")]
async fn a_window_whose_first_nonce_was_taken_keeps_the_others() {
    let stack = stack().window(3).mining(Mining::Manual).set("resubmit.interval", "500ms").up().await;
    let (submitter, to) = (stack.submitter(0), Address::repeat_byte(0xce));
    let mut tx_ids = Vec::new();
    for (request, value) in [("a", 1), ("b", 10), ("c", 100)] {
        tx_ids.push(stack.create(submitter, request, &payload(to, value)).await);
    }
    stack.wait_pending(3).await;
    lose_the_race(&stack, submitter, tx_ids[0]).await;
    stack.wait_protected(submitter).await;
    stack.wait_for(tx_ids[0], TxState::Protect).await;
    let outcome = order(&stack, submitter, "adopt").await;
    assert!(outcome.contains("continues at 3, 1 intents"), "{outcome}");
    stack.wait_pending(3).await;
    stack.anvil().mine(1).await;
    stack.wait_confirmed(&tx_ids).await;
    let nonces: Vec<Option<u64>> = stack.rows(submitter).await.iter().map(|row| row.nonce).collect();
    assert_eq!(nonces, [3, 1, 2].map(Some), "only the displaced one has another nonce");
    assert_eq!(stack.anvil().balance(to).await, 111.into());
    stack.finish().await;
}

/// Scenario 53. A transaction that is not final cannot be adopted: its block may still be reorged.
#[tokio::test(flavor = "multi_thread")]
async fn an_external_transaction_that_is_not_final_is_waited_for() {
    let stack = stack().confirmations(3).mining(Mining::Manual).set("resubmit.interval", "300ms").up().await;
    let (submitter, to) = (stack.submitter(0), Address::repeat_byte(0xcf));
    let tx_id = stack.create(submitter, "raced", &payload(to, 1)).await;
    lose_the_race(&stack, submitter, tx_id).await;
    eventually("the node says that the nonce is used", async || {
        let row = stack.row(tx_id).await;
        if row.sub_state.as_deref() == Some("nonce_used") && row.submit_attempts >= 5 {
            Ok(())
        } else {
            Err(row)
        }
    })
    .await;
    assert_eq!(stack.cursor(submitter).await.unwrap().protect_reason, None, "one block is no proof");
    // The block of the external transaction is reorged: ours is mined.
    stack.anvil().reorg(1).await;
    stack.wait_pending(1).await;
    stack.anvil().mine(3).await;
    let row = stack.wait_for(tx_id, TxState::Confirmed).await;
    assert_eq!(row.nonce, Some(0));
    assert!(!stack.workers()[0].log().contains("PROTECT"));
    assert_eq!(stack.anvil().balance(to).await, 1.into());
    stack.finish().await;
}
