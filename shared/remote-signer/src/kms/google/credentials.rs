//! Google credentials: a key file, or the metadata server. Tokens are made, cached and renewed by Google's library.

use std::path::{Path, PathBuf};

use google_cloud_auth::credentials::service_account::AccessSpecifier;
use google_cloud_auth::credentials::{Credentials, external_account, mds, service_account};
use google_cloud_gax::retry_policy::NeverRetry;
use serde_json::Value;
use zeroize::Zeroizing;

use crate::kms::Failure;
use gapless_config::endpoint::exposes_secrets;

const SCOPE: &str = "https://www.googleapis.com/auth/cloudkms";
/// Otherwise the library asks the metadata server.
const UNIVERSE: &str = "googleapis.com";
/// Fields of external accounts with servers that get a token.
const SERVERS: [&str; 2] = ["token_url", "service_account_impersonation_url"];

#[derive(Debug)]
pub(super) enum Source {
    File(PathBuf),
    /// `None`: the usual URL of the metadata server. `GCE_METADATA_HOST` takes precedence.
    Metadata(Option<String>),
}

impl Source {
    /// Reads the file, so that it can be replaced.
    pub(super) async fn credentials(&self) -> Result<Credentials, Failure> {
        match self {
            Source::File(path) => of_file(path).await,
            Source::Metadata(url) => {
                let mut builder =
                    mds::Builder::default().with_universe_domain(UNIVERSE).with_retry_policy(NeverRetry);
                if let Some(url) = url {
                    builder = builder.with_endpoint(url);
                }
                builder.build().map_err(|error| refused(error.to_string()))
            }
        }
    }
}

fn refused(said: String) -> Failure {
    Failure::named("invalid credentials", None, Some(&said))
}

async fn of_file(path: &Path) -> Result<Credentials, Failure> {
    let bad = |problem: &str| refused(format!("{}: {problem}", path.display()));
    let text = tokio::fs::read(path).await.map(Zeroizing::new).map_err(|error| bad(&error.to_string()))?;
    let json: Value = serde_json::from_slice(&text).map_err(|_| bad("is not JSON"))?;
    let kind = json["type"].as_str().unwrap_or_default().to_owned();
    for name in SERVERS {
        if let Some(problem) = json[name].as_str().and_then(exposes_secrets) {
            return Err(bad(&format!("{name}: {problem}")));
        }
    }
    let built = match kind.as_str() {
        "service_account" => service_account::Builder::new(json)
            .with_access_specifier(AccessSpecifier::from_scopes([SCOPE]))
            .build(),
        "external_account" => {
            external_account::Builder::new(json).with_scopes([SCOPE]).with_retry_policy(NeverRetry).build()
        }
        _ => return Err(bad("is neither the key of a service account nor an external account")),
    };
    // Without the error of the library: it could quote the file.
    built.map_err(|_| bad("a field is missing or invalid"))
}
