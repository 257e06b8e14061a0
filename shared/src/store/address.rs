//! Where the database is, and how the way there is secured.
//!
//! Whoever sits between a worker and its database can have anything signed: the worker signs what the rows say. So the way to
//! another machine is verified, or somebody has said that it need not be.

use std::borrow::Cow;
use std::path::Path;
use std::str::FromStr;

use reqwest::Url;
use sqlx::postgres::{PgConnectOptions, PgSslMode};

use super::error::StoreError;
use crate::config::Secret;
use crate::config::endpoint::is_loopback;
use crate::secret_file::is_open_to_all;

/// What the driver takes. It would log others together with their values, which may be secrets.
const PARAMETERS: [&str; 18] = [
    "sslmode",
    "ssl-mode",
    "sslrootcert",
    "ssl-root-cert",
    "ssl-ca",
    "sslcert",
    "ssl-cert",
    "sslkey",
    "ssl-key",
    "statement-cache-capacity",
    "host",
    "hostaddr",
    "port",
    "dbname",
    "user",
    "password",
    "application_name",
    "options",
];

/// Parameters that name files, and the variables that do so in their absence.
const FILES: [(&[&str], &str); 3] = [
    (&["sslrootcert", "ssl-root-cert", "ssl-ca"], "PGSSLROOTCERT"),
    (&["sslcert", "ssl-cert"], "PGSSLCERT"),
    (&["sslkey", "ssl-key"], "PGSSLKEY"),
];

/// A database URL as it was read, not as it was written.
pub(super) struct Address {
    url: Url,
    options: PgConnectOptions,
    unknown: Vec<String>,
}

impl Address {
    pub(super) fn read(url: &Secret) -> Result<Address, StoreError> {
        let bad = |problem: &str| StoreError::BadUrl { problem: problem.to_owned() };
        let mut url = Url::parse(url.expose()).map_err(|error| bad(&error.to_string()))?;
        if !matches!(url.scheme(), "postgres" | "postgresql") {
            return Err(bad("it does not begin with postgres://"));
        }
        let pairs: Vec<(String, String)> = url.query_pairs().into_owned().collect();
        let (known, unknown): (Vec<_>, Vec<_>) = pairs.into_iter().partition(|(name, _)| is_known(name));
        url.set_query(None);
        if !known.is_empty() {
            url.query_pairs_mut().extend_pairs(&known);
        }
        let options =
            PgConnectOptions::from_str(url.as_str()).map_err(StoreError::db("parse database.url"))?;
        let unknown = unknown.into_iter().map(|(name, _)| name).collect();
        Ok(Address { url, options, unknown })
    }

    /// For a connection, if the way is secured or somebody said that it need not be.
    pub(super) fn options(self) -> Result<PgConnectOptions, StoreError> {
        if self.is_elsewhere() && !self.says("sslmode", "PGSSLMODE") && !self.says("ssl-mode", "PGSSLMODE") {
            return Err(StoreError::Unsecured { host: self.options.get_host().to_owned() });
        }
        for (names, variable) in FILES {
            if let Some(path) = self.file(names, variable)
                && let Err(error) = std::fs::File::open(path.as_ref())
            {
                let problem = format!("{}: {path}: {error}", names[0]);
                return Err(StoreError::BadUrl { problem });
            }
        }
        Ok(self.options)
    }

    /// What somebody should know at the start, each in a line.
    fn remarks(&self) -> Vec<String> {
        let mut remarks = Vec::new();
        for name in &self.unknown {
            remarks.push(format!("the parameter `{name}` of database.url is not known and not used"));
        }
        if self.is_elsewhere()
            && let Some(danger) = danger(self.options.get_ssl_mode())
        {
            let host = self.options.get_host();
            remarks.push(format!(
                "the connection to the database on {host} {danger}: whoever sits between can read it, change it, and have \
                 anything signed; use sslmode=verify-full (docs/operations.md, TLS)"
            ));
        }
        let (names, variable) = FILES[2];
        if let Some(path) = self.file(names, variable)
            && is_open_to_all(Path::new(path.as_ref()))
        {
            remarks.push(format!("every user of this machine can read {path}, the key of sslkey"));
        }
        remarks
    }

    fn is_elsewhere(&self) -> bool {
        self.options.get_socket().is_none() && !is_loopback(self.options.get_host())
    }

    fn says(&self, name: &str, variable: &str) -> bool {
        self.url.query_pairs().any(|(found, _)| found == name) || std::env::var_os(variable).is_some()
    }

    /// The path of a file that is named and not written out.
    fn file(&self, names: &[&str], variable: &str) -> Option<Cow<'_, str>> {
        let named = self.url.query_pairs().find(|(name, _)| names.contains(&name.as_ref()));
        let path = named.map(|(_, path)| path).or_else(|| std::env::var(variable).ok().map(Cow::Owned))?;
        (!path.trim_start().starts_with("-----BEGIN")).then_some(path)
    }
}

fn is_known(name: &str) -> bool {
    PARAMETERS.contains(&name) || name.starts_with("options[")
}

/// What is wrong with a mode, between machines.
fn danger(mode: PgSslMode) -> Option<&'static str> {
    match mode {
        // The driver's `allow` never asks for TLS.
        PgSslMode::Disable | PgSslMode::Allow => Some("is not encrypted"),
        PgSslMode::Prefer => Some("may not be encrypted, and the server is not verified"),
        PgSslMode::Require => Some("is encrypted, but the server is not verified"),
        // Authorities of the web count as well, and they vouch for everybody.
        PgSslMode::VerifyCa => Some("is encrypted, but the name of the server is not verified"),
        PgSslMode::VerifyFull => None,
    }
}

/// What whoever starts a program should know about its way to the database. A URL that cannot be read says nothing: it is
/// refused where it is used.
pub fn database_remarks(url: &Secret) -> Vec<String> {
    Address::read(url).map(|address| address.remarks()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(url: &str) -> Result<PgConnectOptions, StoreError> {
        Address::read(&Secret::new(url))?.options()
    }

    #[test]
    fn a_database_on_another_machine_needs_a_word_about_tls() {
        for here in [
            "postgres://h@localhost/d",
            "postgres://127.0.0.1:1/d",
            "postgres://[::1]/d",
            "postgres:///d?host=/run/pg",
        ] {
            assert!(options(here).is_ok(), "{here}");
            assert_eq!(database_remarks(&Secret::new(here)), Vec::<String>::new(), "{here}");
        }
        for silent in [
            "postgres://u:hunter2@db/d",
            "postgres:///d?host=db.internal",
            "postgres://10.0.0.1/d?hostaddr=10.0.0.2",
        ] {
            let error = options(silent).unwrap_err();
            assert!(error.is_for_people() && error.to_string().contains("sslmode=verify-full"), "{error}");
            assert!(!error.to_string().contains("hunter2"), "{error}");
        }
    }

    #[test]
    fn anything_less_than_verified_is_warned_of() {
        for (mode, warned) in [
            ("disable", true),
            ("allow", true),
            ("prefer", true),
            ("require", true),
            ("verify-ca", true),
            ("verify-full", false),
        ] {
            let url = format!("postgres://u:hunter2@db/d?sslmode={mode}");
            assert!(options(&url).is_ok(), "{mode}");
            let remarks = database_remarks(&Secret::new(url));
            assert_eq!(!remarks.is_empty(), warned, "{mode}: {remarks:?}");
            assert!(
                remarks.iter().all(|remark| remark.contains("on db ") && !remark.contains("hunter2")),
                "{remarks:?}"
            );
        }
    }

    #[test]
    fn an_unknown_parameter_is_named_without_its_value() {
        let url = Secret::new("postgres://localhost/d?sslpassword=hunter2&application_name=x");
        assert_eq!(
            database_remarks(&url),
            ["the parameter `sslpassword` of database.url is not known and not used"]
        );
        let read = Address::read(&url).unwrap();
        assert!(!read.url.as_str().contains("hunter2") && read.url.as_str().ends_with("?application_name=x"));
    }

    #[test]
    fn a_url_that_cannot_be_read_is_not_repeated() {
        for (url, named) in [
            ("hunter2", "database.url"),
            ("mysql://u:hunter2@h/d", "postgres://"),
            ("postgres://u:hunter2@h:port/d", "port"),
            (
                "postgres://u:hunter2@h/d?sslmode=verify-full&sslrootcert=/no/such/file.pem",
                "/no/such/file.pem",
            ),
            ("postgres://u:hunter2@h/d?sslmode=sometimes", "sometimes"),
        ] {
            let error = options(url).unwrap_err().to_string();
            assert!(error.contains(named) && !error.contains("hunter2"), "{error}");
        }
    }
}
