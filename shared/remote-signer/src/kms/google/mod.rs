//! Google Cloud KMS: two methods of Google's client library, without its retries, and with the checksums that Google
//! recommends to verify.

mod credentials;

use std::time::{Duration, Instant};

use async_trait::async_trait;
use crc::{CRC_32_ISCSI, Crc};
use ethers_core::types::H256;
use google_cloud_auth::credentials::Credentials;
use google_cloud_gax::error::rpc::Code;
use google_cloud_gax::retry_policy::NeverRetry;
use google_cloud_kms_v1::client::KeyManagementService;
use google_cloud_kms_v1::model::crypto_key_version::CryptoKeyVersionAlgorithm;
use google_cloud_kms_v1::model::{AsymmetricSignResponse, Digest, PublicKey};
use rustls_pki_types::SubjectPublicKeyInfoDer;
use rustls_pki_types::pem::PemObject;
use tokio::sync::{Mutex, Semaphore};

use self::credentials::Source;
use super::{Cloud, Failure};
use gapless_config as config;
use gapless_http_client::install_tls_provider;

/// The algorithm for secp256k1. Its digest field accepts any 32 bytes; here a Keccak hash.
const ALGORITHM: CryptoKeyVersionAlgorithm = CryptoKeyVersionAlgorithm::EcSignSecp256K1Sha256;
/// CRC-32C: the checksum of RFC 3720.
const CRC32C: Crc<u32> = Crc::<u32>::new(&CRC_32_ISCSI);
/// A client whose token is rejected is replaced after this age. The library keeps a task for each replaced client until
/// its token expires, so that they must be few.
const MIN_AGE: Duration = Duration::from_secs(10);

/// Keys used with one set of credentials.
#[derive(Debug)]
pub(crate) struct GcpKms {
    endpoint: String,
    source: Source,
    /// Built by the first request, and again after its credentials failed.
    client: Mutex<Option<Client>>,
    slots: Semaphore,
    timeout: Duration,
}

#[derive(Debug)]
struct Client {
    kms: KeyManagementService,
    credentials: Credentials,
    built_at: Instant,
}

impl GcpKms {
    pub(crate) fn new(config: &config::GcpKms) -> GcpKms {
        GcpKms::with_metadata_server(config, None)
    }

    pub(super) fn with_metadata_server(config: &config::GcpKms, metadata_server: Option<String>) -> GcpKms {
        GcpKms {
            endpoint: config.endpoint.clone(),
            source: match &config.credentials_file {
                Some(path) => Source::File(path.clone()),
                None => Source::Metadata(metadata_server),
            },
            client: Mutex::new(None),
            slots: Semaphore::new(config.max_in_flight),
            timeout: config.timeout,
        }
    }

    #[cfg(test)]
    pub(super) async fn age_client(&self) {
        if let Some(client) = &mut *self.client.lock().await {
            client.built_at -= MIN_AGE;
        }
    }

    /// A client with a valid token. The library repeats an error of its token without trying again, or waits for a server
    /// without a timeout; a new client tries again.
    async fn client(&self) -> Result<KeyManagementService, Failure> {
        let mut held = self.client.lock().await;
        // Taken out: also after a timeout the next request builds a new one.
        let client = match held.take() {
            Some(client) => client,
            None => self.connect().await?,
        };
        // Leaves half of the timeout for the operation itself.
        let limit = self.timeout / 2;
        match tokio::time::timeout(limit, client.credentials.headers(Default::default())).await {
            Ok(Ok(_)) => Ok(held.insert(client).kms.clone()),
            Ok(Err(error)) => Err(no_token(&error)),
            Err(_) => Err(format!("no access token within {limit:?}").into()),
        }
    }

    async fn connect(&self) -> Result<Client, Failure> {
        // The library expects that the program has chosen one.
        install_tls_provider();
        let credentials = self.source.credentials().await?;
        let kms = KeyManagementService::builder()
            .with_endpoint(&self.endpoint)
            .with_credentials(credentials.clone())
            // The lane retries, and `CloudKey` has the timeout.
            .with_retry_policy(NeverRetry)
            .build()
            .await
            .map_err(|error| Failure::named("no client", None, Some(&error.to_string())))?;
        Ok(Client { kms, credentials, built_at: Instant::now() })
    }

    async fn call<T>(
        &self,
        request: impl AsyncFnOnce(KeyManagementService) -> Result<T, google_cloud_kms_v1::Error>,
    ) -> Result<T, Failure> {
        // Unwrap safety: the semaphore is never closed.
        let _slot = self.slots.acquire().await.expect("an open semaphore");
        let answer = request(self.client().await?).await;
        if let Err(error) = &answer
            && error.http_status_code() == Some(401)
        {
            let mut held = self.client.lock().await;
            held.take_if(|client| client.built_at.elapsed() >= MIN_AGE);
        }
        answer.map_err(|error| failed(&error))
    }
}

/// Texts of token servers may name accounts and files.
fn no_token(error: &(dyn std::error::Error + 'static)) -> Failure {
    let mut said = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        said = format!("{said}: {error}");
        cause = error.source();
    }
    Failure::named("no access token", None, Some(&said))
}

fn failed(error: &google_cloud_kms_v1::Error) -> Failure {
    if let Some(status) = error.status() {
        let meaning = match status.code {
            Code::PermissionDenied => Some("this worker may not use the key"),
            Code::Unauthenticated => Some("the credentials are not accepted"),
            Code::ResourceExhausted => Some("too many requests"),
            Code::FailedPrecondition => Some("the key's state does not allow signing"),
            Code::NotFound => Some("the key does not exist"),
            _ => None,
        };
        return Failure::named(status.code.name(), meaning, Some(&status.message));
    }
    if error.is_authentication() {
        return no_token(error);
    }
    match error.http_status_code() {
        // Without the body, which may be the page of a proxy.
        Some(status) if !(200..300).contains(&status) => format!("HTTP {status}").into(),
        Some(_) => "invalid response".into(),
        None if error.is_deserialization() => "invalid response".into(),
        None => {
            let mut cause: &dyn std::error::Error = error;
            while let Some(inner) = cause.source() {
                cause = inner;
            }
            cause.to_string().into()
        }
    }
}

fn checksum(bytes: &[u8]) -> i64 {
    i64::from(CRC32C.checksum(bytes))
}

fn public_key(answer: &PublicKey) -> Result<Vec<u8>, Failure> {
    if answer.algorithm != ALGORITHM {
        let name = ALGORITHM.name().unwrap_or_default();
        return Err(format!("the key must have the algorithm {name}").into());
    }
    if answer.pem_crc32c.is_some_and(|have| have != checksum(answer.pem.as_bytes())) {
        return Err("public key checksum mismatch".into());
    }
    let der = SubjectPublicKeyInfoDer::from_pem_slice(answer.pem.as_bytes());
    Ok(der.map_err(|_| "invalid public key")?.to_vec())
}

fn signature(answer: &AsymmetricSignResponse, key: &str) -> Result<Vec<u8>, Failure> {
    if answer.name != key {
        return Err("the response is for another key".into());
    }
    if !answer.verified_digest_crc32c {
        return Err("digest checksum not verified".into());
    }
    if answer.signature_crc32c != Some(checksum(&answer.signature)) {
        return Err("signature checksum mismatch".into());
    }
    Ok(answer.signature.to_vec())
}

#[async_trait]
impl Cloud for GcpKms {
    fn kind(&self) -> &'static str {
        "gcp_kms"
    }

    fn shown(&self) -> &str {
        &self.endpoint
    }

    fn timeout(&self) -> Duration {
        self.timeout
    }

    async fn public_key(&self, key: &str) -> Result<Vec<u8>, Failure> {
        let answer = self.call(async |kms| kms.get_public_key().set_name(key).send().await);
        public_key(&answer.await?)
    }

    async fn sign(&self, key: &str, digest: H256) -> Result<Vec<u8>, Failure> {
        let bytes = digest.as_bytes().to_vec();
        let sent = checksum(&bytes);
        let answer = self.call(async |kms| {
            let request = kms.asymmetric_sign().set_name(key).set_digest_crc32c(sent);
            request.set_digest(Digest::new().set_sha256(bytes)).send().await
        });
        signature(&answer.await?, key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_that_of_the_rfc() {
        // RFC 3720, B.4.
        assert_eq!(checksum(&[0; 32]), 0x8a91_36aa);
        assert_eq!(checksum(&[0xff; 32]), 0x62a8_ab43);
    }

    #[test]
    fn checksums_of_a_signature_are_verified() {
        let good = || {
            let answer = AsymmetricSignResponse::new().set_name("k").set_verified_digest_crc32c(true);
            answer.set_signature(vec![0; 32]).set_signature_crc32c(checksum(&[0; 32]))
        };
        assert_eq!(signature(&good(), "k"), Ok(vec![0; 32]));
        for bad in [
            good().set_name("other"),
            good().set_name(""),
            good().set_signature(vec![1; 32]),
            good().set_or_clear_signature_crc32c(None::<i64>),
            good().set_signature_crc32c(1),
            good().set_verified_digest_crc32c(false),
        ] {
            assert!(signature(&bad, "k").is_err(), "{bad:?}");
        }
    }

    #[test]
    fn the_checksum_of_a_public_key_is_verified() {
        let answer = |pem: &str| PublicKey::new().set_pem(pem).set_algorithm(ALGORITHM).set_pem_crc32c(1);
        assert_eq!(public_key(&answer("a")), Err("public key checksum mismatch".into()));
        let right = answer("a").set_pem_crc32c(checksum(b"a"));
        assert_eq!(public_key(&right), Err("invalid public key".into()));
    }
}
