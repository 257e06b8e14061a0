//! Connections to the database that fall silent and never break: the server's machine is gone, or something between has forgotten
//! them. No error ever comes; whoever waits has to give up by itself.

use gapless_tests::{Address, Mining, Stack, TxId, TxState, Wire, eventually, payload};

use crate::stack;

const SUBMITTERS: usize = 12;
const EACH: usize = 5;

/// Scenario: in the middle of a flood every connection of an API and a worker falls silent for ever. New ones are fine. Both go on
/// by themselves, and everything happens once.
#[tokio::test(flavor = "multi_thread")]
async fn connections_that_fall_silent_for_ever_are_given_up() {
    let stack = stack().submitters(SUBMITTERS).mining(Mining::Interval(1.0)).start().await;
    let wire = Wire::start(stack.database_url()).await;
    let api = stack.api().over(&wire).start().await;
    stack.worker().over(&wire).start().await;
    stack.wait_announced(&api.client()).await;
    let transfer = payload(Address::repeat_byte(0x71), 1);
    let mut all = Vec::new();
    for n in 0..EACH {
        for submitter in stack.submitters() {
            all.push(stack.create(submitter, &format!("r{n}"), &transfer).await);
        }
    }
    stack.wait_for(all[0], TxState::Confirmed).await;
    let left = all.len() - confirmed(&stack).await;
    assert!(left > 0, "the flood is over before the silence begins");
    wire.forsake();

    // A request that was accepted and not answered is the same request again.
    let late: TxId = eventually("the API takes something again", async || {
        let answer = api.client().post(stack.submitter(0), "late", &transfer).await;
        stack.note(&answer);
        if matches!(answer.status, 200 | 202) {
            Ok(answer.tx_id().parse().unwrap())
        } else {
            Err(answer.status)
        }
    })
    .await;
    all.push(late);
    stack.wait_confirmed(&all).await;
    stack.finish().await;
}

async fn confirmed(stack: &Stack) -> usize {
    let mut count = 0;
    for submitter in stack.submitters() {
        count += stack.rows(submitter).await.iter().filter(|row| row.state == TxState::Confirmed).count();
    }
    count
}
