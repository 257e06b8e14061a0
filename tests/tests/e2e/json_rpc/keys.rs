//! Keys: in the header or in the path, and what they allow.

use gapless_testkit::Stack;
use serde_json::{Value, json};

use super::{SEND, answer, path, transfer, with_rpc};

const UNAUTHORIZED: i64 = 4100;

async fn stored(stack: &Stack) -> usize {
    stack.rows(stack.submitter(0)).await.len() + stack.rows(stack.submitter(1)).await.len()
}

/// Scenario 91.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_sends_only_with_its_scope_and_its_submitters() {
    let stack = with_rpc().submitters(2).start().await;
    let (read, _) = stack.api_key(&["--scope", "tx:read"]).await;
    let own = format!("{}:{}", stack.anvil().chain_id(), stack.submitter(1).text());
    let (limited, _) =
        stack.api_key(&["--scope", "tx:read", "--scope", "tx:write", "--submitter", &own]).await;
    stack.start_api().await;
    stack.start_worker().await;
    let nobody = stack.client();
    let [reader, limited] = [&read, &limited].map(|key| nobody.with_key(key));
    stack.wait_announced(&reader).await;
    let refused = answer(&reader, &stack, SEND, transfer(&stack, json!({}))).await;
    assert_eq!(refused["error"]["code"], UNAUTHORIZED, "{refused}");
    assert_eq!(refused["error"]["data"]["code"], "scope_missing");
    assert!(refused["error"]["message"].as_str().unwrap().contains("tx:write"), "{refused}");
    let refused = answer(&limited, &stack, SEND, transfer(&stack, json!({}))).await;
    assert_eq!(refused["error"]["data"]["code"], "submitter_not_allowed", "{refused}");
    assert_eq!(stored(&stack).await, 0, "nothing was stored");
    let accounts = answer(&limited, &stack, "eth_accounts", json!([])).await;
    assert_eq!(accounts["result"], json!([stack.submitter(1).text().to_lowercase()]));
    let tx = transfer(&stack, json!({ "from": stack.submitter(1).text() }));
    let sent = answer(&limited, &stack, SEND, tx).await;
    assert!(sent["result"].is_string(), "{sent}");
    // The transaction of another submitter: the node's answer, and nothing of ours.
    let (all, _) = stack.api_key(&["--scope", "tx:write"]).await;
    let writer = nobody.with_key(&all);
    let other = answer(&writer, &stack, SEND, transfer(&stack, json!({}))).await["result"].clone();
    let tx_id = stack.rows(stack.submitter(0)).await[0].tx_id.to_string();
    for asked in [other, json!(tx_id)] {
        let hidden = answer(&limited, &stack, "gapless_getTransaction", json!([asked])).await;
        assert_eq!(hidden["result"], Value::Null, "{hidden}");
        let shown = answer(&reader, &stack, "gapless_getTransaction", json!([asked])).await;
        assert_eq!(shown["result"]["txId"], json!(tx_id), "{shown}");
    }
    for (method, params) in [
        ("eth_blockNumber", json!([])),
        ("eth_getTransactionCount", json!([stack.submitter(0).text(), "pending"])),
        ("eth_getTransactionReceipt", json!([format!("0x{}", "11".repeat(32))])),
        ("gapless_getTransaction", json!([tx_id])),
    ] {
        let refused = answer(&writer, &stack, method, params).await;
        assert_eq!(refused["error"]["data"]["code"], "scope_missing", "{method}: {refused}");
    }
    stack.finish().await;
}

async fn chain_id(stack: &Stack, path: &str) -> (u16, Value) {
    let call = json!({ "jsonrpc": "2.0", "id": 1, "method": "eth_chainId" });
    let answer = stack.client().post_to(path, &call).await;
    (answer.status, answer.body)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_in_the_path_works_and_appears_nowhere() {
    let stack = with_rpc().set("log.level", "trace").start().await;
    let (key, _) = stack.api_key(&["--scope", "tx:read"]).await;
    let api = stack.start_api().await;
    let (status, body) = chain_id(&stack, &format!("{}/{key}", path(&stack))).await;
    assert_eq!((status, &body["result"]), (200, &json!("0x7a69")), "{body}");
    let wrong = format!("{}x", &key[..key.len() - 1]);
    for bad in [format!("{}/{wrong}", path(&stack)), format!("{}/{key}/more", path(&stack)), path(&stack)] {
        let (status, body) = chain_id(&stack, &bad).await;
        assert_eq!((status, &body["error"]["code"]), (401, &json!(UNAUTHORIZED)), "{body}");
        assert!(!body.to_string().contains(&key[..key.len() - 1]), "{body}");
    }
    // Mistakes of a user: without the chain id, with a slash too many, in another case.
    for mistaken in [format!("/rpc/{key}"), format!("/{}/{key}", path(&stack)), format!("/RPC/31337/{key}")] {
        let (status, body) = chain_id(&stack, &mistaken).await;
        assert!(status == 404 || status == 401, "{mistaken}: {status} {body}");
    }
    assert!(!api.log().contains(&key[..key.len() - 1]), "the key is in the log");
    assert!(api.log().contains(&format!("\"{}\"", path(&stack))), "requests are logged with their path");
    stack.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_in_the_path_can_be_disabled() {
    let stack = with_rpc().set("api.json_rpc.key_in_path", false).start().await;
    let (key, _) = stack.api_key(&["--scope", "tx:read"]).await;
    stack.start_api().await;
    let (status, body) = chain_id(&stack, &format!("{}/{key}", path(&stack))).await;
    assert_eq!(status, 401, "{body}");
    assert!(body["error"]["message"].as_str().unwrap().contains("api.json_rpc.key_in_path"), "{body}");
    let with_header = answer(&stack.client().with_key(&key), &stack, "eth_chainId", json!([])).await;
    assert_eq!(with_header["result"], "0x7a69");
    stack.finish().await;
}
