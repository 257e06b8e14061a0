//! Nonces are assigned consecutively, and only when needed.

use std::time::Duration;

use ethers_core::utils::keccak256;
use futures::future::join_all;
use gapless_testkit::{
    Address, Fault, H256, Mining, Stack, StackBuilder, TxId, TxState, eventually, payload,
};

use crate::stack;

/// Hashes of sent transactions, each once, in the order of their first sends.
fn first_sends(stack: &Stack) -> Vec<H256> {
    let mut seen = Vec::new();
    for raw in stack.proxy().sent() {
        let hash = H256(keccak256(hex::decode(raw.trim_start_matches("0x")).unwrap()));
        if !seen.contains(&hash) {
            seen.push(hash);
        }
    }
    seen
}

async fn wait_sub_state(stack: &Stack, tx_id: TxId, wanted: &str) {
    eventually(&format!("{tx_id} is {wanted}"), async || {
        let row = stack.row(tx_id).await;
        if row.sub_state.as_deref() == Some(wanted) { Ok(()) } else { Err(row) }
    })
    .await;
}

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
    assert!(!seen.to_string().contains("nonce"), "clients see no nonce: {seen}");
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

/// `count` concurrent creates; afterwards the chain has consecutive nonces from zero.
async fn a_flood_becomes_a_gapless_sequence(stack: StackBuilder, count: u64) {
    let stack = stack.up().await;
    let (submitter, client) = (stack.submitter(0), stack.client());
    let to = Address::repeat_byte(0x81);
    let transfer = payload(to, 1);
    let posts = (0..count).map(|n| {
        let (client, transfer) = (client.clone(), &transfer);
        async move { client.post(submitter, &format!("r{n}"), transfer).await }
    });
    for answer in join_all(posts).await {
        assert_eq!(answer.status, 202, "{answer:?}");
        stack.record_accepted(&answer);
    }
    stack.wait_all_terminal_within(Duration::from_secs(180)).await;
    let rows = stack.rows(submitter).await;
    assert!(rows.iter().all(|row| row.state == TxState::Confirmed));
    // In the order of acceptance, without omissions.
    assert_eq!(rows.iter().filter_map(|row| row.nonce).collect::<Vec<_>>(), (0..count).collect::<Vec<_>>());
    let mined = stack.anvil().mined_from(submitter.address()).await;
    let nonces: Vec<u64> = mined
        .iter()
        .map(|tx| u64::from_str_radix(tx["nonce"].as_str().unwrap().trim_start_matches("0x"), 16).unwrap())
        .collect();
    assert_eq!(nonces, (0..count).collect::<Vec<_>>(), "strictly increasing on chain, none missing");
    assert_eq!(stack.anvil().balance(to).await, count.into());
    stack.finish().await;
}

/// Scenario 8, with a larger window so that a thousand are fast.
#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_creates_at_once_have_the_nonces_from_0_to_999() {
    a_flood_becomes_a_gapless_sequence(stack().window(32).set("nonce.release_at", "mined"), 1_000).await;
}

/// Scenario 8, one at a time as by default.
#[tokio::test(flavor = "multi_thread")]
async fn with_a_window_of_one_a_flood_is_a_gapless_sequence_too() {
    a_flood_becomes_a_gapless_sequence(stack(), 60).await;
}

/// Scenario 9.
#[tokio::test(flavor = "multi_thread")]
async fn while_the_first_is_unconfirmed_the_second_is_queued_and_has_no_nonce() {
    let stack = stack().confirmations(2).mining(Mining::Manual).up().await;
    let (submitter, to) = (stack.submitter(0), Address::repeat_byte(0x91));
    let first = stack.create(submitter, "first", &payload(to, 1)).await;
    let second = stack.create(submitter, "second", &payload(to, 1)).await;
    let queued = async |when: &str| {
        let row = stack.row(second).await;
        assert_eq!((row.state, row.nonce), (TxState::Queued, None), "{when}");
        assert!(stack.attempts(second).await.is_empty(), "{when}");
        assert_eq!(stack.cursor(submitter).await.map(|cursor| cursor.next), Some(1), "{when}");
    };
    stack.wait_for(first, TxState::Submitted).await;
    queued("while the first is pending").await;
    stack.anvil().mine(1).await;
    stack.wait_for(first, TxState::Tracking).await;
    queued("while the first is mined but not deep enough").await;
    assert_eq!(stack.anvil().pending().await, 0, "nothing else was sent");
    stack.anvil().mine(1).await;
    stack.wait_for(first, TxState::Confirmed).await;
    assert_eq!(stack.wait_for(second, TxState::Submitted).await.nonce, Some(1));
    stack.anvil().mine(2).await;
    stack.wait_for(second, TxState::Confirmed).await;
    stack.finish().await;
}

/// Scenario 10.
#[tokio::test(flavor = "multi_thread")]
async fn what_would_revert_fails_without_a_nonce_and_the_next_gets_it() {
    let stack = stack().up().await;
    let (submitter, to, reverts) =
        (stack.submitter(0), Address::repeat_byte(0xa1), Address::repeat_byte(0xa2));
    stack.anvil().set_code(reverts, "0x60006000fd").await;
    let before = stack.create(submitter, "before", &payload(to, 1)).await;
    let doomed = stack.create(submitter, "doomed", &payload(reverts, 0)).await;
    let after = stack.create(submitter, "after", &payload(to, 1)).await;
    stack.wait_confirmed(&[before, after]).await;
    let row = stack.wait_for(doomed, TxState::Failed).await;
    assert_eq!((row.nonce, row.tx_hash), (None, None));
    assert_eq!(row.sub_state.as_deref(), Some("would_revert"));
    assert!(row.last_error.is_some_and(|error| error.contains("revert")));
    assert!(stack.attempts(doomed).await.is_empty());
    assert_eq!(stack.row(before).await.nonce, Some(0));
    assert_eq!(stack.row(after).await.nonce, Some(1), "the nonce that was not used");
    assert_eq!(stack.anvil().count(submitter.address(), "latest").await, 2);
    let seen = stack.get(doomed).await;
    assert_eq!(seen["state"], "FAILED", "{seen}");
    assert!(seen["lastError"].as_str().is_some_and(|error| error.contains("revert")), "{seen}");
    stack.finish().await;
}

/// Scenario 11.
#[tokio::test(flavor = "multi_thread")]
async fn a_signer_that_is_away_delays_and_burns_no_nonce() {
    let stack = stack().submitters(2).start().await;
    let away = stack.dir().join("signer-is-away");
    stack.start_api().await;
    stack.worker().env("GAPLESS_FAILPOINT_SIGNER", away.to_str().unwrap()).start().await;
    let (submitter, to) = (stack.submitter(0), Address::repeat_byte(0xb1));
    let first = stack.create(submitter, "first", &payload(to, 1)).await;
    stack.wait_for(first, TxState::Confirmed).await;

    std::fs::write(&away, "").unwrap();
    let waiting = stack.create(submitter, "waiting", &payload(to, 1)).await;
    let unused = stack.create(stack.submitter(1), "unused", &payload(to, 1)).await;
    for tx_id in [waiting, unused] {
        wait_sub_state(&stack, tx_id, "waiting_signer").await;
        let row = stack.row(tx_id).await;
        assert_eq!((row.state, row.nonce), (TxState::Queued, None));
        assert!(stack.attempts(tx_id).await.is_empty());
    }
    assert_eq!(stack.cursor(submitter).await.map(|cursor| cursor.next), Some(1));
    assert_eq!(stack.anvil().count(submitter.address(), "pending").await, 1);

    std::fs::remove_file(&away).unwrap();
    assert_eq!(stack.wait_for(waiting, TxState::Confirmed).await.nonce, Some(1));
    assert_eq!(stack.wait_for(unused, TxState::Confirmed).await.nonce, Some(0));
    stack.finish().await;
}

/// Scenario 13.
#[tokio::test(flavor = "multi_thread")]
async fn in_a_window_of_16_nothing_is_sent_ahead_of_a_nonce_the_node_refused() {
    let stack = stack().window(16).proxied().mining(Mining::Manual).up().await;
    let (submitter, proxy) = (stack.submitter(0), stack.proxy());
    let to = Address::repeat_byte(0xd1);
    // Two are accepted, the third and later ones meet a full mempool.
    proxy.next(2, "eth_sendRawTransaction", Fault::Delay(Duration::ZERO));
    proxy.always("eth_sendRawTransaction", Fault::error("txpool is full"));
    let creates = (0..10).map(|n| {
        let stack = &stack;
        async move { stack.create(submitter, &format!("r{n}"), &payload(to, 1)).await }
    });
    let tx_ids = join_all(creates).await;
    eventually("all have their nonces and the third was refused twice", async || {
        let with_nonce = stack.rows(submitter).await.iter().filter(|row| row.nonce.is_some()).count();
        let seen = (with_nonce, proxy.sent().len());
        if with_nonce == 10 && seen.1 >= 4 { Ok(()) } else { Err(seen) }
    })
    .await;
    let mut rows = stack.rows(submitter).await;
    rows.sort_by_key(|row| row.nonce);
    let hashes: Vec<H256> = rows.iter().filter_map(|row| row.tx_hash).collect();
    assert_eq!(first_sends(&stack), hashes[..3], "N was refused: N+1 was not sent");
    assert_eq!(stack.anvil().pending().await, 2);
    assert!(rows[2..].iter().all(|row| row.state == TxState::InFlight), "{rows:?}");

    proxy.clear();
    eventually("all are in the pool", async || match stack.anvil().pending().await {
        10 => Ok(()),
        other => Err(other),
    })
    .await;
    assert_eq!(first_sends(&stack), hashes, "in the order of their nonces");
    stack.anvil().mine(1).await;
    stack.wait_confirmed(&tx_ids).await;
    assert_eq!(stack.anvil().balance(to).await, 10.into());
    stack.finish().await;
}

/// Scenario 14.
#[tokio::test(flavor = "multi_thread")]
async fn an_address_with_a_history_is_refused_until_it_is_adopted() {
    let stack = stack().start().await;
    let (submitter, to) = (stack.submitter(0), Address::repeat_byte(0xe1));
    submitter.make_history(stack.anvil(), 3).await;
    stack.start_api().await;
    stack.start_worker().await;
    let first = stack.create(submitter, "first", &payload(to, 1)).await;
    let reason = stack.wait_protected(submitter).await;
    assert!(reason.contains("history"), "{reason}");
    let row = stack.row(first).await;
    assert_eq!((row.state, row.nonce), (TxState::Queued, None), "it waits, and no nonce was given from zero");
    let refused = stack.post(submitter, "refused", &payload(to, 1)).await;
    assert_eq!((refused.status, refused.code()), (409, "submitter_protected"), "{refused:?}");

    // A release is not an adoption: the next check stops it again.
    stack.submitter_action(submitter, "release", "to see what happens").await;
    let reason = stack.wait_protected(submitter).await;
    assert_eq!(stack.row(first).await.nonce, None, "{reason}");

    let adopted = stack.submitter_action(submitter, "adopt", "the history is known").await;
    assert_eq!((adopted.status, &adopted.body["status"]), (200, &"applied".into()), "{adopted:?}");
    assert_eq!(stack.wait_for(first, TxState::Confirmed).await.nonce, Some(3), "where the chain stands");
    let second = stack.create(submitter, "second", &payload(to, 1)).await;
    assert_eq!(stack.wait_for(second, TxState::Confirmed).await.nonce, Some(4));
    assert_eq!(stack.cursor(submitter).await.map(|cursor| cursor.start), Some(3));
    assert_eq!(stack.anvil().balance(to).await, 2.into());
    stack.finish().await;
}

/// Scenario 14, by an operator who acts beforehand.
#[tokio::test(flavor = "multi_thread")]
async fn an_address_with_a_history_can_be_adopted_before_its_first_use() {
    let stack = stack().submitters(2).start().await;
    let (old, fresh) = (stack.submitter(0), stack.submitter(1));
    old.make_history(stack.anvil(), 2).await;
    stack.start_api().await;
    let worker = stack.start_worker().await;
    let to = Address::repeat_byte(0xe2);
    for (submitter, next) in [(old, 2), (fresh, 0)] {
        let adopted = stack.submitter_action(submitter, "adopt", "before its first use").await;
        assert_eq!((adopted.status, &adopted.body["status"]), (200, &"applied".into()), "{adopted:?}");
        let tx_id = stack.create(submitter, "first", &payload(to, 1)).await;
        assert_eq!(stack.wait_for(tx_id, TxState::Confirmed).await.nonce, Some(next));
    }
    let again = stack.submitter_action(old, "adopt", "once more").await;
    assert_eq!((again.status, again.code()), (409, "not_protected"), "{again:?}");
    assert!(!worker.log().contains("PROTECT"), "nothing was ever wrong");
    stack.finish().await;
}
