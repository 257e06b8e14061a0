//! Shared keys: externally used nonces are skipped, and our intents have their effect exactly once.

use gapless_testkit::{
    Address, Fault, Mining, Node, Stack, StackBuilder, Submitter, TxId, TxState, eventually, payload,
};
use serde_json::{Value, json};

use crate::stack;

fn shared_stack() -> StackBuilder {
    stack().set("nonce.strict.enabled", false).set("resubmit.interval", "500ms").set("events.mode", "log")
}

/// Recipient of external transactions.
fn theirs() -> Address {
    Address::repeat_byte(0xee)
}

/// Recorded external nonces, oldest first: first, last, cause.
async fn external_nonces(stack: &Stack, submitter: &Submitter) -> Vec<(i64, i64, String)> {
    sqlx::query_as(
        "SELECT first_nonce, last_nonce, cause FROM external_nonce WHERE submitter = $1 ORDER BY first_nonce, cause",
    )
    .bind(submitter.bytes())
    .fetch_all(stack.db())
    .await
    .unwrap()
}

pub(crate) async fn shown(stack: &Stack, submitter: &Submitter) -> Value {
    stack.client().get(&format!("/api/v1/submitters/{}", submitter.text())).await.body
}

async fn send(stack: &Stack, request_id: &str, to: Address) -> TxId {
    stack.create(stack.submitter(0), request_id, &payload(to, 1)).await
}

/// Sends external transactions at the node's next nonce, until `count` are accepted and the last is mined.
async fn others_send(submitter: &Submitter, node: &Node, transactions: u64) {
    let mut last = 0;
    for _ in 0..transactions {
        last = eventually("the node takes a transaction of others", async || {
            let nonce = node.count(submitter.address(), "pending").await;
            let (_, raw) = submitter.sign_transfer(node.chain_id(), nonce, theirs(), 1);
            // Whichever is faster gets the nonce; the other retries.
            node.try_rpc("eth_sendRawTransaction", json!([raw])).await.map(|_| nonce)
        })
        .await;
    }
    eventually("the transactions of others are mined", async || {
        let count = node.count(submitter.address(), "latest").await;
        if count > last { Ok(()) } else { Err(count) }
    })
    .await;
}

/// An external transaction with the nonce of `tx_id` is mined while ours is in the mempool.
async fn lose_the_race(stack: &Stack, tx_id: TxId) {
    let nonce = stack.wait_for(tx_id, TxState::Submitted).await.nonce;
    stack.anvil().drop_all().await;
    stack.submitter(0).spend_outside(stack.anvil(), nonce).await;
    stack.anvil().mine(1).await;
}

/// Waits until the node has reported often enough that the nonce is used.
async fn wait_nonce_used(stack: &Stack, tx_id: TxId, sends: u32) {
    eventually("the node says that the nonce is used", async || match stack.row(tx_id).await {
        row if row.sub_state.as_deref() == Some("nonce_used") && row.submit_attempts >= sends => Ok(()),
        row => Err(row),
    })
    .await;
}

fn never_stopped(stack: &Stack) -> bool {
    stack.services().iter().all(|service| !service.log().contains("PROTECT: the lane stops"))
}

#[tokio::test(flavor = "multi_thread")]
async fn ours_and_others_take_turns_on_one_key_and_every_intent_happens_once() {
    let stack = shared_stack().start().await;
    let (submitter, to) = (stack.submitter(0), Address::repeat_byte(0x80));
    submitter.make_history(stack.anvil(), 2).await;
    stack.start_api().await;
    let worker = stack.start_worker().await;
    let first = send(&stack, "first", to).await;
    let row = stack.wait_for(first, TxState::Confirmed).await;
    assert_eq!(row.nonce, Some(2), "old rows do not matter");
    others_send(submitter, stack.anvil(), 3).await;
    let second = send(&stack, "second", to).await;
    let row = stack.wait_for(second, TxState::Confirmed).await;
    assert_eq!(row.nonce, Some(6));
    assert_eq!(external_nonces(&stack, submitter).await, [(3, 5, "STEPPED_OVER".to_owned())]);
    assert_eq!(worker.metric("gapless_external_nonces_total", &["how=\"stepped_over\""]).await, 3.0);
    let event =
        worker.events().into_iter().find(|event| event["event"] == "nonce.external").expect("an event");
    assert!(!event.to_string().contains("\"nonce\""), "events name no nonce: {event}");
    assert_eq!(shown(&stack, submitter).await["shared"], true);

    // Now both concurrently.
    let ours = async {
        let mut tx_ids = Vec::new();
        for number in 0..20 {
            tx_ids.push(send(&stack, &format!("mixed-{number}"), to).await);
        }
        stack.wait_confirmed(&tx_ids).await;
    };
    tokio::join!(ours, others_send(submitter, stack.anvil(), 12));
    stack.wait_all_terminal().await;
    assert_eq!(stack.anvil().balance(to).await, 22.into(), "each of ours once");
    assert_eq!(stack.anvil().balance(theirs()).await, 17.into(), "and each of theirs");
    assert!(never_stopped(&stack));
    stack.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_intent_that_loses_its_nonce_to_others_makes_way_when_that_is_final() {
    let stack = shared_stack().confirmations(3).mining(Mining::Manual).up().await;
    let (submitter, to) = (stack.submitter(0), Address::repeat_byte(0x81));
    let displaced = send(&stack, "displaced", to).await;
    let follower = send(&stack, "follower", to).await;
    lose_the_race(&stack, displaced).await;
    wait_nonce_used(&stack, displaced, 4).await;
    let row = stack.row(displaced).await;
    assert_eq!(row.nonce, Some(0), "one block is no proof");
    assert_eq!(stack.attempts(displaced).await.len(), 1);
    stack.anvil().mine(2).await;
    stack.wait_attempts(displaced, 2).await;
    stack.wait_pending(1).await;
    assert_eq!(stack.row(follower).await.state, TxState::Queued, "the displaced one is at the head");
    stack.anvil().mine(3).await;
    stack.wait_for(displaced, TxState::Confirmed).await;
    stack.wait_pending(1).await;
    stack.anvil().mine(3).await;
    stack.wait_for(follower, TxState::Confirmed).await;
    assert_eq!((stack.row(displaced).await.nonce, stack.row(follower).await.nonce), (Some(1), Some(2)));
    let attempts = stack.attempts(displaced).await;
    let seen: Vec<(u64, bool)> = attempts.iter().map(|attempt| (attempt.nonce, attempt.displaced)).collect();
    assert_eq!(seen, [(0, true), (1, false)]);
    assert_eq!(external_nonces(&stack, submitter).await, [(0, 0, "DISPLACED".to_owned())]);
    assert_eq!(stack.anvil().balance(to).await, 2.into());
    assert!(never_stopped(&stack));
    stack.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn others_who_are_reorged_away_before_they_are_final_take_nothing() {
    let stack = shared_stack().confirmations(3).mining(Mining::Manual).up().await;
    let to = Address::repeat_byte(0x82);
    let tx_id = send(&stack, "raced", to).await;
    lose_the_race(&stack, tx_id).await;
    wait_nonce_used(&stack, tx_id, 4).await;
    stack.anvil().reorg(1).await;
    stack.wait_pending(1).await;
    stack.anvil().mine(3).await;
    let row = stack.wait_for(tx_id, TxState::Confirmed).await;
    assert_eq!(row.nonce, Some(0));
    assert_eq!(stack.attempts(tx_id).await.len(), 1, "nothing was signed anew");
    assert_eq!(stack.anvil().balance(to).await, 1.into());
    stack.finish().await;
}

/// A node that counts our nonce as used, and shows neither our transaction nor an external one.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_hides_our_own_transaction_makes_nothing_happen_twice() {
    let stack = shared_stack().proxied().up().await;
    let (proxy, to) = (stack.proxy(), Address::repeat_byte(0x83));
    let block = stack.anvil().rpc("eth_getBlockByNumber", json!(["latest", false])).await;
    proxy.always("eth_getBlockByNumber", Fault::Result(block));
    proxy.always("eth_getTransactionReceipt", Fault::Result(Value::Null));
    proxy.always("eth_getTransactionByHash", Fault::Result(Value::Null));
    let tx_id = send(&stack, "hidden", to).await;
    wait_nonce_used(&stack, tx_id, 6).await;
    assert_eq!((stack.row(tx_id).await.nonce, stack.attempts(tx_id).await.len()), (Some(0), 1));
    proxy.clear();
    stack.wait_for(tx_id, TxState::Confirmed).await;
    assert_eq!(stack.attempts(tx_id).await.len(), 1, "nothing was signed anew");
    assert_eq!(stack.anvil().balance(to).await, 1.into());
    stack.finish().await;
}

/// Ours at 0 and 1, external at 2, ours at 3. Returns the heights at which the chain counted one and two of them.
async fn mixed_history(stack: &Stack, to: Address) -> (u64, u64) {
    let first = send(stack, "a", to).await;
    let at_one = stack.wait_for(first, TxState::Confirmed).await.block_number.unwrap();
    let second = send(stack, "b", to).await;
    let at_two = stack.wait_for(second, TxState::Confirmed).await.block_number.unwrap();
    others_send(stack.submitter(0), stack.anvil(), 1).await;
    let third = send(stack, "c", to).await;
    assert_eq!(stack.wait_for(third, TxState::Confirmed).await.nonce, Some(3));
    (at_one, at_two)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lagging_node_that_counts_less_leads_to_no_second_use_of_a_nonce() {
    let stack = shared_stack().proxied().up().await;
    let to = Address::repeat_byte(0x84);
    let (at_one, _) = mixed_history(&stack, to).await;
    stack.proxy().freeze_at(at_one);
    let tx_id = send(&stack, "d", to).await;
    eventually("it has a nonce", async || stack.row(tx_id).await.nonce.ok_or("none")).await;
    assert_eq!(stack.row(tx_id).await.nonce, Some(4), "locally known nonces count as well");
    stack.proxy().thaw();
    stack.wait_for(tx_id, TxState::Confirmed).await;
    assert_eq!(stack.anvil().balance(to).await, 4.into());
    stack.finish().await;
}

/// A cursor never decreases: one absurd response must not move it.
#[tokio::test(flavor = "multi_thread")]
async fn a_count_far_beyond_the_sequence_is_not_believed_at_one_look() {
    let stack = shared_stack().proxied().up().await;
    let to = Address::repeat_byte(0x8b);
    let first = send(&stack, "first", to).await;
    stack.wait_for(first, TxState::Confirmed).await;
    stack.proxy().next(2, "eth_getTransactionCount", Fault::Result(json!("0xf4240")));
    let tx_id = send(&stack, "second", to).await;
    assert_eq!(stack.wait_for(tx_id, TxState::Confirmed).await.nonce, Some(1));
    assert_eq!(stack.proxy().rules_left(), 0, "the fault was used");
    assert!(external_nonces(&stack, stack.submitter(0)).await.is_empty());
    stack.finish().await;
}

/// The external nonce looks as if it had become free. The assumption is wrong, and costs only time.
#[tokio::test(flavor = "multi_thread")]
async fn a_lagging_node_that_hides_the_transaction_of_others_leads_to_no_second_effect() {
    let stack = shared_stack().proxied().up().await;
    let to = Address::repeat_byte(0x85);
    let (_, at_two) = mixed_history(&stack, to).await;
    stack.proxy().freeze_at(at_two);
    let tx_id = send(&stack, "d", to).await;
    eventually("it takes what looks vacant", async || match stack.row(tx_id).await.nonce {
        Some(2) => Ok(()),
        other => Err(other),
    })
    .await;
    stack.proxy().thaw();
    let row = stack.wait_for(tx_id, TxState::Confirmed).await;
    assert_eq!(row.nonce, Some(4));
    assert_eq!(stack.anvil().balance(to).await, 4.into());
    stack.finish().await;
}

/// An external transaction is pending, is skipped, and is never mined.
#[tokio::test(flavor = "multi_thread")]
async fn a_nonce_that_others_vacate_is_filled_by_the_next_intent() {
    let stack = shared_stack().mining(Mining::Manual).start().await;
    let (submitter, to) = (stack.submitter(0), Address::repeat_byte(0x86));
    submitter.spend_outside(stack.anvil(), Some(0)).await;
    stack.wait_pending(1).await;
    stack.start_api().await;
    stack.start_worker().await;
    let behind = send(&stack, "behind", to).await;
    assert_eq!(
        stack.wait_for(behind, TxState::Submitted).await.nonce,
        Some(1),
        "their transaction is not replaced"
    );
    stack.anvil().drop_all().await;
    stack.anvil().mine(1).await;
    let filling = send(&stack, "filling", to).await;
    let row = stack.wait_for(filling, TxState::Submitted).await;
    assert_eq!(row.nonce, Some(0), "beyond the window of one, because the window waits for it");
    stack.wait_pending(2).await;
    stack.anvil().mine(1).await;
    stack.wait_confirmed(&[behind, filling]).await;
    assert_eq!(stack.anvil().balance(to).await, 2.into());
    assert_eq!(stack.anvil().balance(theirs()).await, 0.into());
    stack.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_killed_at_any_step_while_others_use_the_key_repeats_nothing() {
    let stack = shared_stack().short_lease().start().await;
    let (submitter, to) = (stack.submitter(0), Address::repeat_byte(0x87));
    stack.start_api().await;
    let points = ["signed", "committed", "sent", "final"];
    // Announces the submitter.
    stack.start_worker().await.stop_sigterm().await;
    for point in points {
        let tx_id = send(&stack, point, to).await;
        let victim = stack.worker().failpoint(point).start().await;
        victim.wait_exit().await;
        // At "committed" this uses the nonce that was assigned to ours.
        others_send(submitter, stack.anvil(), 1).await;
        let heir = stack.start_worker().await;
        stack.wait_for(tx_id, TxState::Confirmed).await;
        heir.kill9();
    }
    assert!(external_nonces(&stack, submitter).await.iter().any(|(.., cause)| cause == "DISPLACED"));
    assert_eq!(stack.anvil().balance(to).await, points.len().into(), "each once");
    assert!(never_stopped(&stack));
    stack.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_submitter_that_is_named_is_shared() {
    let stack = stack().submitters(2).set("resubmit.interval", "500ms").start().await;
    let (shared, strict, to) = (stack.submitter(0), stack.submitter(1), Address::repeat_byte(0x88));
    for submitter in [shared, strict] {
        submitter.make_history(stack.anvil(), 1).await;
    }
    stack.start_api().await;
    let key = format!("submitter.{}.nonce.strict.enabled", shared.text());
    stack.worker().set(&key, false).start().await;
    let goes_on = stack.create(shared, "goes-on", &payload(to, 1)).await;
    let waits = stack.create(strict, "waits", &payload(to, 1)).await;
    assert_eq!(stack.wait_for(goes_on, TxState::Confirmed).await.nonce, Some(1));
    let reason = stack.wait_protected(strict).await;
    assert!(reason.contains("history"), "{reason}");
    assert_eq!(stack.row(waits).await.nonce, None);
    assert_eq!(shown(&stack, shared).await["shared"], true);
    assert_eq!(shown(&stack, strict).await["shared"], false);
    stack.finish().await;
}

/// From strict to shared and back, with nonces skipped in between.
#[tokio::test(flavor = "multi_thread")]
async fn a_submitter_becomes_shared_and_strict_again_and_its_record_stays_right() {
    let stack = stack().mining(Mining::Manual).set("resubmit.interval", "500ms").up().await;
    let (submitter, to) = (stack.submitter(0), Address::repeat_byte(0x89));
    let raced = send(&stack, "raced", to).await;
    lose_the_race(&stack, raced).await;
    stack.wait_protected(submitter).await;
    stack.wait_for(raced, TxState::Protect).await;
    stack.workers()[0].stop_sigterm().await;

    let worker = stack.worker().set("nonce.strict.enabled", false).start().await;
    worker.wait_for_log("shared-key setting of the submitter changed").await;
    stack.wait_attempts(raced, 2).await;
    stack.wait_pending(1).await;
    stack.anvil().mine(1).await;
    assert_eq!(stack.wait_for(raced, TxState::Confirmed).await.nonce, Some(1));
    let released: (String, String) =
        sqlx::query_as("SELECT action, actor FROM audit_log").fetch_one(stack.db()).await.unwrap();
    assert_eq!(released, ("release".to_owned(), "worker".to_owned()));
    assert_eq!(external_nonces(&stack, submitter).await, [(0, 0, "DISPLACED".to_owned())]);
    worker.stop_sigterm().await;

    stack.start_worker().await;
    assert_eq!(shown(&stack, submitter).await["shared"], false);
    let next = send(&stack, "next", to).await;
    stack.wait_pending(1).await;
    stack.anvil().mine(1).await;
    assert_eq!(stack.wait_for(next, TxState::Confirmed).await.nonce, Some(2), "from the present cursor on");
    assert!(stack.verify().await.sound, "external nonces stay recorded");
    eventually("the lane ends", async || match stack.lease(submitter).await {
        Some(lease) if lease.owner.is_none() || !lease.live => Ok(()),
        lease => Err(lease),
    })
    .await;
    submitter.spend_outside(stack.anvil(), None).await;
    stack.anvil().mine(1).await;
    let stopped = send(&stack, "stopped", to).await;
    stack.wait_protected(submitter).await;
    assert_eq!(stack.row(stopped).await.nonce, None, "strict again: nothing is skipped");
    assert_eq!(stack.anvil().balance(to).await, 2.into());
    stack.finish().await;
}

/// The control: strict is the default, the database enforces it, and the audit detects violations.
#[tokio::test(flavor = "multi_thread")]
async fn a_strict_submitter_cannot_skip_a_nonce_and_the_audit_would_notice() {
    let stack = stack().up().await;
    let (submitter, to) = (stack.submitter(0), Address::repeat_byte(0x8a));
    let tx_id = send(&stack, "strict", to).await;
    stack.wait_for(tx_id, TxState::Confirmed).await;
    stack.workers()[0].stop_sigterm().await;
    let skip = "UPDATE submitter_nonce_cursor SET next_nonce = next_nonce + 1";
    assert_eq!(stack.refusal(skip).await, "GL005");
    let note = "INSERT INTO external_nonce (chain_id, submitter, first_nonce, last_nonce, cause, fencing_token)
         SELECT chain_id, submitter, next_nonce, next_nonce, 'STEPPED_OVER', fencing_token FROM submitter_nonce_cursor";
    assert_eq!(stack.refusal(note).await, "GL005");
    // A program that skips nonces, and a database without the constraint.
    stack.sql("ALTER TABLE submitter_nonce_cursor DISABLE TRIGGER submitter_nonce_cursor_guard").await;
    assert_eq!(stack.sql(skip).await, 1);
    submitter.spend_outside(stack.anvil(), Some(1)).await;
    let verdict = stack.verify().await;
    assert!(
        verdict.broken().iter().any(|name| name.contains("has a signed transaction")),
        "{:#}",
        verdict.report
    );
    // Shared or not: a nonce that is not recorded was skipped silently.
    assert_eq!(stack.sql("UPDATE submitter SET shared = TRUE").await, 1);
    stack.finish_unsound("has a signed transaction").await;
}

/// A count that may be an hour old is fetched once. Later external use is detected when a node rejects the nonce, and
/// nothing is lost. With the default the same nonce is skipped at once.
#[tokio::test(flavor = "multi_thread")]
async fn how_old_a_count_may_be_decides_whether_others_are_stepped_over_or_collided_with() {
    for (age, cause) in [("0s", "stepped_over"), ("1h", "displaced")] {
        let stack = shared_stack().set("nonce.count_max_age", age).set("worker.linger", "10m").up().await;
        let (submitter, to) = (stack.submitter(0), Address::repeat_byte(0x67));
        let first = send(&stack, "first", to).await;
        stack.wait_for(first, TxState::Confirmed).await;
        others_send(submitter, stack.anvil(), 1).await;
        let second = send(&stack, "second", to).await;
        assert_eq!(stack.wait_for(second, TxState::Confirmed).await.nonce, Some(2), "{age}");
        let left = external_nonces(&stack, submitter).await;
        assert_eq!(left.len(), 1, "{left:?}");
        assert_eq!((left[0].0, left[0].1, left[0].2.to_lowercase()), (1, 1, cause.to_owned()), "{age}");
        // After a collision the count is fetched again, regardless of its age.
        others_send(submitter, stack.anvil(), 1).await;
        let third = send(&stack, "third", to).await;
        stack.wait_for(third, TxState::Confirmed).await;
        assert_eq!(stack.anvil().balance(to).await, 3.into(), "one effect each");
        stack.finish().await;
    }
}

/// A former owner recorded that a nonce is used. A shared key is not suspected for that: the lane ends when nothing
/// is left to do.
#[tokio::test(flavor = "multi_thread")]
async fn a_lane_of_a_shared_key_ends_although_a_nonce_was_said_to_be_used() {
    let stack = stack().mining(Mining::Manual).set("nonce.strict.enabled", false).up().await;
    let submitter = stack.submitter(0);
    let tx_id = stack.create(submitter, "ours", &payload(Address::repeat_byte(0x5e), 1)).await;
    stack.wait_for(tx_id, TxState::Submitted).await;
    stack.workers()[0].kill9();
    stack.sql("UPDATE managed_tx SET sub_state = 'nonce_used'").await;
    stack.start_worker().await;
    stack.wait_owned(submitter, None).await;
    eventually("it is mined", async || {
        stack.anvil().mine(1).await;
        let row = stack.row(tx_id).await;
        if row.state == TxState::Confirmed { Ok(()) } else { Err(row) }
    })
    .await;
    eventually("the lease is given back", async || match stack.lease(submitter).await {
        Some(lease) if lease.owner.is_none() => Ok(()),
        lease => Err(lease),
    })
    .await;
    stack.finish().await;
}
