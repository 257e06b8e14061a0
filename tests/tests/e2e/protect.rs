//! Keys that somebody else used.

use gapless_tests::{Address, TxState, payload};

use crate::stack;

/// Scenarios 5, 52, 53.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_used_outside_stops_the_lane_until_an_operator_adopts_and_the_displaced_intent_has_its_effect_once()
 {
    let stack = stack().up().await;
    let (submitter, to) = (stack.submitter(0), Address::repeat_byte(0xcc));
    let first = stack.create(submitter, "first", &payload(to, 1)).await;
    stack.wait_for(first, TxState::Confirmed).await;
    submitter.spend_outside(stack.anvil(), None).await;
    let second = stack.create(submitter, "second", &payload(to, 1)).await;
    let reason = stack.wait_protected(submitter).await;
    assert!(reason.contains("used outside"), "{reason}");
    let refused = stack.post(submitter, "third", &payload(to, 1)).await;
    assert_eq!(refused.status, 409, "{}", refused.body);
    let row = stack.row(second).await;
    assert!(matches!(row.state, TxState::Queued | TxState::Protect), "nothing is skipped: {row:?}");
    assert!(stack.verify().await.sound, "a stranger is excused while the submitter stands still");

    let adopted = stack.operate(submitter, "adopt", "the stranger was us").await;
    assert!(adopted.status < 300, "{}", adopted.body);
    let row = stack.wait_for(second, TxState::Confirmed).await;
    assert_eq!(row.nonce, Some(2));
    assert_eq!(stack.anvil().balance(to).await, 2.into());
    stack.finish().await;
}
