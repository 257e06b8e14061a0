//! Accounts with delegated code (EIP-7702): one open transaction at a time, regardless of the window.

use std::collections::HashSet;

use gapless_testkit::{Address, Fault, Mining, Stack, Submitter, TxId, TxState, eventually, payload};

use crate::shared_keys::shown;
use crate::stack;

/// Number of intents of a submitter with a nonce that are not final.
async fn in_flight(stack: &Stack, submitter: &Submitter) -> Vec<TxId> {
    let rows = stack.rows(submitter).await;
    rows.iter().filter(|row| row.state.is_open()).map(|row| row.tx_id).collect()
}

/// Mines until nothing is left to do; calls `look` before each block.
async fn mine_until_final(stack: &Stack, look: impl AsyncFn()) {
    eventually("every transaction is final", async || {
        look().await;
        if stack.anvil().pending().await > 0 {
            stack.anvil().mine(1).await;
        }
        let left: i64 = sqlx::query_scalar("SELECT count(*) FROM managed_tx WHERE finished_at IS NULL")
            .fetch_one(stack.db())
            .await
            .unwrap();
        if left == 0 { Ok(()) } else { Err(left) }
    })
    .await;
}

/// The same window of 16 for two accounts; one of them is delegated.
#[tokio::test(flavor = "multi_thread")]
async fn a_delegated_account_has_one_transaction_on_its_way_whatever_the_window_is() {
    const INTENTS: u64 = 20;
    let stack = stack().window(16).submitters(2).mining(Mining::Manual).start().await;
    let (delegated, plain) = (stack.submitter(0), stack.submitter(1));
    let (to, delegate) = (Address::repeat_byte(0x70), Address::repeat_byte(0xde));
    stack.anvil().set_code(delegated.address(), &format!("0xef0100{}", hex::encode(delegate))).await;
    stack.start_api().await;
    stack.start_worker().await;

    // The control: without delegated code the configured window applies.
    let mut others = Vec::new();
    for number in 0..16 {
        others.push(stack.create(plain, &format!("plain-{number}"), &payload(to, 1)).await);
    }
    stack.wait_pending(16).await;
    assert_eq!(in_flight(&stack, plain).await.len(), 16);

    let mut tx_ids = Vec::new();
    for number in 0..INTENTS {
        tx_ids.push(stack.create(delegated, &format!("delegated-{number}"), &payload(to, 1)).await);
    }
    stack.wait_pending(17).await;
    stack.anvil().mine(1).await;
    stack.wait_confirmed(&others).await;
    assert_eq!(shown(&stack, delegated).await["delegated"], true);
    assert_eq!(shown(&stack, plain).await["delegated"], false);
    mine_until_final(&stack, async || {
        let open = in_flight(&stack, delegated).await;
        assert!(open.len() <= 1, "{open:?}");
    })
    .await;
    stack.wait_confirmed(&tx_ids).await;
    assert_eq!(stack.anvil().balance(to).await, (INTENTS + 16).into());
    stack.finish().await;
}

/// A node reports the limit for an account whose code was not read yet: it is respected, and the bytes stay the same.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_node_refuses_for_the_limit_of_delegated_accounts_goes_out_again_unchanged() {
    // No resends by timer: only rejected transactions are resent.
    let stack = stack().window(4).proxied().mining(Mining::Manual).up().await;
    let (submitter, to) = (stack.submitter(0), Address::repeat_byte(0x71));
    let first = stack.create(submitter, "first", &payload(to, 1)).await;
    stack.wait_for(first, TxState::Submitted).await;
    let limit = "in-flight transaction limit reached for delegated accounts";
    stack.proxy().always("eth_sendRawTransaction", Fault::error(limit));
    let mut tx_ids = vec![first];
    for number in 1..4 {
        tx_ids.push(stack.create(submitter, &format!("refused-{number}"), &payload(to, 1)).await);
    }
    eventually("the second is refused, again and again", async || match stack.row(tx_ids[1]).await {
        row if row.sub_state.as_deref() == Some("delegated_limit") && row.submit_attempts >= 3 => Ok(()),
        row => Err(row),
    })
    .await;
    eventually("it is shown", async || match shown(&stack, submitter).await {
        seen if seen["delegated"] == true => Ok(()),
        seen => Err(seen),
    })
    .await;
    let last = stack.create(submitter, "last", &payload(to, 1)).await;
    tx_ids.push(last);
    assert_eq!(stack.row(last).await.state, TxState::Queued, "the window is one now");
    stack.proxy().clear();
    // Each is sent as soon as the previous one is mined, not after its backoff.
    mine_until_final(&stack, async || {}).await;
    stack.wait_confirmed(&tx_ids).await;
    let nonces: Vec<Option<u64>> = stack.rows(submitter).await.iter().map(|row| row.nonce).collect();
    assert_eq!(nonces, [0, 1, 2, 3, 4].map(Some), "no gap, and in order");
    let sent: HashSet<String> = stack.proxy().sent().into_iter().collect();
    assert_eq!(sent.len(), tx_ids.len(), "one set of bytes for each");
    stack.finish().await;
}
