use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

use aws_lc_rs::encoding::{AsDer, Pkcs8V1Der};
use aws_lc_rs::rsa::{KeyPair, KeySize};
use aws_lc_rs::signature::{KeyPair as _, RSA_PKCS1_2048_8192_SHA256, UnparsedPublicKey};
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use crc::{CRC_32_ISCSI, Crc};
use ethers_core::k256::ecdsa::signature::hazmat::PrehashSigner;
use ethers_core::k256::ecdsa::{self, SigningKey};
use ethers_signers::Signer as _;
use serde_json::{Value, json};

use super::*;
use crate::remote_signer::RemoteKey;
use crate::testing::{Act, Asked, FakeSigner, each_type, wallet};
use crate::{Signer, SignerError};
use gapless_config as config;

const VERSION: &str = "projects/p/locations/l/keyRings/r/cryptoKeys/k/cryptoKeyVersions/1";
const KINDS: [&str; 2] = ["aws_kms", "gcp_kms"];

fn ours() -> SigningKey {
    SigningKey::from_slice(&[0x46; 32]).unwrap()
}

fn crc32c(bytes: &[u8]) -> String {
    Crc::<u32>::new(&CRC_32_ISCSI).checksum(bytes).to_string()
}

fn spki(key: &SigningKey) -> Vec<u8> {
    let head = hex::decode("3056301006072a8648ce3d020106052b8104000a034200").unwrap();
    [&head[..], key.verifying_key().to_encoded_point(false).as_bytes()].concat()
}

/// A signature of the requested digest, with the higher `s`, as the services may return it.
fn sign(asked: &Asked, key: &SigningKey) -> Vec<u8> {
    let text = asked.body["Message"].as_str().or(asked.body["digest"]["sha256"].as_str()).unwrap();
    let low: ecdsa::Signature = key.sign_prehash(&STANDARD.decode(text).unwrap()).unwrap();
    let (r, s) = low.split_scalars();
    ecdsa::Signature::from_scalars(r, -s).unwrap().to_der().as_bytes().to_vec()
}

/// A response in the format of the service.
fn signed_by(asked: &Asked, signature: &[u8]) -> Act {
    let encoded = STANDARD.encode(signature);
    let answer = match asked.header("x-amz-target") {
        Some(_) => json!({ "KeyId": "arn", "Signature": encoded, "SigningAlgorithm": "ECDSA_SHA_256" }),
        None => json!({
            "name": VERSION, "signature": encoded, "signatureCrc32c": crc32c(signature),
            "verifiedDigestCrc32c": asked.body["digestCrc32c"].is_string(),
        }),
    };
    Act::Answer(200, answer.to_string())
}

fn honest(asked: &Asked) -> Act {
    if asked.header("x-amz-target") == Some("TrentService.GetPublicKey") {
        let answer = json!({ "KeySpec": "ECC_SECG_P256K1", "PublicKey": STANDARD.encode(spki(&ours())) });
        return Act::Answer(200, answer.to_string());
    }
    if asked.line.starts_with("GET /v1/") {
        let lines = STANDARD.encode(spki(&ours()));
        let pem = format!("-----BEGIN PUBLIC KEY-----\n{lines}\n-----END PUBLIC KEY-----\n");
        let algorithm = "EC_SIGN_SECP256K1_SHA256";
        let answer = json!({ "pem": pem, "algorithm": algorithm, "pemCrc32c": crc32c(pem.as_bytes()) });
        return Act::Answer(200, answer.to_string());
    }
    signed_by(asked, &sign(asked, &ours()))
}

fn is_about_tokens(asked: &Asked) -> bool {
    asked.line.contains("/computeMetadata/")
}

/// A service that reacts with `act` and always issues tokens.
async fn service(act: impl Fn(&Asked) -> Act + Send + Sync + 'static) -> FakeSigner {
    FakeSigner::start(move |asked| match is_about_tokens(asked) {
        true => Act::Answer(200, json!({ "access_token": "lent", "expires_in": 3599 }).to_string()),
        false => act(asked),
    })
    .await
}

fn key_of(kind: &str, fake: &FakeSigner) -> CloudKey {
    let timeout = Duration::from_millis(800);
    let environment = |name: &str| match name {
        "GCE_METADATA_HOST" => fake.url.strip_prefix("http://").map(str::to_owned),
        "AWS_ACCESS_KEY_ID" => Some("AKIDEXAMPLE".into()),
        "AWS_SECRET_ACCESS_KEY" => Some("the-secret-of-the-tests".into()),
        "AWS_SESSION_TOKEN" => Some("the-session".into()),
        _ => None,
    };
    let (cloud, id): (Arc<dyn Cloud>, _) = match kind {
        "aws_kms" => {
            let config = config::AwsKms {
                region: "eu-central-1".into(),
                keys: Vec::new(),
                endpoint: Some(fake.url.clone()),
                credentials: config::AwsCredentials::Environment,
                credentials_file: None,
                profile: "default".into(),
                timeout,
                max_in_flight: 4,
            };
            (Arc::new(AwsKms::with_environment(&config, &environment).unwrap()), "alias/a")
        }
        _ => {
            let config = config::GcpKms {
                keys: Vec::new(),
                endpoint: fake.url.clone(),
                credentials_file: None,
                timeout,
                max_in_flight: 4,
            };
            (Arc::new(GcpKms::with_environment(&config, &environment).unwrap()), VERSION)
        }
    };
    CloudKey::new(cloud, id)
}

fn signer(key: CloudKey) -> RemoteKey {
    RemoteKey::new(wallet().address(), Arc::new(key))
}

#[tokio::test]
async fn each_service_signs_each_type() {
    for kind in KINDS {
        let fake = service(honest).await;
        let key = key_of(kind, &fake);
        assert_eq!(key.addresses().await.unwrap(), vec![wallet().address()]);
        let signer = signer(key);
        assert_eq!(signer.kind(), kind);
        for tx in each_type() {
            // The check inside compares every field and the recovered sender.
            let draft = signer.sign(&tx).await.unwrap();
            assert_eq!((draft.nonce, draft.fees), (tx.nonce, tx.fees));
        }
    }
}

#[tokio::test]
async fn requests_match_the_documented_apis() {
    let tx = each_type()[2].clone();
    let digest = STANDARD.encode(tx.typed().sighash());
    let fake = service(honest).await;
    signer(key_of("aws_kms", &fake)).sign(&tx).await.unwrap();
    let asked = fake.seen().remove(0);
    assert_eq!(asked.line, "POST /");
    assert_eq!(asked.header("x-amz-target"), Some("TrentService.Sign"));
    assert_eq!(asked.header("content-type"), Some("application/x-amz-json-1.1"));
    assert_eq!(asked.header("x-amz-security-token"), Some("the-session"));
    let authorization = asked.header("authorization").unwrap();
    let day = &asked.header("x-amz-date").unwrap()[..8];
    let scope = format!("Credential=AKIDEXAMPLE/{day}/eu-central-1/kms/aws4_request, ");
    assert!(authorization.contains(&scope), "{authorization}");
    let names = "SignedHeaders=content-type;host;x-amz-date;x-amz-security-token;x-amz-target, ";
    assert!(authorization.contains(names), "{authorization}");
    let body = json!({
        "KeyId": "alias/a", "Message": digest, "MessageType": "DIGEST", "SigningAlgorithm": "ECDSA_SHA_256",
    });
    assert_eq!(asked.body, body);

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
async fn every_failure_is_temporary() {
    let tx = each_type()[2].clone();
    let acts: [fn(&Asked) -> Act; 14] = [
        |_| Act::Answer(400, json!({ "__type": "ThrottlingException", "message": "slow down" }).to_string()),
        |_| Act::Answer(429, json!({ "error": { "code": 429, "status": "RESOURCE_EXHAUSTED" } }).to_string()),
        |_| Act::Answer(400, json!({ "__type": "AccessDeniedException" }).to_string()),
        |_| Act::Answer(403, json!({ "error": { "code": 403, "status": "PERMISSION_DENIED" } }).to_string()),
        |_| Act::Answer(400, json!({ "__type": "DisabledException" }).to_string()),
        |_| Act::Answer(500, "{}".into()),
        |_| Act::Answer(200, "<html>".into()),
        |_| Act::Answer(200, "{}".into()),
        |_| Act::Answer(301, String::new()),
        |asked| signed_by(asked, &[0x30, 0]),
        |asked| signed_by(asked, &sign(asked, &SigningKey::from_slice(&[0x47; 32]).unwrap())),
        |asked| Act::Truncate(String::from_utf8_lossy(&sign(asked, &ours())).into_owned()),
        |_| Act::Reset,
        |_| Act::Hang,
    ];
    for kind in KINDS {
        for (index, act) in acts.iter().enumerate() {
            let fake = service(*act).await;
            match signer(key_of(kind, &fake)).sign(&tx).await {
                Err(SignerError::Unavailable { reason, .. }) => {
                    let other_key = reason.contains("not from the submitter's key");
                    assert_eq!(other_key, (9..=10).contains(&index), "{kind} {index}: {reason}");
                    assert!(!reason.contains("html") && !reason.contains("slow down"), "{reason}");
                }
                other => panic!("{kind} {index}: {other:?}"),
            }
        }
    }
}

#[tokio::test]
async fn keys_of_other_curves_are_rejected() {
    let p256 = "3059301306072a8648ce3d020106082a8648ce3d030107034200";
    let other = [hex::decode(p256).unwrap(), vec![4; 65]].concat();
    let answer = json!({ "KeySpec": "ECC_NIST_P256", "PublicKey": STANDARD.encode(other) }).to_string();
    let fake = service(move |_| Act::Answer(200, answer.clone())).await;
    let reason = key_of("aws_kms", &fake).addresses().await.unwrap_err();
    assert!(reason.contains("secp256k1"), "{reason}");
    let answer = json!({ "pem": "", "algorithm": "EC_SIGN_P256_SHA256" }).to_string();
    let fake = service(move |_| Act::Answer(200, answer.clone())).await;
    let reason = key_of("gcp_kms", &fake).addresses().await.unwrap_err();
    assert!(reason.contains("EC_SIGN_SECP256K1_SHA256"), "{reason}");
}

#[tokio::test]
async fn a_wrong_clock_is_corrected_by_the_date_of_the_service() {
    let theirs = chrono::Utc::now() - chrono::TimeDelta::hours(3);
    let fake = service(move |asked| {
        let dated = asked.header("x-amz-date").unwrap();
        let dated = chrono::NaiveDateTime::parse_from_str(dated, "%Y%m%dT%H%M%SZ").unwrap();
        match (dated.and_utc() - theirs).num_minutes().abs() < 5 {
            true => honest(asked),
            false => {
                let said = json!({ "__type": "InvalidSignatureException", "message": "not yet current" });
                Act::AnswerAt(theirs, 400, said.to_string())
            }
        }
    })
    .await;
    let signer = signer(key_of("aws_kms", &fake));
    let tx = each_type()[2].clone();
    assert!(matches!(signer.sign(&tx).await, Err(SignerError::Unavailable { .. })));
    signer.sign(&tx).await.unwrap();
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

#[test]
fn secrets_are_not_printed() {
    let keys = sigv4::AwsKeys {
        access_key_id: "AKIDEXAMPLE".into(),
        secret: config::Secret::new("hunter2"),
        session_token: Some(config::Secret::new("hunter3")),
    };
    assert!(!format!("{keys:?}").contains("hunter"));
}
