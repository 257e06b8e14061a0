//! Replacements of PostgreSQL: a complete standby, one that lacks the last transactions, and a pooler that shares
//! sessions.

use std::sync::atomic::{AtomicUsize, Ordering};

use futures::future::join_all;
use gapless_cli::commands::migrate::migrate;
use gapless_config::Secret;
use gapless_store::Contract;
use gapless_testkit::{
    Address, HaPair, Mining, Mode, Pooler, Stack, Submitter, TxState, Unknown, eventually, payload,
};
use serde_json::json;

use crate::stack;

/// Requests accepted before the primary fails, and after that.
const ENOUGH: usize = 15;

/// Posts requests one by one, each until it is accepted, until `count` are accepted.
async fn keep_asking(
    stack: &Stack,
    submitter: &Submitter,
    to: Address,
    accepted: &AtomicUsize,
    until: usize,
) {
    let client = stack.client();
    for number in 0.. {
        if accepted.load(Ordering::SeqCst) >= until {
            return;
        }
        let request = json!({
            "submitter": submitter.text(), "requestId": format!("r{number}"), "payload": payload(to, 1),
        });
        // Retries the same request until it is accepted.
        eventually("the request is taken", async || {
            let answer = client.try_post(&request).await.map_err(|error| error.to_string())?;
            stack.record_accepted(&answer);
            if matches!(answer.status, 200 | 202) { Ok(()) } else { Err(answer.body.to_string()) }
        })
        .await;
        accepted.fetch_add(1, Ordering::SeqCst);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_synchronous_standby_that_is_promoted_under_load_has_lost_nothing() {
    let mut pair = HaPair::start(true).await;
    let stack = stack().database_at(&pair.url()).submitters(3).window(4).mining(Mining::Interval(0.3));
    let stack = stack.up().await;
    stack.start_worker().await;
    let (to, accepted) = (Address::repeat_byte(0x71), AtomicUsize::new(0));
    let asking = stack.submitters().iter();
    let asking = asking.map(|submitter| keep_asking(&stack, submitter, to, &accepted, 3 * ENOUGH));
    let dying = async {
        eventually("requests are being carried out", async || {
            let seen = accepted.load(Ordering::SeqCst);
            if seen >= ENOUGH { Ok(()) } else { Err(seen) }
        })
        .await;
        pair.fail_over().await;
    };
    tokio::join!(join_all(asking), dying);
    stack.wait_all_terminal().await;
    let accepted = accepted.into_inner();
    let rows: i64 =
        sqlx::query_scalar("SELECT count(*) FROM managed_tx").fetch_one(stack.db()).await.unwrap();
    assert_eq!(rows, accepted as i64, "one row for each request, however often it was repeated");
    assert_eq!(stack.anvil().balance(to).await, accepted.into(), "one effect each");
    stack.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_standby_that_lacks_a_tail_is_found_out_and_no_nonce_is_used_again() {
    let mut pair = HaPair::start(false).await;
    let stack = stack().database_at(&pair.url()).start().await;
    stack.start_api().await;
    let (to, submitter) = (Address::repeat_byte(0x72), stack.submitter(0));
    let worker = stack.start_worker().await;
    let kept = stack.create(submitter, "kept", &payload(to, 1)).await;
    stack.wait_for(kept, TxState::Confirmed).await;
    worker.stop_sigterm().await;
    // Accepted while the standby replicates, executed while it does not.
    let queued = stack.create(submitter, "queued", &payload(to, 1)).await;
    pair.wait_replayed().await;
    pair.stop_standby().await;
    let worker = stack.start_worker().await;
    stack.wait_for(queued, TxState::Confirmed).await;
    worker.stop_sigterm().await;
    assert_eq!(stack.anvil().balance(to).await, 2.into());

    pair.kill_primary();
    pair.start_standby().await;
    pair.fail_over().await;
    // The first read may use a connection to the failed server.
    let state = eventually("the new primary answers", async || {
        let state = sqlx::query_scalar("SELECT state FROM managed_tx WHERE tx_id = $1").bind(queued.0);
        state.fetch_one(stack.db()).await.map_err(|error: sqlx::Error| error.to_string())
    });
    let state: String = state.await;
    assert_eq!(state, "QUEUED", "the last transactions are lost");
    // The step in docs/operate/backup.md before a worker is started: the audit reports what no row explains.
    let verdict = stack.verify().await;
    assert!(
        verdict.broken().iter().any(|check| check.contains("contiguous and recorded")),
        "{:#}",
        verdict.report
    );
    stack.start_worker().await;
    let reason = stack.wait_protected(submitter).await;
    assert!(reason.contains("the key was used outside"), "{reason}");
    let refused = stack.post(submitter, "new", &payload(to, 1)).await;
    assert_eq!((refused.status, refused.code()), (409, "submitter_protected"), "{}", refused.body);
    let row = stack.row(queued).await;
    assert_eq!((row.state, row.nonce), (TxState::Queued, None), "no more nonces are assigned");
    assert_eq!(stack.anvil().balance(to).await, 2.into(), "nothing happened twice");
    stack.finish().await;
}

/// Every process refuses to start behind this pooler, with the reason.
async fn everything_refuses(stack: &Stack, pooler: &Pooler, why: &str) {
    let url = pooler.url(stack.database_url());
    for part in [stack.api(), stack.worker()] {
        let service = part.set("database.url", url.as_str()).without_waiting().start().await;
        let status = service.wait_exit().await;
        assert!(!status.success(), "{} ended with {status}", service.name());
        let log = service.log();
        assert!(log.contains("connection pooler") && log.contains(why), "{log}");
    }
    let refused = format!("{:#}", migrate(&Secret::new(url), Contract::Later).await.unwrap_err());
    assert!(refused.contains("connection pooler") && refused.contains(why), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pooler_in_transaction_mode_is_refused_with_the_reason() {
    let stack = stack().start().await;
    for (unknown, why) in [
        (Unknown::Refused, "unsupported startup parameter"),
        (Unknown::Ignored, "shares sessions between clients"),
    ] {
        let pooler = Pooler::start(stack.database_url(), Mode::Transaction, unknown).await;
        everything_refuses(&stack, &pooler, why).await;
        match Pooler::pgbouncer(stack.database_url(), unknown).await {
            Some(pgbouncer) => everything_refuses(&stack, &pgbouncer, why).await,
            None => eprintln!("PgBouncer is not installed: shown with the tests' own pooler alone"),
        }
    }
    stack.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pooler_that_keeps_sessions_serves_once_the_database_has_the_time_outs() {
    let stack = stack().start().await;
    let pooler = Pooler::start(stack.database_url(), Mode::Session, Unknown::Ignored).await;
    everything_refuses(&stack, &pooler, "does not apply the session timeouts").await;
    for setting in ["statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout"] {
        let database: String =
            sqlx::query_scalar("SELECT current_database()").fetch_one(stack.db()).await.unwrap();
        let statement = format!("ALTER DATABASE {database} SET {setting} = '800ms'");
        sqlx::raw_sql(sqlx::AssertSqlSafe(statement)).execute(stack.db()).await.unwrap();
    }
    let url = pooler.url(stack.database_url());
    stack.api().set("database.url", url.as_str()).start().await;
    stack.worker().set("database.url", url.as_str()).start().await;
    let to = Address::repeat_byte(0x73);
    let tx_id = stack.create(stack.submitter(0), "pooled", &payload(to, 1)).await;
    stack.wait_for(tx_id, TxState::Confirmed).await;
    assert_eq!(stack.anvil().balance(to).await, 1.into());
    stack.finish().await;
}
