//! Policies of submitters: configured in workers, enforced before a nonce is assigned, and recorded. The API's check
//! is only advisory: most tests bypass it, as an attacker on the API host could.

use std::time::Duration;

use gapless_embed::NonceContext;
use gapless_testkit::{
    Address, ClockedPostgres, Mining, Permitted, Service, Stack, Submitter, TxId, TxState, eventually,
    payload,
};
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Connection, PgConnection};

use crate::stack;
use crate::with_nonce::{failed_by_placeholder, send, transfer};

const TRANSFER: &str = "0xa9059cbb";
const APPROVE: &str = "0x095ea7b3";

fn treasury() -> Address {
    Address::repeat_byte(0x51)
}

/// A worker with this policy, and an API without one.
async fn start_with_policy(stack: &Stack, permitted: &Permitted) -> Service {
    stack.wait_clear_of_midnight().await;
    stack.start_api().await;
    stack.worker().policy(stack.submitter(0), permitted).start().await
}

/// FAILED by the worker: no nonce, no attempt, this code.
async fn refused(stack: &Stack, tx_id: TxId, code: &str) {
    let row = stack.wait_for(tx_id, TxState::Failed).await;
    assert_eq!((row.nonce, row.sub_state.as_deref()), (None, Some("policy")), "{row:?}");
    assert!(stack.attempts(tx_id).await.is_empty());
    assert_eq!(stack.get(tx_id).await["error"]["code"], code);
}

async fn no_breaches(stack: &Stack, permitted: &Permitted) {
    let breaches = stack.policy_breaches(stack.submitter(0), permitted).await;
    assert!(breaches.is_empty(), "{breaches:?}");
}

fn call(to: Address, data: &str) -> Value {
    json!({ "to": format!("{to:#x}"), "data": data })
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_allowed_is_refused_by_the_api_and_nothing_is_stored() {
    let stack = stack().start().await;
    let (submitter, token) = (stack.submitter(0), treasury());
    let permitted = Permitted {
        selectors: vec!["transfer(address,uint256)", "0x"],
        ..Permitted::transfers(token, 10, 100)
    };
    let lax = stack.start_api().await;
    let api = stack.api().policy(submitter, &permitted).start().await;
    let worker = stack.start_worker().await;
    stack.wait_announced(&api.client()).await;
    worker.stop_sigterm().await;
    let refusals = [
        (call(token, APPROVE), "call_not_allowed"),
        (call(Address::repeat_byte(0x52), TRANSFER), "call_not_allowed"),
        (call(token, "0xa9059c"), "call_not_allowed"),
        (payload(Address::repeat_byte(0x52), 1), "call_not_allowed"),
        (json!({ "data": "0x6000" }), "deploy_not_allowed"),
        (payload(token, 11), "value_cap_exceeded"),
    ];
    for (payload, code) in &refusals {
        let answer = api.client().post(submitter, "refused", payload).await;
        assert_eq!((answer.status, answer.code()), (403, *code), "{payload}: {}", answer.body);
        assert_eq!(answer.headers["content-type"], "application/problem+json");
        let body = json!({ "submitter": submitter.text(), "payload": payload });
        let tried = api.client().post_to("/api/v1/tx/simulate", &body).await;
        assert_eq!((tried.status, tried.code()), (403, *code), "{}", tried.body);
    }
    let item = |id: &str, payload: &Value| json!({ "submitter": submitter.text(), "requestId": id, "payload": payload });
    let items = json!({ "items": [item("bad", &refusals[0].0), item("good", &call(token, TRANSFER))] });
    let batch = api.client().post_to("/api/v1/tx/batch", &items).await;
    let results = batch.body["results"].clone();
    assert_eq!((&results[0]["status"], &results[1]["status"]), (&json!(403), &json!(202)), "{results}");
    assert_eq!(results[0]["problem"]["code"], "call_not_allowed");
    assert_eq!(stack.rows(submitter).await.len(), 1, "the good one");

    // Accepted before the policy existed: a repeated request gets the same response.
    let before = lax.client().post(submitter, "before", &refusals[0].0).await;
    assert_eq!(before.status, 202);
    let again = api.client().post(submitter, "before", &refusals[0].0).await;
    assert_eq!((again.status, again.tx_id()), (200, before.tx_id()));
    let other = api.client().post(submitter, "before", &refusals[1].0).await;
    assert_eq!((other.status, other.code()), (409, "request_id_conflict"));
    stack.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_inserted_around_the_api_is_failed_by_the_worker_without_a_nonce() {
    let stack = stack().set("events.mode", "log").start().await;
    let permitted =
        Permitted { selectors: vec!["0x", TRANSFER], ..Permitted::transfers(treasury(), 10, 1000) };
    let worker = start_with_policy(&stack, &permitted).await;
    let (submitter, token) = (stack.submitter(0), treasury());
    stack.wait_announced(&stack.client()).await;
    let refusals = [
        ("selector", call(token, APPROVE), "call_not_allowed", "allow"),
        ("contract", call(Address::repeat_byte(0x52), TRANSFER), "call_not_allowed", "allow"),
        ("short", call(token, "0xa9059c"), "call_not_allowed", "allow"),
        ("itself", payload(submitter.address(), 1), "call_not_allowed", "allow"),
        ("deployment", json!({ "data": "0x6000" }), "deploy_not_allowed", "deploy"),
        ("value", payload(token, 11), "value_cap_exceeded", "max_value"),
    ];
    let mut inserted = Vec::new();
    for (name, payload, ..) in &refusals {
        inserted.push(stack.insert_bypassing_api(submitter, name, payload).await);
    }
    let follower = stack.create(submitter, "follower", &payload(token, 10)).await;
    for (tx_id, (.., code, _)) in inserted.iter().zip(&refusals) {
        refused(&stack, *tx_id, code).await;
        stack.wait_for_event(*tx_id, "tx.failed").await;
    }
    let row = stack.wait_for(follower, TxState::Confirmed).await;
    assert_eq!(row.nonce, Some(0), "rejected ones used no nonce");
    assert_eq!(stack.anvil().mined_from(submitter.address()).await.len(), 1);
    no_breaches(&stack, &permitted).await;

    // The audit trail: what, by which rule, how much, by whom.
    let trail = stack.cli(&["--json", "audit", "--refused"]).await;
    assert_eq!(trail.code, 0, "{trail:?}");
    let entries: Vec<Value> = trail.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(entries.len(), refusals.len(), "{entries:?}");
    for ((entry, tx_id), (name, .., rule)) in entries.iter().zip(&inserted).zip(&refusals) {
        assert_eq!((&entry["decision"], &entry["rule"]), (&json!("REFUSED"), &json!(rule)));
        assert_eq!((&entry["txId"], &entry["requestId"]), (&json!(tx_id.to_string()), &json!(name)));
        assert!(entry["worker"].as_str().is_some_and(|node| !node.is_empty()) && entry["fencingToken"] == 1);
    }
    assert_eq!((&entries[0]["selector"], &entries[4]["to"]), (&json!(APPROVE), &Value::Null));
    assert_eq!((&entries[5]["value"], &entries[5]["limit"]), (&json!("11"), &json!("10")));
    let one = stack.cli(&["audit", "--tx", &follower.to_string()]).await;
    assert!(one.stdout.contains("COUNTED") && one.stdout.lines().count() == 2, "{one:?}");
    assert_eq!(worker.metric("gapless_policy_refused_total", &["rule=\"allow\""]).await, 4.0);
    assert!(worker.log().contains("refused by the submitter's policy"));
    stack.finish().await;
}

/// The negative control of the checker: what a worker without the policy lets through.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_without_the_policy_is_caught_by_the_checker() {
    let stack = stack().up().await;
    let submitter = stack.submitter(0);
    let permitted = Permitted::transfers(treasury(), 10, 15);
    stack.wait_announced(&stack.client()).await;
    let elsewhere =
        stack.insert_bypassing_api(submitter, "call", &payload(Address::repeat_byte(0x52), 1)).await;
    let large = stack.insert_bypassing_api(submitter, "value", &payload(treasury(), 11)).await;
    let more = stack.insert_bypassing_api(submitter, "day", &payload(treasury(), 10)).await;
    stack.wait_confirmed(&[elsewhere, large, more]).await;
    let breaches = stack.policy_breaches(submitter, &permitted).await;
    for kind in ["call 0x to", "value 11", "day 22", "uncounted"] {
        assert!(breaches.iter().any(|breach| breach.starts_with(kind)), "{kind}: {breaches:?}");
    }
    stack.finish().await;
}

/// Another negative control: a count that is missing, and one that exists twice.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_or_doubled_count_is_caught_by_the_checker() {
    let stack = stack().start().await;
    let permitted = Permitted::transfers(treasury(), 10, 100);
    start_with_policy(&stack, &permitted).await;
    let submitter = stack.submitter(0);
    stack.wait_announced(&stack.client()).await;
    let tx_id = stack.create(submitter, "one", &payload(treasury(), 10)).await;
    stack.wait_for(tx_id, TxState::Confirmed).await;
    no_breaches(&stack, &permitted).await;
    stack
        .sql(
            "INSERT INTO policy_audit (chain_id, submitter, tx_id, request_id, decision, rule, value, limit_value, day, day_total,
                                       worker_id, fencing_token)
             SELECT chain_id, submitter, tx_id, request_id, decision, rule, value, limit_value, day - 1, day_total, worker_id, 1
             FROM policy_audit",
        )
        .await;
    let doubled = stack.policy_breaches(submitter, &permitted).await;
    assert!(doubled.len() == 1 && doubled[0].starts_with("uncounted"), "{doubled:?}");
    stack.sql("ALTER TABLE policy_audit DISABLE TRIGGER policy_audit_guard").await;
    assert_eq!(stack.sql("DELETE FROM policy_audit").await, 2);
    let lost = stack.policy_breaches(submitter, &permitted).await;
    assert!(lost.len() == 1 && lost[0].starts_with("uncounted"), "{lost:?}");
    stack.finish().await;
}

/// Killed before the commit nothing is counted, killed after it everything is, once, regardless of the next owner.
#[tokio::test(flavor = "multi_thread")]
async fn the_cap_of_a_day_holds_across_kills_and_takeovers() {
    let stack = stack().short_lease().start().await;
    stack.wait_clear_of_midnight().await;
    stack.start_api().await;
    let (submitter, to) = (stack.submitter(0), treasury());
    let permitted = Permitted::transfers(to, 60, 100);
    let dying = |point: &'static str| stack.worker().policy(submitter, &permitted).failpoint(point).start();
    let mut worker = dying("prepared").await;
    stack.wait_announced(&stack.client()).await;
    let mut sent = Vec::new();
    for index in 0..5 {
        sent.push(stack.create(submitter, &format!("of-twenty-{index}"), &payload(to, 20)).await);
    }
    for point in ["signed", "committed", "sent", "final", "signed:2", "committed:2"] {
        worker.wait_exit().await;
        worker = dying(point).await;
    }
    worker.wait_exit().await;
    stack.worker().policy(submitter, &permitted).start().await;
    stack.wait_confirmed(&sent).await;
    let rows = stack.policy_rows(submitter).await;
    let counts: Vec<_> = rows.iter().map(|row| (row.tx_id, row.value, row.day_total)).collect();
    let expected: Vec<_> = sent.iter().zip(1..).map(|(tx_id, nth)| (*tx_id, 20, Some(nth * 20))).collect();
    assert_eq!(counts, expected, "each once");

    // Nothing is left, except for transactions without value.
    let over = stack.insert_bypassing_api(submitter, "over", &payload(to, 1)).await;
    let none = stack.create(submitter, "without-value", &payload(to, 0)).await;
    refused(&stack, over, "day_cap_exceeded").await;
    assert_eq!(stack.wait_for(none, TxState::Confirmed).await.nonce, Some(5));
    let last = stack.policy_rows(submitter).await.pop().unwrap();
    assert_eq!((last.tx_id, last.decision.as_str(), last.day_total), (over, "REFUSED", Some(100)));
    assert_eq!(stack.anvil().balance(to).await, 100.into());
    no_breaches(&stack, &permitted).await;
    stack.finish().await;
}

/// What fits is sent; what does not is rejected and not counted, in one commit of many.
#[tokio::test(flavor = "multi_thread")]
async fn a_wide_window_counts_what_it_has_not_written_yet() {
    let stack = stack().window(8).mining(Mining::Manual).start().await;
    let permitted = Permitted::transfers(treasury(), 60, 100);
    let worker = start_with_policy(&stack, &permitted).await;
    let (submitter, to) = (stack.submitter(0), treasury());
    stack.wait_announced(&stack.client()).await;
    worker.stop_sigterm().await;
    let mut made = Vec::new();
    for (index, value) in [60, 50, 30, 0, 20, 10].into_iter().enumerate() {
        made.push(stack.create(submitter, &index.to_string(), &payload(to, value)).await);
    }
    stack.worker().policy(submitter, &permitted).start().await;
    for index in [1, 4] {
        refused(&stack, made[index], "day_cap_exceeded").await;
    }
    for (nonce, index) in [0, 2, 3, 5].into_iter().enumerate() {
        assert_eq!(stack.wait_for(made[index], TxState::Submitted).await.nonce, Some(nonce as u64));
    }
    stack.anvil().mine(1).await;
    stack.wait_all_terminal().await;
    let totals: Vec<_> = stack.policy_rows(submitter).await.iter().map(|row| row.day_total).collect();
    assert_eq!(totals, [60, 60, 90, 90, 100].map(Some));
    no_breaches(&stack, &permitted).await;
    stack.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replacement_counts_once_and_a_placeholder_goes_out_when_nothing_else_may() {
    let stack = stack().mining(Mining::Manual).start().await;
    let permitted = Permitted::transfers(treasury(), 100, 100);
    start_with_policy(&stack, &permitted).await;
    let (submitter, to) = (stack.submitter(0), treasury());
    stack.wait_announced(&stack.client()).await;
    let tx_id = stack.create(submitter, "all-of-the-day", &payload(to, 100)).await;
    stack.wait_for(tx_id, TxState::Submitted).await;
    let path = format!("/api/v1/tx/{tx_id}");
    assert_eq!(stack.client().admin_post(&format!("{path}/speed-up"), &json!({})).await.status, 200);
    stack.wait_attempts(tx_id, 2).await;
    let cancelled = stack.client().admin_post(&format!("{path}/cancel"), &json!({})).await;
    assert!(matches!(cancelled.status, 200 | 202), "{cancelled:?}");
    let attempts = stack.wait_attempts(tx_id, 3).await;
    let kinds: Vec<&str> = attempts.iter().map(|attempt| attempt.kind.as_str()).collect();
    assert_eq!(kinds, ["ORIGINAL", "REPLACEMENT", "PLACEHOLDER"]);
    stack.wait_pooled(attempts[2].tx_hash).await;
    stack.anvil().mine(1).await;
    stack.wait_for(tx_id, TxState::Cancelled).await;
    let counted: Vec<_> =
        stack.policy_rows(submitter).await.iter().map(|row| (row.tx_id, row.day_total)).collect();
    assert_eq!(counted, [(tx_id, Some(100))], "it had a nonce");
    let over = stack.insert_bypassing_api(submitter, "over", &payload(to, 1)).await;
    refused(&stack, over, "day_cap_exceeded").await;
    no_breaches(&stack, &permitted).await;
    stack.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_intent_that_loses_its_nonce_to_an_external_transaction_is_counted_once() {
    let stack = stack().mining(Mining::Manual).set("resubmit.interval", "500ms").start().await;
    let permitted = Permitted::transfers(treasury(), 100, 100);
    start_with_policy(&stack, &permitted).await;
    let (submitter, to) = (stack.submitter(0), treasury());
    stack.wait_announced(&stack.client()).await;
    let tx_id = stack.create(submitter, "displaced", &payload(to, 100)).await;
    let nonce = stack.wait_for(tx_id, TxState::Submitted).await.nonce;
    stack.anvil().drop_all().await;
    submitter.spend_outside(stack.anvil(), nonce).await;
    stack.anvil().mine(1).await;
    stack.wait_protected(submitter).await;
    stack.wait_for(tx_id, TxState::Protect).await;
    let adopted = stack.submitter_action(submitter, "adopt", "the tests say so").await;
    assert_eq!(adopted.status, 200, "{}", adopted.body);
    assert_eq!(stack.wait_for(tx_id, TxState::Submitted).await.nonce, Some(1));
    stack.anvil().mine(1).await;
    stack.wait_for(tx_id, TxState::Confirmed).await;
    let rows = stack.policy_rows(submitter).await;
    assert_eq!(rows.iter().map(|row| row.day_total).collect::<Vec<_>>(), [Some(100)]);
    stack.finish().await;
}

/// The policy changes while a transaction is open. Signed transactions cannot be revoked; no more are signed.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_allowed_any_more_is_not_signed_again_and_can_be_cancelled() {
    let stack = stack().mining(Mining::Manual).start().await;
    let lax = Permitted::transfers(treasury(), 100, 1000);
    let worker = start_with_policy(&stack, &lax).await;
    let submitter = stack.submitter(0);
    stack.wait_announced(&stack.client()).await;
    let tx_id = stack.create(submitter, "one", &payload(treasury(), 50)).await;
    stack.wait_for(tx_id, TxState::Submitted).await;
    worker.stop_sigterm().await;
    stack.worker().policy(submitter, &Permitted { max_value: 10, ..lax }).start().await;
    let path = format!("/api/v1/tx/{tx_id}");
    let refused = stack.client().admin_post(&format!("{path}/speed-up?wait=60s"), &json!({})).await;
    assert_eq!((refused.status, refused.code()), (409, "action_refused"), "{refused:?}");
    let rows = eventually("it is refused", async || {
        let rows = stack.policy_rows(submitter).await;
        if rows.len() == 2 { Ok(rows) } else { Err(rows) }
    })
    .await;
    assert_eq!((rows[1].decision.as_str(), rows[1].rule.as_str()), ("REFUSED", "max_value"));
    assert_eq!(stack.attempts(tx_id).await.len(), 1);
    stack.client().admin_post(&format!("{path}/cancel"), &json!({})).await;
    let attempts = stack.wait_attempts(tx_id, 2).await;
    assert_eq!(attempts[1].kind, "PLACEHOLDER");
    stack.wait_pooled(attempts[1].tx_hash).await;
    stack.anvil().mine(1).await;
    stack.wait_for(tx_id, TxState::Cancelled).await;
    stack.finish().await;
}

/// A client that reserves a nonce: its transaction is checked, also if the client signed it.
#[tokio::test(flavor = "multi_thread")]
async fn what_callers_want_for_the_nonces_they_hold_is_held_against_the_policy() {
    let stack = stack().start().await;
    let permitted = Permitted::transfers(treasury(), 60, 100);
    start_with_policy(&stack, &permitted).await;
    let (submitter, to) = (stack.submitter(0).clone(), treasury());
    stack.wait_announced(&stack.client()).await;
    let chain_id = stack.anvil().chain_id();
    let gapless = stack.gapless().await;
    let signed = async |to: Address, value: u64| {
        let call = gapless.call(stack.key(0)).reserve_for(Duration::from_secs(60));
        let bytes = async |held: NonceContext| {
            Ok::<_, String>(submitter.sign_transfer(chain_id, held.nonce.0, to, value).1)
        };
        call.run(bytes).await.unwrap().tx_id
    };
    let elsewhere = send(&stack, 0, transfer(Address::repeat_byte(0x52), 1)).await.unwrap().tx_id;
    failed_by_placeholder(&stack, elsewhere, "does not allow").await;
    assert_eq!(stack.get(elsewhere).await["error"]["code"], "call_not_allowed");
    let counted = send(&stack, 0, transfer(to, 60)).await.unwrap().tx_id;
    stack.wait_for(counted, TxState::Confirmed).await;
    let by_itself = signed(Address::repeat_byte(0x52), 1).await;
    failed_by_placeholder(&stack, by_itself, "does not allow").await;
    let over = signed(to, 41).await;
    failed_by_placeholder(&stack, over, "max_value_per_day").await;
    let rest = signed(to, 40).await;
    stack.wait_for(rest, TxState::Confirmed).await;
    let rows = stack.policy_rows(&submitter).await;
    let decisions: Vec<_> =
        rows.iter().map(|row| (row.tx_id, row.decision.as_str(), row.day_total)).collect();
    assert_eq!(
        decisions,
        [
            (elsewhere, "REFUSED", None),
            (counted, "COUNTED", Some(60)),
            (by_itself, "REFUSED", None),
            (over, "REFUSED", Some(60)),
            (rest, "COUNTED", Some(100)),
        ]
    );
    no_breaches(&stack, &permitted).await;
    stack.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_day_ends_at_midnight_utc() {
    let stack = stack().start().await;
    let permitted = Permitted::transfers(treasury(), 100, 100);
    start_with_policy(&stack, &permitted).await;
    let (submitter, to) = (stack.submitter(0), treasury());
    stack.wait_announced(&stack.client()).await;
    full_day(&stack, submitter, -1).await;
    let today = stack.create(submitter, "today", &payload(to, 100)).await;
    stack.wait_for(today, TxState::Confirmed).await;
    // The control: a sum of this day does count.
    let more = stack.insert_bypassing_api(submitter, "more", &payload(to, 1)).await;
    refused(&stack, more, "day_cap_exceeded").await;
    stack.finish_unsound("daily totals").await;
}

/// As the owner of the tables: a day with a total of 100, for a transaction that does not exist. The audit reports it.
async fn full_day(stack: &Stack, submitter: &Submitter, days_from_now: i32) {
    sqlx::query(
        "INSERT INTO policy_audit (chain_id, submitter, tx_id, request_id, decision, rule, value, limit_value, day, day_total,
                                   worker_id, fencing_token)
         VALUES ($1, $2, gen_random_uuid(), 'r', 'COUNTED', 'max_value_per_day', 100, 100,
                 (clock_timestamp() AT TIME ZONE 'UTC')::DATE + $3, 100, 'n', 1)",
    )
    .bind(i64::try_from(stack.anvil().chain_id()).unwrap())
    .bind(submitter.bytes())
    .bind(days_from_now)
    .execute(stack.db())
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_can_change_what_is_written_and_the_database_insists_on_the_cap() {
    let stack = stack().start().await;
    full_day(&stack, stack.submitter(0), 0).await;
    let code = async |role: Option<&str>, statement: &str| -> String {
        let url = role.map_or(stack.database_url().to_owned(), |role| stack.database_url_as(role));
        let mut session = PgConnection::connect(&url).await.unwrap();
        let outcome = sqlx::query(AssertSqlSafe(statement.to_owned())).execute(&mut session).await;
        let error = outcome.err().map(|error| error.into_database_error().unwrap());
        error.and_then(|error| error.code().map(|code| code.into_owned())).unwrap_or_default()
    };
    let changes = ["UPDATE policy_audit SET value = 0", "DELETE FROM policy_audit", "TRUNCATE policy_audit"];
    for statement in changes {
        for role in ["gapless_api", "gapless_worker"] {
            assert_eq!(code(Some(role), statement).await, "42501", "{role}: {statement}");
        }
        assert_eq!(code(None, statement).await, "GL007", "{statement}");
    }
    let insert = |day_total: u64, limit: u64| {
        format!(
            "INSERT INTO policy_audit (chain_id, submitter, tx_id, request_id, decision, rule, value, limit_value, day, day_total,
                                       worker_id, fencing_token)
             SELECT chain_id, submitter, gen_random_uuid(), 'r', 'COUNTED', 'max_value_per_day', 1, {limit}, day, {day_total}, 'n', 1
             FROM policy_audit LIMIT 1"
        )
    };
    assert_eq!(code(Some("gapless_worker"), &insert(101, 100)).await, "23514", "above the cap");
    assert_eq!(code(Some("gapless_worker"), &insert(100, 200)).await, "23505", "the same sum twice");
    assert_eq!(code(Some("gapless_worker"), &insert(101, 200)).await, "", "the control");
    let most = "115792089237316195423570985008687907853269984665640564039457584007913129639935";
    let largest = insert(101, 200).replace("1, 200, day, 101", &format!("{most}, {most}, day + 1, {most}"));
    assert_eq!(code(Some("gapless_worker"), &largest).await, "", "256 bits fit");
    assert_eq!(code(Some("gapless_api"), &insert(102, 200)).await, "42501");
    assert_eq!(code(Some("gapless_api"), "SELECT FROM policy_audit").await, "42501");
    let now = "INSERT INTO policy_audit (decided_at) VALUES ('1999-01-01')";
    assert_eq!(code(Some("gapless_worker"), now).await, "42501", "the time is from the database's clock");
    stack.finish_unsound("daily totals").await;
}

/// Number of reads and writes of the audit trail, as far as the statistics are reported.
async fn touched(stack: &Stack) -> i64 {
    sqlx::query_scalar(
        "SELECT seq_scan + coalesce(idx_scan, 0) + n_tup_ins FROM pg_stat_user_tables WHERE relname = 'policy_audit'",
    )
    .fetch_one(stack.db())
    .await
    .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_submitter_without_a_policy_costs_no_statement() {
    let stack = stack().submitters(2).start().await;
    let permitted = Permitted::transfers(treasury(), 10, 100);
    let worker = start_with_policy(&stack, &permitted).await;
    stack.wait_announced(&stack.client()).await;
    let before = touched(&stack).await;
    let free = stack.create(stack.submitter(1), "free", &payload(treasury(), 7)).await;
    stack.wait_for(free, TxState::Confirmed).await;
    // Sessions report their statistics at the latest when they end.
    worker.stop_sigterm().await;
    assert_eq!(touched(&stack).await, before);
    // The control: reads of the other submitter are visible.
    let worker = stack.worker().policy(stack.submitter(0), &permitted).start().await;
    let counted = stack.create(stack.submitter(0), "counted", &payload(treasury(), 7)).await;
    stack.wait_for(counted, TxState::Confirmed).await;
    worker.stop_sigterm().await;
    eventually("the trail was touched", async || match touched(&stack).await {
        now if now > before => Ok(()),
        now => Err(now),
    })
    .await;
    stack.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_with_a_policy_that_cannot_be_meant_does_not_start() {
    let stack = stack().start().await;
    let key = format!("submitter.{}.policy", stack.submitter(0).text());
    for (policy, words) in [
        (json!({}), "restricts nothing"),
        (json!({ "max_valeu": 1 }), "max_valeu"),
        (json!({ "max_value": 2, "max_value_per_day": 1 }), "max_value_per_day"),
        (json!({ "allow": [{ "to": "0x12" }] }), "allow[0].to"),
    ] {
        let worker = stack.worker().set(&key, policy).without_waiting().start().await;
        assert!(!worker.wait_exit().await.success());
        assert!(worker.log().contains(words), "{words}: {}", worker.log());
    }
    stack.finish().await;
}

/// The control of the audit's check of daily totals: a changed row, which only the owner of the table can write.
#[tokio::test(flavor = "multi_thread")]
async fn the_audit_finds_a_daily_total_that_was_changed() {
    let stack = stack().start().await;
    let permitted = Permitted::transfers(treasury(), 10, 25);
    start_with_policy(&stack, &permitted).await;
    let submitter = stack.submitter(0);
    for request in ["one", "two"] {
        let tx_id = stack.create(submitter, request, &payload(treasury(), 10)).await;
        stack.wait_for(tx_id, TxState::Confirmed).await;
    }
    let over = stack.create(submitter, "over", &payload(treasury(), 10)).await;
    refused(&stack, over, "day_cap_exceeded").await;
    assert!(stack.verify().await.sound);
    stack.sql("ALTER TABLE policy_audit DISABLE TRIGGER policy_audit_guard").await;
    let lower =
        "UPDATE policy_audit SET value = 1, day_total = 1 WHERE day_total = 10 AND decision = 'COUNTED'";
    assert_eq!(stack.sql(lower).await, 1);
    const CHECK: &str = "daily totals of policies are complete and within their caps";
    assert_eq!(stack.verify().await.broken(), [CHECK]);
    stack.finish_unsound(CHECK).await;
}

/// Seconds from now to the next midnight (UTC), by the database's clock.
async fn seconds_to_midnight(stack: &Stack) -> i64 {
    sqlx::query_scalar(
        "SELECT ceil(extract(epoch FROM date_trunc('day', now, 'UTC') + INTERVAL '1 day' - now))::BIGINT
         FROM clock_timestamp() AS now",
    )
    .fetch_one(stack.db())
    .await
    .unwrap()
}

/// The days and totals of the counted values, in the order in which they were written.
async fn counted_days(stack: &Stack) -> Vec<(i32, i64)> {
    sqlx::query_as(
        "SELECT day - min(day) OVER (), day_total::BIGINT FROM policy_audit WHERE decision = 'COUNTED' ORDER BY entry_no",
    )
    .fetch_all(stack.db())
    .await
    .unwrap()
}

/// The day changes at midnight UTC by the clock of the database, whatever the clock and the time zone of the worker: each
/// day has its cap, and a clock that is set back to the day before finds that day's total again.
#[tokio::test(flavor = "multi_thread")]
async fn each_day_has_its_cap_around_midnight_by_the_clock_of_the_database() {
    let database = ClockedPostgres::start().await;
    let stack = stack().database_at(database.url()).start().await;
    let permitted = Permitted::transfers(treasury(), 10, 10);
    stack.wait_clear_of_midnight().await;
    stack.start_api().await;
    let worker = stack.worker().policy(stack.submitter(0), &permitted).env("TZ", "Pacific/Kiritimati");
    let worker = worker.start().await;
    let submitter = stack.submitter(0);
    let send = async |request: &str| stack.create(submitter, request, &payload(treasury(), 10)).await;
    let first = send("first").await;
    stack.wait_for(first, TxState::Confirmed).await;
    refused(&stack, send("too-much-for-the-first-day").await, "day_cap_exceeded").await;

    // Nearly midnight is still the same day.
    let midnight = seconds_to_midnight(&stack).await;
    database.clock.set(midnight - 45);
    refused(&stack, send("before-midnight").await, "day_cap_exceeded").await;
    database.clock.set(midnight + 1);
    let second = send("after-midnight").await;
    stack.wait_for(second, TxState::Confirmed).await;
    refused(&stack, send("too-much-for-the-second-day").await, "day_cap_exceeded").await;

    // The total is stored per day: the clock that goes back opens no day again.
    database.clock.set(midnight - 45);
    refused(&stack, send("the-day-before").await, "day_cap_exceeded").await;
    database.clock.set(midnight + 1);
    refused(&stack, send("the-second-day-again").await, "day_cap_exceeded").await;

    assert_eq!(counted_days(&stack).await, [(0, 10), (1, 10)]);
    assert_eq!(stack.anvil().balance(treasury()).await, 20.into(), "one cap for each day");
    worker.stop_sigterm().await;
    stack.finish().await;
}

/// Midnight between the lane's check of the cap and its commit: the commit counts for the day in which it is written.
#[tokio::test(flavor = "multi_thread")]
async fn a_commit_after_midnight_counts_for_the_new_day() {
    let database = ClockedPostgres::start().await;
    let stack = stack().database_at(database.url()).start().await;
    let permitted = Permitted::transfers(treasury(), 10, 10);
    stack.wait_clear_of_midnight().await;
    stack.start_api().await;
    stack.worker().policy(stack.submitter(0), &permitted).start().await;
    stack.wait_announced(&stack.client()).await;
    let submitter = stack.submitter(0);
    // The commit waits for this lock, which the check does not need.
    let mut blocker = PgConnection::connect(stack.database_url()).await.unwrap();
    for statement in ["BEGIN", "LOCK TABLE policy_audit IN EXCLUSIVE MODE"] {
        sqlx::query(statement).execute(&mut blocker).await.unwrap();
    }
    let tx_id = stack.create(submitter, "at-midnight", &payload(treasury(), 10)).await;
    eventually("the commit waits", async || {
        let waiting: i64 = sqlx::query_scalar(
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '-- note_policy%'",
        )
        .fetch_one(stack.db())
        .await
        .unwrap();
        if waiting > 0 { Ok(()) } else { Err(waiting) }
    })
    .await;
    database.clock.set(seconds_to_midnight(&stack).await + 1);
    sqlx::query("COMMIT").execute(&mut blocker).await.unwrap();
    stack.wait_for(tx_id, TxState::Confirmed).await;
    refused(&stack, stack.create(submitter, "too-much", &payload(treasury(), 10)).await, "day_cap_exceeded")
        .await;
    let of_today: bool = sqlx::query_scalar(
        "SELECT bool_and(day = (clock_timestamp() AT TIME ZONE 'UTC')::DATE) FROM policy_audit",
    )
    .fetch_one(stack.db())
    .await
    .unwrap();
    assert!(of_today, "counted for the day in which it was committed");
    assert_eq!(stack.anvil().balance(treasury()).await, 10.into());
    blocker.close().await.unwrap();
    stack.finish().await;
}
