//! Keys that somebody else used.

use gapless_tests::{Address, TxState, payload};

use crate::stack;

/// Scenarios 5, 52.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_used_outside_stops_the_lane_and_new_requests_are_refused() {
    let stack = stack().up().await;
    let (submitter, to) = (stack.submitter(0), Address::repeat_byte(0xcc));
    let first = stack.create(submitter, "first", &payload(to, 1)).await;
    stack.wait_for(first, TxState::Confirmed).await;
    submitter.spend_outside(stack.anvil(), None).await;
    stack.anvil().mine(30).await;
    let second = stack.create(submitter, "second", &payload(to, 1)).await;
    let reason = stack.wait_protected(submitter).await;
    assert!(reason.contains("used outside"), "{reason}");
    let refused = stack.post(submitter, "third", &payload(to, 1)).await;
    assert_eq!(refused.status, 409, "{}", refused.body);
    assert_eq!(stack.row(second).await.nonce.unwrap_or(2), 2, "nothing is skipped, nothing is reused");
    stack.finish().await;
}
