//! Prices and funds.

use gapless_tests::{Address, TxState, U256, eventually, payload};

use crate::stack;

/// Scenario 41.
#[tokio::test(flavor = "multi_thread")]
async fn a_submitter_without_funds_waits_and_goes_on_once_funded_while_others_work() {
    let stack = stack().submitters(2).up().await;
    let (poor, rich) = (stack.submitter(0), stack.submitter(1));
    stack.anvil().set_balance(poor.address(), 0).await;
    let to = Address::repeat_byte(0xaa);
    let waiting = stack.create(poor, "poor", &payload(to, 1)).await;
    eventually("it waits for funds", async || {
        let row = stack.row(waiting).await;
        if row.sub_state.as_deref() == Some("waiting_funds") { Ok(()) } else { Err(row) }
    })
    .await;
    let other = stack.create(rich, "rich", &payload(to, 1)).await;
    stack.wait_for(other, TxState::Confirmed).await;
    let row = stack.row(waiting).await;
    assert_eq!((row.state, row.nonce), (TxState::Queued, None), "no nonce is burnt");
    stack.anvil().set_balance(poor.address(), U256::exp10(18)).await;
    stack.wait_for(waiting, TxState::Confirmed).await;
    stack.finish().await;
}
