//! Google access tokens: with a service account key file, or from the metadata server.

use std::path::PathBuf;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use reqwest::{Method, RequestBuilder};
use ring::rand::SystemRandom;
use ring::signature::{RSA_PKCS1_SHA256, RsaKeyPair};
use rustls_pki_types::PrivatePkcs8KeyDer;
use rustls_pki_types::pem::PemObject;
use serde::Deserialize;
use serde_json::json;
use zeroize::Zeroizing;

use crate::kms::temporary::{ServiceClock, Temporary};
use crate::kms::with_form;
use crate::transport::{Route, Transport};
use gapless_config::Secret;
use gapless_config::endpoint::exposes_secrets;

const SCOPE: &str = "https://www.googleapis.com/auth/cloudkms";
const GRANT: &str = "urn:ietf:params:oauth:grant-type:jwt-bearer";
/// The maximum that Google allows.
const ASSERTION_LASTS_S: i64 = 3600;

#[derive(Debug)]
pub(super) struct AccessToken {
    source: Source,
    timeout: Duration,
    held: Temporary<Secret>,
}

#[derive(Debug)]
enum Source {
    ServiceAccount(PathBuf),
    Metadata(Transport),
}

#[derive(Deserialize)]
struct ServiceAccount {
    #[serde(rename = "type")]
    kind: String,
    client_email: String,
    private_key_id: Option<String>,
    private_key: Secret,
    token_uri: String,
}

#[derive(Deserialize)]
struct Granted {
    access_token: Secret,
    expires_in: u64,
}

impl AccessToken {
    pub(super) fn new(
        credentials_file: Option<&PathBuf>,
        timeout: Duration,
        environment: &dyn Fn(&str) -> Option<String>,
    ) -> Result<AccessToken, String> {
        // Leaves half of the timeout for the operation itself.
        let timeout = timeout / 2;
        let source = match credentials_file {
            Some(path) => Source::ServiceAccount(path.clone()),
            None => {
                let host = environment("GCE_METADATA_HOST");
                let url = format!("http://{}", host.as_deref().unwrap_or("metadata.google.internal"));
                Source::Metadata(Transport::new(Route { direct: true, ..Route::to(&url, timeout) })?)
            }
        };
        Ok(AccessToken { source, timeout, held: Temporary::new() })
    }

    pub(super) async fn get(&self, clock: &ServiceClock) -> Result<Secret, String> {
        let fetch = async {
            let granted = match &self.source {
                Source::ServiceAccount(path) => self.of_service_account(path, clock).await?,
                Source::Metadata(server) => of_machine(server).await?,
            };
            Ok((granted.access_token, Duration::from_secs(granted.expires_in)))
        };
        self.held.get(fetch).await
    }

    pub(super) async fn forget(&self) {
        self.held.forget().await;
    }

    /// Reads the file each time, so that the key can be replaced.
    async fn of_service_account(&self, path: &PathBuf, clock: &ServiceClock) -> Result<Granted, String> {
        let bad = |reason: &str| format!("{}: {reason}", path.display());
        let text =
            tokio::fs::read(path).await.map(Zeroizing::new).map_err(|error| bad(&error.to_string()))?;
        let account: ServiceAccount =
            serde_json::from_slice(&text).map_err(|_| bad("not the key of a service account"))?;
        if account.kind != "service_account" {
            return Err(bad("not the key of a service account"));
        }
        if let Some(problem) = exposes_secrets(&account.token_uri) {
            return Err(bad(&format!("token_uri: {problem}")));
        }
        let assertion = account.assertion(clock).ok_or_else(|| bad("invalid private key"))?;
        let server = Transport::new(Route::to(&account.token_uri, self.timeout))?;
        let form = [("grant_type", GRANT), ("assertion", assertion.as_str())];
        answer(&server, with_form(server.request(Method::POST, &[]), &form), Some(clock)).await
    }
}

async fn of_machine(server: &Transport) -> Result<Granted, String> {
    let path = ["computeMetadata", "v1", "instance", "service-accounts", "default", "token"];
    answer(server, server.request(Method::GET, &path).header("metadata-flavor", "Google"), None).await
}

async fn answer(
    server: &Transport,
    request: RequestBuilder,
    clock: Option<&ServiceClock>,
) -> Result<Granted, String> {
    let failed = |reason: String| format!("no access token from {}: {reason}", server.shown());
    let reply = server.send(request).await.map_err(failed)?;
    if let Some(clock) = clock {
        clock.learn(reply.date);
    }
    match reply.status {
        200 => serde_json::from_slice(&reply.body).map_err(|_| failed("invalid response".into())),
        status => Err(failed(format!("HTTP {status}"))),
    }
}

impl ServiceAccount {
    /// A JSON Web Token (RFC 7523), signed with RS256.
    fn assertion(&self, clock: &ServiceClock) -> Option<Zeroizing<String>> {
        let now = clock.now().timestamp();
        let header = json!({ "alg": "RS256", "typ": "JWT", "kid": self.private_key_id });
        let claims = json!({
            "iss": self.client_email,
            "scope": SCOPE,
            "aud": self.token_uri,
            "iat": now,
            "exp": now + ASSERTION_LASTS_S,
        });
        let part = |value: serde_json::Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let signed = format!("{}.{}", part(header), part(claims));
        let der = PrivatePkcs8KeyDer::from_pem_slice(self.private_key.expose().as_bytes()).ok()?;
        let key = RsaKeyPair::from_pkcs8(der.secret_pkcs8_der()).ok()?;
        let mut signature = vec![0; key.public().modulus_len()];
        key.sign(&RSA_PKCS1_SHA256, &SystemRandom::new(), signed.as_bytes(), &mut signature).ok()?;
        Some(Zeroizing::new(format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature))))
    }
}
