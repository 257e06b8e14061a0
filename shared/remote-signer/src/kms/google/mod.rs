//! Google Cloud KMS: two methods of its REST API, with the checksums that Google recommends to verify.

mod token;

use std::time::Duration;

use async_trait::async_trait;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use crc::{CRC_32_ISCSI, Crc};
use ethers_core::types::H256;
use reqwest::{Method, RequestBuilder};
use rustls_pki_types::SubjectPublicKeyInfoDer;
use rustls_pki_types::pem::PemObject;
use serde::Deserialize;
use serde_json::{Value, json};

use self::token::AccessToken;
use super::temporary::ServiceClock;
use super::{Cloud, Failure};
use crate::transport::{Reply, Route, Transport};
use gapless_config as config;

/// The algorithm for secp256k1. Its digest field accepts any 32 bytes; here a Keccak hash.
const ALGORITHM: &str = "EC_SIGN_SECP256K1_SHA256";
/// CRC-32C: the checksum of RFC 3720.
const CRC32C: Crc<u32> = Crc::<u32>::new(&CRC_32_ISCSI);

/// Keys used with one set of credentials.
#[derive(Debug)]
pub(crate) struct GcpKms {
    transport: Transport,
    token: AccessToken,
    clock: ServiceClock,
    timeout: Duration,
}

impl GcpKms {
    pub(crate) fn new(config: &config::GcpKms) -> Result<GcpKms, String> {
        GcpKms::with_environment(config, &super::variable)
    }

    pub(super) fn with_environment(
        config: &config::GcpKms,
        environment: &dyn Fn(&str) -> Option<String>,
    ) -> Result<GcpKms, String> {
        let route =
            Route { max_in_flight: config.max_in_flight, ..Route::to(&config.endpoint, config.timeout) };
        Ok(GcpKms {
            transport: Transport::new(route)?,
            token: AccessToken::new(config.credentials_file.as_ref(), config.timeout, environment)?,
            clock: ServiceClock::default(),
            timeout: config.timeout,
        })
    }

    /// Request to `v1/{name}{ending}`.
    fn request(&self, method: Method, name: &str, ending: &str) -> RequestBuilder {
        let path = format!("v1/{name}{ending}");
        self.transport.request(method, &path.split('/').collect::<Vec<_>>())
    }

    async fn call(&self, request: RequestBuilder) -> Result<Value, Failure> {
        let token = self.token.get(&self.clock).await?;
        let reply = self.transport.send(request.bearer_auth(token.expose())).await?;
        self.clock.learn(reply.date);
        if reply.status == 200 {
            return serde_json::from_slice(&reply.body).map_err(|_| "invalid response".into());
        }
        if reply.status == 401 {
            self.token.forget().await;
        }
        Err(refusal(&reply))
    }
}

#[derive(Deserialize)]
struct Refusal {
    error: Status,
}

#[derive(Deserialize)]
struct Status {
    status: String,
    message: Option<String>,
}

fn refusal(reply: &Reply) -> Failure {
    // Without the body, which may be the page of a proxy.
    let Ok(Refusal { error }) = serde_json::from_slice::<Refusal>(&reply.body) else {
        return format!("HTTP {}", reply.status).into();
    };
    let meaning = match error.status.as_str() {
        "PERMISSION_DENIED" => Some("this worker may not use the key"),
        "UNAUTHENTICATED" => Some("the credentials are not accepted"),
        "RESOURCE_EXHAUSTED" => Some("too many requests"),
        "FAILED_PRECONDITION" => Some("the key's state does not allow signing"),
        "NOT_FOUND" => Some("the key does not exist"),
        _ => None,
    };
    Failure::named(&error.status, meaning, error.message.as_deref())
}

/// Google's JSON encodes 64-bit numbers as strings.
fn number(value: &Value) -> Option<u64> {
    value.as_u64().or_else(|| value.as_str()?.parse().ok())
}

fn checksum_matches(checksum: &Value, bytes: &[u8]) -> bool {
    number(checksum) == Some(u64::from(CRC32C.checksum(bytes)))
}

fn public_key(answer: &Value) -> Result<Vec<u8>, Failure> {
    let pem = answer["pem"].as_str().ok_or("the response has no public key")?;
    if answer["algorithm"] != ALGORITHM {
        return Err(format!("the key must have the algorithm {ALGORITHM}").into());
    }
    if !answer["pemCrc32c"].is_null() && !checksum_matches(&answer["pemCrc32c"], pem.as_bytes()) {
        return Err("public key checksum mismatch".into());
    }
    let der = SubjectPublicKeyInfoDer::from_pem_slice(pem.as_bytes());
    Ok(der.map_err(|_| "invalid public key")?.to_vec())
}

fn signature(answer: &Value, key: &str) -> Result<Vec<u8>, Failure> {
    let signature = answer["signature"].as_str().and_then(|text| STANDARD.decode(text).ok());
    let signature = signature.ok_or("the response has no valid signature")?;
    if answer["name"] != key {
        return Err("the response is for another key".into());
    }
    if answer["verifiedDigestCrc32c"] != true {
        return Err("digest checksum not verified".into());
    }
    if !checksum_matches(&answer["signatureCrc32c"], &signature) {
        return Err("signature checksum mismatch".into());
    }
    Ok(signature)
}

#[async_trait]
impl Cloud for GcpKms {
    fn kind(&self) -> &'static str {
        "gcp_kms"
    }

    fn shown(&self) -> &str {
        self.transport.shown()
    }

    fn timeout(&self) -> Duration {
        self.timeout
    }

    async fn public_key(&self, key: &str) -> Result<Vec<u8>, Failure> {
        public_key(&self.call(self.request(Method::GET, key, "/publicKey")).await?)
    }

    async fn sign(&self, key: &str, digest: H256) -> Result<Vec<u8>, Failure> {
        let body = json!({
            "digest": { "sha256": STANDARD.encode(digest) },
            "digestCrc32c": CRC32C.checksum(digest.as_bytes()).to_string(),
        });
        let request = self.request(Method::POST, key, ":asymmetricSign").json(&body);
        signature(&self.call(request).await?, key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_that_of_the_rfc() {
        // RFC 3720, B.4.
        assert_eq!(CRC32C.checksum(&[0; 32]), 0x8a91_36aa);
        assert_eq!(CRC32C.checksum(&[0xff; 32]), 0x62a8_ab43);
        for right in [json!("2324772522"), json!(2_324_772_522_u64)] {
            assert!(checksum_matches(&right, &[0; 32]), "{right}");
        }
        for wrong in [json!("2324772523"), Value::Null] {
            assert!(!checksum_matches(&wrong, &[0; 32]), "{wrong}");
        }
    }

    #[test]
    fn checksums_of_a_signature_are_verified() {
        let good = json!({
            "name": "k", "signature": STANDARD.encode([0; 32]), "signatureCrc32c": "2324772522",
            "verifiedDigestCrc32c": true,
        });
        assert_eq!(signature(&good, "k"), Ok(vec![0; 32]));
        for (field, value) in [
            ("name", json!("other")),
            ("name", Value::Null),
            ("signature", json!("%")),
            ("signature", json!(STANDARD.encode([1; 32]))),
            ("signatureCrc32c", Value::Null),
            ("signatureCrc32c", json!("1")),
            ("verifiedDigestCrc32c", json!(false)),
            ("verifiedDigestCrc32c", Value::Null),
        ] {
            let mut bad = good.clone();
            bad[field] = value;
            assert!(signature(&bad, "k").is_err(), "{bad}");
        }
    }

    #[test]
    fn failures_have_our_message_and_keep_the_services_message_for_the_log() {
        let body = r#"{"error":{"code":403,"message":"Permission denied on projects/x","status":"PERMISSION_DENIED"}}"#;
        let failure = refusal(&Reply { status: 403, date: None, body: body.as_bytes().to_vec().into() });
        assert_eq!(failure.reason, "PERMISSION_DENIED: this worker may not use the key");
        assert_eq!(failure.said.as_deref(), Some("Permission denied on projects/x"));
        let page = Reply { status: 503, date: None, body: b"<html>".to_vec().into() };
        assert_eq!(refusal(&page).reason, "HTTP 503");
    }
}
