//! A signer in another process: URL, authentication, TLS. The three kinds have the same keys.

use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;

use super::endpoint::exposes_secrets;
use super::load::ConfigError;
use super::redact::{NOT_A_VARIABLE, is_variable_name};
use super::secret::Secret;
use super::sections::Signer;
use gapless_domain::Address;

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RemoteSigner {
    /// A secret, because it may contain an API key.
    pub url: Secret,
    /// Addresses it signs for. Empty: the signer is queried.
    #[serde(default)]
    pub addresses: Vec<Address>,
    /// Timeout of one request. No nonce is consumed meanwhile, but the submitter waits.
    #[serde(default = "default_timeout", with = "humantime_serde")]
    pub timeout: Duration,
    /// Maximum concurrent requests; further requests wait.
    #[serde(default = "default_max_in_flight")]
    pub max_in_flight: usize,
    /// File with a bearer token. Read for every request, so that the token can be replaced.
    pub token_file: Option<PathBuf>,
    /// Environment variable with a bearer token.
    pub token_env: Option<String>,
    /// PEM file with CA certificates for the signer. Absent: those of the system.
    pub ca_file: Option<PathBuf>,
    /// PEM files of the client certificate (with its chain) and its key, for mutual TLS.
    pub client_cert_file: Option<PathBuf>,
    pub client_key_file: Option<PathBuf>,
}

pub(super) fn default_timeout() -> Duration {
    Duration::from_secs(10)
}

/// Enough to keep a hardware-backed signer busy without overloading it.
pub(super) fn default_max_in_flight() -> usize {
    32
}

impl RemoteSigner {
    /// With defaults for everything except the URL.
    pub fn at(url: impl Into<String>) -> RemoteSigner {
        RemoteSigner {
            url: Secret::new(url),
            addresses: Vec::new(),
            timeout: default_timeout(),
            max_in_flight: default_max_in_flight(),
            token_file: None,
            token_env: None,
            ca_file: None,
            client_cert_file: None,
            client_key_file: None,
        }
    }

    fn problem(&self) -> Option<(&'static str, &'static str)> {
        let url = self.url.expose();
        if !url.starts_with("http://") && !url.starts_with("https://") {
            return Some(("url", "is not an http or https URL"));
        }
        if self.timeout.is_zero() {
            return Some(("timeout", "must be greater than 0"));
        }
        if self.max_in_flight == 0 {
            return Some(("max_in_flight", "must be at least 1"));
        }
        if self.token_file.is_some() && self.token_env.is_some() {
            return Some(("token_file", "set it or token_env, not both"));
        }
        if self.token_env.as_deref().is_some_and(|name| !is_variable_name(name)) {
            return Some(("token_env", NOT_A_VARIABLE));
        }
        if self.token_file.is_some() || self.token_env.is_some() {
            // An intercepted token lets anyone request signatures.
            if let Some(problem) = exposes_secrets(url) {
                return Some(("url", problem));
            }
        }
        if self.client_cert_file.is_some() != self.client_key_file.is_some() {
            return Some(("client_cert_file", "client_cert_file and client_key_file must be set together"));
        }
        let secured = self.ca_file.is_some() || self.client_cert_file.is_some();
        if secured && !url.starts_with("https://") {
            return Some(("url", "must begin with https:// because certificates are configured"));
        }
        None
    }
}

pub(super) fn check(signer: &Signer) -> Result<(), ConfigError> {
    for (kind, remotes) in [("json_rpc", &signer.json_rpc), ("clef", &signer.clef), ("http", &signer.http)] {
        for (index, remote) in remotes.iter().enumerate() {
            if let Some((key, problem)) = remote.problem() {
                let key = format!("signer.{kind}.{index}.{key}");
                return Err(ConfigError::Invalid { key, problem: problem.into() });
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use figment::Figment;
    use figment::providers::{Format, Toml};

    use super::*;

    fn parse(toml: &str) -> Result<Signer, String> {
        let signer: Signer =
            Figment::from(Toml::string(toml)).extract().map_err(|error| error.to_string())?;
        check(&signer).map_err(|error| error.to_string())?;
        Ok(signer)
    }

    #[test]
    fn a_url_is_all_a_remote_signer_needs() {
        let signer =
            parse("[[json_rpc]]\nurl = \"http://signer:9000\"\n[[http]]\nurl = \"https://s\"").unwrap();
        assert!(signer.json_rpc[0].addresses.is_empty());
        assert_eq!(signer.json_rpc[0].timeout, Duration::from_secs(10));
        assert_eq!((signer.http.len(), signer.clef.len()), (1, 0));
        assert!(!format!("{signer:?}").contains("signer:9000"));
    }

    #[test]
    fn errors_name_the_invalid_key() {
        for (keys, named) in [
            ("url = \"ws://s\"", "signer.http.0.url"),
            ("url = \"http://s\"\ntimeout = \"0s\"", "signer.http.0.timeout"),
            ("url = \"http://s\"\nmax_in_flight = 0", "signer.http.0.max_in_flight"),
            ("url = \"http://s\"\ntoken_file = \"a\"\ntoken_env = \"b\"", "signer.http.0.token_file"),
            ("url = \"https://s\"\nclient_key_file = \"a\"", "signer.http.0.client_cert_file"),
            ("url = \"http://s\"\nca_file = \"a\"", "signer.http.0.url"),
            ("url = \"http://s\"\ntoken_env = \"b\"", "unencrypted"),
            ("url = \"https://s\"\ntoken_env = \"a-token\"", "signer.http.0.token_env"),
            ("url = \"http://10.0.0.1:9000\"\ntoken_file = \"b\"", "signer.http.0.url"),
            ("url = \"http://s\"\naddresses = [\"0x12\"]", "addresses"),
            ("url = \"http://s\"\ntokn_env = \"b\"", "tokn_env"),
            ("timeout = \"1s\"", "url"),
        ] {
            let error = parse(&format!("[[http]]\n{keys}")).unwrap_err();
            assert!(error.contains(named), "{keys}: {error}");
        }
    }
}
