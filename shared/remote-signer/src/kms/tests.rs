#[cfg(feature = "aws-kms")]
mod aws;
#[cfg(feature = "gcp-kms")]
mod google;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use crc::{CRC_32_ISCSI, Crc};
use ethers_core::k256::ecdsa::signature::hazmat::PrehashSigner;
use ethers_core::k256::ecdsa::{self, SigningKey};
use ethers_signers::Signer as _;
use serde_json::json;

use super::*;
use crate::remote_signer::RemoteKey;
use crate::testing::{Act, Asked, FakeSigner};
use gapless_signer::testing::{each_type, wallet};
use gapless_signer::{Signer, SignerError};

const VERSION: &str = "projects/p/locations/l/keyRings/r/cryptoKeys/k/cryptoKeyVersions/1";
const KINDS: &[&str] = &[
    #[cfg(feature = "aws-kms")]
    "aws_kms",
    #[cfg(feature = "gcp-kms")]
    "gcp_kms",
];

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

/// A response of the metadata server.
fn token(token: &str) -> String {
    json!({ "access_token": token, "expires_in": 3599, "token_type": "Bearer" }).to_string()
}

fn is_about_tokens(asked: &Asked) -> bool {
    asked.line.contains("/computeMetadata/")
}

/// A service that reacts with `act` and always issues tokens.
async fn service(act: impl Fn(&Asked) -> Act + Send + Sync + 'static) -> FakeSigner {
    FakeSigner::start(move |asked| match is_about_tokens(asked) {
        true => Act::Answer(200, token("lent")),
        false => act(asked),
    })
    .await
}

fn key_of(kind: &str, fake: &FakeSigner) -> CloudKey {
    let timeout = Duration::from_millis(800);
    let (cloud, id): (Arc<dyn Cloud>, _) = match kind {
        #[cfg(feature = "aws-kms")]
        "aws_kms" => (Arc::new(aws::kms(fake, timeout)), "alias/a"),
        #[cfg(feature = "gcp-kms")]
        "gcp_kms" => (Arc::new(google::kms(fake, timeout)), VERSION),
        other => panic!("no service {other}"),
    };
    CloudKey::new(cloud, id)
}

fn signer(key: CloudKey) -> RemoteKey {
    RemoteKey::new(wallet().address(), Arc::new(key))
}

#[tokio::test]
async fn each_service_signs_each_type() {
    for &kind in KINDS {
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
    for &kind in KINDS {
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
