//! Keys of cloud key management services (AWS KMS, Google Cloud KMS) and their credentials.

use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;

use super::endpoint::exposes_secrets;
use super::load::ConfigError;
use super::remote_signer::{default_max_in_flight, default_timeout};
use super::sections::Signer;
use gapless_domain::Address;

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CloudKey {
    /// The service's id of the key.
    pub id: String,
    /// The key's address. Absent: derived from the public key that the service returns.
    pub address: Option<Address>,
}

/// Keys of one region of AWS KMS, used with the same credentials.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AwsKms {
    pub region: String,
    pub keys: Vec<CloudKey>,
    /// Absent: the region's endpoint.
    pub endpoint: Option<String>,
    #[serde(default)]
    pub credentials: AwsCredentials,
    /// The file for `credentials = "file"`, in the format of the AWS CLI. Read for every request.
    pub credentials_file: Option<PathBuf>,
    /// The profile in that file.
    #[serde(default = "default_profile")]
    pub profile: String,
    /// Timeout of one signature, including credentials. No nonce is consumed meanwhile, but the submitter waits.
    #[serde(default = "default_timeout", with = "humantime_serde")]
    pub timeout: Duration,
    /// Maximum concurrent requests; further requests wait.
    #[serde(default = "default_max_in_flight")]
    pub max_in_flight: usize,
}

/// Source of the AWS credentials. Explicit and without fallbacks unless `Default` is chosen, so that a worker never uses
/// an unintended identity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AwsCredentials {
    /// `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, `AWS_SESSION_TOKEN`.
    #[default]
    Environment,
    /// `credentials_file`.
    File,
    /// The endpoint in `AWS_CONTAINER_CREDENTIALS_*` (ECS, EKS Pod Identity).
    Container,
    /// The metadata service of an EC2 instance (IMDSv2).
    Instance,
    /// A role of a Kubernetes service account: `AWS_ROLE_ARN`, `AWS_WEB_IDENTITY_TOKEN_FILE`.
    WebIdentity,
    /// The chain of AWS's SDK: the first of several sources that has credentials.
    Default,
}

/// Keys of Google Cloud KMS, used with the same credentials.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GcpKms {
    /// Full names of key versions: `projects/…/locations/…/keyRings/…/cryptoKeys/…/cryptoKeyVersions/1`.
    pub keys: Vec<CloudKey>,
    #[serde(default = "default_gcp_endpoint")]
    pub endpoint: String,
    /// JSON file of a service account or an external account. Absent: the metadata server.
    pub credentials_file: Option<PathBuf>,
    #[serde(default = "default_timeout", with = "humantime_serde")]
    pub timeout: Duration,
    #[serde(default = "default_max_in_flight")]
    pub max_in_flight: usize,
}

fn default_profile() -> String {
    "default".into()
}

fn default_gcp_endpoint() -> String {
    "https://cloudkms.googleapis.com".into()
}

type Problem = (&'static str, &'static str);

impl AwsKms {
    fn problem(&self) -> Option<Problem> {
        let plain = |text: &str| text.chars().all(|c| c.is_ascii_alphanumeric() || c == '-');
        if self.region.is_empty() || !plain(&self.region) {
            return Some(("region", "is not a region name"));
        }
        if (self.credentials == AwsCredentials::File) != self.credentials_file.is_some() {
            return Some(("credentials_file", "must be set if and only if credentials = \"file\""));
        }
        common(&self.keys, self.endpoint.as_deref(), self.timeout, self.max_in_flight)
    }
}

impl GcpKms {
    fn problem(&self) -> Option<Problem> {
        if !self.keys.iter().all(|key| is_key_version(&key.id)) {
            return Some((
                "keys",
                "an id is not projects/*/locations/*/keyRings/*/cryptoKeys/*/cryptoKeyVersions/*",
            ));
        }
        common(&self.keys, Some(&self.endpoint), self.timeout, self.max_in_flight)
    }
}

fn common(keys: &[CloudKey], url: Option<&str>, timeout: Duration, max_in_flight: usize) -> Option<Problem> {
    if keys.is_empty() || keys.iter().any(|key| key.id.is_empty()) {
        return Some(("keys", "must contain at least one key id"));
    }
    if let Some(problem) = url.and_then(exposes_secrets) {
        return Some(("endpoint", problem));
    }
    let parsed = url.and_then(|url| url::Url::parse(url).ok());
    if parsed.is_some_and(|url| url.path() != "/" || url.query().is_some()) {
        return Some(("endpoint", "must be scheme, host and port without a path"));
    }
    if timeout.is_zero() {
        return Some(("timeout", "must be greater than 0"));
    }
    if max_in_flight == 0 {
        return Some(("max_in_flight", "must be at least 1"));
    }
    None
}

/// The name becomes part of a URL path, so it must not contain special characters.
fn is_key_version(id: &str) -> bool {
    const COLLECTIONS: [&str; 5] = ["projects", "locations", "keyRings", "cryptoKeys", "cryptoKeyVersions"];
    let parts: Vec<&str> = id.split('/').collect();
    // Domain-scoped projects are named `example.com:project`.
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.:".contains(c);
    parts.len() == 10
        && parts.iter().step_by(2).zip(COLLECTIONS).all(|(part, collection)| *part == collection)
        && parts.iter().all(|part| !part.is_empty() && !part.starts_with('.') && part.chars().all(plain))
}

pub(super) fn check(signer: &Signer) -> Result<(), ConfigError> {
    let aws = signer.aws_kms.iter().map(AwsKms::problem).enumerate();
    let gcp = signer.gcp_kms.iter().map(GcpKms::problem).enumerate();
    let found = aws.map(|found| ("aws_kms", found)).chain(gcp.map(|found| ("gcp_kms", found)));
    for (kind, (index, problem)) in found {
        if let Some((key, problem)) = problem {
            let key = format!("signer.{kind}.{index}.{key}");
            return Err(ConfigError::Invalid { key, problem: problem.into() });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use figment::Figment;
    use figment::providers::{Format, Toml};

    use super::*;

    const VERSION: &str = "projects/p/locations/l/keyRings/r/cryptoKeys/k/cryptoKeyVersions/1";

    fn parse(toml: &str) -> Result<Signer, String> {
        let signer: Signer =
            Figment::from(Toml::string(toml)).extract().map_err(|error| error.to_string())?;
        check(&signer).map_err(|error| error.to_string())?;
        Ok(signer)
    }

    #[test]
    fn a_region_and_a_key_are_enough_for_aws_and_a_key_for_google() {
        let signer = parse(&format!(
            "[[aws_kms]]\nregion = \"eu-central-1\"\nkeys = [{{ id = \"alias/a\" }}]\n[[gcp_kms]]\nkeys = [{{ id = \"{VERSION}\" }}]"
        ))
        .unwrap();
        assert_eq!(signer.aws_kms[0].endpoint, None);
        assert_eq!(signer.aws_kms[0].credentials, AwsCredentials::Environment);
        assert_eq!((signer.gcp_kms[0].keys.len(), signer.gcp_kms[0].keys[0].address), (1, None));
    }

    #[test]
    fn errors_name_the_invalid_aws_key() {
        for (keys, named) in [
            ("region = \"\"\nkeys = [{ id = \"a\" }]", "region"),
            ("region = \"evil.example/\"\nkeys = [{ id = \"a\" }]", "region"),
            ("region = \"r\"\nkeys = []", "keys"),
            ("region = \"r\"\nkeys = [{ id = \"\" }]", "keys"),
            ("region = \"r\"\nkeys = [{ id = \"a\", address = \"0x12\" }]", "address"),
            ("region = \"r\"\nkeys = [{ id = \"a\" }]\nendpoint = \"http://kms.internal\"", "endpoint"),
            ("region = \"r\"\nkeys = [{ id = \"a\" }]\nendpoint = \"https://kms/path\"", "endpoint"),
            ("region = \"r\"\nkeys = [{ id = \"a\" }]\ncredentials = \"file\"", "credentials_file"),
            ("region = \"r\"\nkeys = [{ id = \"a\" }]\ncredentials_file = \"x\"", "credentials_file"),
            ("region = \"r\"\nkeys = [{ id = \"a\" }]\ncredentials = \"guess\"", "credentials"),
            ("region = \"r\"\nkeys = [{ id = \"a\" }]\ntimeout = \"0s\"", "timeout"),
            ("region = \"r\"\nkeys = [{ id = \"a\" }]\nmax_in_flight = 0", "max_in_flight"),
            ("region = \"r\"\nkeys = [{ id = \"a\" }]\nregoin = \"r\"", "regoin"),
        ] {
            let error = parse(&format!("[[aws_kms]]\n{keys}")).unwrap_err();
            assert!(error.contains(named), "{keys}: {error}");
        }
    }

    #[test]
    fn google_key_names_are_validated() {
        for id in [
            "projects/p/locations/l/keyRings/r/cryptoKeys/k",
            "projects/p/locations/l/keyRings/r/cryptoKeys/k/cryptoKeyVersions/",
            "projects/p/locations/l/keyRings/r/cryptoKeys/k/cryptoKeyVersions/..",
            "projects/p/locations/l/keyRings/r/cryptoKeys/k?a=b/cryptoKeyVersions/1",
            "projects/p/places/l/keyRings/r/cryptoKeys/k/cryptoKeyVersions/1",
        ] {
            assert!(!is_key_version(id), "{id}");
            assert!(
                parse(&format!("[[gcp_kms]]\nkeys = [{{ id = \"{id}\" }}]")).unwrap_err().contains("keys")
            );
        }
        assert!(is_key_version(
            "projects/example.com:p/locations/l/keyRings/r/cryptoKeys/k/cryptoKeyVersions/12"
        ));
        let plain =
            format!("[[gcp_kms]]\nkeys = [{{ id = \"{VERSION}\" }}]\nendpoint = \"http://kms.internal\"");
        assert!(parse(&plain).unwrap_err().contains("signer.gcp_kms.0.endpoint"));
    }
}
