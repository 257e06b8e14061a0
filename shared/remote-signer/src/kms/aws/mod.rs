//! AWS KMS: two actions of its JSON API.

mod credentials;
mod sigv4;

use std::time::Duration;

use async_trait::async_trait;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ethers_core::types::H256;
use reqwest::header::HeaderValue;
use reqwest::{Method, RequestBuilder};
use serde::Deserialize;
use serde_json::{Value, json};

use self::credentials::Credentials;
use self::sigv4::Request;
use super::temporary::ServiceClock;
use super::{Cloud, Failure};
use crate::transport::{Reply, Route, Transport};
use gapless_config as config;

const CONTENT_TYPE: &str = "application/x-amz-json-1.1";

/// The keys of one region, with one set of credentials.
#[derive(Debug)]
pub(crate) struct AwsKms {
    transport: Transport,
    region: String,
    credentials: Credentials,
    clock: ServiceClock,
    timeout: Duration,
}

impl AwsKms {
    pub(crate) fn new(config: &config::AwsKms) -> Result<AwsKms, String> {
        AwsKms::with_environment(config, &super::variable)
    }

    pub(super) fn with_environment(
        config: &config::AwsKms,
        environment: &dyn Fn(&str) -> Option<String>,
    ) -> Result<AwsKms, String> {
        let url = config.url();
        let route = Route { max_in_flight: config.max_in_flight, ..Route::to(&url, config.timeout) };
        Ok(AwsKms {
            transport: Transport::new(route)?,
            region: config.region.clone(),
            credentials: Credentials::new(config, environment)?,
            clock: ServiceClock::default(),
            timeout: config.timeout,
        })
    }

    async fn call(&self, action: &str, body: Value) -> Result<Value, Failure> {
        let keys = self.credentials.get(&self.clock).await?;
        let (body, at) = (body.to_string(), self.clock.now());
        let (host, date) = (self.transport.host(), sigv4::timestamp(at));
        let target = format!("TrentService.{action}");
        let mut headers = vec![("content-type", CONTENT_TYPE), ("host", &host), ("x-amz-date", &date)];
        if let Some(token) = &keys.session_token {
            headers.push(("x-amz-security-token", token.expose()));
        }
        headers.push(("x-amz-target", &target));
        let signed = Request { method: "POST", path: "/", headers: &headers, body: body.as_bytes() };
        let authorization = sigv4::authorization(&keys, &self.region, "kms", at, &signed);
        let request = self.transport.request(Method::POST, &[]);
        let mut request = with_secret(request, "authorization", &authorization)?;
        // The transport sets the host header.
        for (name, value) in headers.iter().filter(|(name, _)| *name != "host") {
            request = with_secret(request, name, value)?;
        }
        let reply = self.transport.send(request.body(body)).await?;
        self.clock.learn(reply.date);
        if reply.status == 200 {
            return serde_json::from_slice(&reply.body).map_err(|_| "invalid response".into());
        }
        let (failure, credentials_refused) = refusal(&reply);
        if credentials_refused {
            self.credentials.forget().await;
        }
        Err(failure)
    }
}

/// Adds a header marked as sensitive, so that it is not logged.
fn with_secret(request: RequestBuilder, name: &str, value: &str) -> Result<RequestBuilder, String> {
    let value = HeaderValue::from_str(value).map_err(|_| "invalid credentials for a header".to_owned());
    let mut value = value?;
    value.set_sensitive(true);
    Ok(request.header(name, value))
}

#[derive(Deserialize)]
struct Refusal {
    #[serde(rename = "__type")]
    kind: String,
    #[serde(alias = "Message")]
    message: Option<String>,
}

/// The failure, and whether new credentials may help.
fn refusal(reply: &Reply) -> (Failure, bool) {
    // Without the body, which may be the page of a proxy.
    let Ok(refusal) = serde_json::from_slice::<Refusal>(&reply.body) else {
        return (format!("HTTP {}", reply.status).into(), matches!(reply.status, 401 | 403));
    };
    // `com.amazonaws.kms#DisabledException` or `DisabledException`.
    let code = refusal.kind.rsplit('#').next().unwrap_or_default();
    let (meaning, credentials_refused) = match code {
        "AccessDeniedException" | "AccessDenied" => (Some("this worker may not use the key"), false),
        "ThrottlingException" | "LimitExceededException" => (Some("too many requests"), false),
        "DisabledException" => (Some("the key is disabled"), false),
        "KMSInvalidStateException" => (Some("the key's state does not allow signing"), false),
        "NotFoundException" => (Some("the key does not exist"), false),
        "InvalidKeyUsageException" | "ValidationException" | "UnsupportedOperationException" => {
            (Some("the key must be an ECC_SECG_P256K1 key for SIGN_VERIFY"), false)
        }
        "ExpiredTokenException"
        | "UnrecognizedClientException"
        | "InvalidClientTokenId"
        | "InvalidSignatureException"
        | "SignatureDoesNotMatch"
        | "MissingAuthenticationTokenException"
        | "IncompleteSignatureException" => (Some("the credentials are not accepted"), true),
        _ => (None, false),
    };
    (Failure::named(code, meaning, refusal.message.as_deref()), credentials_refused)
}

fn blob(answer: &Value, field: &str) -> Result<Vec<u8>, Failure> {
    let decoded = answer[field].as_str().and_then(|text| STANDARD.decode(text).ok());
    decoded.ok_or_else(|| format!("its answer has no readable {field}").into())
}

#[async_trait]
impl Cloud for AwsKms {
    fn kind(&self) -> &'static str {
        "aws_kms"
    }

    fn shown(&self) -> &str {
        self.transport.shown()
    }

    fn timeout(&self) -> Duration {
        self.timeout
    }

    async fn public_key(&self, key: &str) -> Result<Vec<u8>, Failure> {
        blob(&self.call("GetPublicKey", json!({ "KeyId": key })).await?, "PublicKey")
    }

    async fn sign(&self, key: &str, digest: H256) -> Result<Vec<u8>, Failure> {
        let body = json!({
            "KeyId": key,
            "Message": STANDARD.encode(digest),
            // Without it the digest would be hashed again.
            "MessageType": "DIGEST",
            "SigningAlgorithm": "ECDSA_SHA_256",
        });
        blob(&self.call("Sign", body).await?, "Signature")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(status: u16, body: &str) -> (Failure, bool) {
        refusal(&Reply { status, date: None, body: body.as_bytes().to_vec().into() })
    }

    #[test]
    fn failures_have_our_message_and_keep_the_services_message_for_the_log() {
        let body = r#"{"__type":"com.amazonaws.kms#AccessDeniedException","Message":"User: arn:aws:iam::1:user/x is not authorized"}"#;
        let (failure, again) = refused(400, body);
        assert_eq!(failure.reason, "AccessDeniedException: this worker may not use the key");
        assert!(failure.said.unwrap().contains("arn:aws:iam::1:user/x") && !again);
        let (failure, again) = refused(400, r#"{"__type":"ExpiredTokenException","message":"over"}"#);
        assert!(failure.reason.contains("credentials") && again);
        assert_eq!(refused(400, r#"{"__type":"New\nException"}"#).0.reason, "NewException");
        assert_eq!(refused(502, "<html>secret</html>").0.reason, "HTTP 502");
    }
}
