//! AWS KMS: two operations of AWS's SDK, without its retries and timeouts.

mod clock;
mod credentials;

use std::error::Error;
use std::time::Duration;

use async_trait::async_trait;
use aws_config::Region;
use aws_config::provider_config::ProviderConfig;
use aws_config::retry::RetryConfig;
use aws_config::timeout::TimeoutConfig;
#[cfg(test)]
use aws_credential_types::provider::ProvideCredentials;
use aws_credential_types::provider::SharedCredentialsProvider;
use aws_credential_types::provider::error::CredentialsError;
use aws_sdk_kms::Client;
use aws_sdk_kms::config::{
    BehaviorVersion, Config, IdentityCache, SharedHttpClient, SharedIdentityCache,
    StalledStreamProtectionConfig,
};
use aws_sdk_kms::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_kms::primitives::Blob;
use aws_sdk_kms::types::{MessageType, SigningAlgorithmSpec};
use aws_smithy_http_client::Connector;
use aws_smithy_http_client::proxy::ProxyConfig;
use aws_smithy_http_client::tls::Provider;
use aws_smithy_http_client::tls::rustls_provider::CryptoMode;
use aws_smithy_runtime_api::client::http::{SharedHttpConnector, http_client_fn};
use ethers_core::types::H256;
use parking_lot::Mutex;
use reqwest::Url;
use tokio::sync::Semaphore;

use self::clock::ServiceClock;
use super::{Cloud, Failure};
use crate::transport::POOL_IDLE;
use gapless_config::endpoint::is_loopback;
use gapless_config::{self as config, AwsCredentials};

/// The keys of one region, with one set of credentials.
#[derive(Debug)]
pub(crate) struct AwsKms {
    /// Replaced when the service rejects its cached credentials.
    client: Mutex<Client>,
    identities: Identities,
    clock: ServiceClock,
    shown: String,
    slots: Semaphore,
    timeout: Duration,
}

/// How credentials are cached.
#[derive(Clone, Copy, Debug)]
enum Identities {
    /// Loaded for every request.
    Fresh,
    /// Cached until they expire.
    Cached { load_timeout: Duration },
}

impl Identities {
    fn cache(self) -> SharedIdentityCache {
        match self {
            Identities::Fresh => IdentityCache::no_cache(),
            Identities::Cached { load_timeout } => IdentityCache::lazy().load_timeout(load_timeout).build(),
        }
    }
}

impl AwsKms {
    pub(crate) fn new(config: &config::AwsKms) -> Result<AwsKms, String> {
        let clock = ServiceClock::default();
        // Servers on this host are never behind a proxy; STS may be, like the service itself.
        let proxy = match config.credentials {
            AwsCredentials::Container | AwsCredentials::Instance => ProxyConfig::disabled(),
            _ => ProxyConfig::from_env(),
        };
        let sdk = ProviderConfig::without_region()
            .with_region(Some(Region::new(config.region.clone())))
            .with_http_client(http_client(proxy))
            .with_time_source(clock.clone())
            .with_retry_config(RetryConfig::disabled());
        let provider = credentials::provider(config, sdk, &variable)?;
        Ok(AwsKms::with_provider(config, provider, clock))
    }

    fn with_provider(
        config: &config::AwsKms,
        provider: SharedCredentialsProvider,
        clock: ServiceClock,
    ) -> AwsKms {
        let identities = match config.credentials {
            AwsCredentials::Environment | AwsCredentials::File => Identities::Fresh,
            // Leaves half of the timeout for the operation itself.
            _ => Identities::Cached { load_timeout: config.timeout / 2 },
        };
        let host = config.endpoint.as_deref().and_then(|url| Url::parse(url).ok());
        let local = host.is_some_and(|url| url.host_str().is_some_and(is_loopback));
        let proxy = if local { ProxyConfig::disabled() } else { ProxyConfig::from_env() };
        let mut builder = Config::builder()
            .behavior_version(BehaviorVersion::latest())
            .region(Region::new(config.region.clone()))
            .credentials_provider(provider)
            .identity_cache(identities.cache())
            .http_client(http_client(proxy))
            .time_source(clock.clone())
            // The lane retries, and `CloudKey` has the timeout.
            .retry_config(RetryConfig::disabled())
            .timeout_config(TimeoutConfig::disabled())
            .stalled_stream_protection(StalledStreamProtectionConfig::disabled());
        builder.set_endpoint_url(config.endpoint.clone());
        AwsKms {
            client: Mutex::new(Client::from_conf(builder.build())),
            identities,
            clock,
            shown: config.endpoint.clone().unwrap_or_else(|| format!("AWS KMS in {}", config.region)),
            slots: Semaphore::new(config.max_in_flight),
            timeout: config.timeout,
        }
    }

    #[cfg(test)]
    pub(super) fn with_test_provider(
        config: &config::AwsKms,
        provider: impl ProvideCredentials + 'static,
    ) -> AwsKms {
        AwsKms::with_provider(config, SharedCredentialsProvider::new(provider), ServiceClock::default())
    }

    fn client(&self) -> Client {
        self.client.lock().clone()
    }

    async fn call<T, E>(&self, request: impl Future<Output = Result<T, SdkError<E>>>) -> Result<T, Failure>
    where
        E: ProvideErrorMetadata + Error + 'static,
    {
        // Unwrap safety: the semaphore is never closed.
        let _slot = self.slots.acquire().await.expect("an open semaphore");
        let error = match request.await {
            Ok(answer) => return Ok(answer),
            Err(error) => error,
        };
        if let Some(response) = error.raw_response() {
            self.clock.learn(response.headers().get("date"));
        }
        let (failure, credentials_refused) = failed(&error);
        if credentials_refused {
            // The SDK would use them until they expire.
            let mut client = self.client.lock();
            let config = client.config().to_builder().identity_cache(self.identities.cache());
            *client = Client::from_conf(config.build());
        }
        Err(failure)
    }
}

/// An environment variable; empty counts as absent.
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// With the TLS cryptography of the other clients. Connections are shared by all requests of this client.
fn http_client(proxy: ProxyConfig) -> SharedHttpClient {
    let connector = Connector::builder()
        .proxy_config(proxy)
        .pool_idle_timeout(POOL_IDLE)
        .tls_provider(Provider::Rustls(CryptoMode::Ring))
        .build();
    let connector = SharedHttpConnector::new(connector);
    http_client_fn(move |_, _| connector.clone())
}

/// The failure, and whether new credentials may help.
fn failed<E: ProvideErrorMetadata + Error + 'static>(error: &SdkError<E>) -> (Failure, bool) {
    let status = error.raw_response().map(|response| response.status().as_u16());
    match (error, status) {
        (SdkError::ServiceError(_), Some(status)) => match error.code() {
            Some(code) => refusal(code, error.message()),
            None if (200..300).contains(&status) => ("invalid response".into(), false),
            // Without the body, which may be the page of a proxy.
            None => (format!("HTTP {status}").into(), matches!(status, 401 | 403)),
        },
        (SdkError::ResponseError(_), _) => ("invalid response".into(), false),
        _ => (not_sent(error), false),
    }
}

/// No response: the server is not reachable, or there are no credentials. Errors of credentials may name files and
/// accounts.
fn not_sent(error: &(dyn Error + 'static)) -> Failure {
    let mut causes: Vec<&(dyn Error + 'static)> = vec![error];
    while let Some(cause) = causes[causes.len() - 1].source() {
        causes.push(cause);
    }
    let at = causes.iter().position(|cause| cause.is::<CredentialsError>());
    match at {
        Some(at) => {
            let said: Vec<String> = causes[at..].iter().map(ToString::to_string).collect();
            Failure::named("no credentials", None, Some(&said.join(": ")))
        }
        None => causes[causes.len() - 1].to_string().into(),
    }
}

fn refusal(code: &str, message: Option<&str>) -> (Failure, bool) {
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
    (Failure::named(code, meaning, message), credentials_refused)
}

#[async_trait]
impl Cloud for AwsKms {
    fn kind(&self) -> &'static str {
        "aws_kms"
    }

    fn shown(&self) -> &str {
        &self.shown
    }

    fn timeout(&self) -> Duration {
        self.timeout
    }

    async fn public_key(&self, key: &str) -> Result<Vec<u8>, Failure> {
        let answer = self.call(self.client().get_public_key().key_id(key).send()).await?;
        Ok(answer.public_key.ok_or("the response has no public key")?.into_inner())
    }

    async fn sign(&self, key: &str, digest: H256) -> Result<Vec<u8>, Failure> {
        let request = self
            .client()
            .sign()
            .key_id(key)
            .message(Blob::new(digest.as_bytes()))
            // Without it the digest would be hashed again.
            .message_type(MessageType::Digest)
            .signing_algorithm(SigningAlgorithmSpec::EcdsaSha256);
        let answer = self.call(request.send()).await?;
        Ok(answer.signature.ok_or("the response has no signature")?.into_inner())
    }
}
