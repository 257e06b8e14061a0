use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

use aws_lc_rs::encoding::{AsDer, Pkcs8V1Der};
use aws_lc_rs::rsa::{KeyPair, KeySize};
use aws_lc_rs::signature::{KeyPair as _, RSA_PKCS1_2048_8192_SHA256, UnparsedPublicKey};
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::Value;

use super::*;

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
    assert_eq!(seen[1].line, format!("POST /v1/{VERSION}:asymmetricSign"));
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
async fn a_rejected_token_is_replaced() {
    let lent = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&lent);
    let fake = FakeSigner::start(move |asked| {
        if is_about_tokens(asked) {
            let token = format!("token-{}", counted.fetch_add(1, SeqCst));
            return Act::Answer(200, json!({ "access_token": token, "expires_in": 3599 }).to_string());
        }
        match asked.header("authorization") {
            Some("Bearer token-1") => honest(asked),
            _ => Act::Answer(401, json!({ "error": { "status": "UNAUTHENTICATED" } }).to_string()),
        }
    })
    .await;
    let signer = signer(key_of("gcp_kms", &fake));
    let tx = each_type()[0].clone();
    let error = signer.sign(&tx).await.unwrap_err().to_string();
    assert!(error.contains("the credentials are not accepted"), "{error}");
    signer.sign(&tx).await.unwrap();
    assert_eq!(lent.load(SeqCst), 2);
}

#[tokio::test]
async fn a_service_account_authenticates_with_a_signed_assertion() {
    let pair = KeyPair::generate(KeySize::Rsa2048).unwrap();
    let der: Pkcs8V1Der<'_> = pair.as_der().unwrap();
    let begin_end = |word: &str| format!("-----{word} PRIVATE KEY-----");
    let pem = format!("{}\n{}\n{}\n", begin_end("BEGIN"), STANDARD.encode(der.as_ref()), begin_end("END"));
    let public = pair.public_key().as_ref().to_vec();
    let fake = FakeSigner::start(move |asked| {
        if asked.line != "POST /token" {
            assert_eq!(asked.header("authorization"), Some("Bearer granted"));
            return honest(asked);
        }
        let grant = "grant_type=urn%3Aietf%3Aparams%3Aoauth%3Agrant-type%3Ajwt-bearer&assertion=";
        let (signed, signature) = asked.text.strip_prefix(grant).unwrap().rsplit_once('.').unwrap();
        let signature = URL_SAFE_NO_PAD.decode(signature).unwrap();
        let verifier = UnparsedPublicKey::new(&RSA_PKCS1_2048_8192_SHA256, &public);
        verifier.verify(signed.as_bytes(), &signature).unwrap();
        let claims = URL_SAFE_NO_PAD.decode(signed.split_once('.').unwrap().1).unwrap();
        let claims: Value = serde_json::from_slice(&claims).unwrap();
        assert_eq!(claims["iss"], "gapless@p.iam.gserviceaccount.com");
        assert_eq!(claims["scope"], "https://www.googleapis.com/auth/cloudkms");
        assert!(claims["aud"].as_str().unwrap().ends_with("/token"));
        assert_eq!(claims["exp"].as_i64().unwrap() - claims["iat"].as_i64().unwrap(), 3600);
        Act::Answer(200, json!({ "access_token": "granted", "expires_in": 3599 }).to_string())
    })
    .await;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("account.json");
    let config = config::GcpKms {
        keys: Vec::new(),
        endpoint: fake.url.clone(),
        credentials_file: Some(path.clone()),
        timeout: Duration::from_secs(10),
        max_in_flight: 4,
    };
    let signer = signer(CloudKey::new(Arc::new(GcpKms::new(&config).unwrap()), VERSION));
    let tx = each_type()[2].clone();
    let mut account = json!({
        "type": "service_account", "client_email": "gapless@p.iam.gserviceaccount.com", "private_key": pem,
        "token_uri": "http://token.example/token",
    });
    for (broken, said) in [
        (String::new(), "not the key of a service account"),
        (json!({ "type": "external_account" }).to_string(), "not the key of a service account"),
        (account.to_string(), "unencrypted"),
    ] {
        std::fs::write(&path, broken).unwrap();
        let error = signer.sign(&tx).await.unwrap_err().to_string();
        assert!(error.contains(said) && !error.contains("PRIVATE"), "{error}");
    }
    account["token_uri"] = json!(format!("{}/token", fake.url));
    std::fs::write(&path, account.to_string()).unwrap();
    signer.sign(&tx).await.unwrap();
}
