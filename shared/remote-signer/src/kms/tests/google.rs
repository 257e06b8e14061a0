use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

use gapless_config as config;
use serde_json::Value;

use super::*;

fn config(fake: &FakeSigner, credentials_file: Option<&Path>, timeout: Duration) -> config::GcpKms {
    config::GcpKms {
        keys: Vec::new(),
        endpoint: fake.url.clone(),
        credentials_file: credentials_file.map(Path::to_path_buf),
        timeout,
        max_in_flight: 4,
    }
}

pub(super) fn kms(fake: &FakeSigner, timeout: Duration) -> GcpKms {
    GcpKms::with_metadata_server(&config(fake, None, timeout), Some(fake.url.clone()))
}

#[tokio::test]
async fn requests_match_the_documented_api() {
    let tx = each_type()[2].clone();
    let digest = STANDARD.encode(tx.typed().sighash());
    let fake = service(honest).await;
    let key = signer(key_of("gcp_kms", &fake));
    key.sign(&tx).await.unwrap();
    key.sign(&tx).await.unwrap();
    let seen = fake.seen();
    assert_eq!(seen.iter().filter(|asked| is_about_tokens(asked)).count(), 1, "a token serves many times");
    assert_eq!(seen[0].header("metadata-flavor"), Some("Google"));
    let (path, _query) = seen[1].line.split_once('?').unwrap();
    assert_eq!(path, format!("POST /v1/{VERSION}:asymmetricSign"));
    assert_eq!(seen[1].header("authorization"), Some("Bearer lent"));
    assert_eq!(seen[1].body["digest"], json!({ "sha256": digest }));
    assert_eq!(seen[1].body["digestCrc32c"], crc32c(tx.typed().sighash().as_bytes()));
}

#[tokio::test]
async fn keys_of_other_curves_are_rejected() {
    let answer = json!({ "pem": "", "algorithm": "EC_SIGN_P256_SHA256" }).to_string();
    let fake = service(move |_| Act::Answer(200, answer.clone())).await;
    let reason = key_of("gcp_kms", &fake).addresses().await.unwrap_err();
    assert!(reason.contains("EC_SIGN_SECP256K1_SHA256"), "{reason}");
}

#[tokio::test]
async fn failures_have_our_message_and_keep_the_services_message_for_the_log() {
    let denied =
        json!({ "error": { "code": 403, "message": "denied on projects/x", "status": "PERMISSION_DENIED" } });
    for (status, body, reason, said) in [
        (
            403,
            denied.to_string(),
            "PERMISSION_DENIED: this worker may not use the key",
            Some("denied on projects/x"),
        ),
        (503, "<html>secret</html>".into(), "HTTP 503", None),
        (200, "<html>secret</html>".into(), "invalid response", None),
    ] {
        let fake = service(move |_| Act::Answer(status, body.clone())).await;
        let failure = kms(&fake, Duration::from_secs(5)).public_key(VERSION).await.unwrap_err();
        assert_eq!((failure.reason.as_str(), failure.said.as_deref()), (reason, said));
    }
}

#[tokio::test]
async fn a_rejected_token_is_replaced() {
    let lent = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&lent);
    let fake = FakeSigner::start(move |asked| {
        if is_about_tokens(asked) {
            return Act::Answer(200, token(&format!("token-{}", counted.fetch_add(1, SeqCst))));
        }
        match asked.header("authorization") {
            Some("Bearer token-1") => honest(asked),
            _ => {
                let status = json!({ "code": 401, "status": "UNAUTHENTICATED", "message": "" });
                Act::Answer(401, json!({ "error": status }).to_string())
            }
        }
    })
    .await;
    let kms = kms(&fake, Duration::from_secs(5));
    for _ in 0..2 {
        let failure = kms.public_key(VERSION).await.unwrap_err();
        assert_eq!(failure.reason, "UNAUTHENTICATED: the credentials are not accepted");
        assert_eq!(lent.load(SeqCst), 1, "a new token is not replaced");
    }
    kms.age_client().await;
    kms.public_key(VERSION).await.unwrap_err();
    kms.public_key(VERSION).await.unwrap();
    assert_eq!(lent.load(SeqCst), 2);
}

#[tokio::test]
async fn a_metadata_server_that_fails_is_asked_again() {
    let asked_for = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&asked_for);
    let fake = FakeSigner::start(move |asked| match is_about_tokens(asked) {
        true => match counted.fetch_add(1, SeqCst) {
            0 => Act::Answer(404, "account 123 is gone".into()),
            1 => Act::Answer(503, String::new()),
            2 => Act::Hang,
            _ => Act::Answer(200, token("lent")),
        },
        false => honest(asked),
    })
    .await;
    let kms = kms(&fake, Duration::from_millis(800));
    for expected in ["no access token", "no access token", "no access token within 400ms"] {
        assert_eq!(kms.public_key(VERSION).await.unwrap_err().reason, expected);
    }
    kms.public_key(VERSION).await.unwrap();
    assert_eq!(asked_for.load(SeqCst), 4);
}

/// A federated identity: a token of another issuer, in a file, is exchanged.
fn external_account(token_url: &str, subject: &Path) -> Value {
    json!({
        "type": "external_account",
        "audience": "//iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/p/providers/p",
        "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
        "token_url": token_url,
        "credential_source": { "file": subject.to_str().unwrap() },
    })
}

#[tokio::test]
async fn an_external_account_exchanges_its_token() {
    let fake = FakeSigner::start(|asked| match asked.line.as_str() {
        "POST /exchange" => {
            assert!(asked.text.contains("subject_token=of-the-pod"), "{}", asked.text);
            let kind = "urn:ietf:params:oauth:token-type:access_token";
            let answer = json!({
                "access_token": "granted", "issued_token_type": kind, "token_type": "Bearer", "expires_in": 3599,
            });
            Act::Answer(200, answer.to_string())
        }
        _ => {
            assert_eq!(asked.header("authorization"), Some("Bearer granted"));
            honest(asked)
        }
    })
    .await;
    let dir = tempfile::tempdir().unwrap();
    let (path, subject) = (dir.path().join("account.json"), dir.path().join("token"));
    std::fs::write(&subject, "of-the-pod").unwrap();
    std::fs::write(&path, external_account(&format!("{}/exchange", fake.url), &subject).to_string()).unwrap();
    let kms = GcpKms::new(&config(&fake, Some(&path), Duration::from_secs(5)));
    kms.public_key(VERSION).await.unwrap();
}

#[tokio::test]
async fn an_invalid_credentials_file_is_named_and_read_again() {
    let fake = service(honest).await;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("account.json");
    let kms = GcpKms::new(&config(&fake, Some(&path), Duration::from_secs(5)));
    let begin = "-----BEGIN PRIVATE KEY-----";
    let account = json!({
        "type": "service_account", "client_email": "a@b", "private_key": begin, "private_key_id": "1",
        "project_id": "p",
    });
    assert_eq!(kms.public_key(VERSION).await.unwrap_err().reason, "invalid credentials", "there is no file");
    for (text, reason, said) in [
        (String::new(), "invalid credentials", "is not JSON"),
        (json!({ "type": "authorized_user" }).to_string(), "invalid credentials", "neither"),
        (
            json!({ "type": "service_account", "private_key": begin }).to_string(),
            "invalid credentials",
            "a field",
        ),
        (external_account("http://sts.example", &path).to_string(), "invalid credentials", "unencrypted"),
        (account.to_string(), "no access token", "private key"),
    ] {
        std::fs::write(&path, text).unwrap();
        let failure = kms.public_key(VERSION).await.unwrap_err();
        let have = failure.said.unwrap();
        assert!(
            failure.reason == reason && have.contains(said) && !have.contains("BEGIN"),
            "{reason}: {have}"
        );
    }
    assert!(fake.seen().is_empty());
}
