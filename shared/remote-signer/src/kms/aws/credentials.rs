//! AWS credentials from exactly one source, by the providers of the SDK.

use std::path::PathBuf;

use aws_config::default_provider::credentials::DefaultCredentialsChain;
use aws_config::ecs::EcsCredentialsProvider;
use aws_config::environment::EnvironmentVariableCredentialsProvider;
use aws_config::imds::credentials::ImdsCredentialsProvider;
use aws_config::profile::ProfileFileCredentialsProvider;
use aws_config::provider_config::ProviderConfig;
use aws_config::web_identity_token::WebIdentityTokenCredentialsProvider;
use aws_config::{Region, imds};
use aws_credential_types::provider::future::ProvideCredentials as Provided;
use aws_credential_types::provider::{ProvideCredentials, SharedCredentialsProvider};
use aws_runtime::env_config::file::{EnvConfigFileKind, EnvConfigFiles};
use tokio::sync::OnceCell;

use gapless_config::endpoint::exposes_secrets;
use gapless_config::{self as config, AwsCredentials};

/// The source of the configuration. An error: it lacks something that is known before any request.
pub(super) fn provider(
    config: &config::AwsKms,
    sdk: ProviderConfig,
    environment: &dyn Fn(&str) -> Option<String>,
) -> Result<SharedCredentialsProvider, String> {
    check(config.credentials, environment)?;
    Ok(match config.credentials {
        AwsCredentials::Environment => {
            SharedCredentialsProvider::new(EnvironmentVariableCredentialsProvider::new())
        }
        AwsCredentials::File => SharedCredentialsProvider::new(File {
            sdk,
            path: config.credentials_file.clone().ok_or("credentials_file is not set")?,
            profile: config.profile.clone(),
        }),
        AwsCredentials::Container => {
            SharedCredentialsProvider::new(EcsCredentialsProvider::builder().configure(&sdk).build())
        }
        AwsCredentials::Instance => {
            // The lane retries.
            let server = imds::Client::builder().configure(&sdk).max_attempts(1).build();
            let instance = ImdsCredentialsProvider::builder().configure(&sdk).imds_client(server);
            SharedCredentialsProvider::new(instance.build())
        }
        AwsCredentials::WebIdentity => SharedCredentialsProvider::new(
            WebIdentityTokenCredentialsProvider::builder().configure(&sdk).build(),
        ),
        AwsCredentials::Default => {
            let region = Region::new(config.region.clone());
            SharedCredentialsProvider::new(DefaultChain { sdk, region, chain: OnceCell::new() })
        }
    })
}

/// Names missing variables at start, and rejects servers that would get a token unencrypted. The SDK checks the URL of
/// a container's credentials itself.
fn check(source: AwsCredentials, environment: &dyn Fn(&str) -> Option<String>) -> Result<(), String> {
    const RELATIVE: &str = "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI";
    let required: &[&str] = match source {
        AwsCredentials::Environment => &["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"],
        AwsCredentials::Container if environment(RELATIVE).is_none() => {
            &["AWS_CONTAINER_CREDENTIALS_FULL_URI"]
        }
        AwsCredentials::WebIdentity => &["AWS_ROLE_ARN", "AWS_WEB_IDENTITY_TOKEN_FILE"],
        _ => &[],
    };
    if let Some(missing) = required.iter().find(|name| environment(name).is_none()) {
        return Err(format!("the environment variable {missing} is not set"));
    }
    // The SDK sends tokens and signed requests for roles to these.
    for name in ["AWS_ENDPOINT_URL_STS", "AWS_ENDPOINT_URL"] {
        if let Some(problem) = environment(name).as_deref().and_then(exposes_secrets) {
            return Err(format!("{name}: {problem}"));
        }
    }
    Ok(())
}

/// Reads the file for every request; the SDK's provider reads it once.
#[derive(Debug)]
struct File {
    sdk: ProviderConfig,
    path: PathBuf,
    profile: String,
}

impl ProvideCredentials for File {
    fn provide_credentials<'a>(&'a self) -> Provided<'a>
    where
        Self: 'a,
    {
        let files = EnvConfigFiles::builder().with_file(EnvConfigFileKind::Credentials, &self.path).build();
        let provider = ProfileFileCredentialsProvider::builder()
            .configure(&self.sdk)
            .profile_files(files)
            .profile_name(&self.profile)
            .build();
        Provided::new(async move { provider.provide_credentials().await })
    }
}

/// The SDK builds its chain asynchronously, so it is built by the first request.
#[derive(Debug)]
struct DefaultChain {
    sdk: ProviderConfig,
    region: Region,
    chain: OnceCell<DefaultCredentialsChain>,
}

impl ProvideCredentials for DefaultChain {
    fn provide_credentials<'a>(&'a self) -> Provided<'a>
    where
        Self: 'a,
    {
        Provided::new(async {
            let chain = || {
                let chain = DefaultCredentialsChain::builder().configure(self.sdk.clone());
                chain.region(self.region.clone()).build()
            };
            self.chain.get_or_init(chain).await.provide_credentials().await
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(source: AwsCredentials, variables: &[(&str, &str)]) -> Result<(), String> {
        check(source, &|name| {
            variables.iter().find(|(have, _)| *have == name).map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn missing_environment_variables_are_named() {
        for (source, variables, missing) in [
            (AwsCredentials::Environment, &[][..], "AWS_ACCESS_KEY_ID"),
            (AwsCredentials::Environment, &[("AWS_ACCESS_KEY_ID", "a")], "AWS_SECRET_ACCESS_KEY"),
            (AwsCredentials::Container, &[], "AWS_CONTAINER_CREDENTIALS_FULL_URI"),
            (AwsCredentials::WebIdentity, &[], "AWS_ROLE_ARN"),
            (AwsCredentials::WebIdentity, &[("AWS_ROLE_ARN", "a")], "AWS_WEB_IDENTITY_TOKEN_FILE"),
        ] {
            let error = checked(source, variables).unwrap_err();
            assert!(error.contains(missing), "{error}");
        }
        let relative = [("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "/v2/a")];
        assert_eq!(checked(AwsCredentials::Container, &relative), Ok(()));
        for source in [AwsCredentials::File, AwsCredentials::Instance, AwsCredentials::Default] {
            assert_eq!(checked(source, &[]), Ok(()));
        }
    }

    #[test]
    fn a_token_service_without_encryption_is_rejected() {
        for name in ["AWS_ENDPOINT_URL_STS", "AWS_ENDPOINT_URL"] {
            let error = checked(AwsCredentials::Default, &[(name, "http://sts.example")]).unwrap_err();
            assert!(error.starts_with(name) && error.contains("unencrypted"), "{error}");
            assert_eq!(checked(AwsCredentials::Default, &[(name, "https://sts.example")]), Ok(()));
        }
    }
}
