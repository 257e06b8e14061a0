//! What the API takes, and what it refuses.

use std::collections::HashSet;

use futures::future::join_all;
use gapless_tests::{Address, TxState, payload};

use crate::stack;

/// Scenario 1.
#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_identical_requests_at_once_are_one_transaction() {
    let stack = stack().up().await;
    let (submitter, client) = (stack.submitter(0), stack.client());
    let transfer = payload(Address::repeat_byte(0x11), 5);
    let answers = join_all((0..100).map(|_| client.post(submitter, "the-same", &transfer))).await;
    answers.iter().for_each(|answer| stack.note(answer));
    assert!(answers.iter().all(|answer| matches!(answer.status, 200 | 202)), "{answers:?}");
    assert_eq!(answers.iter().filter(|answer| answer.status == 202).count(), 1, "one of them was the first");
    let ids: HashSet<&str> = answers.iter().map(|answer| answer.tx_id()).collect();
    assert_eq!(ids.len(), 1);
    stack.wait_for(answers[0].tx_id().parse().unwrap(), TxState::Confirmed).await;
    assert_eq!(stack.rows(submitter).await.len(), 1);
    assert_eq!(stack.anvil().balance(Address::repeat_byte(0x11)).await, 5.into());
    stack.finish().await;
}
