//! Nodes that lose answers, talk nonsense, lag, forget and restart.

use gapless_tests::{Address, Fault, Mining, TxState, payload};

use crate::stack;

/// Scenario 30.
#[tokio::test(flavor = "multi_thread")]
async fn a_send_whose_answer_was_lost_is_recognised_as_ours() {
    let stack = stack().proxied().set("resubmit.interval", "1s").up().await;
    stack.proxy().next(1, "eth_sendRawTransaction", Fault::DropAnswer);
    let to = Address::repeat_byte(0x88);
    let tx_id = stack.create(stack.submitter(0), "lost-answer", &payload(to, 7)).await;
    stack.wait_for(tx_id, TxState::Confirmed).await;
    assert_eq!(stack.proxy().rules_left(), 0, "the answer was lost");
    assert_eq!(stack.attempts(tx_id).await.len(), 1);
    let sent = stack.proxy().sent();
    assert!(sent.iter().all(|raw| *raw == sent[0]), "the same bytes, however often");
    assert_eq!(stack.anvil().balance(to).await, 7.into());
    stack.finish().await;
}

/// Scenario 35.
#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_evicted_from_the_mempool_is_sent_again_as_it_was() {
    let stack = stack().proxied().mining(Mining::Manual).set("resubmit.interval", "1s").up().await;
    let to = Address::repeat_byte(0x99);
    let tx_id = stack.create(stack.submitter(0), "evicted", &payload(to, 1)).await;
    stack.wait_for(tx_id, TxState::Submitted).await;
    stack.anvil().drop_all().await;
    gapless_tests::eventually("it is in the mempool again", async || match stack.anvil().pending().await {
        1 => Ok(()),
        other => Err(other),
    })
    .await;
    stack.anvil().mine(1).await;
    stack.wait_for(tx_id, TxState::Confirmed).await;
    let sent = stack.proxy().sent();
    assert!(sent.len() >= 2 && sent.iter().all(|raw| *raw == sent[0]));
    stack.finish().await;
}
