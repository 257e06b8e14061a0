//! One owner at a time, and a former owner changes nothing.

use gapless_tests::{Address, Mining, TxState, payload};

use crate::stack;

/// Scenario 16.
#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_worker_cannot_write_after_losing_its_lease() {
    let stack = stack().short_lease().mining(Mining::Manual).start().await;
    stack.start_api().await;
    let frozen = stack.worker().set("worker.node_id", "frozen").start().await;
    let (submitter, to) = (stack.submitter(0), Address::repeat_byte(0x55));
    let first = stack.create(submitter, "first", &payload(to, 1)).await;
    stack.wait_for(first, TxState::Submitted).await;
    frozen.sigstop();

    stack.worker().set("worker.node_id", "successor").start().await;
    let lease = stack.wait_owned(submitter, Some("frozen")).await;
    assert_eq!(lease.owner.as_deref(), Some("successor"));
    stack.anvil().mine(1).await;
    stack.wait_for(first, TxState::Confirmed).await;
    frozen.sigcont();
    let second = stack.create(submitter, "second", &payload(to, 1)).await;
    stack.wait_for(second, TxState::Submitted).await;
    stack.anvil().mine(1).await;
    let row = stack.wait_for(second, TxState::Confirmed).await;
    assert_eq!(row.fencing_token, Some(lease.fencing_token), "written by the successor");
    assert_eq!(stack.anvil().balance(to).await, 2.into());
    stack.finish().await;
}
