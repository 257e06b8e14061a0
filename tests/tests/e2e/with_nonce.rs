//! `with_nonce`: whatever the handler does, the nonce is consumed, and its transaction has its effect once or not
//! at all.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::Duration;

use futures::future::join_all;
use gapless_config::{Secret, Signer as SignerConfig};
use gapless_domain::{Fees, RequestedTx, ReservationState, TxKind};
use gapless_embed::{Accepted, EmbedError, Failure, HandlerTx, NonceContext, WithNonceError};
use gapless_signer::{SignerSet, keystore};
use gapless_testkit::{Address, Stack, TxId, TxState, U256, payload};
use serde_json::json;

use crate::stack;

/// Longer than a loaded machine needs.
const LONG_TIMEOUT: Duration = Duration::from_secs(300);

/// A transfer, as a handler returns it.
pub(crate) fn transfer(to: Address, value: u64) -> RequestedTx {
    RequestedTx { to: Some(format!("{to:#x}")), value: Some(value.to_string()), ..RequestedTx::default() }
}

/// A handler that returns a transfer.
pub(crate) async fn send(
    stack: &Stack,
    index: usize,
    tx: RequestedTx,
) -> Result<Accepted, WithNonceError<String>> {
    let gapless = stack.gapless().await;
    let call = gapless.call(stack.key(index)).reserve_for(LONG_TIMEOUT).wait(LONG_TIMEOUT * 2);
    call.run(async |_: NonceContext| Ok(tx)).await
}

/// Ends as FAILED, its nonce consumed by its placeholder, and nothing else sent.
pub(crate) async fn failed_by_placeholder(stack: &Stack, tx_id: TxId, reason: &str) {
    let row = stack.wait_for(tx_id, TxState::Failed).await;
    let attempts = stack.attempts(tx_id).await;
    assert_eq!(attempts.iter().map(|a| a.kind.as_str()).collect::<Vec<_>>(), ["PLACEHOLDER"], "{row:?}");
    assert_eq!((row.tx_hash, row.nonce), (Some(attempts[0].tx_hash), Some(attempts[0].nonce)));
    assert_eq!(row.sub_state.as_deref(), Some("placeholder"));
    assert!(row.last_error.as_deref().is_some_and(|why| why.contains(reason)), "{reason}: {row:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handler_sees_its_nonce_and_what_it_returns_is_sent_at_it_in_its_turn() {
    let stack = stack().set("events.mode", "log").up().await;
    let (submitter, to) = (stack.submitter(0), Address::repeat_byte(0xa1));
    let before = stack.create(submitter, "before", &payload(to, 1)).await;
    stack.wait_for(before, TxState::Confirmed).await;
    let gapless = stack.gapless().await;
    let seen = AtomicU32::new(0);
    let accepted = gapless
        .with_nonce(stack.key(0), async |context: NonceContext| {
            assert_eq!((context.nonce.0, context.submitter), (1, submitter.address()));
            assert_eq!(context.chain_id.0, stack.anvil().chain_id());
            assert!(!context.can_sign() && context.time_left() > Duration::ZERO);
            let held = stack.row(context.tx_id).await;
            assert_eq!((held.state, held.sub_state.as_deref()), (TxState::InFlight, Some("reserved")));
            let attempts = stack.attempts(context.tx_id).await;
            assert_eq!(
                (attempts.len(), attempts[0].kind.as_str(), attempts[0].sent),
                (1, "PLACEHOLDER", false)
            );
            seen.fetch_add(1, SeqCst);
            Ok::<_, String>(transfer(to, 20))
        })
        .await
        .unwrap();
    assert_eq!((seen.load(SeqCst), accepted.repeated), (1, false));
    let after = stack.create(submitter, "after", &payload(to, 300)).await;
    let view = gapless.wait_final(accepted.tx_id, Duration::from_secs(60)).await.unwrap().unwrap();
    assert_eq!(view.state, TxState::Confirmed);
    let row = stack.wait_for(accepted.tx_id, TxState::Confirmed).await;
    let attempts = stack.attempts(accepted.tx_id).await;
    assert_eq!(attempts.iter().map(|a| a.kind.as_str()).collect::<Vec<_>>(), ["PLACEHOLDER", "ORIGINAL"]);
    assert_eq!((row.nonce, row.tx_hash), (Some(1), Some(attempts[1].tx_hash)));
    assert!(!attempts[0].sent, "the placeholder was not needed");
    let last = stack.reservations(submitter).await.pop().unwrap();
    assert_eq!((last.state, last.nonce), (ReservationState::Used, Some(1)));
    let shown = stack.get(accepted.tx_id).await;
    assert_eq!((&shown["payload"]["value"], shown.get("nonce")), (&json!("20"), None));
    assert_eq!(stack.wait_for(after, TxState::Confirmed).await.nonce, Some(2));
    assert_eq!(stack.anvil().balance(to).await, 321.into());
    stack.wait_for_event(accepted.tx_id, "tx.confirmed").await;
    stack.finish().await;
}

/// Scenario 12.
#[tokio::test(flavor = "multi_thread")]
async fn a_handler_that_fails_after_it_saw_its_nonce_leaves_a_placeholder_and_the_next_goes_on() {
    let stack = stack().up().await;
    let (submitter, to) = (stack.submitter(0), Address::repeat_byte(0xa2));
    let gapless = stack.gapless().await;
    let handler = async |_: NonceContext| Err::<RequestedTx, _>("nothing is in stock");
    let failed = gapless.with_nonce(stack.key(0), handler).await.unwrap_err();
    let WithNonceError::Handler { tx_id, error: "nothing is in stock" } = failed else {
        panic!("{failed:?}")
    };
    let follower = stack.create(submitter, "follower", &payload(to, 5)).await;
    failed_by_placeholder(&stack, tx_id, "nothing is in stock").await;
    assert_eq!(stack.wait_for(follower, TxState::Confirmed).await.nonce, Some(1));
    let last = stack.reservations(submitter).await.pop().unwrap();
    assert_eq!((last.state, last.nonce), (ReservationState::Recyclable, Some(0)));
    assert_eq!(stack.anvil().balance(to).await, 5.into());
    stack.finish().await;
}

/// Scenario 12: it panics, in its future and before there is one.
#[tokio::test(flavor = "multi_thread")]
async fn a_handler_that_panics_leaves_a_placeholder() {
    let stack = stack().up().await;
    let gapless = stack.gapless().await;
    let later =
        async |context: NonceContext| -> Result<RequestedTx, String> { panic!("at {}", context.nonce) };
    let at_once = |_: NonceContext| -> std::future::Ready<Result<RequestedTx, String>> { panic!("at once") };
    for (number, panicked) in [
        gapless.with_nonce(stack.key(0), later).await.unwrap_err(),
        gapless.with_nonce(stack.key(0), at_once).await.unwrap_err(),
    ]
    .into_iter()
    .enumerate()
    {
        let WithNonceError::Panicked { tx_id, message } = panicked else { panic!("{panicked:?}") };
        assert_eq!(message, ["at 0", "at once"][number]);
        failed_by_placeholder(&stack, tx_id, &message).await;
    }
    stack.finish().await;
}

/// Scenario 12: it does not return before its reservation ends.
#[tokio::test(flavor = "multi_thread")]
async fn a_handler_that_hangs_leaves_a_placeholder_when_its_hold_ends() {
    let stack = stack().up().await;
    let gapless = stack.gapless().await;
    let call = gapless.call(stack.key(0)).reserve_for(Duration::from_secs(6));
    let hung = call.run(async |_: NonceContext| std::future::pending::<Result<RequestedTx, String>>().await);
    let hung = hung.await.unwrap_err();
    let WithNonceError::ReservationExpired { tx_id } = hung else { panic!("{hung:?}") };
    failed_by_placeholder(&stack, tx_id, "").await;
    let next = send(&stack, 0, transfer(Address::repeat_byte(0xa3), 1)).await.unwrap();
    assert_eq!(stack.wait_for(next.tx_id, TxState::Confirmed).await.nonce, Some(1));
    stack.finish().await;
}

/// Scenario 12: its transaction can never be sent. Some errors are detected at once, the others by the worker.
#[tokio::test(flavor = "multi_thread")]
async fn a_handler_that_wants_nonsense_leaves_a_placeholder() {
    let stack = stack().up().await;
    let contract = Address::repeat_byte(0xa4);
    stack.anvil().set_code(contract, "0x60006000fd").await;
    let gapless = stack.gapless().await;

    let bad_address = RequestedTx { to: Some("0x12".into()), ..RequestedTx::default() };
    let too_early =
        RequestedTx { not_before: Some("2999-01-01T00:00:00Z".parse().unwrap()), ..transfer(contract, 1) };
    for (wanted, reason) in [(bad_address, "payload.to"), (too_early, "payload.notBefore")] {
        let refused = send(&stack, 0, wanted).await.unwrap_err();
        let WithNonceError::Refused { tx_id, .. } = refused else { panic!("{refused:?}") };
        failed_by_placeholder(&stack, tx_id, reason).await;
    }
    // Signed for another nonce than the reserved one.
    let submitter = stack.submitter(0).clone();
    let chain_id = stack.anvil().chain_id();
    let refused = gapless
        .with_nonce(stack.key(0), async |context: NonceContext| {
            Ok::<_, String>(submitter.sign_transfer(chain_id, context.nonce.0 + 1, contract, 1).1)
        })
        .await
        .unwrap_err();
    let WithNonceError::Refused { tx_id, error: EmbedError::BadBytes(_) } = refused else {
        panic!("{refused:?}")
    };
    failed_by_placeholder(&stack, tx_id, "another nonce").await;

    let reverts = transfer(contract, 1);
    let too_much_gas = RequestedTx { gas_limit: Some("1000000000000".into()), ..transfer(contract, 1) };
    for (wanted, reason) in [(reverts, "would revert"), (too_much_gas, "exceeds the block gas limit")] {
        let accepted = send(&stack, 0, wanted).await.unwrap();
        failed_by_placeholder(&stack, accepted.tx_id, reason).await;
    }
    assert_eq!(stack.anvil().count(submitter.address(), "latest").await, 5);
    assert_eq!(stack.anvil().balance(contract).await, 0.into());
    stack.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handler_may_sign_by_itself() {
    let stack = stack().up().await;
    let (submitter, to) = (stack.submitter(0), Address::repeat_byte(0xa5));
    let keys = tempfile::tempdir().unwrap();
    let password = Secret::new("secret");
    keystore::import(keys.path(), &Secret::new(submitter.key_hex()), &password).unwrap();
    let password_file = stack.dir().join("keys.password");
    std::fs::write(&password_file, "secret").unwrap();
    let config = SignerConfig {
        keystore: Some(keys.path().to_owned()),
        password_file: Some(password_file),
        ..SignerConfig::default()
    };
    let gapless = stack.gapless().await.with_signers(Arc::new(SignerSet::load(&config).await));
    let accepted = gapless
        .with_nonce(stack.key(0), async |context: NonceContext| {
            assert!(context.can_sign());
            let gwei = U256::exp10(9);
            let fees = Fees::Eip1559 { max_fee_per_gas: gwei * 9, max_priority_fee_per_gas: gwei };
            context.sign(transfer(to, 7), 21_000.into(), fees).await
        })
        .await
        .unwrap();
    stack.wait_for(accepted.tx_id, TxState::Confirmed).await;
    let shown = stack.get(accepted.tx_id).await;
    assert_eq!((&shown["payload"]["value"], &shown["payload"]["gasLimit"]), (&json!("7"), &json!("21000")));

    // A process without keys must return unsigned transactions.
    let no_key = stack.gapless().await;
    let refused = no_key
        .with_nonce(stack.key(0), async |context: NonceContext| {
            context.sign(transfer(to, 7), 21_000.into(), Fees::Legacy { gas_price: 1.into() }).await
        })
        .await
        .unwrap_err();
    let WithNonceError::Handler { tx_id, .. } = refused else { panic!("{refused:?}") };
    failed_by_placeholder(&stack, tx_id, "holds no key").await;
    assert_eq!(stack.anvil().balance(to).await, 7.into());
    stack.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_id_runs_its_handler_once_and_is_shared_with_the_api() {
    let stack = stack().up().await;
    let (submitter, to) = (stack.submitter(0), Address::repeat_byte(0xa6));
    let gapless = stack.gapless().await;
    let runs = AtomicU32::new(0);
    let calls = (0..8).map(|_| {
        gapless.call(stack.key(0)).request_id("invoice-7").run(async |_: NonceContext| {
            runs.fetch_add(1, SeqCst);
            Ok::<_, String>(transfer(to, 9))
        })
    });
    let accepted: Vec<Accepted> = join_all(calls).await.into_iter().map(Result::unwrap).collect();
    assert_eq!(runs.load(SeqCst), 1);
    assert!(accepted.iter().all(|other| other.tx_id == accepted[0].tx_id), "{accepted:?}");
    assert_eq!(accepted.iter().filter(|one| !one.repeated).count(), 1);
    stack.wait_for(accepted[0].tx_id, TxState::Confirmed).await;

    let conflict = stack.post(submitter, "invoice-7", &payload(to, 9)).await;
    assert_eq!((conflict.status, conflict.code()), (409, "request_id_conflict"), "{conflict:?}");
    let ordinary = stack.create(submitter, "ordinary", &payload(to, 9)).await;
    let call = gapless.call(stack.key(0)).request_id("ordinary");
    let conflict = call.run(async |_: NonceContext| Ok::<_, String>(transfer(to, 9))).await.unwrap_err();
    let WithNonceError::Other(EmbedError::RequestIdConflict { tx_id }) = conflict else {
        panic!("{conflict:?}")
    };
    assert_eq!(tx_id, ordinary);
    stack.wait_for(ordinary, TxState::Confirmed).await;
    assert_eq!(stack.anvil().balance(to).await, 18.into());
    stack.finish().await;
}

/// The handler's transaction is identical to its placeholder.
#[tokio::test(flavor = "multi_thread")]
async fn a_handler_may_want_exactly_what_the_placeholder_does() {
    let stack = stack().up().await;
    let nothing = transfer(stack.submitter(0).address(), 0);
    let twin = RequestedTx { kind: Some(TxKind::Legacy), ..nothing };
    let accepted = send(&stack, 0, twin).await.unwrap();
    stack.wait_for(accepted.tx_id, TxState::Confirmed).await;
    let attempts = stack.attempts(accepted.tx_id).await;
    assert_eq!(attempts.len(), 2);
    assert_ne!(attempts[0].tx_hash, attempts[1].tx_hash);
    stack.finish().await;
}

/// Scenario 12, on a chain without EIP-1559: the placeholder is a legacy transaction, which every chain accepts.
#[tokio::test(flavor = "multi_thread")]
async fn on_a_chain_without_eip_1559_a_held_nonce_is_consumed_too() {
    let stack = stack().anvil_args(&["--hardfork", "berlin"]).set("fees.policy", "gas_price").up().await;
    let to = Address::repeat_byte(0xa9);
    let failed = stack
        .gapless()
        .await
        .with_nonce(stack.key(0), async |_: NonceContext| {
            Err::<RequestedTx, _>("nothing is in stock".to_owned())
        })
        .await;
    let Err(WithNonceError::Handler { tx_id, .. }) = failed else { panic!("{failed:?}") };
    failed_by_placeholder(&stack, tx_id, "nothing is in stock").await;
    let legacy = RequestedTx { kind: Some(TxKind::Legacy), ..transfer(to, 1) };
    let accepted = send(&stack, 0, legacy).await.unwrap();
    assert_eq!(stack.wait_for(accepted.tx_id, TxState::Confirmed).await.nonce, Some(1));
    stack.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_cannot_be_paid_for_waits_at_its_nonce_until_it_can() {
    let stack = stack().balance(10u64.pow(17)).up().await;
    let (submitter, to) = (stack.submitter(0), Address::repeat_byte(0xa7));
    let value = 10u64.pow(18);
    let accepted = send(&stack, 0, transfer(to, value)).await.unwrap();
    gapless_testkit::eventually("it waits for funds", async || {
        let row = stack.row(accepted.tx_id).await;
        if row.sub_state.as_deref() == Some("waiting_funds") { Ok(()) } else { Err(row) }
    })
    .await;
    assert_eq!(stack.anvil().count(submitter.address(), "pending").await, 0);
    stack.anvil().set_balance(submitter.address(), U256::exp10(20)).await;
    assert_eq!(stack.wait_for(accepted.tx_id, TxState::Confirmed).await.nonce, Some(0));
    assert_eq!(stack.anvil().balance(to).await, value.into());
    stack.finish().await;
}

/// Scenario 70. A former defect: it waited forever without an alarm.
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_cannot_be_paid_for_becomes_stuck_and_goes_on_once_it_can() {
    let stack = stack().short_lease().balance(10u64.pow(17)).set("stuck.after", "3s");
    // It has no attempt that a higher price could replace.
    let stack = stack.set("stuck.policy", "bump").set("events.mode", "log").start().await;
    stack.start_api().await;
    let worker = stack.start_worker().await;
    let (submitter, to) = (stack.submitter(0), Address::repeat_byte(0xa9));
    let accepted = send(&stack, 0, transfer(to, 10u64.pow(18))).await.unwrap();
    let row = stack.wait_for(accepted.tx_id, TxState::Stuck).await;
    assert_eq!(row.nonce, Some(0));
    assert!(row.last_error.is_some_and(|error| error.contains("needs up to")), "it says what is missing");
    stack.wait_for_event(accepted.tx_id, "tx.stuck").await;
    let stuck = stack.client().admin_get("/api/v1/stuck").await;
    assert!(stuck.body.to_string().contains(&accepted.tx_id.to_string()), "{}", stuck.body);

    // The next owner reads it from the rows, and continues.
    worker.kill9();
    stack.start_worker().await;
    gapless_testkit::eventually("the next owner says what is missing", async || {
        let row = stack.row(accepted.tx_id).await;
        let waits = row.sub_state.as_deref() == Some("waiting_funds");
        if row.state == TxState::Stuck && waits { Ok(()) } else { Err(row) }
    })
    .await;
    assert_eq!(stack.anvil().count(submitter.address(), "pending").await, 0);
    assert_eq!(stack.attempts(accepted.tx_id).await.len(), 1, "the placeholder, not sent");
    stack.anvil().set_balance(submitter.address(), U256::exp10(20)).await;
    assert_eq!(stack.wait_for(accepted.tx_id, TxState::Confirmed).await.nonce, Some(0));
    assert_eq!(stack.anvil().balance(to).await, 10u64.pow(18).into());
    stack.finish().await;
}

/// The policy may give it up: its placeholder consumes the nonce. The alarm does not apply to a reservation without
/// an answer.
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_cannot_be_paid_for_is_given_up_where_the_policy_says_so() {
    let stack =
        stack().balance(10u64.pow(17)).set("stuck.after", "2s").set("stuck.policy", "cancel").up().await;
    let (submitter, to) = (stack.submitter(0), Address::repeat_byte(0xa6));
    let accepted = send(&stack, 0, transfer(to, 10u64.pow(18))).await.unwrap();
    let row = stack.wait_for(accepted.tx_id, TxState::Cancelled).await;
    assert_eq!(row.nonce, Some(0));
    assert_eq!(stack.attempts(accepted.tx_id).await.len(), 1, "the placeholder that was there all the time");
    let next = send(&stack, 0, transfer(to, 1)).await.unwrap();
    assert_eq!(stack.wait_for(next.tx_id, TxState::Confirmed).await.nonce, Some(1));
    assert_eq!(stack.anvil().count(submitter.address(), "latest").await, 2);
    stack.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_whose_deadline_passes_while_it_waits_is_given_up() {
    let stack = stack().balance(10u64.pow(17)).up().await;
    let to = Address::repeat_byte(0xaa);
    let soon = stack.database_time_in("6 s").await;
    let unpaid = RequestedTx { deadline: Some(soon.parse().unwrap()), ..transfer(to, 10u64.pow(18)) };
    let accepted = send(&stack, 0, unpaid).await.unwrap();
    let row = stack.wait_for(accepted.tx_id, TxState::Cancelled).await;
    assert_eq!((row.nonce, row.sub_state.as_deref()), (Some(0), Some("placeholder")));
    assert!(row.last_error.unwrap().contains("deadline"));
    assert_eq!(stack.attempts(accepted.tx_id).await.len(), 1, "the placeholder that was there all the time");
    let next = send(&stack, 0, transfer(to, 1)).await.unwrap();
    assert_eq!(stack.wait_for(next.tx_id, TxState::Confirmed).await.nonce, Some(1));
    stack.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_callers_and_requests_share_one_gapless_sequence() {
    let stack = stack().window(4).up().await;
    let (submitter, to) = (stack.submitter(0), Address::repeat_byte(0xa8));
    let gapless = stack.gapless().await;
    let calls = join_all((0..12u64).map(|number| {
        gapless.call(stack.key(0)).reserve_for(LONG_TIMEOUT).wait(LONG_TIMEOUT * 2).run(
            async move |_: NonceContext| match number % 3 {
                0 => Err("not this one".to_owned()),
                _ => Ok(HandlerTx::from(transfer(to, 1))),
            },
        )
    }));
    let requests = join_all((0..6).map(|number| {
        let (stack, request_id) = (&stack, format!("r{number}"));
        async move { stack.create(submitter, &request_id, &payload(to, 100)).await }
    }));
    let (called, _) = futures::join!(calls, requests);
    assert_eq!(called.iter().filter(|call| call.is_ok()).count(), 8);
    stack.wait_all_terminal().await;
    assert_eq!(stack.anvil().count(submitter.address(), "latest").await, 18);
    assert_eq!(stack.anvil().balance(to).await, 608.into());
    stack.finish().await;
}

/// The handler fails twice with a retryable error: its nonce stays reserved, nothing is sent, and the third run's
/// transaction is sent at it.
#[tokio::test(flavor = "multi_thread")]
async fn a_handler_that_asks_to_run_again_keeps_its_nonce() {
    let stack = stack().up().await;
    let to = Address::repeat_byte(0xb1);
    let gapless = stack.gapless().await;
    let runs = AtomicU32::new(0);
    let call = gapless.call(stack.key(0)).reserve_for(LONG_TIMEOUT);
    let accepted = call
        .run_retrying(3, async |context: NonceContext| {
            assert_eq!(context.nonce.0, 0);
            assert_eq!(stack.row(context.tx_id).await.sub_state.as_deref(), Some("reserved"));
            match runs.fetch_add(1, SeqCst) {
                2 => Ok((transfer(to, 7), "the third run")),
                run => Err(Failure::Retry(format!("run {run} has no price yet"))),
            }
        })
        .await
        .unwrap();
    assert_eq!((runs.load(SeqCst), accepted.value), (3, Some("the third run")));
    let row = stack.wait_for(accepted.tx_id, TxState::Confirmed).await;
    assert_eq!((row.nonce, stack.anvil().balance(to).await), (Some(0), 7.into()));
    stack.finish().await;
}

/// The number of tries is limited, and a permanent failure ends it at once.
#[tokio::test(flavor = "multi_thread")]
async fn a_handler_that_asks_to_run_again_too_often_leaves_a_placeholder() {
    let stack = stack().up().await;
    let gapless = stack.gapless().await;
    for (tries, first, runs) in [(2, Failure::Retry("not yet"), 2), (9, Failure::GiveUp("never"), 1)] {
        let seen = AtomicU32::new(0);
        let call = gapless.call(stack.key(0)).reserve_for(LONG_TIMEOUT);
        let ended = call
            .run_retrying(tries, async |_: NonceContext| {
                seen.fetch_add(1, SeqCst);
                Err::<RequestedTx, _>(first.clone())
            })
            .await
            .unwrap_err();
        let WithNonceError::Handler { tx_id, error } = ended else { panic!("{ended:?}") };
        assert_eq!(seen.load(SeqCst), runs);
        failed_by_placeholder(&stack, tx_id, error).await;
    }
    stack.finish().await;
}
