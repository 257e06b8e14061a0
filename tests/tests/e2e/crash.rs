//! Whatever dies, the next owner finds the same rows and does the same steps.

use gapless_tests::{Address, Mining, TxState, payload};
use gapless_worker::failpoint::POINTS;

use crate::stack;

/// Scenario 25.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_killed_at_any_step_leaves_exactly_one_effect() {
    // Blocks come slowly enough for every step to be taken on its own.
    let blocks = Mining::Interval(0.3);
    let stack = stack().short_lease().confirmations(2).mining(blocks).submitters(POINTS.len()).start().await;
    stack.start_api().await;
    let to = Address::repeat_byte(0x66);
    for (index, point) in POINTS.into_iter().enumerate() {
        let doomed = stack.worker().failpoint(point).start().await;
        // The submitter is announced by then, even by a worker that dies at its first claim.
        let first = stack.create(stack.submitter(index), "first", &payload(to, 1)).await;
        let second = stack.create(stack.submitter(index), "second", &payload(to, 1)).await;
        doomed.wait_exit().await;
        assert!(doomed.log().contains("failpoint"), "killed at {point}");
        let heir = stack.start_worker().await;
        stack.wait_for(first, TxState::Confirmed).await;
        let row = stack.wait_for(second, TxState::Confirmed).await;
        assert_eq!(row.nonce, Some(1), "after {point}");
        heir.stop_sigterm().await;
    }
    assert_eq!(stack.anvil().balance(to).await, (2 * POINTS.len()).into());
    stack.finish().await;
}

/// Scenario 26.
#[tokio::test(flavor = "multi_thread")]
async fn a_database_killed_in_the_middle_of_the_work_loses_nothing_that_was_accepted() {
    let stack = stack().own_postgres().submitters(4).window(4).up().await;
    let to = Address::repeat_byte(0xdd);
    for submitter in stack.submitters() {
        for request in 0..10 {
            stack.create(submitter, &format!("r{request}"), &payload(to, 1)).await;
        }
    }
    stack.kill_postgres().await;
    stack.restart_postgres().await;
    stack.wait_all_terminal().await;
    assert_eq!(stack.anvil().balance(to).await, 40.into());
    stack.finish().await;
}
