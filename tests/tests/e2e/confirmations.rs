//! Depth, and chains that change their mind.

use gapless_tests::{Address, Mining, TxState, payload};

use crate::stack;

/// Scenario 47.
#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_dropped_by_a_reorg_is_mined_again_without_a_gap() {
    let stack = stack().confirmations(3).mining(Mining::Manual).set("resubmit.interval", "1s").up().await;
    let (submitter, to) = (stack.submitter(0), Address::repeat_byte(0xbb));
    let first = stack.create(submitter, "first", &payload(to, 1)).await;
    let second = stack.create(submitter, "second", &payload(to, 1)).await;
    stack.wait_for(first, TxState::Submitted).await;
    stack.anvil().mine(2).await;
    let tracked = stack.wait_for(first, TxState::Tracking).await;
    stack.anvil().reorg(2).await;
    stack.wait_for(first, TxState::Submitted).await;
    assert_eq!(stack.row(second).await.state, TxState::Queued, "the window is still taken");
    gapless_tests::eventually("it is in the mempool again", async || match stack.anvil().pending().await {
        1 => Ok(()),
        other => Err(other),
    })
    .await;
    stack.anvil().mine(3).await;
    let row = stack.wait_for(first, TxState::Confirmed).await;
    assert_eq!((row.nonce, row.tx_hash), (tracked.nonce, tracked.tx_hash), "the same bytes");
    stack.wait_for(second, TxState::Submitted).await;
    stack.anvil().mine(3).await;
    stack.wait_for(second, TxState::Confirmed).await;
    stack.finish().await;
}
