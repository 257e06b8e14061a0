//! The database URL and its TLS mode.
//!
//! A man in the middle between a worker and its database could have anything signed, because the worker signs what
//! the rows contain. So a connection to another machine needs an explicit `sslmode`.

use std::borrow::Cow;
use std::path::Path;
use std::str::FromStr;

use sqlx::postgres::{PgConnectOptions, PgSslMode};
use url::Url;

use super::error::StoreError;
use gapless_config::Secret;
use gapless_config::endpoint::is_loopback;
use gapless_config::secret_file::is_world_readable;

/// Parameters that the driver supports. It would log others with their values, which may be secrets.
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

/// Parameters that name files, and the environment variables used if they are absent.
const FILES: [(&[&str], &str); 3] = [
    (&["sslrootcert", "ssl-root-cert", "ssl-ca"], "PGSSLROOTCERT"),
    (&["sslcert", "ssl-cert"], "PGSSLCERT"),
    (&["sslkey", "ssl-key"], "PGSSLKEY"),
];

/// A parsed database URL, without unsupported parameters.
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
            return Err(bad("it does not start with postgres://"));
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

    /// Connection options. Refuses another machine without an explicit `sslmode`, and unreadable certificate files.
    pub(super) fn options(self) -> Result<PgConnectOptions, StoreError> {
        if self.is_remote() && !self.is_set("sslmode", "PGSSLMODE") && !self.is_set("ssl-mode", "PGSSLMODE") {
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

    /// Security warnings for the start of a program, one line each.
    fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        for name in &self.unknown {
            warnings.push(format!("unknown parameter `{name}` in database.url is ignored"));
        }
        if self.is_remote()
            && let Some(danger) = danger(self.options.get_ssl_mode())
        {
            let host = self.options.get_host();
            warnings.push(format!(
                "the connection to the database on {host} {danger}: a man in the middle can read and \
                 change it, and have anything signed; use sslmode=verify-full (docs/operate/access.md#tls)"
            ));
        }
        let (names, variable) = FILES[2];
        if let Some(path) = self.file(names, variable)
            && is_world_readable(Path::new(path.as_ref()))
        {
            warnings.push(format!("all users of this machine can read the private key {path} (sslkey)"));
        }
        warnings
    }

    /// Host, port and database.
    pub(super) fn place(&self) -> String {
        let database = self.options.get_database().unwrap_or_default();
        match self.options.get_socket() {
            Some(path) => format!("{}/{database}", path.display()),
            None => format!("{}:{}/{database}", self.options.get_host(), self.options.get_port()),
        }
    }

    fn is_remote(&self) -> bool {
        self.options.get_socket().is_none() && !is_loopback(self.options.get_host())
    }

    fn is_set(&self, name: &str, variable: &str) -> bool {
        self.url.query_pairs().any(|(found, _)| found == name) || std::env::var_os(variable).is_some()
    }

    /// The path of a file parameter; `None` if it is absent or contains the PEM text itself.
    fn file(&self, names: &[&str], variable: &str) -> Option<Cow<'_, str>> {
        let named = self.url.query_pairs().find(|(name, _)| names.contains(&name.as_ref()));
        let path = named.map(|(_, path)| path).or_else(|| std::env::var(variable).ok().map(Cow::Owned))?;
        (!path.trim_start().starts_with("-----BEGIN")).then_some(path)
    }
}

fn is_known(name: &str) -> bool {
    PARAMETERS.contains(&name) || name.starts_with("options[")
}

/// The risk of a TLS mode on a connection to another machine.
fn danger(mode: PgSslMode) -> Option<&'static str> {
    match mode {
        // With `allow` the driver never uses TLS.
        PgSslMode::Disable | PgSslMode::Allow => Some("is not encrypted"),
        PgSslMode::Prefer => Some("may not be encrypted, and the server is not verified"),
        PgSslMode::Require => Some("is encrypted, but the server is not verified"),
        // Public CAs are accepted as well, and they issue certificates for any server.
        PgSslMode::VerifyCa => Some("is encrypted, but the name of the server is not verified"),
        PgSslMode::VerifyFull => None,
    }
}

/// Security warnings about the connection to the database. None for an invalid URL: that is refused where it is used.
pub fn database_warnings(url: &Secret) -> Vec<String> {
    Address::read(url).map(|address| address.warnings()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(url: &str) -> Result<PgConnectOptions, StoreError> {
        Address::read(&Secret::new(url))?.options()
    }

    #[test]
    fn a_database_on_another_machine_needs_an_sslmode() {
        for here in [
            "postgres://h@localhost/d",
            "postgres://127.0.0.1:1/d",
            "postgres://[::1]/d",
            "postgres:///d?host=/run/pg",
        ] {
            assert!(options(here).is_ok(), "{here}");
            assert_eq!(database_warnings(&Secret::new(here)), Vec::<String>::new(), "{here}");
        }
        for unset in [
            "postgres://u:hunter2@db/d",
            "postgres:///d?host=db.internal",
            "postgres://10.0.0.1/d?hostaddr=10.0.0.2",
        ] {
            let error = options(unset).unwrap_err();
            assert!(error.needs_operator() && error.to_string().contains("sslmode=verify-full"), "{error}");
            assert!(!error.to_string().contains("hunter2"), "{error}");
        }
    }

    #[test]
    fn every_mode_but_verify_full_is_warned_about() {
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
            let warnings = database_warnings(&Secret::new(url));
            assert_eq!(!warnings.is_empty(), warned, "{mode}: {warnings:?}");
            assert!(
                warnings.iter().all(|warning| warning.contains("on db ") && !warning.contains("hunter2")),
                "{warnings:?}"
            );
        }
    }

    #[test]
    fn an_unknown_parameter_is_named_without_its_value() {
        let url = Secret::new("postgres://localhost/d?sslpassword=hunter2&application_name=x");
        assert_eq!(database_warnings(&url), ["unknown parameter `sslpassword` in database.url is ignored"]);
        let read = Address::read(&url).unwrap();
        assert!(!read.url.as_str().contains("hunter2") && read.url.as_str().ends_with("?application_name=x"));
    }

    #[test]
    fn a_database_is_named_without_user_and_password() {
        let place = |url: &str| Address::read(&Secret::new(url)).unwrap().place();
        assert_eq!(place("postgres://u:hunter2@db.internal:5433/d?sslmode=require"), "db.internal:5433/d");
        assert_eq!(place("postgres://u:hunter2@[::1]/d"), "[::1]:5432/d");
        assert_eq!(place("postgres:///d?host=/run/pg&user=u&password=hunter2"), "/run/pg/d");
    }

    #[test]
    fn errors_do_not_contain_the_password() {
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
