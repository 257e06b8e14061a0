//! The command line tool, and an audit that finds damaged data.

use gapless_testkit::{Address, Mining, TxState, eventually, payload};

use crate::stack;

#[tokio::test(flavor = "multi_thread")]
async fn the_audit_finds_a_transaction_whose_attempt_was_removed() {
    let stack = stack().up().await;
    let to = Address::repeat_byte(0x44);
    for request in ["one", "two"] {
        let tx_id = stack.create(stack.submitter(0), request, &payload(to, 1)).await;
        stack.wait_for(tx_id, TxState::Confirmed).await;
    }
    assert!(stack.verify().await.sound);
    assert_eq!(stack.sql("DELETE FROM tx_attempt WHERE nonce = 1").await, 1);
    let text = stack.cli(&["verify"]).await;
    assert_eq!(text.code, 1, "{text:?}");
    assert!(
        text.stdout.contains("nonce 1: consumed on chain by an unrecorded transaction"),
        "{}",
        text.stdout
    );
    stack.finish_unsound("every transaction in the blocks is recorded").await;
}

/// The control for the bound of open intents: a cursor that hides one is reported as unsound.
#[tokio::test(flavor = "multi_thread")]
async fn the_audit_finds_an_open_intent_that_its_cursor_hides() {
    let stack = stack().mining(Mining::Manual).start().await;
    stack.start_api().await;
    let worker = stack.start_worker().await;
    let tx_id = stack.create(stack.submitter(0), "open", &payload(Address::repeat_byte(0x62), 1)).await;
    stack.wait_for(tx_id, TxState::Submitted).await;
    worker.stop_sigterm().await;
    assert!(stack.verify().await.sound);
    // The database rejects it; without its constraint only the audit remains.
    const HIDE: &str = "UPDATE submitter_nonce_cursor SET open_from = next_nonce";
    assert_eq!(stack.refusal(HIDE).await, "23514");
    stack.sql("ALTER TABLE submitter_nonce_cursor DROP CONSTRAINT cursor_in_flight_is_open").await;
    assert_eq!(stack.sql(HIDE).await, 1);
    assert!(!stack.verify().await.sound);
    // A bound that is too low is only slow: the next owner also reads finished intents, and corrects it.
    const LOWER: &str = "UPDATE submitter_nonce_cursor SET open_from = 0";
    assert_eq!(stack.sql(LOWER).await, 1);
    assert!(stack.verify().await.sound);
    stack.start_worker().await;
    stack.anvil().mine(1).await;
    stack.wait_for(tx_id, TxState::Confirmed).await;
    assert_eq!(stack.sql(LOWER).await, 1);
    eventually("the bound is mended", async || {
        let open: i64 = sqlx::query_scalar("SELECT count(*) FROM submitter_nonce_cursor WHERE has_open")
            .fetch_one(stack.db())
            .await
            .unwrap();
        if open == 0 { Ok(()) } else { Err(open) }
    })
    .await;
    stack.finish().await;
}
