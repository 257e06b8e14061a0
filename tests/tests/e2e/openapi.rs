//! The API matches `openapi.yaml`: schemathesis generates valid and invalid requests from it, and checks the
//! responses.

use gapless_testkit::{Schemathesis, Stack};

use crate::stack;

const DOCUMENT: &str = include_str!("../../../openapi.yaml");
/// The address in the examples of the document.
const EXAMPLE: &str = "0x1111111111111111111111111111111111111111";
/// The webhook in the examples of the document, and one where nothing listens: tests send nothing to other machines.
const WEBHOOK: &str = "https://example.com/hooks/gapless";
const NOBODY: &str = "http://127.0.0.1:9/hooks/gapless";
const SCOPES: [&str; 6] = ["--scope", "tx:read", "--scope", "tx:write", "--scope", "admin"];

/// A stack that requires API keys, an API of it, and a key with all permissions.
async fn stack_with_key() -> (Stack, String, String) {
    // Clients may wait as long as they like; here the limit is short.
    let stack =
        stack().webhooks().set("api.max_wait", "100ms").set("events.webhook.timeout", "1s").start().await;
    let (key, _) = stack.api_key(&SCOPES).await;
    let api = stack.start_api().await;
    stack.start_worker().await;
    stack.wait_announced(&stack.client().with_key(&key)).await;
    (stack, api.url(), key)
}

/// The document with one change, at the first place after `part`.
fn changed(part: &str, from: &str, to: &str) -> String {
    let (before, after) = DOCUMENT.split_once(part).unwrap_or_else(|| panic!("no {part} in the document"));
    assert!(after.contains(from), "no {from} after {part}");
    format!("{before}{part}{}", after.replacen(from, to, 1))
}

/// Scenario: generated requests, valid and malicious, get documented responses; nothing is a 500.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "make test-ecosystem"]
async fn every_request_that_the_document_allows_or_forbids_is_answered_as_it_says() {
    let Some(schemathesis) = Schemathesis::find().await else { return };
    let (stack, url, key) = stack_with_key().await;
    // Examples use an existing submitter, so that they are accepted.
    let document = DOCUMENT.replace(EXAMPLE, &stack.submitter(0).text()).replace(WEBHOOK, NOBODY);
    assert_ne!(document, DOCUMENT);
    let found = schemathesis.run(stack.dir(), &document, &url, &key, &[]).await;
    assert_eq!(found.code, 0, "{}\n{}", found.stdout, found.stderr);
    // Authenticated requests succeeded, more than once.
    assert!(!stack.rows(stack.submitter(0)).await.is_empty());
    let client = stack.client().with_key(&key);
    assert_eq!(client.submitter_action_with_key(stack.submitter(0), "resume").await.status, 200);
    stack.wait_all_terminal().await;
    stack.finish().await;
}

/// The negative control: an error in the document is found, and the finding can be reproduced.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "make test-ecosystem"]
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
