//! The low-level API: allocate, mark used, mark recyclable. Every allocated nonce is consumed, the smallest first.

use std::time::Duration;

use gapless_config::Secret;
use gapless_domain::ReservationState;
use gapless_embed::{Allocation, EmbedError, Gapless, NonceContext, WithNonceError};
use gapless_testkit::{Address, Stack, StackBuilder, Submitter, TxState, eventually, payload};
use serde_json::json;

use crate::stack;
use crate::with_nonce::{failed_by_placeholder, send, transfer};

const HOLD: Duration = Duration::from_secs(60);
const WAIT: Duration = Duration::from_secs(60);

fn low_level() -> StackBuilder {
    stack().set("nonce.low_level.enabled", true)
}

async fn allocate(stack: &Stack) -> Allocation {
    stack.gapless().await.allocate(stack.key(0), HOLD, WAIT).await.unwrap()
}

fn signed(stack: &Stack, by: &Submitter, nonce: u64, to: Address) -> gapless_domain::Bytes {
    by.sign_transfer(stack.anvil().chain_id(), nonce, to, 1).1
}

#[tokio::test(flavor = "multi_thread")]
async fn a_submitter_is_low_level_or_has_a_queue_and_never_both() {
    let stack = stack().submitters(2).start().await;
    let other = stack.submitter(1).text();
    stack.start_api().await;
    // Only the first is low-level; both workers would announce the same.
    let only_first = format!("submitter.{}.nonce.low_level.enabled", stack.submitter(0).text());
    stack.worker().set(&only_first, true).start().await;
    let gapless = stack.gapless().await;
    let client = stack.client();
    let low = client.admin_get(&format!("/api/v1/submitters/{}", stack.submitter(0).text())).await;
    assert_eq!(low.body["lowLevel"], json!(true), "{low:?}");
    assert_eq!(client.admin_get(&format!("/api/v1/submitters/{other}")).await.body["lowLevel"], json!(false));

    let to = Address::repeat_byte(0xd1);
    let refused = stack.post(stack.submitter(0), "r", &payload(to, 1)).await;
    assert_eq!((refused.status, refused.code()), (409, "submitter_low_level"), "{refused:?}");
    let refused = send(&stack, 0, transfer(to, 1)).await.unwrap_err();
    assert!(matches!(refused, WithNonceError::Other(EmbedError::LowLevel)), "{refused:?}");
    let refused = gapless.allocate(stack.key(1), HOLD, WAIT).await.unwrap_err();
    assert!(matches!(refused, EmbedError::NotLowLevel), "{refused:?}");
    let unknown = gapless_domain::SubmitterKey { address: to, ..stack.key(0) };
    let refused = gapless.allocate(unknown, HOLD, WAIT).await.unwrap_err();
    assert!(matches!(refused, EmbedError::UnknownSubmitter(_)), "{refused:?}");
    let count: i64 =
        sqlx::query_scalar("SELECT count(*) FROM managed_tx").fetch_one(stack.db()).await.unwrap();
    assert_eq!(count, 0, "nothing was stored");

    let queued = stack.create(stack.submitter(1), "r", &payload(to, 1)).await;
    stack.wait_for(queued, TxState::Confirmed).await;
    stack.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_that_are_marked_used_are_recorded_and_sent_as_they_are() {
    let stack = low_level().up().await;
    let (submitter, to) = (stack.submitter(0), Address::repeat_byte(0xd2));
    let gapless = stack.gapless().await;
    let allocation = allocate(&stack).await;
    assert_eq!((allocation.nonce().0, allocation.submitter()), (0, stack.key(0)));
    // A rejected call costs nothing: the reservation continues.
    for raw in [
        signed(&stack, submitter, 1, to),
        signed(&stack, &Submitter::random(), 0, to),
        submitter.sign_transfer(1, 0, to, 1).1,
        vec![0xc0].into(),
    ] {
        let refused = gapless.mark_used(&allocation, raw).await.unwrap_err();
        assert!(matches!(refused, EmbedError::BadBytes(_)), "{refused:?}");
    }
    let (hash, raw) = submitter.sign_transfer(stack.anvil().chain_id(), 0, to, 1);
    let tx_id = gapless.mark_used(&allocation, raw.clone()).await.unwrap();
    assert_eq!(gapless.mark_used(&allocation, raw).await.unwrap(), tx_id, "repeating it has the same result");
    let refused = gapless.mark_recyclable(&allocation, "too late").await.unwrap_err();
    assert!(matches!(refused, EmbedError::AlreadyAnswered { .. }), "{refused:?}");
    let row = stack.wait_for(tx_id, TxState::Confirmed).await;
    assert_eq!((row.nonce, row.tx_hash), (Some(0), Some(hash)));
    assert_eq!(gapless.allocation_state(&allocation).await.unwrap(), Some(ReservationState::Used));
    assert_eq!(stack.anvil().balance(to).await, 1.into());
    stack.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_nonce_that_is_marked_recyclable_is_consumed_and_given_to_nobody_again() {
    let stack = low_level().up().await;
    let gapless = stack.gapless().await;
    let allocation = allocate(&stack).await;
    gapless.mark_recyclable(&allocation, "the order was withdrawn").await.unwrap();
    failed_by_placeholder(&stack, allocation.tx_id(), "the order was withdrawn").await;
    assert_eq!(gapless.allocation_state(&allocation).await.unwrap(), Some(ReservationState::Recyclable));
    let next = allocate(&stack).await;
    assert_eq!(next.nonce().0, 1);
    gapless.mark_recyclable(&next, "").await.unwrap();
    failed_by_placeholder(&stack, next.tx_id(), "no reason was given").await;
    stack.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_allocation_that_expires_is_recyclable_and_late_words_about_it_do_not_count() {
    let stack = low_level().set("nonce.max_reservation", "6s").up().await;
    let (submitter, to) = (stack.submitter(0), Address::repeat_byte(0xd3));
    let gapless = stack.gapless().await;
    // The operator's limit applies, regardless of the client's request.
    let allocation = allocate(&stack).await;
    assert!(allocation.time_left() <= Duration::from_secs(6));
    stack.wait_reservation(submitter, ReservationState::Recyclable).await;
    let late = gapless.mark_used(&allocation, signed(&stack, submitter, 0, to)).await.unwrap_err();
    assert!(matches!(late, EmbedError::TooLate { state: ReservationState::Recyclable, .. }), "{late:?}");
    let late = gapless.mark_recyclable(&allocation, "late").await.unwrap_err();
    assert!(matches!(late, EmbedError::TooLate { .. }), "{late:?}");
    failed_by_placeholder(&stack, allocation.tx_id(), "before the client answered").await;
    assert_eq!(stack.anvil().balance(to).await, 0.into());
    stack.finish().await;
}

/// Three nonces are allocated. In whatever order they are settled, they are consumed from the smallest up.
#[tokio::test(flavor = "multi_thread")]
async fn the_smallest_recyclable_nonce_is_consumed_first() {
    let stack = low_level().proxied().window(4).up().await;
    let (submitter, to) = (stack.submitter(0), Address::repeat_byte(0xd4));
    let gapless = stack.gapless().await;
    let (first, second, third) = (allocate(&stack).await, allocate(&stack).await, allocate(&stack).await);
    assert_eq!([&first, &second, &third].map(|one| one.nonce().0), [0, 1, 2]);
    let used = gapless.mark_used(&third, signed(&stack, submitter, 2, to)).await.unwrap();
    stack.wait_reservation(submitter, ReservationState::Used).await;
    gapless.mark_recyclable(&second, "not wanted").await.unwrap();
    eventually("the second is recyclable", async || {
        let state = gapless.allocation_state(&second).await.unwrap();
        if state == Some(ReservationState::Recyclable) { Ok(()) } else { Err(state) }
    })
    .await;
    assert!(stack.proxy().sent().is_empty(), "the smallest is still reserved");
    gapless.mark_recyclable(&first, "not wanted either").await.unwrap();
    failed_by_placeholder(&stack, first.tx_id(), "not wanted either").await;
    failed_by_placeholder(&stack, second.tx_id(), "not wanted").await;
    stack.wait_for(used, TxState::Confirmed).await;
    let mined = stack.anvil().mined_from(submitter.address()).await;
    let hashes: Vec<String> = mined.iter().map(|tx| tx["hash"].as_str().unwrap().to_owned()).collect();
    let mut wanted = Vec::new();
    for allocation in [&first, &second, &third] {
        wanted.push(format!("{:#x}", stack.row(allocation.tx_id()).await.tx_hash.unwrap()));
    }
    assert_eq!(hashes, wanted);
    stack.finish().await;
}

/// Negative control: the audit reports a reserved nonce without its placeholder.
#[tokio::test(flavor = "multi_thread")]
async fn the_audit_catches_a_held_nonce_without_its_placeholder() {
    let stack = low_level().up().await;
    allocate(&stack).await;
    assert!(stack.verify().await.sound);
    assert_eq!(stack.sql("DELETE FROM tx_attempt").await, 1);
    stack.finish_unsound("every reserved nonce has a placeholder").await;
}

/// The same if nothing else could detect it: there is a transaction at the nonce.
#[tokio::test(flavor = "multi_thread")]
async fn the_audit_catches_a_used_nonce_that_never_had_a_placeholder() {
    let stack = stack().up().await;
    let accepted = send(&stack, 0, transfer(Address::repeat_byte(0xd5), 1)).await.unwrap();
    stack.wait_for(accepted.tx_id, TxState::Confirmed).await;
    assert!(stack.verify().await.sound);
    assert_eq!(stack.sql("DELETE FROM tx_attempt WHERE kind = 'PLACEHOLDER'").await, 1);
    assert_eq!(stack.sql("UPDATE tx_attempt SET ordinal = 1").await, 1);
    assert_eq!(stack.verify().await.broken(), ["every reserved nonce has a placeholder"]);
    stack.finish_unsound("every reserved nonce has a placeholder").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_database_refuses_a_reservation_that_no_owner_could_have_written() {
    let stack = stack().up().await;
    let (to, gapless) = (Address::repeat_byte(0xd6), stack.gapless().await);
    gapless
        .with_nonce(stack.key(0), async |_: NonceContext| {
            for (code, statement) in [
                ("GL001", "UPDATE nonce_reservation SET fencing_token = fencing_token - 1"),
                ("GL002", "UPDATE nonce_reservation SET state = 'REQUESTED'"),
                ("GL003", "UPDATE nonce_reservation SET nonce = NULL"),
                ("GL003", "UPDATE nonce_reservation SET nonce = nonce + 1"),
                ("GL006", "UPDATE nonce_reservation SET state = 'USED', settled_at = now()"),
                ("23514", "UPDATE nonce_reservation SET state = 'RECYCLABLE'"),
                ("23514", "UPDATE nonce_reservation SET answered_at = now()"),
                ("23514", "UPDATE nonce_reservation SET gave_up = 'x'"),
            ] {
                assert_eq!(stack.refusal(statement).await, code, "{statement}");
            }
            Ok::<_, String>(transfer(to, 1))
        })
        .await
        .unwrap();
    stack.wait_all_terminal().await;
    for (code, statement) in [
        ("GL002", "UPDATE nonce_reservation SET state = 'RESERVED', settled_at = NULL"),
        ("GL002", "UPDATE nonce_reservation SET state = 'RECYCLABLE'"),
    ] {
        assert_eq!(stack.refusal(statement).await, code, "{statement}");
    }
    // A reserved nonce whose placeholder is missing.
    stack.submitter_action(stack.submitter(0), "pause", "so that it gets no nonce").await;
    let call = tokio::spawn({
        let (gapless, key) = (stack.gapless().await, stack.key(0));
        async move { gapless.with_nonce(key, async |_: NonceContext| Ok::<_, String>(transfer(to, 1))).await }
    });
    stack.wait_reservation(stack.submitter(0), ReservationState::Requested).await;
    let shown =
        "UPDATE nonce_reservation SET state = 'RESERVED', nonce = 1, expires_at = now(), fencing_token = 9
                 WHERE state = 'REQUESTED'";
    assert_eq!(stack.refusal(shown).await, "GL006");
    call.abort();
    stack.submitter_action(stack.submitter(0), "resume", "done").await;
    stack.wait_all_terminal().await;
    stack.finish().await;
}

/// The grants of docs/guide/embedding.md are sufficient for all of this, and for nothing else.
#[tokio::test(flavor = "multi_thread")]
async fn a_caller_needs_no_more_rights_than_the_documents_say() {
    let stack = low_level().up().await;
    let role = format!("caller_{}", uuid::Uuid::new_v4().simple());
    let document = include_str!("../../../docs/guide/embedding.md");
    let grants = document.split("```sql").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    let grants = grants.replace("gapless_caller", &role);
    sqlx::raw_sql(sqlx::AssertSqlSafe(grants)).execute(stack.db()).await.unwrap();
    let url = stack.database_url_as(&role);
    let gapless = Gapless::connect(&Secret::new(url.as_str())).await.unwrap();
    let first = gapless.allocate(stack.key(0), HOLD, WAIT).await.unwrap();
    gapless.mark_recyclable(&first, "not wanted").await.unwrap();
    let second = gapless.allocate(stack.key(0), HOLD, WAIT).await.unwrap();
    let raw = signed(&stack, stack.submitter(0), 1, Address::repeat_byte(0xd7));
    let tx_id = gapless.mark_used(&second, raw).await.unwrap();
    let view = gapless.wait_final(tx_id, WAIT).await.unwrap().unwrap();
    assert_eq!(view.state, TxState::Confirmed);

    let mut session = stack.db().begin().await.unwrap();
    sqlx::query(sqlx::AssertSqlSafe(format!("SET LOCAL ROLE {role}"))).execute(&mut *session).await.unwrap();
    for forbidden in [
        "UPDATE nonce_reservation SET state = 'RECYCLABLE'",
        "UPDATE managed_tx SET payload = payload",
        "UPDATE submitter SET low_level = FALSE",
        "SELECT raw_tx FROM tx_attempt",
        "DELETE FROM nonce_reservation",
    ] {
        let mut attempt = sqlx::Connection::begin(&mut *session).await.unwrap();
        let refused = sqlx::query(forbidden).execute(&mut *attempt).await.expect_err(forbidden);
        let code = refused.as_database_error().and_then(|error| error.code().map(|code| code.into_owned()));
        assert_eq!(code.as_deref(), Some("42501"), "{forbidden}: {refused}");
        attempt.rollback().await.unwrap();
    }
    session.rollback().await.unwrap();
    let drop = format!("DROP OWNED BY {role}; DROP ROLE {role}");
    sqlx::raw_sql(sqlx::AssertSqlSafe(drop)).execute(stack.db()).await.unwrap();
    stack.finish().await;
}
