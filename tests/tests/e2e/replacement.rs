//! Replacements at a nonce: a higher price, or a cancellation. Whichever is mined first wins.

use gapless_testkit::{
    Address, Behaviour, Fault, Mining, SigningService, Stack, TxId, TxState, eventually, payload,
};
use serde_json::json;

use crate::signers::wait_known;
use crate::stack;

const SEND: &str = "eth_sendRawTransaction";

fn quantity(value: &serde_json::Value) -> u128 {
    u128::from_str_radix(value.as_str().unwrap().trim_start_matches("0x"), 16).unwrap()
}

/// Scenario 38.
#[tokio::test(flavor = "multi_thread")]
async fn without_gas_bump_only_the_same_bytes_go_out() {
    let stack = stack().proxied().mining(Mining::Manual).set("resubmit.interval", "300ms").up().await;
    let tx_id = stack.create(stack.submitter(0), "same", &payload(Address::repeat_byte(0xe1), 1)).await;
    eventually("it was sent several times", async || match stack.proxy().sent().len() {
        times if times >= 4 => Ok(()),
        times => Err(times),
    })
    .await;
    let sent = stack.proxy().sent();
    assert!(sent.iter().all(|raw| raw == &sent[0]), "other bytes were sent");
    assert_eq!(stack.attempts(tx_id).await.len(), 1);
    stack.anvil().mine(1).await;
    stack.wait_for(tx_id, TxState::Confirmed).await;
    stack.finish().await;
}

/// Scenario 39: 10 % more on both prices, another hash; and the *old* attempt is mined.
#[tokio::test(flavor = "multi_thread")]
async fn a_replacement_adds_a_tenth_to_both_prices_and_the_old_attempt_may_still_be_the_one() {
    let stack = stack()
        .proxied()
        .mining(Mining::Manual)
        .set("gasbump.enabled", true)
        .set("gasbump.min_interval", "500ms")
        .set("gasbump.max_attempts", 1)
        .up()
        .await;
    let to = Address::repeat_byte(0xe2);
    let tx_id = stack.create(stack.submitter(0), "bumped", &payload(to, 3)).await;
    let attempts = stack.wait_attempts(tx_id, 2).await;
    assert_eq!(attempts[1].kind, "REPLACEMENT");
    assert_eq!(attempts[0].nonce, attempts[1].nonce);
    stack.wait_pooled(attempts[1].tx_hash).await;
    let new = stack.anvil().rpc("eth_getTransactionByHash", json!([attempts[1].tx_hash])).await;
    let first_raw = stack.proxy().sent()[0].clone();
    stack.anvil().drop_transaction(attempts[1].tx_hash).await;
    stack.anvil().rpc(SEND, json!([first_raw])).await;
    let old = stack.anvil().rpc("eth_getTransactionByHash", json!([attempts[0].tx_hash])).await;
    for price in ["maxFeePerGas", "maxPriorityFeePerGas"] {
        assert!(quantity(&new[price]) * 10 >= quantity(&old[price]) * 11, "{price}: {old} {new}");
    }
    stack.anvil().mine(1).await;
    let row = stack.wait_for(tx_id, TxState::Confirmed).await;
    assert_eq!(row.tx_hash, Some(attempts[0].tx_hash), "the mined one");
    assert_eq!(stack.anvil().balance(to).await, 3.into());
    stack.finish().await;
}

/// Scenario 40: a client's cap leaves no room for 10 % more; the old attempt continues, and never fails for that.
#[tokio::test(flavor = "multi_thread")]
async fn at_the_cap_the_old_attempt_is_sent_again_and_nothing_fails() {
    let stack = stack()
        .proxied()
        .mining(Mining::Manual)
        .set("gasbump.enabled", true)
        .set("gasbump.min_interval", "200ms")
        .set("resubmit.interval", "300ms")
        .up()
        .await;
    let capped = json!({
        "to": format!("{:#x}", Address::repeat_byte(0xe3)), "value": "1",
        "maxFeePerGas": "3000000000", "maxPriorityFeePerGas": "1000000000"
    });
    let tx_id = stack.create(stack.submitter(0), "capped", &capped).await;
    eventually("it was sent several times", async || match stack.proxy().sent().len() {
        times if times >= 4 => Ok(()),
        times => Err(times),
    })
    .await;
    assert_eq!(stack.attempts(tx_id).await.len(), 1, "no room for another price");
    stack.anvil().mine(1).await;
    stack.wait_for(tx_id, TxState::Confirmed).await;
    stack.finish().await;
}

/// Scenario 42, without a nonce.
#[tokio::test(flavor = "multi_thread")]
async fn a_queued_transaction_is_cancelled_without_a_nonce() {
    let stack = stack().mining(Mining::Manual).up().await;
    let (submitter, to) = (stack.submitter(0), Address::repeat_byte(0xe4));
    let first = stack.create(submitter, "first", &payload(to, 1)).await;
    let second = stack.create(submitter, "second", &payload(to, 10)).await;
    let third = stack.create(submitter, "third", &payload(to, 100)).await;
    stack.wait_for(first, TxState::Submitted).await;
    let answer = stack
        .client()
        .post_to(&format!("/api/v1/tx/{second}/cancel"), &json!({ "reason": "changed my mind" }))
        .await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let row = stack.wait_for(second, TxState::Cancelled).await;
    assert_eq!(row.nonce, None);
    stack.anvil().set_automine(true).await;
    stack.anvil().mine(1).await;
    stack.wait_for(first, TxState::Confirmed).await;
    assert_eq!(stack.wait_for(third, TxState::Confirmed).await.nonce, Some(1), "the cancelled one used none");
    let late = stack.client().post_to(&format!("/api/v1/tx/{first}/cancel"), &json!({})).await;
    assert_eq!((late.status, late.code()), (409, "tx_final"), "{late:?}");
    assert_eq!(stack.anvil().balance(to).await, 101.into());
    stack.finish().await;
}

/// Scenario 42, in flight: the placeholder is mined, and the next intent continues.
#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_on_its_way_is_cancelled_by_a_placeholder_at_its_nonce() {
    let stack = stack().mining(Mining::Manual).up().await;
    let (submitter, to) = (stack.submitter(0), Address::repeat_byte(0xe5));
    let tx_id = stack.create(submitter, "cancelled", &payload(to, 1)).await;
    let follower = stack.create(submitter, "follower", &payload(to, 20)).await;
    stack.wait_for(tx_id, TxState::Submitted).await;
    let answer = stack.client().post_to(&format!("/api/v1/tx/{tx_id}/cancel"), &json!({})).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let attempts = stack.wait_attempts(tx_id, 2).await;
    assert_eq!((attempts[1].kind.as_str(), attempts[1].nonce), ("PLACEHOLDER", 0));
    stack.wait_pooled(attempts[1].tx_hash).await;
    stack.anvil().set_automine(true).await;
    stack.anvil().mine(1).await;
    let row = stack.wait_for(tx_id, TxState::Cancelled).await;
    assert_eq!((row.nonce, row.tx_hash), (Some(0), Some(attempts[1].tx_hash)));
    assert_eq!(stack.wait_for(follower, TxState::Confirmed).await.nonce, Some(1));
    assert_eq!(stack.anvil().balance(to).await, 20.into());
    stack.finish().await;
}

/// Scenario 42, the race: the transaction is mined before the placeholder reaches the node.
#[tokio::test(flavor = "multi_thread")]
async fn a_cancellation_that_loses_the_race_ends_in_confirmed() {
    let stack = stack().proxied().mining(Mining::Manual).up().await;
    let (submitter, to) = (stack.submitter(0), Address::repeat_byte(0xe6));
    let tx_id = stack.create(submitter, "too-late", &payload(to, 4)).await;
    stack.wait_for(tx_id, TxState::Submitted).await;
    stack.proxy().always(SEND, Fault::Close);
    let answer = stack.client().post_to(&format!("/api/v1/tx/{tx_id}/cancel"), &json!({})).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    stack.wait_attempts(tx_id, 2).await;
    stack.anvil().mine(1).await;
    let row = stack.wait_for(tx_id, TxState::Confirmed).await;
    assert_eq!(row.tx_hash, Some(stack.attempts(tx_id).await[0].tx_hash));
    stack.proxy().clear();
    assert_eq!(stack.anvil().balance(to).await, 4.into());
    stack.finish().await;
}

/// Scenario 43: no node will accept the transaction; a placeholder consumes the nonce, and the next intent is mined.
#[tokio::test(flavor = "multi_thread")]
async fn what_no_node_will_ever_take_fails_and_its_nonce_is_consumed() {
    let stack = stack().proxied().up().await;
    let (submitter, to) = (stack.submitter(0), Address::repeat_byte(0xe7));
    stack.proxy().next(1, SEND, Fault::error("intrinsic gas too low"));
    let tx_id = stack.create(submitter, "unmineable", &payload(to, 1)).await;
    let follower = stack.create(submitter, "follower", &payload(to, 30)).await;
    let row = stack.wait_for(tx_id, TxState::Failed).await;
    assert_eq!(row.nonce, Some(0));
    assert!(row.last_error.unwrap().contains("intrinsic gas too low"));
    assert_eq!(stack.wait_for(follower, TxState::Confirmed).await.nonce, Some(1));
    let kinds: Vec<String> = stack.attempts(tx_id).await.into_iter().map(|attempt| attempt.kind).collect();
    assert_eq!(kinds, ["ORIGINAL", "PLACEHOLDER"]);
    assert_eq!(stack.anvil().balance(to).await, 30.into());
    stack.finish().await;
}

/// A deadline that passes while the transaction is unmined ends it like a cancellation.
#[tokio::test(flavor = "multi_thread")]
async fn a_deadline_that_passes_in_flight_ends_in_a_placeholder() {
    let stack = stack().mining(Mining::Manual).up().await;
    let to = Address::repeat_byte(0xe8);
    let soon = stack.database_time_in("3 s").await;
    let limited = json!({ "to": format!("{to:#x}"), "value": "1", "deadline": soon });
    let tx_id = stack.create(stack.submitter(0), "in-time", &limited).await;
    let attempts = stack.wait_attempts(tx_id, 2).await;
    assert_eq!(attempts[1].kind, "PLACEHOLDER");
    stack.wait_pooled(attempts[1].tx_hash).await;
    stack.anvil().mine(1).await;
    stack.wait_for(tx_id, TxState::Cancelled).await;
    assert_eq!(stack.anvil().balance(to).await, 0.into());
    stack.finish().await;
}

/// A worker that crashes between the commit of a placeholder and its send leaves one result.
#[tokio::test(flavor = "multi_thread")]
async fn an_heir_finds_the_placeholder_and_every_earlier_attempt() {
    let stack = stack().proxied().short_lease().mining(Mining::Manual).start().await;
    stack.start_api().await;
    let worker = stack.start_worker().await;
    let (submitter, to) = (stack.submitter(0), Address::repeat_byte(0xe9));
    let tx_id = stack.create(submitter, "orphan", &payload(to, 1)).await;
    stack.wait_for(tx_id, TxState::Submitted).await;
    stack.proxy().always(SEND, Fault::Close);
    stack.client().post_to(&format!("/api/v1/tx/{tx_id}/cancel"), &json!({})).await;
    let attempts = stack.wait_attempts(tx_id, 2).await;
    worker.kill9();
    stack.proxy().clear();
    stack.start_worker().await;
    stack.wait_pooled(attempts[1].tx_hash).await;
    stack.anvil().mine(1).await;
    stack.wait_for(tx_id, TxState::Cancelled).await;
    assert_eq!(stack.attempts(tx_id).await.len(), 2, "nothing new was signed");
    assert_eq!(stack.anvil().balance(to).await, 0.into());
    stack.finish().await;
}

/// An operator may request a higher price even if automatic bumping is off.
#[tokio::test(flavor = "multi_thread")]
async fn an_operator_speeds_a_transaction_up_once() {
    let stack = stack().mining(Mining::Manual).up().await;
    let to = Address::repeat_byte(0xea);
    let tx_id = stack.create(stack.submitter(0), "slow", &payload(to, 2)).await;
    stack.wait_for(tx_id, TxState::Submitted).await;
    let path = format!("/api/v1/tx/{tx_id}/speed-up");
    assert_eq!(stack.client().post_to(&path, &json!({})).await.status, 401);
    let answer = stack.client().admin_post(&path, &json!({ "reason": "a customer waits" })).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let attempts = stack.wait_attempts(tx_id, 2).await;
    assert_eq!(attempts[1].kind, "REPLACEMENT");
    stack.wait_pooled(attempts[1].tx_hash).await;
    stack.anvil().mine(1).await;
    let row = stack.wait_for(tx_id, TxState::Confirmed).await;
    assert_eq!(row.tx_hash, Some(attempts[1].tx_hash));
    assert_eq!(stack.anvil().balance(to).await, 2.into());
    stack.finish().await;
}

/// Scenario 44, without bumping: the base fee rises above the cap and falls again; then the same bytes are mined.
#[tokio::test(flavor = "multi_thread")]
async fn a_base_fee_spike_is_sat_out_with_the_same_bytes() {
    let stack = stack().mining(Mining::Manual).set("resubmit.interval", "300ms").up().await;
    let to = Address::repeat_byte(0xeb);
    let tx_id = stack.create(stack.submitter(0), "waiting", &payload(to, 5)).await;
    stack.wait_for(tx_id, TxState::Submitted).await;
    set_base_fee(&stack, 500_000_000_000).await;
    stack.anvil().mine(1).await;
    assert!(
        stack.anvil().receipt(stack.attempts(tx_id).await[0].tx_hash).await.is_none(),
        "the cap is below the spike"
    );
    set_base_fee(&stack, 1_000_000_000).await;
    let row = eventually("it is mined", async || {
        stack.anvil().mine(1).await;
        let row = stack.row(tx_id).await;
        if row.state == TxState::Confirmed { Ok(row) } else { Err(row) }
    })
    .await;
    assert_eq!(stack.attempts(tx_id).await.len(), 1);
    assert_eq!((row.nonce, stack.anvil().balance(to).await), (Some(0), 5.into()));
    stack.finish().await;
}

/// Scenario 44, with bumping: a replacement follows the market through the spike.
#[tokio::test(flavor = "multi_thread")]
async fn a_replacement_follows_a_base_fee_spike() {
    let stack = stack()
        .mining(Mining::Manual)
        .set("gasbump.enabled", true)
        .set("gasbump.min_interval", "500ms")
        .set("gasbump.max_attempts", 3)
        .up()
        .await;
    let to = Address::repeat_byte(0xec);
    let tx_id = stack.create(stack.submitter(0), "eager", &payload(to, 6)).await;
    stack.wait_for(tx_id, TxState::Submitted).await;
    set_base_fee(&stack, 200_000_000_000).await;
    stack.anvil().mine(1).await;
    eventually("a replacement is mined", async || {
        stack.anvil().mine(1).await;
        let row = stack.row(tx_id).await;
        if row.state == TxState::Confirmed { Ok(()) } else { Err(row) }
    })
    .await;
    let attempts = stack.attempts(tx_id).await;
    assert!(attempts.len() >= 2 && attempts.iter().all(|attempt| attempt.nonce == 0), "{attempts:?}");
    assert_eq!(stack.anvil().balance(to).await, 6.into());
    stack.finish().await;
}

async fn set_base_fee(stack: &Stack, wei: u64) {
    stack.anvil().rpc("anvil_setNextBlockBaseFeePerGas", json!([format!("{wei:#x}")])).await;
}

/// A price that the mempool rejects is raised if bumping is on, although no node ever accepted the transaction.
#[tokio::test(flavor = "multi_thread")]
async fn an_underpriced_first_attempt_is_priced_again() {
    let stack =
        stack().proxied().set("gasbump.enabled", true).set("gasbump.min_interval", "300ms").up().await;
    let to = Address::repeat_byte(0xed);
    stack.proxy().next(1, SEND, Fault::error("transaction underpriced"));
    let tx_id = stack.create(stack.submitter(0), "cheap", &payload(to, 1)).await;
    stack.wait_for(tx_id, TxState::Confirmed).await;
    assert_eq!(stack.anvil().balance(to).await, 1.into());
    stack.finish().await;
}

/// A cancelled intent that loses its nonce to an external transaction stays cancelled after the adoption.
#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_intent_does_not_come_back_when_its_nonce_was_taken() {
    let stack = stack().proxied().mining(Mining::Manual).set("resubmit.interval", "500ms").up().await;
    let (submitter, to) = (stack.submitter(0), Address::repeat_byte(0xef));
    let tx_id = stack.create(submitter, "withdrawn", &payload(to, 9)).await;
    let row = stack.wait_for(tx_id, TxState::Submitted).await;
    stack.proxy().always(SEND, Fault::Close);
    let answer = stack.client().post_to(&format!("/api/v1/tx/{tx_id}/cancel"), &json!({})).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    stack.wait_attempts(tx_id, 2).await;
    stack.anvil().drop_transaction(row.tx_hash.unwrap()).await;
    submitter.spend_outside(stack.anvil(), Some(0)).await;
    stack.anvil().mine(1).await;
    stack.proxy().clear();
    stack.wait_protected(submitter).await;
    let answer = stack.submitter_action(submitter, "adopt", "external use is known").await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let row = stack.wait_for(tx_id, TxState::Cancelled).await;
    assert_eq!(row.nonce, None);
    assert_eq!(stack.anvil().balance(to).await, 0.into());
    stack.finish().await;
}

/// The chain's fee limit leaves a placeholder no room; the nonce must be consumed nevertheless.
#[tokio::test(flavor = "multi_thread")]
async fn a_placeholder_exceeds_the_limit_of_the_chain_rather_than_leave_a_nonce_unused() {
    let stack = stack().proxied().set("fees.max_fee_per_gas", "1500000000").up().await;
    let (submitter, to) = (stack.submitter(0), Address::repeat_byte(0xf4));
    stack.proxy().next(1, SEND, Fault::error("intrinsic gas too low"));
    let tx_id = stack.create(submitter, "unmineable", &payload(to, 1)).await;
    let row = stack.wait_for(tx_id, TxState::Failed).await;
    assert_eq!(row.nonce, Some(0));
    let mined = stack.anvil().rpc("eth_getTransactionByHash", json!([row.tx_hash.unwrap()])).await;
    assert!(quantity(&mined["maxFeePerGas"]) > 1_500_000_000, "{mined}");
    assert_eq!(stack.anvil().balance(to).await, 0.into());
    stack.finish().await;
}

/// Scenario 42. Repeating a request costs neither a row nor another check of the lane, and all get the same response.
#[tokio::test(flavor = "multi_thread")]
async fn a_cancellation_that_is_repeated_while_it_waits_is_one_request() {
    let stack = stack().up().await;
    stack.workers()[0].stop_sigterm().await;
    let tx_id =
        stack.create(stack.submitter(0), "asked-often", &payload(Address::repeat_byte(0x4e), 1)).await;
    let client = stack.client();
    let path = format!("/api/v1/tx/{tx_id}/cancel");
    let (now, waiting) = (format!("{path}?wait=0s"), format!("{path}?wait=60s"));
    let body = json!({ "reason": "again and again" });
    for _ in 0..3 {
        let answer = client.post_to(&now, &body).await;
        assert_eq!(answer.status, 202, "{}", answer.body);
    }
    let asked = || async {
        sqlx::query_scalar::<_, i64>("SELECT count(*) FROM tx_request").fetch_one(stack.db()).await.unwrap()
    };
    assert_eq!(asked().await, 1);
    let start = async {
        stack.start_worker().await;
    };
    let (first, second, ()) =
        tokio::join!(client.post_to(&waiting, &body), client.post_to(&waiting, &body), start);
    // A request after it was processed gets the response that it is final.
    for answer in [first, second] {
        assert!(matches!(answer.status, 200 | 409), "{}", answer.body);
    }
    stack.wait_for(tx_id, TxState::Cancelled).await;
    assert_eq!(asked().await, 1, "all are one transaction");
    stack.finish().await;
}

/// Number of attempts when the speed-up request gets 200; `None`: another response.
async fn sped_up(stack: &Stack, tx_id: TxId, wait: &str) -> Option<usize> {
    let path = format!("/api/v1/tx/{tx_id}/speed-up?wait={wait}");
    let answer = stack.client().admin_post(&path, &json!({ "reason": "a customer waits" })).await;
    assert!(matches!(answer.status, 200 | 202), "{answer:?}");
    if answer.status == 200 { Some(stack.attempts(tx_id).await.len()) } else { None }
}

/// Scenario 72: kill -9 after the request was read and before the attempt is stored. The client waits, and gets its
/// response after that.
#[tokio::test(flavor = "multi_thread")]
async fn a_speed_up_survives_a_worker_that_is_killed_over_it() {
    let stack = stack().short_lease().mining(Mining::Manual).start().await;
    stack.start_api().await;
    let worker = stack.worker().failpoint("asked").start().await;
    let to = Address::repeat_byte(0x72);
    let tx_id = stack.create(stack.submitter(0), "hurried", &payload(to, 1)).await;
    stack.wait_for(tx_id, TxState::Submitted).await;
    let heir = async {
        worker.wait_exit().await;
        assert!(worker.log().contains("failpoint: killing"));
        assert_eq!(stack.attempts(tx_id).await.len(), 1, "killed before the next one");
        stack.start_worker().await;
    };
    let (attempts, ()) = tokio::join!(sped_up(&stack, tx_id, "60s"), heir);
    assert_eq!(attempts, Some(2), "a response implies a stored row");
    let attempts = stack.attempts(tx_id).await;
    stack.wait_pooled(attempts[1].tx_hash).await;
    stack.anvil().mine(1).await;
    assert_eq!(stack.wait_for(tx_id, TxState::Confirmed).await.tx_hash, Some(attempts[1].tx_hash));
    assert_eq!(stack.anvil().balance(to).await, 1.into());
    stack.finish().await;
}

/// Scenario 72, with an unreachable signer: the request is stored, also across kill -9, and is carried out later.
#[tokio::test(flavor = "multi_thread")]
async fn a_speed_up_that_waits_for_its_signer_survives_kill_9() {
    let stack = stack().short_lease().mining(Mining::Manual).start().await;
    stack.start_api().await;
    let (submitter, to) = (stack.submitter(0), Address::repeat_byte(0x73));
    let service = SigningService::start(submitter, "token").await;
    let signer = json!([
        { "url": service.url(), "addresses": [submitter.text()], "token_env": "SIGNING_TOKEN" },
    ]);
    let worker =
        || stack.worker().only_keys(&[]).set("signer.http", signer.clone()).env("SIGNING_TOKEN", "token");
    let first = worker().start().await;
    wait_known(&stack, submitter).await;
    let tx_id = stack.create(submitter, "hurried", &payload(to, 1)).await;
    stack.wait_for(tx_id, TxState::Submitted).await;
    service.set_behaviour(Behaviour::Away);
    assert_eq!(sped_up(&stack, tx_id, "2s").await, None, "no response before it is stored");
    first.wait_for_log("new attempt could not be made yet").await;
    first.kill9();
    let second = worker().start().await;
    second.wait_for_log("new attempt could not be made yet").await;
    service.set_behaviour(Behaviour::Honest);
    let attempts = stack.wait_attempts(tx_id, 2).await;
    assert_eq!(attempts[1].kind, "REPLACEMENT");
    stack.wait_pooled(attempts[1].tx_hash).await;
    let open: i64 = sqlx::query_scalar("SELECT count(*) FROM tx_request WHERE applied_at IS NULL")
        .fetch_one(stack.db())
        .await
        .unwrap();
    assert_eq!(open, 0, "finished with its attempt");
    stack.anvil().mine(1).await;
    stack.wait_for(tx_id, TxState::Confirmed).await;
    assert_eq!(stack.attempts(tx_id).await.len(), 2, "made once");
    stack.finish().await;
}

/// A transaction that is mined while a speed-up waits: the request is rejected, and does not wait forever.
#[tokio::test(flavor = "multi_thread")]
async fn a_speed_up_that_comes_too_late_is_refused() {
    let stack = stack().mining(Mining::Manual).start().await;
    stack.start_api().await;
    let (submitter, to) = (stack.submitter(0), Address::repeat_byte(0x74));
    let service = SigningService::start(submitter, "token").await;
    let signer = json!([{ "url": service.url(), "token_env": "SIGNING_TOKEN" }]);
    let worker = stack.worker().only_keys(&[]).set("signer.http", signer).env("SIGNING_TOKEN", "token");
    let worker = worker.start().await;
    wait_known(&stack, submitter).await;
    let tx_id = stack.create(submitter, "mined", &payload(to, 1)).await;
    stack.wait_for(tx_id, TxState::Submitted).await;
    service.set_behaviour(Behaviour::Away);
    let path = format!("/api/v1/tx/{tx_id}/speed-up?wait=60s");
    let client = stack.client();
    let mined = async {
        worker.wait_for_log("new attempt could not be made yet").await;
        stack.anvil().mine(1).await;
    };
    let body = json!({});
    let (answer, ()) = tokio::join!(client.admin_post(&path, &body), mined);
    assert_eq!((answer.status, answer.code()), (409, "action_refused"), "{answer:?}");
    stack.wait_for(tx_id, TxState::Confirmed).await;
    stack.finish().await;
}
