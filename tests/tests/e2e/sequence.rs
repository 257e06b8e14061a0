//! Nonces are given one after the other, and never without need.

use futures::future::join_all;
use gapless_tests::{Address, TxState, payload};

use crate::stack;

#[tokio::test(flavor = "multi_thread")]
async fn a_transfer_is_confirmed_and_arrives() {
    let stack = stack().up().await;
    let to = Address::repeat_byte(0x22);
    let tx_id = stack.create(stack.submitter(0), "first", &payload(to, 1_000)).await;
    let row = stack.wait_for(tx_id, TxState::Confirmed).await;
    assert_eq!(row.nonce, Some(0));
    assert_eq!(stack.anvil().balance(to).await, 1_000.into());
    let seen = stack.get(tx_id).await;
    assert_eq!(seen["state"], "CONFIRMED");
    assert!(!seen.to_string().contains("nonce"), "a nonce is nobody's business: {seen}");
    stack.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn several_submitters_go_on_side_by_side_each_from_zero() {
    let stack = stack().submitters(5).up().await;
    let to = Address::repeat_byte(0x33);
    let creates = stack.submitters().iter().flat_map(|submitter| {
        let stack = &stack;
        (0..4).map(move |n| async move { stack.create(submitter, &format!("r{n}"), &payload(to, 1)).await })
    });
    let tx_ids = join_all(creates).await;
    stack.wait_confirmed(&tx_ids).await;
    for submitter in stack.submitters() {
        let mut nonces: Vec<u64> = stack.rows(submitter).await.iter().filter_map(|row| row.nonce).collect();
        nonces.sort();
        assert_eq!(nonces, [0, 1, 2, 3]);
    }
    assert_eq!(stack.anvil().balance(to).await, 20.into());
    stack.finish().await;
}
