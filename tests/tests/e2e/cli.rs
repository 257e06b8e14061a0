//! The command line tool, and the audit that must be able to fail.

use gapless_tests::{Address, TxState, payload};

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
    assert!(text.stdout.contains("nonce 1: consumed on chain, and not by us"), "{}", text.stdout);
    stack.finish_unsound("every transaction in the blocks is recorded").await;
}
