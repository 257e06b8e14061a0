//! `openapi.yaml` is true: schemathesis makes requests of it, right ones and wrong ones, and compares the answers.

use gapless_tests::{Schemathesis, Stack};

use crate::stack;

const DOCUMENT: &str = include_str!("../../../openapi.yaml");
/// The address that examples in the document are about.
const EXAMPLE: &str = "0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266";
const SCOPES: [&str; 6] = ["--scope", "tx:read", "--scope", "tx:write", "--scope", "admin"];

/// A stack with a locked door, an API of it, and a key for everything.
async fn stack_with_key() -> (Stack, String, String) {
    // A client may wait for as long as it likes; here that has to be short.
    let stack = stack().set("api.max_wait", "100ms").start().await;
    let (key, _) = stack.api_key(&SCOPES).await;
    let api = stack.start_api().await;
    stack.start_worker().await;
    stack.wait_announced(&stack.client().with_key(&key)).await;
    (stack, api.url(), key)
}

/// The document with one thing changed, at the first place after `part`.
fn changed(part: &str, from: &str, to: &str) -> String {
    let (before, after) = DOCUMENT.split_once(part).unwrap_or_else(|| panic!("no {part} in the document"));
    assert!(after.contains(from), "no {from} after {part}");
    format!("{before}{part}{}", after.replacen(from, to, 1))
}

/// Scenario: requests made of the document, valid and hostile, are answered as it says; nothing is a 500.
#[tokio::test(flavor = "multi_thread")]
async fn every_request_that_the_document_allows_or_forbids_is_answered_as_it_says() {
    let Some(schemathesis) = Schemathesis::find().await else { return };
    let (stack, url, key) = stack_with_key().await;
    // Examples are about a submitter that is here, so that they are accepted.
    let document = DOCUMENT.replace(EXAMPLE, &stack.submitter(0).text());
    assert_ne!(document, DOCUMENT);
    let found = schemathesis.run(stack.dir(), &document, &url, &key, &[]).await;
    assert_eq!(found.code, 0, "{}\n{}", found.stdout, found.stderr);
    // It did get through the door, and not only once.
    assert!(!stack.rows(stack.submitter(0)).await.is_empty());
    let client = stack.client().with_key(&key);
    assert_eq!(client.operate_with_key(stack.submitter(0), "resume").await.status, 200);
    stack.wait_all_terminal().await;
    stack.finish().await;
}

/// The negative control: a document that is wrong in one place is found out, and the finding can be shown again.
#[tokio::test(flavor = "multi_thread")]
async fn a_document_that_is_wrong_is_found_out() {
    let Some(schemathesis) = Schemathesis::find().await else { return };
    let (stack, url, key) = stack_with_key().await;
    for (path, document, finding) in [
        ("/healthz", changed("/healthz:", "'200'", "'204'"), "Undocumented status code"),
        ("/healthz", changed("HealthStatus:", "type: string", "type: integer"), "Response violates schema"),
        (
            "/api/v1/stuck",
            changed("/api/v1/stuck:", "maximum: 200", "maximum: 201"),
            "Schema-valid request rejected",
        ),
        (
            "/api/v1/stuck",
            changed("/api/v1/stuck:", "minimum: 1", "minimum: 2"),
            "Schema-violating request accepted",
        ),
    ] {
        let args = ["--include-path", path, "--phases", "coverage"];
        let found = schemathesis.run(stack.dir(), &document, &url, &key, &args).await;
        assert_eq!(found.code, 1, "{}\n{}", found.stdout, found.stderr);
        assert!(found.stdout.contains(finding), "no `{finding}` in {}", found.stdout);
        assert!(found.stdout.contains("curl -X"), "{}", found.stdout);
    }
    stack.finish().await;
}
