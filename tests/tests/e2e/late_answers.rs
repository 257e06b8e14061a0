//! Reserving clients that are dropped, killed, overtaken or late. Their nonces are consumed, and late answers are
//! rejected.

use std::sync::Arc;
use std::time::Duration;

use gapless_config::Secret;
use gapless_domain::Via;
use gapless_domain::{Answer, Payload, RequestedTx, ReservationState};
use gapless_embed::{EmbedError, NonceContext, WithNonceError};
use gapless_store::{AnswerOutcome, NewReservation, ReservationOutcome, ReservationOwner, Store, Timeouts};
use gapless_testkit::{Address, Fault, Mining, Stack, TxId, TxState, U256, eventually, payload};
use serde_json::json;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use crate::stack;
use crate::with_nonce::{failed_by_placeholder, send, transfer};

/// Longer than any of these tests: the reservation does not end by its duration.
const LONG: Duration = Duration::from_secs(300);

type Called = Result<gapless_embed::Accepted, WithNonceError<String>>;

/// A call that keeps its nonce reserved until it is notified to answer.
async fn reserve_nonce(
    stack: &Stack,
    index: usize,
    tx: RequestedTx,
) -> (JoinHandle<Called>, Arc<Notify>, TxId) {
    let (gapless, key, answer) = (stack.gapless().await, stack.key(index), Arc::new(Notify::new()));
    let (answered, begun) = (answer.clone(), Arc::new(Notify::new()));
    let saw_it = begun.clone();
    let call = tokio::spawn(async move {
        let call = gapless.call(key).reserve_for(LONG);
        call.run(async |_: NonceContext| {
            saw_it.notify_one();
            answered.notified().await;
            Ok(tx)
        })
        .await
    });
    let held = stack.wait_reservation(stack.submitter(index), ReservationState::Reserved).await;
    begun.notified().await;
    (call, answer, held.tx_id)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_is_dropped_gives_its_nonce_up_at_once() {
    let stack = stack().up().await;
    let (call, _, tx_id) = reserve_nonce(&stack, 0, transfer(Address::repeat_byte(0xb1), 1)).await;
    call.abort();
    failed_by_placeholder(&stack, tx_id, "the call was dropped").await;
    stack.finish().await;
}

/// It is queued behind another transaction, and no client waits for its nonce any more when it is due.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_is_dropped_before_its_turn_uses_no_nonce() {
    let stack = stack().mining(Mining::Manual).up().await;
    let (submitter, to) = (stack.submitter(0), Address::repeat_byte(0xb2));
    let first = stack.create(submitter, "first", &payload(to, 1)).await;
    stack.wait_for(first, TxState::Submitted).await;
    let (gapless, key) = (stack.gapless().await, stack.key(0));
    let call = tokio::spawn(async move {
        gapless.with_nonce(key, async |_: NonceContext| Ok::<_, String>(transfer(to, 10))).await
    });
    let asked = stack.wait_reservation(submitter, ReservationState::Requested).await;
    call.abort();
    eventually("it is given up", async || {
        let last = stack.reservations(submitter).await.pop();
        last.clone().filter(|last| last.answered).ok_or(last)
    })
    .await;
    stack.anvil().set_automine(true).await;
    stack.anvil().mine(1).await;
    let row = stack.wait_for(asked.tx_id, TxState::Cancelled).await;
    assert_eq!((row.nonce, row.sub_state.as_deref()), (None, Some("abandoned")));
    let next = send(&stack, 0, transfer(to, 100)).await.unwrap();
    assert_eq!(stack.wait_for(next.tx_id, TxState::Confirmed).await.nonce, Some(1));
    assert_eq!(stack.anvil().balance(to).await, 101.into());
    stack.finish().await;
}

/// Scenario 12: kill -9 of the client's process after it got its nonce.
#[tokio::test(flavor = "multi_thread")]
async fn a_caller_killed_after_it_saw_its_nonce_leaves_a_placeholder() {
    let stack = stack().up().await;
    let mut caller = stack.start_reservation_client(0, "killed");
    caller.wait_for_nonce().await;
    caller.kill9();
    let held = stack.reservations(stack.submitter(0)).await.pop().unwrap();
    failed_by_placeholder(&stack, held.tx_id, "before the client answered").await;
    let last = stack.reservations(stack.submitter(0)).await.pop().unwrap();
    assert_eq!((last.state, last.answered), (ReservationState::Recyclable, false));
    stack.finish().await;
}

/// kill -9 of the client's process while it waits: it gets no nonce.
#[tokio::test(flavor = "multi_thread")]
async fn a_caller_killed_before_its_turn_costs_no_nonce() {
    let stack = stack().mining(Mining::Manual).up().await;
    let (submitter, to) = (stack.submitter(0), Address::repeat_byte(0xb3));
    let first = stack.create(submitter, "first", &payload(to, 1)).await;
    stack.wait_for(first, TxState::Submitted).await;
    let mut caller = stack.start_reservation_client(0, "early");
    let asked = stack.wait_reservation(submitter, ReservationState::Requested).await;
    caller.kill9();
    // Simulates a long silence without the wait.
    assert_eq!(stack.sql("UPDATE nonce_reservation SET wanted_until = clock_timestamp()").await, 1);
    stack.anvil().set_automine(true).await;
    stack.anvil().mine(1).await;
    let row = stack.wait_for(asked.tx_id, TxState::Cancelled).await;
    assert_eq!((row.nonce, row.sub_state.as_deref()), (None, Some("abandoned")));
    stack.finish().await;
}

/// The opposite: the prefetched data is old, but the client is still there.
#[tokio::test(flavor = "multi_thread")]
async fn a_caller_that_waits_long_behind_others_still_gets_its_nonce() {
    let stack = stack().mining(Mining::Manual).up().await;
    let (submitter, to) = (stack.submitter(0), Address::repeat_byte(0xb4));
    let first = stack.create(submitter, "first", &payload(to, 1)).await;
    stack.create(submitter, "second", &payload(to, 10)).await;
    let (gapless, key) = (stack.gapless().await, stack.key(0));
    let call = tokio::spawn(async move {
        let call = gapless.call(key).wait(Duration::from_secs(120));
        call.run(async |_: NonceContext| Ok::<_, String>(transfer(to, 100))).await
    });
    stack.wait_for(first, TxState::Submitted).await;
    stack.wait_reservation(submitter, ReservationState::Requested).await;
    // The queue is read now, and the client renews its request.
    stack
        .sql("UPDATE nonce_reservation SET wanted_until = clock_timestamp() + INTERVAL '100 milliseconds'")
        .await;
    stack.anvil().mine(1).await;
    stack.wait_for(first, TxState::Confirmed).await;
    eventually("the caller says that it waits", async || {
        let ahead: bool = sqlx::query_scalar(
            "SELECT wanted_until > clock_timestamp() + INTERVAL '5 seconds' FROM nonce_reservation",
        )
        .fetch_one(stack.db())
        .await
        .unwrap();
        if ahead { Ok(()) } else { Err("not yet") }
    })
    .await;
    stack.anvil().set_automine(true).await;
    stack.anvil().mine(1).await;
    let accepted = call.await.unwrap().unwrap();
    assert_eq!(stack.wait_for(accepted.tx_id, TxState::Confirmed).await.nonce, Some(2));
    stack.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_held_nonce_can_be_cancelled_and_its_caller_is_then_too_late() {
    let stack = stack().up().await;
    let to = Address::repeat_byte(0xb5);
    let (call, answer, tx_id) = reserve_nonce(&stack, 0, transfer(to, 1)).await;
    let client = stack.client();
    for (action, status) in [("speed-up", 409), ("resolve", 409), ("cancel", 200)] {
        let body =
            if action == "resolve" { json!({ "action": "rebroadcast", "reason": "x" }) } else { json!({}) };
        let answer = client.admin_post(&format!("/api/v1/tx/{tx_id}/{action}?wait=60s"), &body).await;
        assert_eq!(answer.status, status, "{action}: {answer:?}");
    }
    stack.wait_for(tx_id, TxState::Cancelled).await;
    answer.notify_one();
    let late = call.await.unwrap().unwrap_err();
    assert!(matches!(late, WithNonceError::ReservationExpired { .. }), "{late:?}");
    assert_eq!(stack.attempts(tx_id).await.len(), 1, "its placeholder was there already");
    assert_eq!(stack.anvil().balance(to).await, 0.into());
    stack.finish().await;
}

/// Ownership and timeliness of an answer are decided in the database.
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_counts_from_its_owner_once_and_in_time() {
    let stack = stack().up().await;
    let url = Secret::new(stack.database_url());
    let store = Store::new(&url, "callers of the test", 2, Timeouts::default()).unwrap();
    let new = |request_id: &str, hold: Duration| NewReservation {
        tx_id: TxId::new(),
        submitter: stack.key(0),
        request_id: request_id.to_owned(),
        via: Via::WithNonce,
        owner: ReservationOwner::new(),
        reserve_for: hold,
        wanted_for: LONG,
    };
    let answer = |value: u64| {
        Answer::Unsigned(Box::new(Payload::transfer(Address::repeat_byte(0xb6), U256::from(value))))
    };
    let first = new("first", LONG);
    assert_eq!(store.request_reservation(&first).await.unwrap(), ReservationOutcome::Created);
    // Its response was lost: repeating the same answer succeeds.
    assert_eq!(store.request_reservation(&first).await.unwrap(), ReservationOutcome::Created);
    stack.wait_reservation(stack.submitter(0), ReservationState::Reserved).await;
    let answer_as =
        async |owner, value| store.answer_reservation(first.tx_id, owner, &answer(value)).await.unwrap();
    assert_eq!(answer_as(ReservationOwner::new(), 5).await, AnswerOutcome::NotOwner);
    assert_eq!(answer_as(first.owner, 5).await, AnswerOutcome::Taken);
    assert_eq!(answer_as(first.owner, 5).await, AnswerOutcome::Taken, "the same answer again");
    assert_eq!(answer_as(first.owner, 6).await, AnswerOutcome::AlreadyAnswered);
    stack.wait_for(first.tx_id, TxState::Confirmed).await;

    let second = new("second", Duration::from_millis(200));
    assert_eq!(store.request_reservation(&second).await.unwrap(), ReservationOutcome::Created);
    stack.wait_reservation(stack.submitter(0), ReservationState::Recyclable).await;
    let late = store.answer_reservation(second.tx_id, second.owner, &answer(50)).await.unwrap();
    assert_eq!(late, AnswerOutcome::TooLate(ReservationState::Recyclable));
    failed_by_placeholder(&stack, second.tx_id, "before the client answered").await;
    assert_eq!(stack.anvil().balance(Address::repeat_byte(0xb6)).await, 5.into());
    stack.finish().await;
}

/// Cancelled after the answer: the stored placeholder is too cheap to replace it, another one must win.
#[tokio::test(flavor = "multi_thread")]
async fn an_answered_transaction_on_its_way_is_cancelled_by_another_placeholder() {
    let stack = stack().mining(Mining::Manual).up().await;
    let to = Address::repeat_byte(0xb9);
    let accepted = send(&stack, 0, transfer(to, 1)).await.unwrap();
    stack.wait_for(accepted.tx_id, TxState::Submitted).await;
    let path = format!("/api/v1/tx/{}/cancel?wait=60s", accepted.tx_id);
    assert_eq!(stack.client().post_to(&path, &json!({})).await.status, 200);
    let attempts = stack.wait_attempts(accepted.tx_id, 3).await;
    let kinds: Vec<&str> = attempts.iter().map(|attempt| attempt.kind.as_str()).collect();
    assert_eq!(kinds, ["PLACEHOLDER", "ORIGINAL", "PLACEHOLDER"]);
    stack.wait_pooled(attempts[2].tx_hash).await;
    stack.anvil().set_automine(true).await;
    stack.anvil().mine(1).await;
    let row = stack.wait_for(accepted.tx_id, TxState::Cancelled).await;
    assert_eq!(row.tx_hash, Some(attempts[2].tx_hash));
    assert_eq!(stack.anvil().balance(to).await, 0.into());
    stack.finish().await;
}

/// No node will ever accept the client's transaction: the nonce is consumed nevertheless.
#[tokio::test(flavor = "multi_thread")]
async fn an_answered_transaction_that_no_node_takes_fails_and_its_nonce_is_consumed() {
    let stack = stack().proxied().up().await;
    let to = Address::repeat_byte(0xba);
    stack.proxy().next(1, "eth_sendRawTransaction", Fault::error("intrinsic gas too low"));
    let accepted = send(&stack, 0, transfer(to, 1)).await.unwrap();
    let row = stack.wait_for(accepted.tx_id, TxState::Failed).await;
    assert!(row.last_error.as_deref().is_some_and(|why| why.contains("intrinsic gas too low")), "{row:?}");
    assert_eq!(stack.attempts(accepted.tx_id).await.len(), 3);
    let next = send(&stack, 0, transfer(to, 10)).await.unwrap();
    assert_eq!(stack.wait_for(next.tx_id, TxState::Confirmed).await.nonce, Some(1));
    assert_eq!(stack.anvil().balance(to).await, 10.into());
    stack.finish().await;
}

/// An external transaction consumes the reserved nonce: the client's transaction has its effect once, at another
/// nonce, after the adoption.
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_whose_nonce_was_consumed_externally_gets_no_other_nonce() {
    let stack = stack().set("resubmit.interval", "500ms").up().await;
    let (submitter, to) = (stack.submitter(0), Address::repeat_byte(0xb7));
    let (call, answer, tx_id) = reserve_nonce(&stack, 0, transfer(to, 3)).await;
    submitter.spend_outside(stack.anvil(), Some(0)).await;
    answer.notify_one();
    call.await.unwrap().unwrap();
    stack.wait_protected(submitter).await;
    let refused = send(&stack, 0, transfer(to, 1)).await.unwrap_err();
    assert!(matches!(refused, WithNonceError::Other(EmbedError::Protected { .. })), "{refused:?}");
    assert_eq!(
        stack.submitter_action(submitter, "adopt?wait=60s", "external use is known").await.status,
        200
    );
    let row = stack.wait_for(tx_id, TxState::Failed).await;
    assert_eq!((row.nonce, row.sub_state.as_deref()), (None, Some("given_up")));
    let next = send(&stack, 0, transfer(to, 40)).await.unwrap();
    assert_eq!(stack.wait_for(next.tx_id, TxState::Confirmed).await.nonce, Some(1));
    assert_eq!(
        stack.anvil().balance(to).await,
        40.into(),
        "what was made for the nonce that was taken never happens"
    );
    stack.finish().await;
}

/// External transactions consume the reserved nonce and the next one meanwhile: the client can never use its nonce.
#[tokio::test(flavor = "multi_thread")]
async fn a_nonce_that_was_consumed_externally_while_it_was_reserved_is_given_up() {
    let stack = stack().up().await;
    let (submitter, to) = (stack.submitter(0), Address::repeat_byte(0xb8));
    let (call, answer, tx_id) = reserve_nonce(&stack, 0, transfer(to, 3)).await;
    submitter.spend_outside(stack.anvil(), Some(0)).await;
    submitter.spend_outside(stack.anvil(), Some(1)).await;
    answer.notify_one();
    // In time, from the client's point of view.
    call.await.unwrap().unwrap();
    stack.wait_protected(submitter).await;
    stack.wait_reservation(submitter, ReservationState::Recyclable).await;
    assert_eq!(
        stack.submitter_action(submitter, "adopt?wait=60s", "external use is known").await.status,
        200
    );
    let row = stack.wait_for(tx_id, TxState::Failed).await;
    assert_eq!((row.nonce, row.sub_state.as_deref()), (None, Some("given_up")));
    let next = send(&stack, 0, transfer(to, 40)).await.unwrap();
    assert_eq!(stack.wait_for(next.tx_id, TxState::Confirmed).await.nonce, Some(2));
    assert_eq!(stack.anvil().balance(to).await, 40.into());
    stack.finish().await;
}
