//! AWS credentials: from the environment, a file, or a server that issues temporary credentials.

use std::path::{Path, PathBuf};
use std::time::Duration;

use chrono::{DateTime, Utc};
use reqwest::{Method, Url};
use serde::Deserialize;
use zeroize::Zeroizing;

use super::sigv4::AwsKeys;
use super::with_secret;
use crate::kms::temporary::{ServiceClock, Temporary};
use crate::kms::with_form;
use crate::transport::{Route, Transport};
use gapless_config::endpoint::exposes_secrets;
use gapless_config::{self as config, AwsCredentials, Secret};

/// Credential endpoints of ECS containers and EKS pods: plain HTTP within the host.
const CONTAINER_HOSTS: [&str; 3] = ["169.254.170.2", "169.254.170.23", "[fd00:ec2::23]"];
const INSTANCE: &str = "http://169.254.169.254";
/// Lifetime of a response without an expiration.
const DEFAULT_LIFETIME: Duration = Duration::from_secs(15 * 60);

#[derive(Debug)]
pub(super) struct Credentials {
    source: Source,
    held: Temporary<AwsKeys>,
}

#[derive(Debug)]
enum Source {
    Fixed(AwsKeys),
    File { path: PathBuf, profile: String },
    Container { server: Transport, token: Option<Secret>, token_file: Option<PathBuf> },
    Instance { server: Transport },
    WebIdentity { server: Transport, role: String, token_file: PathBuf },
}

impl Credentials {
    pub(super) fn new(
        config: &config::AwsKms,
        environment: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Credentials, String> {
        let variable =
            |name: &str| environment(name).ok_or(format!("the environment variable {name} is not set"));
        // Leaves half of the timeout for the operation itself.
        let route = |url| Route { direct: true, ..Route::to(url, config.timeout / 2) };
        let source = match config.credentials {
            AwsCredentials::Environment => Source::Fixed(AwsKeys {
                access_key_id: variable("AWS_ACCESS_KEY_ID")?,
                secret: Secret::new(variable("AWS_SECRET_ACCESS_KEY")?),
                session_token: environment("AWS_SESSION_TOKEN").map(Secret::new),
            }),
            AwsCredentials::File => Source::File {
                path: config.credentials_file.clone().ok_or("credentials_file is not set")?,
                profile: config.profile.clone(),
            },
            AwsCredentials::Container => {
                let url = match environment("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI") {
                    Some(path) => format!("http://{}{path}", CONTAINER_HOSTS[0]),
                    None => variable("AWS_CONTAINER_CREDENTIALS_FULL_URI")?,
                };
                let local = Url::parse(&url)
                    .is_ok_and(|url| url.host_str().is_some_and(|host| CONTAINER_HOSTS.contains(&host)));
                if let (false, Some(problem)) = (local, exposes_secrets(&url)) {
                    return Err(format!("AWS_CONTAINER_CREDENTIALS_FULL_URI: {problem}"));
                }
                Source::Container {
                    server: Transport::new(route(&url))?,
                    token: environment("AWS_CONTAINER_AUTHORIZATION_TOKEN").map(Secret::new),
                    token_file: environment("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE").map(PathBuf::from),
                }
            }
            AwsCredentials::Instance => {
                let url = environment("AWS_EC2_METADATA_SERVICE_ENDPOINT");
                Source::Instance { server: Transport::new(route(url.as_deref().unwrap_or(INSTANCE)))? }
            }
            AwsCredentials::WebIdentity => {
                let url = environment("AWS_ENDPOINT_URL_STS");
                let url = url.unwrap_or_else(|| format!("https://sts.{}.amazonaws.com", config.region));
                if let Some(problem) = exposes_secrets(&url) {
                    return Err(format!("AWS_ENDPOINT_URL_STS: {problem}"));
                }
                Source::WebIdentity {
                    // Uses a configured proxy, like the service itself.
                    server: Transport::new(Route { direct: false, ..route(&url) })?,
                    role: variable("AWS_ROLE_ARN")?,
                    token_file: variable("AWS_WEB_IDENTITY_TOKEN_FILE")?.into(),
                }
            }
        };
        Ok(Credentials { source, held: Temporary::new() })
    }

    pub(super) async fn get(&self, clock: &ServiceClock) -> Result<AwsKeys, String> {
        match &self.source {
            Source::Fixed(keys) => Ok(keys.clone()),
            Source::File { path, profile } => {
                let keys = section(&text(path).await?, profile);
                keys.ok_or_else(|| format!("{}: no credentials in [{profile}]", path.display()))
            }
            _ => self.held.get(async { self.lent().await?.lasting(clock) }).await,
        }
    }

    pub(super) async fn forget(&self) {
        self.held.forget().await;
    }

    async fn lent(&self) -> Result<Lent, String> {
        match &self.source {
            Source::Container { server, token, token_file } => {
                let mut request = server.request(Method::GET, &[]);
                let token = match token_file {
                    Some(path) => Some(Secret::new(text(path).await?.trim())),
                    None => token.clone(),
                };
                if let Some(token) = token {
                    request = with_secret(request, "authorization", token.expose())?;
                }
                lent(&answer(server, request).await?)
            }
            Source::Instance { server } => {
                const ROLES: [&str; 4] = ["latest", "meta-data", "iam", "security-credentials"];
                let session = server
                    .request(Method::PUT, &["latest", "api", "token"])
                    .header("x-aws-ec2-metadata-token-ttl-seconds", "60");
                let session = answer(server, session).await?;
                let session = std::str::from_utf8(&session).unwrap_or_default();
                let get = async |path: &[&str]| {
                    let request = server.request(Method::GET, path);
                    answer(server, with_secret(request, "x-aws-ec2-metadata-token", session)?).await
                };
                let role = get(&[&ROLES[..], &[""]].concat()).await?;
                let role = std::str::from_utf8(&role).unwrap_or_default().lines().next().unwrap_or_default();
                lent(&get(&[&ROLES[..], &[role]].concat()).await?)
            }
            Source::WebIdentity { server, role, token_file } => {
                let token = text(token_file).await?;
                let form = [
                    ("Action", "AssumeRoleWithWebIdentity"),
                    ("Version", "2011-06-15"),
                    ("RoleArn", role),
                    ("RoleSessionName", "gapless"),
                    ("WebIdentityToken", token.trim()),
                ];
                let request = server.request(Method::POST, &[]).header("accept", "application/xml");
                let answer = answer(server, with_form(request, &form)).await?;
                Lent::from_xml(std::str::from_utf8(&answer).unwrap_or_default())
                    .ok_or_else(|| "the response of the security token service has no credentials".into())
            }
            Source::Fixed(_) | Source::File { .. } => Err("not temporary credentials".into()),
        }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Lent {
    access_key_id: String,
    secret_access_key: Secret,
    token: Option<Secret>,
    expiration: Option<DateTime<Utc>>,
}

impl Lent {
    /// Parses the STS response: four elements that occur once and need no unescaping.
    fn from_xml(xml: &str) -> Option<Lent> {
        let found = |name: &str| {
            let (_, rest) = xml.split_once(&format!("<{name}>"))?;
            Some(rest.split_once(&format!("</{name}>"))?.0)
        };
        Some(Lent {
            access_key_id: found("AccessKeyId")?.to_owned(),
            secret_access_key: Secret::new(found("SecretAccessKey")?),
            token: Some(Secret::new(found("SessionToken")?)),
            expiration: found("Expiration")?.parse().ok(),
        })
    }

    fn lasting(self, clock: &ServiceClock) -> Result<(AwsKeys, Duration), String> {
        let lasts = match self.expiration {
            Some(at) => (at - clock.now()).to_std().map_err(|_| "the credentials have expired")?,
            None => DEFAULT_LIFETIME,
        };
        let (access_key_id, secret, session_token) = (self.access_key_id, self.secret_access_key, self.token);
        Ok((AwsKeys { access_key_id, secret, session_token }, lasts))
    }
}

fn lent(body: &[u8]) -> Result<Lent, String> {
    serde_json::from_slice(body).map_err(|_| "invalid credentials response".into())
}

async fn answer(server: &Transport, request: reqwest::RequestBuilder) -> Result<Zeroizing<Vec<u8>>, String> {
    let failed = |reason: String| format!("no credentials from {}: {reason}", server.shown());
    let reply = server.send(request).await.map_err(failed)?;
    match reply.status {
        200 => Ok(reply.body),
        status => Err(failed(format!("HTTP {status}"))),
    }
}

async fn text(path: &Path) -> Result<Zeroizing<String>, String> {
    let text = tokio::fs::read_to_string(path).await.map(Zeroizing::new);
    text.map_err(|error| format!("{}: {error}", path.display()))
}

/// The credentials of a profile in a file of the AWS CLI.
fn section(file: &str, profile: &str) -> Option<AwsKeys> {
    let (mut inside, mut id, mut secret, mut token) = (false, None, None, None);
    for line in file.lines().map(str::trim) {
        if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            inside = name.trim() == profile;
        } else if let (true, Some((key, value))) = (inside, line.split_once('=')) {
            match key.trim() {
                "aws_access_key_id" => id = Some(value.trim().to_owned()),
                "aws_secret_access_key" => secret = Some(Secret::new(value.trim())),
                "aws_session_token" => token = Some(Secret::new(value.trim())),
                _ => {}
            }
        }
    }
    Some(AwsKeys { access_key_id: id?, secret: secret?, session_token: token })
}

#[cfg(test)]
#[path = "credentials_tests.rs"]
mod tests;
