//! Several chains in one deployment: one database, one API, one worker, and independent sequences.

use gapless_testkit::{Address, Answer, Fault, Stack, Submitter, TxId, TxState, eventually, payload};
use serde_json::{Value, json};

use crate::stack;

async fn post(
    stack: &Stack,
    chain: usize,
    submitter: &Submitter,
    request_id: &str,
    payload: &Value,
) -> Answer {
    let chain_id = stack.chain(chain).chain_id();
    let body = json!({ "chainId": chain_id, "submitter": submitter.text(), "requestId": request_id, "payload": payload });
    let answer = stack.client().post_raw(&body).await;
    stack.record_accepted(&answer);
    answer
}

async fn create(stack: &Stack, chain: usize, request_id: &str, payload: &Value) -> TxId {
    let answer = post(stack, chain, stack.submitter(0), request_id, payload).await;
    assert_eq!(answer.status, 202, "{answer:?}");
    answer.tx_id().parse().unwrap()
}

/// Next nonce and PROTECT reason, by chain.
async fn cursors(stack: &Stack) -> Vec<(i64, i64, Option<String>)> {
    sqlx::query_as(
        "SELECT chain_id, next_nonce, protect_reason FROM submitter_nonce_cursor ORDER BY chain_id",
    )
    .fetch_all(stack.db())
    .await
    .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_submitter_on_two_chains_has_two_sequences() {
    let stack = stack().chains(2).up().await;
    let (client, submitter, to) = (stack.client(), stack.submitter(0), Address::repeat_byte(0x61));
    let ids = [0, 1].map(|index| stack.chain(index).chain_id());

    let unnamed = client.post(submitter, "r0", &payload(to, 1)).await;
    assert_eq!(
        (unnamed.status, unnamed.code()),
        (400, "invalid_request"),
        "the chain is ambiguous: {unnamed:?}"
    );
    let body =
        json!({ "chainId": 1, "submitter": submitter.text(), "requestId": "r0", "payload": payload(to, 1) });
    let unknown = client.post_raw(&body).await;
    assert_eq!((unknown.status, unknown.code()), (404, "unknown_chain"), "{unknown:?}");
    let unnamed = client.get(&format!("/api/v1/tx?submitter={}", submitter.text())).await;
    assert_eq!((unnamed.status, unnamed.code()), (400, "invalid_request"), "{unnamed:?}");

    let mut tx_ids = Vec::new();
    for n in 0..3 {
        tx_ids.push(create(&stack, 0, &format!("r{n}"), &payload(to, 1)).await);
    }
    for n in 0..2 {
        tx_ids.push(create(&stack, 1, &format!("r{n}"), &payload(to, 1)).await);
    }
    stack.wait_confirmed(&tx_ids).await;
    let mut nonces = Vec::new();
    for tx_id in &tx_ids {
        nonces.push(stack.row(*tx_id).await.nonce.unwrap());
    }
    assert_eq!(nonces, [0, 1, 2, 0, 1]);
    assert_eq!(stack.chain(0).balance(to).await, 3.into());
    assert_eq!(stack.chain(1).balance(to).await, 2.into());
    for (index, count) in [(0, 3), (1, 2)] {
        let filter = format!("chainId={}&submitter={}", ids[index], submitter.text());
        let listed = client.get(&format!("/api/v1/tx?{filter}")).await;
        assert_eq!(listed.body["items"].as_array().map(Vec::len), Some(count), "{listed:?}");
        let found = client.get(&format!("/api/v1/tx/by-request?{filter}&requestId=r0")).await;
        assert_eq!(found.body["txId"], tx_ids[index * 3].to_string(), "{found:?}");
        let seen = client
            .admin_get(&format!("/api/v1/submitters/{}?chainId={}", submitter.text(), ids[index]))
            .await;
        assert_eq!(seen.body["nextNonce"], count, "{seen:?}");
    }
    stack.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chain_whose_node_is_away_does_not_hold_up_the_other() {
    let stack = stack().chains(2).proxied().up().await;
    let to = Address::repeat_byte(0x62);
    let warm = create(&stack, 0, "warm", &payload(to, 1)).await;
    stack.wait_for(warm, TxState::Confirmed).await;
    stack.proxy().always("*", Fault::Close);
    let waiting = create(&stack, 0, "waiting", &payload(to, 1)).await;
    for n in 0..5 {
        let tx_id = create(&stack, 1, &format!("r{n}"), &payload(to, 1)).await;
        stack.wait_for(tx_id, TxState::Confirmed).await;
    }
    assert_ne!(stack.row(waiting).await.state, TxState::Confirmed, "its node is away");
    stack.proxy().clear();
    assert_eq!(stack.wait_for(waiting, TxState::Confirmed).await.nonce, Some(1));
    stack.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_used_outside_on_one_chain_is_protected_on_that_chain_alone() {
    let stack = stack().chains(2).start().await;
    let (submitter, to) = (stack.submitter(0), Address::repeat_byte(0x63));
    submitter.make_history(stack.chain(0), 1).await;
    stack.start_api().await;
    stack.start_worker().await;
    let stopped = create(&stack, 0, "first", &payload(to, 1)).await;
    eventually("the first chain's sequence is protected", async || {
        let cursors = cursors(&stack).await;
        if cursors.iter().any(|(_, _, reason)| reason.is_some()) { Ok(()) } else { Err(cursors) }
    })
    .await;
    let fine = create(&stack, 1, "first", &payload(to, 1)).await;
    stack.wait_for(fine, TxState::Confirmed).await;
    let refused = post(&stack, 0, submitter, "second", &payload(to, 1)).await;
    assert_eq!((refused.status, refused.code()), (409, "submitter_protected"), "{refused:?}");
    let ids = [0, 1].map(|index| i64::try_from(stack.chain(index).chain_id()).unwrap());
    let seen = cursors(&stack).await;
    assert!(seen[0].0 == ids[0] && seen[0].1 == 0 && seen[0].2.is_some(), "{seen:?}");
    assert_eq!(seen[1], (ids[1], 1, None));

    let path = |action: &str, chain_id: i64| {
        format!("/api/v1/submitters/{}/{action}?chainId={chain_id}", submitter.text())
    };
    let act = async |action: &str, chain_id: i64| {
        let client = stack.client();
        let request = client
            .request(reqwest::Method::POST, &path(action, chain_id))
            .json(&json!({ "reason": "known" }));
        client.ask(request.bearer_auth(client.admin_token())).await
    };
    assert_eq!(act("adopt", ids[1]).await.code(), "not_protected");
    let adopted = act("adopt", ids[0]).await;
    assert_eq!((adopted.status, &adopted.body["status"]), (200, &json!("applied")), "{adopted:?}");
    assert_eq!(stack.wait_for(stopped, TxState::Confirmed).await.nonce, Some(1));
    assert_eq!(stack.chain(0).balance(to).await, 1.into());
    stack.finish().await;
}
